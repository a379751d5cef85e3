//! Two sessions and a network between them that loses, delays, doubles, changes and repeats, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use scheduler::NodeId;
use scheduler::governor::{Limits, Resource, Scope};

use super::header::{CHUNK_BYTES, HEADER_LEN};
use super::seal::{Cipher, Direction, SEAL_LEN, Secret};
use super::send::{Place, Sent};
use super::session::{Delivered, MAX_FRAME, News, PLACE_LEN, PLACES, Session, Terms};
use crate::governor::Governor;

/// Permille of the datagrams that something happens to.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u64,
    doubled: u64,
    changed: u64,
    repeated: u64,
    /// Most that a datagram is late, us.
    late_us: u64,
}

const CLEAN: Faults = Faults { lost: 0, doubled: 0, changed: 0, repeated: 0, late_us: 0 };

/// Draws that follow from a seed.
pub(super) struct Draws(pub(super) u64);

impl Draws {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn happens(&mut self, permille: u64) -> bool {
        self.next() % 1_000 < permille
    }
}

pub(super) fn pair() -> ([Session; 2], [Governor; 2]) {
    pair_of(CHUNK_BYTES)
}

fn pair_of(chunk_bytes: usize) -> ([Session; 2], [Governor; 2]) {
    let governors = [Governor::default(), Governor::default()];
    let secret = Secret::new([5; 32]);
    let end = |peer, here, there, direction, governor: &Governor| {
        let peer = NodeId::numbered(peer);
        Session::new(
            Terms { peer, here, there, direction, cipher: Cipher::ChaCha20Poly1305, chunk_bytes },
            &secret,
            governor.clone(),
        )
    };
    let ends = [
        end(2, 64, 129, Direction::FromDialer, &governors[0]),
        end(1, 129, 64, Direction::ToDialer, &governors[1]),
    ];
    (ends, governors)
}

pub(super) fn frame(place: Place, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 ^ u64::from(place.number).wrapping_mul(31) ^ place.lane) as u8).collect()
}

/// What one end has seen.
#[derive(Default)]
struct Seen {
    delivered: BTreeMap<Place, usize>,
    returned: BTreeSet<Place>,
    arrived: BTreeSet<Place>,
    /// Delivered and not read yet.
    unread: Vec<Delivered>,
}

