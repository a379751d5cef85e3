//! How two neighbors agree on a session of datagrams: ports, names, the length of a chunk, and keys that only they have.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use scheduler::NodeId;
use scheduler::governor::Resource;
use tokio::sync::watch;
use x25519_dalek::{EphemeralSecret, PublicKey};

use super::words::{HELLO_LEN, Hello};
use super::{AGAIN, AGREE, LONGEST, MAX_SESSIONS, Peer, Place, RECOVER, Shared, lead, refused};
use crate::error::HopError;
use crate::link::Stream;
use crate::link::datagram::header::CHUNK_BYTES;
use crate::link::datagram::seal::{Cipher, Direction, Secret, has_aes};
use crate::link::datagram::session::{Session, Terms};
use crate::link::datagram::socket::{is_near, longest_chunk};
use crate::link::neighbor::Neighbor;
use crate::link_kind::LinkMode;

/// What an agreement leads to.
pub(super) struct Agreed {
    pub(super) neighbor: Arc<Neighbor>,
    pub(super) stream: Stream,
    pub(super) place: Place,
    /// One of both wants datagrams whatever is measured.
    forced: bool,
}

impl Shared {
    /// This end's part; `most` bytes of a chunk reached the neighbor the last time.
    fn hello(&self, (place, ip, most): (&Place, Option<IpAddr>, usize), public: &PublicKey) -> Hello {
        let longest = ip.map_or(CHUNK_BYTES, longest_chunk);
        Hello {
            forced: self.mode.is_forced(),
            aes: has_aes(),
            status: 0,
            port: self.socket.port(),
            chunk_bytes: longest.min(most) as u16,
            session: place.name,
            public: *public.as_bytes(),
        }
    }

    fn may_reach(&self, ip: Option<IpAddr>, forced: bool) -> Option<IpAddr> {
        ip.map(|ip| ip.to_canonical()).filter(|ip| is_near(*ip, forced || self.within_host))
    }

    /// The session that both hellos make.
    fn agree(
        self: &Arc<Self>,
        (stream, ip): (Stream, IpAddr),
        place: Place,
        (secret, own): (EphemeralSecret, &Hello),
        (theirs, direction): (&Hello, Direction),
    ) -> Result<Agreed, HopError> {
        let peer = stream.node();
        let publics = [own, theirs].map(|hello| PublicKey::from(hello.public));
        let in_order = match direction {
            Direction::FromDialer => [&publics[0], &publics[1]],
            Direction::ToDialer => [&publics[1], &publics[0]],
        };
        let secret = Secret::agreed(secret, &publics[1], in_order).filter(|_| theirs.port > 0);
        let secret = secret.ok_or(HopError::Corrupt)?;
        let seat = self.governor.take_for(peer, Resource::Links, 1).map_err(|e| refused(&e.to_string()))?;
        let (here, there) = (place.name, theirs.session);
        let chunk_bytes = own.chunk_bytes.min(theirs.chunk_bytes).into();
        let cipher = Cipher::of([own.aes, theirs.aes]);
        let terms = Terms { peer, here, there, direction, cipher, chunk_bytes };
        let session = Session::new(terms, &secret, self.governor.clone());
        let way = (SocketAddr::new(ip, theirs.port), stream.connection());
        let (socket, governor) = (self.socket.clone(), self.governor.clone());
        let rest = (self.timer.clone(), seat, (self.turn, direction == Direction::FromDialer));
        let neighbor = Arc::new(Neighbor::new(session, peer, way, socket, governor, rest));
        // One that was asked for is not measured first.
        if let Some(carrier) = self.carrier().filter(|_| self.mode != LinkMode::Auto) {
            neighbor.attach(&carrier);
        }
        let mut table = self.table();
        table.places.insert(here % MAX_SESSIONS as u64, (here, Some(neighbor.clone())));
        let before = table.peers.insert(peer, Peer::Linked(neighbor.clone()));
        drop(table);
        if let Some(Peer::Linked(before)) = before {
            before.close();
        }
        let forced = theirs.forced || self.mode.is_forced();
        Ok(Agreed { neighbor, stream, place, forced })
    }

