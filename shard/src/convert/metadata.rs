//! What a file says of a model besides its tensors, from config.json.

use serde_json::Value;

use super::{
    blocks::{Block, blocks},
    config::{Config, has_delta_nets, has_latents, is_encoder, only},
    family, gemma3n, gemma4, kimi, llama4, mamba,
};
use crate::{Error, Result, gguf::Writer};

impl Config {
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
            ("hidden_size", "embedding_length"),
            ("num_attention_heads", "attention.head_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ];
        let dense = arch == "nemotron_h";
        for (from, to) in copies {
            if let Some(n) = self.size(from)?.filter(|_| !(dense && to.starts_with("expert"))) {
                writer.add_u32(&key(to), n);
            }
        }
        writer.add_u32(&key("block_count"), self.layers()? as u32 + self.ahead);
        if self.ahead > 0 {
            writer.add_u32(&key("nextn_predict_layers"), self.ahead);
        }
        // Nothing bounds positions that do not rotate.
        let context = match arch {
            _ if family::is_boundless(arch) => Some(1 << 20),
            // What its `alpha` stretches positions to; config.json has the context of a training before that.
            _ if self.rope_alpha().is_some() => Some(1 << 18),
            _ => self.size("max_position_embeddings")?,
        };
        if let Some(context) = context {
            writer.add_u32(&key("context_length"), context);
        }
        let lists_widths = arch == "gemma3n" || family::is_gemma4(arch) || family::is_nemotron(arch);
        let width = if lists_widths { None } else { feed_forward(self)? };
        if let Some(width) = width {
            writer.add_u32(&key("feed_forward_length"), width);
        }
        if !family::lists_heads(arch) {
            let kv_heads = if has_latents(arch) { 1 } else { self.kv_heads()? };
            writer.add_u32(&key("attention.head_count_kv"), kv_heads as u32);
        }
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
        if let (Some(n), "llama" | "falcon-h1" | "mistral3") = (self.size("vocab_size")?, arch) {
            writer.add_u32(&key("vocab_size"), n);
        }
        let norms = [
            family::epsilon(arch),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ];
        for (from, to) in norms {
            if let Some(x) = self.json[from].as_f64() {
                writer.add_f32(&key(to), x as f32);
            }
        }
        if family::is_gemma4(arch) {
            return gemma4::write(self, writer);
        }
        self.write_attention(writer, &key)?;
        self.write_rope(writer, &key)?;
        if family::has_mamba(arch) {
            mamba::write(self, writer)?;
        }
        write_more(self, writer)
    }