struct World {
    ends: [Session; 2],
    governors: [Governor; 2],
    seen: [Seen; 2],
    draws: Draws,
    faults: Faults,
    now: Duration,
    /// On the wire: when it comes, which end it goes to.
    wire: BTreeMap<(Duration, u64), (usize, Vec<u8>)>,
    posted: u64,
    old: Vec<(usize, Vec<u8>)>,
    /// The longest datagram that the network carries.
    longest: usize,
    pongs: [usize; 2],
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        Self::of(seed, faults, CHUNK_BYTES)
    }

    fn of(seed: u64, faults: Faults, chunk_bytes: usize) -> Self {
        let (ends, governors) = pair_of(chunk_bytes);
        let (longest, pongs) = (usize::MAX, [0; 2]);
        let (seen, draws) = (Default::default(), Draws(seed));
        let (wire, old) = (BTreeMap::new(), Vec::new());
        Self {
            ends,
            governors,
            seen,
            draws,
            faults,
            now: Duration::ZERO,
            wire,
            posted: 0,
            old,
            longest,
            pongs,
        }
    }

    fn post(&mut self, to: usize, mut datagram: Vec<u8>) {
        if self.draws.happens(self.faults.changed) {
            let at = self.draws.next() as usize % datagram.len();
            datagram[at] ^= 1 << (self.draws.next() % 8);
        }
        let late = Duration::from_micros(50 + self.draws.next() % (self.faults.late_us + 1));
        self.posted += 1;
        self.wire.insert((self.now + late, self.posted), (to, datagram));
    }

    /// As a neighbor does: announces what is worth it. Whether the session takes the frame.
    fn send(&mut self, from: usize, place: Place, parts: [&[u8]; 2]) -> bool {
        let (mut train, bytes) = (Vec::new(), parts[0].len() + parts[1].len());
        if let Some(segment) = self.ends[from].announce(self.now, bytes, &mut train) {
            self.post_train(from, &train, segment);
        }
        self.ends[from].send(self.now, place, parts)
    }

    fn transmit(&mut self, from: usize) {
        let mut train = Vec::new();
        while let Some(segment) = self.ends[from].transmit(self.now, &mut train) {
            self.post_train(from, &train, segment);
        }
    }

    fn post_train(&mut self, from: usize, train: &[u8], segment: usize) {
        for datagram in train.chunks(segment) {
            assert!(datagram.len() <= HEADER_LEN + self.ends[from].chunk_bytes());
            if datagram.len() > self.longest {
                continue;
            }
            if self.old.len() < 4_096 {
                self.old.push((1 - from, datagram.to_vec()));
            }
            if self.draws.happens(self.faults.doubled) {
                self.post(1 - from, datagram.to_vec());
            }
            if self.draws.happens(self.faults.repeated) {
                let at = self.draws.next() as usize % self.old.len();
                let (to, again) = self.old[at].clone();
                self.post(to, again);
            }
            if !self.draws.happens(self.faults.lost) {
                self.post(1 - from, datagram.to_vec());
            }
        }
    }

    fn hear(&mut self, at: usize) {
        for news in self.ends[at].take_news() {
            match news {
                News::Delivered(delivered) => {
                    let place = delivered.place;
                    assert_eq!(delivered.frame(), frame(place, delivered.frame().len()), "{place:?}");
                    *self.seen[at].delivered.entry(place).or_default() += 1;
                    self.seen[at].unread.push(delivered);
                }
                News::Arrived(place) => assert!(self.seen[at].arrived.insert(place)),
                News::Returned(place, back) => {
                    assert_eq!(back, frame(place, back.len()));
                    assert!(self.seen[at].returned.insert(place));
                }
                News::Pong(_) => self.pongs[at] += 1,
                News::Asked { .. } => {}
            }
        }
        let held = self.governors[at].used(Resource::Bytes, Scope::Node);
        assert!(held <= 48 << 20, "{held} bytes are held");
        assert!(self.seen[at].unread.len() <= PLACES);
    }

    /// Until the next thing happens; false when nothing will.
    fn step(&mut self) -> bool {
        for end in 0..2 {
            self.transmit(end);
        }
        let due = self.ends.iter().filter_map(Session::due).min();
        let next = self.wire.first_key_value().map(|((when, _), _)| *when);
        let Some(when) = due.into_iter().chain(next).min() else { return false };
        self.now = self.now.max(when);
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, datagram) = entry.remove();
            self.ends[to].on_datagram(self.now, &datagram);
            self.hear(to);
            self.transmit(to);
        }
        for end in 0..2 {
            if self.ends[end].due().is_some_and(|due| due <= self.now) {
                self.ends[end].on_time(self.now);
            }
            self.hear(end);
            // A reader that takes its time, and takes all in the end.
            if self.draws.happens(700) {
                let keep = self.draws.next() as usize % 3;
                let unread = self.seen[end].unread.len().saturating_sub(keep);
                self.seen[end].unread.drain(..unread);
            }
        }
        true
    }
}

/// Sends `count` frames each way; every frame is delivered once at most, and is delivered or given back.
fn exchange(seed: u64, faults: Faults, count: u32, longest: usize) -> World {
    let mut world = World::new(seed, faults);
    let mut next = [0_u32; 2];
    for turn in 0_u64.. {
        assert!(turn < 400_000, "no progress: {:?}", world.ends);
        for (end, next) in next.iter_mut().enumerate() {
            while *next < count {
                let place = Place { lane: 1 + u64::from(*next % 3), number: *next };
                let len = world.draws.next() as usize % longest + 1;
                let whole = frame(place, len);
                let (head, rest) = whole.split_at(len.min(32));
                if !world.send(end, place, [head, rest]) {
                    break;
                }
                *next += 1;
            }
        }
        let quiet = !world.step();
        if quiet && next == [count; 2] {
            break;
        }
        if quiet {
            // Both wait for places that are free by now: time passes.
            world.seen.iter_mut().for_each(|seen| seen.unread.clear());
            world.now += Duration::from_millis(50);
        }
    }
    for end in 0..2 {
        let (there, here) = (&world.seen[1 - end], &world.seen[end]);
        assert!(there.delivered.values().all(|times| *times == 1), "a frame was delivered twice");
        for number in 0..count {
            let place = Place { lane: 1 + u64::from(number % 3), number };
            assert!(
                there.delivered.contains_key(&place) || here.returned.contains(&place),
                "{place:?} is lost"
            );
            assert!(here.arrived.contains(&place) != here.returned.contains(&place));
        }
    }
    world.seen.iter_mut().for_each(|seen| seen.unread.clear());
    world
}

