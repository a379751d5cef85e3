//! What the API and its page show of this node: the swarm as the daemon sees it now.
//!
//! One question, [`crate::control::Question::View`], is answered with everything the HTTP side needs, so that it runs in
//! this process or in another one all the same. Names of nodes and models come from strangers and are handed on as text.

use std::collections::BTreeMap;

use api::{
    inference::ModelInfo,
    swarm::{Contribution, Holding, Node, NodeState, Reachability, SwarmModel, SwarmSnapshot},
};
use p2p::{PeerInfo, wire::announce::Class};
use scheduler::{Capability, LayerRange, ModelId, NodeId};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::Daemon;
use crate::{clock, control::Call, memory};

/// Layers shown of a stranger's model: no model has as many.
const MAX_LAYERS: u32 = 4_096;

/// What the API needs to know of a node that the node itself has no use for.
pub struct Front {
    /// Its model, as its file describes it.
    pub about: ModelInfo,
    /// The swarm's name.
    pub swarm: String,
    /// Where the way to the running node is put once it takes questions, for an API in the same process.
    pub door: Option<watch::Sender<Option<mpsc::Sender<Call>>>>,
}

fn hex(node: NodeId) -> String {
    format!("{node:?}")
}

fn class(class: Class) -> String {
    format!("{class:?}").to_lowercase()
}

fn holdings(capability: Option<&Capability>) -> Vec<Holding> {
    let held = capability.into_iter().flat_map(|capability| &capability.claim().holdings);
    held.flat_map(|holding| holding.loaded.iter().map(|range| layers(holding.model, *range))).collect()
}

fn layers(model: ModelId, range: LayerRange) -> Holding {
    Holding { model: format!("{model:?}"), start: range.start(), end: range.end() }
}

impl Daemon {
    /// The answer to `View`: the snapshot, the own model, and what sessions cost.
    pub(super) async fn page(&mut self) -> Value {
        let peers = self.network.peers().await;
        let me = self.own_node();
        let mut nodes = vec![me];
        nodes.extend(self.facts.keys().map(|node| self.node(*node, &peers)));
        let snapshot = SwarmSnapshot {
            at_ms: clock::unix_ms(),
            version: env!("CARGO_PKG_VERSION").into(),
            me: hex(self.me),
            swarm: self.front.swarm.clone(),
            state: NodeState::Ready,
            reachability: self.reach(),
            nodes,
            models: self.models(),
            contribution: self.contribution(&peers),
            ..SwarmSnapshot::default()
        };
        let layers: u32 = self.held.loaded.iter().map(|range| range.len()).sum();
        let ready = &self.held.ready;
        let position_bytes = ready.kv_bytes_per_layer_position * u64::from(layers);
        let worker = self.held.worker.borrow();
        let (sessions, layer_positions) = worker.held();
        let resident = Some(worker.pid()).filter(|pid| *pid > 0).and_then(memory::resident_bytes);
        json!({ "snapshot": snapshot, "about": self.front.about, "kv_bytes": self.held.spec.kv_bytes,
            "kv_used_bytes": layer_positions * ready.kv_bytes_per_layer_position, "sessions": sessions,
            "worker_resident_bytes": resident,
            "position_bytes": position_bytes, "conducts": ready.has_ends(), "end": true })
    }

    fn own_node(&self) -> Node {
        let state = if self.paused { "paused" } else { "up" };
        let ready = &self.held.ready;
        Node {
            id: hex(self.me),
            name: "this machine".into(),
            me: true,
            trusted: true,
            state: state.into(),
            class: class(ready.class),
            path: "self".into(),
            holdings: holdings(self.view.get(self.me)),
            layer_ms: Some(ready.decode_ms),
            memory_bytes: ready.resident_bytes + self.held.spec.kv_bytes,
            kv_free_bytes: self.held.spec.kv_bytes,
            ..Node::default()
        }
    }

