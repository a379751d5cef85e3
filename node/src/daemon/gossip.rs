//! What this node says of itself, and what it makes of what others say.
//!
//! An announcement is said again when it is about to be forgotten ([`REFRESH_MS`]) and when there is news, and news is
//! damped: layers that come or go are told at once, load when it changed by half, distances when they did, each not oftener
//! than its spacing. So a swarm at rest costs each of its members little, and a busy one not much more.
//!
//! Distances are the least round trip of the last minute: what is above it was waiting, in this node's own queues as
//! often as not. A peer on the same host is never taken to be further away than [`LOOPBACK_MS`].

use std::collections::BTreeMap;

use p2p::{
    Path,
    path::{named, unnamed},
    wire::announce::{
        Announcement, Class, Draft, Link, MAX_LINKS, Offer, is_describable, own_operator, seal,
    },
};
use scheduler::{
    Capability, Claim, Holding, LayerRange, LayerSet, Millis, NodeId,
    latency::{Duty, Ema, LOAD_TAU_MS, RoundTrip, Window},
    view::Merged,
};

use super::{Daemon, Notice, workers::Held};

/// A third of what peers forget us after (`TTL_MS`): two may be lost. Who is connected is missed within seconds anyway,
/// when its connection closes; shorter, and five idle nodes cost each other more than 2 kbit/s.
const REFRESH_MS: u64 = 30_000;
/// What peers may rely on without hearing from us.
pub(super) const TTL_MS: u32 = 90_000;
/// Layers that come or go, and newcomers: at once, but not oftener than this.
const SPACING_MS: u64 = 500;
/// News about load: leases tell the truth in between.
const LOAD_SPACING_MS: u64 = 2_000;
/// News about distances, which rarely change.
const LINK_SPACING_MS: u64 = 10_000;
/// Waiting that is not worth a word, ms.
const SMALL_MS: f64 = 1.0;
/// Addresses said of ourselves.
const ADDRESSES: usize = 8;
/// Waits are looked at by the second.
const SECOND_MS: u64 = 1_000;
/// A round trip counts this long.
const RECENT_MS: u64 = 60_000;
/// What a round trip on one host takes at most, ms; a ping that took longer met a busy processor.
const LOOPBACK_MS: f64 = 2.0;
/// Session time after which it is looked how much of it was computing, ms.
const DUTY_MS: f64 = 5_000.0;
/// Rows that share a pass for the price of one, at most: what a worker folds together.
const MOST_LANES: f64 = 16.0;

/// What is known of a node besides what the scheduler needs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub addresses: Vec<String>,
    pub offers: Vec<Offer>,
    pub agent: String,
    pub class: Class,
}

/// Round trips to one peer.
#[derive(Clone, Debug)]
struct Trips {
    recent: Window,
    smooth: RoundTrip,
    /// The distance, ms.
    ms: f64,
}

/// Own figures that change with what this node serves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Figures {
    /// Entering once, ms.
    pub visit_ms: f64,
    /// Waiting behind others, ms.
    pub queue_ms: f64,
    /// Sessions of others.
    pub active: u32,
    /// Sessions served side by side at full speed.
    pub knee: u32,
    /// Memory for caches that no session has reserved, bytes.
    pub kv_bytes: u64,
    /// As many sessions of others run here as may.
    pub full: bool,
}

impl Figures {
    /// Whether others should hear of it: by half of what was said, and by more than a trifle.
    fn is_news_after(&self, said: &Self) -> bool {
        let moved = |now: f64, said: f64, least: f64| (now - said).abs() > least.max(0.5 * said);
        moved(self.queue_ms, said.queue_ms, SMALL_MS)
            || moved(self.visit_ms, said.visit_ms, SMALL_MS)
            || moved(f64::from(self.active), f64::from(said.active), f64::from(self.knee.max(2) / 2))
            || moved(self.kv_bytes as f64, said.kv_bytes as f64, said.kv_bytes as f64 / 8.0)
            || moved(f64::from(self.knee), f64::from(said.knee), 1.0)
            || self.full != said.full
    }
}

/// How long frames are here: computed, and waiting besides.
pub(super) struct Waits {
    /// The least of every second: of single frames a window would hold too few to remember a quiet moment.
    least: Window,
    second: Option<(Millis, f64)>,
    mean: Ema,
    duty: Duty,
    /// Since the last sample of `duty`: sessions x ms, ms computed and ms waited here.
    session_ms: f64,
    served_ms: f64,
    waited_ms: f64,
    looked: Millis,
}