fn returned(world: &World) -> usize {
    world.seen.iter().map(|seen| seen.returned.len()).sum()
}

#[test]
fn a_clean_network_carries_everything_once() {
    let world = exchange(1, CLEAN, 40, 100_000);
    assert_eq!(returned(&world), 0);
    for end in 0..2 {
        let counts = world.ends[end].counts();
        assert_eq!((counts.sent.messages, counts.delivered), (40, 40));
        assert_eq!((counts.sent.again, counts.forged, counts.broken), (0, 0, 0));
        assert_eq!(world.governors[end].used(Resource::Bytes, Scope::Node), 0, "all is given back");
    }
}

/// Five thousand each way, one datagram in twenty lost and most of them late: what a bad wireless network does.
#[test]
fn ten_thousand_frames_over_a_lossy_network() {
    let faults = Faults { lost: 50, late_us: 400, ..CLEAN };
    let world = exchange(2, faults, 5_000, 250);
    assert!(returned(&world) <= 1, "{} frames went back", returned(&world));
    let crowds = |end: &Session| end.counts().sent.crowds_since(&Sent::default());
    assert!(world.ends.iter().all(|end| crowds(end) == Some(false)), "it is not left to the stream");
}

/// Tokens one after the other, each there and back as an activation of 5 KiB, one datagram in twenty lost and most of them late and
/// out of order: each comes in time, so that no stage is taken for dead. The longest wait, and how many were longer than `limit`.
fn tokens(seed: u64, count: u32, limit: Duration) -> (Duration, usize) {
    let mut world = World::new(seed, Faults { lost: 50, doubled: 10, late_us: 2_000, ..CLEAN });
    let (mut longest, mut late) = (Duration::ZERO, 0);
    for number in 0..count {
        let (place, started) = (Place { lane: 1, number }, world.now);
        for end in 0..2 {
            assert!(world.send(end, place, [b"", &frame(place, 5_200)]), "token {number}");
            while !world.seen[1 - end].delivered.contains_key(&place)
                && !world.seen[end].returned.contains(&place)
            {
                assert!(world.step(), "token {number} is lost");
            }
        }
        let took = world.now - started;
        longest = longest.max(took);
        late += usize::from(took > limit);
        world.seen.iter_mut().for_each(|seen| seen.unread.clear());
    }
    assert!(world.seen.iter().all(|seen| seen.delivered.values().all(|times| *times == 1)));
    (longest, late + returned(&world))
}

#[test]
fn tokens_come_in_time_through_losses() {
    let (longest, late) = tokens(8, 1_000, Duration::from_millis(500));
    assert!(late == 0, "{late} of 1,000 tokens were late or went back; the longest took {longest:?}");
}

fn many_tokens(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (longest, late) = tokens(seed, 10_000, Duration::from_millis(500));
        println!("seed {seed}: longest {longest:?}, late or back on the stream {late}");
        assert!(late <= 1, "{late} of 10,000 tokens were late or went back; the longest took {longest:?}");
    }
}

#[test]
fn ten_thousand_tokens_through_losses() {
    many_tokens(0..1);
}

/// The figure of `node/docs/benchmarks.md`: ten seeds of 10,000 tokens.
#[test]
#[ignore = "takes a minute"]
fn a_hundred_thousand_tokens_through_losses() {
    many_tokens(0..10);
}

#[test]
fn a_silent_network_gives_everything_back() {
    let world = exchange(3, Faults { lost: 1_000, ..CLEAN }, 20, 50_000);
    assert_eq!(returned(&world), 40);
}

