//! Admission to a private swarm: a proof of the swarm's key on every connection, before anything else.
//!
//! libp2p's own answer (`pnet`) encrypts TCP below Noise and leaves QUIC open. This one works above whatever
//! authenticated and encrypted the connection, so it covers TCP, QUIC and relayed circuits alike: the dialer opens the
//! connection's first substream and proves the key, the listener checks and proves it back, and only then is the
//! connection handed to the swarm. No protocol, not even identify, is spoken with an outsider.
//!
//! ```text
//!  dialer                                        listener
//!    proof(dialer -> listener, nonce_d) | nonce_d  -->  check
//!    check                                         <--  proof(listener -> dialer, nonce_d | nonce_l) | nonce_l
//! ```
//!
//! A proof is BLAKE3 keyed with the swarm's key over both public keys, the direction and the nonces. The transport has
//! proved the public keys, so a proof is of no use to another node or on any other connection's direction; the
//! listener's covers the dialer's fresh nonce. An outsider learns that something listens, and the proof of one
//! dialer for itself, from which a random 32-byte key cannot be guessed. A passphrase must be stretched first.
//!
//! Costs one round trip per connection. Limits: a member can always let an outsider in by giving the key away; who was
//! told the key cannot be untold. A swarm that wants to exclude a member lists the others (`members.rs`).

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt};

const NONCE: usize = 16;
const PROOF: usize = 32;

/// Who speaks first: the dialer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Dialer,
    Listener,
}

/// Proves the key on a fresh connection and demands the same of the peer.
///
/// # Errors
/// `PermissionDenied` when the peer does not know the key, otherwise what the connection says. The caller bounds the
/// time.
pub(crate) async fn pass(
    key: [u8; 32],
    me: PeerId,
    peer: PeerId,
    mut muxer: StreamMuxerBox,
    side: Side,
) -> io::Result<(PeerId, StreamMuxerBox)> {
    let mut fresh = [0; NONCE];
    getrandom::fill(&mut fresh).map_err(io::Error::other)?;
    let mut stream = poll_fn(|cx| {
        let opened = match side {
            Side::Dialer => muxer.poll_outbound_unpin(cx),
            Side::Listener => muxer.poll_inbound_unpin(cx),
        };
        match opened {
            Poll::Ready(stream) => Poll::Ready(stream.map_err(io::Error::other)),
            Poll::Pending => drive(&mut muxer, cx).map(|never| never.map(|never| match never {})),
        }
    })
    .await?;
    let mut talk = Box::pin(async move {
        match side {
            Side::Dialer => {
                stream.write_all(proof(&key, me, peer, Side::Dialer, &fresh, &[]).as_bytes()).await?;
                stream.write_all(&fresh).await?;
                stream.flush().await?;
                let (theirs, nonce) = read(&mut stream).await?;
                check(theirs, proof(&key, me, peer, Side::Listener, &fresh, &nonce))?;
            }
            Side::Listener => {
                let (theirs, nonce) = read(&mut stream).await?;
                check(theirs, proof(&key, peer, me, Side::Dialer, &nonce, &[]))?;
                stream.write_all(proof(&key, peer, me, Side::Listener, &nonce, &fresh).as_bytes()).await?;
                stream.write_all(&fresh).await?;
                stream.flush().await?;
            }
        }
        // Closing is courtesy; the peer may have dropped its end already.
        let _ = stream.close().await;
        Ok(())
    });
    poll_fn(|cx| match talk.as_mut().poll(cx) {
        Poll::Ready(said) => Poll::Ready(said),
        Poll::Pending => drive(&mut muxer, cx).map(|never| never.map(|never| match never {})),
    })
    .await?;
    drop(talk);
    Ok((peer, muxer))
}

/// Lets the connection move; ready only when it failed. An address change still reaches every behavior: the swarm
/// asks for the address when it takes the connection over.
fn drive(
    muxer: &mut StreamMuxerBox,
    cx: &mut std::task::Context<'_>,
) -> Poll<io::Result<std::convert::Infallible>> {
    loop {
        match muxer.poll_unpin(cx) {
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(e)) => return Poll::Ready(Err(io::Error::other(e))),
            Poll::Pending => return Poll::Pending,
        }
    }
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<([u8; PROOF], [u8; NONCE])> {
    let (mut proof, mut nonce) = ([0; PROOF], [0; NONCE]);
    stream.read_exact(&mut proof).await?;
    stream.read_exact(&mut nonce).await?;
    Ok((proof, nonce))
}

fn proof(
    key: &[u8; 32],
    dialer: PeerId,
    listener: PeerId,
    by: Side,
    first: &[u8],
    second: &[u8],
) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(b"shoal/gate/1");
    hasher.update(&[u8::from(by == Side::Listener)]);
    for name in [dialer, listener] {
        let bytes = name.to_bytes();
        hasher.update(&[bytes.len() as u8]).update(&bytes);
    }
    hasher.update(first).update(second);
    hasher.finalize()
}

/// `blake3::Hash` compares in constant time.
fn check(theirs: [u8; PROOF], ours: blake3::Hash) -> io::Result<()> {
    if ours == theirs {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer does not know the key of this swarm"))
}
