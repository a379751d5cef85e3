//! What an encoder that ranks texts reads of a query and a document: their tokens one behind the other, between the marks of its
//! vocabulary.

use shard::tokenizer::{Encode, Tokenizer};

use crate::{Error, Result};

/// A query that documents stand behind.
pub(crate) struct TextPair<'a> {
    tokenizer: &'a Tokenizer,
    query: Vec<u32>,
    /// Ids that a document may have.
    room: usize,
    context: usize,
}

impl<'a> TextPair<'a> {
    /// Of a query, for a model that takes `context` ids.
    ///
    /// # Errors
    /// [`Error::Usage`] when a document has no room beside it: its score would say nothing.
    pub(crate) fn of(tokenizer: &'a Tokenizer, query: &str, context: usize) -> Result<Self> {
        // Of what cannot fit only so much is looked at that it does not.
        let query = tokenizer.encode(tokenizer.beginning(query, context), Encode::PLAIN)?;
        let room = context.saturating_sub(tokenizer.join(&query, &[]).len());
        if room == 0 {
            let n = query.len();
            return Err(Error::usage(format!(
                "the query has {n} tokens and leaves no room for a document: this model takes {context} here"
            )));
        }
        Ok(Self { tokenizer, query, room, context })
    }

    /// The ids of both. A longer document is cut where that may be.
    ///
    /// # Errors
    /// [`Error::Usage`] for a document that does not fit and may not be cut.
    pub(crate) fn with(&self, document: &str, truncate: bool) -> Result<Vec<u32>> {
        let Self { tokenizer, query, room, context } = self;
        let mut document = tokenizer.encode(tokenizer.beginning(document, *context), Encode::PLAIN)?;
        if document.len() > *room && !truncate {
            let n = tokenizer.join(query, &document).len();
            return Err(Error::usage(format!(
                "the document has {n} tokens with the query, this model takes {context} here; shorten it, or send `truncate`"
            )));
        }
        document.truncate(*room);
        Ok(tokenizer.join(query, &document))
    }
}
