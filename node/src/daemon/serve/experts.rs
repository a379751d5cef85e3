//! Experts of a layer on several nodes: the node that leads the layers, and those that compute experts for it.
//!
//! A node that leads ([`Leader`]) runs layers of which it holds some experts, and has named the nodes that hold the others
//! (`--experts-from`). While each expert of each of its layers has a node, it announces the layers, as slower as the way to
//! those nodes makes them ([`ExpertTimes`]); when one is gone, it takes them back. What a holder says it is believed: a
//! wrong output would be this node's lie, so none is asked that its owner has not named.
//!
//! A node that holds experts ([`Holder`]) announces nothing. Any node of the swarm may lead with it: that takes a place for sessions, as
//! a prompt of another node does.
//!
//! Deadlines: [`GREET`] for a holder's offer, [`WORK`] and more for outputs; holders that are not there are looked for every [`LOOK`], and
//! measured every [`MEASURE`].
//!
//! Limits: one hop, so a node that leads holds experts for no other; the first model only; a holder loads the other weights of its
//! layers too.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use p2p::{
    Governor, HopError, Network, Permit, Plane, Stream,
    wire::{
        announce::Class,
        control::Contact,
        experts::{
            MAX_VALUES, Message, Offer, PREFIX_LEN, Prefix, Work, read_hello, read_reason, write_reason,
        },
    },
};
use scheduler::{ExpertRange, LayerRange, ModelId, NodeId, experts::assign, governor::Resource};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{interval, timeout},
};

use super::workers::Held;
use crate::worker::{ExpertAsks, ExpertQuestion, ExpertShape, ExpertTimes, Worker};

/// Questions of workers that wait: the pieces of one pass, and of those of a worker that is started beside another.
const QUESTIONS: usize = 64;
/// A holder that is there says what it holds within a few round trips.
const GREET: Duration = Duration::from_secs(5);
/// A holder that has not answered by then, and [`LATE`] times what it takes, is given up. Shorter, and a busy machine is left.
const WORK: Duration = Duration::from_secs(3);
/// See [`WORK`].
const LATE: f64 = 20.0;
/// Between two looks for holders that are not there.
const LOOK: Duration = Duration::from_secs(2);
/// Between two measurements of a holder with nothing to do.
const MEASURE: Duration = Duration::from_secs(15);
/// A node that leads and does not measure for so long leads no more.
const REST: Duration = Duration::from_secs(60);
/// Round trips of a measurement; the median counts.
const TRIPS: usize = 5;
/// Experts that a measured row visits: about half of those it visits in most models.
const VISITED: u32 = 4;
/// Rows of a measured part of a prompt.
const ROWS: u32 = 32;
/// What a step for a prompt moves the time of a holder by, in parts of the difference.
const LEARNS: f64 = 0.05;
/// A change of a time that others should hear of, in parts of it.
const NEWS: f64 = 0.5;

/// What a node that leads needs to begin: the ends that stay with the daemon.
pub(super) struct Opened {
    /// For the specification of its worker.
    pub(super) asks: ExpertAsks,
    questions: mpsc::Receiver<ExpertQuestion>,
    found: watch::Sender<Result<ExpertTimes, String>>,
}

impl Opened {
    pub(super) fn new() -> Self {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (found, seen) = watch::channel(Err("the nodes named are looked for".into()));
        Self { asks: ExpertAsks { questions, found: seen }, questions: asked, found }
    }
}

/// A holder that has said what it holds.
struct Known {
    node: NodeId,
    stream: Stream,
    offer: Offer,
    times: ExpertTimes,
    measured: Instant,
}

/// Reaches the experts that this node's layers need elsewhere.
pub(super) struct Leader {
    network: Network,
    model: ModelId,
    layers: Vec<LayerRange>,
    own: ExpertRange,
    shape: ExpertShape,
    names: Vec<NodeId>,
    known: Vec<Known>,
    /// Why others of those named are not among these, for people.
    silent: BTreeMap<NodeId, String>,
    found: watch::Sender<Result<ExpertTimes, String>>,
    /// Told when layers are to be announced, or no more.
    changed: mpsc::Sender<()>,
}

