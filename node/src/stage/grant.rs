//! What a stage promises, and from where it goes on.
//!
//! A lease that is granted goes on where the cache and the signed chain of this session both are; without them where an earlier session
//! of the same requester left them ([`super::prefixes`]), if the lease offers its beginning; else where another node has them, if the lease says
//! which ([`super::pages`]).

use std::time::{Duration, Instant as Clock};

use p2p::wire::control::{Answer, Lease, Refusal, Role};
use tokio::time::{Instant, timeout};

use super::{
    REACH, Running, commitment_chain::CommitmentChain, inputs::Inputs, lazy_log::LazyLog, pages,
    prefixes::Found,
};
#[cfg(debug_assertions)]
use crate::worker::{DraftIds, Job, JobInput, Want};
use crate::{
    clock,
    state_store::file::Whose,
    worker::{OpenSession, Worker},
};
#[cfg(debug_assertions)]
use p2p::codec::Wire;

/// A worker that is not there has so long to come: the requester gives a lease up after eight seconds, and is told before.
const LOADING: Duration = Duration::from_secs(6);

impl Running {
    pub(super) async fn lease(&mut self, lease: Lease) -> Answer {
        let refused = Answer::refused;
        if *self.stage.draining.borrow() && self.leases.is_empty() {
            return refused(Refusal::Draining, "this node is about to leave");
        }
        if self.leases.is_past(lease.epoch) {
            return refused(Refusal::Busy, "a later epoch of this session is being served");
        }
        let open = self.opening(&lease);
        self.stage.worker.enter(self.stage.place(), lease.epoch);
        let Ok(Some(worker)) = timeout(LOADING, self.stage.worker.running()).await else {
            return refused(Refusal::Busy, "the model is being loaded: ask again in a moment");
        };
        // Rows of a draft that may have been wrong are not kept into another epoch.
        let start = lease.layers.start();
        let earlier = self.leases.get(start).is_none_or(|held| held.epoch < lease.epoch);
        let kept = self.inputs.get_mut(&start).filter(|_| earlier).map_or(u32::MAX, Inputs::begin_epoch);
        // A session that has computed something here goes on from that.
        let fresh = !self.inputs.contains_key(&start);
        let source = lease.reuse.source.as_ref().filter(|_| lease.role == Role::Stage);
        let from = source.map(|source| source.permit.holder);
        let offered = &lease.reuse.beginnings;
        let find = || self.stage.prefixes.find(self.stage.requester, offered, from, Clock::now());
        let mut found = if fresh { find() } else { None };
        let mut checks = false;
        if let Some(source) = source.filter(|_| fresh && found.is_none())
            && let Some(share) = self.stage.prefixes.checked_share()
        {
            found = pages::fetch(&self.stage, &lease, source).await;
            // Drawn when the holder has given it: it cannot know.
            checks = pages::random().is_none_or(|random| pages::is_checked(share, random));
        }
        let named = found.iter().filter(|_| !checks).map(|found| (found.place, found.positions)).collect();
        let open = OpenSession { at: open.at.min(kept), kept: named, ..open };
        #[cfg(debug_assertions)]
        if crate::cheat::claims()
            && let Some(found) = &found
        {
            return self.claim(&worker, lease, open, found).await;
        }
        let mut opened = worker.open(open.clone()).await;
        if opened.is_err()
            && let Some(latest) = self.move_on().await
        {
            opened = latest.open(open).await;
        }
        match opened {
            Ok(have) => {
                let have = self.go_on(&lease, have, (found, checks));
                if let Some(next) = &lease.next {
                    let (network, next) = (self.stage.network.clone(), next.clone());
                    let by = self.stage.requester;
                    // The first frame to it should not wait for a handshake, nor be lost.
                    tokio::spawn(async move { network.reach_named(&next, by, REACH).await });
                }
                self.idle_since = Instant::now();
                if lease.epoch > self.epoch {
                    // What was under way belongs to the epoch before; the worker drops it without an answer.
                    (self.epoch, self.jobs) = (lease.epoch, 0);
                    self.came.clear();
                    self.replay.clear();
                }
                // The worker forgot what overlaps, and so do we.
                let (layers, at) = (lease.layers, lease.at);
                let have = self.stand_by(&lease, have);
                self.leases.grant(lease);
                let leases = &self.leases;
                self.words.retain(|start, _| leases.starts_at(*start));
                self.inputs.retain(|start, _| leases.starts_at(*start));
                self.kept.retain(|start, _| leases.starts_at(*start));
                self.inputs.insert(layers.start(), Inputs::from(have.min(at)));
                // How busy the node is, the carrier of the answer adds.
                Answer::Accepted { have, sessions: 0, lanes: 1 }
            }
            Err(error) => refused(Refusal::NoRoom, &error.to_string()),
        }
    }

    /// What the worker is asked to open for a lease.
    fn opening(&self, lease: &Lease) -> OpenSession {
        OpenSession {
            session: self.stage.place(),
            epoch: lease.epoch,
            layers: lease.layers,
            positions: lease.positions,
            at: lease.at,
            rounding: lease.rounding.clone(),
            kind: lease.kind,
            kept: Vec::new(),
            conduct: None,
        }
    }

