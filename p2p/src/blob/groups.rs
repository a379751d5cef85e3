//! A set of groups of one file: which are wanted, which are here, which a peer has.
//!
//! One bit per group. A set never names a group beyond the file: what is set from outside is clipped.

use std::ops::Range;

use super::{GROUP_BYTES, group_count, group_len};

/// Some of the groups of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupSet {
    groups: u32,
    words: Vec<u64>,
}

impl GroupSet {
    /// No group of a file that has `groups`.
    pub fn empty(groups: u32) -> Self {
        Self { groups, words: vec![0; (groups as usize).div_ceil(64)] }
    }

    /// Every group of a file that has `groups`.
    pub fn all(groups: u32) -> Self {
        let mut set = Self::empty(groups);
        set.insert_run(0..groups);
        set
    }

    /// The groups that hold any byte of `ranges` of a file of `bytes`; what lies beyond its end is left out.
    pub fn of_bytes(bytes: u64, ranges: &[Range<u64>]) -> Self {
        let mut set = Self::empty(group_count(bytes));
        for range in ranges.iter().filter(|range| range.start < range.end.min(bytes)) {
            let end = range.end.min(bytes);
            set.insert_run((range.start / GROUP_BYTES) as u32..end.div_ceil(GROUP_BYTES) as u32);
        }
        set
    }

    /// How many groups the file has.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Whether `group` is in the set.
    pub fn contains(&self, group: u32) -> bool {
        group < self.groups && self.words[group as usize / 64] >> (group % 64) & 1 == 1
    }

    /// Adds `group`; whether it is new. A group beyond the file is ignored.
    pub fn insert(&mut self, group: u32) -> bool {
        if group >= self.groups || self.contains(group) {
            return false;
        }
        self.words[group as usize / 64] |= 1 << (group % 64);
        true
    }

    /// Takes `group` out.
    pub fn remove(&mut self, group: u32) {
        if group < self.groups {
            self.words[group as usize / 64] &= !(1 << (group % 64));
        }
    }

    /// Adds all groups of `run` that the file has.
    pub fn insert_run(&mut self, run: Range<u32>) {
        for group in run.start..run.end.min(self.groups) {
            self.words[group as usize / 64] |= 1 << (group % 64);
        }
    }

    /// How many groups are in the set.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether no group is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Bytes the groups of this set take in a file of `bytes`.
    pub fn bytes(&self, bytes: u64) -> u64 {
        match self.groups.checked_sub(1).filter(|&last| self.contains(last)) {
            Some(last) => u64::from(self.len() - 1) * GROUP_BYTES + group_len(bytes, last) as u64,
            None => u64::from(self.len()) * GROUP_BYTES,
        }
    }

    /// The groups of this set that are not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        let theirs = other.words.iter().chain(std::iter::repeat(&0));
        let words = self.words.iter().zip(theirs).map(|(mine, theirs)| mine & !theirs).collect();
        Self { groups: self.groups, words }
    }

    /// The groups of either set, of a file as long as this set's.
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        other.runs().for_each(|run| all.insert_run(run));
        all
    }

    /// Whether every group of `wanted` is in this set.
    pub fn covers(&self, wanted: &Self) -> bool {
        wanted.minus(self).is_empty()
    }

    /// The maximal runs of consecutive groups, ascending.
    pub fn runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true)?;
            let end = self.next(start, false).unwrap_or(self.groups);
            at = end;
            Some(start..end)
        })
    }

    /// The first group from `from` on that is in the set, or that is not.
    fn next(&self, from: u32, present: bool) -> Option<u32> {
        let mut at = from;
        while at < self.groups {
            let word = self.words[at as usize / 64] ^ if present { 0 } else { u64::MAX };
            let left = word >> (at % 64);
            if left != 0 {
                let found = at + left.trailing_zeros();
                return (found < self.groups).then_some(found);
            }
            at = at / 64 * 64 + 64;
        }
        None
    }

    /// The bits as bytes: group `i` is bit `i % 8` of byte `i / 8`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate((self.groups as usize).div_ceil(8));
        bytes
    }

    /// The set of [`GroupSet::to_bytes`]; `None` if the length is wrong or a bit beyond the last group is set.
    pub fn from_bytes(groups: u32, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != (groups as usize).div_ceil(8) {
            return None;
        }
        let mut set = Self::empty(groups);
        for (word, bytes) in set.words.iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_le_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
        }
        let beyond =
            !groups.is_multiple_of(64) && set.words.last().is_some_and(|last| last >> (groups % 64) != 0);
        (!beyond).then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(groups: u32, members: &[u32]) -> GroupSet {
        let mut set = GroupSet::empty(groups);
        members.iter().for_each(|&group| {
            set.insert(group);
        });
        set
    }

    #[test]
    fn byte_ranges_become_the_groups_that_hold_them() {
        const G: u64 = GROUP_BYTES;
        let runs =
            |bytes, ranges: &[Range<u64>]| GroupSet::of_bytes(bytes, ranges).runs().collect::<Vec<_>>();
        assert_eq!(runs(10 * G, &[0..1, G - 1..G + 1, 5 * G..5 * G]), [0..2]);
        assert_eq!(runs(10 * G + 1, &[10 * G..u64::MAX, 3 * G..4 * G]), [3..4, 10..11]);
        assert_eq!(GroupSet::of_bytes(10 * G + 1, &[0..1, 10 * G..11 * G]).bytes(10 * G + 1), G + 1);
        let backwards = Range { start: 9, end: 3 };
        assert!(GroupSet::of_bytes(0, &[0..5]).is_empty() && runs(G, &[backwards]).is_empty());
    }

    proptest! {
        #[test]
        fn runs_bytes_and_members_agree(groups in 1u32..300, members in prop::collection::vec(0u32..320, 0..200)) {
            let mine = set(groups, &members);
            let mut expected: Vec<u32> = members.into_iter().filter(|&m| m < groups).collect();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(mine.runs().flatten().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(mine.len() as usize, expected.len());
            prop_assert_eq!(GroupSet::from_bytes(groups, &mine.to_bytes()), Some(mine.clone()));
            let rest = GroupSet::all(groups).minus(&mine);
            prop_assert_eq!(rest.union(&mine), GroupSet::all(groups));
            prop_assert_eq!(rest.len() + mine.len(), groups);
            prop_assert!(GroupSet::all(groups).covers(&mine) && rest.minus(&mine) == rest);
        }
    }

    #[test]
    fn bits_beyond_the_file_and_wrong_lengths_are_refused() {
        assert!(GroupSet::from_bytes(9, &[0, 2]).is_none());
        assert!(GroupSet::from_bytes(9, &[0]).is_none() && GroupSet::from_bytes(9, &[0; 3]).is_none());
        assert!(GroupSet::from_bytes(9, &[0, 1]).is_some_and(|set| set.contains(8)));
    }
}
