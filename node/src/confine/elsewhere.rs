//! Systems whose sandboxes are not used: a confined process keeps what its user may do, within limits.

use super::{Confinement, Purpose};

/// What holds a confined process.
#[cfg(unix)]
pub const WITHOUT_FILTER: &str = "off: on this system only limits of open files and processor time hold; system calls are filtered on Linux";
/// What holds a confined process.
#[cfg(not(unix))]
pub const WITHOUT_FILTER: &str = "off: on this system a process that reads strangers' files may do what its user may; system calls are filtered on Linux";

/// Nothing: a child sees the end of its stream when its parent goes, and ends.
pub(super) fn die_with_parent() {}

/// Bytes of address space in use: not known.
pub(super) fn address_space() -> Option<u64> {
    None
}

/// See [`super::enter`].
pub(super) fn confine(_: Purpose) -> Confinement {
    Confinement::default()
}