/// A seal that is broken on the way by one who can tag: never delivered, given back in the end.
#[test]
fn a_broken_seal_is_delivered_by_no_datagram() {
    let ([mut from, mut to], _) = pair();
    let place = Place { lane: 7, number: 0 };
    assert!(from.send(Duration::ZERO, place, [b"head", &[3; 5_000]]));
    let mut now = Duration::ZERO;
    let (mut train, mut back) = (Vec::new(), Vec::new());
    let key = Secret::new([5; 32]).keys(Direction::FromDialer, 0, Cipher::ChaCha20Poly1305).header;
    for _ in 0..10_000 {
        while let Some(segment) = from.transmit(now, &mut train) {
            for datagram in train.chunks(segment) {
                let header = super::header::Header::read(datagram, CHUNK_BYTES).unwrap();
                let mut payload = datagram[HEADER_LEN..].to_vec();
                payload.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                let mut changed = Vec::new();
                header.write(&payload, &key, &mut changed);
                assert!(to.on_datagram(now, &changed));
            }
        }
        while to.transmit(now, &mut train).is_some() {
            assert!(from.on_datagram(now, &train));
        }
        back.extend(from.take_news());
        assert!(to.take_news().is_empty());
        if !back.is_empty() {
            break;
        }
        now += Duration::from_millis(1);
        from.on_time(now);
    }
    assert!(matches!(&back[..], [News::Returned(which, frame)] if *which == place && frame.len() == 5_004));
    assert!(to.counts().broken > 0);
}

/// A neighbor without a key sends what it likes: nothing is held for it, and the honest frames go on.
#[test]
fn datagrams_without_the_key_cost_their_check() {
    let mut world = World::new(4, CLEAN);
    let place = Place { lane: 1, number: 0 };
    assert!(world.ends[0].send(Duration::ZERO, place, [b"", &frame(place, 9_000)]));
    let mut train = Vec::new();
    let segment = world.ends[0].transmit(Duration::ZERO, &mut train).unwrap();
    let forged = |draws: &mut Draws, datagram: &[u8]| {
        let mut forged = datagram.to_vec();
        // Everything but the tag fits, or one bit does not, or another length is claimed.
        let at = 8 + draws.next() as usize % 32;
        forged[at] ^= 1 << (draws.next() % 8);
        forged
    };
    for _ in 0..20_000 {
        let datagram = train.chunks(segment).next().unwrap();
        let forged = forged(&mut world.draws, datagram);
        assert!(!world.ends[1].on_datagram(Duration::ZERO, &forged));
    }
    assert_eq!(world.governors[1].used(Resource::Bytes, Scope::Node), 0);
    assert!(world.ends[1].transmit(Duration::ZERO, &mut Vec::new()).is_none(), "nothing is answered");
    assert_eq!(world.ends[1].counts().forged, 20_000);
    train.chunks(segment).for_each(|datagram| assert!(world.ends[1].on_datagram(Duration::ZERO, datagram)));
    world.hear(1);
    assert_eq!(world.seen[1].delivered.len(), 1);
}

/// One who has the key announces messages and sends a chunk of each: few are held, and not for long.
#[test]
fn a_peer_that_never_ends_its_messages_holds_little() {
    let ([mut from, mut to], governors) = pair();
    let mut train = Vec::new();
    for round in 0..16 {
        let place = Place { lane: 1, number: round };
        from.give_up();
        assert!(from.send(Duration::ZERO, place, [b"", &vec![0; 100_000]]));
        let segment = from.transmit(Duration::ZERO, &mut train).unwrap();
        to.on_datagram(Duration::ZERO, &train[..segment]);
    }
    let held = governors[1].used(Resource::Bytes, Scope::Node);
    assert!(held > 0 && held <= 4 * 100_064, "{held} bytes are held");
    to.on_time(Duration::from_secs(3));
    assert_eq!(governors[1].used(Resource::Bytes, Scope::Node), 0, "what stays without its end is dropped");
}