    fn node(&self, node: NodeId, peers: &[PeerInfo]) -> Node {
        let link = peers.iter().find(|peer| peer.node == node);
        let capability = self.view.get(node);
        let held = capability.and_then(|capability| capability.holding(self.held.id));
        let position_bytes = self.held.ready.kv_bytes_per_layer_position;
        Node {
            id: hex(node),
            name: node.to_string(),
            state: if link.is_some() { "up" } else { "suspect" }.into(),
            class: self.facts.get(&node).map(|facts| class(facts.class)).unwrap_or_default(),
            path: link.map_or_else(|| "none".into(), |peer| peer.path.to_string()),
            rtt_ms: self.gossip.rtt_ms(node),
            holdings: holdings(capability),
            layer_ms: held.map(|held| held.decode_ms),
            kv_free_bytes: held.map_or(0, |held| held.kv_layer_positions.saturating_mul(position_bytes)),
            load: held
                .map_or(0.0, |held| (f64::from(held.active) / f64::from(held.batch_knee.max(1))).min(1.0)),
            bytes_in: link.map_or(0, |peer| peer.bytes_in),
            bytes_out: link.map_or(0, |peer| peer.bytes_out),
            ..Node::default()
        }
    }

    /// The own model first, then those others offer.
    fn models(&self) -> Vec<SwarmModel> {
        let ready = &self.held.ready;
        let mut known: BTreeMap<ModelId, (String, u32, u64)> = BTreeMap::new();
        for offer in self.facts.values().flat_map(|facts| &facts.offers) {
            let layers = offer.num_layers.min(MAX_LAYERS);
            known.entry(offer.model).or_insert((offer.name.clone(), layers, offer.file_bytes));
        }
        // Of a model that is not here yet, what its holders say.
        let (_, layers, bytes) = known.remove(&self.held.id).unwrap_or_default();
        let (layers, bytes) = match ready.num_layers {
            0 => (layers, bytes),
            here => (here, self.held.file_bytes),
        };
        let own = (self.held.id, (self.front.about.name.clone(), layers, bytes));
        [own].into_iter().chain(known).map(|(id, about)| self.model(id, about)).collect()
    }

    fn model(&self, id: ModelId, (name, num_layers, file_bytes): (String, u32, u64)) -> SwarmModel {
        let mut holders = vec![0; num_layers as usize];
        for node in self.facts.keys().chain([&self.me]) {
            let holding = self.view.get(*node).and_then(|capability| capability.holding(id));
            let loaded = holding.into_iter().flat_map(|holding| &holding.loaded);
            for layer in loaded.flat_map(|range| range.start()..range.end().min(num_layers)) {
                holders[layer as usize] += 1;
            }
        }
        SwarmModel {
            id: format!("{id:?}"),
            name,
            num_layers,
            file_bytes,
            complete: num_layers > 0 && holders.iter().all(|holders| *holders > 0),
            holders,
            download: None,
        }
    }

    fn contribution(&self, peers: &[PeerInfo]) -> Contribution {
        Contribution {
            paused: self.paused,
            layers: self.held.served.iter().map(|range| layers(self.held.id, *range)).collect(),
            memory_bytes: Some(self.held.spec.kv_bytes),
            threads: self.held.spec.threads.map(|threads| threads as u32),
            upload_bytes_per_s: None,
            served_layer_tokens: self.totals.layer_rows,
            served_sessions: self.totals.sessions,
            bytes_in: peers.iter().map(|peer| peer.bytes_in).sum(),
            bytes_out: peers.iter().map(|peer| peer.bytes_out).sum(),
        }
    }

    fn reach(&self) -> Reachability {
        let (class, why) = match self.reachability {
            p2p::Reachability::Unknown => ("unknown", "nobody has tried to reach this node from outside yet"),
            p2p::Reachability::Public => ("direct", "a node outside could reach this one"),
            p2p::Reachability::Private => {
                ("relayed", "no node outside could reach this one; others reach it through relays")
            }
        };
        Reachability { class: class.into(), why: why.into() }
    }
}