    pub(super) async fn dial<F>(
        self: Arc<Self>,
        (node, most): (NodeId, usize),
        open: F,
        done: watch::Sender<()>,
    ) where
        F: Future<Output = Result<Stream, HopError>> + Send + 'static,
    {
        let asked = async { self.ask(open.await?, most).await };
        let agreed = tokio::time::timeout(AGREE, asked).await.unwrap_or(Err(HopError::Timeout));
        let Agreed { neighbor, stream, place, forced } = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                if self.mode.is_forced() {
                    tracing::warn!(%node, %error, "no datagrams to this neighbor, its stream is used");
                } else {
                    tracing::debug!(%node, %error, "no session of datagrams");
                }
                // A host too busy to agree in time refuses nothing.
                let after = if matches!(error, HopError::Timeout) { RECOVER } else { AGAIN };
                let mut table = self.table();
                // Meanwhile the neighbor may have dialed.
                if let Some(peer @ Peer::Dialing(_)) = table.peers.get_mut(&node) {
                    *peer = Peer::Not { until: Instant::now() + after, most };
                }
                return;
            }
        };
        // A stream that waits takes the session.
        let _ = done.send(());
        let shared = Arc::downgrade(&self);
        let carrier = self.own_choice();
        drop(self);
        // Its end, whichever end made it.
        let narrower = lead::lead(&neighbor, stream, (forced, carrier)).await.ok().flatten();
        if let Some(shared) = shared.upgrade() {
            shared.end(&neighbor, place);
            if let Some(most) = narrower {
                tracing::info!(%node, most, "the way carries shorter datagrams only: a session of these is next");
                let again = Peer::Not { until: Instant::now(), most };
                shared.table().peers.entry(node).or_insert(again);
            }
        }
    }

    async fn ask(self: &Arc<Self>, mut stream: Stream, most: usize) -> Result<Agreed, HopError> {
        let ip = self.may_reach(stream.remote(), self.mode.is_forced());
        let ip = ip.ok_or_else(|| refused("it is in another network"))?;
        let place = self.reserve()?;
        let secret = EphemeralSecret::random();
        let own = self.hello((&place, Some(ip), most), &PublicKey::from(&secret));
        stream.send(&own.write(), &[]).await?;
        let mut bytes = [0; HELLO_LEN];
        stream.recv_exact(&mut bytes).await?;
        let theirs = Hello::read(&bytes).ok_or(HopError::Corrupt)?;
        if theirs.status != 0 {
            return Err(refused("it takes no datagrams now"));
        }
        self.agree((stream, ip), place, (secret, &own), (&theirs, Direction::FromDialer))
    }

    pub(super) async fn answer(self: &Arc<Self>, mut stream: Stream) -> Result<Agreed, HopError> {
        let mut bytes = [0; HELLO_LEN];
        stream.recv_exact(&mut bytes).await?;
        let theirs = Hello::read(&bytes).ok_or(HopError::Corrupt)?;
        let ip = self.may_reach(stream.remote(), theirs.forced || self.mode.is_forced());
        let (dialed, most) = match self.table().peers.get(&stream.node()) {
            Some(Peer::Dialing(_)) => (true, LONGEST),
            // On its way here when this node's was agreed on.
            Some(Peer::Linked(known)) => {
                (known.dialed && known.connection == stream.connection() && !known.is_closed(), LONGEST)
            }
            Some(Peer::Not { most, .. }) => (false, *most),
            None => (false, LONGEST),
        };
        // Of two that dial each other the one with the lower name goes on.
        let crossed = dialed && self.me < stream.node();
        let place = self.reserve()?;
        let secret = EphemeralSecret::random();
        let status = if crossed { 1 } else { u8::from(ip.is_none()) * 2 };
        let hello = Hello { status, ..self.hello((&place, ip, most), &PublicKey::from(&secret)) };
        let (Some(ip), false) = (ip, crossed) else {
            stream.send(&hello.write(), &[]).await?;
            stream.finish().await?;
            return Err(refused("it is in another network, or dialed by this node"));
        };
        // The session takes datagrams before the dialer hears that it may send some.
        let mut agreed = self.agree((stream, ip), place, (secret, &hello), (&theirs, Direction::ToDialer))?;
        agreed.stream.send(&hello.write(), &[]).await?;
        Ok(agreed)
    }
}