    fn write_attention(&self, writer: &mut Writer, key: &dyn Fn(&str) -> String) -> Result<()> {
        if has_latents(self.arch) {
            return Ok(());
        }
        if let (Ok(dim), Ok(heads), Ok(hidden)) = (self.head_dim(), self.heads(), self.number("hidden_size"))
            && (dim * heads != hidden
                || ["gemma2", "gemma3", "gemma3n", "qwen3", "qwen3moe", "glm4", "hunyuan-dense"]
                    .contains(&self.arch)
                || ["qwen3vl", "qwen3vlmoe"].contains(&self.arch)
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
        match self.kind() {
            "mistral" | "mixtral" | "ministral3" | "phi3" | "starcoder2" if wanted != Some(false) => {
                self.size("sliding_window")
            }
            "gemma2" | "gemma3_text" | "gemma3n_text" | "olmo3" | "exaone4" | "cohere2" | "gpt_oss" => {
                self.size("sliding_window")
            }
            kind if kind.starts_with("qwen") && wanted == Some(true) => {
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
}

/// Which layers have a window, in order; `None` where the family's reader knows.
fn windowed(config: &Config) -> Result<Option<Vec<bool>>> {
    if !["olmo3", "exaone4"].contains(&config.kind()) || config.size("sliding_window")?.is_none() {
        return Ok(None);
    }
    let layers = config.layers()?;
    if let Some(kinds) = config.strings("layer_types") {
        return Ok(Some(kinds.iter().map(|kind| kind == "sliding_attention").collect()));
    }
    let pattern: Vec<bool> = match (&config.json["sliding_window_pattern"], config.kind()) {
        (Value::String(letters), _) => letters.bytes().map(|letter| letter == b'L').collect(),
        (Value::Null, "olmo3") => vec![true, true, true, false],
        (every, _) => {
            let every = every.as_u64().filter(|every| (1..=64).contains(every));
            let every = every.ok_or_else(|| {
                Error::malformed("config.json: sliding_window_pattern", "it is missing or no sound pattern")
            })?;
            (1..=every).map(|layer| layer < every).collect()
        }
    };
    if pattern.is_empty() {
        return Err(Error::malformed("config.json: sliding_window_pattern", "it is empty"));
    }
    Ok(Some(pattern.into_iter().cycle().take(layers).collect()))
}

/// Refuses what the engines that read a family's files do not do, since the files do not say it.
fn check_usual(config: &Config) -> Result<()> {
    for (families, key, usual) in [
        ("smollm3", "no_rope_layer_interval", Value::from(4)),
        ("smollm3", "use_sliding_window", false.into()),
        ("cohere2", "sliding_window_pattern", 4.into()),
        ("falcon-h1", "mamba_norm_before_gate", false.into()),
        ("nemotron_h", "mlp_hidden_act", "relu2".into()),
        ("nemotron_h", "mamba_hidden_act", "silu".into()),
        ("lfm2", "conv_bias", false.into()),
        ("lfm2moe", "norm_topk_prob", true.into()),
        ("lfm2moe", "routed_scaling_factor", 1.0.into()),
    ] {
        if config.arch().starts_with(families) {
            only(config, key, &usual)?;
        }
    }
    if config.arch() == "llama4" {
        llama4::check(config)?;
    }
    if has_delta_nets(config.arch()) {
        only(config, "attention_bias", &false.into())?;
        only(config, "norm_topk_prob", &true.into())?;
        only(config, "decoder_sparse_step", &1.into())?;
        only(config, "mlp_only_layers", &Value::Array(Vec::new()))?;
    }
    // Which layers see everything, or do not rotate, where the readers count.
    let every = match config.arch() {
        "smollm3" | "cohere2" | "llama4" => Some(4),
        "gpt-oss" => Some(2),
        "dots1" => Some(1),
        _ => None,
    };
    let last = |layer: usize, every: usize| (layer + 1).is_multiple_of(every);
    let kinds = config.strings("layer_types").filter(|_| config.arch() != "smollm3");
    if let (Some(every), Some(kinds)) = (every, kinds)
        && !kinds.iter().enumerate().all(|(layer, kind)| (kind == "full_attention") == last(layer, every))
    {
        return Err(Error::unsupported(format!("config.json: layer_types without a period of {every}")));
    }
    if let (Some(every), Some(rotates)) = (every, config.json["no_rope_layers"].as_array())
        && !rotates.iter().enumerate().all(|(layer, rotates)| (rotates == 0) == last(layer, every))
    {
        return Err(Error::unsupported(format!("config.json: no_rope_layers without a period of {every}")));
    }
    let [least, most] = [0, 1].map(|at| config.json["time_step_limit"][at].as_f64());
    if least.is_some_and(|least| least > 0.0) || most.is_some() {
        return Err(Error::unsupported("config.json: time_step_limit other than none"));
    }
    Ok(())
}

/// Adds what only some families say.
///
/// # Errors
/// Keys that are missing or unsound, and choices that a file cannot express.
fn write_more(config: &Config, writer: &mut Writer) -> Result<()> {
    check_usual(config)?;
    let arch = config.arch();
    let key = |name: &str| format!("{arch}.{name}");
    if let Some(windowed) = windowed(config)? {
        writer.add_bools(&key("attention.sliding_window_pattern"), &windowed);
    }
    if let (Some(width), "gemma2" | "gemma3") = (config.float("query_pre_attn_scalar"), arch) {
        // Readers take it from the width of heads.
        let heads = config.head_dim()?;
        let usual = if heads == 128 { config.number("hidden_size")? / config.heads()?.max(1) } else { heads };
        if width != usual as f64 {
            writer.add_f32(&key("attention.scale"), (1.0 / width.sqrt()) as f32);
        }
    }
    for (families, from, to) in [
        ("granite", "embedding_multiplier", "embedding_scale"),
        ("granite", "residual_multiplier", "residual_scale"),
        ("granite", "logits_scaling", "logit_scale"),
        ("granite", "attention_multiplier", "attention.scale"),
        ("cohere2", "logit_scale", "logit_scale"),
        ("command-r", "logit_scale", "logit_scale"),
    ] {
        if arch.starts_with(families) {
            let default = (from == "logit_scale").then_some(0.0625);
            let value = config.float(from).or(default).ok_or_else(|| {
                Error::malformed(format!("config.json: {from}"), "it is missing or no number")
            })?;
            writer.add_f32(&key(to), value as f32);
        }
    }
    if ["glm4moe", "dots1", "minimax-m2", "lfm2moe"].contains(&arch) {
        writer.add_u32(&key("expert_gating_func"), 2);
    }
    match arch {
        "minimax-m2" | "gpt-oss" => {
            writer.add_u32(&key("expert_feed_forward_length"), config.number("intermediate_size")? as u32);
        }
        "llama4" => llama4::write(config, writer)?,
        "gemma3n" => gemma3n::write(config, writer)?,
        "kimi-linear" => kimi::write(config, writer)?,
        "lfm2moe" => {
            writer.add_u32(&key("leading_dense_block_count"), config.size("num_dense_layers")?.unwrap_or(0));
        }
        "glm4moe" | "dots1" => {
            for (from, to) in [
                ("n_shared_experts", "expert_shared_count"),
                ("first_k_dense_replace", "leading_dense_block_count"),
            ] {
                writer.add_u32(&key(to), config.size(from)?.unwrap_or(0));
            }
            writer.add_bool(&key("expert_weights_norm"), config.flag("norm_topk_prob").unwrap_or(true));
            writer.add_f32(
                &key("expert_weights_scale"),
                config.float("routed_scaling_factor").unwrap_or(1.0) as f32,
            );
            let groups = config.size("n_group")?.unwrap_or(1);
            if arch == "glm4moe" {
                writer.add_u32(&key("expert_group_count"), groups);
                writer.add_u32(&key("expert_group_used_count"), config.size("topk_group")?.unwrap_or(1));
                // Layers that predict further ahead are not written.
                writer.add_u32(&key("nextn_predict_layers"), 0);
            } else if groups > 1 {
                return Err(Error::unsupported(format!("config.json: n_group {groups}")));
            }
        }
        _ => {}
    }
    if family::has_convolutions(arch) {
        writer.add_u32(&key("shortconv.l_cache"), config.size("conv_L_cache")?.unwrap_or(3));
    }
    if family::lists_heads(arch) {
        let heads = if has_latents(arch) { 1 } else { config.kv_heads()? as i32 };
        let attends = attention_layers(config)?;
        let heads: Vec<i32> = attends.iter().map(|attends| if *attends { heads } else { 0 }).collect();
        writer.add_i32s(&key("attention.head_count_kv"), &heads);
    }
    Ok(())
}

/// Which layers attend, where others do not.
fn attention_layers(config: &Config) -> Result<Vec<bool>> {
    // Granite 4.0 H was published with another word than it is saved with.
    let attends =
        |kind: &String| kind == "full_attention" || (config.arch() == "granitehybrid" && kind == "attention");
    let listed: Vec<bool> = if family::is_nemotron(config.arch()) {
        blocks(&config.json).unwrap_or_default().iter().map(|block| *block == Block::Attention).collect()
    } else if let Some(kinds) = config.strings("layer_types") {
        kinds.iter().map(attends).collect()
    } else {
        let listed = config.json["full_attn_idxs"].as_array();
        let listed = listed.filter(|_| family::has_convolutions(config.arch()));
        let listed = listed.ok_or_else(|| Error::malformed("config.json: layer_types", "it is missing"))?;
        let attends = |layer: usize| listed.iter().any(|at| at.as_u64() == Some(layer as u64));
        (0..config.layers()?).map(attends).collect()
    };
    config.check_layers(listed.len())?;
    Ok(listed)
}

/// The width of a feed-forward network, where config.json has it in another way.
fn feed_forward(config: &Config) -> Result<Option<u32>> {
    let named = match config.size("block_ff_dim")? {
        Some(width) if family::has_convolutions(config.arch()) => Some(width),
        _ if config.arch() == "llama4" => config.size("intermediate_size_mlp")?,
        _ => config.size("intermediate_size")?,
    };
    // LFM2 counts a width that it then makes smaller; its code does so where nothing else is said.
    let adjusts = config.arch() == "lfm2" && config.flag("block_auto_adjust_ff_dim").unwrap_or(true);
    let Some(width) = named.filter(|_| adjusts) else { return Ok(named) };
    let share = config.float("block_ffn_dim_multiplier").unwrap_or(1.0);
    let width = (share * f64::from(2 * (width / 3) + 2 * (width % 3) / 3)) as u32;
    let multiple = config.size("block_multiple_of")?.unwrap_or(256).max(1);
    Ok(Some(width.div_ceil(multiple) * multiple))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            let arch = family::FAMILIES.iter().find(|(name, _)| *name == kind).unwrap().1;
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
        // What follows from the stretch may stand there.
        let usual = json!({"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836});
        assert_eq!(refused("olmo3", json!({"rope_scaling": usual})), "");
        assert_eq!(refused("gemma", json!({"hidden_act": "gelu"})), "");
        assert!(refused("arcee", json!({"hidden_act": "silu"})).contains("relu2"));
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

    #[test]
    fn layers_of_several_kinds_are_listed() {
        let mamba = json!({"mamba_num_heads": 2, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "conv_kernel": 4,
            "layer_norm_epsilon": 1e-5, "intermediate_size": 12, "moe_intermediate_size": 6, "num_key_value_heads": 1,
            "num_hidden_layers": 4, "n_routed_experts": 8});
        let nemotron = |more: Value| {
            let mut json = mamba.clone();
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            written("nemotron_h", json)
        };
        let list = |gguf: &crate::gguf::Gguf, key: &str| {
            gguf.metadata().get(key).unwrap().to_string().replace('"', "")
        };
        let dense = nemotron(json!({"hybrid_override_pattern": "M-M*"})).unwrap();
        assert_eq!(dense.metadata().architecture().unwrap(), "nemotron_h");
        assert_eq!(list(&dense, "nemotron_h.attention.head_count_kv"), "[0, 0, 0, 1]");
        assert_eq!(list(&dense, "nemotron_h.feed_forward_length"), "[0, 12, 0, 0]");
        assert!(dense.metadata().get("nemotron_h.expert_count").is_none());
        let words = json!({"layers_block_type": ["mamba", "moe", "attention", "moe"]});
        let experts = nemotron(words).unwrap();
        assert_eq!(list(&experts, "nemotron_h_moe.feed_forward_length"), "[0, 6, 0, 6]");
        for (more, part) in [
            (json!({"hybrid_override_pattern": "M-M"}), "3 layers"),
            (json!({"hybrid_override_pattern": "M-X*"}), "0 layers"),
            (json!({"hybrid_override_pattern": "MEM-"}), "dense networks"),
        ] {
            let why = nemotron(more).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(why.contains(part), "{why}");
        }
        let exaone =
            written("exaone4", json!({"num_hidden_layers": 4, "sliding_window_pattern": "LLG"})).unwrap();
        assert_eq!(list(&exaone, "exaone4.attention.sliding_window_pattern"), "[true, true, false, true]");
        for (kind, more, part) in [
            ("smollm3", json!({"no_rope_layers": [1, 0]}), "no_rope_layers"),
            (
                "gpt_oss",
                json!({"layer_types": ["full_attention", "full_attention"], "intermediate_size": 8}),
                "layer_types",
            ),
            ("lfm2", json!({"conv_bias": true, "full_attn_idxs": [1]}), "conv_bias"),
        ] {
            assert!(refused(kind, more).contains(part), "{kind}");
        }
        let limits = json!({"hybrid_override_pattern": "M-M*", "time_step_limit": [0.0, 0.1]});
        let why = nemotron(limits).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("time_step_limit"), "{why}");
        // The published configuration of 1.2 billion weights.
        let lfm = json!({"block_ff_dim": 12288, "block_auto_adjust_ff_dim": true, "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0, "full_attn_idxs": [1], "norm_eps": 1e-5});
        let lfm = written("lfm2", lfm).unwrap();
        assert_eq!(lfm.metadata().u64("lfm2.feed_forward_length"), Some(8192));
        assert_eq!(list(&lfm, "lfm2.attention.head_count_kv"), "[0, 2]");
    }
}
