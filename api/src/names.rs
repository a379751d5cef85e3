//! Names: fresh ones for requests and secrets, and which ones a model may have.

/// Longest model name.
const MAX_MODEL_NAME: usize = 96;

/// Random bytes in hex. Where the system has no randomness left there is nothing to go on with.
pub(crate) fn random_hex(bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    // The system's generator fails only where none exists, which the start of the program notices first.
    if getrandom::fill(&mut buffer).is_err() {
        std::process::abort();
    }
    buffer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A fresh name for a request, such as `chatcmpl-0123456789abcdef01234567`.
pub(crate) fn fresh(prefix: &str) -> String {
    format!("{prefix}{}", random_hex(12))
}

/// Whether `name` can be the name of a model at all: no name reaches anything else before this.
pub(crate) fn may_be_model(name: &str) -> bool {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':'));
    !name.is_empty()
        && name.len() <= MAX_MODEL_NAME
        && letters
        && !name.starts_with('.')
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_paths_are_none() {
        assert!(may_be_model("llama-3.2-1b_q4.gguf"));
        assert!(may_be_model("qwen3:0.6b"));
        for name in ["", ".", "..", "../x", "a/b", "a\\b", "a\0", "a..b", "%2e", "ａ", &"a".repeat(97)] {
            assert!(!may_be_model(name), "{name}");
        }
    }

    #[test]
    fn fresh_names_differ() {
        assert_ne!(fresh("x-"), fresh("x-"));
        assert_eq!(random_hex(32).len(), 64);
    }
}
