//! What three nodes say to a stage, in any order and with bytes changed on the way: leases, releases, frames of all kinds and
//! epochs, connections that come and go, time that passes. Every message is written, perhaps damaged, and read by the real
//! decoders; what is read moves the real door, the leases and the inputs of its session, as the daemon and a stage do.
//!
//! What must hold: places are neither leaked nor spent twice, memory stays within its limit, a frame has an effect only
//! under the epoch of its lease and from the requester or the stage before, nothing of an abandoned attempt is computed,
//! and what is computed goes on from rows that are there.
#![no_main]

#[path = "../../../node/src/stage/inputs.rs"]
#[allow(dead_code)]
mod inputs;

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use inputs::Inputs;
use libfuzzer_sys::fuzz_target;
use p2p::{
    codec::{self, Rounding, Wire},
    wire::{
        control::{Ask, Lease, Reuse, Role},
        frame::{HEADER_LEN, Header, Kind, MAX_FRAME},
    },
};
use scheduler::{
    LayerRange, Millis, ModelId, NodeId, SessionId, SessionKind,
    admit::{Limits, Tier},
    door::{self, Decision, Door, Key, Refused, Terms},
    session::Taken,
};

/// Values of a row: two groups of the widest wire.
const WIDTH: usize = 128;
const SLOTS: u32 = 3;
const KV_BYTES: u64 = 4_000;
/// Things that happen in one input.
const MAX_STEPS: usize = 256;

struct Stage {
    ask: u64,
    leases: Terms<Lease>,
    /// By first layer, and how many positions the cache holds.
    inputs: BTreeMap<u32, (Inputs, u32)>,
    over: bool,
}

struct World {
    door: Door,
    now: Millis,
    next: u64,
    asks: BTreeMap<u64, Lease>,
    stages: BTreeMap<Key, Stage>,
    /// Up to which epoch each session was given back.
    released: BTreeMap<Key, u32>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let tiers = vec![Tier { weight: 1.0, share: SLOTS }; 2];
    let mut world = World {
        door: Door::new(Limits { slots: SLOTS, kv_bytes: KV_BYTES, waiting: 4, tiers }),
        now: Millis(0),
        next: 0,
        asks: BTreeMap::new(),
        stages: BTreeMap::new(),
        released: BTreeMap::new(),
    };
    for _ in 0..MAX_STEPS {
        if u.is_empty() || world.step(&mut u).is_err() {
            break;
        }
        for decision in world.door.turn(world.now) {
            world.decide(decision);
        }
        world.asks.retain(|id, _| world.door.waits(*id));
        world.check();
    }
    world.empties();
});

/// Changes a byte of a message, now and then.
fn damage(bytes: &mut Vec<u8>, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let how: u8 = u.arbitrary()?;
    if how < 16 && !bytes.is_empty() {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    } else if how == 16 {
        bytes.truncate(u.choose_index(bytes.len() + 1)?);
    }
    Ok(())
}

fn node(u: &mut Unstructured<'_>) -> arbitrary::Result<NodeId> {
    Ok(NodeId::numbered(u.int_in_range(1..=3)?))
}

impl World {
    fn step(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let from = node(u)?;
        let session = SessionId::numbered(u.int_in_range(0..=2)?);
        let epoch = u.int_in_range(0..=3_u32)?;
        match u.int_in_range(0..=15_u8)? {
            0..=3 => {
                let mut bytes = Ask::Lease(Box::new(lease(session, epoch, u)?)).encode();
                damage(&mut bytes, u)?;
                if let Ok(Ask::Lease(lease)) = Ask::decode(&bytes) {
                    self.lease(from, *lease, u.int_in_range(0..=1)?);
                }
            }
            4 => {
                let mut bytes = Ask::Release { session, epoch }.encode();
                damage(&mut bytes, u)?;
                if let Ok(Ask::Release { session, epoch }) = Ask::decode(&bytes) {
                    self.release(Key { requester: from, session }, epoch);
                }
            }
            5..=11 => {
                let requester = if u.ratio(3, 4)? { from } else { node(u)? };
                self.frames(Key { requester, session }, from, epoch, u)?;
            }
            12 => {
                let over: Vec<Key> =
                    self.stages.iter().filter(|(_, s)| s.over).map(|(key, _)| *key).collect();
                over.into_iter().for_each(|key| self.ended(key));
            }
            13 => self.door.gone(self.now, from),
            14 => self.door.back(from),
            _ => self.now = self.now + u64::from(u.arbitrary::<u16>()?),
        }
        Ok(())
    }

