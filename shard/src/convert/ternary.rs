//! Checkpoints whose matrices have three values: BitNet, and models of Llama's shape trained in its way.
//!
//! config.json says under `quantization_config` how they are stored: as codes beside a number that multiplies what a matrix gives
//! (`autobitlinear`) or divides it (`bitlinear`), or, `online`, as the weights they are rounded from.

use super::{
    checkpoint::{Checkpoint, Stored},
    config::Config,
    planned::Planned,
};
use crate::{Error, Result};

/// How the matrices of a checkpoint are ternary.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stores {
    /// Codes and what multiplies them.
    Multiplied,
    /// Codes and what divides them.
    Divided,
    /// Weights to be rounded.
    Weights,
}

impl Stores {
    fn name(self) -> &'static str {
        match self {
            Self::Multiplied | Self::Divided => "codes",
            Self::Weights => "weights to be rounded",
        }
    }
}

/// How they are, or `None` where they are not.
///
/// # Errors
/// Ways that are not known, and families whose every matrix does not come this way.
fn stores(config: &Config) -> Result<Option<Stores>> {
    let said = &config.json["quantization_config"];
    if said["quant_method"] != "bitnet" {
        return Ok(None);
    }
    let refused = |key: &str| {
        Err(Error::unsupported(format!("config.json: {key} {} of quant_method \"bitnet\"", said[key])))
    };
    if said["use_rms_norm"] == true {
        return refused("use_rms_norm");
    }
    let left = said["modules_to_not_convert"].as_array();
    if left.is_some_and(|left| left.iter().any(|name| name != "lm_head" && name != "embed_tokens")) {
        return refused("modules_to_not_convert");
    }
    if !["bitnet-b1.58", "llama"].contains(&config.arch()) || config.experts() > 0 {
        return Err(Error::unsupported(format!("config.json: ternary matrices of {}", config.kind())));
    }
    match (said["linear_class"].as_str().unwrap_or("bitlinear"), said["quantization_mode"].as_str()) {
        ("autobitlinear", Some("online")) => Ok(Some(Stores::Weights)),
        ("autobitlinear", None | Some("offline")) => Ok(Some(Stores::Multiplied)),
        ("bitlinear", None | Some("offline")) => Ok(Some(Stores::Divided)),
        ("autobitlinear" | "bitlinear", _) => refused("quantization_mode"),
        _ => refused("linear_class"),
    }
}

/// Refuses ternary codes where nothing multiplies them: outside of layers, and in families whose matrices come another way.
pub(super) fn check(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<()> {
    let has_scale = |name: &&str| checkpoint.get(name).is_some_and(|stored| stored.scale.is_some());
    for name in checkpoint.names().filter(has_scale) {
        if stores(config)?.is_none() || !name.contains("layers.") {
            return Err(Error::unsupported(format!("tensor {name} of the checkpoint: ternary codes")));
        }
    }
    Ok(())
}

/// Says of a layer's tensor that it is ternary, where it is.
///
/// # Errors
/// Codes where config.json does not say what their scale does, and what [`stores`] refuses.
pub(super) fn plan(config: &Config, planned: &mut Planned, stored: &Stored) -> Result<()> {
    if planned.vector {
        return Ok(());
    }
    match (stores(config)?, stored.scale) {
        (None, None) => {}
        (Some(Stores::Multiplied), Some(scale)) => planned.factors = vec![(0..planned.rows(), scale)],
        (Some(Stores::Divided), Some(scale)) => planned.factors = vec![(0..planned.rows(), 1.0 / scale)],
        (Some(Stores::Weights), None) => planned.ternary = true,
        (stores, scale) => {
            let (has, stores) =
                (if scale.is_some() { "codes" } else { "weights" }, stores.map_or("weights", Stores::name));
            return Err(Error::malformed(&planned.name, format!("{has} where config.json says {stores}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{checkpoint::folder_of, folder::Folder},
        *,
    };

    fn stored_as(kind: &str, said: Value) -> Result<Option<Stores>> {
        stores(&Config::new(json!({"model_type": kind, "quantization_config": said}))?)
    }

    #[test]
    fn ways_are_told_apart_or_refused_by_key() {
        let way = |class: &str, mode: Value| json!({"quant_method": "bitnet", "linear_class": class, "quantization_mode": mode});
        for (said, stores) in [
            (Value::Null, None),
            (json!({"quant_method": "mxfp4"}), None),
            (json!({"quant_method": "bitnet"}), Some(Stores::Divided)),
            (way("autobitlinear", json!("offline")), Some(Stores::Multiplied)),
            (way("autobitlinear", json!("online")), Some(Stores::Weights)),
        ] {
            assert_eq!(stored_as("bitnet", said.clone()).unwrap(), stores, "{said}");
        }
        let norms = json!({"quant_method": "bitnet", "use_rms_norm": true});
        let left = json!({"quant_method": "bitnet", "modules_to_not_convert": ["lm_head", "down_proj"]});
        for (kind, said, part) in [
            ("bitnet", way("bitlinear", json!("online")), "quantization_mode"),
            ("bitnet", way("linear", Value::Null), "linear_class"),
            ("bitnet", norms, "use_rms_norm"),
            ("bitnet", left, "modules_to_not_convert"),
            ("qwen2", way("bitlinear", Value::Null), "qwen2"),
        ] {
            let why = stored_as(kind, said).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn scales_multiply_or_divide() {
        let entries = json!({
            "layers.0.w.weight": {"dtype": "U8", "shape": [1, 2], "data_offsets": [0, 2]},
            "layers.0.w.weight_scale": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 4]},
        });
        // Rows (1, -1), (0, 0), (-1, 1) and (1, 0) times 4.0.
        let folder = folder_of(&entries, &[0b10_00_01_10, 0b01_10_01_00, 0x80, 0x40]);
        let folder = Folder::open(folder.path()).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let stored = checkpoint.get("layers.0.w.weight").unwrap();
        let checked = |more: Value| {
            check(
                &Config::new(json!({"model_type": "llama", "quantization_config": more})).unwrap(),
                &checkpoint,
            )
        };
        assert!(checked(json!({"quant_method": "bitnet"})).is_ok());
        assert!(checked(Value::Null).is_err(), "nothing says what the scale does");
        let values = |said: Value| -> Result<Vec<f32>> {
            let config = Config::new(json!({"model_type": "llama", "quantization_config": said}))?;
            let mut planned = Planned::matrix("w".into(), "layers.0.w.weight", stored);
            plan(&config, &mut planned, stored)?;
            planned.read(&checkpoint, 0..4)
        };
        let way = |class: &str, mode: &str| json!({"quant_method": "bitnet", "linear_class": class, "quantization_mode": mode});
        let codes = [1.0, -1.0, 0.0, 0.0, -1.0, 1.0, 1.0, 0.0];
        assert_eq!(values(way("autobitlinear", "offline")).unwrap(), codes.map(|code| code * 4.0));
        assert_eq!(values(way("bitlinear", "offline")).unwrap(), codes.map(|code| code / 4.0));
        for (said, part) in [
            (Value::Null, "codes where config.json says weights"),
            (way("autobitlinear", "online"), "codes where config.json says weights to be rounded"),
        ] {
            let why = values(said).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(why.contains(part), "{why}");
        }
    }
}
