//! What nodes announce, and how it stays small, true and fresh.
//!
//! Announcements travel over gossipsub on one topic, published when something changed. Three checks stand between a
//! stranger's bytes and the rest of the program, and a message is passed on to others only when it came through all:
//!
//! 1. *Budget*: one forwarding peer may send [`PEER_RATE`] messages a second. Who sends far more is not listened to for a
//!    minute, before anything of it is decoded.
//! 2. *Truth*: the signature fits and every number can be ([`announce::open`]). If not, the forwarder pays with its
//!    score: it had to check the same.
//! 3. *Freshness*: the sequence number is above the last one heard of that node, and the node has not used up *its*
//!    budget. If not, the message is dropped without blame: it may have crossed a newer one.
//!
//! A newcomer asks each of its first peers for what is known ([`Ledger::known`]), point to point, so no node has to
//! repeat himself for it.
//!
//! An announcement is void `ttl_ms` after it was first *heard*, after its author said that it holds on
//! ([`crate::wire::renewal`]) or was connected last, on the hearer's clock: no clock but one's own counts.
//! Its number is remembered longer, so it cannot come back by replay.
//!
//! Identities are free, so room is given by proof and not by order of arrival. An author is *proven* once it was connected;
//! of the others one forwarding peer may bring [`MAX_UNPROVEN`]. Limits: [`MAX_NODES`] nodes; beyond, what is void goes, then
//! the unproven authors of the peer that brought most of them, the longest unheard first. A node that has just started cannot tell an old announcement of a dead node
//! from a live one: such a stale entry lives for one `ttl_ms`, and cannot be connected to.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use libp2p::gossipsub::{
    self, ConfigBuilder, IdentTopic, MaxCountSubscriptionFilter, MessageAuthenticity, MessageId,
    PeerScoreParams, PeerScoreThresholds, TopicScoreParams, ValidationMode, WhitelistSubscriptionFilter,
};
use scheduler::NodeId;

use crate::config::{Config, Names};
use crate::error::{Error, Result};
use crate::home::Said;
use crate::wire::announce::{self, Announcement, MAX_ANNOUNCEMENT, MAX_TTL_MS};
use crate::wire::renewal::Renewal;

/// Nodes whose announcements are kept; at up to 16 KiB each the worst case is 64 MiB, the usual one 4 MiB.
pub(crate) const MAX_NODES: usize = 4_096;
/// Messages a second one peer may forward, sustained: 1,000 nodes announcing every 5 s through one peer.
pub(crate) const PEER_RATE: f64 = 200.0;
/// Authors that were never connected and came by one forwarding peer: a quarter of the room, and a swarm of a thousand through
/// one peer. More of them are not heard, until others of that peer are void.
pub(crate) const MAX_UNPROVEN: usize = MAX_NODES / 4;
const PEER_BURST: f64 = 1_000.0;
/// Messages beyond its budget after which a peer is not listened to any more.
pub(crate) const PEER_EXCESS: u32 = 1_000;
/// Announcements a second of one node, sustained.
const NODE_RATE: f64 = 2.0;
const NODE_BURST: f64 = 16.0;
/// How long sequence numbers are remembered after an announcement is void.
const MEMORY: Duration = Duration::from_secs(600);
/// Room for gossipsub's own words around one announcement.
const ENVELOPE: usize = 1 << 10;

/// The gossipsub of this crate: only one topic, few of everything.
pub(crate) type Gossipsub = gossipsub::Behaviour<
    gossipsub::IdentityTransform,
    MaxCountSubscriptionFilter<WhitelistSubscriptionFilter>,
>;

