//! The oracle as an [`Executor`]: so that whatever runs on the trait can be compared with it.

use std::sync::Arc;

use scheduler::{CacheType, LayerRange, SessionKind};

use super::{Arithmetic, Model, Rows, Weights, streams};
use crate::{
    Error, Result,
    executor::{
        Buffers, Capacity, Class, Ends, Executor, Gave, Input, Item, Options, Pass, Workspace,
        batch::{Span, check_load, refuse_non_finite, round_at},
        host::{HostBuffers, pass_each},
        not_ranked, read_bytes,
        tags::Tags,
    },
    gguf::Gguf,
    models::Blueprint,
    state::LayerState,
};

/// Some layers of a [`Model`]. The whole model is in memory all the same.
pub struct Reference {
    model: Model,
    range: LayerRange,
    ends: Ends,
    context: usize,
    tags: Tags,
}

impl Reference {
    /// Reads the model in `gguf` to run `layers` and `ends` of it.
    ///
    /// # Errors
    /// Those of [`crate::executor::load`].
    pub fn load(
        gguf: &Arc<Gguf>,
        layers: LayerRange,
        ends: Ends,
        options: Options,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let context = check_load(&Blueprint::from_gguf(gguf)?, layers, ends, options)?;
        let model = Model::load(gguf, context, arithmetic)?;
        let tags = Tags::new(gguf, "reference", &model.blueprint, layers, &model.frequencies);
        Ok(Self { model, range: layers, ends, context, tags })
    }

    fn compute(&self, pass: Pass<'_>, item: &mut Item<'_>, span: Span, gave: Gave) -> Result<Vec<f32>> {
        let hidden = self.model.blueprint.hidden;
        let mut out = Vec::new();
        if let (true, Input::Tokens(tokens)) = (self.model.blueprint.encodes(), item.input) {
            let states = self.model.encode(tokens);
            return Ok(states[states.len() - span.wanted..].concat());
        }
        for row in 0..span.rows {
            let (mut x, token) = match item.input {
                Input::Tokens(tokens) => self.model.embed(tokens[row]),
                Input::Activations(rows) => (rows[row * hidden..(row + 1) * hidden].to_vec(), Vec::new()),
            };
            let mut streams = streams::behind(&self.model, &x);
            for (at, layer) in (pass.layers.start()..pass.layers.end()).enumerate() {
                round_at(pass.rounding, layer, &mut x)?;
                let mut held = |at: usize| {
                    let rows = item.state.layer_mut::<Rows>(at);
                    rows.map(std::mem::take).ok_or_else(|| Error::invalid("the state is of another executor"))
                };
                let source = self.model.blueprint.layers[layer as usize].attention.source();
                let source = source.map(|source| at + source - layer as usize);
                let lent = source.map(&mut held).transpose()?;
                let mut rows = held(at)?;
                if row == 0 {
                    // What a pass that failed has left.
                    rows.rewind(span.start);
                }
                let beside = (&token[..], &mut streams[..]);
                self.model.layer((&mut rows, lent.as_ref()), layer as usize, &mut x, beside);
                for (at, rows) in [(Some(at), Some(rows)), (source, lent)] {
                    if let (Some(at), Some(rows)) = (at, rows)
                        && let Some(place) = item.state.layer_mut::<Rows>(at)
                    {
                        *place = rows;
                    }
                }
            }
            round_at(pass.rounding, pass.layers.end(), &mut x)?;
            if row + span.wanted >= span.rows {
                out.extend(match gave {
                    Gave::Rows => x,
                    Gave::States => self.model.last(x, &streams),
                    Gave::Logits => self.model.head(&self.model.last(x, &streams)),
                });
            }
        }
        Ok(out)
    }
}

impl Executor for Reference {
    fn blueprint(&self) -> &Blueprint {
        &self.model.blueprint
    }

    fn range(&self) -> LayerRange {
        self.range
    }

    fn ends(&self) -> Ends {
        self.ends
    }

    fn context(&self) -> usize {
        self.context
    }

    fn class(&self) -> Class {
        Class::Approx
    }

    fn device(&self) -> String {
        "the reference".into()
    }

    fn resident_bytes(&self) -> usize {
        self.model.tensors.values().map(Weights::resident_bytes).sum()
    }

    fn bytes_per_token(&self, position: usize) -> usize {
        // Keys and values are f32 here, twice what a page keeps.
        self.resident_bytes() + 2 * read_bytes(self.blueprint(), self.range, position)
    }

    fn state_tag(&self, layers: LayerRange) -> u64 {
        self.tags.of(self.range, layers)
    }

    fn rank(&self, state: &[f32]) -> Result<f32> {
        let ranks = self.ends.head && self.model.blueprint.head.rank.is_some();
        if ranks && state.len() == self.model.blueprint.hidden {
            let score = self.model.rank(state);
            refuse_non_finite(&[score], "the scores of texts")?;
            Ok(score)
        } else {
            Err(not_ranked())
        }
    }

    fn new_layer_state(&self, layer: u32, _kind: SessionKind) -> Box<dyn LayerState> {
        Box::new(Rows::of(&self.model.blueprint, layer as usize))
    }

    fn state_bytes(&self, layers: LayerRange, positions: usize, _cache: CacheType) -> usize {
        let row = |layer: u32| Rows::of(&self.model.blueprint, layer as usize).row_bytes();
        (layers.start()..layers.end()).map(row).sum::<usize>() * positions
    }

    fn buffers(&self, capacity: Capacity) -> Result<Box<dyn Buffers>> {
        Ok(Box::new(HostBuffers::new(capacity)))
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        pass_each(self, ws, pass, items, |item, span, gave| self.compute(pass, item, span, gave))
    }
}
