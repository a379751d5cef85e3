//! A system without limits that a process sets for itself. Parents wait only so long for what they ask of a child.

/// Nothing: the process that started this one gave it its rank.
pub fn give_way() {}

/// As many files as there is memory for.
pub fn open_files() -> Option<u64> {
    None
}

/// Nothing: there are no cores.
pub(super) fn lower_core() {}

/// Nothing.
pub(super) fn lower_files(_: u64) {}

/// Nothing.
pub(super) fn lower_memory(_: u64) {}

/// Nothing.
pub(super) fn lower_time(_: u64) {}
