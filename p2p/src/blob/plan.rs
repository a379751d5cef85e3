//! Who fetches which groups next.
//!
//! Groups wanted and missing lie in free runs, ascending. A source claims the first run that it has, some groups long.
//! When no free run is left, an idle source steals: it takes the second half of what the source with the most work has
//! before it, down to the very group that source waits for. So the slowest source never holds up the end by more than
//! the group it is at. A group is reassigned at most once while a source fetches it; the first delivery counts.
//!
//! ```text
//! A claims 0..8, B claims 8..16. B is done, A is at 3: B takes 6..8, then 5..6, then 4..5, ...
//! ```

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
};

use super::GroupSet;

/// The work that is left and who is at it.
#[derive(Debug)]
pub struct Plan {
    /// Start and end of free runs.
    free: BTreeMap<u32, u32>,
    /// By source: what it claimed and has not delivered. Sources are few, at most tens.
    claims: BTreeMap<usize, Range<u32>>,
    /// Groups that two sources are at.
    doubled: HashSet<u32>,
    missing: GroupSet,
    left: u32,
}

impl Plan {
    /// All groups of `missing` are to be fetched.
    pub fn new(missing: GroupSet) -> Self {
        let free = missing.runs().map(|run| (run.start, run.end)).collect();
        let left = missing.len();
        Self { free, claims: BTreeMap::new(), doubled: HashSet::new(), missing, left }
    }

    /// Groups not delivered yet.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Gives `source`, which has nothing before it, at most `most` consecutive groups of `have` (`None`: it has all).
    /// `None` if there is nothing for it now.
    pub fn claim(&mut self, source: usize, most: u32, have: Option<&GroupSet>) -> Option<Range<u32>> {
        let run = self.take_free(most.max(1), have).or_else(|| self.steal(source, have))?;
        self.claims.insert(source, run.clone());
        Some(run)
    }

    /// A source has delivered `group`, sound. Returns whether it was still missing.
    pub fn deliver(&mut self, group: u32) -> bool {
        self.doubled.remove(&group);
        if !self.missing.contains(group) {
            return false;
        }
        self.missing.remove(group);
        self.left -= 1;
        // Claims begin and end with a missing group: a source whose claim shrank still delivers what it had asked for.
        let missing = &self.missing;
        self.claims.retain(|_, claim| {
            while claim.start < claim.end && !missing.contains(claim.start) {
                claim.start += 1;
            }
            while claim.start < claim.end && !missing.contains(claim.end - 1) {
                claim.end -= 1;
            }
            claim.start < claim.end
        });
        true
    }

    /// `source` is gone: what it had not delivered is free again.
    pub fn release(&mut self, source: usize) {
        let Some(claim) = self.claims.remove(&source) else { return };
        let mut back = GroupSet::empty(self.missing.groups());
        claim.filter(|&group| self.missing.contains(group)).for_each(|group| {
            back.insert(group);
        });
        for run in back.runs() {
            self.doubled.retain(|group| !run.contains(group));
            self.free.insert(run.start, run.end);
        }
    }

    /// Whether any group that is left is in `have`.
    pub fn needs(&self, have: Option<&GroupSet>) -> bool {
        have.map_or(self.left > 0, |have| self.missing.runs().flatten().any(|group| have.contains(group)))
    }

    fn take_free(&mut self, most: u32, have: Option<&GroupSet>) -> Option<Range<u32>> {
        let has = |group| have.is_none_or(|have| have.contains(group));
        let found = self.free.iter().find_map(|(&start, &end)| {
            let first = (start..end).find(|&group| has(group))?;
            let last = (first..end.min(first.saturating_add(most))).take_while(|&group| has(group)).last()?;
            Some((start..end, first..last + 1))
        });
        let (free, run) = found?;
        self.free.remove(&free.start);
        if free.start < run.start {
            self.free.insert(free.start, run.start);
        }
        if run.end < free.end {
            self.free.insert(run.end, free.end);
        }
        Some(run)
    }

