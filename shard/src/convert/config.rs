//! `config.json` of a checkpoint: which family it is, and the GGUF metadata that follows.

use serde_json::Value;

use super::folder::Folder;
use crate::{Error, Result, gguf::Writer, kernels::math};

/// `model_type` in config.json, architecture in GGUF.
const FAMILIES: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("phi3", "phi3"),
    ("starcoder2", "starcoder2"),
    ("glm4", "glm4"),
    ("qwen3_next", "qwen3next"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("deepseek_v2", "deepseek2"),
    ("deepseek_v3", "deepseek2"),
    ("kimi_k2", "deepseek2"),
    ("bert", "bert"),
    ("nomic_bert", "nomic-bert"),
    ("modernbert", "modern-bert"),
];

/// What changes the length of cosines and sines under YaRN.
const YARN_FACTORS: [&str; 3] = ["attention_factor", "mscale", "mscale_all_dim"];

/// The architectures with gated delta nets beside attention.
pub(super) fn has_delta_nets(arch: &str) -> bool {
    ["qwen3next", "qwen35", "qwen35moe"].contains(&arch)
}

/// Whether an architecture has latent attention.
pub(super) fn has_latents(arch: &str) -> bool {
    arch == "deepseek2"
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
    json: Value,
    /// `model_type`.
    kind: &'static str,
    arch: &'static str,
    /// Tensors of a text model inside a multimodal checkpoint carry a longer prefix.
    pub nested: bool,
}

impl Config {
    pub fn read(folder: &Folder) -> Result<Self> {
        folder.len("config.json")?;
        Self::new(folder.json("config.json")?.unwrap_or_default())
    }

