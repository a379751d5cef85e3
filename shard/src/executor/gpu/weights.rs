//! Everything that layers compute with, in the device's memory: norms, networks and what mixes positions.

use scheduler::LayerRange;

use super::{
    formats::row_bytes,
    matrices::{NormPart, Part, Rows, TILE, Uploader, bytes},
    mixers::{MixerParts, beyond_mixer},
    pool::PageKind,
    source::{Curve, Kernel, Places},
};
use crate::{
    Error, Result,
    gguf::Gguf,
    models::{
        ATTENTION_NORM, Blueprint, CHOICE_FACTORS, Dense, Experts, FeedForward, LAYER_SCALE, Layer,
        layer_name,
    },
    quant,
};

/// Most experts that a row chooses from, and most that it visits.
const MOST_EXPERTS: usize = 512;
const MOST_VISITS: usize = 32;

/// The norms of a layer's sublayers, of attention and of the network; a layer has those that its tensors say.
pub(super) struct LayerNorms {
    /// Of the residual row that goes in.
    pub before: [Option<NormPart>; 2],
    /// Of what goes into the last matrix.
    pub inside: [Option<NormPart>; 2],
    /// Of what comes out.
    pub after: [Option<NormPart>; 2],
}

/// Everything one layer computes with.
pub(super) struct LayerParts {
    pub norms: LayerNorms,
    /// Whether the network reads the residual row that attention reads.
    pub parallel: bool,
    /// What mixes positions, and the matrix behind it.
    pub mixer: Option<(MixerParts, Vec<Part>)>,
    pub network: Option<NetworkParts>,
    /// The factor on what the layer gives.
    pub scale: Option<f32>,
}

/// The part of a layer behind what mixes positions.
pub(super) struct NetworkParts {
    /// Gate and up, or up alone.
    pub gate_up: Vec<Part>,
    pub width: usize,
    pub curve: Kernel,
    pub down: Vec<Part>,
    /// Where the network is one of experts: `gate_up` and `down` are those of all of them.
    pub experts: Option<ExpertParts>,
    /// Experts beside this network.
    pub beside: Option<Box<BesideParts>>,
}

/// Experts beside a dense network, with their norms.
pub(super) struct BesideParts {
    pub dense_norm_after: NormPart,
    pub experts: NetworkParts,
    pub experts_norm_after: NormPart,
}

impl NetworkParts {
    /// Values between its products for each value that `down` reads.
    pub fn sides(&self) -> usize {
        if matches!(self.curve, Kernel::Gate(_)) { 2 } else { 1 }
    }
}

/// What chooses experts.
pub(super) struct ExpertParts {
    /// The rows of the experts, and then the gate of the one that all rows visit, if it has one.
    pub router: Vec<Part>,
    /// The norms of the residual row in front of the router and in front of the experts, where the former has one of its own.
    pub norms: Option<[NormPart; 2]>,
    /// What is added to scores for the choice alone, or factors on weights.
    pub aside: Option<(Aside, wgpu::Buffer)>,
    /// The matrices into the narrower rows that experts read and out of those that they give, and their width.
    pub latent: Option<([Vec<Part>; 2], usize)>,
    pub spec: Experts,
    /// The expert that all rows visit, where it is not one more of the others.
    pub shared: Option<SharedParts>,
    /// Whether it is: as wide and in the same formats, behind them.
    pub one_more: bool,
}

impl ExpertParts {
    /// Experts that a row visits.
    pub fn visits(&self) -> usize {
        self.spec.used + usize::from(self.one_more)
    }

    /// Experts in the stacks.
    pub fn count(&self) -> usize {
        self.spec.count + usize::from(self.one_more)
    }
}

/// What a router has beside scores.
#[derive(Clone, Copy)]
pub(super) enum Aside {
    Added = 1,
    Factors = 2,
}

/// The expert that all rows visit.
pub(super) struct SharedParts {
    pub gate_up: Vec<Part>,
    pub width: usize,
    pub down: Vec<Part>,
}

