//! Whom this node knows and when to dial whom: the address book and the redial rules.
//!
//! Connections are lost, addresses change, and an incoming connection tells no address one could dial. So known peers
//! are kept apart from connected ones, and dialing is a state machine of its own:
//!
//! * a peer is dialed under all its addresses at once, under those heard of meanwhile beside it, and never is this node
//!   itself;
//! * after a failure it waits 0.5 s, 1 s, 2 s, ... up to five minutes, spread by a hash so that a restarted relay is not
//!   hit by all nodes at once;
//! * bootstrap peers are dialed for ever, others until [`MAX_FAILURES`];
//! * of two nodes that discover each other at once, the smaller name dials first;
//! * a peer of another swarm is left alone for ten minutes.
//!
//! Known peers survive restarts in a small text file, one `unix-seconds multiaddr` per line, those seen last first, and
//! all of its first [`TARGET`] are dialed at start: a node rejoins within the time of one handshake.
//!
//! Pure: time is an argument. Limits: [`MAX_KNOWN`] peers of [`MAX_ADDRESSES`] addresses; beyond, a peer that was never
//! reached, or longest ago, is forgotten, bootstrap peers never.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

/// Peers remembered; at some 1 KiB each, 4 MiB.
pub(crate) const MAX_KNOWN: usize = 4_096;
/// Addresses remembered per peer: two transports, two IP versions, two networks.
pub(crate) const MAX_ADDRESSES: usize = 8;
/// Peers written to disk.
const MAX_CACHED: usize = 256;
/// Longest cache file read, bytes.
const MAX_CACHE_BYTES: u64 = 1 << 20;
/// Connections a node seeks by itself; more come from others and from work.
pub(crate) const TARGET: usize = 16;
/// Failures after which a peer is not dialed again by itself.
const MAX_FAILURES: u32 = 8;
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(300);
/// A peer that is started again more often is dialed again like any that is lost.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How often a peer is dialed although it is connected: others can ask for it. Not while a connection is being made, and rarely
/// once a doubted connection has answered after all: a busy machine is no broken wire, and more connections do not help it.
const BESIDE: Duration = Duration::from_secs(2);
const BESIDE_IN_VAIN: Duration = Duration::from_secs(30);
/// What the larger name of two waits for the smaller one to dial.
const POLITE: Duration = Duration::from_millis(1_500);
/// How long a peer of another swarm is left alone.
const FOREIGN: Duration = Duration::from_secs(600);

/// How long a peer is not sought after this node parted with it.
const LEFT: Duration = Duration::from_secs(60);

/// Where a peer became known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Source {
    /// Named by the user: dialed for ever, whatever the number of connections.
    Bootstrap,
    /// On the local network.
    Mdns,
    /// Known from an earlier run.
    Cache,
    /// Heard of from others, or connected by itself.
    Found,
}

#[derive(Clone, Debug)]
struct Known {
    addresses: Vec<Multiaddr>,
    source: Source,
    /// Last connected, seconds since 1970; zero: never.
    seen: u64,
    failures: u32,
    due: Instant,
    dialing: bool,
    connected: bool,
    /// Not sought before.
    left_until: Option<Instant>,
    /// When it was last found to have been started again.
    restarted: Option<Instant>,
    /// When it was last dialed beside a connection there was, and whether that answered later.
    beside: Option<(Instant, bool)>,
}

/// The address book.
#[derive(Debug)]
pub(crate) struct Book {
    me: PeerId,
    known: HashMap<PeerId, Known>,
    changed: bool,
}

/// `address` without a trailing `/p2p/` and the peer it names. A circuit keeps its relay's.
pub(crate) fn split_peer(mut address: Multiaddr) -> (Multiaddr, Option<PeerId>) {
    match address.pop() {
        Some(Protocol::P2p(peer)) => (address, Some(peer)),
        Some(other) => (address.with(other), None),
        None => (address, None),
    }
}

impl Book {
    pub fn new(me: PeerId) -> Self {
        Self { me, known: HashMap::new(), changed: false }
    }

