//! What this node says of itself, and what it makes of what others say.
//!
//! An announcement is said again when there is news, and news is damped: layers that come or go are told at once, load when it
//! changed by half, distances when they did, each not oftener than its spacing. Without news it is renewed when it is about to be
//! forgotten ([`REFRESH_MS`]), in 116 bytes, and said whole after [`WHOLE_MS`]; peers that are connected know by their pings that
//! it holds on, so where all are it is not renewed. So a swarm at rest costs each of its members little, and a busy one not much more.
//!
//! Distances are the median round trip of the last minute: a busy moment moves no peer away, and a line that slowed is
//! believed after half of it. From them and from where its peers say they are follows where this node is
//! ([`scheduler::coordinate`]), which it says too. A peer on the same host is never taken to be further away than [`LOOPBACK_MS`].

use std::collections::BTreeMap;

use p2p::{
    Path,
    home::Said as SaidAddresses,
    path::unnamed,
    wire::{
        announce::{
            Draft, Link, MAX_AGENT, MAX_LINKS, MAX_NAME, Offer, PlaceRoom, is_describable, own_operator, seal,
        },
        renewal::Renewal,
    },
};
use scheduler::{
    Capability, Claim, Holding, LayerRange, LayerSet, Millis, NodeId,
    coordinate::Coordinate,
    latency::{RoundTrip, Window, unexplained_wait_ms},
    rng::Rng,
    view::SwarmView,
};

use super::Announcing;
use crate::{
    daemon::{
        serve::{Figures, Held, Serving},
        view::{TTL_MS, Viewing},
    },
    worker::ExpertShare,
};

/// Models whose room is told: each takes the place of a link.
const MOST_ROOMS: usize = 4;
/// Less than half of what peers forget us after (`TTL_MS`): one may be lost, on streams that lose nothing. Who is connected is
/// missed anyway when its connection closes.
const REFRESH_MS: u64 = 50_000;
/// It is said whole again after this long, for who missed the last one, and with what is not worth a word.
const WHOLE_MS: u64 = 400_000;
/// A change of this node's height above the plane of coordinates, and of the rates of its line, that is worth a word: such a share
/// of what was said.
const MOVED: f64 = 0.25;
/// Layers that come or go, and newcomers: at once, but not oftener than this.
const SPACING_MS: u64 = 500;
/// News about load: leases tell the truth in between.
const LOAD_SPACING_MS: u64 = 2_000;
/// News about distances, which rarely change.
const LINK_SPACING_MS: u64 = 30_000;
/// A change of a distance that is not worth a word, ms.
const SMALL_MS: f64 = 2.0;
/// Addresses said of ourselves.
const ADDRESSES: usize = 8;
/// A round trip counts this long.
const RECENT_MS: u64 = 60_000;
/// Of its round trips, the share that is below a peer's distance.
const USUAL: f64 = 0.5;
/// What a round trip on one host takes at most, ms; a ping that took longer met a busy processor.
const LOOPBACK_MS: f64 = 2.0;
/// What a round trip counts as at most among the slow ones: so many times the least of the last minute, and so much for a busy
/// host, ms. One that took longer waited for a cut to heal; it says how long that took and nothing of the network, and a
/// stage would be given as long to be silent in prompts to come.
const SLOW_TIMES: f64 = 8.0;
const SLOW_MS: f64 = 100.0;

/// Round trips to one peer.
#[derive(Clone, Debug)]
struct Trips {
    recent: Window,
    smooth: RoundTrip,
    /// The distance, ms.
    ms: f64,
}

struct Said {
    at: Millis,
    figures: Figures,
    /// The announcement that others have, and since when.
    whole: Draft,
    whole_at: Millis,
}

impl Said {
    /// Whether how this home numbers its network was said.
    fn tells_home(&self) -> bool {
        SaidAddresses::of(&self.whole.addresses).home
    }

