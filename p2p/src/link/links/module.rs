//! The kernel module of a node: what has come by it, and that it may go.

use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use super::Shared;
use super::{MAX_SESSIONS, Neighbor};
use crate::error::Error;
use crate::link::kmod::{self, DEVICE, Event, Module};

/// Why the module is not used, and what to do.
pub(super) fn refusal(error: &io::Error) -> Error {
    Error::Link(format!("--link kmod cannot work: {}; or use --link auto", advice(error)))
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

impl Shared {
    /// The module, as long as it serves.
    pub(super) fn module(&self) -> Option<Arc<Module>> {
        self.module.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn on_message(&self, event: &Event, sealed: &[u8], heard: &mut Vec<Arc<Neighbor>>) {
        let found = self.table().places.get(&(event.session % MAX_SESSIONS as u64)).cloned();
        if let Some((known, Some(neighbor))) = found
            && known == event.session
        {
            neighbor.on_message((event.message, event.epoch), sealed);
            if !heard.iter().any(|known| Arc::ptr_eq(known, &neighbor)) {
                heard.push(neighbor);
            }
        }
    }

    /// Every session goes on from the socket: what the module had of them is asked for again.
    fn on_module_gone(&self, error: &io::Error) {
        tracing::warn!(%error, "the kernel module has gone, datagrams are sent and received without it");
        *self.module.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.all().iter().for_each(|neighbor| neighbor.detach());
    }
}

/// Takes the messages that the module has put together, until it goes or the links are dropped. As from the socket, after a message it
/// looks for the next one without sleeping for as long as the node was told to.
pub(super) async fn take(module: Arc<Module>, shared: Weak<Shared>) {
    let (mut heard, mut more) = (Vec::new(), false);
    let mut awake: Option<Instant> = None;
    loop {
        let ready = if more || awake.is_some() { Ok(()) } else { module.ready().await };
        let Some(shared) = shared.upgrade() else { return };
        let taken = ready.and_then(|()| {
            // A neighbor that sends without end must not keep the other tasks of this thread waiting.
            for _ in 0..8 {
                if module.take(|event, sealed| shared.on_message(event, sealed, &mut heard))? == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        more = match taken {
            Ok(more) => more,
            Err(error) => return shared.on_module_gone(&error),
        };
        let now = Instant::now();
        awake = if heard.is_empty() { awake } else { Some(now) }.filter(|since| now - *since < shared.spin);
        drop(shared);
        // Who waits for a frame goes first, and its answer before an acknowledgement.
        tokio::task::yield_now().await;
        heard.drain(..).for_each(|neighbor| neighbor.flush());
    }
}