    pub fn new(json: Value) -> Result<Self> {
        let nested = json["text_config"].is_object();
        let json = if nested { json["text_config"].clone() } else { json };
        let kind = json["model_type"].as_str().unwrap_or_default();
        let &(kind, arch) = FAMILIES.iter().find(|(name, _)| *name == kind).ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
            Error::unsupported(format!("model_type \"{kind}\" in config.json (known: {})", known.join(", ")))
        })?;
        let config = Self { json, kind, arch, nested };
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
        let default = self.arch.starts_with("gemma") || self.arch == "starcoder2";
        self.json["tie_word_embeddings"].as_bool().unwrap_or(default)
    }

    pub fn layers(&self) -> Result<usize> {
        self.number("num_hidden_layers")
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

    /// The divisors of the rotary frequencies that GGUF carries as a tensor (llama 3.1 and later, phi 3 long context).
    pub fn rope_tensors(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let rope = self.rope();
        match rope_kind(rope) {
            "llama3" => Ok(vec![("rope_freqs.weight", self.llama3_factors(rope)?)]),
            "longrope" | "su" => Ok(vec![
                ("rope_factors_long.weight", numbers(&rope["long_factor"], "long_factor")?),
                ("rope_factors_short.weight", numbers(&rope["short_factor"], "short_factor")?),
            ]),
            _ => Ok(Vec::new()),
        }
    }

    /// Adds the model's metadata. Errors: a size that is none, or a choice that GGUF cannot express.
    pub fn write(&self, writer: &mut Writer, name: &str, file_type: u32) -> Result<()> {
        let arch = self.arch;
        let key = |name: &str| format!("{arch}.{name}");
        writer.add_str("general.architecture", arch);
        writer.add_str("general.type", "model");
        writer.add_str("general.name", name);
        writer.add_u32("general.file_type", file_type);
        writer.add_u32("general.quantization_version", 2);
        if is_encoder(arch) {
            return Ok(());
        }
        let copies = [
            ("max_position_embeddings", "context_length"),
            ("hidden_size", "embedding_length"),
            ("num_hidden_layers", "block_count"),
            ("intermediate_size", "feed_forward_length"),
            ("num_attention_heads", "attention.head_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ];
        for (from, to) in copies {
            if let Some(n) = self.size(from)? {
                writer.add_u32(&key(to), n);
            }
        }
        let kv_heads = if has_latents(arch) { 1 } else { self.kv_heads()? };
        writer.add_u32(&key("attention.head_count_kv"), kv_heads as u32);
        if self.experts() > 0 {
            writer.add_u32(&key("expert_count"), self.experts() as u32);
        }
        if ["qwen2moe", "qwen3moe"].contains(&arch) {
            // The published implementations take a missing key for false.
            writer.add_bool(
                &key("expert_weights_norm"),
                self.json["norm_topk_prob"].as_bool().unwrap_or(false),
            );
        }
        if let (Some(n), "llama") = (self.size("vocab_size")?, arch) {
            writer.add_u32(&key("vocab_size"), n);
        }
        let norms = [
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            ("norm_epsilon", "attention.layer_norm_epsilon"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ];
        for (from, to) in norms {
            if let Some(x) = self.json[from].as_f64() {
                writer.add_f32(&key(to), x as f32);
            }
        }
        if has_delta_nets(arch) {
            self.check_hybrid()?;
        }
        self.write_attention(writer, &key)?;
        self.write_rope(writer, &key)
    }

    fn write_attention(&self, writer: &mut Writer, key: &dyn Fn(&str) -> String) -> Result<()> {
        if has_latents(self.arch) {
            return Ok(());
        }
        if let (Ok(dim), Ok(heads), Ok(hidden)) = (self.head_dim(), self.heads(), self.number("hidden_size"))
            && (dim * heads != hidden
                || ["gemma2", "gemma3", "qwen3", "qwen3moe", "glm4"].contains(&self.arch)
                || has_delta_nets(self.arch))
        {
            writer.add_u32(&key("attention.key_length"), dim as u32);
            writer.add_u32(&key("attention.value_length"), dim as u32);
        }
        if let Some(window) = self.window()? {
            writer.add_u32(&key("attention.sliding_window"), window);
        }
        Ok(())
    }

    /// The sliding window of the layers that have one, where the family's reader knows which those are.
    fn window(&self) -> Result<Option<u32>> {
        let wanted = self.json["use_sliding_window"].as_bool();
        match self.kind {
            "mistral" | "mixtral" | "phi3" | "starcoder2" if wanted != Some(false) => {
                self.size("sliding_window")
            }
            "gemma2" | "gemma3_text" => self.size("sliding_window"),
            "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" if wanted == Some(true) => {
                // A null window is none; without a word on it the published implementations have one of 4096.
                let none = self.json.get("sliding_window").is_some_and(Value::is_null);
                let first = self.size("max_window_layers")?.unwrap_or(28) as usize;
                if !none && first < self.layers()? {
                    return Err(Error::unsupported(format!(
                        "config.json: use_sliding_window with max_window_layers {first} of {} layers",
                        self.layers()?
                    )));
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Refuses what the published hybrids do not have.
    fn check_hybrid(&self) -> Result<()> {
        let other =
            |key: &str, usual: &[Value]| !self.json[key].is_null() && !usual.contains(&self.json[key]);
        for (key, usual) in [
            ("attention_bias", vec![Value::Bool(false)]),
            ("norm_topk_prob", vec![Value::Bool(true)]),
            ("decoder_sparse_step", vec![Value::from(1)]),
            ("mlp_only_layers", vec![Value::Array(Vec::new())]),
        ] {
            if other(key, &usual) {
                return Err(Error::unsupported(format!("config.json: {key} {}", self.json[key])));
            }
        }
        Ok(())
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

    /// A number of the rotary scaling, if there is one.
    pub fn rope_number(&self, key: &str) -> Option<f64> {
        self.rope()[key].as_f64()
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
        let gelu = self.arch.starts_with("gemma") || self.arch == "starcoder2";
        let known: &[&str] = match self.arch {
            "bert" | "modern-bert" => &["gelu"],
            _ if gelu => &["gelu_pytorch_tanh"],
            _ => &["silu", "swish"],
        };
        let Some(value) = self.first(&["hidden_activation", "hidden_act"]) else { return Ok(()) };
        if value.as_str().is_some_and(|name| known.contains(&name)) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "config.json: hidden_act {value} ({} computes {})",
            self.kind, known[0]
        )))
    }

    /// Refuses rotary scalings that GGUF or the engine cannot express.
    fn check_rope(&self) -> Result<()> {
        let rope = self.rope();
        let kind = rope_kind(rope);
        if !["default", "linear", "yarn", "llama3", "longrope", "su"].contains(&kind) {
            return Err(Error::unsupported(format!("config.json: rope_type \"{kind}\"")));
        }
        if ["linear", "yarn"].contains(&kind) && !rope["factor"].is_number() {
            return Err(Error::malformed("config.json: rope scaling factor", "it is missing or no number"));
        }
        if kind == "yarn" {
            // Latent attention has the factor on its softmax, which only equal numbers leave to it alone.
            let latent = has_latents(self.arch);
            let [own, all] = ["mscale", "mscale_all_dim"].map(|key| rope[key].as_f64());
            if latent && (own.is_none() || own != all) {
                return Err(Error::unsupported(
                    "config.json: mscale unlike mscale_all_dim of rope_type \"yarn\"",
                ));
            }
            let asked: &[&str] = if latent { &YARN_FACTORS[..1] } else { &YARN_FACTORS };
            let asked = asked.iter().find(|k| !rope[**k].is_null());
            if let Some(asked) = asked {
                return Err(Error::unsupported(format!("config.json: {asked} of rope_type \"yarn\"")));
            }
            if rope["truncate"].as_bool() == Some(false) {
                return Err(Error::unsupported("config.json: truncate false of rope_type \"yarn\""));
            }
        }
        Ok(())
    }

    fn write_rope(&self, writer: &mut Writer, key: &dyn Fn(&str) -> String) -> Result<()> {
        let rope = self.rope();
        let theta = rope["rope_theta"].as_f64().or(self.json["rope_theta"].as_f64());
        if let Some(theta) = theta.filter(|_| self.arch != "gemma2") {
            writer.add_f32(&key("rope.freq_base"), theta as f32);
        }
        let partial = rope["partial_rotary_factor"].as_f64().or(self.json["partial_rotary_factor"].as_f64());
        if let (Ok(dim), false) = (self.head_dim(), has_latents(self.arch)) {
            match partial {
                Some(share) => {
                    writer.add_u32(&key("rope.dimension_count"), (dim as f64 * share) as u32);
                }
                None if self.arch == "llama" || self.arch == "phi3" => {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32);
                }
                None if has_delta_nets(self.arch) => {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32 / 4);
                }
                None if self.arch == "glm4" => {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32 / 2);
                }
                None => {}
            }
        }
        let kind = rope_kind(rope);
        if let ("linear" | "yarn", Some(factor)) = (kind, rope["factor"].as_f64()) {
            writer.add_str(&key("rope.scaling.type"), kind);
            writer.add_f32(&key("rope.scaling.factor"), factor as f32);
        }
        let betas = [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")];
        for (from, to) in betas.into_iter().filter(|_| kind == "yarn") {
            if let Some(beta) = rope[from].as_f64() {
                writer.add_f32(&key(&format!("rope.scaling.{to}")), beta as f32);
            }
        }
        let name = "original_max_position_embeddings";
        let original = match size(rope, name)? {
            Some(original) => Some(original),
            None => self.size(name)?,
        };
        if let ("yarn" | "longrope" | "su", Some(original)) = (kind, original) {
            writer.add_u32(&key("rope.scaling.original_context_length"), original);
            if kind != "yarn" {
                let most = self.json["max_position_embeddings"].as_f64().unwrap_or(f64::from(original));
                writer.add_f32(
                    &key("rope.scaling.attn_factor"),
                    longrope_attention_factor(most, f64::from(original)),
                );
            }
        }
        Ok(())
    }

    fn llama3_factors(&self, rope: &Value) -> Result<Vec<f32>> {
        let number = |key: &str| {
            rope[key]
                .as_f64()
                .ok_or_else(|| Error::malformed(format!("config.json: rope scaling {key}"), "it is missing"))
        };
        let (factor, low, high) =
            (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
        let original = number("original_max_position_embeddings")?;
        let theta = rope["rope_theta"].as_f64().or(self.json["rope_theta"].as_f64()).unwrap_or(10_000.0);
        let dim = self.head_dim()?;
        let factors = (0..dim / 2).map(|i| {
            let wavelength = 2.0 * std::f64::consts::PI * math::pow(theta, 2.0 * i as f64 / dim as f64);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        });
        Ok(factors.collect())
    }

    /// Where the rotary parameters stand: `rope_parameters` (newer files; gemma 3 has one set per attention kind) or
    /// `rope_scaling` beside a plain `rope_theta`.
    fn rope(&self) -> &Value {
        let parameters = &self.json["rope_parameters"];
        match (&parameters["full_attention"], parameters) {
            (full, _) if full.is_object() => full,
            (_, all) if all.is_object() => all,
            _ => &self.json["rope_scaling"],
        }
    }

    fn first(&self, keys: &[&str]) -> Option<&Value> {
        keys.iter().map(|key| &self.json[*key]).find(|value| !value.is_null())
    }

    /// The size called `key`; none where it is missing or null.
    pub fn size(&self, key: &str) -> Result<Option<u32>> {
        size(&self.json, key)
    }

    pub fn number(&self, key: &str) -> Result<usize> {
        let n = self.json[key].as_u64().filter(|&n| n > 0 && n < 1 << 31);
        n.map(|n| n as usize).ok_or_else(|| {
            Error::malformed(format!("config.json: {key}"), "it is missing or no sound number")
        })
    }
}

fn size(object: &Value, key: &str) -> Result<Option<u32>> {
    let value = &object[key];
    if value.is_null() {
        return Ok(None);
    }
    let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
    n.map(Some)
        .ok_or_else(|| Error::malformed(format!("config.json: {key}"), format!("{value} is no sound number")))
}

fn rope_kind(rope: &Value) -> &str {
    rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default")
}

/// How much cos and sin grow when a phi 3 model made for `original` positions is stretched to `most`.
fn longrope_attention_factor(most: f64, original: f64) -> f32 {
    let stretch = most / original;
    if stretch <= 1.0 { 1.0 } else { (1.0 + math::ln(stretch) / math::ln(original)).sqrt() as f32 }
}

fn numbers(value: &Value, name: &str) -> Result<Vec<f32>> {
    let list: Option<Vec<f32>> =
        value.as_array().and_then(|v| v.iter().map(|x| Some(x.as_f64()? as f32)).collect());
    list.ok_or_else(|| Error::malformed(format!("config.json: {name}"), "it is not a list of numbers"))
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

    /// The metadata a configuration of two layers becomes, with `more` in config.json.
    fn written(kind: &str, more: Value) -> Result<crate::gguf::Gguf> {
        let mut json = json!({"model_type": kind, "hidden_size": 8, "num_attention_heads": 2,
            "num_hidden_layers": 2, "sliding_window": 64});
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut writer = Writer::new();
        Config::new(json)?.write(&mut writer, "converted", 0)?;
        writer.add_tensor_info("a", &[1], &crate::quant::F32);
        let mut tensors = writer.start(Vec::new())?;
        tensors.tensor(&[0; 4])?;
        crate::gguf::Gguf::from_bytes(tensors.finish()?)
    }

    fn refused(kind: &str, more: Value) -> String {
        written(kind, more).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn windows_are_carried_where_the_family_has_one_for_all() {
        let window = |kind: &str, more: Value| {
            let gguf = written(kind, more).unwrap();
            let arch = FAMILIES.iter().find(|(name, _)| *name == kind).unwrap().1;
            gguf.metadata().u64(&format!("{arch}.attention.sliding_window"))
        };
        for kind in ["mistral", "mixtral", "phi3", "starcoder2", "gemma2", "gemma3_text"] {
            assert_eq!(window(kind, json!({})), Some(64), "{kind}");
            assert_eq!(window(kind, json!({"sliding_window": null})), None, "{kind}");
        }
        assert_eq!(window("mistral", json!({"use_sliding_window": false})), None);
        for kind in ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"] {
            assert_eq!(window(kind, json!({})), None, "{kind}");
            assert_eq!(window(kind, json!({"use_sliding_window": true, "max_window_layers": 2})), None);
            let why = refused(kind, json!({"use_sliding_window": true, "max_window_layers": 1}));
            assert!(why.contains("max_window_layers"), "{why}");
        }
    }

    #[test]
    fn choices_are_carried_or_refused_by_name() {
        for (kind, arch) in [("qwen2_moe", "qwen2moe"), ("qwen3_moe", "qwen3moe")] {
            for norm in [false, true] {
                let gguf = written(kind, json!({"norm_topk_prob": norm})).unwrap();
                assert_eq!(gguf.metadata().bool(&format!("{arch}.expert_weights_norm")), Some(norm));
            }
        }
        let yarn = json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0});
        let gguf = written("llama", json!({"rope_scaling": yarn})).unwrap();
        assert_eq!(gguf.metadata().f32("llama.rope.scaling.yarn_beta_fast"), Some(16.0));
        assert_eq!(gguf.metadata().f32("llama.rope.scaling.yarn_beta_slow"), Some(2.0));
        for key in ["attention_factor", "mscale"] {
            let mut yarn = yarn.clone();
            yarn[key] = json!(1.5);
            assert!(refused("llama", json!({"rope_scaling": yarn})).contains(key));
        }
        assert!(refused("llama", json!({"rope_scaling": {"type": "dynamic"}})).contains("dynamic"));
        assert!(refused("llama", json!({"rope_scaling": {"type": "linear"}})).contains("factor"));
        assert!(refused("llama", json!({"hidden_act": "gelu"})).contains("gelu"));
        assert!(refused("gemma2", json!({"hidden_activation": "silu"})).contains("silu"));
        for (kind, act) in [("llama", "silu"), ("starcoder2", "gelu_pytorch_tanh")] {
            assert_eq!(refused(kind, json!({"hidden_act": act})), "");
        }
        for key in ["intermediate_size", "max_position_embeddings", "vocab_size"] {
            assert!(refused("llama", json!({key: (1u64 << 32) + 5})).contains(key));
        }
    }
}