    fn steal(&mut self, thief: usize, have: Option<&GroupSet>) -> Option<Range<u32>> {
        let has = |group: &u32| have.is_none_or(|have| have.contains(*group));
        // What remains of a claim for others: the second half that the other source has and that no source fetches now.
        let part = |claim: &Range<u32>| {
            let middle = claim.start + (claim.end - claim.start) / 2;
            let wanted =
                |group: &u32| has(group) && self.missing.contains(*group) && !self.doubled.contains(group);
            let first = (middle..claim.end).rev().take_while(wanted).last()?;
            Some(first..claim.end)
        };
        let (victim, run) = self
            .claims
            .iter()
            .filter(|(source, _)| **source != thief)
            .filter_map(|(source, claim)| Some((*source, part(claim)?)))
            .max_by_key(|(_, run)| run.end - run.start)?;
        let claim = self.claims.get_mut(&victim)?;
        claim.end = run.start;
        if claim.start == claim.end {
            self.doubled.insert(run.start);
            self.claims.remove(&victim);
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_claimed_in_order_and_the_idle_steal_from_the_end() {
        let mut plan = Plan::new(GroupSet::all(16));
        assert_eq!(plan.claim(0, 8, None), Some(0..8));
        assert_eq!(plan.claim(1, 100, None), Some(8..16));
        (8..16).for_each(|group| assert!(plan.deliver(group)));
        (0..3).for_each(|group| assert!(plan.deliver(group)));
        assert_eq!(plan.claim(1, 100, None), Some(5..8));
        (5..8).for_each(|group| assert!(plan.deliver(group)));
        assert_eq!(plan.claim(1, 100, None), Some(4..5));
        assert!(plan.deliver(4));
        assert_eq!(plan.claim(1, 100, None), Some(3..4), "the group the slow source is at");
        assert_eq!(plan.claim(2, 100, None), None, "two are at it already");
        assert!(plan.deliver(3) && !plan.deliver(3));
        assert_eq!(plan.left(), 0);
    }

    #[test]
    fn what_a_lost_source_had_before_it_is_free_again() {
        let mut plan = Plan::new(GroupSet::all(10));
        assert_eq!(plan.claim(0, 6, None), Some(0..6));
        assert!(plan.deliver(0));
        plan.release(0);
        assert_eq!(plan.claim(1, 100, None), Some(1..6));
        assert_eq!(plan.claim(2, 100, None), Some(6..10));
        plan.release(7);
        assert_eq!(plan.left(), 9);
    }

    #[test]
    fn a_source_is_given_only_what_it_has() {
        let mut plan = Plan::new(GroupSet::all(8));
        let mut have = GroupSet::empty(8);
        have.insert_run(2..4);
        have.insert_run(6..7);
        assert_eq!(plan.claim(0, 100, Some(&have)), Some(2..4));
        assert_eq!(plan.claim(1, 100, Some(&have)), Some(6..7));
        assert_eq!(plan.claim(2, 100, None), Some(0..2));
        assert!(plan.needs(Some(&have)));
        assert!([2, 3, 6].into_iter().all(|group| plan.deliver(group)));
        assert!(!plan.needs(Some(&have)) && plan.needs(None));
    }

    proptest! {
        /// Sources of any holdings claim, deliver, repeat themselves and die in any order, as the puller drives them.
        #[test]
        fn every_group_that_a_living_peer_has_is_delivered_once(
            groups in 1u32..60,
            holdings in prop::collection::vec(prop::collection::vec(any::<bool>(), 60), 1..5),
            script in prop::collection::vec((0usize..6, 0u8..10, 1u32..9), 0..200),
        ) {
            let mut have: Vec<GroupSet> = holdings.iter().map(|bits| {
                let mut set = GroupSet::empty(groups);
                (0..groups).filter(|&g| bits[g as usize]).for_each(|g| { set.insert(g); });
                set
            }).collect();
            have.push(GroupSet::all(groups));
            let mut plan = Plan::new(GroupSet::all(groups));
            let mut queues: Vec<Option<Range<u32>>> = vec![Some(0..0); have.len()];
            let mut delivered = GroupSet::empty(groups);
            let last = have.len() - 1;
            let mut step = |who: usize, dies: bool, most: u32, plan: &mut Plan| {
                let Some(queue) = queues[who].as_mut() else { return };
                if dies && who != last {
                    plan.release(who);
                    queues[who] = None;
                } else if queue.start == queue.end {
                    if let Some(run) = plan.claim(who, most, Some(&have[who])) {
                        assert!(run.start < run.end && run.clone().all(|g| have[who].contains(g)));
                        *queue = run;
                    }
                } else {
                    let group = queue.start;
                    queue.start += 1;
                    assert_eq!(plan.deliver(group), delivered.insert(group), "delivered twice or lost");
                }
            };
            for (who, dice, most) in script {
                step(who.min(last), dice == 0, most, &mut plan);
            }
            // The last source has everything and never dies: alone it must come to the end, whatever the others hold.
            for _ in 0..4 * groups + 8 {
                step(last, false, 4, &mut plan);
            }
            let stuck = plan.left();
            for who in 0..last {
                step(who, true, 1, &mut plan);
            }
            for _ in 0..4 * groups + 8 {
                step(last, false, 4, &mut plan);
            }
            prop_assert_eq!(plan.left(), 0, "{} were left while others slept", stuck);
            prop_assert_eq!(delivered.len(), groups);
        }
    }
}