    /// Notes that `peer` may be reached under `address` (without `/p2p/`).
    pub fn add(&mut self, peer: PeerId, address: Multiaddr, source: Source, now: Instant) {
        if peer == self.me {
            return;
        }
        if !self.known.contains_key(&peer) && self.known.len() >= MAX_KNOWN && !self.make_room(source) {
            return;
        }
        let polite = source == Source::Mdns && self.me > peer;
        let known = self.known.entry(peer).or_insert_with(|| Known {
            addresses: Vec::new(),
            source,
            seen: 0,
            failures: 0,
            due: if polite { now + POLITE } else { now },
            dialing: false,
            connected: false,
            left_until: None,
            restarted: None,
            beside: None,
        });
        // Seen on the local network again, or named by the user: whatever failed before may work now.
        if source < known.source || source == Source::Mdns {
            known.source = known.source.min(source);
            known.failures = 0;
        }
        if known.addresses.contains(&address) {
            return;
        }
        match known.addresses.len() < MAX_ADDRESSES {
            true => known.addresses.push(address),
            // The last one is the one that has worked least recently.
            false => known.addresses[MAX_ADDRESSES - 1] = address,
        }
        self.changed |= known.seen > 0;
    }

    /// Forgets one peer of lesser worth; whether there was one.
    fn make_room(&mut self, source: Source) -> bool {
        let lesser = |known: &&Known| !known.connected && !known.dialing && known.source > Source::Bootstrap;
        let candidates = self.known.iter().filter(|(_, known)| lesser(known));
        let least = candidates.min_by_key(|(peer, known)| (known.seen, known.failures == 0, **peer));
        let Some((&peer, known)) = least else { return false };
        // Newcomers heard of from strangers do not push out whom this node has met.
        if source == Source::Found && known.seen > 0 {
            return false;
        }
        self.known.remove(&peer);
        true
    }

    /// The addresses of `peer`, the best first.
    pub fn addresses(&self, peer: &PeerId) -> &[Multiaddr] {
        self.known.get(peer).map_or(&[], |known| &known.addresses)
    }

    /// `peer` is connected; `dialed`: the address that worked, if this node dialed it.
    pub fn connected(&mut self, peer: PeerId, dialed: Option<Multiaddr>, unix: u64, now: Instant) {
        if let Some(address) = dialed {
            self.add(peer, address.clone(), Source::Found, now);
            if let Some(known) = self.known.get_mut(&peer) {
                known.addresses.retain(|have| *have != address);
                known.addresses.insert(0, address);
            }
        }
        if let Some(known) = self.known.get_mut(&peer) {
            (known.connected, known.dialing, known.failures, known.seen) = (true, false, 0, unix);
            self.changed = true;
        }
    }

