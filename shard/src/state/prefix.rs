//! Finished sessions kept in memory for prompts that begin like them.
//!
//! [`PrefixCache`] keeps them within a number of bytes, so that a prompt that begins like an earlier one (a chat's next
//! turn, a shared system prompt) only computes what is new.
//!
//! Limits: a session of a model with windows begins another one at its end, or up to [`super::behind::REACH`] positions before
//! it. A system prompt is computed again for a conversation that begins when all others behind it are longer.

use std::collections::{HashMap, hash_map::Entry};

use scheduler::SessionKind;

use super::SessionState;

/// Tokens at the end of a kept session that are no loss: what a template closes a turn with.
const CLOSING: usize = 8;
/// Most sessions kept, however little memory they have to themselves: those that begin alike share it.
const MOST: usize = 256;

/// Finished sessions kept for prompts that begin like them, least recently used out first.
pub struct PrefixCache {
    kept: Vec<Kept>,
    /// The pieces of memory of all of them by their names: bytes, and how many sessions have it.
    parts: HashMap<usize, (usize, usize)>,
    /// Bytes of all pieces.
    bytes: usize,
    limit_bytes: usize,
    hits: u64,
    misses: u64,
}

struct Kept {
    tokens: Vec<u32>,
    state: SessionState,
}

impl PrefixCache {
    /// Keeps at most `limit_bytes` of states; 0 keeps nothing.
    pub fn new(limit_bytes: usize) -> Self {
        Self { kept: Vec::new(), parts: HashMap::new(), bytes: 0, limit_bytes, hits: 0, misses: 0 }
    }

    /// A session of the same `kind` with the longest beginning of `tokens` that a kept one has; its `len` says how many tokens
    /// need not be computed again, always fewer than `tokens`, so that the last one still gives logits. What continues the
    /// kept one takes its place. Where it knows more than [`CLOSING`] tokens beyond that beginning (another conversation
    /// behind one system prompt), it stays for its own next turn, and both share memory.
    pub fn take(&mut self, kind: SessionKind, tokens: &[u32]) -> Option<SessionState> {
        let most = tokens.len().saturating_sub(1);
        let alike = |kept: &Kept| {
            let same = kept.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            if kept.state.kind() == kind { same.min(most).min(kept.state.len()) } else { 0 }
        };
        let shared = |kept: &Kept| kept.state.checkpoint(alike(kept));
        let best = (0..self.kept.len()).max_by_key(|&i| (shared(&self.kept[i]), i));
        let Some((index, common)) =
            best.map(|i| (i, shared(&self.kept[i]))).filter(|&(_, common)| common > 0)
        else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let kept = &self.kept[index];
        // What a checkpoint is behind of it is computed again, and no reason to keep it twice.
        let goes_on = kept.state.len() - alike(kept) <= CLOSING;
        if let Some(another) = (!goes_on).then(|| kept.state.share(common)).flatten() {
            let used_last = self.kept.remove(index);
            self.kept.push(used_last);
            return Some(another);
        }
        let mut state = self.remove(index);
        state.rewind(common);
        Some(state)
    }

    /// Keeps a session whose first `state.len()` tokens are `tokens`, in place of those that know a beginning of them only and to
    /// which it can go back, and drops the least recently used beyond the limit.
    pub fn put(&mut self, tokens: Vec<u32>, state: SessionState) {
        if tokens.len() < state.len() || state.is_empty() {
            return;
        }
        let len = |kept: &Kept| kept.state.len();
        let begins = |kept: &Kept| {
            kept.state.kind() == state.kind() && tokens[..state.len()].starts_with(&kept.tokens[..len(kept)])
        };
        // Where the new one has forgotten the beginning, as behind a window, another prompt finds it in the old one only.
        let holds = |to| state.checkpoint(to) > 0 || !state.forgets(state.len(), to);
        let replaced = |kept: &Kept| begins(kept) && holds(len(kept));
        while let Some(index) = self.kept.iter().position(replaced) {
            drop(self.remove(index));
        }
        let (parts, all) = (&mut self.parts, &mut self.bytes);
        state.parts(&mut |name, bytes| {
            let (_, sessions) = parts.entry(name).or_insert((bytes, 0));
            *all += if *sessions == 0 { bytes } else { 0 };
            *sessions += 1;
        });
        self.kept.push(Kept { tokens, state });
        while self.bytes > self.limit_bytes || self.kept.len() > MOST {
            drop(self.remove(0));
        }
    }

    fn remove(&mut self, index: usize) -> SessionState {
        let state = self.kept.remove(index).state;
        let (parts, all) = (&mut self.parts, &mut self.bytes);
        state.parts(&mut |name, _| {
            if let Entry::Occupied(mut part) = parts.entry(name) {
                part.get_mut().1 -= 1;
                if part.get().1 == 0 {
                    *all -= part.remove().0;
                }
            }
        });
        state
    }

