//! A file that is not exactly what a family says is refused, by name; metadata can claim nothing absurd.

mod common;

use common::{Copied, copy, cpu, fixtures, open};
use shard::{
    Error,
    executor::{Capacity, Executor, Workspace, cpu::Shard},
    gguf::{Gguf, Tensor, Value},
    kernels::Isa,
    models::{self, Attention, Blueprint, FeedForward, Scaling, layer_costs},
    quant,
};

fn same(tensor: &Tensor<'_>) -> Option<Copied> {
    Some(Copied::same(tensor))
}

fn refusal(gguf: &Gguf) -> Error {
    match Blueprint::from_gguf(gguf) {
        Ok(_) => panic!("accepted"),
        Err(error) => error,
    }
}

/// `name` with one key changed is refused with an error that contains `what`.
fn refuse_key(name: &str, key: &str, value: Option<Value<'_>>, what: &str) {
    let error = refusal(&copy(&open(name), &[(key, value.clone())], same)).to_string();
    assert!(error.contains(what), "{name} with {key} = {value:?}: {error} should mention {what}");
}

#[test]
fn every_family_of_the_table_has_a_fixture() {
    let encoders = ["bert", "nomic_bert", "modern_bert"].map(|name| format!("../encoders/{name}"));
    let seen: Vec<_> = fixtures()
        .iter()
        .chain(&encoders)
        .map(|name| Blueprint::from_gguf(&open(name)).unwrap().architecture)
        .collect();
    for architecture in models::ALL.iter().filter(|architecture| architecture.name != models::FIXTURE) {
        assert!(seen.contains(&architecture.name), "no fixture of {}", architecture.name);
    }
}

#[test]
fn an_unknown_architecture_is_named() {
    let architecture = Some(Value::String("mamba"));
    refuse_key("llama", "general.architecture", architecture, "not supported: architecture mamba");
}

#[test]
fn each_missing_tensor_is_named() {
    for name in fixtures() {
        let gguf = open(&name);
        for info in gguf.tensors().iter().filter(|info| !info.name.starts_with("blk.1")) {
            let gone =
                copy(&gguf, &[], |tensor| if tensor.info.name == info.name { None } else { same(tensor) });
            let optional = *info.name == *"output.weight"
                || *info.name == *"rope_freqs.weight"
                || info.name.ends_with("ssm_conv1d.bias")
                || (matches!(name.as_str(), "starcoder2" | "glm4") && info.name.ends_with(".bias"));
            match Blueprint::from_gguf(&gone) {
                Ok(_) => assert!(optional && !info.name.contains("norm"), "{name} without {}", info.name),
                Err(Error::Unsupported { what }) => {
                    let fused = what.contains("rope_factors") || what.contains("attn_qkv");
                    assert!(what.contains(&*info.name) || fused, "{name} without {}: {what}", info.name);
                }
                Err(other) => panic!("{name} without {}: {other}", info.name),
            }
        }
    }
}

#[test]
fn tensors_without_use_are_named() {
    let gguf = open("qwen2");
    for added in
        ["blk.0.attn_sinks.weight", "blk.3.attn_norm.weight", "blk.00.attn_norm.weight", "per_layer.weight"]
    {
        let more = copy(&gguf, &[], |tensor| {
            let extra = tensor.info.name.starts_with("output_norm");
            let extra = extra.then(|| Copied { name: added.into(), ..Copied::same(tensor) });
            extra.into_iter().chain(same(tensor)).collect::<Vec<_>>()
        });
        let error = refusal(&more).to_string();
        assert_eq!(error, format!("not supported: tensor {added} has no use in this architecture"));
    }
}

#[test]
fn a_shape_that_contradicts_the_metadata_is_named() {
    let gguf = open("llama");
    let bent = copy(&gguf, &[], |tensor| {
        let mut copied = Copied::same(tensor);
        if copied.name == "blk.1.ffn_down.weight" {
            copied.dims.reverse();
        }
        Some(copied)
    });
    let error = refusal(&bent);
    assert!(
        matches!(&error, Error::Malformed { field, .. } if field.contains("blk.1.ffn_down.weight")),
        "{error}"
    );
    let wide = Some(Value::U32(128));
    refuse_key("llama", "llama.embedding_length", wide, "token_embd.weight");
}