impl LayerParts {
    /// Bytes of the layer's matrices.
    pub fn bytes(&self) -> usize {
        self.bytes_with(|_| 1.0)
    }

    /// Bytes of those that a token passes through.
    pub fn bytes_per_token(&self) -> usize {
        self.bytes_with(|experts| experts.visits() as f64 / experts.count() as f64)
    }

    fn bytes_with(&self, share: impl Fn(&ExpertParts) -> f64) -> usize {
        let of = |parts: &NetworkParts| {
            let network = bytes(&parts.gate_up) + bytes(&parts.down);
            let Some(experts) = &parts.experts else { return network };
            let ExpertParts { router, latent, shared, .. } = experts;
            let shared = shared.as_ref().map_or(0, |s| bytes(&s.gate_up) + bytes(&s.down));
            let latent: usize = latent.iter().flat_map(|(sides, _)| sides).map(|side| bytes(side)).sum();
            bytes(router) + latent + shared + (network as f64 * share(experts)) as usize
        };
        let network = self
            .network
            .as_ref()
            .map_or(0, |parts| of(parts) + parts.beside.as_ref().map_or(0, |beside| of(&beside.experts)));
        self.mixer.as_ref().map_or(0, |(mixer, out)| mixer.bytes() + bytes(out)) + network
    }
}

/// Why layers of `blueprint` are not computed here, by the first part that is missing.
pub(super) fn beyond(blueprint: &Blueprint) -> Option<&'static str> {
    let other = |layer: &Layer| {
        let dense = layer.feed_forward.dense().filter(|dense| Curve::of(dense.activation).is_none());
        let experts = layer.feed_forward.experts();
        beyond_mixer(blueprint, layer)
            .or(dense.map(|_| "this activation"))
            .or_else(|| experts.and_then(|experts| beyond_experts(layer, experts)))
    };
    if blueprint.per_layer.is_some() {
        return Some("per-layer embeddings");
    }
    let scaled = |layer: &Layer| layer.has(LAYER_SCALE) && !layer.has("post_ffw_norm.weight");
    if blueprint.layers.iter().any(scaled) {
        return Some("scaled layers of this kind");
    }
    if blueprint.encodes() {
        return Some("encoders");
    }
    blueprint.layers.iter().find_map(other)
}

/// Why `experts` are not computed here.
fn beyond_experts(layer: &Layer, experts: &Experts) -> Option<&'static str> {
    const PLAIN: [&str; 16] = [
        "ffn_gate_inp.weight",
        "ffn_gate_exps.weight",
        "ffn_up_exps.weight",
        "ffn_down_exps.weight",
        "ffn_gate_inp.bias",
        "ffn_gate_inp.scale",
        "ffn_gate_up_exps.weight",
        CHOICE_FACTORS,
        "ffn_gate_exps.bias",
        "ffn_up_exps.bias",
        "ffn_down_exps.bias",
        "exp_probs_b.bias",
        "ffn_gate_inp_shexp.weight",
        "ffn_gate_shexp.weight",
        "ffn_up_shexp.weight",
        "ffn_down_shexp.weight",
    ];
    let belongs = |name: &str| ["_exps", "_shexp", "exp_probs", "gate_inp"].iter().any(|p| name.contains(p));
    let other = layer.tensors.iter().any(|rule| belongs(rule.name) && !PLAIN.contains(&rule.name));
    let too_many = experts.count > MOST_EXPERTS || experts.used > MOST_VISITS;
    match () {
        () if experts.weighs_input => Some("experts whose inputs are weighed"),
        () if other || too_many => Some("experts of this kind"),
        () if Curve::of(experts.activation).is_none() => Some("this activation"),
        () => None,
    }
}

