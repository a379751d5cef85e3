//! Which tensors a family has, with their shapes, and the check that a file has exactly those.

use crate::{Error, Result, gguf::Gguf};

/// Whether a tensor must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it the model cannot run.
    Required,
    /// Absent means the step it belongs to is left out (a bias, a norm).
    Optional,
    /// Files may have it, and nothing reads it.
    Unused,
}

/// One tensor of a layer, or of the whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name; for a layer's tensor without the `blk.N.` prefix.
    pub name: &'static str,
    /// The dimensions in GGUF order: the row length first.
    pub dims: Vec<usize>,
    /// Whether it must be there.
    pub need: Need,
}

impl Rule {
    /// A tensor that must be there.
    pub fn required(name: &'static str, dims: &[usize]) -> Self {
        Self { name, dims: dims.to_vec(), need: Need::Required }
    }

    /// A tensor that may be absent.
    pub fn optional(name: &'static str, dims: &[usize]) -> Self {
        Self { name, dims: dims.to_vec(), need: Need::Optional }
    }

    /// A tensor that files may have and nothing reads.
    pub fn unused(name: &'static str, dims: &[usize]) -> Self {
        Self { name, dims: dims.to_vec(), need: Need::Unused }
    }

    /// Whether `dims` of a file are this rule's, trailing ones aside.
    fn accepts(&self, dims: &[u64]) -> bool {
        let trim =
            |n: usize, one: &dyn Fn(usize) -> bool| (0..n).rev().find(|&i| !one(i)).map_or(0, |i| i + 1);
        let (a, b) = (trim(self.dims.len(), &|i| self.dims[i] == 1), trim(dims.len(), &|i| dims[i] == 1));
        a == b && (0..a).all(|i| self.dims[i] as u64 == dims[i])
    }
}

/// The name of tensor `name` of layer `layer`.
pub fn layer_name(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}")
}

/// The matrices whose products may have factors, or, of a stack of experts, one for each: those that llama.cpp multiplies.
const FACTORED: [&str; 20] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_up_exps",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "ssm_in",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
];

/// How many factors tensor `name` of a layer or of the whole model has, if it is what belongs to the matrix of one of `rules`.
fn factors(rules: &[Rule], name: &str) -> Option<usize> {
    let matrix = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"))?;
    let rule = rules.iter().find(|rule| rule.name.strip_suffix(".weight") == Some(matrix))?;
    let stack = rule.dims.get(2).copied().unwrap_or(1);
    (matrix == "output" || FACTORED.contains(&matrix)).then_some(stack)
}

/// Whether tensor `name` of the file holds `count` factors.
fn check_factors(gguf: &Gguf, name: &str, count: usize) -> Result<()> {
    let tensor = gguf.require(name)?;
    let rule = Rule { name: "", dims: vec![count], need: Need::Optional };
    if !rule.accepts(&tensor.info.dims) {
        let why = format!("is {:?}, its matrices are {count}", tensor.info.dims);
        return Err(Error::malformed(format!("tensor {name}: shape"), why));
    }
    match tensor.to_f32().into_iter().find(|factor| !factor.is_finite()) {
        Some(factor) => Err(Error::malformed(format!("tensor {name}"), format!("has the factor {factor}"))),
        None => Ok(()),
    }
}

/// Whether tensor `full` of the file, called `name` in its layer, may be of a format whose blocks share a scale, and that scale is sound.
fn check_scale(gguf: &Gguf, full: &str, name: &str) -> Result<()> {
    let Some((tensor, scale)) = gguf.tensor(full).and_then(|tensor| Some((tensor, tensor.scale()?))) else {
        return Ok(());
    };
    let matrix = name.strip_suffix(".weight").unwrap_or_default();
    if !FACTORED.contains(&matrix) {
        return Err(Error::unsupported(format!("tensor {full} in {}", tensor.format.name)));
    }
    if !scale.is_finite() {
        return Err(Error::malformed(format!("tensor {full}"), format!("has the scale {scale}")));
    }
    Ok(())
}

