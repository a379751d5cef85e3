//! Keys and values of a session that forgets what it looks at least (heavy hitters, H2O).
//!
//! An [`Evicting`] is a [`Paged`] whose places are not positions: what is kept lies together, positions ascending, and each
//! key/value head keeps positions of its own, as many as the others ([`H2o::held`]). Beside the pages lie the uses of every
//! place by every head, whole numbers that rows add to ([`crate::kernels::attention::usage`]). Keys were rotated when they were
//! stored, so moving them changes nothing. Places that a rule frees are filled again: memory is bounded by the budget.
//!
//! ```text
//! budget 128, 64 go    rows 0 .. 127   places 0 .. 127
//!                      row 128         the least used 64 go, then place 64
//!                      row 191         place 127
//! ```
//!
//! What goes, goes before the row that has no place: at positions that follow from the rule, however a session was computed.
//! A pass over such a position computes the rows up to it first, layer by layer.
//!
//! Going back has to know the uses of that time: those at the beginning of the last pass are there, and, until the first
//! positions go, those after the last [`KEPT`] whole multiples of [`CHECKPOINT`] positions. No state goes back behind what has gone: it
//! begins again. A pass that fails after positions went leaves nothing either.
//!
//! A snapshot writes the pages as [`Paged`] does, and `held x { kv_heads x use u32 }`.

use std::{mem, ops::Range};

use scheduler::attention::H2o;

use super::{LayerState, Paged};
use crate::{
    Result,
    kernels::{
        Cpu, KvShape,
        attention::usage::{self, UsageJob},
    },
};

/// Positions between the uses that are kept until the first positions go.
pub const CHECKPOINT: usize = 256;
/// How many of them are kept: going back further begins again.
pub const KEPT: usize = 4;

/// Keys and values of one session in one layer, and how much they are used.
pub struct Evicting {
    pages: Paged,
    rule: H2o,
    /// Uses after the positions held, `[places][kv_heads]`.
    now: Vec<u32>,
    /// Those of the pass under way; afterwards those before it.
    next: Vec<u32>,
    /// Positions held.
    len: usize,
    /// Where the last pass began, if `next` holds the uses of then.
    before: Option<usize>,
    /// Checkpoints, ascending.
    kept: Vec<Checkpoint>,
    /// Those of the pass under way.
    made: Vec<Checkpoint>,
    /// The pass under way has let positions go.
    torn: bool,
}

#[derive(Clone)]
struct Checkpoint {
    at: usize,
    uses: Vec<u32>,
}

impl Evicting {
    /// `pages` without a position, of a session that keeps `rule`.
    pub(crate) fn new(pages: Paged, rule: H2o) -> Self {
        let (now, next, kept, made) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { pages, rule, now, next, len: 0, before: None, kept, made, torn: false }
    }

    /// Bytes of `positions` positions, uses included: at most those of the budget.
    pub fn bytes_for(shape: KvShape, rule: H2o, positions: usize) -> usize {
        let places = positions.min(rule.budget as usize);
        let marks = KEPT.min(places / CHECKPOINT);
        let use_bytes = shape.kv_heads * size_of::<u32>();
        Paged::bytes_for(shape, places) + (2 + marks) * places * use_bytes
    }

    /// The heads of the pages.
    pub(crate) fn shape(&self) -> KvShape {
        self.pages.shape()
    }

    /// The pages, for the kernels; which places hold something [`Evicting::place`] says.
    pub(crate) fn pages(&self) -> &Paged {
        &self.pages
    }

    /// As [`Evicting::pages`], to store into.
    pub(crate) fn pages_mut(&mut self) -> &mut Paged {
        &mut self.pages
    }

    /// A pass begins: what an earlier one left that failed is forgotten.
    pub(crate) fn begin(&mut self) {
        self.next.clear();
        self.next.extend_from_slice(&self.now);
        self.made.clear();
        self.before = None;
    }

    /// Makes room for rows of the pass under way, of which `rows` are left: lets positions go if it is their time, and says
    /// which of the rows come first, and the place of the first of them.
    pub(crate) fn make_room(&mut self, rows: Range<usize>) -> (Range<usize>, usize) {
        let heads = self.shape().kv_heads;
        let place = self.next.len() / heads;
        if self.rule.evicts_before(rows.start as u64) && place == self.rule.budget as usize {
            self.evict(place);
        }
        let mut count = self.rule.room(rows.start as u64) as usize;
        if rows.start < self.rule.budget as usize {
            count = count.min(CHECKPOINT - rows.start % CHECKPOINT);
        }
        let here = rows.start..rows.end.min(rows.start + count);
        let place = self.next.len() / heads;
        self.next.resize((place + here.len()) * heads, 0);
        (here, place)
    }

