//! The caches of ended sessions, kept in the child for sessions that begin like them.
//!
//! A [`Kept`] holds states under the names of the sessions that computed them; who may go on from which is the daemon's to
//! know. A session that begins like an ended one gets the ended one's pages ([`shard::state::SessionState::share`]): both use one copy, and a
//! page that one of them writes to is copied first. Which of them stay when memory is short is decided by [`scheduler::keep`].
//!
//! Bounds: what no open session has reserved of the worker's caches, and what the daemon leaves ([`Kept::limit`]); [`MOST`] states,
//! each for [`TTL`] after its last use.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use scheduler::{LayerRange, Millis, SessionId, SessionKind, keep::Shelf};
use shard::{round::Rounding, state::SessionState};

use super::filed::Filed;

/// A session and the first layer of one of its ranges.
pub(super) type Key = (SessionId, u32);

/// What is not used for so long is forgotten: what a user thinks before asking on, as [`p2p::wire::control::MAX_LEASE_TTL_MS`].
pub(super) const TTL: Duration = Duration::from_secs(600);
/// States kept at most.
const MOST: usize = 256;

/// One range of an ended session.
pub(super) struct Ended {
    pub(super) layers: LayerRange,
    pub(super) rounding: Rounding,
    pub(super) state: SessionState,
}

/// See the module's page.
pub(super) struct Kept {
    shelf: Shelf<Key>,
    states: HashMap<Key, Ended>,
    began: Instant,
    /// Memory that the daemon leaves for it now, bytes.
    limit: u64,
    /// What is on disk as well.
    filed: Option<Filed>,
}

