//! What leases taught: how busy nodes truly are, what they truly hold, and who cannot reach whom.
//!
//! Prompts learn it one by one while they take out leases, and the next route of any of them should know it. So this is
//! the one place both sides share: prompts write, the daemon reads before it routes ([`scheduler::lease`] decides what it
//! means).
//!
//! They also know when a node has got room again, because a prompt of this node gave it back: a prompt that waits for
//! room ([`Waiting`]) is woken then, one prompt for each that ended. It may be about another model; the first of a line
//! look again within a second, and [`scheduler::backlog`] decides which prompts do not wait, or no longer.
//!
//! Limits: [`MOST`] corrections wait for the next route, and of as many nodes is known what they do not compute; beyond, the oldest is
//! forgotten, which costs a refused lease.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use p2p::wire::control::Refusal;
use scheduler::{
    LayerRange, LayerSet, Millis, ModelId, NodeId, Request, SessionKind,
    backlog::{Backlog, Shed, Ticket},
    lease::{Leases, Load, Verdict},
};
use tokio::sync::Notify;

/// Corrections waiting for the next route.
const MOST: usize = 256;

/// How long a node that does not compute sessions of a kind is not asked for one, ms: it may start again on another device, or as
/// another version.
const LACKS_MS: u64 = 600_000;

/// A prompt that waits for room looks for it as often at least: it may have become free without a word to this node.
const ROOM: Duration = Duration::from_secs(1);

/// A correction of what was believed.
#[derive(Clone, PartialEq, Debug)]
pub enum Feedback {
    /// Of a model, a node serves only these layers.
    Holds(NodeId, ModelId, LayerSet),
    /// These two cannot reach each other.
    Apart(NodeId, NodeId),
    /// A node answered neither a dial nor a lease.
    Silent(NodeId),
    /// A node answered this one so late, ms.
    Away(NodeId, f64),
}

#[derive(Debug, Default)]
struct Learned {
    leases: Leases,
    waiting: VecDeque<Feedback>,
    /// Which nodes do not compute sessions of which model and kind, and since when that is known.
    lacking: VecDeque<(Millis, NodeId, ModelId, SessionKind)>,
    /// Prompts that wait for room, by model.
    backlogs: BTreeMap<ModelId, Backlog>,
}

impl Learned {
    fn lack(&mut self, now: Millis, node: NodeId, model: ModelId, kind: SessionKind) {
        if kind == SessionKind::DEFAULT {
            return;
        }
        let is_old = |entry: &(Millis, NodeId, ModelId, SessionKind)| {
            (entry.1, entry.2, entry.3) == (node, model, kind)
        };
        self.lacking.retain(|entry| !is_old(entry));
        if self.lacking.len() == MOST {
            self.lacking.pop_front();
        }
        self.lacking.push_back((now, node, model, kind));
    }

    fn lacking_at(&self, now: Millis, model: ModelId, kind: SessionKind) -> BTreeSet<NodeId> {
        let recent = self.lacking.iter().filter(|(since, ..)| now.since(*since) < LACKS_MS);
        recent.filter(|entry| (entry.2, entry.3) == (model, kind)).map(|entry| entry.1).collect()
    }
}

/// A handle on what was learned; clones share it.
#[derive(Clone, Debug)]
pub struct FeedbackQueue {
    began: Instant,
    learned: Arc<Mutex<Learned>>,
    /// Wakes who waits for room, the first first.
    freed: Arc<Notify>,
}

impl Default for FeedbackQueue {
    fn default() -> Self {
        Self { began: Instant::now(), learned: Arc::default(), freed: Arc::default() }
    }
}

impl FeedbackQueue {
    fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        // Every change leaves it whole, so a panic elsewhere spoils nothing.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All nodes of a route granted their leases: whether to take it. See [`Leases::heard`].
    pub fn heard(&self, looks: u32, loads: &[Load], believed: &BTreeMap<NodeId, u32>) -> Verdict {
        let believed = |node| believed.get(&node).copied().unwrap_or(0);
        self.learned().leases.heard(self.now(), looks, loads, believed)
    }

    /// A node refused a lease on layers of `model`; `held` is what it says it serves of it instead.
    pub fn refused(&self, node: NodeId, model: ModelId, reason: Refusal, held: &[LayerRange]) {
        let now = self.now();
        let mut learned = self.learned();
        if reason == Refusal::NotHeld {
            wait(&mut learned, Feedback::Holds(node, model, LayerSet::new(held.iter().copied())));
        } else {
            learned.leases.refused(now, node);
        }
    }