    /// The last connection to `peer` is gone: dial it again soon.
    pub fn disconnected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(known) = self.known.get_mut(peer) {
            known.connected = false;
            known.due = known.left_until.take().unwrap_or(now).max(now + FIRST_RETRY);
        }
    }

    /// `peer` was found to have been started again; whether to dial it at once, which two processes under one key would
    /// else make this node do for ever.
    pub fn started_again(&mut self, peer: &PeerId, now: Instant) -> bool {
        let last = self.known.get_mut(peer).and_then(|known| known.restarted.replace(now));
        last.is_none_or(|last| now.saturating_duration_since(last) > RESTART_PAUSE)
    }

    /// Whether to dial a peer beside a connection there is; if so, that is done now.
    pub fn may_dial_beside(&mut self, peer: &PeerId, now: Instant) -> bool {
        let Some(known) = self.known.get_mut(peer) else { return false };
        let may = known.beside.is_none_or(|(last, in_vain)| {
            now.saturating_duration_since(last) > if in_vain { BESIDE_IN_VAIN } else { BESIDE }
        });
        if may {
            known.beside = Some((now, false));
        }
        may
    }

    /// The connection that a peer was dialed beside carries both ways after all.
    pub fn doubted_in_vain(&mut self, peer: &PeerId) {
        let beside = self.known.get_mut(peer).and_then(|known| known.beside.as_mut());
        beside.into_iter().for_each(|(_, in_vain)| *in_vain = true);
    }

    /// Dialing `peer` failed.
    pub fn failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(known) = self.known.get_mut(peer) else { return };
        known.dialing = false;
        known.failures = known.failures.saturating_add(1);
        known.due = now + backoff(peer, known.failures);
        let hopeless = known.failures >= MAX_FAILURES && known.source > Source::Bootstrap;
        if hopeless && known.seen == 0 && !known.connected {
            self.known.remove(peer);
        }
    }

    /// `peer` has another name than its address said: that address is another node's.
    pub fn wrong_address(&mut self, peer: &PeerId, address: &Multiaddr) {
        if let Some(known) = self.known.get_mut(peer) {
            known.addresses.retain(|have| have != address);
        }
    }

    /// `peer` is in another swarm.
    pub fn foreign(&mut self, peer: &PeerId, now: Instant) {
        if let Some(known) = self.known.get_mut(peer) {
            (known.connected, known.dialing, known.seen) = (false, false, 0);
            known.due = now + FOREIGN;
        }
    }

    /// This node has parted with `peer`: it is not sought for a while, but may come.
    pub fn leave(&mut self, peer: &PeerId, now: Instant) {
        if let Some(known) = self.known.get_mut(peer) {
            known.left_until = Some(now + LEFT);
        }
    }

    /// `peer` is connected at this time: what the cache says of it.
    pub fn met_now(&mut self, peer: &PeerId, unix: u64) {
        if let Some(known) = self.known.get_mut(peer) {
            known.seen = unix;
            self.changed = true;
        }
    }

    /// Whether the user named `peer`.
    pub fn is_bootstrap(&self, peer: &PeerId) -> bool {
        self.known.get(peer).is_some_and(|known| known.source == Source::Bootstrap)
    }

    /// This node has begun to dial `peer`.
    pub fn dialing(&mut self, peer: &PeerId) {
        if let Some(known) = self.known.get_mut(peer) {
            known.dialing = true;
        }
    }

    /// Whom to dial now: bootstrap peers always, others while fewer than [`TARGET`] are connected or being dialed.
    /// Every returned peer counts as being dialed until its dial ends.
    pub fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let busy = self.known.values().filter(|known| known.connected || known.dialing).count();
        let mut room = TARGET.saturating_sub(busy);
        let mut waiting: Vec<(&PeerId, &mut Known)> = self
            .known
            .iter_mut()
            .filter(|(_, known)| {
                let alive = known.source == Source::Bootstrap || known.failures < MAX_FAILURES;
                !known.connected && !known.dialing && alive && known.due <= now && !known.addresses.is_empty()
            })
            .collect();
        waiting.sort_by_key(|(peer, known)| (known.source, std::cmp::Reverse(known.seen), **peer));
        let mut dials = Vec::new();
        for (peer, known) in waiting {
            if known.source > Source::Bootstrap {
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            known.dialing = true;
            dials.push((*peer, known.addresses.clone()));
        }
        dials
    }

    /// The lines of the cache file if they differ from those written last.
    pub fn take_changes(&mut self) -> Option<String> {
        std::mem::take(&mut self.changed).then(|| self.lines())
    }

    fn lines(&self) -> String {
        let mut met: Vec<_> = self.known.iter().filter(|(_, known)| known.seen > 0).collect();
        met.sort_by_key(|(peer, known)| (std::cmp::Reverse(known.seen), **peer));
        let mut lines = String::new();
        for (peer, known) in met.into_iter().take(MAX_CACHED) {
            for address in &known.addresses {
                lines.push_str(&format!("{} {address}/p2p/{peer}\n", known.seen));
            }
        }
        lines
    }

    /// Takes in the lines of a cache file; whatever cannot be read is skipped, it is only a hint.
    pub fn take_lines(&mut self, lines: &str, now: Instant) {
        for line in lines.lines().take(MAX_CACHED * MAX_ADDRESSES) {
            let Some((seen, address)) = line.split_once(' ') else { continue };
            let (Ok(seen), Ok(address)) = (seen.parse(), address.parse()) else { continue };
            if let (address, Some(peer)) = split_peer(address) {
                self.add(peer, address, Source::Cache, now);
                if let Some(known) = self.known.get_mut(&peer) {
                    known.seen = seen;
                }
            }
        }
        self.changed = false;
    }
}

/// 0.5 s doubling to five minutes, plus up to a quarter of it by a hash of peer and attempt.
fn backoff(peer: &PeerId, failures: u32) -> Duration {
    let wait = FIRST_RETRY.saturating_mul(1 << failures.clamp(1, 12).saturating_sub(1)).min(LAST_RETRY);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&peer.to_bytes()).update(&failures.to_le_bytes());
    wait + wait.mul_f64(f64::from(hasher.finalize().as_bytes()[0]) / 1024.0)
}

/// Reads a cache file; no file is an empty one.
///
/// # Errors
/// What the system says, and `InvalidData` for a file that is no text or too long.
pub(crate) fn read_cache(path: &FilePath) -> io::Result<String> {
    let mut lines = String::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MAX_CACHE_BYTES).read_to_string(&mut lines).map(|_| lines),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(lines),
        Err(e) => Err(e),
    }
}