impl Leader {
    /// Runs until no worker has a question any more. `changed` hears when others should hear of something.
    pub(super) fn start(network: Network, held: &Held, opened: Opened, changed: mpsc::Sender<()>) {
        let Some((share, shape)) = held.spec.experts.as_ref().zip(held.ready.abilities.experts) else {
            return;
        };
        let mut names = share.from.clone();
        names.sort_unstable();
        names.dedup();
        let leader = Self {
            network,
            model: held.id,
            layers: held.ready.layers.clone(),
            own: share.range,
            shape,
            names,
            known: Vec::new(),
            silent: BTreeMap::new(),
            found: opened.found,
            changed,
        };
        tokio::spawn(leader.run(opened.questions));
    }

    async fn run(mut self, mut questions: mpsc::Receiver<ExpertQuestion>) {
        let mut looking: JoinSet<Result<Known, (NodeId, String)>> = JoinSet::new();
        let mut sought = Vec::new();
        let mut clock = interval(LOOK);
        loop {
            tokio::select! {
                question = questions.recv() => {
                    let Some(ExpertQuestion { work, reply }) = question else { return };
                    let _ = reply.send(self.answer(&work).await);
                }
                Some(met) = looking.join_next() => {
                    match met {
                        Ok(Ok(known)) => {
                            self.silent.remove(&known.node);
                            self.known.push(known);
                        }
                        Ok(Err((node, why))) => drop(self.silent.insert(node, why)),
                        Err(_) => {}
                    }
                    if looking.is_empty() {
                        sought.clear();
                    }
                    self.tell();
                }
                place = gone(&mut self.known) => {
                    drop(self.known.remove(place));
                    self.tell();
                }
                _ = clock.tick() => {
                    self.measure().await;
                    self.tell();
                    let lacking = self.names.iter().filter(|name| self.known.iter().all(|known| known.node != **name));
                    for node in lacking.copied().filter(|node| !sought.contains(node)).collect::<Vec<_>>() {
                        sought.push(node);
                        looking.spawn(meet(self.network.clone(), node, self.model, self.shape));
                    }
                }
            }
        }
    }

    /// Says whether the layers can be computed now, and what they take longer, or what is missing.
    fn tell(&self) {
        let most = |time: &dyn Fn(&ExpertTimes) -> f64| {
            self.known.iter().map(|known| time(&known.times)).fold(0.0, f64::max)
        };
        let now = match self.missing() {
            Some(missing) => Err(missing),
            // They compute side by side: the slowest one is waited for.
            None => Ok(ExpertTimes {
                decode_ms: most(&|times| times.decode_ms),
                prefill_ms: most(&|times| times.prefill_ms),
            }),
        };
        let is_news = match (&*self.found.borrow(), &now) {
            (Ok(before), Ok(now)) => {
                (now.decode_ms - before.decode_ms).abs() > NEWS * before.decode_ms.max(1e-3)
            }
            (before, now) => before != now,
        };
        if is_news {
            tracing::info!(?now, "experts elsewhere");
            drop(self.found.send_replace(now));
            // One that was not read yet is enough.
            let _ = self.changed.try_send(());
        }
    }

    /// The first expert that no holder has, and what is the matter with those named.
    fn missing(&self) -> Option<String> {
        let mut layers = self.layers.iter().flat_map(|range| range.start()..range.end());
        let lacks = |layer| self.assigned(layer).err().map(|expert| (layer, expert));
        let (layer, expert) = layers.find_map(lacks)?;
        let silent = self.silent.iter().map(|(node, why)| format!("; {node} {why}"));
        Some(format!("expert {expert} of layer {layer} has no node{}", silent.collect::<String>()))
    }

    /// Which of [`Leader::known`] computes each expert of `layer`, or the first that none of them holds.
    fn assigned(&self, layer: u32) -> Result<Vec<Option<usize>>, u32> {
        let holders: Vec<_> =
            self.known.iter().map(|known| (&known.offer.layers[..], known.offer.experts)).collect();
        assign(layer, (self.own, self.shape.count), &holders)
    }