#[test]
fn claims_beyond_the_limits_are_refused() {
    let huge = || Some(Value::U32(u32::MAX));
    let zero = || Some(Value::U32(0));
    for key in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    ] {
        let key = format!("llama.{key}");
        refuse_key("mistral", &key, huge(), &key);
        refuse_key("mistral", &key, Some(Value::U64(u64::MAX)), &key);
        refuse_key("mistral", &key, Some(Value::String("x")), &key);
        if !key.ends_with("head_count_kv") && !key.ends_with("key_length") {
            refuse_key("mistral", &key, zero(), &key);
            refuse_key("mistral", &key, None, &key);
        }
    }
    refuse_key("mistral", "llama.attention.head_count_kv", Some(Value::U32(3)), "does not divide");
    refuse_key("mistral", "llama.attention.key_length", Some(Value::U32(31)), "different width");
    refuse_key("mistral", "llama.rope.dimension_count", Some(Value::U32(34)), "rope.dimension_count");
    refuse_key("mistral", "llama.rope.dimension_count", Some(Value::U32(3)), "rope.dimension_count");
    refuse_key("mistral", "llama.rope.freq_base", Some(Value::F32(0.5)), "freq_base");
    refuse_key("mistral", "llama.rope.freq_base", Some(Value::F32(f32::NAN)), "freq_base");
    refuse_key("mistral", "llama.attention.layer_norm_rms_epsilon", Some(Value::F32(-1.0)), "epsilon");
    refuse_key("mistral", "llama.attention.layer_norm_rms_epsilon", None, "epsilon");
    refuse_key("mixtral", "llama.expert_count", Some(Value::U32(5000)), "expert_count");
    refuse_key("mixtral", "llama.expert_used_count", Some(Value::U32(5)), "expert_used_count");
    refuse_key("mixtral", "llama.expert_used_count", None, "expert_used_count");
    let per_layer = "gemma4.embedding_length_per_layer_input";
    refuse_key("gemma4_e", per_layer, Some(Value::U32(1025)), per_layer);
    refuse_key("gemma3n", "gemma3n.altup.num_inputs", Some(Value::U32(17)), "altup.num_inputs");
    refuse_key("gemma3n", "gemma3n.altup.active_idx", Some(Value::U32(1)), "another stream");
    refuse_key("gemma3n", "gemma3n.activation_sparsity_scale", None, "activation_sparsity_scale");
    refuse_key("gemma3n", "gemma3n.embedding_length_per_layer_input", None, "per-layer embeddings");
    refuse_key(
        "gemma3n",
        "gemma3n.attention.shared_kv_layers",
        Some(Value::U32(5)),
        "of its kind to read from",
    );
    refuse_key("llama_linear", "llama.rope.scaling.factor", Some(Value::F32(-4.0)), "negative");
    refuse_key(
        "llama_linear",
        "llama.rope.scaling.type",
        Some(Value::String("dynamic")),
        "rope scaling dynamic",
    );
}

#[test]
fn a_key_that_would_change_the_numbers_but_is_not_read_is_refused() {
    let float = |value| Some(Value::F32(value));
    refuse_key("llama", "llama.attn_logit_softcapping", float(50.0), "attn_logit_softcapping");
    refuse_key("llama", "llama.logit_scale", float(0.25), "logit_scale");
    refuse_key("qwen2", "qwen2.attention.sliding_window", Some(Value::U32(64)), "sliding_window");
    refuse_key("qwen2", "qwen2.attention.causal", Some(Value::Bool(false)), "causal");
    refuse_key("qwen3", "qwen3.expert_count", Some(Value::U32(4)), "expert_count");
    refuse_key("qwen3moe", "qwen3moe.expert_gating_func", Some(Value::U32(2)), "expert_gating_func");
    let neutral = [
        ("qwen2.attention.sliding_window", Some(Value::U32(4096))),
        ("qwen2.attention.causal", Some(Value::Bool(true))),
        ("qwen2.logit_scale", float(1.0)),
        ("qwen2.expert_count", Some(Value::U32(0))),
    ];
    Blueprint::from_gguf(&copy(&open("qwen2"), &neutral, same)).unwrap();
}