impl Uploader<'_> {
    /// Layer `index` of the model.
    pub fn layer(&self, index: usize) -> Result<LayerParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let layer = &self.blueprint.layers[index];
        let network = match layer.feed_forward {
            FeedForward::Dense(dense) => Some(self.dense(index, dense)?),
            FeedForward::Experts(experts) => Some(self.experts(index, experts)?),
            FeedForward::None => None,
            FeedForward::Both(dense, experts) => {
                let beside = BesideParts {
                    dense_norm_after: self.norm(&name("post_ffw_norm_1"))?,
                    experts: self.experts(index, experts)?,
                    experts_norm_after: self.norm(&name("post_ffw_norm_2"))?,
                };
                Some(NetworkParts { beside: Some(Box::new(beside)), ..self.dense(index, dense)? })
            }
        };
        let norm = |suffix: &str| {
            let prefix = name(suffix);
            self.gguf.has_norm(&prefix).then(|| self.norm(&prefix)).transpose()
        };
        // Some families call the norm of what goes into the network so.
        let after = match layer.feed_forward_norm {
            "post_attention_norm" => None,
            _ => norm("post_attention_norm")?,
        };
        Ok(LayerParts {
            norms: LayerNorms {
                before: [norm(ATTENTION_NORM)?, norm(layer.feed_forward_norm)?],
                inside: [norm("attn_sub_norm")?, norm("ffn_sub_norm")?],
                after: [after, norm("post_ffw_norm")?],
            },
            parallel: layer.parallel(),
            mixer: self.mixer(index)?,
            network,
            scale: self.vector(&name(LAYER_SCALE)).and_then(|scale| scale.first().copied()),
        })
    }

    fn dense(&self, index: usize, dense: Dense) -> Result<NetworkParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let curve = Curve::of(dense.activation).ok_or_else(|| Error::unsupported("this activation"))?;
        let (curve, gate_up) = match dense.activation.gated() {
            false => (Kernel::Curve(curve), self.matrices(&[&name("ffn_up")])?),
            true if self.gguf.info(&name("ffn_gate.weight")).is_none() => {
                (Kernel::Gate(curve), self.matrices(&[&name("ffn_up")])?)
            }
            true => (Kernel::Gate(curve), self.matrices(&[&name("ffn_gate"), &name("ffn_up")])?),
        };
        let down = self.matrices(&[&name("ffn_down")])?;
        Ok(NetworkParts { gate_up, width: dense.width, curve, down, experts: None, beside: None })
    }

    /// Puts the expert that all rows visit behind the others, where its matrices are alike; says whether it did.
    fn joins<'t>(&'t self, index: usize, sides: &mut [Rows<'t>], down: &mut Rows<'t>) -> Result<bool> {
        let names = ["ffn_gate_shexp", "ffn_up_shexp"];
        let names = names[names.len() - sides.len()..].iter().chain(["ffn_down_shexp"].iter());
        let own = names.map(|suffix| self.rows(&layer_name(index, suffix))).collect::<Result<Vec<_>>>()?;
        let mut all: Vec<&mut Rows<'t>> = sides.iter_mut().chain([down]).collect();
        if !all.iter().zip(&own).all(|(all, own)| all.alike(own)) {
            return Ok(false);
        }
        all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
        Ok(true)
    }

    /// All experts' matrices, each of one format and in one binding; the rows of gate and up of an expert one behind the other.
    fn experts(&self, index: usize, spec: Experts) -> Result<NetworkParts> {
        let name = |suffix: &str| layer_name(index, suffix);
        let curve = Curve::of(spec.activation).ok_or_else(|| Error::unsupported("this activation"))?;
        let gated = spec.activation.gated();
        let kernel = if gated { Kernel::Gate(curve) } else { Kernel::Curve(curve) };
        let fused = self.gguf.info(&name("ffn_gate_up_exps.weight")).is_some();
        let mut sides = match (fused, gated) {
            (true, _) => vec![self.rows(&name("ffn_gate_up_exps"))?],
            (false, true) => vec![self.rows(&name("ffn_gate_exps"))?, self.rows(&name("ffn_up_exps"))?],
            (false, false) => vec![self.rows(&name("ffn_up_exps"))?],
        };
        let mut down = self.rows(&name("ffn_down_exps"))?;
        let may_join = spec.shared == Some(spec.width) && spec.latent.is_none() && !fused;
        let one_more = may_join && self.joins(index, &mut sides, &mut down)?;
        let count = spec.count + usize::from(one_more);
        let gate_up = self.stack("gates of all experts", sides, count, Places::Visits)?;
        let down = self.stack("all experts", vec![down], count, Places::Experts)?;
        let shared = spec.shared.filter(|_| !one_more).map(|width| {
            let sides = ["ffn_gate_shexp", "ffn_up_shexp"].map(name);
            let sides: Vec<&str> = sides[usize::from(!gated)..].iter().map(String::as_str).collect();
            let gate_up = self.matrices(&sides)?;
            Ok::<_, Error>(SharedParts { gate_up, width, down: self.matrices(&[&name("ffn_down_shexp")])? })
        });
        let gate = name("ffn_gate_inp_shexp");
        let mut router = vec![name("ffn_gate_inp")];
        router.extend(self.gguf.info(&format!("{gate}.weight")).map(|_| gate));
        let router: Vec<&str> = router.iter().map(String::as_str).collect();
        let selection = self.vector(&name("exp_probs_b.bias")).map(|added| (Aside::Added, added));
        let of_choice = self.blueprint.layers[index].has(CHOICE_FACTORS);
        let factors = of_choice.then(|| self.vector(&name(CHOICE_FACTORS))).flatten();
        let factors = factors.map(|factors| (Aside::Factors, factors));
        let aside =
            selection.or(factors).map(|(what, values)| (what, self.gpu.upload_floats("aside", &values)));
        let norms = self.vector(&name("ffn_gate_inp.scale")).map(|scale| {
            let root = 1.0 / (self.blueprint.hidden as f32).sqrt();
            let weights: Vec<f32> = scale.into_iter().map(|scale| scale * root).collect();
            let weights = self.gpu.upload_floats("norm", &weights);
            Ok::<_, Error>([NormPart { weights, has_bias: false }, self.norm(&name("pre_ffw_norm_2"))?])
        });
        let latent = spec.latent.map(|width| {
            let side = |suffix: &str| self.matrices(&[&name(suffix)]);
            Ok::<_, Error>(([side("ffn_latent_down")?, side("ffn_latent_up")?], width))
        });
        Ok(NetworkParts {
            gate_up: vec![gate_up],
            width: spec.width,
            curve: kernel,
            down: vec![down],
            experts: Some(ExpertParts {
                router: self.matrices(&router)?,
                norms: norms.transpose()?,
                aside,
                latent: latent.transpose()?,
                spec,
                shared: shared.transpose()?,
                one_more,
            }),
            beside: None,
        })
    }
}