/// At the governor's limit nothing is taken, and the sender gets its frame back.
#[test]
fn a_full_governor_refuses_a_message() {
    let mut world = World::new(5, CLEAN);
    let limits = Limits::default().set(Resource::Bytes, [4_096, 4_096, 4_096]);
    let secret = Secret::new([5; 32]);
    let (peer, direction) = (NodeId::numbered(1), Direction::ToDialer);
    let terms =
        Terms { peer, here: 129, there: 64, direction, cipher: Cipher::Aes256Gcm, chunk_bytes: CHUNK_BYTES };
    world.ends[1] = Session::new(terms, &secret, Governor::new(limits));
    let place = Place { lane: 1, number: 0 };
    assert!(world.ends[0].send(Duration::ZERO, place, [b"", &frame(place, 9_000)]));
    while world.step() {}
    assert!(world.seen[0].returned.contains(&place) && world.seen[1].delivered.is_empty());
}

/// The keys of every epoch come from an exchange of their own, in the middle of frames each way; those of epochs that are over open
/// nothing, and nothing is lost.
#[test]
fn keys_change_while_frames_are_on_their_way() {
    let mut world = World::new(6, Faults { lost: 100, late_us: 300, ..CLEAN });
    let mut number = 0;
    let mut recorded = None;
    for epoch in 1..6 {
        let secret = Secret::new([epoch; 32]);
        for at in 0..20 {
            // As on the control stream: the one that answers has the keys first, the dialer seals with them at once, and the other one
            // when it hears so.
            match at {
                5 => world.ends[1].renew(&secret),
                6 => {
                    world.ends[0].renew(&secret);
                    world.ends[0].advance();
                }
                12 => world.ends[1].advance(),
                _ => {}
            }
            for end in 0..2 {
                let place = Place { lane: 1, number };
                assert!(world.send(end, place, [b"", &frame(place, 3_000)]));
            }
            number += 1;
            // At the exchanges frames of both epochs are on their way.
            while !(4..7).contains(&at) && world.step() {}
            world.seen.iter_mut().for_each(|seen| seen.unread.clear());
        }
        recorded.get_or_insert_with(|| world.old.last().unwrap().clone());
    }
    while world.step() {}
    for (here, there) in [(0, 1), (1, 0)] {
        let (delivered, returned) = (&world.seen[there].delivered, &world.seen[here].returned);
        assert!(delivered.values().all(|times| *times == 1));
        let carried = |number| Place { lane: 1, number };
        assert!((0..number).all(|n| delivered.contains_key(&carried(n)) || returned.contains(&carried(n))));
        assert!(returned.len() <= 4, "{} frames went back", returned.len());
    }
    let (to, old) = recorded.unwrap();
    let forged = world.ends[to].counts().forged;
    assert!(!world.ends[to].on_datagram(world.now, &old), "an epoch that is over is still taken");
    assert_eq!(world.ends[to].counts().forged, forged + 1);
}