#[test]
fn a_key_of_later_converters_is_refused_until_it_is_known() {
    let unknown = "llama.attention.key_shift";
    refuse_key("llama", unknown, Some(Value::F32(0.0)), &format!("{unknown}, a key that"));
    refuse_key("qwen3", "qwen3.rope.freq_base_swa", Some(Value::F32(500.0)), "rope.freq_base_swa");
    refuse_key("qwen3", "qwen3.rope.dimension_sections", Some(Value::U32(1)), "dimension_sections");
    let of_others = [("qwen2.attention.key_shift", Some(Value::F32(0.5)))];
    Blueprint::from_gguf(&copy(&open("llama"), &of_others, same)).unwrap();
}

/// Keys beyond those of the fixtures, as published files of these families have them.
#[test]
fn what_published_files_say_besides_is_known() {
    let (count, float) = (Value::U32, Value::F32);
    for (name, key, value) in [
        ("gemma4", "vision.patch_size", count(16)),
        ("gemma4", "audio.conv_kernel_size", count(5)),
        ("gemma4", "embedding_length_per_layer_input", count(0)),
        ("nemotron_h_moe", "attention.layer_norm_epsilon", float(1e-5)),
        ("nemotron_h_moe", "rope.scaling.finetuned", Value::Bool(false)),
        ("nemotron_h_moe", "expert_group_used_count", count(1)),
        ("kimi_linear", "rope.freq_base", float(10_000.0)),
        ("qwen3moe", "expert_shared_feed_forward_length", count(0)),
        ("qwen3", "pooling_type", count(3)),
        ("llama", "tensor_data_layout", Value::String("Meta AI original pth")),
        ("llama", "expert_used_count", count(0)),
        ("bitnet", "rope.scaling.factor", float(1.0)),
        ("bitnet", "rope.scaling.type", Value::String("linear")),
        ("phi3", "vocab_size", count(377)),
    ] {
        let gguf = open(name);
        let key = format!("{}.{key}", gguf.metadata().architecture().unwrap());
        let told = copy(&gguf, &[(&key, Some(value))], same);
        if let Err(error) = Blueprint::from_gguf(&told) {
            panic!("{name} with {key}: {error}");
        }
    }
}

/// As of the 27B models, with four heads of 128 over a width of 64; the number of layers says nothing.
#[test]
fn attention_of_gemma_follows_the_width_of_its_heads() {
    let scale = |gguf: &Gguf| match Blueprint::from_gguf(gguf).unwrap().layers[0].attention {
        Attention::Softmax(softmax) => softmax.scale,
        _ => unreachable!("gemma attends"),
    };
    let root = |width: f32| 1.0 / width.sqrt();
    for name in ["gemma2", "gemma3"] {
        let narrow = open(name);
        assert_eq!(scale(&narrow), root(32.0), "{name}");
        let key = |key: &str| format!("{name}.attention.{key}");
        let (keys, values, factor) = (key("key_length"), key("value_length"), key("scale"));
        let width = || Some(Value::U32(128));
        let wide = copy(&narrow, &[(&keys, width()), (&values, width())], |tensor| Some(widened(tensor)));
        assert_eq!(scale(&wide), root(16.0), "{name}");
        let stated = copy(&wide, &[(&factor, Some(Value::F32(0.25)))], same);
        assert_eq!(scale(&stated), 0.25, "{name}");
    }
}

/// A tensor of heads of 32 as one of heads of 128.
fn widened(tensor: &Tensor<'_>) -> Copied {
    let mut copied = Copied::same(tensor);
    let suffix = tensor.info.name.splitn(3, '.').nth(2).unwrap_or_default();
    let at = match suffix {
        "attn_q.weight" | "attn_k.weight" | "attn_v.weight" => 1,
        "attn_output.weight" | "attn_q_norm.weight" | "attn_k_norm.weight" => 0,
        _ => return copied,
    };
    copied.dims[at] *= 4;
    copied.bytes = copied.bytes.repeat(4);
    copied
}

