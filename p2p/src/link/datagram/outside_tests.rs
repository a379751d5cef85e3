//! A session whose data something outside carries, as the kernel module does, which comes and goes in the middle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::header::{CHUNK_BYTES, HEADER_LEN, Header, Kind};
use super::seal::{Cipher, Direction, Secret};
use super::send::Place;
use super::session::{Chunks, News, Session};
use super::tests::{Draws, frame, pair};

/// What the module does, in few lines: chunks by message, until all are there.
#[derive(Default)]
struct Module {
    open: BTreeMap<u32, Vec<Option<Vec<u8>>>>,
    whole: BTreeSet<u32>,
}

impl Module {
    fn take(&mut self, header: &Header, chunk: &[u8]) -> Option<Vec<u8>> {
        if self.whole.contains(&header.message) {
            return None;
        }
        let open = self.open.entry(header.message).or_insert_with(|| vec![None; header.chunks.into()]);
        open[usize::from(header.chunk)] = Some(chunk.to_vec());
        if open.iter().any(Option::is_none) {
            return None;
        }
        self.whole.insert(header.message);
        Some(self.open.remove(&header.message)?.into_iter().flatten().flatten().collect())
    }

    /// `None` for one that is whole.
    fn lacking(&self, message: u32, chunks: u16) -> Option<Vec<u8>> {
        let mut bits = vec![0; usize::from(chunks).div_ceil(8)];
        let open = self.open.get(&message);
        for chunk in (0..usize::from(chunks)).filter(|chunk| open.is_none_or(|open| open[*chunk].is_none())) {
            bits[chunk / 8] |= 1 << (chunk % 8);
        }
        (!self.whole.contains(&message)).then_some(bits)
    }
}

/// Sends what an end has to send, by the module's way or its own.
fn datagrams(end: &mut Session, direction: Direction, now: Duration) -> Vec<Vec<u8>> {
    let (mut all, mut train) = (Vec::new(), Vec::new());
    let [_, there] = end.names();
    while let Some(Chunks { message, epoch, sealed, bits }) = end.next_chunks(now) {
        let key = Secret::new([5; 32]).keys(direction, epoch, Cipher::ChaCha20Poly1305).header;
        let chunks = sealed.chunks(CHUNK_BYTES).len() as u16;
        for (chunk, payload) in
            sealed.chunks(CHUNK_BYTES).enumerate().filter(|(at, _)| bits[at / 8] >> (at % 8) & 1 == 1)
        {
            let (total_bytes, len) = (sealed.len() as u32, payload.len() as u16);
            let (kind, chunk) = (Kind::Data, chunk as u16);
            let mut datagram = Vec::new();
            Header { kind, chunk, session: there, message, total_bytes, chunks, len, epoch }.write(
                payload,
                &key,
                &mut datagram,
            );
            all.push(datagram);
        }
    }
    while let Some(segment) = end.transmit(now, &mut train) {
        all.extend(train.chunks(segment).map(<[u8]>::to_vec));
    }
    all
}

/// Frames one way through a network that loses one datagram in ten, while either end's module comes and goes.
#[test]
fn a_module_that_comes_and_goes_costs_no_frame() {
    let (mut ends, _governors) = pair();
    let mut modules: [Option<Module>; 2] = [Some(Module::default()), Some(Module::default())];
    ends.iter_mut().for_each(|end| end.serve_outside(true));
    let (mut draws, mut now, mut next) = (Draws(11), Duration::ZERO, 0);
    let (mut delivered, mut returned) = (BTreeSet::new(), BTreeSet::new());
    for turn in 0.. {
        assert!(turn < 100_000, "no progress: {ends:?}");
        if draws.happens(20) {
            let at = draws.next() as usize % 2;
            modules[at] = if modules[at].is_some() {
                None
            } else {
                // What counts as delivered counts for the module too.
                let newest = ends[at].served().newest;
                Some(Module { whole: (newest.saturating_sub(64)..=newest).collect(), ..Module::default() })
            };
            ends[at].serve_outside(modules[at].is_some());
        }
        let place = Place { lane: 1, number: next };
        if next < 300 && ends[0].send(now, place, [b"", &frame(place, 1 + draws.next() as usize % 20_000)]) {
            next += 1;
        }
        now += Duration::from_micros(300);
        for at in 0..2 {
            if ends[at].due().is_some_and(|due| due <= now) {
                ends[at].on_time(now);
            }
            let direction = [Direction::FromDialer, Direction::ToDialer][at];
            for datagram in datagrams(&mut ends[at], direction, now) {
                let to = 1 - at;
                if draws.happens(100) {
                    continue;
                }
                let header = Header::read(&datagram, CHUNK_BYTES).unwrap();
                match &mut modules[to] {
                    Some(module) if header.kind == Kind::Data => {
                        if let Some(sealed) = module.take(&header, &datagram[HEADER_LEN..]) {
                            ends[to].on_message(now, (header.message, header.epoch), &sealed);
                        }
                    }
                    _ => assert!(ends[to].on_datagram(now, &datagram)),
                }
            }
        }
        for (end, module) in ends.iter_mut().zip(&modules) {
            for news in end.take_news() {
                match news {
                    News::Delivered(it) => {
                        assert_eq!(it.frame(), frame(it.place, it.frame().len()));
                        assert!(delivered.insert(it.place), "{:?} came twice", it.place);
                    }
                    News::Returned(place, back) => {
                        assert_eq!(back, frame(place, back.len()));
                        returned.insert(place);
                    }
                    News::Asked { message, chunks } => {
                        let bits = module.as_ref().map(|module| module.lacking(message, chunks));
                        match bits {
                            Some(Some(bits)) => end.say_lacking(message, chunks, Some(&bits)),
                            Some(None) => {}
                            None => end.say_lacking(message, chunks, None),
                        }
                    }
                    News::Arrived(_) | News::Pong(_) => {}
                }
            }
        }
        if next == 300 && !ends[0].is_busy() {
            break;
        }
    }
    let all: BTreeSet<Place> = (0..300).map(|number| Place { lane: 1, number }).collect();
    assert_eq!(delivered.union(&returned).copied().collect::<BTreeSet<_>>(), all);
    assert!(delivered.len() >= 200, "{} of 300 went back", returned.len());
}
