//! The table of what may carry the datagrams of sessions in place of the socket, at this end.
//!
//! Adding one: a module with its [`Carrier`], its [`LinkKind`] and word, and its row here. The links between neighbors enter their
//! sessions into whichever is open, measure it where `auto` leaves the choice, and go on from the socket when it goes.

use std::io;
use std::sync::Arc;

use super::attached::Carrier;
use super::datagram::socket::Socket;
use super::kmod::{self, DEVICE, Module};
use crate::error::Error;
use crate::link_kind::LinkMode;

/// A row of the table.
struct Row {
    /// The word that asks for it and for no other.
    mode: LinkMode,
    /// Has it serve a socket. Called within a runtime.
    open: fn(&Socket) -> io::Result<Arc<dyn Carrier>>,
    /// Why it cannot be opened, and what to do.
    advice: fn(&io::Error) -> String,
}

/// Every carrier; `auto` takes the first one that can be opened.
const CARRIERS: &[Row] =
    &[Row { mode: LinkMode::Kmod, open: |socket| Ok(Arc::new(Module::open(socket)?)), advice }];

/// The carrier that serves `socket` in a mode, if there is one.
///
/// # Errors
/// [`Error::Link`] where the mode asks for one that cannot be opened.
pub(crate) fn open(mode: LinkMode, socket: &Socket) -> Result<Option<Arc<dyn Carrier>>, Error> {
    if mode == LinkMode::Auto {
        return Ok(CARRIERS.iter().find_map(|row| (row.open)(socket).ok()));
    }
    let asked = CARRIERS.iter().find(|row| row.mode == mode);
    let opened = asked.map(|row| (row.open)(socket).map_err(|error| (row.advice)(&error)));
    opened
        .transpose()
        .map_err(|why| Error::Link(format!("--link {mode} cannot work: {why}; or use --link auto")))
}

fn advice(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if kmod::is_loaded() => format!(
            "the kernel module shoal_lan is loaded and {DEVICE} is hidden from this process: a service needs \
             DeviceAllow={DEVICE} in place of PrivateDevices= (the package shoal-lan-dkms brings that for shoal.service)"
        ),
        io::ErrorKind::NotFound => {
            "the kernel module shoal_lan is not loaded (`sudo modprobe shoal_lan`)".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "{DEVICE} is not open to this user (`sudo usermod -aG shoal $USER` and log in again; for a service \
                 SupplementaryGroups=shoal)"
            )
        }
        io::ErrorKind::Unsupported => "this system has no such module".to_owned(),
        io::ErrorKind::OutOfMemory => {
            "the module's area does not fit into what may be locked (`ulimit -l`, LimitMEMLOCK=)".to_owned()
        }
        _ => format!("{DEVICE}: {error}"),
    }
}

/// Whether the user of this process may open the kernel module; otherwise why not and what to do. It is not opened: a node does that.
///
/// # Errors
/// The sentence.
pub fn module_state() -> Result<(), String> {
    kmod::may_be_opened().map_err(|error| advice(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link_kind::LinkKind;

    /// A link that was added has its word and, unless it is the stream or the socket's own, its row.
    #[test]
    fn every_link_can_be_asked_for() {
        for (kind, word, _) in LinkKind::ALL {
            let mode: LinkMode = word.parse().expect("a word");
            let rows = CARRIERS.iter().filter(|row| row.mode == mode).count();
            let own = !matches!(kind, LinkKind::Stream | LinkKind::Datagram);
            assert_eq!((mode.name(), rows), (word, usize::from(own)), "{kind}");
        }
    }
}