    /// A node does not compute sessions of `kind` with its layers of `model`. Dense ones that keep f16 are computed by all.
    pub fn lacks(&self, node: NodeId, model: ModelId, kind: SessionKind) {
        let now = self.now();
        self.learned().lack(now, node, model, kind);
    }

    /// The nodes of which that is known.
    pub fn lacking(&self, model: ModelId, kind: SessionKind) -> BTreeSet<NodeId> {
        self.learned().lacking_at(self.now(), model, kind)
    }

    /// A prompt has given its place at a node back: if the node was full, it is so no more.
    pub fn freed(&self, node: NodeId) {
        let now = self.now();
        let mut learned = self.learned();
        learned.leases.freed(node);
        learned.backlogs.values_mut().for_each(|line| line.moved(now));
        drop(learned);
        self.freed.notify_one();
    }

    /// A prompt of this node got a token.
    pub fn advanced(&self) {
        let now = self.now();
        self.learned().backlogs.values_mut().for_each(|line| line.moved(now));
    }

    /// Whether a node has let a prompt of this one in lately.
    pub fn serves(&self, node: NodeId) -> bool {
        self.learned().leases.serves(self.now(), node)
    }

    /// A node may have been started again: what it said before says nothing of it.
    pub fn forget(&self, node: NodeId) {
        let mut learned = self.learned();
        learned.leases.forget(node);
        learned.lacking.retain(|entry| entry.1 != node);
    }

    /// Two nodes cannot reach each other.
    pub fn apart(&self, one: NodeId, other: NodeId) {
        wait(&mut self.learned(), Feedback::Apart(one, other));
    }

    /// A node answered neither a dial nor a lease.
    pub fn silent(&self, node: NodeId) {
        wait(&mut self.learned(), Feedback::Silent(node));
    }

    /// A node answered this one so late, ms.
    pub fn away(&self, node: NodeId, rtt_ms: f64) {
        wait(&mut self.learned(), Feedback::Away(node, rtt_ms));
    }

    /// What waits, for the view.
    pub fn take(&self) -> VecDeque<Feedback> {
        std::mem::take(&mut self.learned().waiting)
    }

    /// Prices what was heard into a request. See [`Leases::amend`].
    pub fn amend(&self, request: &mut Request, announced: impl Fn(NodeId) -> u32) {
        self.learned().leases.amend(self.now(), request, announced);
    }
}

/// A prompt that may have to wait for room at the nodes of a model. It leaves the line when dropped.
pub struct Waiting {
    feedback: FeedbackQueue,
    model: ModelId,
    ticket: Option<Ticket>,
}

impl Waiting {
    /// A prompt for `model` that does not wait yet.
    pub fn new(feedback: FeedbackQueue, model: ModelId) -> Self {
        Self { feedback, model, ticket: None }
    }

    /// Whether others wait, so that a prompt which has not looked for room yet goes behind them.
    pub fn others(&self) -> bool {
        self.feedback.learned().backlogs.contains_key(&self.model)
    }

    /// Waits until room is worth looking for.
    ///
    /// # Errors
    /// [`Shed`] where it would wait too long, or the line stands.
    pub async fn room(&mut self) -> Result<(), Shed> {
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None => {
                let now = self.feedback.now();
                let ticket = self.feedback.learned().backlogs.entry(self.model).or_default().enter(now)?;
                *self.ticket.insert(ticket)
            }
        };
        loop {
            let woken = tokio::time::timeout(ROOM, self.feedback.freed.notified()).await.is_ok();
            let now = self.feedback.now();
            let mut learned = self.feedback.learned();
            let Some(line) = learned.backlogs.get_mut(&self.model) else { return Ok(()) };
            if let Some(shed) = line.shed(ticket, now) {
                return Err(shed);
            }
            if woken || line.is_in_front(ticket) {
                return Ok(());
            }
        }
    }

    /// It was let in: it waits no more, and the next in line may look.
    pub fn let_in(&mut self) {
        let now = self.feedback.now();
        if self.ticket.is_some() {
            self.leave(|line, ticket| line.let_in(ticket, now));
            self.feedback.freed.notify_one();
        }
    }

    fn leave(&mut self, how: impl FnOnce(&mut Backlog, Ticket)) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut learned = self.feedback.learned();
        if let Some(line) = learned.backlogs.get_mut(&self.model) {
            how(line, ticket);
            if line.is_empty() {
                learned.backlogs.remove(&self.model);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave(Backlog::leave);
    }
}