/// Replaces a cache file whole or not at all, readable by its owner only: it tells whom this node met.
///
/// # Errors
/// What the system says; the old file is untouched then.
pub(crate) fn write_cache(path: &FilePath, lines: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let draft = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(&draft)?.write_all(lines.as_bytes())?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<PeerId> {
        let mut names: Vec<PeerId> = (0..count).map(|_| PeerId::random()).collect();
        names.sort();
        names
    }

    fn address(port: usize) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn a_peer_is_dialed_once_with_all_addresses_and_never_oneself() {
        let [me, peer] = names(2)[..] else { unreachable!() };
        let now = Instant::now();
        let mut book = Book::new(me);
        book.add(me, address(1), Source::Bootstrap, now);
        book.add(peer, address(2), Source::Found, now);
        book.add(peer, address(3), Source::Found, now);
        book.add(peer, address(2), Source::Found, now);
        assert_eq!(book.due(now), [(peer, vec![address(2), address(3)])]);
        assert_eq!(book.due(now), []);
        book.connected(peer, Some(address(3)), 7, now);
        assert_eq!(book.due(now + LAST_RETRY), []);
        assert_eq!(book.addresses(&peer), [address(3), address(2)]);
        book.disconnected(&peer, now);
        assert_eq!(book.due(now + FIRST_RETRY).len(), 1);
    }

    #[test]
    fn failures_space_out_and_end_but_not_for_bootstrap_peers() {
        let [me, boot, other] = names(3)[..] else { unreachable!() };
        let mut now = Instant::now();
        let mut book = Book::new(me);
        book.add(boot, address(1), Source::Bootstrap, now);
        book.add(other, address(2), Source::Found, now);
        let mut dials = [0; 2];
        for _ in 0..40 {
            for (peer, _) in book.due(now) {
                dials[usize::from(peer == other)] += 1;
                book.failed(&peer, now);
                assert!(book.due(now).iter().all(|(again, _)| *again != peer), "no dial without a pause");
            }
            now += LAST_RETRY * 2;
        }
        assert_eq!(dials, [40, MAX_FAILURES as usize]);
        let waits: Vec<Duration> = (1..30).map(|failures| backoff(&boot, failures)).collect();
        assert!(waits[0] >= FIRST_RETRY && waits[1] > FIRST_RETRY && waits[28] <= LAST_RETRY.mul_f64(1.25));
    }

    #[test]
    fn the_smaller_of_two_that_meet_dials_first() {
        let [small, large] = names(2)[..] else { unreachable!() };
        let now = Instant::now();
        let (mut a, mut b) = (Book::new(small), Book::new(large));
        a.add(large, address(1), Source::Mdns, now);
        b.add(small, address(2), Source::Mdns, now);
        assert_eq!((a.due(now).len(), b.due(now).len()), (1, 0));
        assert_eq!(b.due(now + POLITE).len(), 1);
    }

    #[test]
    fn a_flood_of_names_neither_grows_the_book_nor_pushes_out_whom_we_met() {
        let names = names(40);
        let now = Instant::now();
        let mut book = Book::new(PeerId::random());
        book.add(names[0], address(1), Source::Bootstrap, now);
        for (i, peer) in names[1..33].iter().enumerate() {
            book.add(*peer, address(i), Source::Found, now);
            book.connected(*peer, None, 5, now);
            book.disconnected(peer, now);
        }
        for i in 0..MAX_KNOWN + 100 {
            book.add(PeerId::random(), address(i), Source::Found, now);
        }
        assert_eq!(book.known.len(), MAX_KNOWN);
        assert!(names[..33].iter().all(|peer| book.known.contains_key(peer)));
        for i in 0..20 {
            book.add(names[1], address(i), Source::Found, now);
        }
        assert_eq!(book.addresses(&names[1]).len(), MAX_ADDRESSES);
        assert!(book.due(now + LAST_RETRY).len() <= TARGET + 1);
    }

    #[test]
    fn the_cache_brings_back_whom_we_met_last_first() {
        let [me, old, new, never] = names(4)[..] else { unreachable!() };
        let now = Instant::now();
        let mut book = Book::new(me);
        for (peer, port, seen) in [(old, 1, 10), (new, 2, 20)] {
            book.add(peer, address(port), Source::Found, now);
            book.connected(peer, None, seen, now);
        }
        book.add(never, address(3), Source::Found, now);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/peers");
        assert_eq!(read_cache(&path).unwrap(), "");
        write_cache(&path, &book.take_changes().unwrap()).unwrap();
        assert_eq!(book.take_changes(), None);
        let mut again = Book::new(me);
        let mut lines = read_cache(&path).unwrap();
        lines.push_str("nonsense\n5 /ip4/1.2.3.4/tcp/1\n-1 /ip4\n");
        again.take_lines(&lines, now);
        assert_eq!(again.due(now), [(new, vec![address(2)]), (old, vec![address(1)])]);
    }
}
