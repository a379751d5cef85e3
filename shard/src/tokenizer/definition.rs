//! What the metadata of a GGUF file say about its tokenizer.

use super::vocabulary::Kind;
use crate::{Error, Result, gguf::Metadata};

/// What a tokenizer is made of, as the metadata keys say; `None` where a key is missing.
#[derive(Clone, Debug, Default)]
pub struct Definition<'a> {
    /// `tokenizer.ggml.model`
    pub model: &'a str,
    /// `tokenizer.ggml.pre`
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`
    pub tokens: Vec<&'a str>,
    /// `tokenizer.ggml.token_type`; empty or one per token.
    pub kinds: Vec<Kind>,
    /// `tokenizer.ggml.scores`; empty or one per token.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`
    pub merges: Vec<&'a str>,
    /// `tokenizer.ggml.*_token_id`
    pub special: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`
    pub rules: Vec<u8>,
    /// Whether control tokens swallow the white space behind them (phi 3; the metadata cannot say so).
    pub strip_after_special: bool,
}

/// Tokens that mean no text, by their ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecialIds {
    /// `tokenizer.ggml.bos_token_id`; of WordPiece `cls_token_id`.
    pub bos: Option<u64>,
    /// `tokenizer.ggml.eos_token_id`; of WordPiece `seperator_token_id`.
    pub eos: Option<u64>,
    /// `tokenizer.ggml.eot_token_id`
    pub eot: Option<u64>,
    /// `tokenizer.ggml.eom_token_id`
    pub eom: Option<u64>,
    /// `tokenizer.ggml.unknown_token_id`
    pub unknown: Option<u64>,
}

/// The ids of begin, end and unknown where files do not state them; `None` for a model that is not here.
pub(super) fn usual_ids(model: &str) -> Option<[Option<u32>; 3]> {
    match model {
        "gpt2" => Some([None; 3]),
        "llama" | "gemma4" => Some([Some(1), Some(2), Some(0)]),
        "t5" => Some([None, Some(1), Some(2)]),
        "bert" => Some([Some(101), Some(102), Some(100)]),
        _ => None,
    }
}

/// An id as a file gives it, else the usual one, if there are so many tokens.
pub(super) fn id_of(given: Option<u64>, usual: Option<u32>, count: usize) -> Option<u32> {
    match given {
        // Files write -1 or an old vocabulary's id for "none".
        Some(id) => u32::try_from(id).ok().filter(|&id| (id as usize) < count),
        None => usual.filter(|&id| (id as usize) < count),
    }
}

/// `tokenizer.ggml.eos_token_id`, of WordPiece `seperator_token_id`.
fn eos(metadata: &Metadata, model: &str) -> Option<u64> {
    let id = |name: &str| metadata.u64(&format!("tokenizer.ggml.{name}_token_id"));
    id("seperator").filter(|_| model == "bert").or(id("eos"))
}

/// The token that ends a text, as [`super::Tokenizer::eos`] has it, without building a tokenizer.
pub fn end_of_text(metadata: &Metadata) -> Option<u32> {
    let model = metadata.str("tokenizer.ggml.model").unwrap_or_default();
    let usual = usual_ids(model).and_then(|[_, end, _]| end);
    let count = metadata.strings("tokenizer.ggml.tokens").map_or(0, Iterator::count);
    id_of(eos(metadata, model), usual, count)
}

impl<'a> Definition<'a> {
    /// Reads the `tokenizer.ggml.*` keys. A key of an unexpected type counts as missing where it may be missing.
    /// Errors: [`Error::Malformed`] without a model or tokens.
    pub fn from_gguf(metadata: &'a Metadata) -> Result<Self> {
        let model = metadata
            .str("tokenizer.ggml.model")
            .ok_or_else(|| Error::malformed("tokenizer.ggml.model", "is missing"))?;
        let list = |key| metadata.strings(key).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
        let id = |name: &str| metadata.u64(&format!("tokenizer.ggml.{name}_token_id"));
        let flag = |name: &str| metadata.bool(&format!("tokenizer.ggml.{name}"));
        let kinds = metadata.i32s("tokenizer.ggml.token_type").unwrap_or_default();
        let name = metadata.str("general.name").unwrap_or_default().to_lowercase();
        let bytes = metadata.u64s("tokenizer.ggml.precompiled_charsmap");
        let phi3 = metadata.str("general.architecture") == Some("phi3") && model == "llama";
        Ok(Self {
            model,
            pre: metadata.str("tokenizer.ggml.pre"),
            tokens: list("tokenizer.ggml.tokens"),
            kinds: kinds.into_iter().map(|number| Kind::from_number(number.into())).collect(),
            scores: metadata.f32s("tokenizer.ggml.scores").unwrap_or_default(),
            merges: list("tokenizer.ggml.merges"),
            special: SpecialIds {
                bos: id("cls").filter(|_| model == "bert").or(id("bos")),
                eos: eos(metadata, model),
                eot: id("eot"),
                eom: id("eom"),
                unknown: id("unknown"),
            },
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            add_sep: flag("add_sep_token"),
            add_space_prefix: flag("add_space_prefix"),
            remove_extra_whitespaces: flag("remove_extra_whitespaces"),
            rules: bytes.into_iter().flatten().map(|byte| byte as u8).collect(),
            strip_after_special: phi3 || ["phi-3", "phi3"].iter().any(|part| name.contains(part)),
        })
    }
}