    fn lease(&mut self, requester: NodeId, lease: Lease, tier: usize) {
        let id = self.next;
        self.next += 1;
        let key = Key { requester, session: lease.session };
        let ask = door::Ask {
            id,
            key,
            epoch: lease.epoch,
            tier,
            layers: lease.layers,
            kv_bytes: u64::from(lease.positions) * u64::from(lease.layers.len()),
            standby: lease.role != Role::Stage,
            patience_ms: 1_500,
        };
        self.asks.insert(id, lease);
        if let Some(decision) = self.door.lease(self.now, ask) {
            self.decide(decision);
        }
    }

    fn release(&mut self, key: Key, epoch: u32) {
        let known = self.released.entry(key).or_insert(epoch);
        *known = (*known).max(epoch);
        for ask in self.door.release(key, epoch) {
            assert!(self.asks.remove(&ask.id).is_some());
        }
        if let Some(stage) = self.stages.get_mut(&key) {
            stage.over |= stage.leases.release(epoch);
        }
    }

    fn decide(&mut self, decision: Decision) {
        match decision {
            Decision::Start(ask) => {
                let stage =
                    Stage { ask: ask.id, leases: Terms::default(), inputs: BTreeMap::new(), over: false };
                assert!(self.stages.insert(ask.key, stage).is_none(), "one place for one session");
                self.grant(&ask);
            }
            Decision::Forward(ask) => self.grant(&ask),
            Decision::Refuse(ask, why) => {
                let gave_back = self.released.get(&ask.key).is_some_and(|epoch| *epoch >= ask.epoch);
                assert!(why != Refused::GivenBack || gave_back, "refused for what another gave back");
                self.asks.remove(&ask.id);
            }
            Decision::End(key, _) => self.stages.get_mut(&key).expect("only what runs is ended").over = true,
        }
    }

    /// As `stage/grant.rs`, with a cache that keeps what it has.
    fn grant(&mut self, ask: &door::Ask) {
        let lease = self.asks.remove(&ask.id).expect("what was asked");
        let stage = self.stages.get_mut(&ask.key).expect("it was started");
        if stage.over || stage.leases.is_past(lease.epoch) {
            return;
        }
        let start = lease.layers.start();
        let earlier = stage.leases.get(start).is_none_or(|held| held.epoch < lease.epoch);
        let held = stage.inputs.get_mut(&start);
        let have = held.map_or(0, |(inputs, have)| {
            let kept = if earlier { inputs.begin_epoch() } else { u32::MAX };
            (*have).min(kept)
        });
        let have = have.min(lease.at);
        stage.leases.grant(lease);
        let leases = &stage.leases;
        stage.inputs.retain(|start, _| leases.starts_at(*start));
        stage.inputs.insert(start, (Inputs::from(have), have));
        self.door.granted(self.now, ask.key);
    }

    /// A stream's next frame, as the reader and the stage take it.
    fn frames(
        &mut self,
        key: Key,
        from: NodeId,
        epoch: u32,
        u: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let rows = u.int_in_range(1..=3_u32)?;
        let layer = u.int_in_range(0..=4)?;
        let position = u.int_in_range(0..=9)?;
        let kind = *u.choose(&Kind::ALL)?;
        let wire = *u.choose(&Wire::ALL)?;
        let (header, mut payload) = if kind.carries() || u.ratio(1, 2)? {
            let value = f32::from_bits(u.arbitrary()?);
            let values = vec![if value.is_finite() { value } else { 1.0 }; rows as usize * WIDTH];
            let mut bytes = Vec::new();
            if codec::encode(wire, WIDTH, &values, &mut bytes).is_err() {
                return Ok(());
            }
            let header =
                Header::activations(wire, epoch, layer, position, rows, WIDTH).expect("a small frame");
            let drafted = u.int_in_range(0..=2_u16)?;
            let kind = if kind.carries() { kind } else { Kind::Activations };
            (Header { kind, drafted, since: u.int_in_range(0..=10)?, ..header }, bytes)
        } else {
            (Header::signal(kind, epoch, layer, position, 0), Vec::new())
        };
        let mut head = header.under(u.int_in_range(0..=2)?).write().to_vec();
        damage(&mut head, u)?;
        damage(&mut payload, u)?;
        let Ok(head) = <&[u8; HEADER_LEN]>::try_from(head.as_slice()) else { return Ok(()) };
        let Ok(header) = Header::read(head) else { return Ok(()) };
        assert_eq!(header.write(), *head);
        assert!(header.len as usize <= MAX_FRAME);
        // Of a frame that is no frame of this session nothing is read.
        if header.kind.carries() && (!header.fits(WIDTH) || payload.len() != header.len as usize) {
            return Ok(());
        }
        self.arrival(key, from, &header, &payload);
        Ok(())
    }

