//! `config.json` of a checkpoint: which family it is, and the GGUF metadata that follows.

use serde_json::Value;

use super::{
    blocks::{blocks, variant},
    family,
    folder::Folder,
    synonyms,
};
use crate::{Error, Result};

/// The architectures with gated delta nets beside attention.
pub(super) fn has_delta_nets(arch: &str) -> bool {
    ["qwen3next", "qwen35", "qwen35moe"].contains(&arch)
}

/// Whether an architecture has latent attention.
pub(super) fn has_latents(arch: &str) -> bool {
    ["deepseek2", "kimi-linear"].contains(&arch)
}

/// Whether an architecture is a family of encoders, whose metadata `encoder` writes.
pub(super) fn is_encoder(arch: &str) -> bool {
    ["bert", "nomic-bert", "modern-bert"].contains(&arch)
}

/// Largest head accepted: tables are made of its length. Those in use are up to 512.
const MAX_HEAD_DIM: usize = 1 << 16;
/// Most experts of a layer accepted: lists are made of their number. Those in use are up to 512.
const MAX_EXPERTS: usize = 1 << 12;

/// A checkpoint's configuration.
pub(super) struct Config {
    pub(super) json: Value,
    /// `model_type`.
    kind: &'static str,
    pub(super) arch: &'static str,
    /// Tensors of a text model inside a multimodal checkpoint carry a longer prefix.
    pub nested: bool,
    /// Layers behind those of the model, which predict tokens further ahead, that are written ([`super::mtp`]).
    pub ahead: u32,
}

impl Config {
    pub fn read(folder: &Folder) -> Result<Self> {
        folder.len("config.json")?;
        Self::new(folder.json("config.json")?.unwrap_or_default())
    }

    pub fn new(json: Value) -> Result<Self> {
        let nested = json["text_config"].is_object();
        let mut text = if nested { json["text_config"].clone() } else { json.clone() };
        for (inside, outside) in [
            ("tie_word_embeddings", &json["tie_word_embeddings"]),
            ("deepstack_visual_indexes", &json["vision_config"]["deepstack_visual_indexes"]),
        ] {
            if text[inside].is_null() && !outside.is_null() {
                text[inside] = outside.clone();
            }
        }
        let json = text;
        let kind = json["model_type"].as_str().unwrap_or_default();
        let &(kind, arch) = family::FAMILIES.iter().find(|(name, _)| *name == kind).ok_or_else(|| {
            let known: Vec<&str> = family::FAMILIES.iter().map(|(name, _)| *name).collect();
            Error::unsupported(format!("model_type \"{kind}\" in config.json (known: {})", known.join(", ")))
        })?;
        let arch = variant(&json).unwrap_or(arch);
        let json = if arch == "kimi-linear" { synonyms::usual(json) } else { json };
        let config = Self { json, kind, arch, nested, ahead: 0 };
        config.check_activation()?;
        config.check_rope()?;
        if config.experts() > MAX_EXPERTS {
            return Err(Error::malformed(
                "config.json: experts",
                format!("there are more than {MAX_EXPERTS}"),
            ));
        }
        Ok(config)
    }

