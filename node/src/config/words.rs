//! The words of the config file: which flags it may set, and in which table.

/// Keys outside of tables: flags that many commands share, and those of the program itself.
pub(super) const SHARED: &[&str] = &[
    "home",
    "model",
    "threads",
    "ctx",
    "isa",
    "device",
    "gpu_memory",
    "gpu_share",
    "no_pin",
    "log",
    "log_file",
    "log_format",
    "otlp",
    "catalog",
    "hf_endpoint",
    "ollama_registry",
];
/// Flags that say something about one call, not about a node.
pub(super) const NEVER: &[&str] = &["json", "quiet", "help", "version", "config", "ask"];
/// A table of the file: its name, the command it is about, and the flags it may hold (all of them when empty).
pub(super) const TABLES: &[(&str, &[&str], &[&str])] = &[
    ("join", &["join"], &[]),
    ("serve", &["serve"], &[]),
    (
        "run",
        &["run"],
        &[
            "via",
            "mode",
            "wire",
            "allow_rounding",
            "head",
            "tail",
            "trust",
            "system",
            "temperature",
            "top_k",
            "top_p",
            "max_tokens",
            "draft",
            "attention",
            "kv_cache_type",
            "context_shift",
        ],
    ),
    (
        "chat",
        &["chat"],
        &[
            "system",
            "temperature",
            "top_k",
            "top_p",
            "max_tokens",
            "attention",
            "kv_cache_type",
            "context_shift",
        ],
    ),
    ("pull", &["model", "pull"], &["disk", "rate"]),
    ("upgrade", &["upgrade"], &["key"]),
];