impl Waits {
    fn new() -> Self {
        Self {
            least: Window::new(RECENT_MS),
            second: None,
            mean: Ema::new(LOAD_TAU_MS),
            duty: Duty::default(),
            session_ms: 0.0,
            served_ms: 0.0,
            waited_ms: 0.0,
            looked: Millis(0),
        }
    }

    /// Notes a frame that came in, and out again, with `ms` not spent computing and `served_ms` its share of what was.
    fn add(&mut self, now: Millis, ms: f64, served_ms: f64) {
        self.second = match self.second {
            Some((since, least)) if now.since(since) < SECOND_MS => Some((since, least.min(ms))),
            over => {
                if let Some((since, least)) = over {
                    self.least.add(since, least);
                }
                Some((now, ms))
            }
        };
        self.mean.add(now, ms);
        self.served_ms += served_ms;
        self.waited_ms += ms;
    }

    /// Notes how many sessions there are; called every now and then.
    fn look(&mut self, now: Millis, sessions: u32) {
        self.session_ms += f64::from(sessions) * now.since(self.looked) as f64;
        self.looked = now;
        if self.session_ms >= DUTY_MS {
            self.duty.add(now, self.session_ms, self.served_ms, self.waited_ms);
            (self.session_ms, self.served_ms, self.waited_ms) = (0.0, 0.0, 0.0);
        }
    }

    /// What every visit waits, and what the present ones wait beyond, ms.
    fn split(&self, now: Millis) -> (f64, f64) {
        let second = self.second.filter(|(since, _)| now.since(*since) <= RECENT_MS).map(|second| second.1);
        let least = self.least.min(now).into_iter().chain(second).reduce(f64::min);
        let visit = least.unwrap_or(0.0);
        let idle = now.since(self.mean.last()) > 2 * LOAD_TAU_MS;
        let mean = self.mean.value().filter(|_| !idle).unwrap_or(0.0);
        (visit, (mean - visit).max(0.0))
    }
}

struct Said {
    at: Millis,
    figures: Figures,
    links: Vec<Link>,
}

/// When to speak, and what was said last.
pub(super) struct Announcer {
    sequence: u64,
    said: Option<Said>,
    /// Something changed that is told at once.
    changed: bool,
    draining: bool,
    trips: BTreeMap<NodeId, Trips>,
    paths: BTreeMap<NodeId, Path>,
    waits: Waits,
    /// Announcements made and their bytes, for `status`.
    pub said_count: u64,
    pub said_bytes: u64,
    /// Announcements heard, news only.
    pub heard_count: u64,
}

impl Announcer {
    /// Sequence numbers go on from the clock, so a restarted node is newer than it was.
    pub fn new(unix_ms: u64) -> Self {
        Self {
            sequence: unix_ms,
            said: None,
            changed: true,
            draining: false,
            trips: BTreeMap::new(),
            paths: BTreeMap::new(),
            waits: Waits::new(),
            said_count: 0,
            said_bytes: 0,
            heard_count: 0,
        }
    }

    /// Notes over what a peer is reached.
    pub fn reached(&mut self, node: NodeId, path: Path) {
        self.paths.insert(node, path);
        if let Some(trips) = self.trips.get_mut(&node) {
            trips.ms = nearer(trips.ms, path);
        }
    }

    /// The longest way any peer is reached over.
    pub fn farthest(&self) -> Path {
        self.paths.values().max().copied().unwrap_or(Path::Loopback)
    }

    /// Notes a measured round trip and says what the distance is now, ms.
    pub fn measured(&mut self, node: NodeId, now: Millis, ms: f64) -> f64 {
        let fresh = || Trips { recent: Window::new(RECENT_MS), smooth: RoundTrip::default(), ms };
        let trips = self.trips.entry(node).or_insert_with(fresh);
        trips.recent.add(now, ms);
        trips.smooth.add(ms);
        let least = trips.recent.min(now).unwrap_or(ms);
        trips.ms = self.paths.get(&node).map_or(least, |path| nearer(least, *path));
        trips.ms
    }

    /// Forgets a peer that is gone.
    pub fn gone(&mut self, node: NodeId) {
        self.trips.remove(&node);
        self.paths.remove(&node);
    }

    /// The distance to a node, there and back, if measured.
    pub fn rtt_ms(&self, node: NodeId) -> Option<f64> {
        self.trips.get(&node).map(|trips| trips.ms)
    }

    /// What a slow round trip to a node takes: twice the mean.
    pub fn slow_rtt_ms(&self, node: NodeId) -> Option<f64> {
        self.trips.get(&node).and_then(|trips| trips.smooth.mean_ms()).map(|ms| 2.0 * ms)
    }

