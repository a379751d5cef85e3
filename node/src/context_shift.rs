//! What goes on where a context is full and the request says so (`context_shift`).
//!
//! The beginning of the prompt stays, up to a quarter of the context: what the model is told stands there. Of what follows, the
//! older half is forgotten, and the newer half is computed again at the positions that it has now. So every family of models
//! sees what it would see of a prompt of exactly these tokens, whatever it keeps of them, and the same bits on every machine.
//! Draws count the tokens that were forgotten, so none is used twice.
//!
//! An answer of this machine alone goes on in its session ([`forgotten`]). That of a swarm goes on in a session of its own for each
//! stretch, whose prompt is what is known by then ([`Window`]): no stage says two things of one position.
//!
//! Limits: a prompt that does not fit is refused as ever. A shift costs the computation of about half a context, once in about half a
//! context of tokens.

use std::ops::Range;

/// What is forgotten where one token more is known than the `ctx` positions hold; at least one token, and `prompt` of them are
/// the prompt.
pub fn forgotten(prompt: usize, ctx: usize) -> Range<usize> {
    let first = prompt.min(ctx / 4);
    first..first + (ctx - first).div_ceil(2)
}

/// What is known of an answer that goes on: a prompt, and what was said behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The tokens known.
    pub ids: Vec<u32>,
    /// How many of them are the prompt's.
    pub prompt: usize,
    /// Tokens of the answer that were forgotten: those of `ids` follow them.
    pub forgotten: Vec<u32>,
    /// All tokens that were forgotten.
    pub skipped: usize,
}

impl Window {
    /// What is known where `said` was said after `prompt`; with `ctx` positions, where the answer goes on beyond them.
    pub fn of(prompt: &[u32], said: &[u32], ctx: Option<usize>) -> Self {
        let (forgotten, skipped) = Default::default();
        let mut known = Self { ids: prompt.to_vec(), prompt: prompt.len(), forgotten, skipped };
        for id in said {
            known.ids.push(*id);
            if let Some(ctx) = ctx.filter(|ctx| known.ids.len() > *ctx) {
                known.forget(self::forgotten(prompt.len(), ctx));
            }
        }
        known
    }

    fn forget(&mut self, gone: Range<usize>) {
        let of_prompt = gone.start.min(self.prompt)..gone.end.min(self.prompt);
        self.forgotten.extend_from_slice(&self.ids[of_prompt.end.max(gone.start)..gone.end]);
        self.prompt -= of_prompt.len();
        self.skipped += gone.len();
        self.ids.drain(gone);
    }
}

/// What people are told of an answer that went on so many times.
pub fn told(shifts: u32) -> String {
    match shifts {
        0 => String::new(),
        1 => ", went on once where the context was full".to_owned(),
        n => format!(", went on {n} times where the context was full"),
    }
}

/// Most tokens of an answer: `asked` for, and where the context is the end (`shifts` is false) as many as have a place behind
/// `prompt` tokens, and one that needs none.
pub fn room(asked: usize, prompt: usize, ctx: usize, shifts: bool) -> usize {
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
    fn a_window_is_what_is_left_after_every_shift() {
        let said: Vec<u32> = (100..200).collect();
        for prompt in [1, 3, 7, 16] {
            let prompt: Vec<u32> = (0..prompt).collect();
            assert_eq!(Window::of(&prompt, &said, None).ids, [&prompt[..], &said].concat());
            let (mut ids, mut skipped) = (prompt.clone(), 0);
            for (at, id) in said.iter().enumerate() {
                ids.push(*id);
                if ids.len() > 16 {
                    let gone = forgotten(prompt.len(), 16);
                    skipped += gone.len();
                    ids.drain(gone);
                }
                let window = Window::of(&prompt, &said[..=at], Some(16));
                assert_eq!((&window.ids, window.skipped), (&ids, skipped));
                let (of_prompt, answer) = window.ids.split_at(window.prompt);
                assert!(window.prompt >= 1 && of_prompt.iter().all(|id| *id < 100), "{window:?}");
                assert_eq!([&window.forgotten, answer].concat(), said[..=at], "all that was said");
            }
        }
    }

    #[test]
    fn only_a_shift_leads_beyond_the_context() {
        assert_eq!([room(5, 10, 100, false), room(500, 10, 100, false)], [5, 91]);
        assert_eq!([room(500, 10, 100, true), room(500, 200, 100, false)], [500, 0]);
    }
}