    /// The node's worker, where that is another one by now and this session has computed nothing yet: layers that came since it
    /// began are held there. What it has leased already is opened there as well.
    async fn move_on(&mut self) -> Option<Worker> {
        let untouched = self.jobs == 0
            && self.replay.is_empty()
            && self.words.values().all(|word| word.positions() == 0)
            && self.kept.values().all(|kept| kept.upto() == 0);
        if !untouched {
            return None;
        }
        let latest = self.stage.worker.move_on(self.stage.place())?;
        for lease in self.leases.all() {
            // One that finds no room there says so when its rows come.
            let _ = latest.open(self.opening(lease)).await;
        }
        Some(latest)
    }

    /// The chain of a lease goes on where cache and chain both are; says where that is.
    /// Of what was found `checks` says that all of it is computed all the same.
    fn go_on(&mut self, lease: &Lease, have: u32, (found, checks): (Option<Found>, bool)) -> u32 {
        let start = lease.layers.start();
        if have > 0
            && let Some(word) = self.words.get_mut(&start).filter(|word| word.fits(lease))
        {
            return word.adopt(lease, have).min(have);
        }
        let mut random = [0; 4];
        if let Err(error) = getrandom::fill(&mut random) {
            tracing::warn!(%error, "no randomness: a chain may share its number with another of this second");
        }
        let it = (self.stage.hidden, self.stage.class);
        let random = u32::from_le_bytes(random);
        let mut word = CommitmentChain::new(lease, self.stage.requester, it, clock::receipt_s(), random);
        if let Some(found) = found {
            if have > 0 && have as usize <= found.steps.len() {
                word.go_on_from(&found, have);
            } else {
                // It is compared, or the worker gave it up for others, or is another one.
                self.stage.prefixes.forget(found.number);
            }
            if checks && have == 0 {
                word.watch(&found);
            }
        }
        let have = word.positions();
        self.words.insert(start, word);
        have
    }

    /// When the requester has released all that it leased: what to keep of it for the next session of this requester, by first
    /// layer, and how many positions; and whether on disk.
    pub(super) fn keep(&self) -> (Vec<(u32, u32)>, Option<Whose>) {
        if !self.leases.is_empty() || self.jobs > 0 {
            return (Vec::new(), None);
        }
        let permitted = |word: &CommitmentChain| {
            word.may_be_filed() && self.stage.prefixes.are_on_disk(word.terms().model)
        };
        // The worker is told of the session as a whole.
        let on_disk = self.words.values().all(permitted);
        let (now, place) = (Clock::now(), self.stage.place());
        let governor = self.stage.network.governor();
        let kept = self.words.iter().filter_map(|(start, word)| {
            let (terms, steps) = word.keepable();
            let positions = steps.len() as u32;
            let what = (steps, word.origin(), on_disk);
            let freed = self.stage.prefixes.keep((place, terms), what, governor, now)?;
            self.stage.worker.forget(&freed);
            Some((*start, positions))
        });
        (kept.collect(), on_disk.then_some(Whose::Guest))
    }

    /// Says how far the node is, with what it keeps for a lease beside its cache of `have` positions; what it must compute
    /// of that is lined up.
    fn stand_by(&mut self, lease: &Lease, have: u32) -> u32 {
        let start = lease.layers.start();
        let kept = self.kept.remove(&start).filter(|kept| kept.layers == lease.layers);
        let lazy = lease.role == Role::LazyShadow;
        let Some(mut kept) = kept.or_else(|| lazy.then(|| LazyLog::new(lease.layers, have))) else {
            return have;
        };
        kept.fit(have, lease.at);
        let upto = kept.upto();
        if lazy {
            self.kept.insert(start, kept);
        } else {
            self.replay.extend(kept.replay(have, lease.epoch));
        }
        upto
    }

    /// Lies: it has the digests and no state, and computes on from zeros.
    #[cfg(debug_assertions)]
    async fn claim(&mut self, worker: &Worker, lease: Lease, open: OpenSession, found: &Found) -> Answer {
        let (session, layer, epoch, have) =
            (open.session, lease.layers.start(), lease.epoch, found.positions);
        let _ = worker.open(OpenSession { kept: Vec::new(), ..open }).await;
        for from in (0..have).step_by(64) {
            let rows = 64.min(have - from);
            let zeros = vec![0; 4 * (rows * self.stage.hidden) as usize];
            let (input, want, draft) = (JobInput::Wire(Wire::Raw, zeros), Want::Nothing, DraftIds::default());
            let _ = worker.run(Job {
                session,
                epoch,
                layer,
                from,
                rows,
                input,
                want,
                attempt: 0,
                draft,
                foresee: 0,
            });
        }
        let it = (self.stage.hidden, self.stage.class);
        let mut word = CommitmentChain::new(&lease, self.stage.requester, it, clock::receipt_s(), epoch);
        word.resume(&found.steps[..have as usize]);
        self.words.insert(layer, word);
        self.inputs.insert(layer, Inputs::from(have));
        self.epoch = epoch;
        self.leases.grant(lease);
        Answer::Accepted { have, sessions: 0, lanes: 1 }
    }
}
