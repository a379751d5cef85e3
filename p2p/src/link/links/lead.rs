//! The dialer's part of a session: it measures the links, and says which one both ends use.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{AGAIN, RECOVER, SAY_ECHO, SAY_USE};
use crate::error::HopError;
use crate::link::choice::{ECHO_BYTES, Figures, LinkKind, choose, is_better};
use crate::link::kmod::Module;
use crate::link::neighbor::{Link, Neighbor};
use crate::link::{Stream, Writer};

/// Echoes of each size over each link.
const ECHOES: usize = 20;
const ECHO_LIMIT: Duration = Duration::from_secs(1);
const PINGS: usize = 5;
const PING_LIMIT: Duration = Duration::from_millis(300);

/// Says which link both ends use, as long as the session lasts. Where the links are compared, this end's kernel module is too.
pub(super) async fn lead(
    neighbor: &Neighbor,
    stream: Stream,
    (forced, module): (bool, Weak<Module>),
) -> Result<(), HopError> {
    let (mut reader, mut writer) = stream.split();
    let mut failures = 0;
    loop {
        if neighbor.is_closed() {
            return Ok(());
        }
        let mut open = false;
        for _ in 0..PINGS {
            open = open || neighbor.ping(PING_LIMIT).await;
        }
        if forced && open {
            say(neighbor, LinkKind::Datagram, &mut writer).await?;
        } else if !forced {
            neighbor.detach();
        }
        let mut times: [[Vec<f64>; 3]; 2] = Default::default();
        for (at, bytes) in ECHO_BYTES.into_iter().enumerate() {
            let payload = vec![0x5a; bytes];
            let mut back = Vec::new();
            for _ in 0..if open { ECHOES } else { 0 } {
                let started = Instant::now();
                let mut word = [SAY_ECHO; 5];
                word[1..].copy_from_slice(&(bytes as u32).to_le_bytes());
                writer.send(&word, &payload).await?;
                reader.recv_payload(bytes, bytes, &mut back).await?;
                times[0][at].push(started.elapsed().as_secs_f64() * 1e6);
                times[1][at].extend(echo(neighbor, &payload).await);
            }
        }
        let [stream_figures, datagram_figures] = times.map(figures);
        let mut all = [stream_figures, datagram_figures, None];
        if neighbor.kind() == LinkKind::Kmod {
            all.swap(1, 2);
        }
        neighbor.measured(all);
        if !forced {
            let kind = choose(neighbor.kind(), stream_figures, datagram_figures);
            say(neighbor, kind, &mut writer).await?;
            if let (LinkKind::Datagram, Some(module)) = (kind, module.upgrade()) {
                all[2] = with_module(neighbor, &module, datagram_figures).await;
                neighbor.measured(all);
            }
        }
        let mut unasked = [0];
        tokio::select! {
            // The other end says nothing unasked: this is its end.
            _ = reader.recv_exact(&mut unasked) => return Err(HopError::Closed),
            () = tokio::time::sleep(AGAIN) => failures = 0,
            () = neighbor.left.notified() => {
                if neighbor.is_closed() {
                    return Ok(());
                }
                failures += 1;
                tokio::select! {
                    _ = reader.recv_exact(&mut unasked) => return Err(HopError::Closed),
                    () = tokio::time::sleep(RECOVER * (1 << failures.min(5))) => {}
                    () = neighbor.ended() => return Ok(()),
                }
            }
        }
    }
}

/// How long an echo takes over datagrams, us; `None` where it does not come back.
async fn echo(neighbor: &Neighbor, payload: &[u8]) -> Option<f64> {
    let started = Instant::now();
    neighbor.echo(payload, ECHO_LIMIT).await.then(|| started.elapsed().as_secs_f64() * 1e6)
}

/// A link that loses an echo altogether has no figures.
fn figures(mut times: [Vec<f64>; 3]) -> Option<Figures> {
    times.iter_mut().filter(|times| times.len() < ECHOES).for_each(Vec::clear);
    Figures::of(times)
}

/// Measures datagrams with the kernel module of this end, which stays if it is faster than the socket.
async fn with_module(neighbor: &Neighbor, module: &Arc<Module>, socket: Option<Figures>) -> Option<Figures> {
    if !neighbor.attach(module) {
        return None;
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for (times, bytes) in times.iter_mut().zip(ECHO_BYTES) {
        let payload = vec![0x5a; bytes];
        for _ in 0..ECHOES {
            times.extend(echo(neighbor, &payload).await);
        }
    }
    let measured = figures(times);
    if !measured.zip(socket).is_some_and(|(measured, socket)| is_better(measured, socket)) {
        neighbor.detach();
    }
    measured
}

/// Uses a link from now on, and has the other end use it.
async fn say(neighbor: &Neighbor, kind: LinkKind, writer: &mut Writer) -> Result<(), HopError> {
    neighbor.use_link(kind);
    let mut word = [SAY_USE; 5];
    word[1..].copy_from_slice(&(kind as u32).to_le_bytes());
    writer.send(&word, &[]).await
}