/// What follows a pause and is longer than a datagram is announced, by the acknowledgement of what came where one waits; what is short,
/// follows at once or has a message before it on its way is not.
#[test]
fn a_frame_after_a_pause_is_announced() {
    let (mut world, mut train) = (World::new(10, CLEAN), Vec::new());
    let pause = Duration::from_micros(60);
    world.now = pause;
    let of = |world: &mut World, end: usize, bytes, train: &mut Vec<u8>| {
        world.ends[end].announce(world.now, bytes, train).map(|segment| train.len() / segment)
    };
    let around = PLACE_LEN + SEAL_LEN;
    assert_eq!(of(&mut world, 0, CHUNK_BYTES - around, &mut train), None, "it is one datagram");
    assert_eq!(of(&mut world, 0, MAX_FRAME + 1, &mut train), None, "it takes the stream");
    assert_eq!(of(&mut world, 0, CHUNK_BYTES - around + 1, &mut train), Some(1));
    // Nothing has come yet, and an acknowledgement of nothing changes nothing.
    assert!(world.ends[1].on_datagram(world.now, &train) && world.ends[1].take_news().is_empty());
    let place = |number| Place { lane: 1, number };
    assert!(world.ends[0].send(world.now, place(0), [b"", &frame(place(0), 5_000)]));
    world.now += pause;
    assert_eq!(of(&mut world, 0, 5_000, &mut train), None, "one is on its way");
    // It arrives, and its acknowledgement is what announces the answer.
    while world.seen[1].delivered.is_empty() {
        assert!(world.step());
    }
    assert!(world.seen[0].arrived.is_empty());
    assert_eq!(of(&mut world, 1, 5_000, &mut train), Some(1));
    assert!(world.ends[0].on_datagram(world.now, &train));
    world.hear(0);
    assert!(world.seen[0].arrived.contains(&place(0)));
    assert!(world.ends[1].send(world.now, place(0), [b"", &frame(place(0), 5_000)]));
    let before = world.ends[1].counts();
    while world.step() {}
    assert!(world.seen[1].arrived.contains(&place(0)));
    let after = world.ends[1].counts();
    assert_eq!((after.sent.again, after.forged), (before.sent.again, 0), "nothing is asked for");
    assert!(world.ends[0].send(world.now, place(1), [b"", &frame(place(1), 100)]));
    while world.seen[0].arrived.len() < 2 {
        assert!(world.step());
    }
    // What came was acknowledged, and is once more.
    assert_eq!(of(&mut world, 0, 5_000, &mut train), Some(1));
    assert!(world.ends[1].on_datagram(world.now, &train) && world.ends[1].take_news().is_empty());
    assert!(world.ends[0].send(world.now, place(2), [b"", &frame(place(2), 100)]));
    let sent = world.now;
    while world.seen[0].arrived.len() < 3 {
        assert!(world.step());
    }
    world.now = sent + Duration::from_micros(49);
    assert_eq!(of(&mut world, 0, 5_000, &mut train), None, "it follows at once");
}

/// Under one secret so many messages are sealed and no more, and others are wanted once before that.
#[test]
fn keys_are_wanted_before_they_are_worn() {
    let mut world = World::new(7, CLEAN);
    let mut wanted = 0;
    for number in 0..300 {
        let place = Place { lane: 1, number };
        assert!(world.ends[0].send(world.now, place, [b"", &frame(place, 100)]));
        while world.step() {}
        world.seen[1].unread.clear();
        wanted += usize::from(world.ends[0].wants_keys());
    }
    assert_eq!(wanted, 1);
    world.ends[0].renew(&Secret::new([6; 32]));
    world.ends[0].advance();
    assert!(!world.ends[0].wants_keys());
}

/// Chunks of any agreed length carry everything; where the path has become narrower a ping of that length says so, one that fits comes
/// back, and what is on its way is given back.
#[test]
fn a_path_that_becomes_narrower_is_noticed() {
    for chunk_bytes in [512, 1_280, 1_344, CHUNK_BYTES, 8_896] {
        let mut world = World::of(9, Faults { lost: 20, late_us: 200, ..CLEAN }, chunk_bytes);
        let send = |world: &mut World, number| {
            let place = Place { lane: 1, number };
            assert!(world.ends[0].send(world.now, place, [b"", &frame(place, 60_000)]), "{number}");
            while world.step() {}
            world.seen[1].unread.clear();
        };
        (0..20).for_each(|number| send(&mut world, number));
        assert_eq!((world.seen[1].delivered.len(), returned(&world)), (20, 0), "chunks of {chunk_bytes}");
        world.longest = HEADER_LEN + chunk_bytes - 1;
        (20..22).for_each(|number| send(&mut world, number));
        assert_eq!((world.seen[1].delivered.len(), returned(&world)), (20, 2), "chunks of {chunk_bytes}");
        world.faults = CLEAN;
        for (bytes, back) in [(chunk_bytes, 0), (chunk_bytes - 64, 1), (0, 2)] {
            world.ends[0].ping(bytes);
            while world.step() {}
            assert_eq!(world.pongs[0], back, "a ping of {bytes} with chunks of {chunk_bytes}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_network_delivers_once_or_gives_back(
        seed in any::<u64>(), lost in 0_u64..300, doubled in 0_u64..200, changed in 0_u64..100,
        repeated in 0_u64..200, late_us in 0_u64..5_000, longest in 1_usize..30_000
    ) {
        exchange(seed, Faults { lost, doubled, changed, repeated, late_us }, 16, longest);
    }
}
