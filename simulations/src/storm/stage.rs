//! The serving side of a machine: leases through the scheduler's own door, keys and values that are really kept.
//!
//! Each layer computes a recurrence over all inputs it has seen, so missing, doubled or misplaced positions show as a
//! wrong token. A stage promises what the scheduler's session page states: lower epochs are dropped, a frame beyond its
//! KV is answered with what it has, otherwise it truncates and computes.

use std::collections::BTreeMap;

use scheduler::admit::{Admission, Ask, Limits, SlotGuard, Tier, kv_bytes};
use scheduler::lease::Load;
use scheduler::rng::mix;
use scheduler::session::{Attempts, Rows, Taken};
use scheduler::{LayerRange, LayerSet, Millis, NodeId, SessionId, Shape};

/// Rows that take as long as one step.
pub const KNEE: u32 = 14;
/// A lease that is not used ends after this on the machine's own clock.
pub const KEEP_MS: u64 = 15_000;
/// An ask that waited this long is of no use: the requester has given up on it.
const WAIT_MS: u64 = 2_500;
/// Asks that may wait at a door.
const WAITING: usize = 16;

/// Keys and values of some layers, as the running hash of each.
#[derive(Clone, Debug)]
pub struct Kv {
    layers: LayerRange,
    past: Vec<u64>,
}

impl Kv {
    /// Nothing computed yet.
    pub fn new(layers: LayerRange) -> Self {
        Self { layers, past: Vec::new() }
    }

    /// Positions kept.
    pub fn len(&self) -> u32 {
        (self.past.len() / self.layers.len() as usize) as u32
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.past.is_empty()
    }

    /// Forgets positions from `to` on.
    pub fn truncate(&mut self, to: u32) {
        self.past.truncate(to as usize * self.layers.len() as usize);
    }

    /// Computes one position.
    pub fn compute(&mut self, mut hidden: u64) -> u64 {
        let (width, end) = (self.layers.len() as usize, self.past.len());
        for at in 0..width {
            let past = if end == 0 { 7 } else { self.past[end - width + at] };
            self.past.push(mix(past ^ hidden));
            hidden = mix(hidden ^ past ^ u64::from(self.layers.start() + at as u32));
        }
        hidden
    }
}

/// The token a last hidden state stands for.
pub fn token_of(hidden: u64) -> u32 {
    (hidden % 50_000) as u32
}

/// What is asked of a machine when a stage is opened.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Whose.
    pub session: SessionId,
    /// Machine that asks.
    pub requester: usize,
    /// Index of the stage.
    pub stage: usize,
    /// Under which epoch.
    pub epoch: u32,
    /// What to run.
    pub layers: LayerRange,
    /// Where outputs go.
    pub next: Option<NodeId>,
    /// Positions below this may be kept.
    pub at: u32,
    /// Positions to reserve.
    pub positions: u32,
    /// Whether it follows as a shadow, and answers nothing.
    pub follow: bool,
}

struct Served {
    lease: Lease,
    kv: Kv,
    attempts: Attempts,
    ask: u64,
    guard: Option<SlotGuard>,
    heard: Millis,
}

/// A lease was turned away: the layers are not held, or the door is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// What comes of a frame.
#[derive(Clone, Debug)]
pub enum Framed {
    /// Outputs, one per row, what they are to the next stage, and the lease they were computed under.
    Outputs(Vec<u64>, Rows, Lease),
    /// The KV is shorter than the frame's first position.
    Short(u32, Lease),
    /// No such session here.
    Unknown,
    /// Of no effect.
    Dropped,
}

/// See the module's page.
pub struct Stage {
    /// Layers in memory.
    pub held: LayerSet,
    door: Admission,
    served: BTreeMap<(SessionId, u32), Served>,
    /// Sessions closed lately, their epochs and when.
    closed: BTreeMap<SessionId, (u32, Millis)>,
    asks: u64,
    limits: Limits,
}