impl Kept {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        let (shelf, states) = Default::default();
        Self { shelf, states, began: Instant::now(), limit: u64::MAX, filed: None }
    }

    /// From now on there is a place on disk as well.
    pub(super) fn set_filed(&mut self, filed: Option<Filed>) {
        self.filed = filed;
    }

    /// What is on disk as well.
    pub(super) fn filed(&mut self) -> Option<&mut Filed> {
        self.filed.as_mut()
    }

    fn now(&self, now: Instant) -> Millis {
        Millis(now.saturating_duration_since(self.began).as_millis() as u64)
    }

    /// Keeps a range of an ended session; to compute a position of it again takes `cost`.
    pub(super) fn put(&mut self, key: Key, ended: Ended, cost: f64, now: Instant) {
        if ended.state.is_empty() {
            return;
        }
        let cost = cost * ended.state.len() as f64;
        self.shelf.put(key, cost, ended.state.bytes(), self.now(now));
        self.states.insert(key, ended);
        while self.states.len() > MOST {
            self.drop_worst();
        }
    }

    /// A state of the positions below `at` that an ended session has computed on `layers` under `rounding` and of this kind: of those named, with
    /// how many positions may be taken, the one that has most.
    pub(super) fn share(
        &mut self,
        named: &[(SessionId, u32)],
        (layers, rounding, kind): (LayerRange, &Rounding, SessionKind),
        at: usize,
        now: Instant,
    ) -> Option<SessionState> {
        let kept = named.iter().filter_map(|(session, upto)| {
            let key = (*session, layers.start());
            let ended = self.states.get(&key)?;
            let fits = ended.layers == layers && ended.rounding == *rounding && ended.state.kind() == kind;
            fits.then(|| (ended.state.checkpoint(at.min(*upto as usize)), key))
        });
        let (upto, key) = kept.max_by_key(|(upto, _)| *upto).filter(|(upto, _)| *upto > 0)?;
        let time = self.now(now);
        self.shelf.used(key, time);
        self.states.get(&key)?.state.share(upto)
    }

    /// The first positions of what an ended session has computed, for another node.
    pub(super) fn lend(&mut self, key: Key, positions: usize, now: Instant) -> Option<SessionState> {
        let time = self.now(now);
        let state = self.states.get(&key)?.state.share(positions)?;
        self.shelf.used(key, time);
        (state.len() == positions).then_some(state)
    }

    /// Forgets what a session has computed.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.filed.iter_mut().for_each(|filed| filed.forget(session));
        self.states.retain(|key, _| {
            key.0 != session || {
                self.shelf.remove(*key);
                false
            }
        });
    }

    /// When it is next made to fit, it may take no more than this, bytes.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Forgets what is over its time, and the least valuable until the rest fits what the daemon leaves and `free_bytes`; what open sessions
    /// share, given by `open`, is theirs and does not count. Returns the bytes that are left.
    pub(super) fn fit<'a>(
        &mut self,
        free_bytes: u64,
        open: impl Iterator<Item = &'a SessionState>,
        now: Instant,
    ) -> u64 {
        let ttl = TTL.as_millis() as u64;
        let limit = std::mem::replace(&mut self.limit, u64::MAX).min(free_bytes);
        for key in self.shelf.drop_late(self.now(now), ttl) {
            self.states.remove(&key);
        }
        if self.states.is_empty() {
            return 0;
        }
        let mut pieces: HashMap<usize, (usize, u32)> = HashMap::new();
        open.for_each(|state| {
            state.parts(&mut |piece, _| {
                pieces.insert(piece, (0, 1));
            });
        });
        let mut bytes = 0;
        for ended in self.states.values() {
            ended.state.parts(&mut |piece, size| {
                let (_, owners) = pieces.entry(piece).or_insert((size, 0));
                bytes += if *owners == 0 { size as u64 } else { 0 };
                *owners += 1;
            });
        }
        while bytes > limit
            && let Some(gone) = self.drop_worst()
        {
            gone.state.parts(&mut |piece, _| {
                if let Some((size, owners)) = pieces.get_mut(&piece) {
                    *owners -= 1;
                    bytes -= if *owners == 0 { *size as u64 } else { 0 };
                }
            });
        }
        bytes
    }

    fn drop_worst(&mut self) -> Option<Ended> {
        let key = self.shelf.drop_worst()?;
        self.states.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use shard::{
        kernels::KvShape,
        state::{Back, Kind, Paged, SessionState},
    };

    use super::*;

    const SHAPE: KvShape = KvShape::new(1, 2);

    fn state(len: usize) -> SessionState {
        let mut state = SessionState::new(7, vec![Kind::Paged(SHAPE).empty(4096)], 4096);
        state.reserve(len).unwrap();
        state.advance(len);
        state
    }

    fn layers() -> LayerRange {
        LayerRange::new(2, 3).unwrap()
    }

    fn ended(state: SessionState) -> Ended {
        Ended { layers: layers(), rounding: Rounding::NONE, state }
    }

    fn key(session: u64) -> Key {
        (SessionId::numbered(session), 2)
    }

    /// Positions that a session which may go on from `named` gets.
    fn shared(kept: &mut Kept, named: &[(u64, u32)], at: usize, now: Instant) -> Option<SessionState> {
        let named: Vec<_> = named.iter().map(|(name, upto)| (SessionId::numbered(*name), *upto)).collect();
        kept.share(&named, (layers(), &Rounding::NONE, SessionKind::DEFAULT), at, now)
    }

    #[test]
    fn a_session_gets_the_longest_beginning_it_may_have() {
        let (mut kept, now) = (Kept::new(), Instant::now());
        kept.put(key(1), ended(state(600)), 1.0, now);
        kept.put(key(2), ended(state(900)), 1.0, now);
        let mut len = |named: &[(u64, u32)], at| shared(&mut kept, named, at, now).map(|state| state.len());
        assert_eq!(len(&[(1, 600), (2, 640)], 1000), Some(640));
        assert_eq!(len(&[(1, 600), (2, 0)], 1000), Some(600));
        assert_eq!(len(&[(2, 900)], 300), Some(300));
        assert_eq!((len(&[(3, 900)], 300), len(&[], 300), len(&[(1, 600)], 0)), (None, None, None));
        let other = LayerRange::new(2, 4).unwrap();
        assert!(
            kept.share(
                &[(SessionId::numbered(1), 9)],
                (other, &Rounding::NONE, SessionKind::DEFAULT),
                9,
                now
            )
            .is_none()
        );
        let q8 = Rounding { rule: shard::round::Rule::Q8, boundaries: vec![2] };
        assert!(
            kept.share(&[(SessionId::numbered(1), 9)], (layers(), &q8, SessionKind::DEFAULT), 9, now)
                .is_none()
        );
        kept.forget(SessionId::numbered(1));
        assert!(shared(&mut kept, &[(1, 600)], 600, now).is_none());
    }

    /// Of states behind windows a session gets the one that can still go back, not the longest; another node gets none of what is gone.
    #[test]
    fn a_state_that_cannot_go_back_is_passed_over() {
        let behind = |len: usize| {
            let paged = Paged::new(SHAPE, 4096).looking(Back::new(Some(100), None));
            let mut state = SessionState::new(7, vec![Box::new(paged)], 4096);
            while state.len() < len {
                state.prepare(100).unwrap();
                state.advance(100);
            }
            state
        };
        let (mut kept, now) = (Kept::new(), Instant::now());
        kept.put(key(1), ended(behind(800)), 1.0, now);
        kept.put(key(2), ended(behind(3_000)), 1.0, now);
        let mut len = |named: &[(u64, u32)], at| shared(&mut kept, named, at, now).map(|state| state.len());
        assert_eq!(len(&[(1, 800), (2, 1_000)], 1_200), Some(800));
        assert_eq!(len(&[(1, 800), (2, 2_900)], 2_950), Some(2_900));
        assert_eq!(len(&[(2, 1_000)], 1_200), None);
        assert!(kept.lend(key(2), 1_000, now).is_none());
        assert_eq!(kept.lend(key(2), 2_900, now).map(|state| state.len()), Some(2_900));
    }

    #[test]
    fn memory_is_counted_once_and_given_up_in_order() {
        let (mut kept, now) = (Kept::new(), Instant::now());
        let page = state(256).bytes() as u64;
        kept.put(key(1), ended(state(1024)), 1.0, now);
        let two = shared(&mut kept, &[(1, 1024)], 1024, now).unwrap();
        let three = shared(&mut kept, &[(1, 1024)], 512, now).unwrap();
        assert_eq!(kept.fit(u64::MAX, [&two, &three].into_iter(), now), 0, "open sessions have it all");
        assert_eq!(kept.fit(u64::MAX, [&three].into_iter(), now), 2 * page);
        kept.put(key(2), ended(two), 1.0, now);
        assert_eq!(kept.fit(u64::MAX, [].into_iter(), now), 4 * page, "two of one beginning");
        kept.put(key(3), ended(state(256)), 9.0, now);
        assert_eq!(kept.fit(4 * page, [].into_iter(), now), page, "both go before their pages are free");
        kept.set_limit(0);
        assert_eq!(kept.fit(u64::MAX, [].into_iter(), now), 0);
        kept.put(key(4), ended(state(256)), 1.0, now);
        assert_eq!(kept.fit(u64::MAX, [].into_iter(), now + TTL), page);
        assert_eq!(kept.fit(u64::MAX, [].into_iter(), now + TTL + TTL), 0, "its time is over");
    }
}