    /// Notes how long a frame was here without being computed, and how long it was computed.
    pub fn waited(&mut self, now: Millis, ms: f64, served_ms: f64) {
        self.waits.add(now, ms, served_ms);
    }

    /// Something changed that others should hear of at once.
    pub fn tell(&mut self) {
        self.changed = true;
    }

    /// From now on nothing new is taken.
    pub fn drain(&mut self) {
        self.draining = true;
        self.said = None;
    }

    fn due(&self, now: Millis, figures: &Figures) -> bool {
        let Some(said) = &self.said else { return true };
        let age = now.since(said.at);
        age >= REFRESH_MS
            || (age >= SPACING_MS && self.changed)
            || (age >= LOAD_SPACING_MS && figures.is_news_after(&said.figures))
            || (age >= LINK_SPACING_MS && self.links_are_news_after(&said.links))
    }

    fn links_are_news_after(&self, said: &[Link]) -> bool {
        let links = self.links();
        let known = |link: &Link| said.iter().find(|old| old.to == link.to);
        let moved = |link: &Link| {
            known(link).is_none_or(|old| (link.rtt_ms - old.rtt_ms).abs() > (0.5 * old.rtt_ms).max(SMALL_MS))
        };
        links.iter().any(moved)
    }

    /// The nearest nodes, as measured.
    fn links(&self) -> Vec<Link> {
        let mut links: Vec<Link> =
            self.trips.iter().map(|(to, trips)| Link { to: *to, rtt_ms: trips.ms }).collect();
        links.sort_by(|a, b| a.rtt_ms.total_cmp(&b.rtt_ms));
        links.truncate(MAX_LINKS);
        links
    }
}

fn nearer(ms: f64, path: Path) -> f64 {
    if path == Path::Loopback { ms.min(LOOPBACK_MS) } else { ms }
}

impl Daemon {
    /// Says what changed, or that nothing did when it was said long ago.
    pub(super) async fn announce(&mut self, urgent: bool) {
        let now = self.now();
        self.gossip.changed |= urgent;
        let figures = self.figures(now);
        if !self.gossip.due(now, &figures) {
            return;
        }
        let mut addresses = self.network.addresses().await;
        addresses.truncate(ADDRESSES);
        // Whose they are, the announcement says once.
        addresses.iter_mut().for_each(|address| *address = unnamed(address, self.me).to_owned());
        self.gossip.sequence = self.gossip.sequence.saturating_add(1);
        let draft = self.draft(&figures, addresses);
        self.merge_own(&draft, &figures, now);
        match seal(&draft, &self.identity) {
            Ok(sealed) => {
                self.gossip.said_count += 1;
                self.gossip.said_bytes += sealed.len() as u64;
                // Nobody to tell yet is not an error: a newcomer asks.
                let _ = self.network.publish(sealed).await;
            }
            Err(why) => tracing::warn!(%why, "own announcement refused"),
        }
        self.gossip.changed = false;
        self.gossip.said = Some(Said { at: now, figures, links: draft.links });
    }

    /// Sessions this node serves side by side at full speed: as many rows as are computed in the time that reading the
    /// weights takes, times the share of their time that sessions spend elsewhere.
    pub(super) fn knee(&self, held: &Held) -> u32 {
        let ready = &held.ready;
        let lanes = (ready.decode_ms / ready.prefill_ms.max(1e-9)).round().clamp(1.0, MOST_LANES);
        self.gossip.waits.duty.knee(lanes as u32).max(1)
    }

    pub(super) fn figures(&mut self, now: Millis) -> Figures {
        let active = self.door.sessions();
        self.gossip.waits.look(now, active);
        let (waited_ms, queue_ms) = self.gossip.waits.split(now);
        let full = self.strangers() >= self.caps.sessions;
        let kv_bytes = self.door.kv_free();
        let leading = self.leading();
        Figures {
            visit_ms: leading.ready.visit_ms.max(waited_ms),
            queue_ms,
            active,
            knee: self.knee(leading),
            kv_bytes,
            full,
        }
    }

    /// What is said of a model: the sessions, the waiting and the memory for caches are the node's, the rest its own.
    fn holding(&self, held: &Held, figures: &Figures, loaded: Vec<LayerRange>) -> Holding {
        let leading = &self.leading().ready;
        let ready = &held.ready;
        // What visits wait here beyond what the first model's visits take, those of another wait too.
        let waited_ms = (figures.visit_ms - leading.visit_ms).max(0.0);
        Holding {
            model: held.id,
            loaded,
            on_disk: Vec::new(),
            decode_ms: ready.decode_ms,
            prefill_ms: ready.prefill_ms,
            visit_ms: ready.visit_ms + waited_ms,
            queue_ms: figures.queue_ms,
            load_ms: 0.0,
            active: figures.active,
            batch_knee: self.knee(held),
            kv_bytes: figures.kv_bytes,
        }
    }