    /// The outputs of `work`; where a holder fails, of another one that holds the same.
    async fn answer(&mut self, work: &[u8]) -> Result<Vec<u8>, String> {
        let work = Work::decode(work).map_err(|malformed| malformed.to_string())?;
        loop {
            let assigned = self.assigned(work.layer).map_err(|expert| {
                format!("no node that was named holds expert {expert} of layer {}", work.layer)
            })?;
            let of = |expert: u32| assigned.get(expert as usize).copied().flatten();
            let asked = self.known.iter_mut().enumerate().map(|(place, known)| {
                let part = work.part(|expert| of(expert) == Some(place));
                async move {
                    match part.visits.is_empty() {
                        true => Ok(Vec::new()),
                        false => known.ask(&part).await,
                    }
                }
            });
            let outputs = join_all(asked).await;
            let failed: Vec<bool> = outputs.iter().map(Result::is_err).collect();
            if !failed.contains(&true) {
                let outputs: Vec<Vec<u8>> = outputs.into_iter().flatten().collect();
                return joined(&work, of, &outputs).ok_or_else(|| "outputs of another length".to_owned());
            }
            let mut failed = failed.into_iter();
            self.known.retain(|_| !failed.next().unwrap_or(false));
            self.tell();
        }
    }

    /// Measures holders again that were not for a while; forgets those that are gone.
    async fn measure(&mut self) {
        let shape = self.shape;
        let due = |known: &Known| known.measured.elapsed() >= MEASURE;
        for mut known in std::mem::take(&mut self.known) {
            match due(&known) {
                false => self.known.push(known),
                true => {
                    if known.measure(shape).await.is_ok() {
                        self.known.push(known);
                    }
                }
            }
        }
    }
}

/// Waits until a holder that was asked nothing is gone: it says nothing then, so whatever comes from it is the end. Its place.
async fn gone(known: &mut [Known]) -> usize {
    let ends = known.iter_mut().enumerate().map(|(place, known)| {
        Box::pin(async move {
            let _ = known.stream.recv_exact(&mut [0]).await;
            tracing::warn!(node = %known.node, "a holder of experts is gone");
            place
        })
    });
    let mut ends: FuturesUnordered<_> = ends.collect();
    match ends.next().await {
        Some(place) => place,
        None => std::future::pending().await,
    }
}

/// The outputs of all visits in their order, out of those of each holder.
fn joined(work: &Work, of: impl Fn(u32) -> Option<usize>, outputs: &[Vec<u8>]) -> Option<Vec<u8>> {
    let row = 4 * work.width as usize;
    let mut rest: BTreeMap<usize, &[u8]> = outputs.iter().map(Vec::as_slice).enumerate().collect();
    let mut all = Vec::with_capacity(work.visits.len() * row);
    for (expert, _) in &work.visits {
        let rest = rest.get_mut(&of(*expert)?)?;
        let (next, left) = rest.split_at_checked(row)?;
        all.extend_from_slice(next);
        *rest = left;
    }
    rest.values().all(|rest| rest.is_empty()).then_some(all)
}

/// Meets a holder: what it holds, and what it takes to ask it; or why it computes nothing for this node.
async fn meet(
    network: Network,
    node: NodeId,
    model: ModelId,
    shape: ExpertShape,
) -> Result<Known, (NodeId, String)> {
    let greeted = async {
        // Heard of through others, maybe never met; where it is, the network heard too.
        let _ = network.connect(&Contact { node, addresses: Vec::new() }).await;
        let mut stream = network.open(node, Plane::Experts).await?;
        send(&mut stream, Message::Hello, model.as_bytes()).await?;
        match receive(&mut stream, None).await? {
            (Message::Offer, body, _) => {
                Ok(Ok((stream, Offer::decode(&body).map_err(|_| HopError::Corrupt)?)))
            }
            (Message::Failed, why, _) => Ok(Err(format!("says that {}", read_reason(&why)))),
            _ => Err(HopError::Corrupt),
        }
    };
    let greeted = timeout(GREET, greeted).await.unwrap_or(Err(HopError::Timeout));
    let (stream, offer) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(why)) => return Err((node, why)),
        Err(_) => return Err((node, "is not there".into())),
    };
    let times = ExpertTimes { decode_ms: 0.0, prefill_ms: 0.0 };
    let mut known = Known { node, stream, offer, times, measured: Instant::now() };
    match known.measure(shape).await {
        Ok(()) => Ok(known),
        Err(_) => Err((node, format!("computes no experts of layer {}", shape.layer))),
    }
}