    /// Bytes of all states kept; memory that they share counts once.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes it may keep.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// How often [`PrefixCache::take`] found something, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernels::KvShape,
        state::{Back, LayerState, Paged, tests},
    };

    fn cache(len: usize) -> SessionState {
        tests::cache(len, 0)
    }

    #[test]
    fn the_longest_shared_beginning_wins_and_old_sessions_leave() {
        let page = cache(1).bytes();
        let mut prefixes = PrefixCache::new(2 * page);
        assert!(prefixes.take(SessionKind::DEFAULT, &[1, 2, 3]).is_none());
        prefixes.put(vec![1, 2, 3, 4], cache(4));
        prefixes.put(vec![1, 2, 9], cache(3));
        assert_eq!(prefixes.take(SessionKind::DEFAULT, &[1, 2, 3, 4]).map(|kv| kv.len()), Some(3));
        assert_eq!(prefixes.take(SessionKind::DEFAULT, &[1, 2, 3, 4]).map(|kv| kv.len()), Some(2));
        for first in 0..3 {
            prefixes.put(vec![first; 4], cache(4));
        }
        assert!(prefixes.bytes() <= 2 * page);
        assert!(prefixes.take(SessionKind::DEFAULT, &[0, 0]).is_none());
        assert_eq!(prefixes.take(SessionKind::DEFAULT, &[2, 2]).map(|kv| kv.len()), Some(1));
        assert_eq!(prefixes.hits_and_misses(), (3, 2));
    }

    /// A session behind a window of 512: what it has computed is of no matter here.
    fn behind_a_window(len: usize) -> SessionState {
        let paged = || Paged::new(KvShape::new(1, 16), 8_000);
        let layers: [Box<dyn LayerState>; 2] =
            [Box::new(paged()), Box::new(paged().looking(Back::new(Some(512), None)))];
        let mut state = SessionState::new(7, layers.into(), 8_000);
        for _ in 0..len.div_ceil(100) {
            let rows = 100.min(len - state.len());
            state.prepare(rows).unwrap();
            state.advance(rows);
        }
        state
    }

    #[test]
    fn a_session_that_has_forgotten_a_beginning_leaves_it_to_others() {
        let kind = SessionKind::DEFAULT;
        let turn =
            |of: u32, len: u32| (0..len).map(|at| if at < 1_000 { at } else { of + at }).collect::<Vec<_>>();
        let mut prefixes = PrefixCache::new(usize::MAX);
        // The system prompt alone, then two conversations behind it.
        prefixes.put(turn(0, 1_000), behind_a_window(1_000));
        let first = prefixes.take(kind, &turn(10_000, 4_000)).unwrap();
        assert_eq!(first.len(), 1_000);
        prefixes.put(turn(0, 1_000), first);
        prefixes.put(turn(10_000, 4_000), behind_a_window(4_000));
        let second = prefixes.take(kind, &turn(20_000, 4_000)).unwrap();
        assert_eq!(second.len(), 1_000, "the long one begins alike and cannot go back there");
        prefixes.put(turn(20_000, 1_400), behind_a_window(1_400));
        let bytes = prefixes.bytes();
        assert_eq!(prefixes.take(kind, &turn(20_000, 1_500)).unwrap().len(), 1_400);
        assert_eq!(prefixes.take(kind, &turn(10_000, 4_100)).unwrap().len(), 4_000);
        assert!(prefixes.bytes() < bytes);
        assert!(prefixes.take(kind, &turn(30_000, 1_100)).is_none(), "each took what it goes on with");
        // What goes on within reach takes the place of what it began with, and gives its end again.
        prefixes.put(turn(10_000, 4_000), behind_a_window(4_000));
        prefixes.put(turn(10_000, 4_900), behind_a_window(4_900));
        assert_eq!(prefixes.take(kind, &turn(10_000, 4_500)).unwrap().len(), 4_499);
        assert_eq!(prefixes.take(kind, &turn(10_000, 5_000)).unwrap().len(), 4_900);
        assert_eq!(prefixes.bytes(), 0);
    }

    #[test]
    fn two_conversations_behind_one_system_prompt_do_not_take_each_others_turns() {
        let system: Vec<u32> = (0..100).collect();
        let turn = |of: u32, len: usize| {
            let said = std::iter::repeat_n(1000 + of, len - system.len());
            system.iter().copied().chain(said).collect::<Vec<_>>()
        };
        let mut prefixes = PrefixCache::new(usize::MAX);
        prefixes.put(turn(0, 400), cache(400));
        let alone = prefixes.bytes();
        let mut other = prefixes.take(SessionKind::DEFAULT, &turn(1, 150)).unwrap();
        assert_eq!(other.len(), 100);
        assert_eq!(prefixes.bytes(), alone, "the first conversation is still there");
        other.reserve(400).unwrap();
        other.advance(300);
        prefixes.put(turn(1, 400), other);
        assert!(prefixes.bytes() < 2 * alone, "what both share counts once");
        let both = prefixes.bytes();
        for of in [0, 1, 0, 1] {
            let next = prefixes.take(SessionKind::DEFAULT, &turn(of, 420)).unwrap();
            assert_eq!(next.len(), 400, "each goes on where it ended");
            prefixes.put(turn(of, 400), next);
        }
        assert_eq!(prefixes.bytes(), both);
        let all = [0, 1].map(|of| prefixes.take(SessionKind::DEFAULT, &turn(of, 420)));
        assert!(all.iter().all(Option::is_some) && prefixes.bytes() == 0, "nothing is counted that is gone");
    }
}
