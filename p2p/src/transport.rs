//! What connections run on: TCP with Noise and Yamux, QUIC, circuits through relays, and memory for tests.
//!
//! Built by hand rather than with libp2p's builder for one reason: a private swarm checks its key on every connection,
//! whatever it runs on, before the swarm sees it (see [`crate::gate`]). What comes in waits in [`crate::waiting_room`] until
//! then. There is no plaintext.

use std::io;
use std::path::Path;
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, MemoryTransport, OptionalTransport};
use libp2p::core::upgrade::Version;
use libp2p::core::{ConnectedPoint, Endpoint, Transport};
use libp2p::identity::Keypair;
use libp2p::{PeerId, dns, noise, quic, relay, tcp, yamux};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::gate::{self, Side};
use crate::governor::Governor;
use crate::own_port::OwnPort;
use crate::waiting_room::WaitingRoom;

/// A handshake that takes longer is given up: ten round trips of a bad satellite link. One that comes in has less time, see
/// [`crate::waiting_room`].
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The same over QUIC, where nothing says that no host or process is there: a peer that is asked to dial an address has to say in
/// ten seconds whether it could (AutoNAT).
const QUIC_HANDSHAKE: Duration = Duration::from_secs(5);
/// Silence after which a QUIC peer is dead where nothing runs over the connection, ms; where something does, pings say so
/// within seconds ([`crate::pulse`]).
const QUIC_IDLE_MS: u32 = 30_000;
/// How often silence is broken, so that only death is silent, and no router forgets the way: most keep it for 30 s.
const QUIC_KEEP_ALIVE: Duration = Duration::from_secs(12);

/// Bytes of a QUIC stream, and of all streams of a connection, that wait to be read: 40 MB/s at a round trip of 100 ms, and
/// what a peer that is not read makes this node hold.
const QUIC_STREAM_BYTES: u32 = 4 << 20;
const QUIC_CONNECTION_BYTES: u32 = 6 << 20;

/// Every transport of `config` in one, and the relay client that belongs to it.
///
/// # Errors
/// [`Error::Listen`] when the system's resolver configuration cannot be read or keys cannot be made.
pub(crate) fn build(
    config: &Config,
    governor: &Governor,
) -> Result<(Boxed<(PeerId, StreamMuxerBox)>, relay::client::Behaviour)> {
    let key = config.identity.keypair();
    let me = key.public().to_peer_id();
    let failed = |e: &dyn std::error::Error| Error::Listen(e.to_string());
    let noise = |key: &Keypair| noise::Config::new(key).map_err(|e| failed(&e));

    let tcp = || tcp::tokio::Transport::new(tcp::Config::default());
    let tcp = OwnPort::new(tcp(), tcp())
        .upgrade(Version::V1Lazy)
        .authenticate(noise(&key)?)
        .multiplex(yamux::Config::default())
        .timeout(HANDSHAKE)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let mut quic = quic::Config::new(&key);
    quic.handshake_timeout = QUIC_HANDSHAKE;
    quic.max_idle_timeout = QUIC_IDLE_MS;
    quic.keep_alive_interval = QUIC_KEEP_ALIVE;
    (quic.max_stream_data, quic.max_connection_data) = (QUIC_STREAM_BYTES, QUIC_CONNECTION_BYTES);
    let quic = quic::tokio::Transport::new(quic).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let wires = quic.or_transport(tcp).map(|either, _| either.into_inner());
    // Names mean nothing to a node that speaks to its own host only, and need files that a sandbox may not have.
    let names = !config.loopback_only && (cfg!(not(unix)) || Path::new("/etc/resolv.conf").exists());
    let wires = if !names {
        wires.boxed()
    } else {
        let named = dns::tokio::Transport::system(wires).map_err(|e| failed(&e))?;
        named.boxed()
    };

    let (relayed, relay) = relay::client::new(me);
    let relayed = relayed
        .upgrade(Version::V1Lazy)
        .authenticate(noise(&key)?)
        .multiplex(yamux::Config::default())
        .timeout(HANDSHAKE)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let memory = if config.memory {
        let memory = MemoryTransport::default()
            .upgrade(Version::V1Lazy)
            .authenticate(noise(&key)?)
            .multiplex(yamux::Config::default())
            .timeout(HANDSHAKE)
            .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
        OptionalTransport::some(memory)
    } else {
        OptionalTransport::none()
    };
    let all = relayed
        .or_transport(wires)
        .map(|either, _| either.into_inner())
        .or_transport(memory)
        .map(|either, _| either.into_inner());

    let wait = |wires| WaitingRoom::new(wires, governor.clone()).boxed();
    let Some(psk) = config.admission.psk else { return Ok((wait(all.boxed()), relay)) };
    let guarded = all.and_then(move |(peer, muxer), point| async move {
        let passing = gate::pass(psk, me, peer, muxer, side(&point));
        match tokio::time::timeout(HANDSHAKE, passing).await {
            Ok(passed) => passed,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    });
    Ok((wait(guarded.boxed()), relay))
}

/// In hole punching both dial, and one of them plays the listener.
fn side(point: &ConnectedPoint) -> Side {
    match point {
        ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. } => Side::Dialer,
        _ => Side::Listener,
    }
}
