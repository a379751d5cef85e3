//! Texts whose vectors or scores are wanted, as token ids that fit the context.

use std::sync::{Arc, Weak};

use api::inference::{EmbedRequest, Failure, Prompt, RerankRequest};
use shard::{executor::Pooling, kernels::math, tokenizer::MAX_TEXT_BYTES};

use super::{Ready, encode};
use crate::{
    encode::{
        rank_prompt::{self, RankPrompt},
        shorten,
        text_pair::TextPair,
    },
    model::Model,
    worker::PoolingTask,
};

/// Bytes of a query and all its documents: encoding so much takes seconds.
const MAX_RANKED_BYTES: usize = 4 * MAX_TEXT_BYTES;

/// Makes token ids of a document, with its query.
type Pair<'a> = Box<dyn Fn(&str) -> crate::Result<Vec<u32>> + 'a>;

/// Who waits for texts to be encoded, or does not any more.
pub(super) struct Asker(Weak<()>);

impl Asker {
    /// Of a request that `waits` lives as long as.
    pub(super) fn of(waits: &Arc<()>) -> Self {
        Self(Arc::downgrade(waits))
    }

    /// # Errors
    /// When the answer would not be read.
    fn check(&self) -> Result<(), Failure> {
        match self.0.strong_count() {
            0 => Err(Failure::Internal { why: "the client is gone".into() }),
            _ => Ok(()),
        }
    }
}

impl Ready {
    /// The texts of a request as token ids that fit the context.
    pub(super) fn texts(&self, request: &EmbedRequest, asker: &Asker) -> Result<Vec<Vec<u32>>, Failure> {
        Pooling::of(self.model.gguf.metadata()).map_err(|why| Failure::invalid("model", why.to_string()))?;
        let context = self.model.ctx;
        let text = |(index, input): (usize, &Prompt)| {
            asker.check()?;
            let mut ids = encode(&self.model, input, "input")?;
            if ids.len() > context && !request.truncate {
                let n = ids.len();
                let why = format!("text {index} has {n} tokens, this model takes {context} here; shorten it");
                return Err(Failure::invalid("input", why));
            }
            shorten(&mut ids, context, self.model.tokenizer.closing());
            Ok(ids)
        };
        request.inputs.iter().enumerate().map(text).collect()
    }

    /// The query with each document as token ids that fit the context. Documents may be cut, the query may not: where it leaves them
    /// no room their scores would say nothing.
    pub(super) fn pairs(&self, request: &RerankRequest, asker: &Asker) -> Result<Vec<Vec<u32>>, Failure> {
        let Model { tokenizer, gguf, executor, ctx, .. } = &self.model;
        if executor.blueprint().head.rank.is_none() || !Pooling::ranks(gguf.metadata()) {
            return Err(Failure::invalid("model", PoolingTask::Score.refusal(&self.info.name)));
        }
        check_ranked(request)?;
        let invalid = |field| move |error: crate::Error| Failure::invalid(field, error.to_string());
        let (query, ctx, truncate) = (&*request.query, *ctx, request.truncate);
        let pair: Pair<'_> = match executor.blueprint().encodes() {
            true => {
                let pair = TextPair::of(tokenizer, query, ctx).map_err(invalid("query"))?;
                Box::new(move |document| pair.with(document, truncate))
            }
            // A decoder is asked whether a document answers the query.
            false => {
                let template = gguf.metadata().str(rank_prompt::KEY);
                let prompt = RankPrompt::of(template, tokenizer).map_err(invalid("model"))?;
                let bare = prompt.room(query, ctx).map_err(invalid("query"))?;
                Box::new(move |document| prompt.pair((query, document), (bare, ctx), truncate))
            }
        };
        let one = |(index, document): (usize, &String)| {
            asker.check()?;
            let ids = pair(document);
            ids.map_err(|error| Failure::invalid("documents", format!("of document {index}: {error}")))
        };
        request.documents.iter().enumerate().map(one).collect()
    }
}

/// Whether a query and its documents are no more text than is ranked at once.
///
/// # Errors
/// [`Failure::Invalid`] when they are.
pub(in crate::inference) fn check_ranked(request: &RerankRequest) -> Result<(), Failure> {
    let bytes = request.query.len() + request.documents.iter().map(String::len).sum::<usize>();
    if bytes <= MAX_RANKED_BYTES {
        return Ok(());
    }
    let why = format!("{bytes} bytes of texts, at most {MAX_RANKED_BYTES} at once: send fewer documents");
    Err(Failure::invalid("documents", why))
}

/// A score as a probability.
pub(in crate::inference) fn probability(score: f32) -> f32 {
    math::sigmoid_f32(score)
}
