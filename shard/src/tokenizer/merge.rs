//! Joining neighbors, best pair first: the core of byte pair encoding and of SentencePiece's variant of it.
//!
//! A text begins as a row of symbols. Of all neighbors that may be joined the best pair is, the leftmost if several are
//! equally good, until none is left. The row is a doubly linked list and the pairs wait in a heap; a pair is
//! forgotten when it comes up and one of its sides has changed since. Every join removes a symbol and adds at most two pairs, so `n` symbols
//! cost O(n log n) whatever the rules are.

use std::{cmp::Ordering, collections::BinaryHeap};

/// Marks a missing neighbor.
const NONE: u32 = u32::MAX;

/// One symbol of the row.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// What it is: a number the rules understand.
    pub id: u32,
    /// Where its bytes begin in the text; they end where the next symbol's begin.
    pub start: u32,
    /// How many bytes it covers; 0 once it was joined to its left neighbor.
    pub len: u32,
    previous: u32,
    next: u32,
}

/// What neighbors become.
pub trait Rules {
    /// How good the pair is (smaller is better) and the number of what they become, if they may be joined.
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;
}

#[derive(PartialEq, Eq)]
struct Pair {
    rank: u32,
    left: u32,
    right: u32,
    len: u32,
    id: u32,
}

impl Ord for Pair {
    /// The heap gives its greatest: lowest rank, then leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.rank, other.left, other.len).cmp(&(self.rank, self.left, self.len))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The row and the heap, reused from piece to piece.
#[derive(Default)]
pub struct Merger {
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
    /// Pairs looked up since the merger was made: the measure of effort that tests bound.
    pub work: u64,
}

impl Merger {
    /// Begins a new row.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.pairs.clear();
    }

    /// Appends a symbol of `len` bytes.
    pub fn push(&mut self, id: u32, len: u32) {
        let at = self.symbols.len() as u32;
        let (previous, start) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = at;
                (at - 1, last.start + last.len)
            }
            None => (NONE, 0),
        };
        self.symbols.push(Symbol { id, start, len, previous, next: NONE });
    }

    /// Joins until nothing may be joined any more; then [`Merger::symbols`] is the result.
    pub fn run(&mut self, rules: &impl Rules) {
        for right in 1..self.symbols.len() as u32 {
            self.offer(rules, right - 1, right);
        }
        while let Some(pair) = self.pairs.pop() {
            let (left, right) = (self.symbols[pair.left as usize], self.symbols[pair.right as usize]);
            if left.len == 0 || left.next != pair.right || left.len + right.len != pair.len {
                continue;
            }
            self.symbols[pair.right as usize].len = 0;
            let joined = &mut self.symbols[pair.left as usize];
            joined.id = pair.id;
            joined.len = pair.len;
            joined.next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = pair.left;
                self.offer(rules, pair.left, right.next);
            }
            if left.previous != NONE {
                self.offer(rules, left.previous, pair.left);
            }
        }
    }

    /// The row as it stands.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn offer(&mut self, rules: &impl Rules, left: u32, right: u32) {
        self.work += 1;
        let (a, b) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((rank, id)) = rules.join(a, b) {
            self.pairs.push(Pair { rank, left, right, len: a.len + b.len, id });
        }
    }
}
