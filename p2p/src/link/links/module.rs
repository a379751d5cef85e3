//! What carries the datagrams of a node in place of its socket: what has come by it, and that it may go.

use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use super::Shared;
use super::{MAX_SESSIONS, Neighbor};
use crate::link::attached::{Carrier, Whole};
use crate::link_kind::LinkKind;

impl Shared {
    /// The carrier, as long as it serves.
    pub(super) fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn on_message(&self, event: &Whole, sealed: &[u8], heard: &mut Vec<Arc<Neighbor>>) {
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

    /// Every session goes on from the socket: what the carrier had of them is asked for again.
    fn on_carrier_gone(&self, link: LinkKind, error: &io::Error) {
        tracing::warn!(%error, %link, "what carried datagrams has gone, they are sent and received without it");
        *self.carrier.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.all().iter().for_each(|neighbor| neighbor.detach());
    }
}

/// Takes the messages that the carrier has put together, until it goes or the links are dropped. As from the socket, after a message it
/// looks for the next one without sleeping for as long as the node was told to.
pub(super) async fn take(carrier: Arc<dyn Carrier>, shared: Weak<Shared>) {
    let (mut heard, mut more) = (Vec::new(), false);
    let mut awake: Option<Instant> = None;
    loop {
        let ready = if more || awake.is_some() { Ok(()) } else { carrier.ready().await };
        let Some(shared) = shared.upgrade() else { return };
        let taken = ready.and_then(|()| {
            // A neighbor that sends without end must not keep the other tasks of this thread waiting.
            for _ in 0..8 {
                if carrier.take(&mut |event, sealed| shared.on_message(event, sealed, &mut heard))? == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        more = match taken {
            Ok(more) => more,
            Err(error) => return shared.on_carrier_gone(carrier.kind(), &error),
        };
        let now = Instant::now();
        awake = if heard.is_empty() { awake } else { Some(now) }.filter(|since| now - *since < shared.spin);
        drop(shared);
        // Who waits for a frame goes first, and its answer before an acknowledgement.
        tokio::task::yield_now().await;
        heard.drain(..).for_each(|neighbor| neighbor.flush());
    }
}