#[test]
fn frequencies_that_old_converters_wrote_into_layers_cost_nothing() {
    let plain = open("llama");
    let old = copy(&plain, &[], |tensor| {
        let extra = (*tensor.info.name == *"blk.0.attn_norm.weight").then(|| Copied {
            name: "blk.0.attn_rot_embd.weight".into(),
            dims: vec![8],
            format: &quant::F32,
            bytes: vec![0; 32],
        });
        extra.into_iter().chain(same(tensor)).collect::<Vec<_>>()
    });
    let costs = |gguf: &Gguf| layer_costs(&Blueprint::from_gguf(gguf).unwrap(), gguf).unwrap();
    assert_eq!(old.tensors().len(), plain.tensors().len() + 1);
    assert!(costs(&old) == costs(&plain));
}

#[test]
fn other_devices_refuse_a_head_whose_norm_has_another_name() {
    let mut blueprint = Blueprint::from_gguf(&open("lfm2")).unwrap();
    blueprint.layers.retain(|layer| matches!(layer.attention, Attention::Softmax(_)));
    assert!(!blueprint.layers.is_empty());
    assert_eq!(blueprint.beyond_plain(), Some("a norm of the head under another name"));
}

/// Every numeric key of every family with values a hostile file might hold: refused, or computed without a panic.
#[test]
fn no_metadata_value_makes_the_engine_panic() {
    let integers = [0, 1, 2, 3, 31, 64, 65, 1023, 1 << 20, u32::MAX];
    let floats = [0.0, -1.0, 1e-30, 1.5, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let (mut refused, mut computed) = (0, 0);
    let one_thread = cpu(Isa::detect(), 1);
    for name in fixtures() {
        let gguf = open(&name);
        let architecture = gguf.metadata().architecture().unwrap();
        for (key, value) in gguf.metadata().iter().filter(|(key, _)| key.starts_with(architecture)) {
            let values: Vec<Value<'_>> = match value {
                Value::U32(_) => integers.map(Value::U32).to_vec(),
                Value::F32(_) => floats.map(Value::F32).to_vec(),
                _ => continue,
            };
            for value in values {
                let hostile = copy(&gguf, &[(key, Some(value))], same);
                let Ok(shard) = Shard::whole(&hostile, one_thread.clone()) else {
                    refused += 1;
                    continue;
                };
                let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
                let outcome = shard.prefill(&mut ws, &mut shard.new_state(), &[1, 2, 3, 4, 5]);
                assert!(outcome.is_err() || ws.logits(0).iter().all(|logit| logit.is_finite()));
                computed += 1;
            }
        }
    }
    assert!(refused > 500 && computed > 300, "{refused} refused, {computed} computed");
}

#[test]
fn rope_factors_must_be_positive_and_complete() {
    let gguf = open("phi3");
    let broken = copy(&gguf, &[], |tensor| {
        let mut copied = Copied::same(tensor);
        if copied.name == "rope_factors_long.weight" {
            copied.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        Some(copied)
    });
    assert!(refusal(&broken).to_string().contains("rope_factors_long.weight"));
    let short = copy(&gguf, &[], |tensor| {
        let mut copied = Copied::same(tensor);
        if copied.name == "rope_factors_short.weight" {
            (copied.dims, copied.format) = (vec![copied.dims[0] - 1], &quant::F32);
            copied.bytes.truncate(copied.bytes.len() - 4);
        }
        Some(copied)
    });
    assert!(refusal(&short).to_string().contains("rope_factors_short.weight"));
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    let with = |name: &'static str, layers: u32, ahead: u32| {
        let gguf = open("qwen35");
        let metadata = [
            ("qwen35.block_count", Some(Value::U32(layers))),
            ("qwen35.nextn_predict_layers", Some(Value::U32(ahead))),
        ];
        copy(&gguf, &metadata, move |tensor| {
            let extra = tensor.info.name.starts_with("output_norm");
            let extra = extra.then(|| Copied { name: name.into(), ..Copied::same(tensor) });
            extra.into_iter().chain(same(tensor)).collect::<Vec<_>>()
        })
    };
    let gguf = with("blk.4.nextn.enorm.weight", 5, 1);
    let plain = open("qwen35");
    let (ours, its) = (Blueprint::from_gguf(&gguf).unwrap(), Blueprint::from_gguf(&plain).unwrap());
    assert_eq!((ours.layers.len(), its.layers.len(), ours.ahead.layers), (4, 4, 1));
    assert!(ours.ahead.first.is_none(), "most of it is missing");
    assert_eq!(shard::gguf::layer_count(&gguf).unwrap(), 4);
    let logits = |gguf| {
        let shard = Shard::whole(gguf, cpu(Isa::detect(), 1)).unwrap();
        let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
        shard.prefill(&mut ws, &mut shard.new_state(), &[1, 2, 3, 4, 5]).unwrap();
        common::bits(ws.logits(0))
    };
    assert!(logits(&gguf) == logits(&plain));
    let error = refusal(&with("blk.5.nextn.enorm.weight", 5, 1)).to_string();
    assert!(error.contains("blk.5.nextn.enorm.weight has no use"), "{error}");
    refuse_key("qwen35", "qwen35.nextn_predict_layers", Some(Value::U32(4)), "nextn_predict_layers");
}