impl Known {
    /// The outputs of what it holds.
    async fn ask(&mut self, work: &Work) -> Result<Vec<u8>, HopError> {
        let rows = work.rows.len() as f64 / f64::from(4 * work.width.max(1));
        let late_ms = LATE * (self.times.decode_ms + rows * self.times.prefill_ms);
        let patience = WORK + Duration::from_secs_f64(late_ms / 1e3);
        let began = Instant::now();
        let asked = async {
            send(&mut self.stream, Message::Work, &work.encode()).await?;
            match receive(&mut self.stream, None).await? {
                (Message::Outputs, outputs, _) => Ok(outputs),
                (Message::Failed, why, _) => {
                    tracing::info!(node = %self.node, why = read_reason(&why), "experts elsewhere failed");
                    Err(HopError::Closed)
                }
                _ => Err(HopError::Corrupt),
            }
        };
        let outputs = timeout(patience, asked).await.unwrap_or(Err(HopError::Timeout));
        let outputs = outputs.inspect_err(|error| {
            tracing::warn!(node = %self.node, %error, "a holder of experts is gone");
        })?;
        if outputs.len() != work.visits.len() * 4 * work.width as usize {
            return Err(HopError::Corrupt);
        }
        // What is asked for prompts measures as well, and those wait for nothing else.
        self.measured = Instant::now();
        if rows <= 1.0 {
            let ms = began.elapsed().as_secs_f64() * 1e3;
            self.times.decode_ms += LEARNS * (ms - self.times.decode_ms);
        }
        Ok(outputs)
    }

    /// What a row takes, and one of many.
    async fn measure(&mut self, shape: ExpertShape) -> Result<(), HopError> {
        let first = self.offer.experts.start();
        let visited = first..self.offer.experts.end().min(first + VISITED);
        let work = |rows: u32| {
            let visits = visited.clone().flat_map(|expert| (0..rows).map(move |row| (expert, row)));
            let rows =
                (0..rows * shape.width).flat_map(|at| (((at * 37 % 101) as f32 - 50.0) / 50.0).to_le_bytes());
            Work { layer: shape.layer, width: shape.width, visits: visits.collect(), rows: rows.collect() }
        };
        let (one, many) =
            (work(1), work(ROWS.min((MAX_VALUES as u32 / VISITED / shape.width.max(1)).max(1))));
        let mut ms = [0.0; TRIPS];
        // The first one makes both processes ready.
        self.ask(&one).await?;
        for ms in &mut ms {
            let asked = Instant::now();
            self.ask(&one).await?;
            *ms = asked.elapsed().as_secs_f64() * 1e3;
        }
        ms.sort_unstable_by(f64::total_cmp);
        let asked = Instant::now();
        self.ask(&many).await?;
        let rows = many.rows.len() as f64 / f64::from(4 * shape.width.max(1));
        let prefill_ms = asked.elapsed().as_secs_f64() * 1e3 / rows;
        self.times = ExpertTimes { decode_ms: ms[TRIPS / 2], prefill_ms };
        Ok(())
    }
}

/// Computes experts for a node that leads.
pub(crate) struct Holder {
    governor: Governor,
    model: ModelId,
    worker: watch::Receiver<Worker>,
    /// What it holds, or why it computes nothing for others.
    offer: Result<Offer, &'static str>,
}