    /// Whether `draft`, which brings no news, says what was said: then it need not be said again.
    fn holds_for(&self, draft: &Draft) -> bool {
        let (old, new) = (&self.whole, draft);
        let layers = |holding: &Holding| (holding.model, holding.loaded.clone(), holding.on_disk.clone());
        let held = |draft: &Draft| draft.claim.holdings.iter().map(layers).collect::<Vec<_>>();
        let is_near = |old: f64, new: f64| (new - old).abs() <= MOVED * old;
        let is_there = match (old.coordinate, new.coordinate) {
            (Some(old), Some(new)) => {
                let error = (MOVED * old.height_ms()).max(SMALL_MS);
                new.across_ms(&old) <= error && (new.height_ms() - old.height_ms()).abs() <= error
            }
            (old, new) => old.is_none() == new.is_none(),
        };
        let (was, is) = (&old.claim, &new.claim);
        is_there
            && held(old) == held(new)
            && was.draining == is.draining
            && is_near(was.up_bytes_per_ms, is.up_bytes_per_ms)
            && is_near(was.down_bytes_per_ms, is.down_bytes_per_ms)
            && (&old.offers, &old.rooms, &old.addresses) == (&new.offers, &new.rooms, &new.addresses)
            && (old.class, &old.agent) == (new.class, &new.agent)
    }
}

/// Why to speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    /// There is news.
    News,
    /// What was said would be forgotten.
    Refresh,
}

