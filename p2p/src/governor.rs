//! The handle on the governor: every door of the node asks it before it lets something in.
//!
//! [`scheduler::governor`] keeps the table and the books; this is the shared, cloneable handle. What is taken is a
//! [`Permit`], which gives back what it stands for when it is dropped, so that no way out of a function leaks anything.
//! A door refuses at a limit ([`Governor::take`]), or waits for a while where waiting is the backpressure
//! ([`Governor::wait`]).
//!
//! The books are behind one lock, held for a few look-ups in small maps and never while something waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use scheduler::governor::{Books, Holder, Limits, Prefix, Refused, Resource, Scope, Usage};
use scheduler::{Millis, NodeId};
use tokio::sync::Notify;

/// What an ask costs of [`Resource::Cpu`], microseconds: it passes two loops and is answered.
pub(crate) const ASK_US: u64 = 1_000;
/// What an announcement costs: a signature is checked.
pub(crate) const ANNOUNCEMENT_US: u64 = 200;

/// See the [module](self). Cheap to clone; all clones share the books.
#[derive(Clone, Debug)]
pub struct Governor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something was given back.
    freed: Notify,
    started: Instant,
}

#[derive(Debug)]
struct State {
    books: Books,
    /// Where connected peers come from, with the number of their connections; bounded by the limits of connections.
    origins: HashMap<NodeId, (Prefix, usize)>,
}

impl Governor {
    /// A governor of `limits`, with nothing taken.
    pub fn new(limits: Limits) -> Self {
        let state = State { books: Books::new(limits), origins: HashMap::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), freed: Notify::new(), started: Instant::now() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The books are consistent between any two statements that can panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Millis {
        Millis(self.0.started.elapsed().as_millis() as u64)
    }

    /// Takes `amount` of `resource` for `holder`, until the permit is dropped.
    ///
    /// # Errors
    /// [`Refused`] at a limit.
    pub fn take(&self, holder: Holder, resource: Resource, amount: u64) -> Result<Permit, Refused> {
        self.state().books.take(self.now(), holder, resource, amount)?;
        Ok(Permit { governor: self.clone(), holder, resource, amount })
    }

    /// As [`Governor::take`], for a peer that is connected: it counts for the prefix that it comes from.
    ///
    /// # Errors
    /// As there.
    pub fn take_for(&self, node: NodeId, resource: Resource, amount: u64) -> Result<Permit, Refused> {
        self.take(self.holder(node), resource, amount)
    }

    /// As [`Governor::take`], and at a limit waits up to `patience` for others to give something back.
    ///
    /// # Errors
    /// [`Refused`] when nothing or too little was given back in time.
    pub async fn wait(
        &self,
        holder: Holder,
        resource: Resource,
        amount: u64,
        patience: Duration,
    ) -> Result<Permit, Refused> {
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // What is given back from here on is not missed.
            freed.as_mut().enable();
            let fits = self.state().books.would_fit(self.now(), holder, resource, amount);
            let Err(refused) = fits else { return self.take(holder, resource, amount) };
            tokio::select! {
                () = freed => {}
                () = &mut deadline => {
                    self.state().books.refuse(resource);
                    return Err(refused);
                }
            }
        }
    }

    /// Spends `amount` of a resource that comes back with time.
    ///
    /// # Errors
    /// [`Refused`] at a limit.
    pub fn spend(&self, holder: Holder, resource: Resource, amount: u64) -> Result<(), Refused> {
        self.take(holder, resource, amount).map(drop)
    }

    /// Counts a refusal that a door decided by itself, such as a newcomer for whom an older one made room.
    pub fn refuse(&self, resource: Resource) {
        self.state().books.refuse(resource);
    }

    /// A peer with the prefix that it is connected from; without a connection only its name counts.
    pub fn holder(&self, node: NodeId) -> Holder {
        let prefix = self.state().origins.get(&node).map(|(prefix, _)| *prefix);
        Holder { prefix, peer: Some(node) }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        *self.state().books.limits()
    }

    /// The table with what is used of it, for `status` and metrics.
    pub fn usage(&self) -> Vec<Usage> {
        self.state().books.usage(self.now())
    }