impl Stage {
    /// An empty stage holding `held`, with room for `kv` layer-positions.
    pub fn new(held: LayerSet, slots: u32, kv: u64) -> Self {
        let limits =
            Limits { slots, kv_bytes: kv, waiting: WAITING, tiers: vec![Tier { weight: 1.0, share: slots }] };
        Self {
            held,
            door: Admission::new(limits.clone()),
            served: BTreeMap::new(),
            closed: BTreeMap::new(),
            asks: 0,
            limits,
        }
    }

    /// Takes in a lease; `Err` when it is refused, `Ok(true)` when it runs already, `Ok(false)` when the answer comes from
    /// [`Self::admitted`] or none is due.
    pub fn open(&mut self, now: Millis, lease: Lease) -> Result<bool, Refused> {
        let key = (lease.session, lease.layers.start());
        if !self.held.covers(lease.layers) {
            return Err(Refused);
        }
        if self.closed.get(&lease.session).is_some_and(|closed| lease.epoch <= closed.0) {
            return Ok(false);
        }
        if let Some(old) = self.served.get_mut(&key) {
            if lease.epoch <= old.lease.epoch {
                return Ok(old.guard.is_some());
            }
            let same = old.lease.layers == lease.layers && old.lease.positions == lease.positions;
            if same && old.guard.is_some() {
                old.kv.truncate(lease.at.min(old.attempts.begin_epoch()));
                (old.lease, old.heard) = (lease, now);
                return Ok(true);
            }
            self.drop_entry(key);
        }
        self.asks += 1;
        let shape = Shape { prompt_tokens: lease.positions, output_tokens: 0, ..Shape::ONE_TOKEN };
        let ask = Ask {
            id: self.asks,
            requester: NodeId::numbered(lease.requester as u64),
            tier: 0,
            kv_bytes: kv_bytes(shape, lease.layers, 1),
            deadline: Some(now + WAIT_MS),
            predicted_ms: 0.0,
            standby: false,
        };
        self.door.submit(now, ask).map_err(|_| Refused)?;
        let kv = Kv::new(lease.layers);
        let attempts = Attempts::default();
        self.served.insert(key, Served { lease, kv, attempts, ask: self.asks, guard: None, heard: now });
        Ok(false)
    }

    /// Admits the asks that may start now; returns their leases.
    pub fn admitted(&mut self, now: Millis) -> Vec<Lease> {
        let mut started = Vec::new();
        while let Some((ask, guard)) = self.door.next(now) {
            if let Some(served) = self.served.values_mut().find(|served| served.ask == ask.id) {
                served.guard = Some(guard);
                started.push(served.lease.clone());
            }
        }
        started
    }

    /// The KV length of a running lease of exactly this epoch.
    pub fn have(&self, session: SessionId, layer: u32, epoch: u32) -> Option<u32> {
        let served = self.served.get(&(session, layer))?;
        (served.guard.is_some() && served.lease.epoch == epoch).then(|| served.kv.len())
    }

    /// What it says of its load.
    pub fn load(&mut self, node: NodeId) -> Load {
        Load { node, sessions: self.door.running() as u32, lanes: KNEE }
    }

    /// Takes in a frame.
    pub fn frame(
        &mut self,
        now: Millis,
        key: (SessionId, u32),
        epoch: u32,
        rows: Rows,
        inputs: &[u64],
    ) -> Framed {
        let from = rows.from;
        let Some(served) = self.served.get_mut(&key) else { return Framed::Unknown };
        if epoch != served.lease.epoch || served.guard.is_none() {
            return Framed::Dropped;
        }
        served.heard = now;
        let sound = match served.attempts.take(&rows) {
            Taken::Abandoned => return Framed::Dropped,
            Taken::Compute => served.kv.len(),
            Taken::NeedReplay(sound) => sound.min(served.kv.len()),
        };
        if from > sound {
            return Framed::Short(sound, served.lease.clone());
        }
        if from + inputs.len() as u32 > served.lease.positions {
            return Framed::Unknown;
        }
        served.kv.truncate(from);
        let outputs = inputs.iter().map(|input| served.kv.compute(*input)).collect();
        let rows = Rows { since: served.attempts.since(from), ..rows };
        Framed::Outputs(outputs, rows, served.lease.clone())
    }

