//! What this node says of itself, and what it makes of what others say.

use std::collections::BTreeMap;

use p2p::wire::announce::{Announcement, Class, Draft, Link, MAX_LINKS, Offer, own_operator, seal};
use scheduler::{Capability, Claim, Holding, LayerSet, Millis, NodeId, latency::RoundTrip, view::Merged};

use super::{Daemon, Notice};

/// A third of what peers forget us after (`EXPIRY_MS`): two may be lost.
const REFRESH_MS: u64 = 5_000;
/// News travels at once, but not oftener than this: gossip from a busy node must not cost its peers their idle budget.
const SPACING_MS: u64 = 500;
/// What peers may rely on without hearing from us.
const TTL_MS: u32 = 15_000;
/// Addresses said of ourselves.
const ADDRESSES: usize = 8;

/// What is known of a node besides what the scheduler needs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub addresses: Vec<String>,
    pub offers: Vec<Offer>,
    pub agent: String,
    pub class: Class,
}

/// When to speak, and what was said last.
pub(super) struct Announcer {
    sequence: u64,
    said: Option<(Millis, Draft)>,
    draining: bool,
    round_trips: BTreeMap<NodeId, RoundTrip>,
}

impl Announcer {
    /// Sequence numbers go on from the clock, so a restarted node is newer than it was.
    pub fn new(unix_ms: u64) -> Self {
        Self { sequence: unix_ms, said: None, draining: false, round_trips: BTreeMap::new() }
    }

    /// Notes a measured round trip.
    pub fn measured(&mut self, node: NodeId, ms: f64) {
        self.round_trips.entry(node).or_default().add(ms);
    }

    /// The mean round trip to a node, if measured.
    pub fn rtt_ms(&self, node: NodeId) -> Option<f64> {
        self.round_trips.get(&node).and_then(RoundTrip::mean_ms)
    }

    /// From now on nothing new is taken.
    pub fn drain(&mut self) {
        self.draining = true;
        self.said = None;
    }

    fn due(&self, now: Millis, draft: &Draft, urgent: bool) -> bool {
        let Some((when, said)) = &self.said else { return true };
        let age = now.since(*when);
        let news = said.claim.holdings != draft.claim.holdings
            || said.addresses != draft.addresses
            || said.links.len() != draft.links.len();
        age >= REFRESH_MS || (age >= SPACING_MS && (news || urgent))
    }

    /// The nearest nodes, as measured.
    fn links(&self) -> Vec<Link> {
        let mean = |(node, trip): (&NodeId, &RoundTrip)| Some(Link { to: *node, rtt_ms: trip.mean_ms()? });
        let mut links: Vec<Link> = self.round_trips.iter().filter_map(mean).collect();
        links.sort_by(|a, b| a.rtt_ms.total_cmp(&b.rtt_ms));
        links.truncate(MAX_LINKS);
        links
    }
}

impl Daemon {
    /// Says what changed, or that nothing did when it was said long ago.
    pub(super) async fn announce(&mut self, urgent: bool) {
        let now = self.now();
        let mut addresses = self.network.addresses().await;
        addresses.truncate(ADDRESSES);
        let mut draft = self.draft(addresses);
        if !self.gossip.due(now, &draft, urgent) {
            return;
        }
        self.gossip.sequence = self.gossip.sequence.saturating_add(1);
        draft.claim.sequence = self.gossip.sequence;
        self.merge_own(draft.clone(), now);
        match seal(&draft, &self.identity) {
            Ok(sealed) => {
                // Nobody to tell yet is not an error: a newcomer asks.
                let _ = self.network.publish(sealed).await;
            }
            Err(why) => tracing::warn!(%why, "own announcement refused"),
        }
        self.gossip.said = Some((now, draft));
    }

    /// Room for sessions, layers x positions.
    fn kv_room(&self) -> u64 {
        self.held.kv_bytes / self.held.ready.kv_bytes_per_layer_position.max(1)
    }

    fn draft(&self, addresses: Vec<String>) -> Draft {
        let ready = &self.held.ready;
        let serving = !self.held.served.is_empty() && !self.paused;
        let holding = Holding {
            model: self.held.id,
            loaded: self.held.served.clone(),
            on_disk: Vec::new(),
            decode_ms: ready.decode_ms,
            prefill_ms: ready.prefill_ms,
            visit_ms: ready.visit_ms,
            queue_ms: 0.0,
            load_ms: 0.0,
            active: self.table.serving(self.me) as u32,
            batch_knee: 1,
            kv_layer_positions: self.kv_room(),
        };
        let offer = Offer {
            model: self.held.id,
            name: ready.name.clone(),
            num_layers: ready.num_layers,
            hidden: ready.hidden,
            context: ready.context,
            file_bytes: self.held.file_bytes,
        };
        let (mut holdings, mut offers) =
            if serving { (vec![holding], vec![offer]) } else { Default::default() };
        self.name_shared(&mut holdings, &mut offers);
        let claim = Claim {
            node: self.me,
            operator: own_operator(self.me),
            sequence: self.gossip.sequence,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms: 1e6,
            down_bytes_per_ms: 1e6,
            draining: self.gossip.draining,
            holdings,
        };
        Draft {
            claim,
            class: Class::D1,
            offers,
            links: self.gossip.links(),
            addresses,
            ttl_ms: TTL_MS,
            agent: concat!("shoal/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// The own view counts everything loaded, the ends that only serve own prompts included.
    fn merge_own(&mut self, draft: Draft, now: Millis) {
        let mut claim = draft.claim;
        let ready = &self.held.ready;
        let holding = Holding {
            model: self.held.id,
            loaded: LayerSet::new(self.held.loaded.iter().copied()).ranges().to_vec(),
            on_disk: Vec::new(),
            decode_ms: ready.decode_ms,
            prefill_ms: ready.prefill_ms,
            visit_ms: ready.visit_ms,
            queue_ms: 0.0,
            load_ms: 0.0,
            active: self.table.serving(self.me) as u32,
            batch_knee: 1,
            kv_layer_positions: self.kv_room(),
        };
        claim.holdings = if self.held.loaded.is_empty() { Vec::new() } else { vec![holding] };
        claim.draining = false;
        match Capability::try_from(claim) {
            Ok(own) => {
                self.view.merge(own, now);
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
        let Announcement { capability, class, offers, links, addresses, agent, .. } = announcement;
        match self.view.merge(capability, now) {
            Merged::Fresh => {}
            Merged::Equivocation => {
                tracing::warn!(%node, "two different announcements under one number");
                return;
            }
            Merged::Stale | Merged::Full => return,
        }
        for link in links {
            // Own measurements are never replaced by somebody's word.
            if link.to != self.me {
                self.view.observe_link(node, link.to, link.rtt_ms);
            }
        }
        let facts = Facts { addresses, offers, agent, class };
        if self.facts.insert(node, facts).is_none() {
            let _ = self.notices.try_send(Notice::Joined(node));
            // Somebody new should not wait for the next round to hear of us.
            self.announce(true).await;
        }
    }
}