    /// What is used of a resource in a scope.
    pub fn used(&self, resource: Resource, scope: Scope) -> u64 {
        self.state().books.used(self.now(), resource, scope)
    }

    /// A connection of `node` that comes from `prefix` was made. The first one says where the peer comes from.
    pub(crate) fn connected(&self, node: NodeId, prefix: Prefix) {
        self.state().origins.entry(node).or_insert((prefix, 0)).1 += 1;
    }

    /// A connection of `node` has ended.
    pub(crate) fn disconnected(&self, node: NodeId) {
        let mut state = self.state();
        if let Some((_, connections)) = state.origins.get_mut(&node) {
            *connections = connections.saturating_sub(1);
            if *connections == 0 {
                state.origins.remove(&node);
            }
        }
    }
}

impl Default for Governor {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

/// An amount that was taken; dropping it gives it back.
#[derive(Debug)]
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    governor: Governor,
    holder: Holder,
    resource: Resource,
    amount: u64,
}

impl Permit {
    /// Adds what another permit stands for, where it was taken of the same resource for the same holder.
    ///
    /// # Errors
    /// The other permit, where it was not.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        let same = self.resource == other.resource
            && self.holder == other.holder
            && Arc::ptr_eq(&self.governor.0, &other.governor.0);
        if !same {
            return Err(other);
        }
        self.amount += std::mem::take(&mut other.amount);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.governor.state().books.give_back(self.holder, self.resource, self.amount);
        self.governor.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(number: u8) -> Holder {
        Holder { prefix: Some(Prefix::V4([127, 0, number])), peer: Some(NodeId::numbered(u64::from(number))) }
    }

    fn used(governor: &Governor) -> u64 {
        governor.used(Resource::Bytes, Scope::Node)
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_what_is_given_back_and_is_refused_when_nothing_is() {
        let governor = Governor::new(Limits::default().set(Resource::Bytes, [10, 10, 10]));
        let held = governor.take(holder(1), Resource::Bytes, 8).unwrap();
        assert!(governor.take(holder(2), Resource::Bytes, 3).is_err());
        let waited = governor.wait(holder(2), Resource::Bytes, 3, Duration::from_secs(1)).await;
        assert_eq!(waited.unwrap_err().scope, Scope::Node);
        let waiting = governor.clone();
        let waiting = tokio::spawn(async move {
            waiting.wait(holder(2), Resource::Bytes, 3, Duration::from_secs(3_600)).await
        });
        tokio::task::yield_now().await;
        drop(held);
        let got = waiting.await.unwrap().unwrap();
        assert_eq!(used(&governor), 3);
        drop(got);
        assert_eq!(used(&governor), 0);
        let row = governor.usage().into_iter().find(|row| row.limit.resource == Resource::Bytes).unwrap();
        assert_eq!((row.used, row.refused), (0, 2));
    }

    #[test]
    fn permits_of_one_holder_become_one_and_others_stay_apart() {
        let governor = Governor::default();
        let take = |number, amount| governor.take(holder(number), Resource::Bytes, amount).unwrap();
        let mut all = take(1, 5);
        all.merge(take(1, 7)).unwrap();
        assert_eq!(used(&governor), 12);
        let other = all.merge(take(2, 3)).unwrap_err();
        drop(all);
        assert_eq!(used(&governor), 3);
        drop(other);
        assert_eq!(used(&governor), 0);
    }

    #[test]
    fn a_peer_counts_for_where_its_first_connection_comes_from() {
        let governor = Governor::default();
        let node = NodeId::numbered(7);
        assert_eq!(governor.holder(node).prefix, None);
        governor.connected(node, Prefix::V4([127, 0, 1]));
        governor.connected(node, Prefix::V4([127, 0, 2]));
        governor.disconnected(node);
        assert_eq!(governor.holder(node).prefix, Some(Prefix::V4([127, 0, 1])));
        governor.disconnected(node);
        assert_eq!(governor.holder(node), Holder { prefix: None, peer: Some(node) });
        assert!(governor.state().origins.is_empty());
    }
}