#[test]
fn delta_nets_that_contradict_themselves_are_refused() {
    for (key, value, what) in [
        ("ssm.group_count", 4, "does not divide"),
        ("ssm.inner_size", 97, "is no width of"),
        ("ssm.inner_size", 48, "whole groups of 16"),
        ("ssm.state_size", 24, "attn_qkv.weight"),
        ("ssm.conv_kernel", 3, "ssm_conv1d.weight"),
        ("ssm.conv_kernel", 17, "limit is 16"),
        ("full_attention_interval", 2, "tensor blk."),
    ] {
        refuse_key("qwen35", &format!("qwen35.{key}"), Some(Value::U32(value)), what);
    }
    for key in
        ["ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.conv_kernel"]
    {
        refuse_key("qwen35", &format!("qwen35.{key}"), None, "is missing");
    }
}

#[test]
fn blueprints_say_what_the_families_are() {
    let read = |name: &str| Blueprint::from_gguf(&open(name)).unwrap();
    let windows = |name: &str| {
        let window = |layer: &models::Layer| (layer.attention.window(), layer.attention.rope());
        read(name).layers.iter().map(window).collect::<Vec<_>>()
    };
    let (near, far) = ((Some(24), Some(1)), (None, Some(0)));
    assert_eq!(windows("gemma3"), [near, near, near, near, near, far, near]);
    assert_eq!(windows("gemma2"), [(Some(32), Some(0)), far, (Some(32), Some(0)), far]);
    assert_eq!(windows("mistral"), [far; 3]);
    assert!(matches!(read("llama3").ropes[0].scaling, Scaling::Factors(_)));
    assert!(matches!(read("phi3").ropes[0].scaling, Scaling::Long { .. }));
    assert!(matches!(read("qwen2_yarn").ropes[0].scaling, Scaling::Yarn { factor: 4.0, .. }));
    let experts = |name: &str| match read(name).layers[0].feed_forward {
        FeedForward::Experts(experts) => (experts.renormalize, experts.shared),
        _ => panic!("{name} has no experts only"),
    };
    assert_eq!(experts("mixtral"), (true, None));
    assert_eq!(experts("qwen2moe"), (false, Some(96)));
    assert_eq!(experts("qwen3moe"), (true, None));
    assert_eq!((experts("qwen3next"), experts("qwen35moe")), ((true, Some(64)), (true, Some(32))));
    let attends = |name: &str| {
        let softmax = |layer: &models::Layer| matches!(layer.attention, Attention::Softmax(_));
        read(name).layers.iter().map(softmax).collect::<Vec<_>>()
    };
    assert_eq!(attends("qwen3next"), [false, false, false, true, false]);
    assert_eq!(attends("qwen35"), [false, false, true, false]);
    assert_eq!(attends("qwen35moe"), [false, true, false, true]);
    let tiled = |name: &str| match read(name).layers[0].attention {
        Attention::DeltaNet(delta) => delta.tiled,
        _ => panic!("{name} begins with attention"),
    };
    assert_eq!((tiled("qwen3next"), tiled("qwen35"), tiled("qwen35moe")), (false, true, true));
}
