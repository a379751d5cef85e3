//! Metadata with bounds, and the memory of which keys were read.

use std::{cell::RefCell, collections::BTreeSet};

use super::{
    Ahead, Attention, Blueprint, Embedding, Experts, Groups, HEAD_NORM, Head, Latent, Layer, Norm, NormKind,
    Rope, Router, Rule, Scaling, Softmax, keys, limits,
};
use crate::{
    Error, Result,
    gguf::{Gguf, Metadata},
    kernels::{DeltaShape, KvShape, Mamba2Shape, Pairing},
    tokenizer::definition,
};

/// The sizes that every family states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub layers: usize,
    pub context: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    /// Layers after those that a pass does not run.
    pub unused_layers: usize,
}

impl Sizes {
    /// Softmax attention with rope 0 and the usual factor.
    pub fn attention(&self, window: Option<usize>) -> Softmax {
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        Softmax {
            kv: self.kv(),
            rope: Some(0),
            window,
            chunk: None,
            ahead: 0,
            scale,
            temperature: None,
            softcap: None,
            gated: false,
            bare_norm: None,
            norms_rotated: false,
            source: None,
        }
    }

    /// Key and value heads.
    pub fn kv(&self) -> KvShape {
        KvShape::new(self.kv_heads, self.head_dim)
    }
}

/// Metadata of one architecture. Remembers which keys were read: see [`Reader::refuse_unread`].
pub(super) struct Reader<'g> {
    gguf: &'g Gguf,
    architecture: &'static str,
    read: RefCell<BTreeSet<String>>,
}

impl<'g> Reader<'g> {
    pub fn new(gguf: &'g Gguf, architecture: &'static str) -> Self {
        Self { gguf, architecture, read: RefCell::default() }
    }

    fn key(&self, name: &str) -> String {
        let key = format!("{}.{name}", self.architecture);
        self.read.borrow_mut().insert(key.clone());
        key
    }

    /// The full name of a key, for errors.
    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Takes note of a key that may have any value.
    pub fn ignore(&self, name: &str) {
        self.key(name);
    }