    /// The layers of a model that others are told of.
    pub(super) fn offered(&self, held: &Held) -> Vec<LayerRange> {
        if held.id == self.held.id { self.placing.offered(&held.served) } else { held.served.clone() }
    }

    fn draft(&self, figures: &Figures, addresses: Vec<String>) -> Draft {
        let (mut holdings, mut offers) = (Vec::new(), Vec::new());
        for held in self.models().filter(|_| !self.paused) {
            let (ready, offered) = (&held.ready, self.offered(held));
            // A model named twice on the command line is said once.
            let said = offers.iter().any(|offer: &Offer| offer.model == held.id);
            if offered.is_empty() || said {
                continue;
            }
            let mut holding = self.holding(held, figures, offered);
            if figures.full {
                // There is memory, but none for another session.
                holding.kv_bytes = 0;
            }
            holdings.push(holding);
            // The name under which its owner shares it is the one others were told.
            let shared = self.shared.borrow().iter().find(|offer| offer.model == held.id).cloned();
            offers.push(Offer {
                model: held.id,
                name: shared.map_or_else(|| ready.name.clone(), |offer| offer.name),
                num_layers: ready.num_layers,
                hidden: ready.hidden,
                context: ready.context,
                file_bytes: held.file_bytes,
                costs: ready.costs.clone().filter(is_describable),
            });
        }
        self.name_shared(&mut holdings, &mut offers);
        let (up_bytes_per_ms, down_bytes_per_ms) = self.line.rates(self.gossip.farthest(), self.now());
        let claim = Claim {
            node: self.me,
            operator: own_operator(self.me),
            sequence: self.gossip.sequence,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms,
            down_bytes_per_ms,
            draining: self.gossip.draining,
            holdings,
        };
        Draft {
            claim,
            class: self.leading().ready.class,
            offers,
            links: self.gossip.links(),
            addresses,
            ttl_ms: TTL_MS,
            agent: concat!("shoal/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// Other layers are in memory: own prompts may use them now, whenever others are told.
    pub(super) async fn holds_anew(&mut self) {
        let now = self.now();
        let figures = self.figures(now);
        self.gossip.sequence = self.gossip.sequence.saturating_add(1);
        let draft = self.draft(&figures, Vec::new());
        self.merge_own(&draft, &figures, now);
        self.announce(true).await;
    }

    /// The own view counts everything loaded, the ends that only serve own prompts included.
    fn merge_own(&mut self, draft: &Draft, figures: &Figures, now: Millis) {
        let mut claim = draft.claim.clone();
        let mut holdings: Vec<Holding> = Vec::new();
        for held in self.models().filter(|held| !held.loaded.is_empty()) {
            let loaded = LayerSet::new(held.loaded.iter().copied()).ranges().to_vec();
            if holdings.iter().all(|known| known.model != held.id) {
                holdings.push(self.holding(held, figures, loaded));
            }
        }
        claim.holdings = holdings;
        claim.draining = false;
        match Capability::try_from(claim) {
            Ok(own) => {
                self.view.merge_for(own, now, u64::from(TTL_MS));
            }
            Err(why) => tracing::warn!(%why, "own figures refused"),
        }
    }

    /// Takes in what another node says.
    pub(super) async fn heard(&mut self, announcement: Announcement, now: Millis) {
        let node = announcement.node();
        if node == self.me {
            return;
        }
        let Announcement { capability, class, offers, links, addresses, agent, ttl_ms, .. } = announcement;
        match self.view.merge_for(capability, now, u64::from(ttl_ms)) {
            Merged::Fresh => {}
            Merged::Equivocation => {
                tracing::warn!(%node, "two different announcements under one number");
                return;
            }
            Merged::Stale | Merged::Full => return,
        }
        self.gossip.heard_count += 1;
        for link in links {
            // Own measurements are never replaced by somebody's word.
            if link.to != self.me {
                self.view.set_link(node, link.to, link.rtt_ms);
            }
        }
        let addresses = addresses.iter().map(|address| named(address, node)).collect();
        let facts = Facts { addresses, offers, agent, class };
        if self.facts.insert(node, facts).is_none() {
            // Its round trip was often measured before it was heard of.
            if let Some(ms) = self.gossip.rtt_ms(node) {
                self.view.set_link(self.me, node, ms);
            }
            let _ = self.notices.try_send(Notice::Joined(node));
        }
    }
}

#[cfg(test)]
mod tests;
