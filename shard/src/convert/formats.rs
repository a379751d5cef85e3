//! Which weight format each tensor of a written file has.

use super::{Options, importance::Importance};
use crate::{
    Error, Result,
    quant::{self, Format},
};

/// Tensors that are written as f32, by a part of their names: routers, taps, shares of streams, and what encoders have outside
/// layers.
const FLOAT: [&str; 8] = [
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv",
    "position_embd",
    "token_types",
    "cls.",
    "altup_correct_coef",
    "altup_predict_coef",
];
/// Tensors of two dimensions that keep their format, by a part of their names: small, and not read as matrices.
const SMALL: [&str; 5] = ["_norm", "altup", "laurel", "per_layer_model_proj", "rope_freqs"];

/// A format for the tensors whose name has a pattern in it.
#[derive(Clone, Debug)]
pub struct Rule {
    pattern: String,
    format: &'static Format,
}

impl Rule {
    /// From `PATTERN=FORMAT`; the pattern is part of a name, in which `*` stands for anything.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another form, and a format that cannot be written.
    pub fn parse(text: &str) -> Result<Self> {
        let (pattern, name) = text
            .rsplit_once('=')
            .filter(|(pattern, _)| !pattern.trim_matches('*').is_empty())
            .ok_or_else(|| Error::invalid(format!("`{text}` is not of the form ffn_down=q6_k")))?;
        let format = quant::by_name(name).filter(|format| format.quantizer.is_some());
        let format =
            format.ok_or_else(|| Error::invalid(format!("cannot write {name}, which `{text}` wants")))?;
        Ok(Self { pattern: pattern.into(), format })
    }

    /// Whether it is about the tensor called `name`.
    pub fn matches(&self, name: &str) -> bool {
        let mut rest = Some(name);
        for part in self.pattern.split('*') {
            rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, behind)| behind);
        }
        rest.is_some()
    }
}

/// A tensor that is to be written.
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    /// Weights of a row.
    pub cols: usize,
    /// No matrix.
    pub vector: bool,
    /// Every token's logits pass through it.
    pub head: bool,
}

/// The format a tensor is stored in: vectors, routers and what encoders have outside layers f32; then what the first rule says that
/// is about it; the head (and a tied embedding) at least q6_k; rows that are not whole blocks in the nearest format of 32-blocks.
pub(super) fn choose(wanted: &Wanted<'_>, options: &Options) -> Result<&'static Format> {
    if wanted.vector || is_float(wanted.name) {
        return named("f32");
    }
    if let Some(rule) = options.rules.iter().find(|rule| rule.matches(wanted.name)) {
        if !wanted.cols.is_multiple_of(rule.format.block_len) {
            return Err(Error::invalid(format!(
                "{} cannot be {}: its rows of {} weights are no whole blocks of {}",
                wanted.name, rule.format.name, wanted.cols, rule.format.block_len
            )));
        }
        return Ok(rule.format);
    }
    let bits = options.format.block_bytes as f64 * 8.0 / options.format.block_len as f64;
    let mut format = if wanted.head && bits < 6.5 { named("q6_k")? } else { options.format };
    while !wanted.cols.is_multiple_of(format.block_len) {
        format = fallback(format)?;
    }
    Ok(format)
}

/// Whether logits pass through the tensor called `name`, of a model whose embedding is `tied` to the head or not.
pub(super) fn is_head(name: &str, tied: bool) -> bool {
    name == "output.weight" || (tied && name == "token_embd.weight")
}

/// Whether the engine reads the tensor called `name` as f32.
fn is_float(name: &str) -> bool {
    name.ends_with(".bias") || FLOAT.iter().any(|part| name.contains(part))
}

/// Whether the tensor called `name` of a GGUF, with `dims` dimensions, is a matrix whose format may be chosen.
pub(super) fn is_matrix(name: &str, dims: usize) -> bool {
    dims >= 2 && name.ends_with(".weight") && !is_float(name) && !SMALL.iter().any(|part| name.contains(part))
}

/// Errors: a rule that is about none of the tensors called `names`.
pub(super) fn check_rules<'n>(rules: &[Rule], names: impl Iterator<Item = &'n str> + Clone) -> Result<()> {
    match rules.iter().find(|rule| !names.clone().any(|name| rule.matches(name))) {
        Some(rule) => {
            Err(Error::invalid(format!("no matrix of the model has `{}` in its name", rule.pattern)))
        }
        None => Ok(()),
    }
}

/// Errors: an importance matrix of another model, and one that no search for one of the `chosen` formats takes into account.
pub(super) fn check_importance<'n>(
    importance: Option<&Importance>,
    names: impl Iterator<Item = &'n str>,
    chosen: &[&'static Format],
) -> Result<()> {
    let Some(importance) = importance else { return Ok(()) };
    importance.check(names)?;
    match chosen.iter().any(|format| format.weighs()) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "no matrix gets a format that takes an importance matrix into account: {}",
            quant::ALL
                .iter()
                .filter(|format| format.weighs())
                .map(|format| format.name)
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// What takes the place of a format whose blocks do not divide the rows.
fn fallback(format: &Format) -> Result<&'static Format> {
    match format.name {
        "q2_k" | "q3_k" => named("q4_0"),
        "iq4_xs" => named("iq4_nl"),
        "q4_k" => named("q5_0"),
        "q5_k" => named("q5_1"),
        "q6_k" => named("q8_0"),
        _ => named("f16"),
    }
}