fn wait(learned: &mut Learned, lesson: Feedback) {
    if learned.waiting.len() == MOST {
        learned.waiting.pop_front();
    }
    learned.waiting.push_back(lesson);
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::{CacheType, Shape};

    #[test]
    fn nodes_that_do_not_compute_a_kind_are_known_for_a_while() {
        let (mut learned, model, other) = (Learned::default(), ModelId::numbered(1), ModelId::numbered(2));
        let (small, dense) =
            (SessionKind { cache: CacheType::Q8, ..SessionKind::DEFAULT }, SessionKind::DEFAULT);
        let (one, two) = (NodeId::numbered(1), NodeId::numbered(2));
        learned.lack(Millis(0), one, model, small);
        learned.lack(Millis(5), two, model, small);
        learned.lack(Millis(5), two, model, dense);
        assert_eq!(learned.lacking_at(Millis(10), model, small), [one, two].into());
        assert!(learned.lacking_at(Millis(10), model, dense).is_empty(), "what all compute says nothing");
        assert!(learned.lacking_at(Millis(10), other, small).is_empty(), "of another model nothing is known");
        assert_eq!(learned.lacking_at(Millis(LACKS_MS), model, small), [two].into());
        learned.lack(Millis(LACKS_MS), one, model, small);
        assert_eq!(learned.lacking_at(Millis(LACKS_MS + 5), model, small), [one].into());
        for number in 0..2 * MOST as u64 {
            learned.lack(Millis(0), NodeId::numbered(number), model, small);
        }
        assert_eq!(learned.lacking.len(), MOST);
    }

    #[test]
    fn a_node_that_was_started_again_may_compute_another_kind() {
        let (feedback, model) = (FeedbackQueue::default(), ModelId::numbered(1));
        let small = SessionKind { cache: CacheType::Q4, ..SessionKind::DEFAULT };
        let [one, two] = [1, 2].map(NodeId::numbered);
        [one, two].iter().for_each(|node| feedback.lacks(*node, model, small));
        feedback.forget(one);
        assert_eq!(feedback.lacking(model, small), [two].into());
    }

    #[test]
    fn what_one_prompt_learns_the_next_one_knows() {
        let feedback = FeedbackQueue::default();
        let (busy, full, liar) = (NodeId::numbered(1), NodeId::numbered(2), NodeId::numbered(3));
        let loads = [Load { node: busy, sessions: 9, lanes: 2 }];
        assert_eq!(feedback.clone().heard(0, &loads, &BTreeMap::new()), Verdict::Again);
        let model = ModelId::numbered(1);
        feedback.refused(full, model, Refusal::Busy, &[]);
        let held = LayerRange::new(2, 4).unwrap();
        feedback.refused(liar, model, Refusal::NotHeld, &[held]);
        feedback.apart(busy, full);
        let mut request = Request::new(NodeId::numbered(9), Shape::ONE_TOKEN);
        feedback.amend(&mut request, |_| 1);
        assert_eq!(request.in_flight, [(busy, 8)]);
        assert!(request.policy.deny.contains(&full) && !request.policy.deny.contains(&liar));
        let waiting = feedback.take();
        assert_eq!(waiting, [Feedback::Holds(liar, model, held.into()), Feedback::Apart(busy, full)]);
        assert!(feedback.take().is_empty());
        assert!(feedback.serves(busy) && !feedback.serves(full));
        feedback.freed(full);
        let mut request = Request::new(NodeId::numbered(9), Shape::ONE_TOKEN);
        feedback.amend(&mut request, |_| 1);
        assert!(request.policy.deny.is_empty() && !request.in_flight.is_empty());
        feedback.forget(busy);
        let mut request = Request::new(NodeId::numbered(9), Shape::ONE_TOKEN);
        feedback.amend(&mut request, |_| 1);
        assert!(request.in_flight.is_empty());
        (0..2 * MOST as u64).for_each(|n| feedback.apart(busy, NodeId::numbered(n)));
        assert_eq!(feedback.take().len(), MOST);
    }

    /// A second for each of a hundred prompts that wait would be seen.
    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_back_wakes_one_who_waits() {
        let feedback = FeedbackQueue::default();
        let began = tokio::time::Instant::now();
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let mut waiting = Waiting::new(feedback.clone(), ModelId::numbered(1));
                tokio::spawn(async move {
                    waiting.room().await.unwrap();
                    tokio::time::Instant::now()
                })
            })
            .collect();
        tokio::task::yield_now().await;
        for _ in 0..60 {
            feedback.freed(NodeId::numbered(1));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let mut woken = Vec::new();
        for one in waiting {
            woken.push(one.await.unwrap() - began);
        }
        woken.sort_unstable();
        assert!(woken[59] <= Duration::from_millis(60), "{:?}", woken[59]);
        assert!(woken[60..].iter().all(|after| *after >= ROOM), "{:?}", woken[60]);
    }
}