/// Bytes that the matrices of the layers `layers`, each with what a session of `context` positions remembers there, take on a
/// device; the last number is for the head.
pub(in crate::executor) fn needed_bytes(
    gguf: &Gguf,
    blueprint: &Blueprint,
    layers: LayerRange,
    context: usize,
) -> (Vec<u64>, u64) {
    let of = |belongs: &dyn Fn(&str) -> bool| -> u64 {
        let matrices = gguf.tensors().iter().filter(|info| belongs(&info.name) && info.dims.len() > 1);
        matrices
            .map(|info| {
                let rows = info.dims[1..].iter().product::<u64>().max(1) as usize;
                let bytes = info.len as usize / rows;
                let format = quant::by_type(info.ggml_type);
                let row_words = format.map_or(bytes, |format| row_bytes(format, bytes)).div_ceil(4) + 1;
                (rows.next_multiple_of(TILE) * row_words * 4) as u64
            })
            .sum()
    };
    let head = if blueprint.head.tied { "token_embd.weight" } else { "output.weight" };
    let layer = |index: u32| {
        let prefix = format!("blk.{index}.");
        let pages = PageKind::of(blueprint.state_kind(index as usize));
        let state: u64 = pages.into_iter().map(|page| page.growth_bytes(context)).sum();
        of(&|name| name.starts_with(&prefix)) + state
    };
    ((layers.start()..layers.end()).map(layer).collect(), of(&|name| name == head))
}
