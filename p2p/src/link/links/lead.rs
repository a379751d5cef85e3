//! The dialer's part of a session: it measures the links, and says which one both ends use.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use x25519_dalek::{EphemeralSecret, PublicKey};

use super::words::{ECHO, KEYED, KEYS, PUBLIC_LEN, USE, Unasked, word};
use super::{AGAIN, RECOVER};
use crate::error::HopError;
use crate::link::choice::{ECHO_BYTES, Figures, choose, is_better};
use crate::link::datagram::header::{CHUNK_BYTES, CHUNK_RANGE};
use crate::link::datagram::seal::Secret;
use crate::link::kmod::Module;
use crate::link::neighbor::{Link, Neighbor};
use crate::link::{Reader, Stream, Writer};
use crate::link_kind::LinkKind;

/// Echoes of each size over each link.
const ECHOES: usize = 20;
const ECHO_LIMIT: Duration = Duration::from_secs(1);
const PINGS: usize = 5;
const PING_LIMIT: Duration = Duration::from_millis(300);

/// What the way is tried for where chunks do not pass: what fits packets of 9,000 bytes, of Ethernet, of tunnels over it, and the
/// least of IPv6.
const LADDER: [usize; 5] = [CHUNK_BYTES, 1_344, 1_280, 1_152, *CHUNK_RANGE.start()];
/// How long the end that follows waits with its own measuring, so that the dialer's is over.
const TURN: Duration = Duration::from_millis(500);