    pub fn arch(&self) -> &'static str {
        self.arch
    }

    /// Whether the head is the embedding.
    pub fn tied(&self) -> bool {
        self.json["tie_word_embeddings"].as_bool().unwrap_or(family::is_tied(self.arch))
    }

    pub fn layers(&self) -> Result<usize> {
        match blocks(&self.json) {
            Some(blocks) if self.json["num_hidden_layers"].is_null() => Ok(blocks.len()),
            _ => self.number("num_hidden_layers"),
        }
    }

    pub fn heads(&self) -> Result<usize> {
        self.number("num_attention_heads")
    }

    pub fn kv_heads(&self) -> Result<usize> {
        if self.json["num_key_value_heads"].is_u64() {
            self.number("num_key_value_heads")
        } else {
            self.heads()
        }
    }

    pub fn experts(&self) -> usize {
        if self.arch == "nemotron_h" {
            // It says how many there would be.
            return 0;
        }
        self.first(&["num_local_experts", "num_experts", "n_routed_experts"])
            .and_then(Value::as_u64)
            .unwrap_or(0) as usize
    }

    pub fn vocab(&self) -> Result<usize> {
        self.number("vocab_size")
    }

    /// The ids config.json gives for a role such as `eos_token_id`: none, one or several.
    pub fn token_ids(&self, key: &str) -> Vec<u32> {
        let value = &self.json[key];
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        list.iter().filter_map(|v| u32::try_from(v.as_u64()?).ok()).collect()
    }

    pub fn head_dim(&self) -> Result<usize> {
        let dim = match self.json["head_dim"].as_u64() {
            Some(n) => n as usize,
            None => self.number("hidden_size")? / self.heads()?.max(1),
        };
        if dim > MAX_HEAD_DIM {
            return Err(Error::malformed("config.json: head_dim", format!("{dim} is above {MAX_HEAD_DIM}")));
        }
        Ok(dim)
    }

    /// `model_type`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// A text, if there is one.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.json[key].as_str()
    }

    /// A truth value, if there is one.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.json[key].as_bool()
    }

    /// A number, if there is one.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.json[key].as_f64()
    }

    /// The base of the frequencies of layers with a window, if there is one.
    pub fn local_rope_theta(&self) -> Option<f64> {
        self.json["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64()
    }

    /// A list of texts, if there is one.
    pub fn strings(&self, key: &str) -> Option<Vec<String>> {
        let list = self.json[key].as_array()?;
        Some(list.iter().map(|text| text.as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Refuses another nonlinearity than the family's.
    fn check_activation(&self) -> Result<()> {
        let known = family::activations(self.arch);
        let Some(value) = self.first(&["hidden_activation", "hidden_act"]) else { return Ok(()) };
        if value.as_str().is_some_and(|name| known.contains(&name)) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "config.json: hidden_act {value} ({} computes {})",
            self.kind, known[0]
        )))
    }

    fn first(&self, keys: &[&str]) -> Option<&Value> {
        keys.iter().map(|key| &self.json[*key]).find(|value| !value.is_null())
    }

    /// The size called `key`; none where it is missing or null.
    pub fn size(&self, key: &str) -> Result<Option<u32>> {
        size(&self.json, key)
    }

    /// The number called `key`, at most `most`.
    pub fn bounded(&self, key: &str, most: usize) -> Result<usize> {
        let number = self.number(key)?;
        if number > most {
            let why = format!("is {number}, the limit is {most}");
            return Err(Error::malformed(format!("config.json: {key}"), why));
        }
        Ok(number)
    }

    /// Refuses a list that tells of another number of layers.
    pub fn check_layers(&self, told: usize) -> Result<()> {
        let layers = self.layers()?;
        if told != layers {
            let why = format!("it tells of {told} layers of {layers}");
            return Err(Error::malformed("config.json: layer_types", why));
        }
        Ok(())
    }

    pub fn number(&self, key: &str) -> Result<usize> {
        let n = self.json[key].as_u64().filter(|&n| n > 0 && n < 1 << 31);
        n.map(|n| n as usize).ok_or_else(|| {
            Error::malformed(format!("config.json: {key}"), "it is missing or no sound number")
        })
    }
}

/// Refuses what a family's files cannot say, by a key and the one value that it may have.
pub(super) fn only(config: &Config, key: &str, usual: &Value) -> Result<()> {
    match &config.json[key] {
        Value::Null => Ok(()),
        value if value == usual || value.as_f64().is_some_and(|value| Some(value) == usual.as_f64()) => {
            Ok(())
        }
        value => Err(Error::unsupported(format!("config.json: {key} {value}"))),
    }
}

pub(super) fn size(object: &Value, key: &str) -> Result<Option<u32>> {
    let value = &object[key];
    if value.is_null() {
        return Ok(None);
    }
    let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
    n.map(Some)
        .ok_or_else(|| Error::malformed(format!("config.json: {key}"), format!("{value} is no sound number")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_sizes_are_made_of_are_bounded() {
        let sound = json!({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2});
        let with = |key: &str, value: Value| {
            let mut json = sound.clone();
            json[key] = value;
            Config::new(json)
        };
        assert_eq!(Config::new(sound.clone()).unwrap().head_dim().unwrap(), 4);
        assert_eq!(with("num_key_value_heads", Value::Null).unwrap().kv_heads().unwrap(), 2);
        for huge in [json!(4_000_000_000u64), json!(1u64 << 63), json!(u64::MAX)] {
            let message = |error: Option<Error>| error.map(|error| error.to_string()).unwrap_or_default();
            let dim = with("head_dim", huge.clone()).unwrap();
            assert!(message(dim.head_dim().err()).contains("head_dim"), "{huge}");
            let heads = with("num_key_value_heads", huge.clone()).unwrap();
            assert!(message(heads.kv_heads().err()).contains("num_key_value_heads"), "{huge}");
            assert!(message(with("num_experts", huge.clone()).err()).contains("experts"), "{huge}");
        }
        assert!(with("hidden_size", json!(2_147_483_646)).unwrap().head_dim().is_err());
    }
}