impl Holder {
    /// What computes experts of `held` for nodes that lead.
    pub(crate) fn of(held: &Held, governor: Governor) -> Self {
        let holds = held.spec.experts.as_ref().filter(|share| share.from.is_empty());
        let offer = match holds {
            None => Err("no experts are computed for others here"),
            Some(_) if held.ready.class != Class::D1 => {
                Err("this machine is of class approx: its outputs would be taken for lies")
            }
            Some(share) => Ok(Offer { layers: held.ready.layers.clone(), experts: share.range }),
        };
        Self { governor, model: held.id, worker: held.worker.subscribe(), offer }
    }

    /// Answers a node that leads until it is gone; without a seat it is told so.
    pub(crate) async fn answer<S: Send>(self, from: NodeId, mut stream: Stream, seat: Option<S>) {
        let served = self.serve(from, &mut stream, seat.is_some()).await;
        tracing::debug!(%from, ?served, "a node led with experts from here");
        drop(seat);
    }

    async fn serve(&self, from: NodeId, stream: &mut Stream, is_seated: bool) -> Result<(), HopError> {
        let hello = timeout(GREET, receive(stream, Some((&self.governor, from)))).await;
        let (Message::Hello, model, _) = hello.map_err(|_| HopError::Timeout)?? else {
            return Err(HopError::Corrupt);
        };
        let model = read_hello(&model).map_err(|_| HopError::Corrupt)?;
        let offer = match &self.offer {
            Err(why) => Err(*why),
            Ok(_) if model != self.model => Err("another model is held here"),
            Ok(_) if !is_seated => Err("as many sessions run here as may"),
            Ok(offer) => Ok(offer),
        };
        let offer = match offer {
            Ok(offer) => offer,
            Err(why) => return send(stream, Message::Failed, &write_reason(why)).await,
        };
        send(stream, Message::Offer, &offer.encode()).await?;
        loop {
            let next = timeout(REST, receive(stream, Some((&self.governor, from)))).await;
            let (kind, work, _bytes) = next.map_err(|_| HopError::Timeout)??;
            if kind != Message::Work {
                return Err(HopError::Corrupt);
            }
            let worker = self.worker.borrow().clone();
            match worker.experts(work).await {
                Ok(outputs) => send(stream, Message::Outputs, &outputs).await?,
                Err(fault) => send(stream, Message::Failed, &write_reason(&fault.to_string())).await?,
            }
        }
    }
}

async fn send(stream: &mut Stream, kind: Message, body: &[u8]) -> Result<(), HopError> {
    stream.send(&Prefix::of(kind, body).write(), body).await
}

/// The next message; one of another node has its memory of the governor for as long as the permit lives.
async fn receive(
    stream: &mut Stream,
    others: Option<(&Governor, NodeId)>,
) -> Result<(Message, Vec<u8>, Option<Permit>), HopError> {
    let mut prefix = [0; PREFIX_LEN];
    stream.recv_exact(&mut prefix).await?;
    let Prefix { kind, len } = Prefix::read(&prefix).map_err(|_| HopError::Corrupt)?;
    let taken = others.map(|(governor, from)| governor.take_for(from, Resource::Bytes, u64::from(len)));
    let permit = taken.transpose().map_err(|_| HopError::Closed)?;
    let mut body = Vec::new();
    stream.recv_payload(len as usize, kind.cap(), &mut body).await?;
    Ok((kind, body, permit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_several_holders_come_in_the_order_of_the_visits() {
        let row = |value: u8| vec![value; 4];
        let work =
            Work { layer: 0, width: 1, visits: vec![(1, 0), (1, 1), (2, 0), (5, 1)], rows: vec![0; 8] };
        let of = |expert: u32| Some(usize::from(expert == 2));
        let outputs = [[row(10), row(11), row(51)].concat(), row(20)];
        let all = [row(10), row(11), row(20), row(51)].concat();
        assert_eq!(joined(&work, of, &outputs), Some(all));
        assert_eq!(joined(&work, of, &[row(1), row(2)]), None, "too few");
        assert_eq!(joined(&work, of, &[vec![0; 16], row(2)]), None, "too many");
        assert_eq!(joined(&work, |_| None, &outputs), None, "no holder");
    }
}