    fn metadata(&self) -> &'g Metadata {
        self.gguf.metadata()
    }

    /// Whether the file has `key` of this architecture, whatever its type.
    fn present(&self, key: &str) -> bool {
        self.metadata().get(key).is_some()
    }

    /// An optional count in `1..=max`. A list with one value for all layers counts as that value.
    pub fn size_opt(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        if !self.present(&key) {
            return Ok(None);
        }
        let list = match self.metadata().u64(&key) {
            Some(value) => vec![value],
            None => self.metadata().u64s(&key).unwrap_or_default(),
        };
        let Some(&first) = list.first() else {
            return Err(Error::malformed(key, "is no count"));
        };
        if list.iter().any(|&v| v != first) {
            return Err(Error::unsupported(format!("{key} that differs between layers")));
        }
        match usize::try_from(first) {
            Ok(value) if value <= max => Ok((value > 0).then_some(value)),
            _ => Err(Error::malformed(key, format!("is {first}, the limit is {max}"))),
        }
    }

    /// A count in `1..=max` for each layer: a list, or one value for all of them.
    pub fn each(&self, name: &str, max: usize, sizes: &Sizes) -> Result<Vec<usize>> {
        let key = self.key(name);
        let Some(list) = self.metadata().u64s(&key) else {
            return Ok(vec![self.size(name, max)?; sizes.layers]);
        };
        if list.len() < sizes.layers {
            return Err(Error::malformed(key, "has fewer entries than there are layers"));
        }
        let one = |&value: &u64| match usize::try_from(value) {
            Ok(value) if (1..=max).contains(&value) => Ok(value),
            _ => Err(Error::malformed(key.clone(), format!("holds {value}, the limits are 1 and {max}"))),
        };
        list[..sizes.layers].iter().map(one).collect()
    }

    /// A count of at most `max` for each layer of a list; none where it is zero.
    pub fn each_or_none(&self, name: &str, max: usize) -> Result<Vec<usize>> {
        let key = self.key(name);
        let list =
            self.metadata().u64s(&key).ok_or_else(|| Error::malformed(&key, "is no list of counts"))?;
        let one = |&value: &u64| match usize::try_from(value) {
            Ok(value) if value <= max => Ok(value),
            _ => Err(Error::malformed(&key, format!("holds {value}, the limit is {max}"))),
        };
        list.iter().map(one).collect()
    }

    /// The first of what [`Reader::each`] reads that is not zero.
    fn first(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.metadata().u64s(&key).map(|list| list.into_iter().find(|value| *value > 0).unwrap_or(0)) {
            None => self.size_opt(name, max),
            Some(value) => match usize::try_from(value) {
                Ok(value) if value <= max => Ok((value > 0).then_some(value)),
                _ => Err(Error::malformed(key, format!("holds {value}, the limits are 1 and {max}"))),
            },
        }
    }

    /// Whether the file states a count of zero.
    pub fn is_zero(&self, name: &str) -> bool {
        self.metadata().u64(&self.key(name)) == Some(0)
    }

    /// A count in `1..=max` that must be there.
    pub fn size(&self, name: &str, max: usize) -> Result<usize> {
        self.size_opt(name, max)?
            .ok_or_else(|| Error::malformed(format!("{}.{name}", self.architecture), "is missing or zero"))
    }

    /// An optional finite number.
    pub fn float_opt(&self, name: &str) -> Result<Option<f32>> {
        let key = self.key(name);
        if !self.present(&key) {
            return Ok(None);
        }
        match self.metadata().f32(&key) {
            Some(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(Error::malformed(key, "is no finite number")),
        }
    }

    /// A number for each layer, finite or minus infinity.
    pub fn floats(&self, name: &str, layers: usize) -> Result<Vec<f32>> {
        let key = self.key(name);
        let Some(list) = self.metadata().f32s(&key) else {
            return Err(Error::malformed(key, "is missing or no list of numbers"));
        };
        let sound = |value: &f32| value.is_finite() || *value == f32::NEG_INFINITY;
        if list.len() < layers || !list.iter().all(sound) {
            return Err(Error::malformed(key, format!("is no list of {layers} numbers")));
        }
        Ok(list[..layers].to_vec())
    }

    /// A factor or cap where zero stands for none.
    pub fn cap(&self, name: &str) -> Result<Option<f32>> {
        match self.float_opt(name)? {
            Some(value) if value < 0.0 => {
                Err(Error::malformed(format!("{}.{name}", self.architecture), "is negative"))
            }
            value => Ok(value.filter(|&v| v != 0.0)),
        }
    }

    /// An optional truth value.
    pub fn flag_opt(&self, name: &str) -> Option<bool> {
        self.metadata().bool(&self.key(name))
    }

    /// An optional list of truth values, one per layer.
    pub fn flags_opt(&self, name: &str) -> Option<Vec<bool>> {
        self.metadata().bools(&self.key(name))
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.gguf.tensor(tensor).is_some()
    }

    /// The rows of a matrix, if the file has it.
    pub fn rows(&self, tensor: &str) -> Option<usize> {
        self.gguf.tensor(tensor).map(|found| found.rows())
    }

    /// The token behind each of two texts that are read together: the one that the tokenizer puts there.
    pub fn separator(&self) -> Option<u32> {
        definition::end_of_text(self.metadata())
    }

    /// A small tensor of `len` positive finite factors, if the file has it.
    pub fn factors(&self, tensor: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let Some(found) = self.gguf.tensor(tensor) else { return Ok(None) };
        if found.info.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)) != Some(len as u64)
            || !len.is_multiple_of(found.format.block_len)
        {
            return Err(Error::malformed(
                format!("tensor {tensor}: shape"),
                format!("must hold {len} values"),
            ));
        }
        let mut values = vec![0.0; len];
        (found.format.dequantize)(found.bytes, &mut values);
        if values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
            return Err(Error::malformed(format!("tensor {tensor}"), "has a factor that is not positive"));
        }
        Ok(Some(values))
    }

    /// The sizes every family states, of heads whose keys and values are equally wide.
    pub fn sizes(&self) -> Result<Sizes> {
        self.sizes_of_heads(true, Self::size_opt)
    }

    /// As [`Reader::sizes`], of heads whose values may have another width.
    pub fn sizes_of_keys(&self) -> Result<Sizes> {
        self.sizes_of_heads(false, Self::size_opt)
    }

    /// As [`Reader::sizes`]; key heads and the width of the feed-forward network are those of the first layer, see [`Reader::each`].
    pub fn sizes_varying(&self) -> Result<Sizes> {
        self.sizes_of_heads(true, Self::first)
    }

    /// As [`Reader::sizes_varying`], of heads whose values may have another width.
    pub fn sizes_of_varying_keys(&self) -> Result<Sizes> {
        self.sizes_of_heads(false, Self::first)
    }

    fn sizes_of_heads(
        &self,
        equal: bool,
        of_layers: impl Fn(&Self, &str, usize) -> Result<Option<usize>>,
    ) -> Result<Sizes> {
        let hidden = self.size("embedding_length", limits::HIDDEN)?;
        let heads = self.size("attention.head_count", limits::HEADS)?;
        let kv_heads = of_layers(self, "attention.head_count_kv", limits::HEADS)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let key = self.key("attention.head_count_kv");
            return Err(Error::malformed(key, format!("{kv_heads} does not divide {heads} heads")));
        }
        let head_dim = match self.size_opt("attention.key_length", limits::HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) && hidden / heads <= limits::HEAD_DIM => hidden / heads,
            None => {
                let key = self.key("attention.head_count");
                return Err(Error::malformed(key, format!("{heads} does not divide the width {hidden}")));
            }
        };
        let value = self.size_opt("attention.value_length", limits::HEAD_DIM)?;
        if equal && value.is_some_and(|value| value != head_dim) {
            return Err(Error::unsupported("keys and values of different width"));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(Error::malformed(self.key("attention.key_length"), "is odd"));
        }
        if heads * head_dim > limits::QUERIES {
            let why = format!("{heads} heads of {head_dim}, the limit is {} in all", limits::QUERIES);
            return Err(Error::malformed(self.key("attention.head_count"), why));
        }
        let embedding = self.gguf.require("token_embd.weight")?;
        let vocab = match embedding.info.dims[..] {
            [_, rows] if (1..=limits::VOCAB as u64).contains(&rows) => rows as usize,
            _ => return Err(Error::malformed("tensor token_embd.weight: shape", "is no table of tokens")),
        };
        let blocks = self.size("block_count", limits::LAYERS)?;
        let unused_layers = self.size_opt("nextn_predict_layers", blocks - 1)?.unwrap_or(0);
        // Models of experts alone may state no other width.
        let feed_forward = match of_layers(self, "feed_forward_length", limits::FEED_FORWARD)? {
            Some(width) => width,
            None => self
                .size_opt("expert_feed_forward_length", limits::FEED_FORWARD)?
                .ok_or_else(|| Error::malformed(self.key("feed_forward_length"), "is missing or zero"))?,
        };
        Ok(Sizes {
            layers: blocks - unused_layers,
            context: self.size("context_length", limits::CONTEXT)?,
            hidden,
            vocab,
            heads,
            kv_heads,
            head_dim,
            feed_forward,
            unused_layers,
        })
    }

    /// The norm of the residual stream.
    pub fn norm(&self, kind: NormKind) -> Result<Norm> {
        let name = match kind {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        match self.float_opt(name)? {
            Some(eps) if (0.0..1.0).contains(&eps) => Ok(Norm { kind, eps }),
            _ => Err(Error::malformed(self.key(name), "is missing or outside 0..1")),
        }
    }

    /// The experts of a mixture whose sizes stand in their own keys; `renormalize` is what the family does unless told.
    pub fn experts(&self, sizes: &Sizes, renormalize: bool, shared: Option<usize>) -> Result<Experts> {
        let count = self.size("expert_count", limits::EXPERTS)?;
        let used = self.size("expert_used_count", count)?;
        let width = self.size_opt("expert_feed_forward_length", limits::FEED_FORWARD)?;
        Ok(Experts {
            renormalize: self.flag_opt("expert_weights_norm").unwrap_or(renormalize),
            scale: self.cap("expert_weights_scale")?.unwrap_or(1.0),
            shared,
            ..Experts::softmax(count, used, width.unwrap_or(sizes.feed_forward / used))
        })
    }

    /// Where the weights of experts come from: what the metadata says, or what the family does unless told.
    pub fn router(&self, usual: Router) -> Result<Router> {
        match self.size_opt("expert_gating_func", usize::MAX)? {
            None => Ok(usual),
            Some(1) => Ok(Router::Softmax),
            Some(2) => Ok(Router::Sigmoid),
            Some(3) => Ok(Router::SoftmaxOfChosen),
            Some(other) => Err(Error::unsupported(format!("expert_gating_func {other}"))),
        }
    }

    /// The groups that experts are chosen by, if there are several.
    pub fn groups(&self, experts: usize) -> Result<Option<Groups>> {
        let count = self.size_opt("expert_group_count", experts)?.unwrap_or(1);
        let used = self.size_opt("expert_group_used_count", count)?.unwrap_or(count);
        if !experts.is_multiple_of(count) {
            return Err(Error::malformed(self.key("expert_group_count"), "does not divide the experts"));
        }
        Ok((used < count).then_some(Groups { count, used, best: 2 }))
    }

    /// Whether each layer has a window, where some do: as the metadata lists, or all but the last of every `period`.
    pub fn slides(&self, sizes: &Sizes, period: usize) -> Result<Vec<bool>> {
        self.slides_but(sizes, period, |period| period - 1)
    }

    /// As [`Reader::slides`], but the first of every `period` has none.
    pub fn slides_behind_the_first(&self, sizes: &Sizes, period: usize) -> Result<Vec<bool>> {
        self.slides_but(sizes, period, |_| 0)
    }

    fn slides_but(&self, sizes: &Sizes, period: usize, whole: impl Fn(usize) -> usize) -> Result<Vec<bool>> {
        const KEY: &str = "attention.sliding_window_pattern";
        if let Some(pattern) = self.flags_opt(KEY) {
            if pattern.len() < sizes.layers {
                return Err(Error::malformed(self.key(KEY), "has fewer entries than there are layers"));
            }
            return Ok(pattern);
        }
        let period = self.size_opt(KEY, usize::MAX)?.unwrap_or(period);
        Ok((0..sizes.layers).map(|index| index % period != whole(period)).collect())
    }

    /// The rotation with whatever scaling the metadata or the factor tensors ask for.
    pub fn rope(&self, sizes: &Sizes, pairing: Pairing) -> Result<Rope> {
        let dims = self.size_opt("rope.dimension_count", limits::HEAD_DIM)?.unwrap_or(sizes.head_dim);
        if dims > sizes.head_dim || !dims.is_multiple_of(2) {
            let why = format!("is {dims}, a head has {}", sizes.head_dim);
            return Err(Error::malformed(self.key("rope.dimension_count"), why));
        }
        let base = self.base("rope.freq_base")?;
        let scaling = self.scaling(sizes, dims)?;
        let magnitude = f64::from(self.cap("rope.scaling.attn_factor")?.unwrap_or(1.0));
        Ok(Rope { pairing, dims, base, scaling, magnitude })
    }

    /// A base of frequencies; 10,000 where the file says nothing.
    pub fn base(&self, name: &str) -> Result<f64> {
        self.base_or(name, 10_000.0)
    }

    /// A base of frequencies, or another where the file says nothing.
    pub fn base_or(&self, name: &str, usual: f64) -> Result<f64> {
        match self.float_opt(name)?.map_or(usual, f64::from) {
            base if base > 1.0 => Ok(base),
            base => Err(Error::malformed(self.key(name), format!("is {base}, must exceed 1"))),
        }
    }

    fn scaling(&self, sizes: &Sizes, dims: usize) -> Result<Scaling> {
        let original =
            self.size_opt("rope.scaling.original_context_length", limits::CONTEXT)?.unwrap_or(sizes.context);
        let legacy = self.cap("rope.scale_linear")?;
        let factor = f64::from(self.cap("rope.scaling.factor")?.or(legacy).unwrap_or(1.0));
        let type_key = self.key("rope.scaling.type");
        let [fast, slow] =
            ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"].map(|key| self.cap(key));
        let kind = self.metadata().str(&type_key);
        let factors = self.factors("rope_freqs.weight", dims / 2)?;
        let short = self.factors("rope_factors_short.weight", dims / 2)?;
        let long = self.factors("rope_factors_long.weight", dims / 2)?;
        let scaling = match kind {
            Some("none") => Scaling::None,
            None | Some("linear") if factor == 1.0 => Scaling::None,
            None | Some("linear") => Scaling::Linear { factor },
            Some("yarn") => Scaling::Yarn {
                factor,
                original,
                beta_fast: f64::from(fast?.unwrap_or(32.0)),
                beta_slow: f64::from(slow?.unwrap_or(1.0)),
            },
            Some("longrope") if short.is_some() => Scaling::None,
            Some("longrope") => {
                return Err(Error::unsupported("tensor rope_factors_short.weight is missing"));
            }
            Some(other) => return Err(Error::unsupported(format!("rope scaling {other}"))),
        };
        match (factors, short, long) {
            (None, None, None) => Ok(scaling),
            (Some(factors), None, None) if scaling == Scaling::None => Ok(Scaling::Factors(factors)),
            (None, Some(short), Some(long)) if scaling == Scaling::None => {
                Ok(Scaling::Long { short, long, original })
            }
            (None, Some(_), None) => Err(Error::unsupported("tensor rope_factors_long.weight is missing")),
            (None, None, Some(_)) => Err(Error::unsupported("tensor rope_factors_short.weight is missing")),
            _ => Err(Error::unsupported("rope factors together with another rope scaling")),
        }
    }

    /// The window of layers that have one; `None` when it covers the whole context.
    pub fn window(&self, sizes: &Sizes) -> Result<Option<usize>> {
        let window = self.size_opt("attention.sliding_window", usize::MAX)?;
        Ok(window.filter(|&w| w < sizes.context))
    }

    /// A blueprint of `layers` with the usual embedding and head; families change what differs.
    pub fn assemble(&self, sizes: &Sizes, norm: Norm, ropes: Vec<Rope>, layers: Vec<Layer>) -> Blueprint {
        let mut tensors = vec![
            Rule::required("token_embd.weight", &[sizes.hidden, sizes.vocab]),
            Rule::required("output_norm.weight", &[sizes.hidden]),
            Rule::optional("output.weight", &[sizes.hidden, sizes.vocab]),
        ];
        if norm.kind == NormKind::Layer {
            tensors.push(Rule::required("output_norm.bias", &[sizes.hidden]));
        }
        for rope in &ropes {
            let pairs = rope.dims / 2;
            match rope.scaling {
                Scaling::Factors(_) => tensors.push(Rule::required("rope_freqs.weight", &[pairs])),
                Scaling::Long { .. } => tensors.extend([
                    Rule::required("rope_factors_short.weight", &[pairs]),
                    Rule::required("rope_factors_long.weight", &[pairs]),
                ]),
                _ => {}
            }
        }
        Blueprint {
            architecture: self.architecture,
            context: sizes.context,
            hidden: sizes.hidden,
            vocab: sizes.vocab,
            heads: sizes.heads,
            kv: sizes.kv(),
            norm,
            embedding: Embedding::scaled(1.0),
            residual_scale: 1.0,
            ropes,
            layers,
            head: Head {
                norm: HEAD_NORM,
                logits: true,
                rank: None,
                tied: !self.has("output.weight"),
                scale: 1.0,
                softcap: None,
            },
            ahead: Ahead { layers: sizes.unused_layers, first: None },
            per_layer: None,
            tensors,
        }
    }

    /// Refuses what the file says by keys that this family did not read, unless it changes nothing.
    pub fn refuse_unread(&self, blueprint: &Blueprint) -> Result<()> {
        keys::refuse_unread(self.metadata(), &self.read.borrow(), blueprint)
    }
}

/// `count` layers, each made by `layer` from its index.
pub(super) fn layers(count: usize, layer: impl Fn(usize) -> Layer) -> Vec<Layer> {
    (0..count).map(layer).collect()
}

impl From<DeltaShape> for Attention {
    fn from(delta: DeltaShape) -> Self {
        Self::DeltaNet(delta)
    }
}

impl From<Mamba2Shape> for Attention {
    fn from(mamba: Mamba2Shape) -> Self {
        Self::Mamba2(mamba)
    }
}

impl From<Latent> for Attention {
    fn from(latent: Latent) -> Self {
        Self::Latent(latent)
    }
}

impl From<Softmax> for Attention {
    fn from(softmax: Softmax) -> Self {
        Self::Softmax(softmax)
    }
}
