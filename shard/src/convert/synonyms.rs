//! What the configuration of a family calls otherwise than those of others do (Kimi Linear).

use serde_json::{Value, json};

use crate::models::limits;

/// What config.json calls otherwise than other families do, and how those call it.
const NAMES: [(&str, &str); 6] = [
    ("model_max_length", "max_position_embeddings"),
    ("moe_renormalize", "norm_topk_prob"),
    ("moe_router_activation_func", "scoring_func"),
    ("num_expert_group", "n_group"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
];

/// The configuration in the words of other families, as transformers has it: names, and lists in place of numbers of layers, which are
/// counted from one.
pub(super) fn usual(mut json: Value) -> Value {
    for (own, usual) in NAMES {
        if json[usual].is_null() {
            json[usual] = json[own].clone();
        }
    }
    let own = json["linear_attn_config"].clone();
    for (from, to) in [
        ("head_dim", "linear_head_dim"),
        ("num_heads", "linear_num_heads"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ] {
        if !own[from].is_null() {
            json[to] = own[from].clone();
        }
    }
    if let (Some(layers), Some(attend)) =
        (json["num_hidden_layers"].as_u64(), own["full_attn_layers"].as_array())
        && layers <= limits::LAYERS as u64
    {
        let kind = |layer: u64| match attend.iter().any(|at| at.as_u64() == Some(layer)) {
            true => "full_attention",
            false => "linear_attention",
        };
        json["layer_types"] = (1..=layers).map(kind).collect();
    }
    if let Some(kinds) = json["mlp_layer_types"].as_array() {
        let dense = kinds.iter().take_while(|kind| **kind == "dense").count();
        json["first_k_dense_replace"] = json!(dense);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_words_become_the_usual_ones() {
        let published = json!({
            "num_hidden_layers": 5, "model_max_length": 1024, "num_experts_per_token": 8, "moe_renormalize": true,
            "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3, 5], "head_dim": 128,
                "num_heads": 32, "short_conv_kernel_size": 4},
        });
        let usual = usual(published);
        assert_eq!(usual["max_position_embeddings"], 1024);
        assert_eq!((&usual["num_experts_per_tok"], &usual["norm_topk_prob"]), (&json!(8), &json!(true)));
        let kinds = [
            "linear_attention",
            "linear_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
        ];
        assert_eq!(usual["layer_types"], json!(kinds));
        assert_eq!(usual["linear_head_dim"], 128);
        assert_eq!(usual["linear_conv_kernel_dim"], 4);
        assert_eq!(super::usual(json!({"mlp_layer_types": ["dense", "sparse"]}))["first_k_dense_replace"], 1);
    }
}
