//! Lookup: what followed the last time that the text ended so.
//!
//! The end of the text is sought in all that came before it, prompt and earlier turns included; of the places where most
//! tokens agree the latest one counts, and what followed there is the guess. Where that runs into the end of the text it goes
//! on with itself: a text that repeats is guessed for as long as wanted.
//!
//! Limits: at least [`LEAST`] tokens must agree; [`MOST_PLACES`] places are looked at, the latest ones, and [`MOST_AGREE`]
//! tokens compared at each; eight bytes a token of the text are kept, which no longer than the context is.

use std::collections::HashMap;

/// Fewer tokens that agree say too little.
const LEAST: usize = 2;
/// Places that are compared: more cost time in texts that repeat two tokens all over, and the latest are the likeliest.
const MOST_PLACES: usize = 64;
/// More tokens that agree say no more.
const MOST_AGREE: usize = 32;

/// All places of one text by what stands before them.
#[derive(Default)]
pub struct Lookup {
    text: Vec<u32>,
    /// The latest place behind two tokens.
    latest: HashMap<[u32; LEAST], u32>,
    /// By place: the one before it behind the same two tokens, plus one; 0 for none.
    before: Vec<u32>,
}

impl Lookup {
    /// Takes in what is new of `text`, and takes back what is not in it.
    fn read(&mut self, text: &[u32]) {
        let same = self.text.iter().zip(text).take_while(|(a, b)| a == b).count();
        for at in (same..self.text.len()).rev() {
            if let (Some(older), true) = (self.before.pop(), at + 1 >= LEAST) {
                let key = [self.text[at - 1], self.text[at]];
                match older {
                    0 => self.latest.remove(&key),
                    older => self.latest.insert(key, older),
                };
            }
        }
        self.text.truncate(same);
        for at in self.text.len()..text.len() {
            self.text.push(text[at]);
            // The place behind the token at `at`.
            let ends = at + 1 >= LEAST;
            let key = ends.then(|| [text[at + 1 - LEAST], text[at]]);
            let older = key.and_then(|key| self.latest.insert(key, at as u32 + 1));
            self.before.push(older.unwrap_or(0));
        }
    }

    /// How many tokens before `place` agree with the end of the text, [`MOST_AGREE`] at most.
    fn agree(&self, place: usize) -> usize {
        let back = self.text[..place].iter().rev().zip(self.text.iter().rev());
        back.take(MOST_AGREE).take_while(|(there, here)| there == here).count()
    }

    /// At most `k` tokens that may follow `text`, and how many tokens agree where they stand.
    pub fn guess(&mut self, text: &[u32], k: usize) -> (Vec<u32>, usize) {
        self.read(text);
        let mut best = (0, 0);
        let mut place = self.before.last().copied().unwrap_or(0) as usize;
        for _ in 0..MOST_PLACES {
            if place == 0 || best.1 == MOST_AGREE {
                break;
            }
            let agree = self.agree(place);
            if agree > best.1 {
                best = (place, agree);
            }
            place = self.before[place - 1] as usize;
        }
        let (place, agree) = best;
        if agree < LEAST {
            return (Vec::new(), 0);
        }
        let mut guess: Vec<u32> = Vec::with_capacity(k);
        for at in place..place + k {
            let known = self.text.get(at).or_else(|| guess.get(at - self.text.len()));
            let Some(token) = known.copied() else { break };
            guess.push(token);
        }
        (guess, agree)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guess(text: &[u32], k: usize) -> (Vec<u32>, usize) {
        Lookup::default().guess(text, k)
    }

    #[test]
    fn the_longest_end_counts_and_of_equals_the_latest() {
        assert_eq!(guess(&[1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2), (vec![9, 2], 3));
        assert_eq!(guess(&[5, 2, 3, 9, 6, 2, 3, 8, 7, 2, 3], 3), (vec![8, 7, 2], 2));
        assert_eq!(guess(&[1, 2, 3, 4], 5), (vec![], 0));
        assert_eq!(guess(&[], 5), (vec![], 0));
        assert_eq!(guess(&[7], 5), (vec![], 0));
        assert!(guess(&[1, 2, 1, 2], 0).0.is_empty());
    }

    #[test]
    fn what_repeats_is_guessed_on() {
        assert_eq!(guess(&[1, 2, 3, 1, 2, 3, 1, 2], 7).0, [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(guess(&[4, 4, 4], 4).0, [4, 4, 4, 4]);
    }

    proptest! {
        /// Reading a text piece by piece, with steps back, gives what reading it at once gives, and that is what the naive
        /// search finds where it looks at no more places.
        #[test]
        fn it_finds_what_a_naive_search_finds(
            text in prop::collection::vec(0u32..4, 0..60), pieces in prop::collection::vec(0usize..60, 0..6), k in 0usize..9,
            other in prop::collection::vec(0u32..4, 0..6),
        ) {
            let mut lookup = Lookup::default();
            for piece in pieces {
                lookup.guess(&[&text[..piece.min(text.len())], &other].concat(), k);
            }
            let found = lookup.guess(&text, k);
            prop_assert_eq!(&found, &guess(&text, k));
            let agree = |place: usize| {
                (0..place.min(MOST_AGREE)).take_while(|n| text[place - 1 - n] == text[text.len() - 1 - n]).count()
            };
            let best = (1..text.len()).rev().map(agree).max().filter(|most| *most >= LEAST);
            prop_assert_eq!(found.1, best.unwrap_or(0));
            if let Some(best) = best {
                let place = (1..text.len()).rev().find(|place| agree(*place) == best).unwrap();
                let shown = k.min(text.len() - place);
                prop_assert_eq!(&found.0[..shown], &text[place..place + shown]);
                prop_assert_eq!(found.0.len(), k);
            }
        }
    }
}