/// Gossipsub with the settings of this swarm.
///
/// # Errors
/// [`Error::Listen`] when libp2p refuses the settings.
pub(crate) fn behaviour(config: &Config, names: &Names) -> Result<Gossipsub> {
    let failed = |e: &dyn std::fmt::Display| Error::Listen(format!("gossip settings: {e}"));
    let topic = IdentTopic::new(&names.topic);
    let settings = ConfigBuilder::default()
        .protocol_id_prefix(names.gossip.clone())
        // Announcements carry their own signature; a second one, and a forwarder's name in it, would only tell more.
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| MessageId::new(blake3::hash(&message.data).as_bytes()))
        .max_transmit_size(MAX_ANNOUNCEMENT + ENVELOPE)
        .max_publish_messages(64)
        // The default of five seconds would leave a fresh node without a mesh for that long.
        .heartbeat_initial_delay(Duration::from_millis(100))
        .heartbeat_interval(Duration::from_secs(1))
        .build()
        .map_err(|e| failed(&e))?;
    let filter = MaxCountSubscriptionFilter {
        filter: WhitelistSubscriptionFilter(HashSet::from([topic.hash()])),
        max_subscribed_topics: 8,
        max_subscriptions_per_request: 8,
    };
    let mut gossip =
        Gossipsub::new_with_subscription_filter(MessageAuthenticity::Anonymous, settings, filter)
            .map_err(|e| failed(&e))?;
    gossip.with_peer_score(scores(config, &topic), thresholds()).map_err(|e| failed(&e))?;
    gossip.subscribe(&topic).map_err(|e| failed(&e))?;
    Ok(gossip)
}

/// One invalid message is 20 points down, three are deafness for half a minute. Deliveries are not scored: who
/// announces on change only is silent for good reasons.
fn scores(config: &Config, topic: &IdentTopic) -> PeerScoreParams {
    let announcements = TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.01,
        time_in_mesh_quantum: Duration::from_secs(1),
        time_in_mesh_cap: 300.0,
        first_message_deliveries_weight: 0.1,
        first_message_deliveries_decay: 0.9,
        first_message_deliveries_cap: 20.0,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -20.0,
        invalid_message_deliveries_decay: 0.97,
        ..TopicScoreParams::default()
    };
    PeerScoreParams {
        topics: HashMap::from([(topic.hash(), announcements)]),
        topic_score_cap: 10.0,
        app_specific_weight: 1.0,
        // Swarms of one machine have one address.
        ip_colocation_factor_weight: if config.loopback_only { 0.0 } else { -5.0 },
        ip_colocation_factor_threshold: 4.0,
        ip_colocation_factor_whitelist: HashSet::from([
            std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::Ipv6Addr::LOCALHOST.into(),
        ]),
        behaviour_penalty_threshold: 6.0,
        ..PeerScoreParams::default()
    }
}

fn thresholds() -> PeerScoreThresholds {
    PeerScoreThresholds {
        gossip_threshold: -50.0,
        publish_threshold: -80.0,
        graylist_threshold: DEAF / 2.0,
        accept_px_threshold: 1_000.0,
        opportunistic_graft_threshold: 1.0,
    }
}

/// The score of a peer that is not listened to.
pub(crate) const DEAF: f64 = -200.0;

/// So many a second, so many at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: f64,
    at: Instant,
}

impl Budget {
    pub fn full(burst: f64, now: Instant) -> Self {
        Self { left: burst, at: now }
    }

    /// Takes one if there is one.
    pub fn take(&mut self, rate: f64, burst: f64, now: Instant) -> bool {
        let refill = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        (self.left, self.at) = ((self.left + refill).min(burst), now);
        let enough = self.left >= 1.0;
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}

/// How much one peer has forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forwarder {
    budget: Budget,
    excess: u32,
}

/// Whether to look at what a peer forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Listen,
    Drop,
    /// Too often: stop listening.
    Deafen,
}

impl Forwarder {
    pub fn new(now: Instant) -> Self {
        Self { budget: Budget::full(PEER_BURST, now), excess: 0 }
    }

    /// Counts one message.
    pub fn hear(&mut self, now: Instant) -> Patience {
        if self.budget.take(PEER_RATE, PEER_BURST, now) {
            return Patience::Listen;
        }
        self.excess += 1;
        if self.excess < PEER_EXCESS {
            return Patience::Drop;
        }
        self.excess = 0;
        Patience::Deafen
    }
}

/// What a message turned out to be.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// News: pass it on, tell the node.
    Fresh(Box<Announcement>),
    /// Old, too often, or no room: drop it without blame.
    Stale,
    /// A lie or garbage: who forwarded it is to blame.
    Invalid,
}

#[derive(Debug)]
struct Entry {
    sequence: u64,
    /// The number of the announcement that is kept, which a renewal names.
    of: u64,
    ttl: Duration,
    heard: Instant,
    void: Instant,
    /// As it was said, whether void or not.
    bytes: Vec<u8>,
    /// The last renewal of it, if there was one.
    renewal: Vec<u8>,
    budget: Budget,
    /// Who brought its first announcement.
    via: PeerId,
    /// Whether it was connected.
    proven: bool,
    /// What its addresses say of where it is.
    said: Said,
}