/// Checks that `gguf` holds what the rules say, outside of layers (`globals`) and in each of `layers`, with those shapes, and
/// nothing else but factors of their matrices and `unused` layers behind them.
///
/// # Errors
/// [`Error::Unsupported`] naming the first tensor that is missing or that the family does not use,
/// [`Error::Malformed`] naming one whose shape disagrees with the metadata.
pub fn check(gguf: &Gguf, globals: &[Rule], layers: &[&[Rule]], unused: usize) -> Result<()> {
    let unused = layers.len()..layers.len() + unused;
    for rule in globals {
        check_one(gguf, rule, rule.name)?;
    }
    for (index, layer) in layers.iter().enumerate() {
        for rule in *layer {
            check_one(gguf, rule, &layer_name(index, rule.name))?;
        }
    }
    for info in gguf.tensors() {
        let (rules, name) = match split(&info.name) {
            Some((layer, _)) if unused.contains(&layer) => continue,
            Some((layer, name)) => (layers.get(layer).copied().unwrap_or_default(), name),
            None => (globals, &*info.name),
        };
        if rules.iter().any(|rule| rule.name == name) {
            check_scale(gguf, &info.name, name)?;
            continue;
        }
        let Some(count) = factors(rules, name) else {
            return Err(Error::unsupported(format!("tensor {} has no use in this architecture", info.name)));
        };
        check_factors(gguf, &info.name, count)?;
    }
    Ok(())
}

/// Whether layer `index` has what the rules say and nothing else.
pub fn are(gguf: &Gguf, rules: &[Rule], index: usize) -> bool {
    let named = gguf.tensors().iter().filter_map(|info| split(&info.name));
    let factored = |name: &str| {
        factors(rules, name).is_some_and(|count| check_factors(gguf, &layer_name(index, name), count).is_ok())
    };
    let sound = |rule: &Rule| {
        let full = layer_name(index, rule.name);
        check_one(gguf, rule, &full).and_then(|()| check_scale(gguf, &full, rule.name)).is_ok()
    };
    rules.iter().all(sound)
        && named
            .filter(|(layer, _)| *layer == index)
            .all(|(_, name)| rules.iter().any(|rule| rule.name == name) || factored(name))
}

fn check_one(gguf: &Gguf, rule: &Rule, name: &str) -> Result<()> {
    if rule.need != Need::Required && gguf.info(name).is_none() {
        return Ok(());
    }
    let tensor = gguf.require(name)?;
    if rule.accepts(&tensor.info.dims) {
        return Ok(());
    }
    let why = format!("is {:?}, the metadata says {:?}", tensor.info.dims, rule.dims);
    Err(Error::malformed(format!("tensor {name}: shape"), why))
}

/// `blk.12.attn_q.weight` as `(12, "attn_q.weight")`; `None` for tensors outside layers.
pub(super) fn split(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let index: usize = layer.parse().ok()?;
    (index.to_string() == layer).then_some((index, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_ones_do_not_matter_but_everything_else_does() {
        let rule = Rule::required("x", &[8, 4]);
        assert!(rule.accepts(&[8, 4]) && rule.accepts(&[8, 4, 1, 1]));
        assert!(!rule.accepts(&[4, 8]) && !rule.accepts(&[8]) && !rule.accepts(&[8, 4, 2]));
        assert!(Rule::required("x", &[8, 1]).accepts(&[8]));
        assert!(Rule::required("x", &[1]).accepts(&[1]));
    }

    #[test]
    fn layer_names_split() {
        assert_eq!(split("blk.12.attn_q.weight"), Some((12, "attn_q.weight")));
        assert_eq!(split("blk.x.attn_q.weight"), None);
        assert_eq!(split("blk.01.attn_q.weight"), None, "another spelling is another name");
        assert_eq!(split("output.weight"), None);
    }
}
