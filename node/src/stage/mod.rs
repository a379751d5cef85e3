//! The serving side: a frame in, the worker, a frame out.
//!
//! One task per session of another node. It knows the leases the requester took out for the session, gives each
//! frame to the worker and sends what comes back to the next stage, and to the requester when the lease asks for the
//! copy that replays live on. While it computes it says so every [`BEACON_MS`], because silence is how the requester
//! tells a frozen machine from a slow one. It never retries anything: recovery is the requester's.
//!
//! What it computed it signs (`stage/commitment_chain.rs`): commitments go to the requester beside the outputs, the bill when it
//! asks for it. One who follows computes outputs too, to sign for them, and sends none; a lazy one keeps what it is sent
//! (`stage/lazy_log.rs`) and computes it when it is asked to run the segment.
//!
//! The door hears when a lease was granted, when the requester's first beacon came and when rows come: a lease that is not
//! used is taken back there (`scheduler::door`).
//!
//! Limits: [`JOBS_AHEAD`] jobs at the worker; beyond, its streams are read no further. A session that gets no frames
//! for, for as long as its lease says, is closed and its KV freed.

mod commitment_chain;
mod filed_prefixes;
mod grant;
mod inputs;
mod lazy_log;
mod neighbors;
mod pages;
mod prefixes;
mod served;
mod step;

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use p2p::{
    Identity, Network, Permit, codec,
    wire::{
        announce::Class,
        control::{Answer, Contact, Lease, MAX_SETTLED, Role},
        frame::{Header, Kind},
    },
};
use scheduler::{
    NodeId, SessionId,
    admit::SlotGuard,
    door::{Key, Terms},
    session::Taken,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::Instrument;

use self::{
    commitment_chain::{CommitmentChain, Finding, Liable, bills},
    inputs::Inputs,
    lazy_log::{Frame, LazyLog},
    neighbors::Neighbors,
};
pub use self::{
    pages::Lender,
    prefixes::Prefixes,
    served::{Served, Sign},
};
use crate::{
    clock,
    sessions::{Arrival, Inlets, JOBS_AHEAD, Order, Outlets, SessionTable, place},
    sessions::{peer_streams::PeerStreams, reading::Payload},
    telemetry::{Hops, Requester},
    worker::{Assigned, Body, DraftIds, Job, JobInput, Output, Want},
};

/// Three missed beacons make a stage suspect: small against what a user notices, large against a timer's jitter.
const BEACON_MS: u64 = 100;
/// The next stage is dialed once more when it has not answered by then.
const REACH: Duration = Duration::from_millis(300);
/// The door hears at most this often that rows came.
const SIGN: Duration = Duration::from_secs(1);
/// Who settles waits this long for what it was fed and has not computed yet.
const SETTLE_MS: u64 = 1_000;

/// One session served for `requester`.
pub struct Stage {
    /// Its name.
    pub session: SessionId,
    /// Whose prompt it is: the only one who may lease, feed or release.
    pub requester: NodeId,
    /// The way out.
    pub network: Network,
    /// Who signs for the work.
    pub identity: Identity,
    /// Values of a row.
    pub hidden: u32,
    /// How exact the work is.
    pub class: Class,
    /// Who computes; another one after a crash.
    pub worker: Assigned,
    /// Where its end is noted.
    pub table: SessionTable,
    /// The daemon's books.
    pub books: mpsc::Sender<Served>,
    /// True once the node wants to leave: running sessions go on, new leases are refused.
    pub draining: watch::Receiver<bool>,
    /// Its place here, given back when it ends, however it ends.
    pub slot: SlotGuard,
    /// Counts it for its requester among what others hold of this node.
    pub permit: Permit,
    /// What was computed in sessions that have ended, shared by all sessions.
    pub prefixes: Prefixes,
}

struct Running {
    stage: Stage,
    leases: Terms<Lease>,
    /// What was signed, by first layer of the lease.
    words: BTreeMap<u32, CommitmentChain>,
    /// What is not computed unless it must be, by first layer of the lease.
    kept: BTreeMap<u32, LazyLog>,
    /// What was kept and must be computed now, before anything else.
    replay: VecDeque<Frame>,
    /// How far the inputs have come, by first layer of the lease.
    inputs: BTreeMap<u32, Inputs>,
    /// Who waits for the bill, and until how many positions, and until when.
    settling: Option<(u32, Instant, oneshot::Sender<Answer>)>,
    neighbors: Neighbors,
    outboxes: PeerStreams,
    /// The latest epoch leased, and its jobs at the worker.
    epoch: u32,
    jobs: usize,
    /// When the frames came whose outputs are awaited, and what counts their bytes, the oldest first; at most [`JOBS_AHEAD`].
    came: VecDeque<(Instant, Option<Permit>)>,
    idle_since: Instant,
    /// What the door last heard of its use, and when.
    signed: Option<(Sign, Instant)>,
    hops: Hops,
}

impl Stage {
    /// What the session is called at the worker and on streams.
    fn place(&self) -> SessionId {
        place(self.requester, self.session)
    }

    /// Serves until the requester releases it, its lease runs out, or the worker dies.
    pub async fn run(self, inlets: Inlets, doors: Outlets) {
        let span =
            tracing::debug_span!("serve", session = %self.session, requester = %Requester(self.requester));
        self.serve(inlets, doors).instrument(span).await;
    }

    async fn serve(self, inlets: Inlets, mut doors: Outlets) {
        inlets.reading.expect(self.hidden);
        let [mut beacon, mut look] = [BEACON_MS, neighbors::LOOK_MS].map(|ms| {
            let mut ticks = interval(Duration::from_millis(ms));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let mut running = Running {
            leases: Terms::default(),
            words: BTreeMap::new(),
            kept: BTreeMap::new(),
            replay: VecDeque::new(),
            inputs: BTreeMap::new(),
            settling: None,
            neighbors: Neighbors::new(self.network.clone(), inlets.orders.clone()),
            outboxes: PeerStreams::new(self.network.clone(), self.place(), inlets.orders),
            epoch: 0,
            jobs: 0,
            came: VecDeque::new(),
            idle_since: Instant::now(),
            signed: None,
            hops: Hops::default(),
            stage: self,
        };
        let mut expiry = pin!(sleep_until(running.expires()));
        loop {
            // A timer that is set at every frame costs as much as the frame: it is moved on when it is due.
            if running.expires() < expiry.deadline() {
                expiry.as_mut().reset(running.expires());
            }
            tokio::select! {
                biased;
                Some(output) = doors.outputs.recv() => running.output(output).await,
                Some(order) = doors.orders.recv() => if running.order(order).await { break },
                Some(arrival) = doors.frames.recv(), if running.is_ready() => running.arrival(arrival).await,
                _ = beacon.tick() => running.beacon(),
                _ = look.tick(), if running.jobs == 0 => running.neighbors.look(running.idle_since, running.stage.requester, &running.leases),
                () = &mut expiry => {
                    if running.expires() <= Instant::now() {
                        break;
                    }
                    expiry.as_mut().reset(running.expires());
                }
            }
            running.go_through();
            running.settle();
        }
        let (keep, file) = running.keep();
        let Running { stage, .. } = running;
        stage.table.leave(stage.requester, stage.session);
        let worker = stage.worker.get();
        worker.close_but(stage.place(), keep, file);
        let Stage { session, books, slot, permit, .. } = stage;
        // The next waiting ask is admitted when the books say that the slot is free.
        drop((permit, slot));
        let _ = books.send(Served::Ended(session)).await;
    }
}

impl Running {
    /// How long the session may be idle: the longest of its leases, a moment before the first.
    fn patience(&self) -> Duration {
        let longest = self.leases.all().map(|lease| lease.ttl_ms).max();
        Duration::from_millis(longest.map_or(5_000, u64::from))
    }

    /// When the session is over unless something comes for it.
    fn expires(&self) -> Instant {
        self.idle_since + self.patience()
    }

    /// True when the session is over.
    async fn order(&mut self, order: Order) -> bool {
        match order {
            Order::Lease { lease, answer } => {
                let granted = self.lease(*lease).await;
                if matches!(granted, Answer::Accepted { .. }) {
                    self.sign(Sign::Granted).await;
                }
                let _ = answer.send(granted);
                false
            }
            Order::Release { epoch } => {
                let over = self.leases.release(epoch);
                if over {
                    // What was signed tells what may be kept of it.
                    return true;
                }
                let leases = &self.leases;
                self.words.retain(|start, _| leases.starts_at(*start));
                self.kept.retain(|start, _| leases.starts_at(*start));
                false
            }
            Order::End { told } => {
                let starts: Vec<u32> = self.leases.all().map(|lease| lease.layers.start()).collect();
                for (start, why) in starts.into_iter().zip(told.into_iter().cycle()) {
                    let why = Bytes::from_static(why.as_bytes());
                    self.tell_requester(Kind::Failed, start, 0, why);
                }
                true
            }
            Order::Settle { upto, answer } => {
                self.settling = Some((upto, Instant::now() + Duration::from_millis(SETTLE_MS), answer));
                false
            }
            Order::Lost(loss) => {
                if !self.outboxes.lost(loss) {
                    return false;
                }
                let node = loss.node;
                let leads_there = |lease: &&Lease| lease.next.as_ref().is_some_and(|next| next.node == node);
                let stuck: Vec<(u32, u32)> =
                    self.leases.all().filter(leads_there).map(|l| (l.layers.start(), l.epoch)).collect();
                for (start, epoch) in stuck {
                    // Its own work is lost on the way: the requester must find another way past this pair.
                    let header = Header::signal(Kind::Unreachable, epoch, start, 0, 0);
                    self.send(self.stage.requester, header, Bytes::new());
                }
                node == self.stage.requester
            }
            Order::Detoured(node) => {
                self.outboxes.turn(node);
                false
            }
            _ => false,
        }
    }

    /// Whether there is room for another frame at the worker.
    fn is_ready(&self) -> bool {
        self.jobs < JOBS_AHEAD && self.replay.is_empty()
    }

    /// Computes what was kept, as far as the worker takes it.
    fn go_through(&mut self) {
        while self.jobs < JOBS_AHEAD
            && let Some(Frame { header, payload, .. }) = self.replay.pop_front()
        {
            // The next stage has the outputs already: from the node that failed. Its bytes were counted when they came.
            self.compute(header, payload.into(), true, 0);
        }
    }

    /// Answers who waits for the bill, when everything is computed or has had its time.
    fn settle(&mut self) {
        let Some((upto, until, _)) = &self.settling else { return };
        let behind = self.leases.all().any(|lease| {
            lease.role == Role::Shadow
                && self.words.get(&lease.layers.start()).is_some_and(|word| word.positions() < *upto)
        });
        if behind && Instant::now() < *until {
            return;
        }
        let identity = &self.stage.identity;
        let (upto, now) = (*upto, clock::receipt_s());
        let mut settled = bills(self.words.values_mut(), upto, identity, now);
        settled.truncate(if withholds() { 0 } else { MAX_SETTLED });
        if let Some((_, _, answer)) = self.settling.take() {
            let _ = answer.send(Answer::Settled(settled));
        }
    }

    /// Tells the door how the lease is used.
    async fn sign(&self, sign: Sign) {
        let key = Key { requester: self.stage.requester, session: self.stage.session };
        let _ = self.stage.books.send(Served::Sign(key, sign)).await;
    }

    async fn arrival(&mut self, arrival: Arrival) {
        let (from, header, payload) = match arrival {
            Arrival::Frame { from, header, payload } => (from, header, payload),
            Arrival::Began { from, epoch } => return self.outboxes.began(from, epoch),
            Arrival::Ended { .. } => return,
        };
        let requester = self.stage.requester;
        let down = header.kind == Kind::Activations;
        // Nothing of another epoch than the lease's has any effect, nor does what comes from any other node than the
        // requester and, for what flows down the chain, the stage before.
        let Some(lease) = self.leases.admits(requester, from, down, header.layer, header.epoch) else {
            tracing::debug!(%from, session = %self.stage.session, "a frame of another lease is dropped");
            return;
        };
        let role = lease.role;
        if !header.kind.carries() {
            if header.kind == Kind::Beacon && self.signed.is_none() {
                self.signed = Some((Sign::Beacon, Instant::now()));
                self.sign(Sign::Beacon).await;
            }
            if header.kind == Kind::Beacon && header.from > 0 {
                self.neighbors.listens();
                if self.jobs == 0 {
                    self.say_waiting(header.layer);
                }
            }
            return;
        }
        let before = from != requester;
        self.idle_since = Instant::now();
        if self.signed.is_none_or(|(sign, told)| sign != Sign::Rows || told.elapsed() >= SIGN) {
            self.signed = Some((Sign::Rows, Instant::now()));
            self.sign(Sign::Rows).await;
        }
        let rows = header.rows;
        let inputs = self.inputs.entry(header.layer).or_insert(Inputs::from(0));
        match inputs.take(&header, !before) {
            Taken::Compute => {}
            Taken::Abandoned => return,
            Taken::NeedReplay(have) => {
                return self.tell_requester(Kind::NeedReplay, header.layer, have, Bytes::new());
            }
        }
        if codec::check(header.wire, self.stage.hidden as usize, rows as usize, &payload).is_err() {
            tracing::info!(%from, session = %self.stage.session, "a frame that no honest node sends");
            return if from == self.stage.requester {
                let why = Bytes::from_static(b"malformed activations");
                self.tell_requester(Kind::Failed, header.layer, 0, why);
            } else {
                self.tell_requester(Kind::Garbled, header.layer, header.from, Bytes::new());
            };
        }
        let bytes_in = payload.len() as u64;
        if role == Role::LazyShadow {
            let _ = self.stage.books.try_send(Served::Rows { rows: 0, layers: 0, bytes_in, bytes_out: 0 });
            if let Some(kept) = self.kept.get_mut(&header.layer) {
                let holder = (self.stage.network.governor(), self.stage.requester);
                kept.keep(header, payload.into_parts().0, holder);
            }
            return;
        }
        self.compute(header, payload, header.kind == Kind::Feed, bytes_in);
    }

    /// Gives a frame to the worker; `quietly`: no stage waits for its output. `bytes_in` is what crossed the network for it.
    fn compute(&mut self, header: Header, payload: Payload, quietly: bool, bytes_in: u64) {
        let (payload, permit) = payload.into_parts();
        let Some(lease) = self.leases.of(header.layer, header.epoch) else { return };
        let (rows, layers) = (header.rows, lease.layers);
        if let Some(word) = self.words.get_mut(&header.layer) {
            word.received(&header, &payload, quietly);
        }
        let job = Job {
            session: self.stage.place(),
            epoch: header.epoch,
            layer: layers.start(),
            from: header.from,
            rows,
            input: JobInput::Wire(header.wire, payload),
            // One who follows signs for its outputs as well.
            want: Want::Activations,
            attempt: header.attempt,
            draft: DraftIds::default(),
            foresee: 0,
        };
        let worker = self.stage.worker.get();
        if worker.run(job).is_ok() {
            self.jobs += 1;
            self.came.push_back((self.idle_since, permit));
            let layers = layers.len();
            let _ = self.stage.books.try_send(Served::Rows { rows, layers, bytes_in, bytes_out: 0 });
            self.hops.began(header.layer, header.from, || {
                tracing::debug_span!(
                    "hop",
                    layer = header.layer,
                    epoch = header.epoch,
                    from = header.from,
                    rows
                )
            });
        } else {
            self.replay.clear();
            self.tell_requester(Kind::Failed, header.layer, 0, Bytes::from_static(b"the worker died"));
        }
    }

    async fn output(&mut self, output: Output) {
        if output.epoch == self.epoch {
            self.jobs = self.jobs.saturating_sub(1);
            let now = Instant::now();
            if let Some((came, _)) = self.came.pop_front() {
                let pass_ms = output.compute_us as f64 / 1e3;
                let ms = ((now - came).as_secs_f64() * 1e3 - pass_ms).max(0.0);
                let _ = self.stage.books.try_send(Served::Waited { ms });
            }
            // Until now it waited for this session's own rows: the chunks of one prompt are no queue to the next prompt.
            if let Some((came, _)) = self.came.front_mut() {
                *came = now;
            }
        }
        self.idle_since = Instant::now();
        let start = output.layers.start();
        self.hops.ended(start, output.from);
        match output.body {
            Body::Activations(wire, bytes) => {
                let Some(lease) = self.leases.of(start, output.epoch) else { return };
                #[cfg(debug_assertions)]
                let bytes = crate::cheat::corrupted(output.from, output.rows, wire, bytes);
                let (next, log) = (lease.next.as_ref().map(|next| next.node), lease.log);
                let (follow, identity) = (lease.role != Role::Stage, &self.stage.identity);
                let inputs = self.inputs.get(&start).copied().unwrap_or(Inputs::from(0));
                let said = self
                    .words
                    .get_mut(&start)
                    .and_then(|word| word.computed(output.from, output.rows, wire, &bytes, follow, identity));
                if let Some(finding) = said.as_ref().and_then(|said| said.finding) {
                    self.found(start, finding);
                    if matches!(finding, Finding::Wrong(_)) {
                        return;
                    }
                }
                let header = Header {
                    kind: Kind::Activations,
                    wire,
                    epoch: output.epoch,
                    layer: output.layers.end(),
                    from: output.from,
                    rows: output.rows,
                    len: bytes.len() as u32,
                    attempt: output.attempt,
                    drafted: said.as_ref().map_or(0, |said| said.drafted),
                    since: inputs.since(output.from),
                };
                // What an abandoned attempt gave is of no use to the next stage.
                let abandoned = output.attempt < inputs.attempt();
                if !abandoned && !said.as_ref().is_some_and(|said| said.feed) {
                    self.pass_on(header, Bytes::from(bytes), next, log);
                }
                if let Some(commit) = said.and_then(|said| said.commit)
                    && !withholds()
                {
                    let payload = Bytes::copy_from_slice(&commit.write());
                    self.tell_requester(Kind::Commit, start, commit.pos, payload);
                }
            }
            Body::NeedReplay { have } => {
                if let Some(inputs) = self.inputs.get_mut(&start) {
                    inputs.cut(have);
                }
                self.tell_requester(Kind::NeedReplay, start, have, Bytes::new());
            }
            Body::Failed(why) => {
                let (header, why) = Header::failed(output.epoch, start, 0, &why);
                let why = Bytes::copy_from_slice(why);
                self.send(self.stage.requester, header, why);
            }
            Body::Sampled(_) | Body::Nothing => {}
        }
    }

    /// Rows show what a state that was fetched is worth: if it is wrong all that was computed on it goes, and who gave it is remembered.
    fn found(&mut self, start: u32, finding: Finding) {
        let Some(model) = self.leases.get(start).map(|lease| lease.model) else { return };
        let (books, worker) = (self.stage.books.clone(), self.stage.worker.get());
        let (Finding::Wrong(liable) | Finding::Lied(liable) | Finding::Comparable(liable, _)) = finding;
        let Liable { holder, number, place } = liable;
        self.stage.prefixes.forget(number);
        match finding {
            Finding::Comparable(_, positions) => {
                let open = (self.stage.place(), start);
                tokio::spawn(async move {
                    let same = worker.agree(open, place, positions).await;
                    tracing::info!(%holder, positions, ?same, "a state that was fetched is compared");
                    worker.forget(place);
                    if let Ok(false) = same {
                        let _ = books.send(Served::Misled { by: holder, model }).await;
                    }
                });
                return;
            }
            Finding::Lied(_) => {}
            Finding::Wrong(_) => {
                if let Some(inputs) = self.inputs.get_mut(&start) {
                    inputs.cut(0);
                }
                self.tell_requester(Kind::NeedReplay, start, 0, Bytes::new());
            }
        }
        tracing::warn!(%holder, session = %self.stage.session, "a state that was fetched is wrong");
        worker.forget(place);
        let _ = books.try_send(Served::Misled { by: holder, model });
    }

    /// An output goes to the next stage, and to the requester if it keeps the log.
    fn pass_on(&mut self, header: Header, bytes: Bytes, next: Option<NodeId>, log: bool) {
        let bytes_out = bytes.len() as u64 * (1 + u64::from(log && next.is_some()));
        let _ = self.stage.books.try_send(Served::Rows { rows: 0, layers: 0, bytes_in: 0, bytes_out });
        let requester = self.stage.requester;
        self.send(next.unwrap_or(requester), header, bytes.clone());
        if log && next.is_some() {
            self.send(requester, header, bytes);
        }
    }

    /// Says that it computes, or that nothing comes.
    fn beacon(&mut self) {
        let computes = self.jobs > 0 || self.settling.is_some();
        if !computes && !self.neighbors.is_told_of_waiting(self.idle_since) {
            return;
        }
        let starts: Vec<u32> = self.leases.all().map(|lease| lease.layers.start()).collect();
        for start in starts {
            match computes {
                true => self.tell_requester(Kind::Beacon, start, 0, Bytes::new()),
                false => self.say_waiting(start),
            }
        }
    }

    /// Tells the requester how far the inputs of the segment that starts at `layer` have come. One that follows waits for nothing.
    fn say_waiting(&mut self, layer: u32) {
        let runs = self.leases.get(layer).is_some_and(|lease| lease.role == Role::Stage);
        if let Some(inputs) = self.inputs.get(&layer).filter(|_| runs && self.replay.is_empty()) {
            self.tell_requester(Kind::Waits, layer, inputs.reached(), Bytes::new());
        }
    }

    /// A frame about the segment that starts at `layer`, to the requester.
    fn tell_requester(&mut self, kind: Kind, layer: u32, from: u32, payload: Bytes) {
        let Some(lease) = self.leases.get(layer) else { return };
        let attempt = self.inputs.get(&layer).map_or(0, Inputs::attempt);
        let header = Header::signal(kind, lease.epoch, layer, from, payload.len()).under(attempt);
        self.send(self.stage.requester, header, payload);
    }

    fn send(&mut self, node: NodeId, header: Header, payload: Bytes) {
        // The requester asked over a connection that is there, and where the next stage may be dialed was decided when the
        // lease named it.
        let contact = || Contact { node, addresses: Vec::new() };
        self.outboxes.send(node, contact, header, payload);
    }
}

/// Whether this node signs nothing, which only tests make it do.
fn withholds() -> bool {
    #[cfg(debug_assertions)]
    let withholds = crate::cheat::withholds();
    #[cfg(not(debug_assertions))]
    let withholds = false;
    withholds
}