/// Says which link both ends use, as long as the session lasts. Where this end may choose whether its kernel module is used there is
/// one, and it is measured too. Returns the longest chunk that the way carries, where it carries none of this session's.
pub(super) async fn lead(
    neighbor: &Neighbor,
    stream: Stream,
    (forced, module): (bool, Weak<Module>),
) -> Result<Option<usize>, HopError> {
    let (mut reader, mut writer) = stream.split();
    let (mut unasked, mut failures) = (Unasked::default(), 0);
    while !neighbor.is_closed() {
        let chunk = neighbor.info().chunk_bytes;
        // What came before says nothing of the way as it is now.
        neighbor.longest_pong();
        let mut open = passes(neighbor, chunk).await;
        if !open && let Some(most) = longest(neighbor, chunk).await {
            if most < chunk {
                return Ok(Some(most));
            }
            open = true;
        }
        if forced && open {
            say(neighbor, LinkKind::Datagram, &mut writer).await?;
        }
        let module = module.upgrade();
        if module.is_some() {
            neighbor.detach();
        }
        let mut times: [[Vec<f64>; 3]; 2] = Default::default();
        // One that is lost altogether is the last.
        let mut lost = false;
        for (at, bytes) in ECHO_BYTES.into_iter().enumerate() {
            let payload = vec![0x5a; bytes];
            let mut back = Vec::new();
            for _ in 0..if open { ECHOES } else { 0 } {
                let started = Instant::now();
                writer.send(&word(ECHO, bytes as u32), &payload).await?;
                unasked.answer(&mut reader, ECHO).await?;
                reader.recv_payload(bytes, bytes, &mut back).await?;
                times[0][at].push(started.elapsed().as_secs_f64() * 1e6);
                let took = if lost { None } else { echo(neighbor, &payload).await };
                lost = took.is_none();
                times[1][at].extend(took);
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
        }
        if let (LinkKind::Datagram, Some(module)) = (neighbor.kind(), module) {
            all[2] = with_module(neighbor, &module, datagram_figures).await;
            neighbor.measured(all);
        }
        // A host too busy to answer in time is asked again soon.
        unasked.left |= !open;
        if !wait(neighbor, (&mut reader, &mut writer), &mut unasked, &mut failures).await? {
            break;
        }
    }
    Ok(None)
}

/// Waits until the links are to be measured again: ten minutes, or less after a failure at either end; exchanges keys when it is time.
/// False when the session has ended.
async fn wait(
    neighbor: &Neighbor,
    (reader, writer): (&mut Reader, &mut Writer),
    unasked: &mut Unasked,
    failures: &mut u32,
) -> Result<bool, HopError> {
    let (mut until, mut failed) = (Instant::now() + AGAIN, false);
    loop {
        if std::mem::take(&mut unasked.worn) {
            exchange(neighbor, (reader, writer), unasked).await?;
        }
        if std::mem::take(&mut unasked.left) && !failed {
            (failed, *failures) = (true, *failures + 1);
            until = Instant::now() + RECOVER * (1 << (*failures).min(5));
        }
        let mut said = [0];
        tokio::select! {
            // Its end is the session's.
            read = reader.recv_exact(&mut said) => {
                read?;
                unasked.hear(said[0])?;
            }
            () = neighbor.left.notified() => unasked.left = true,
            () = neighbor.worn.notified() => unasked.worn = true,
            () = tokio::time::sleep_until(until.into()) => break,
        }
        if neighbor.is_closed() {
            return Ok(false);
        }
    }
    if !failed {
        *failures = 0;
        exchange(neighbor, (reader, writer), unasked).await?;
    }
    Ok(true)
}

/// Makes the keys of the next epoch with the other end.
async fn exchange(
    neighbor: &Neighbor,
    (reader, writer): (&mut Reader, &mut Writer),
    unasked: &mut Unasked,
) -> Result<(), HopError> {
    let own = EphemeralSecret::random();
    let public = PublicKey::from(&own);
    writer.send(&word(KEYS, 0), public.as_bytes()).await?;
    unasked.answer(reader, KEYS).await?;
    let mut theirs = [0; PUBLIC_LEN];
    reader.recv_exact(&mut theirs).await?;
    let theirs = PublicKey::from(theirs);
    let secret = Secret::agreed(own, &theirs, [&public, &theirs]).ok_or(HopError::Corrupt)?;
    neighbor.renew(&secret);
    neighbor.advance();
    writer.send(&word(KEYED, 0), &[]).await
}

/// Whether datagrams with so many bytes behind the header come back.
async fn passes(neighbor: &Neighbor, bytes: usize) -> bool {
    for _ in 0..PINGS {
        if neighbor.ping(bytes, PING_LIMIT).await {
            return true;
        }
    }
    false
}

/// The longest chunk up to this one that the way carries, though its pings were not answered in time; `None` where it carries no
/// datagrams at all.
async fn longest(neighbor: &Neighbor, chunk: usize) -> Option<usize> {
    if !passes(neighbor, 0).await {
        return None;
    }
    for bytes in LADDER.into_iter().filter(|bytes| *bytes < chunk) {
        if passes(neighbor, bytes).await {
            // An answer of its length may have come late: the host is slow then, and the way is not narrow.
            let late = neighbor.longest_pong() >= chunk || passes(neighbor, chunk).await;
            return Some(if late { chunk } else { bytes });
        }
    }
    None
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

/// How long echoes take over datagrams as they are carried now; nothing when one is lost altogether.
async fn datagrams(neighbor: &Neighbor) -> Option<Figures> {
    let mut times: [Vec<f64>; 3] = Default::default();
    for (times, bytes) in times.iter_mut().zip(ECHO_BYTES) {
        let payload = vec![0x5a; bytes];
        for _ in 0..ECHOES {
            times.push(echo(neighbor, &payload).await?);
        }
    }
    Figures::of(times)
}

/// The end that did not dial finds out by itself whether its kernel module is used.
pub(super) async fn own_module(neighbor: Arc<Neighbor>, module: Weak<Module>) {
    tokio::time::sleep(TURN).await;
    neighbor.detach();
    let socket = datagrams(&neighbor).await;
    if let Some(module) = module.upgrade() {
        let kmod = with_module(&neighbor, &module, socket).await;
        neighbor.measured([neighbor.info().stream, socket, kmod]);
    }
}

/// Measures datagrams with the kernel module of this end, which stays if it is faster than the socket.
async fn with_module(neighbor: &Neighbor, module: &Arc<Module>, socket: Option<Figures>) -> Option<Figures> {
    if !neighbor.attach(module) {
        return None;
    }
    let measured = datagrams(neighbor).await;
    if !measured.zip(socket).is_some_and(|(measured, socket)| is_better(measured, socket)) {
        neighbor.detach();
    }
    measured
}

/// Uses a link from now on, and has the other end use it.
async fn say(neighbor: &Neighbor, kind: LinkKind, writer: &mut Writer) -> Result<(), HopError> {
    neighbor.use_link(kind);
    writer.send(&word(USE, kind as u32), &[]).await
}