    /// Feeds a shadow: computes what it lacks of the log. Its KV length, if it follows that session.
    pub fn feed(&mut self, now: Millis, key: (SessionId, u32), from: u32, inputs: &[u64]) -> Option<u32> {
        let served = self.served.get_mut(&key).filter(|served| served.guard.is_some())?;
        served.heard = now;
        if served.lease.follow {
            // What it was given of a draft is given again.
            served.kv.truncate(served.attempts.drop_drafts());
        }
        let have = served.kv.len();
        if served.lease.follow && from <= have {
            let room = served.lease.positions.saturating_sub(have) as usize;
            let fresh = inputs.iter().skip((have - from) as usize).take(room);
            fresh.for_each(|input| {
                served.kv.compute(*input);
            });
        }
        Some(served.kv.len())
    }

    /// A session needs this machine no more.
    pub fn close(&mut self, now: Millis, session: SessionId, epoch: u32) {
        let closed = self.closed.entry(session).or_insert((epoch, now));
        *closed = (closed.0.max(epoch), now);
        let keys: Vec<_> =
            self.served.range((session, 0)..).map(|e| *e.0).take_while(|k| k.0 == session).collect();
        // A close that comes late does not end what was opened since.
        let keys =
            keys.into_iter().filter(|key| self.served.get(key).is_some_and(|s| s.lease.epoch <= epoch));
        let keys: Vec<_> = keys.collect();
        keys.into_iter().for_each(|key| self.drop_entry(key));
    }

    /// Ends leases that were not used for [`KEEP_MS`].
    pub fn expire(&mut self, now: Millis) {
        let old: Vec<_> =
            self.served.iter().filter(|e| now.since(e.1.heard) >= KEEP_MS).map(|e| *e.0).collect();
        old.into_iter().for_each(|key| self.drop_entry(key));
        self.closed.retain(|_, closed| now.since(closed.1) < KEEP_MS);
    }

    /// Holds other layers from now on; leases on what is gone end. Their sessions, by requester.
    pub fn hold(&mut self, held: LayerSet) -> Vec<Lease> {
        self.held = held;
        let gone: Vec<_> =
            self.served.iter().filter(|e| !self.held.covers(e.1.lease.layers)).map(|e| *e.0).collect();
        let leases = gone.iter().filter_map(|key| self.served.get(key).map(|served| served.lease.clone()));
        let leases = leases.collect();
        gone.into_iter().for_each(|key| self.drop_entry(key));
        leases
    }

    /// All that it serves, as (requester, session).
    pub fn sessions(&self) -> impl Iterator<Item = (usize, SessionId)> + '_ {
        self.served.values().map(|served| (served.lease.requester, served.lease.session))
    }

    fn drop_entry(&mut self, key: (SessionId, u32)) {
        if let Some(served) = self.served.remove(&key)
            && served.guard.is_none()
        {
            self.door.cancel(served.ask);
        }
    }

    /// Layer-positions really kept.
    pub fn kept(&self) -> u64 {
        self.served.values().map(|served| served.kv.past.len() as u64).sum()
    }

    /// A session that keeps more than its lease, if any.
    pub fn over_lease(&self) -> Option<SessionId> {
        let over = |s: &&Served| s.kv.len() > s.lease.positions || (s.guard.is_none() && !s.kv.is_empty());
        self.served.values().find(over).map(|served| served.lease.session)
    }

    /// Layer-positions it has.
    pub fn kv_room(&self) -> u64 {
        self.limits.kv_bytes
    }

    /// Layer-positions promised.
    pub fn reserved(&mut self) -> u64 {
        self.door.kv_used()
    }

    /// Sessions it may run.
    pub fn slots(&self) -> u32 {
        self.limits.slots
    }

    /// Sessions it runs.
    pub fn running(&mut self) -> usize {
        self.door.running()
    }

    /// Asks that wait.
    pub fn waiting(&self) -> usize {
        self.door.waiting()
    }
}
