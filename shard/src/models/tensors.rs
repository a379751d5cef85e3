//! Which tensors a family has, with their shapes, and the check that a file has exactly those.

use crate::{Error, Result, gguf::Gguf};

/// Whether a tensor must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it the model cannot run.
    Required,
    /// Absent means the step it belongs to is left out (a bias, a norm).
    Optional,
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

/// Checks that `gguf` holds what the rules say, outside of layers (`globals`) and in each of `layers`, with those shapes, and
/// nothing else but `unused` layers behind them.
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
        let known = match split(&info.name) {
            Some((layer, _)) if unused.contains(&layer) => true,
            Some((layer, name)) => {
                layers.get(layer).is_some_and(|layer| layer.iter().any(|rule| rule.name == name))
            }
            None => globals.iter().any(|rule| rule.name == &*info.name),
        };
        if !known {
            return Err(Error::unsupported(format!("tensor {} has no use in this architecture", info.name)));
        }
    }
    Ok(())
}

/// Whether layer `index` has what the rules say and nothing else.
pub fn are(gguf: &Gguf, rules: &[Rule], index: usize) -> bool {
    let named = gguf.tensors().iter().filter_map(|info| split(&info.name));
    rules.iter().all(|rule| check_one(gguf, rule, &layer_name(index, rule.name)).is_ok())
        && named
            .filter(|(layer, _)| *layer == index)
            .all(|(_, name)| rules.iter().any(|rule| rule.name == name))
}

fn check_one(gguf: &Gguf, rule: &Rule, name: &str) -> Result<()> {
    if rule.need == Need::Optional && gguf.info(name).is_none() {
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
fn split(name: &str) -> Option<(usize, &str)> {
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