pub(super) fn named(name: &str) -> Result<&'static Format> {
    quant::by_name(name).ok_or_else(|| Error::unsupported(format!("weight format {name}")))
}

/// The number other tools show for a file's main format.
pub(super) fn file_type(format: &Format) -> u32 {
    match format.name {
        "f32" => 0,
        "f16" => 1,
        "q4_0" => 2,
        "q4_1" => 3,
        "q8_0" => 7,
        "q5_0" => 8,
        "q5_1" => 9,
        "q2_k" => 10,
        "q3_k" => 12,
        "q4_k" => 15,
        "q5_k" => 17,
        "q6_k" => 18,
        "iq4_nl" => 25,
        "iq4_xs" => 30,
        "bf16" => 32,
        "tq1_0" => 36,
        "tq2_0" => 37,
        "mxfp4" => 38,
        "nvfp4" => 39,
        "q1_0" => 40,
        _ => 1024,
    }
}

pub(super) fn bytes_of(format: &Format, weights: usize) -> usize {
    weights / format.block_len * format.block_bytes
}

/// Rows of the tensor called `name`, from row `first` of `all` on, as blocks.
pub(super) fn encode(
    format: &Format,
    (name, cols): (&str, usize),
    weights: &[f32],
    (first, all): (usize, usize),
    importance: Option<&Importance>,
) -> Result<Vec<u8>> {
    if let Some(bad) = weights.iter().find(|w| !w.is_finite()) {
        return Err(Error::malformed(name, format!("it holds {bad}")));
    }
    let mut bytes = vec![0; bytes_of(format, weights.len())];
    let of = importance.and_then(|importance| importance.of(name));
    let Some(of) = of.filter(|_| format.weighs()) else {
        format.quantize(weights, None, &mut bytes)?;
        return Ok(bytes);
    };
    let rows = weights.chunks_exact(cols).zip(bytes.chunks_exact_mut(bytes_of(format, cols)));
    for (row, (weights, blocks)) in (first..).zip(rows) {
        format.quantize(weights, Some(of.row(row, all, cols)?), blocks)?;
    }
    Ok(bytes)
}

/// How often each format occurs, in order of first occurrence.
pub(super) fn count(formats: &[&'static Format]) -> Vec<(&'static str, usize)> {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for format in formats {
        match counts.iter_mut().find(|(name, _)| *name == format.name) {
            Some((_, n)) => *n += 1,
            None => counts.push((format.name, 1)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_counted() {
        let list: Vec<_> = ["q4_k", "f32", "q4_k"].iter().map(|name| named(name).unwrap()).collect();
        assert_eq!(count(&list), [("q4_k", 2), ("f32", 1)]);
    }

    #[test]
    fn rules_are_about_parts_of_names() {
        let rule = |text: &str| Rule::parse(text).unwrap();
        assert!(rule("ffn_down=q6_k").matches("blk.3.ffn_down.weight"));
        assert!(!rule("ffn_down=q6_k").matches("blk.3.ffn_up.weight"));
        assert!(rule("blk.1*.attn_=q8_0").matches("blk.12.attn_q.weight"));
        assert!(!rule("blk.1*.attn_=q8_0").matches("blk.2.attn_q.weight"));
        for bad in ["ffn_down", "=q6_k", "*=q6_k", "ffn_down=q9", "ffn_down=iq1_s"] {
            assert!(Rule::parse(bad).is_err(), "{bad}");
        }
        let rules = [rule("attn_q=q8_0"), rule("attn_z=q8_0")];
        let why = check_rules(&rules, ["blk.0.attn_q.weight"].into_iter()).unwrap_err().to_string();
        assert!(why.contains("attn_z"), "{why}");
    }

    #[test]
    fn a_rule_goes_before_what_is_chosen_otherwise() {
        let rules = vec![Rule::parse("ffn_down=q8_0").unwrap(), Rule::parse("ffn=q5_0").unwrap()];
        let options = Options { rules, ..Options::new(named("q4_k").unwrap(), 1) };
        let of = |name, cols, head| {
            choose(&Wanted { name, cols, vector: false, head }, &options).map(|format| format.name)
        };
        assert_eq!(of("blk.0.ffn_down.weight", 256, false).unwrap(), "q8_0");
        assert_eq!(of("blk.0.ffn_up.weight", 256, false).unwrap(), "q5_0");
        assert_eq!(of("blk.0.ffn_gate_inp.weight", 256, false).unwrap(), "f32");
        assert_eq!(of("output.weight", 256, true).unwrap(), "q6_k");
        assert_eq!(of("blk.0.attn_q.weight", 96, false).unwrap(), "q5_0");
        assert!(of("blk.0.ffn_up.weight", 48, false).unwrap_err().to_string().contains("whole blocks"));
    }
}