/// When to speak, and what was said last.
pub(crate) struct Announcer {
    sequence: u64,
    said: Option<Said>,
    /// Something changed that is told at once.
    changed: bool,
    /// A peer is not connected any more.
    parted: bool,
    draining: bool,
    trips: BTreeMap<NodeId, Trips>,
    paths: BTreeMap<NodeId, Path>,
    /// Where this node is.
    place: Coordinate,
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
            parted: false,
            draining: false,
            trips: BTreeMap::new(),
            paths: BTreeMap::new(),
            place: Coordinate::default(),
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
        let least = trips.recent.min(now).unwrap_or(ms);
        trips.smooth.add(ms.min(SLOW_TIMES * least + SLOW_MS));
        let usual = trips.recent.quantile(now, USUAL).unwrap_or(ms);
        trips.ms = self.paths.get(&node).map_or(usual, |path| nearer(usual, *path));
        trips.ms
    }

    /// Forgets a peer that is gone. If it is there still, it has forgotten this node, too: others pass on what is said next.
    pub fn gone(&mut self, node: NodeId) {
        self.parted = true;
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

    /// A member announced these addresses. Of one elsewhere how this home numbers its network is not said any more
    /// ([`p2p::home`]), at once.
    pub fn heard_of(&mut self, addresses: &[String]) {
        let home = self.said.as_ref().is_some_and(Said::tells_home);
        self.changed |= home && SaidAddresses::of(addresses).beyond;
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

    /// `connected` says whether every node that is known is connected.
    fn due(&self, now: Millis, figures: &Figures, connected: impl Fn() -> bool) -> Option<Due> {
        let Some(said) = &self.said else { return Some(Due::News) };
        let age = now.since(said.at);
        let news = (age >= SPACING_MS && self.changed)
            || (age >= LOAD_SPACING_MS && figures.is_news_after(&said.figures))
            || (age >= LINK_SPACING_MS && self.links_are_news_after(&said.whole.links));
        let parted = self.parted && age >= LOAD_SPACING_MS;
        let old = || now.since(said.whole_at) >= WHOLE_MS || age >= REFRESH_MS && !connected();
        if news { Some(Due::News) } else { (parted || old()).then_some(Due::Refresh) }
    }

    /// What was said, if saying that it holds on is enough instead of `draft`.
    fn renewable(&mut self, due: Due, now: Millis, draft: &Draft) -> Option<&mut Said> {
        let enough = |said: &&mut Said| now.since(said.whole_at) < WHOLE_MS && said.holds_for(draft);
        self.said.as_mut().filter(|_| due == Due::Refresh).filter(enough)
    }

    fn links_are_news_after(&self, said: &[Link]) -> bool {
        let links = self.links();
        let known = |link: &Link| said.iter().find(|old| old.to == link.to);
        let moved = |link: &Link| {
            known(link).is_none_or(|old| (link.rtt_ms - old.rtt_ms).abs() > (0.5 * old.rtt_ms).max(SMALL_MS))
        };
        links.iter().any(moved)
    }

    /// Moves this node to where its peers say they are and what was measured to them put it.
    fn settle(&mut self, view: &SwarmView) -> Option<Coordinate> {
        let known = self.trips.iter().filter_map(|(peer, trips)| Some((view.coordinate(*peer)?, trips.ms)));
        let mut known: Vec<(Coordinate, f64)> = known.collect();
        if known.is_empty() {
            // Peers that know no place yet, this one included, stand at the origin.
            known.extend(self.trips.values().map(|trips| (Coordinate::default(), trips.ms)));
        }
        self.place = self.place.settled(&known, &mut Rng::new(self.sequence));
        Some(self.place).filter(Coordinate::is_placed)
    }

    /// The nearest nodes, as measured.
    fn links(&self) -> Vec<Link> {
        let mut links: Vec<Link> =
            self.trips.iter().map(|(to, trips)| Link { to: *to, rtt_ms: trips.ms }).collect();
        links.sort_by(|a, b| a.rtt_ms.total_cmp(&b.rtt_ms));
        // The last ones are what this node may hold of its models and where it is.
        links.truncate(MAX_LINKS - MOST_ROOMS - 1);
        links
    }
}

fn nearer(ms: f64, path: Path) -> f64 {
    if path == Path::Loopback { ms.min(LOOPBACK_MS) } else { ms }
}

impl Announcing {
    /// Says what changed, or that what was said holds on.
    pub(crate) async fn announce(&mut self, urgent: bool, serving: &mut Serving, view: &mut Viewing) {
        let now = self.node.now();
        self.gossip.changed |= urgent;
        let figures = serving.figures(now);
        let connected = || view.facts.keys().all(|node| self.gossip.paths.contains_key(node));
        let Some(due) = self.gossip.due(now, &figures, connected) else { return };
        let mut addresses = self.node.network.announced_addresses().await;
        addresses.truncate(ADDRESSES);
        // Whose they are, the announcement says once.
        addresses.iter_mut().for_each(|address| *address = unnamed(address, self.node.me).to_owned());
        self.gossip.sequence = self.gossip.sequence.saturating_add(1);
        let mut draft = self.draft(serving, &figures, addresses);
        draft.coordinate = self.gossip.settle(&view.swarm);
        merge_own(&draft, serving, &figures, view, now);
        let sequence = self.gossip.sequence;
        let sealed = match self.gossip.renewable(due, now, &draft) {
            Some(said) => {
                said.at = now;
                Ok(Renewal::seal(&self.node.identity, sequence, said.whole.claim.sequence))
            }
            None => {
                let sealed = seal(&draft, &self.node.identity);
                self.gossip.said = Some(Said { at: now, figures, whole: draft, whole_at: now });
                sealed
            }
        };
        (self.gossip.changed, self.gossip.parted) = (false, false);
        match sealed {
            Ok(sealed) => {
                self.gossip.said_count += 1;
                self.gossip.said_bytes += sealed.len() as u64;
                // Having no peers yet is not an error: a newcomer asks.
                let _ = self.node.network.publish(sealed).await;
            }
            Err(why) => tracing::warn!(%why, "own announcement refused"),
        }
    }

    fn draft(&self, serving: &Serving, figures: &Figures, addresses: Vec<String>) -> Draft {
        let (mut holdings, mut offers) = (Vec::new(), Vec::new());
        for held in serving.models.all().filter(|_| !serving.gate.paused) {
            let (ready, offered) = (&held.ready, serving.offered(held));
            // A model named twice on the command line is said once.
            let said = offers.iter().any(|offer: &Offer| offer.model == held.id);
            if offered.is_empty() || said {
                continue;
            }
            let mut holding = holding(serving, held, figures, offered);
            if figures.full {
                // There is memory, but none for another session.
                holding.kv_bytes = 0;
            }
            holdings.push(holding);
            // The name under which its owner shares it is the one others were told.
            let shared = self.shared.borrow().iter().find(|offer| offer.model == held.id).cloned();
            offers.push(Offer {
                model: held.id,
                name: shared
                    .map_or_else(|| held.about.name.chars().take(MAX_NAME).collect(), |offer| offer.name),
                num_layers: ready.num_layers,
                hidden: ready.hidden,
                context: ready.context,
                file_bytes: held.file_bytes,
                costs: ready.costs.clone().filter(is_describable),
            });
        }
        if !serving.gate.paused {
            self.name_shared(&mut holdings, &mut offers);
        }
        let rooms = serving.place_rooms().filter_map(|(model, room)| {
            let offer = offers.iter().position(|offer| offer.model == model)?;
            let layers = room.layers.min(offers[offer].num_layers);
            Some(PlaceRoom { offer: offer as u16, layers, bytes: room.bytes })
        });
        let mut rooms: Vec<PlaceRoom> = rooms.collect();
        rooms.sort_by_key(|room| room.offer);
        rooms.dedup_by_key(|room| room.offer);
        rooms.truncate(MOST_ROOMS);
        let (up_bytes_per_ms, down_bytes_per_ms) = self.line.rates(self.gossip.farthest(), self.node.now());
        let claim = Claim {
            node: self.node.me,
            operator: own_operator(self.node.me),
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
            class: serving.models.leading().ready.class,
            offers,
            links: self.gossip.links(),
            coordinate: None,
            rooms,
            addresses,
            ttl_ms: TTL_MS,
            agent: agent(&serving.models.leading().ready.device),
        }
    }

    /// Other layers are in memory: own prompts may use them now, whenever others are told.
    pub(crate) async fn holds_otherwise(&mut self, serving: &mut Serving, view: &mut Viewing) {
        let now = self.node.now();
        let figures = serving.figures(now);
        self.gossip.sequence = self.gossip.sequence.saturating_add(1);
        let draft = self.draft(serving, &figures, Vec::new());
        merge_own(&draft, serving, &figures, view, now);
        self.announce(true, serving, view).await;
    }
}

/// What is said of a model: the sessions, the waiting and the memory for caches are the node's, the rest its own.
fn holding(serving: &Serving, held: &Held, figures: &Figures, layers: Vec<LayerRange>) -> Holding {
    let leading = &serving.models.leading().ready;
    let ready = &held.ready;
    let beyond = held.spec.experts.as_ref().and_then(ExpertShare::times);
    // What visits wait here beyond what the first model's visits take, those of another wait too.
    let waited_ms = (figures.visit_ms - leading.times.visit_ms).max(0.0);
    let unloaded = held.is_unloaded();
    let (loaded, on_disk) = if unloaded { (Vec::new(), layers) } else { (layers, Vec::new()) };
    let decode_ms = ready.times.decode_ms + beyond.map_or(0.0, |times| times.decode_ms);
    let (knee, held_layers) = (Serving::knee(held), loaded.iter().map(|range| range.len()).sum::<u32>());
    let step_ms = decode_ms * f64::from(held_layers);
    Holding {
        model: held.id,
        loaded,
        on_disk,
        decode_ms,
        prefill_ms: ready.times.prefill_ms + beyond.map_or(0.0, |times| times.prefill_ms),
        visit_ms: ready.times.visit_ms + waited_ms,
        queue_ms: unexplained_wait_ms(figures.queue_ms, step_ms, figures.active, knee),
        load_ms: if unloaded { held.load_ms() } else { 0.0 },
        active: figures.active,
        batch_knee: knee,
        kv_bytes: figures.kv_bytes,
    }
}

/// The own view counts everything loaded, the ends that only serve own prompts included.
fn merge_own(draft: &Draft, serving: &Serving, figures: &Figures, view: &mut Viewing, now: Millis) {
    let mut claim = draft.claim.clone();
    let mut holdings: Vec<Holding> = Vec::new();
    for held in serving.models.all().filter(|held| !held.loaded.is_empty() && held.computes()) {
        let loaded = LayerSet::new(held.loaded.iter().copied()).ranges().to_vec();
        if holdings.iter().all(|known| known.model != held.id) {
            holdings.push(holding(serving, held, figures, loaded));
        }
    }
    claim.holdings = holdings;
    claim.draining = false;
    match Capability::try_from(claim) {
        Ok(own) => {
            view.swarm.merge_for(own, now, u64::from(TTL_MS));
            draft.coordinate.into_iter().for_each(|place| view.swarm.place(view.me, place));
        }
        Err(why) => tracing::warn!(%why, "own figures refused"),
    }
}

/// Program and version, and behind a space the device that computes, where it is no processor. What a driver calls it is cut to
/// what an announcement may say.
fn agent(device: &str) -> String {
    let mut agent = concat!("shoal/", env!("CARGO_PKG_VERSION")).to_owned();
    if !device.is_empty() && !device.starts_with("cpu ") {
        let plain = device.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
        agent = format!("{agent} {}", plain.collect::<String>());
        agent.truncate(MAX_AGENT);
    }
    agent
}

#[cfg(test)]
mod tests;