    fn arrival(&mut self, key: Key, from: NodeId, header: &Header, payload: &[u8]) {
        let Some(stage) = self.stages.get_mut(&key).filter(|stage| !stage.over) else { return };
        let down = header.kind == Kind::Activations;
        let Some(lease) = stage.leases.admits(key.requester, from, down, header.layer, header.epoch) else {
            return;
        };
        assert_eq!((lease.epoch, lease.layers.start()), (header.epoch, header.layer));
        assert!(
            from == key.requester || (down && lease.previous == Some(from)),
            "a stranger's frame has an effect"
        );
        if !header.kind.carries() {
            if header.kind == Kind::Beacon {
                self.door.beacon(key);
            }
            return;
        }
        let decision = self.door.rows(self.now, key);
        let (inputs, have) = stage.inputs.get_mut(&header.layer).expect("every lease has its inputs");
        let before = inputs.attempt();
        match inputs.take(header, from == key.requester) {
            Taken::Abandoned => {}
            Taken::NeedReplay(to) => {
                assert!(to < header.from, "it needs what comes before the frame");
                *have = (*have).min(to);
            }
            Taken::Compute => {
                assert!(header.attempt >= before, "an abandoned attempt is computed");
                let sound = codec::check(header.wire, WIDTH, header.rows as usize, payload).is_ok();
                let mut values = Vec::new();
                let decoded =
                    codec::decode(header.wire, WIDTH, header.rows as usize, payload, &mut values).is_ok();
                assert_eq!(sound, decoded, "what is checked can be decoded");
                assert!(!decoded || values.iter().all(|x| x.is_finite()));
                if sound && header.from > *have {
                    inputs.cut(*have);
                } else if sound {
                    *have = header.to();
                }
            }
        }
        assert!(inputs.attempt() >= before);
        if let Some(decision) = decision {
            self.decide(decision);
        }
    }

    fn ended(&mut self, key: Key) {
        if let Some(stage) = self.stages.remove(&key) {
            self.door.ended(stage.ask);
        }
    }

    fn check(&self) {
        let queue = self.door.queue();
        assert_eq!(queue.running(), self.stages.len(), "a place is spent twice, or leaked");
        assert!(queue.running() as u32 <= SLOTS && queue.kv_used() <= KV_BYTES);
        assert_eq!(self.asks.len(), queue.waiting(), "an ask is forgotten");
        assert!(self.stages.keys().all(|key| self.door.has(*key)));
        assert!(!self.stages.is_empty() || queue.kv_used() == 0, "memory is leaked");
    }

    /// Left alone, everything comes back.
    fn empties(&mut self) {
        for _ in 0..64 {
            self.now = self.now + 10_000;
            (1..=3).for_each(|n| self.door.gone(self.now, NodeId::numbered(n)));
            self.now = self.now + 10_000;
            for decision in self.door.turn(self.now) {
                self.decide(decision);
            }
            let over: Vec<Key> = self.stages.iter().filter(|(_, s)| s.over).map(|(key, _)| *key).collect();
            over.into_iter().for_each(|key| self.ended(key));
            if self.stages.is_empty() && self.door.queue().waiting() == 0 {
                return;
            }
        }
        panic!("a place is held for ever");
    }
}

fn lease(session: SessionId, epoch: u32, u: &mut Unstructured<'_>) -> arbitrary::Result<Lease> {
    let start = u.int_in_range(0..=3)?;
    let end = start + u.int_in_range(1..=3)?;
    let positions = *u.choose(&[1, 10, 600, 5_000])?;
    let rounding =
        if u.arbitrary()? { Rounding::new(*u.choose(&Wire::ALL)?, vec![1, 3]) } else { Rounding::NONE };
    Ok(Lease {
        session,
        epoch,
        model: ModelId::new([7; 32]),
        layers: LayerRange::new(start, end).expect("it is not empty"),
        positions,
        at: u.int_in_range(0..=positions.min(9))?,
        rounding,
        kind: SessionKind::DEFAULT,
        next: None,
        previous: if u.arbitrary()? { Some(node(u)?) } else { None },
        log: u.arbitrary()?,
        ttl_ms: 60_000,
        role: *u.choose(&[Role::Stage, Role::Shadow, Role::LazyShadow])?,
        reuse: Reuse::default(),
    })
}
