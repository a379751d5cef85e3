//! The part of the end that did not dial a session: it answers what the dialer measures, uses the link that it is told, and says when
//! datagrams do not arrive or too many are lost. Its own kernel module it measures itself: the dialer cannot tell.

use std::pin::pin;
use std::sync::{Arc, Weak};

use scheduler::governor::Resource;
use tokio::task::JoinSet;
use x25519_dalek::{EphemeralSecret, PublicKey};

use super::words::{ECHO, KEYED, KEYS, LEFT, PUBLIC_LEN, USE, WORN};
use super::{lead, refused};
use crate::error::HopError;
use crate::link::attached::Carrier;
use crate::link::choice::ECHO_BYTES;
use crate::link::datagram::seal::Secret;
use crate::link::neighbor::Neighbor;
use crate::link::{Reader, Stream, Writer};
use crate::link_kind::LinkKind;

/// Processor time of an exchange of keys, us.
const EXCHANGE_US: u64 = 200;

/// Does what the dialer of a session says, until it ends. `carrier` is this end's to choose, where there is one.
pub(super) async fn follow(
    neighbor: &Arc<Neighbor>,
    stream: Stream,
    carrier: Option<&Weak<dyn Carrier>>,
) -> Result<(), HopError> {
    let (mut reader, mut writer) = stream.split();
    let mut payload = Vec::new();
    // What is measured here ends with the session.
    let mut trial = JoinSet::new();
    loop {
        let mut said = [0; 5];
        if !hear(neighbor, &mut reader, &mut writer, &mut said).await? {
            return Ok(());
        }
        let [kind, rest @ ..] = said;
        let number = u32::from_le_bytes(rest);
        let spend = |resource, amount| {
            let holder = neighbor.governor().holder(neighbor.peer);
            neighbor.governor().spend(holder, resource, amount).map_err(|e| refused(&e.to_string()))
        };
        match kind {
            ECHO => {
                let longest = ECHO_BYTES[ECHO_BYTES.len() - 1];
                reader.recv_payload(number as usize, longest, &mut payload).await?;
                spend(Resource::Echoes, number.into())?;
                writer.send(&[ECHO], &payload).await?;
            }
            USE => {
                trial.shutdown().await;
                let datagrams = number == LinkKind::Datagram as u32;
                neighbor.use_link(if datagrams { LinkKind::Datagram } else { LinkKind::Stream });
                if let Some(carrier) = carrier.filter(|open| datagrams && open.strong_count() > 0) {
                    trial.spawn(lead::own_carrier(neighbor.clone(), carrier.clone()));
                }
            }
            KEYS => {
                let mut theirs = [0; PUBLIC_LEN];
                reader.recv_exact(&mut theirs).await?;
                spend(Resource::Cpu, EXCHANGE_US)?;
                let own = EphemeralSecret::random();
                let (public, theirs) = (PublicKey::from(&own), PublicKey::from(theirs));
                let secret = Secret::agreed(own, &theirs, [&theirs, &public]).ok_or(HopError::Corrupt)?;
                // What the dialer seals with them comes after this answer.
                neighbor.renew(&secret);
                writer.send(&[KEYS], public.as_bytes()).await?;
            }
            KEYED => neighbor.advance(),
            _ => return Err(HopError::Corrupt),
        }
    }
}

/// Reads a word, and says meanwhile what is to be said unasked. False when the session has ended.
async fn hear(
    neighbor: &Neighbor,
    reader: &mut Reader,
    writer: &mut Writer,
    said: &mut [u8; 5],
) -> Result<bool, HopError> {
    // One read for all turns: a part of a word is not lost.
    let mut reads = pin!(reader.recv_exact(said));
    loop {
        tokio::select! {
            read = &mut reads => return read.map(|()| true),
            () = neighbor.left.notified() => {
                if neighbor.is_closed() {
                    return Ok(false);
                }
                writer.send(&[LEFT], &[]).await?;
            }
            () = neighbor.worn.notified() => writer.send(&[WORN], &[]).await?,
        }
    }
}
