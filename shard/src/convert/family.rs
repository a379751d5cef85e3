//! What families of checkpoints have that others do not, by their architectures.

/// `model_type` in config.json, architecture in GGUF.
pub(super) const FAMILIES: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("gemma3n_text", "gemma3n"),
    ("gemma4_text", "gemma4"),
    ("phi3", "phi3"),
    ("starcoder2", "starcoder2"),
    ("glm4", "glm4"),
    ("qwen3_next", "qwen3next"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("deepseek_v2", "deepseek2"),
    ("deepseek_v3", "deepseek2"),
    ("kimi_k2", "deepseek2"),
    ("kimi_linear", "kimi-linear"),
    ("gpt_oss", "gpt-oss"),
    ("smollm3", "smollm3"),
    ("granite", "granite"),
    ("granitemoe", "granitemoe"),
    ("granitemoehybrid", "granitehybrid"),
    ("seed_oss", "seed_oss"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo2"),
    ("exaone4", "exaone4"),
    ("ernie4_5", "ernie4_5"),
    ("gemma", "gemma"),
    ("phi", "phi2"),
    ("cohere", "command-r"),
    ("cohere2", "cohere2"),
    ("nemotron", "nemotron"),
    ("nemotron_h", "nemotron_h"),
    ("falcon_h1", "falcon-h1"),
    ("arcee", "arcee"),
    ("glm4_moe", "glm4moe"),
    ("dots1", "dots1"),
    ("minimax_m2", "minimax-m2"),
    ("llama4_text", "llama4"),
    ("bitnet", "bitnet-b1.58"),
    ("lfm2", "lfm2"),
    ("lfm2_moe", "lfm2moe"),
    ("qwen2_vl", "qwen2vl"),
    ("qwen2_vl_text", "qwen2vl"),
    ("qwen2_5_vl", "qwen2vl"),
    ("qwen2_5_vl_text", "qwen2vl"),
    ("qwen3_vl_text", "qwen3vl"),
    ("qwen3_vl_moe_text", "qwen3vlmoe"),
    ("ministral3", "mistral3"),
    ("hunyuan_v1_dense", "hunyuan-dense"),
    ("bert", "bert"),
    ("nomic_bert", "nomic-bert"),
    ("modernbert", "modern-bert"),
];

/// Whether rows of q and k are stored for rotation in halves, and written for rotation in pairs.
pub(super) fn permutes(arch: &str) -> bool {
    ["llama", "smollm3", "granite", "granitemoe", "granitehybrid", "arcee", "mistral3"].contains(&arch)
}

/// Whether it is Gemma 4, whose layers differ from each other.
pub(super) fn is_gemma4(arch: &str) -> bool {
    arch == "gemma4"
}

/// Whether norms are stored as what is added to one.
pub(super) fn adds_one(arch: &str) -> bool {
    ["gemma", "gemma2", "gemma3", "nemotron"].contains(&arch)
}

/// Whether it is the text model of a family that reads pictures, whose rotation has sections.
pub(super) fn has_sections(arch: &str) -> bool {
    ["qwen2vl", "qwen3vl", "qwen3vlmoe"].contains(&arch)
}

/// The architectures whose experts are stacked with inputs before outputs.
pub(super) fn stacks_inputs_first(arch: &str) -> bool {
    ["gpt-oss", "llama4", "qwen3vlmoe"].contains(&arch)
}

/// Whether half of a head rotates where config.json does not say how much.
pub(super) fn rotates_half(arch: &str) -> bool {
    ["glm4", "glm4moe", "nemotron", "phi2"].contains(&arch)
}

/// Whether layers of short convolutions stand beside attention; the last norm has another name there.
pub(super) fn has_convolutions(arch: &str) -> bool {
    ["lfm2", "lfm2moe"].contains(&arch)
}

/// Whether the norm behind attention has the name of its place also where it belongs to the feed-forward network.
pub(super) fn names_second_norm(arch: &str) -> bool {
    ["olmo2", "exaone4", "seed_oss", "glm4moe", "gpt-oss"].contains(&arch)
}

/// Whether the head is the embedding where config.json does not say so.
pub(super) fn is_tied(arch: &str) -> bool {
    let tied = ["starcoder2", "smollm3", "command-r", "cohere2", "ernie4_5", "lfm2", "lfm2moe"];
    arch.starts_with("gemma") || tied.contains(&arch)
}

/// The nonlinearities that a family computes, by their names in config.json.
pub(super) fn activations(arch: &str) -> &'static [&'static str] {
    match arch {
        "bert" | "modern-bert" => &["gelu"],
        // What the first Gemma calls gelu is its approximation.
        "gemma" => &["gelu_pytorch_tanh", "gelu"],
        "phi2" => &["gelu_new", "gelu_pytorch_tanh"],
        "arcee" | "nemotron" | "bitnet-b1.58" => &["relu2"],
        "gemma2" | "gemma3" | "gemma3n" | "gemma4" | "starcoder2" => &["gelu_pytorch_tanh"],
        _ => &["silu", "swish"],
    }
}

/// Where config.json has what is added to a mean of squares, and where a file does.
pub(super) fn epsilon(arch: &str) -> (&'static str, &'static str) {
    let (plain, rms) = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
    match arch {
        "starcoder2" => ("norm_epsilon", plain),
        "command-r" | "cohere2" | "phi2" => ("layer_norm_eps", plain),
        "nemotron" => ("norm_eps", plain),
        "lfm2" | "lfm2moe" => ("norm_eps", rms),
        "nemotron_h" | "nemotron_h_moe" => ("layer_norm_epsilon", rms),
        _ => ("rms_norm_eps", rms),
    }
}

/// Whether an architecture has Mamba2 layers.
pub(super) fn has_mamba(arch: &str) -> bool {
    arch == "granitehybrid" || arch == "falcon-h1" || is_nemotron(arch)
}

/// Whether it is Nemotron-H, of which each layer is one of Mamba2, attention and a network.
pub(super) fn is_nemotron(arch: &str) -> bool {
    ["nemotron_h", "nemotron_h_moe"].contains(&arch)
}

/// Whether positions have no bound: attention does not rotate.
pub(super) fn is_boundless(arch: &str) -> bool {
    arch == "granitehybrid" || is_nemotron(arch)
}

/// Whether a file says for each layer how many heads of keys it has.
pub(super) fn lists_heads(arch: &str) -> bool {
    is_boundless(arch) || has_convolutions(arch) || is_gemma4(arch) || arch == "kimi-linear"
}