/// What has been announced and is not void.
#[derive(Default, Debug)]
pub(crate) struct Ledger {
    entries: HashMap<NodeId, Entry>,
}

impl Ledger {
    /// Judges a message that came by `via` and remembers it if it is news; `connected` says of its author whether it is
    /// connected.
    pub fn hear(
        &mut self,
        bytes: &[u8],
        now: Instant,
        via: PeerId,
        connected: impl Fn(NodeId) -> bool,
    ) -> Verdict {
        if Renewal::is_meant(bytes) {
            return Renewal::open(bytes).map_or(Verdict::Invalid, |renewal| self.renew(renewal, bytes, now));
        }
        let Ok(announcement) = announce::open(bytes) else { return Verdict::Invalid };
        let sequence = announcement.capability.claim().sequence;
        let ttl = Duration::from_millis(u64::from(announcement.ttl_ms.min(MAX_TTL_MS)));
        let node = announcement.node();
        let said = Said::of(&announcement.addresses);
        if let Some(entry) = self.entries.get_mut(&node) {
            if sequence <= entry.sequence || !entry.budget.take(NODE_RATE, NODE_BURST, now) {
                return Verdict::Stale;
            }
            (entry.sequence, entry.of, entry.ttl) = (sequence, sequence, ttl);
            (entry.heard, entry.void) = (now, now + ttl);
            (entry.bytes, entry.renewal, entry.said) = (bytes.to_vec(), Vec::new(), said);
            entry.proven |= connected(node);
            return Verdict::Fresh(Box::new(announcement));
        }
        let proven = connected(node);
        if !self.make_room(now, via, proven) {
            return Verdict::Stale;
        }
        let mut budget = Budget::full(NODE_BURST, now);
        budget.take(NODE_RATE, NODE_BURST, now);
        let (void, bytes) = (now + ttl, bytes.to_vec());
        let (of, heard, renewal) = (sequence, now, Vec::new());
        let entry = Entry { sequence, of, ttl, heard, void, bytes, renewal, budget, via, proven, said };
        self.entries.insert(node, entry);
        Verdict::Fresh(Box::new(announcement))
    }

    /// What a node announced holds on, if it is what is kept: as if it had been said again whole, also where it was void.
    fn renew(&mut self, renewal: Renewal, bytes: &[u8], now: Instant) -> Verdict {
        let entry = self.entries.get_mut(&renewal.node).filter(|entry| entry.sequence < renewal.sequence);
        let Some(entry) = entry else { return Verdict::Stale };
        if !entry.budget.take(NODE_RATE, NODE_BURST, now) {
            return Verdict::Stale;
        }
        if entry.of != renewal.of {
            // Of an announcement that was not heard nothing can be said, and the one that is kept does not hold any more:
            // neighbors ask for it, others hear the next whole one.
            entry.void = entry.void.min(now);
            return Verdict::Stale;
        }
        let again = announce::read_again(&entry.bytes).and_then(|said| said.numbered(renewal.sequence));
        let Some(again) = again else { return Verdict::Stale };
        (entry.sequence, entry.heard, entry.void) = (renewal.sequence, now, now + entry.ttl);
        entry.renewal = bytes.to_vec();
        Verdict::Fresh(Box::new(again))
    }

