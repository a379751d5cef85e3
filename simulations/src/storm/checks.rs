//! What must never happen, apart from the scenarios that provoke it.
//!
//! Safety is asked at every event; balance and liveness when everything has healed. A violation is a sentence; the
//! first [`MOST`] of a storm are kept.

use std::collections::BTreeMap;

use scheduler::{LayerSet, SessionId};

use super::stage::Stage;

/// Violations kept of one storm; more tell nothing new.
const MOST: usize = 8;

/// Collects violations.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Checks {
    /// In order of appearance.
    pub violations: Vec<String>,
    epochs: BTreeMap<(usize, u64, SessionId, u32), u32>,
}

impl Checks {
    /// Notes a violation unless `holds`.
    pub fn that(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.violations.len() < MOST {
            self.violations.push(what());
        }
    }

    /// Memory is never oversold: what is really kept fits the machine, every session keeps within its lease, and no
    /// more run than there are slots.
    pub fn memory(&mut self, now: u64, at: usize, stage: &mut Stage) {
        let kept: u64 = stage.kept();
        let (kv, slots) = (stage.kv_room(), stage.slots());
        self.that(kept <= kv, || format!("{now} ms: machine {at} keeps {kept} of {kv} layer-positions"));
        let over = stage.over_lease();
        self.that(over.is_none(), || format!("{now} ms: machine {at} keeps more than leased for {over:?}"));
        let running = stage.running();
        self.that(running <= slots as usize, || format!("{now} ms: machine {at} runs {running} of {slots}"));
    }

    /// A machine computes only under an epoch at least as high as any it ever adopted for that session and segment,
    /// only layers it holds, and only at its own KV length.
    pub fn computes(
        &mut self,
        now: u64,
        at: (usize, u64),
        entry: (SessionId, u32, u32),
        holds: bool,
        in_place: bool,
    ) {
        let (session, layer, epoch) = entry;
        let highest = self.epochs.entry((at.0, at.1, session, layer)).or_insert(epoch);
        let fenced = epoch >= *highest;
        *highest = (*highest).max(epoch);
        self.that(fenced, || {
            format!("{now} ms: machine {} computes {session:?} of an old epoch {epoch}", at.0)
        });
        self.that(holds, || format!("{now} ms: machine {} computes layers it does not hold", at.0));
        self.that(in_place, || format!("{now} ms: machine {} computes off its KV length", at.0));
    }

    /// The stream so far is the one a machine that never fails would give: nothing lost, twice, out of order or wrong.
    pub fn stream(&mut self, now: u64, said: &[u32], expected: &[u32]) {
        let same = expected.starts_with(said);
        self.that(same, || format!("{now} ms: {said:?} is not the beginning of {expected:?}"));
    }

    /// Moving must not bare a layer that was held.
    pub fn covered(&mut self, now: u64, before: &LayerSet, after: &LayerSet, layers: u32) {
        let bared = (0..layers).find(|layer| before.contains(*layer) && !after.contains(*layer));
        self.that(bared.is_none(), || format!("{now} ms: a move left layer {bared:?} without a holder"));
    }

    /// When all is over, nothing is kept, runs or waits.
    pub fn balanced(&mut self, now: u64, at: usize, stage: &mut Stage) {
        let left = (stage.running(), stage.waiting(), stage.kept(), stage.reserved());
        self.that(left == (0, 0, 0, 0), || {
            format!("{now} ms: machine {at} has (running, waiting, kept, reserved) {left:?} left")
        });
    }
}
