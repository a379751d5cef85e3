//! `shoal worker`: not for people; see [`crate::worker`].

#[cfg(unix)]
pub(super) use crate::worker::process::run;

#[cfg(not(unix))]
pub(super) fn run() -> crate::Result<()> {
    Err(crate::Error::usage("workers need a Unix system"))
}