    /// A node is connected, so it is there: what is kept of it holds on.
    pub fn hold(&mut self, node: NodeId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&node).filter(|entry| entry.void > now) {
            (entry.void, entry.heard) = (entry.void.max(now + entry.ttl), now);
        }
    }

    /// A node is connected: its announcements keep their room.
    pub fn prove(&mut self, node: NodeId) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.proven = true;
        }
    }

    /// Makes room for an author that `via` brings; false when there is none for it.
    fn make_room(&mut self, now: Instant, via: PeerId, proven: bool) -> bool {
        let mut unproven: HashMap<PeerId, usize> = HashMap::new();
        for entry in self.entries.values().filter(|entry| !entry.proven) {
            *unproven.entry(entry.via).or_default() += 1;
        }
        let its = unproven.get(&via).copied().unwrap_or(0);
        if !proven
            && its >= MAX_UNPROVEN
            && !self.drop_oldest(|entry| entry.via == via && !entry.proven && entry.void <= now)
        {
            return false;
        }
        if self.entries.len() < MAX_NODES || self.drop_oldest(|entry| entry.void <= now) {
            return true;
        }
        let Some((worst, most)) = unproven.into_iter().max_by_key(|(peer, count)| (*count, *peer)) else {
            return false;
        };
        (proven || its + 1 < most) && self.drop_oldest(|entry| entry.via == worst && !entry.proven)
    }

    /// Forgets the longest unheard of those; whether there was one.
    fn drop_oldest(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let those = self.entries.iter().filter(|(_, entry)| of(entry));
        let oldest = those.min_by_key(|(node, entry)| (entry.heard, **node)).map(|(node, _)| *node);
        oldest.is_some_and(|node| self.entries.remove(&node).is_some())
    }

    /// What is kept of `node` and not void, as its last renewal has it, and as it was sealed.
    pub fn again(&self, node: NodeId, now: Instant) -> Option<(Box<Announcement>, Vec<u8>)> {
        let entry = self.entries.get(&node).filter(|entry| entry.void > now)?;
        let again = announce::read_again(&entry.bytes)?.numbered(entry.sequence)?;
        Some((Box::new(again), entry.bytes.clone()))
    }

    /// What is not void and says what may be handed out, freshest first, and then their renewals.
    pub fn known(&self, now: Instant, may: impl Fn(Said) -> bool) -> Vec<Vec<u8>> {
        let handed = |entry: &&Entry| entry.void > now && may(entry.said);
        let mut live: Vec<&Entry> = self.entries.values().filter(handed).collect();
        live.sort_by_key(|entry| std::cmp::Reverse(entry.heard));
        let renewals = live.iter().map(|entry| &entry.renewal);
        let all = live.iter().map(|entry| &entry.bytes).chain(renewals);
        all.filter(|bytes| !bytes.is_empty()).cloned().collect()
    }

    /// Where `node` says that it is, by its last announcement that holds.
    pub fn addresses(&self, node: NodeId, now: Instant) -> Vec<String> {
        let entry = self.entries.get(&node).filter(|entry| entry.void > now);
        let announcement = entry.and_then(|entry| announce::open(&entry.bytes).ok());
        announcement.map(|announcement| announcement.addresses).unwrap_or_default()
    }

    /// Whether a member announces itself where the Internet reaches it.
    pub fn reaches_beyond(&self, now: Instant) -> bool {
        self.entries.values().any(|entry| entry.said.beyond && entry.void > now)
    }

    /// Whether something of `node` is known and holds.
    pub fn knows(&self, node: NodeId, now: Instant) -> bool {
        self.entries.get(&node).is_some_and(|entry| entry.void > now)
    }

    /// Number of nodes not void.
    pub fn len(&self, now: Instant) -> usize {
        self.entries.values().filter(|entry| entry.void > now).count()
    }

    /// Gives back the room of what is void.
    pub fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, entry| now.saturating_duration_since(entry.void) < MEMORY);
        if self.entries.len() >= MAX_NODES {
            // Under pressure old numbers go first: a replay costs one ttl, an unknown node would cost a peer.
            self.entries.retain(|_, entry| entry.void > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::wire::announce::{Class, Draft, seal};
    use scheduler::{Claim, OperatorId};

    fn sealed(seed: u16, sequence: u64, ttl_ms: u32) -> Vec<u8> {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&seed.to_le_bytes());
        let identity = Identity::from_seed(bytes);
        let claim = Claim {
            node: identity.node(),
            operator: OperatorId::new(*identity.node().as_bytes()),
            sequence,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms: 1.0,
            down_bytes_per_ms: 1.0,
            draining: false,
            holdings: Vec::new(),
        };
        let draft = Draft {
            claim,
            class: Class::D1,
            offers: Vec::new(),
            links: Vec::new(),
            coordinate: None,
            rooms: Vec::new(),
            addresses: Vec::new(),
            ttl_ms,
            agent: String::new(),
        };
        seal(&draft, &identity).unwrap()
    }

    fn fresh(ledger: &mut Ledger, bytes: &[u8], now: Instant) -> bool {
        matches!(hear(ledger, bytes, now), Verdict::Fresh(_))
    }

    /// As a peer that is not connected with the author brings it.
    fn hear(ledger: &mut Ledger, bytes: &[u8], now: Instant) -> Verdict {
        ledger.hear(bytes, now, via(1), |_| false)
    }

    fn via(seed: u8) -> PeerId {
        crate::identity::peer_id(Identity::from_seed([seed; 32]).node()).unwrap()
    }

    /// An entry as of an author that `via` brought; its announcement is never read.
    fn fill(ledger: &mut Ledger, from: u64, count: u64, via: PeerId, now: Instant) {
        for n in from..from + count {
            let (void, budget) = (now + Duration::from_secs(90), Budget::full(NODE_BURST, now));
            let (bytes, said, ttl) = (Vec::new(), Said::default(), Duration::from_secs(90));
            let (sequence, of, heard, proven, renewal) = (1, 1, now, false, Vec::new());
            let entry = Entry { sequence, of, ttl, heard, void, bytes, renewal, budget, via, proven, said };
            ledger.entries.insert(NodeId::numbered(n), entry);
        }
    }

    #[test]
    fn one_forwarder_brings_a_quarter_of_unproven_authors_and_connected_ones_always_get_in() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        fill(&mut ledger, 0, MAX_UNPROVEN as u64, via(1), now);
        let stranger = sealed(1, 5, 60_000);
        assert!(!fresh(&mut ledger, &stranger, now), "its forwarder has brought enough");
        assert!(matches!(ledger.hear(&stranger, now, via(2), |_| false), Verdict::Fresh(_)));
        assert!(matches!(ledger.hear(&sealed(2, 5, 60_000), now, via(1), |_| true), Verdict::Fresh(_)));
        let later = now + Duration::from_secs(100);
        assert!(fresh(&mut ledger, &sealed(3, 5, 60_000), later), "others of it are void");
    }

    #[test]
    fn a_full_ledger_makes_room_by_proof_and_takes_it_from_the_greatest_forwarder() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        for forwarder in 0..4 {
            let count = (MAX_UNPROVEN - usize::from(forwarder != 3)) as u64;
            fill(&mut ledger, u64::from(forwarder) << 32, count, via(10 + forwarder), now);
        }
        let kept = [sealed(1, 5, 60_000), sealed(2, 5, 60_000), sealed(3, 5, 60_000)];
        for bytes in &kept {
            assert!(matches!(ledger.hear(bytes, now, via(20), |_| true), Verdict::Fresh(_)));
        }
        assert_eq!(ledger.entries.len(), MAX_NODES);
        assert!(matches!(ledger.hear(&sealed(4, 5, 60_000), now, via(10), |_| true), Verdict::Fresh(_)));
        assert!(matches!(ledger.hear(&sealed(5, 5, 60_000), now, via(21), |_| false), Verdict::Fresh(_)));
        assert!(matches!(ledger.hear(&sealed(6, 5, 60_000), now, via(12), |_| false), Verdict::Stale));
        assert_eq!(ledger.entries.len(), MAX_NODES);
        let greatest = ledger.entries.values().filter(|entry| entry.via == via(13)).count();
        assert!(greatest < MAX_UNPROVEN, "room came from the greatest");
        assert_eq!(ledger.entries.values().filter(|entry| entry.proven).count(), 4);
    }

    #[test]
    fn only_higher_numbers_are_news_even_after_they_are_void() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        assert!(fresh(&mut ledger, &sealed(1, 5, 1_000), start));
        for old in [5, 4, 0] {
            assert!(matches!(hear(&mut ledger, &sealed(1, old, 1_000), start), Verdict::Stale));
        }
        assert_eq!(ledger.known(start, |_| true).len(), 1);
        let later = start + Duration::from_secs(2);
        ledger.expire(later);
        assert_eq!((ledger.known(later, |_| true).len(), ledger.len(later)), (0, 0));
        assert!(matches!(hear(&mut ledger, &sealed(1, 5, 1_000), later), Verdict::Stale), "a replay");
        assert!(fresh(&mut ledger, &sealed(1, 6, 1_000), later));
        let much_later = later + MEMORY * 2;
        ledger.expire(much_later);
        assert!(ledger.entries.is_empty());
    }

    #[test]
    fn a_renewal_holds_what_is_kept_and_nothing_else() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut author = [0; 32];
        author[0] = 1;
        let identity = Identity::from_seed(author);
        let renewal = |sequence, of| Renewal::seal(&identity, sequence, of);
        let mut ledger = Ledger::default();
        assert!(!fresh(&mut ledger, &renewal(6, 5), start), "of a node that is not known");
        assert!(fresh(&mut ledger, &sealed(1, 5, 10_000), start));
        let Verdict::Fresh(again) = hear(&mut ledger, &renewal(6, 5), at(8)) else { panic!("it holds on") };
        assert_eq!(
            (again.node(), again.capability.claim().sequence, again.ttl_ms),
            (identity.node(), 6, 10_000)
        );
        let both = [sealed(1, 5, 10_000), renewal(6, 5)];
        assert_eq!(ledger.known(at(15), |_| true), both, "a newcomer is given the whole, too");
        let (said, bytes) = ledger.again(identity.node(), at(15)).unwrap();
        assert_eq!((said.capability.claim().sequence, &bytes), (6, &both[0]));
        let mut newcomer = Ledger::default();
        assert!(both.iter().all(|bytes| fresh(&mut newcomer, bytes, at(15))));
        assert!(!fresh(&mut ledger, &renewal(6, 5), at(15)), "a replay");
        assert!(!fresh(&mut ledger, &sealed(1, 6, 10_000), at(15)), "its number is used");
        assert!(ledger.knows(identity.node(), at(17)) && !ledger.knows(identity.node(), at(18)));
        ledger.expire(at(18));
        // After a cut that lasted longer: what a neighbor hands out, and what the author says.
        assert!(!fresh(&mut ledger, &both[0], at(18)) && !fresh(&mut ledger, &both[1], at(18)));
        assert!(fresh(&mut ledger, &renewal(8, 5), at(18)) && ledger.knows(identity.node(), at(27)));
        assert!(!fresh(&mut ledger, &renewal(10, 9), at(19)), "of an announcement that was not heard");
        assert!(
            !ledger.knows(identity.node(), at(19)),
            "what is kept does not hold any more: it is asked for"
        );
        assert!(
            fresh(&mut ledger, &sealed(1, 9, 10_000), at(19)) && fresh(&mut ledger, &renewal(10, 9), at(19))
        );
        let mut lie = renewal(11, 9);
        for at in 0..lie.len() {
            lie[at] ^= 1;
            let verdict = hear(&mut ledger, &lie, start + Duration::from_secs(20));
            assert!(matches!(verdict, Verdict::Invalid), "byte {at}");
            lie[at] ^= 1;
        }
        assert!(matches!(hear(&mut ledger, &renewal(11, 11), at(20)), Verdict::Invalid), "of itself");
        ledger.hold(identity.node(), at(28));
        assert!(ledger.knows(identity.node(), at(37)) && !ledger.knows(identity.node(), at(38)));
        ledger.hold(identity.node(), at(38));
        assert!(!ledger.knows(identity.node(), at(38)), "what is void stays void");
    }

    #[test]
    fn any_changed_byte_is_a_lie() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let bytes = sealed(1, 5, 1_000);
        for at in (0..bytes.len()).step_by(7) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x20;
            assert!(matches!(hear(&mut ledger, &bad, now), Verdict::Invalid), "byte {at}");
        }
        assert!(ledger.entries.is_empty());
    }

    #[test]
    fn one_node_cannot_fill_the_air() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let burst = (1..=100).filter(|n| fresh(&mut ledger, &sealed(1, *n, 1_000), now)).count();
        assert_eq!(burst, NODE_BURST as usize);
        assert!(fresh(&mut ledger, &sealed(1, 101, 1_000), now + Duration::from_secs(1)));
    }

    #[test]
    fn a_forwarder_that_floods_is_dropped_then_deafened_then_forgiven() {
        let now = Instant::now();
        let mut forwarder = Forwarder::new(now);
        let mut counts = [0; 3];
        for _ in 0..PEER_BURST as u32 + PEER_EXCESS {
            counts[forwarder.hear(now) as usize] += 1;
        }
        assert_eq!(counts, [PEER_BURST as u32, PEER_EXCESS - 1, 1]);
        assert_eq!(forwarder.hear(now + Duration::from_secs(1)), Patience::Listen);
    }
}
