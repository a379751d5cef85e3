//! What goes on where a context is full and the request says so (`context_shift`).
//!
//! The beginning of the prompt stays, up to a quarter of the context: what the model is told stands there. Of what follows, the
//! older half is forgotten, and the newer half is computed again at the positions that it has now. So every family of models
//! sees what it would see of a prompt of exactly these tokens, whatever it keeps of them, and the same bits on every machine.
//! Draws count the tokens that were forgotten, so none is used twice.
//!
//! Limits: answers of this process only; a prompt that does not fit is refused as ever. A shift costs the computation of about
//! half a context, once in about half a context of tokens.

use std::ops::Range;

/// What is forgotten where one token more is known than the `ctx` positions hold; at least one token, and `prompt` of them are
/// the prompt.
pub(super) fn forgotten(prompt: usize, ctx: usize) -> Range<usize> {
    let first = prompt.min(ctx / 4);
    first..first + (ctx - first).div_ceil(2)
}

/// Most tokens of an answer: `asked` for, and where the context is the end (`shifts` is false) as many as have a place behind
/// `prompt` tokens, and one that needs none.
pub(super) fn room(asked: usize, prompt: usize, ctx: usize, shifts: bool) -> usize {
    if shifts { asked } else { asked.min((ctx + 1).saturating_sub(prompt)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_newer_half_stay() {
        assert_eq!(forgotten(10, 100), 10..55);
        assert_eq!(forgotten(90, 100), 25..63, "a long prompt is forgotten behind its first quarter");
        for (prompt, ctx) in [(1, 1), (1, 2), (2, 3), (7, 8), (1, 4096), (4096, 4096)] {
            let gone = forgotten(prompt, ctx);
            assert!(
                !gone.is_empty() && gone.end <= ctx,
                "{prompt} of {ctx}: the newest token stays: {gone:?}"
            );
        }
    }

    #[test]
    fn only_a_shift_leads_beyond_the_context() {
        assert_eq!([room(5, 10, 100, false), room(500, 10, 100, false)], [5, 91]);
        assert_eq!([room(500, 10, 100, true), room(500, 200, 100, false)], [500, 0]);
    }
}