    /// The least used positions go.
    fn evict(&mut self, held: usize) {
        let shape = self.shape();
        let step = self.rule.step() as usize;
        let bounds = (self.rule.sinks as usize, held, self.rule.window as usize);
        for head in 0..shape.kv_heads {
            let gone = usage::least_used(&self.next, (shape.kv_heads, head), bounds, step);
            usage::close_up(self.pages.pages_mut(), shape, head, &gone, held, &mut self.next);
        }
        self.next.truncate((held - step) * shape.kv_heads);
        self.kept.clear();
        self.made.clear();
        self.torn = true;
    }

    /// Counts what the rows of `job`, which looks at these pages, look at; `upto` is the position behind them.
    pub(crate) fn count(&mut self, cpu: &Cpu, job: UsageJob<'_>, upto: usize) {
        usage::add_usage(cpu, &UsageJob { pages: self.pages.pages(), ..job }, &mut self.next);
        if upto.is_multiple_of(CHECKPOINT) && upto <= self.rule.budget as usize {
            self.made.push(Checkpoint { at: upto, uses: self.next.clone() });
        }
    }

    /// The uses after `to` positions, if they are known.
    fn uses(&self, to: usize) -> Option<&[u32]> {
        match () {
            () if self.torn => None,
            () if to == self.len => Some(&self.now),
            () if self.before == Some(to) => Some(&self.next),
            () => self.kept.iter().find(|kept| kept.at == to).map(|kept| &kept.uses[..]),
        }
    }
}

impl LayerState for Evicting {
    fn kind(&self) -> String {
        self.pages.kind()
    }

    fn bytes(&self) -> usize {
        let kept: usize = self.kept.iter().chain(&self.made).map(|kept| kept.uses.len()).sum();
        self.pages.bytes() + (self.now.len() + self.next.len() + kept) * size_of::<u32>()
    }

    fn reserve(&mut self, positions: usize) {
        let places = positions.min(self.rule.budget as usize);
        self.pages.reserve(places);
        let uses = places * self.shape().kv_heads;
        for list in [&mut self.now, &mut self.next] {
            list.reserve(uses.saturating_sub(list.len()));
        }
    }

    fn checkpoint(&self, to: usize) -> usize {
        let kept = self.kept.iter().map(|kept| kept.at);
        let known = kept.chain(self.before).chain([self.len]).filter(|at| *at <= to && !self.torn);
        known.max().unwrap_or(0)
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let mut pages = Paged::new(self.shape(), 0);
        let now = self.uses(to).unwrap_or_default().to_vec();
        self.pages.lend(now.len() / self.shape().kv_heads, &mut pages);
        let mut shared = Self { now, len: to, ..Self::new(pages, self.rule) };
        shared.kept.extend(self.kept.iter().filter(|kept| kept.at <= to).cloned());
        Some(Box::new(shared))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        self.pages.parts(part);
        let uses = self.bytes() - self.pages.bytes();
        if uses > 0 {
            part(std::ptr::from_ref(self).addr(), uses);
        }
    }

    fn rewind(&mut self, to: usize) {
        if to == self.len && !self.torn {
            return;
        }
        let uses = self.uses(to).unwrap_or_default().to_vec();
        self.now.clear();
        self.now.extend(uses);
        self.pages.rewind(self.now.len() / self.shape().kv_heads);
        self.kept.retain(|kept| kept.at <= to);
        self.before = None;
        self.torn = false;
        self.len = to;
    }

    fn advance(&mut self, len: usize) {
        mem::swap(&mut self.now, &mut self.next);
        self.before = (!self.torn).then_some(self.len);
        self.torn = false;
        self.len = len;
        self.kept.append(&mut self.made);
        self.kept.drain(..self.kept.len().saturating_sub(KEPT));
    }

    fn snapshot_len(&self, len: usize) -> usize {
        let held = self.rule.held(len as u64) as usize;
        self.pages.snapshot_len(held) + held * self.shape().kv_heads * size_of::<u32>()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.pages.snapshot(self.rule.held(len as u64) as usize, out)?;
        self.now.iter().for_each(|uses| out.extend(uses.to_le_bytes()));
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        self.rewind(0);
        let held = self.rule.held(len as u64) as usize;
        let (pages, uses) = bytes.split_at(self.pages.snapshot_len(held));
        self.pages.restore(held, pages)?;
        self.now.extend(uses.as_chunks().0.iter().map(|uses| u32::from_le_bytes(*uses)));
        self.len = len;
        Ok(())
    }
}
