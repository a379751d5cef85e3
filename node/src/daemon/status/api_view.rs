//! What the API and its page show of this node: the swarm as the daemon sees it now.
//!
//! One question, [`crate::control::Question::View`], is answered with everything the HTTP side needs, so that it runs in
//! this process or in another one all the same. Names of nodes and models come from strangers and are handed on as text.

use std::collections::BTreeMap;

use api::swarm::{Connection, Contribution, Holding, Node, NodeState, SwarmModel, SwarmSnapshot};
use p2p::{PeerInfo, wire::announce::Class};
use scheduler::{Capability, LayerRange, ModelId, NodeId, SessionKind, layer_cost::LayerCosts};

use super::reach::reach;
use crate::{
    catalog::fit::Peer,
    clock,
    daemon::{Daemon, serve::Held, view::Facts},
    memory,
    reports::{LimitReport, Own, View},
};

/// Layers shown of a stranger's model: no model has as many.
const MAX_LAYERS: u32 = 4_096;

fn hex(node: NodeId) -> String {
    format!("{node:?}")
}

fn class(class: Class) -> String {
    format!("{class:?}").to_lowercase()
}

fn holdings(capability: Option<&Capability>) -> Vec<Holding> {
    let held = capability.into_iter().flat_map(|capability| &capability.claim().holdings);
    held.flat_map(|holding| {
        holding.loaded.iter().chain(&holding.on_disk).map(|range| layers(holding.model, *range))
    })
    .collect()
}

fn layers(model: ModelId, range: LayerRange) -> Holding {
    Holding { model: format!("{model:?}"), start: range.start(), end: range.end() }
}

impl Daemon {
    /// The answer to `View`: the snapshot, the own model, and what sessions cost.
    pub(crate) async fn page(&mut self) -> View {
        let peers = self.node.network.peers().await;
        let addresses = self.node.network.addresses().await;
        let me = self.own_node();
        let mut nodes = vec![me];
        nodes.extend(self.view.facts.keys().map(|node| self.node(*node, &peers)));
        let snapshot = SwarmSnapshot {
            at_ms: clock::unix_ms(),
            version: env!("CARGO_PKG_VERSION").into(),
            me: hex(self.node.me),
            swarm: self.front.swarm.clone(),
            state: NodeState::Ready,
            reachability: reach(self.announcing.reachability, &addresses),
            nodes,
            models: self.swarm_models(),
            contribution: self.contribution(&peers),
            ..SwarmSnapshot::default()
        };
        let own = |held: &Held| {
            let of = |range: &LayerRange| held.ready.state_bytes(*range, 1, SessionKind::DEFAULT);
            let position_bytes: u64 = held.loaded.iter().map(of).sum();
            Own {
                id: format!("{:?}", held.id),
                about: held.about.clone(),
                position_bytes,
                conducts: held.ready.has_ends(),
            }
        };
        let beside = self.serving.models.beside.iter().filter(|held| !held.loaded.is_empty());
        let sessions: usize = self.serving.models.all().map(|held| held.worker.borrow().held().0).sum();
        let pids = self.serving.models.all().map(|held| held.worker.borrow().pid()).filter(|pid| *pid > 0);
        let resident = pids.filter_map(memory::resident_bytes).reduce(|all, more| all + more);
        let first = &self.serving.models.first;
        View {
            snapshot,
            own: own(first),
            beside: beside.map(own).collect(),
            kv_bytes: first.spec.kv_bytes,
            kv_used_bytes: first.spec.room.taken_bytes(),
            sessions: sessions as u64,
            worker_resident_bytes: resident,
            limits: LimitReport::all(self.node.network.governor()),
            peers: self.view.facts.iter().filter_map(|(node, facts)| self.peer(*node, facts)).collect(),
        }
    }

    /// What a peer would make of any model: what it goes through of those whose layers it holds.
    fn peer(&self, node: NodeId, facts: &Facts) -> Option<Peer> {
        let claim = self.view.swarm.get(node)?.claim();
        let rtt_ms = self.announcing.gossip.rtt_ms(node).filter(|_| !claim.draining)?;
        let held = facts.offers.iter().filter_map(|offer| {
            let holding = claim.holdings.iter().find(|holding| holding.model == offer.model)?;
            let layer_bytes = offer.file_bytes as f64 / f64::from(offer.num_layers.max(1));
            // Of a mixture of experts a token reads only what its work says.
            let work = |costs: &LayerCosts| {
                let all = LayerRange::new(0, costs.num_layers())?;
                Some(costs.row_work(all) as f64 / f64::from(costs.num_layers()))
            };
            let read_bytes =
                offer.costs.as_ref().and_then(work).map_or(layer_bytes, |work| work.min(layer_bytes));
            let layers: u32 = holding.held_set().ranges().iter().map(|range| range.len()).sum();
            Some((1e3 * read_bytes / holding.decode_ms, (layer_bytes * f64::from(layers)) as u64))
        });
        let (rates, rooms): (Vec<f64>, Vec<u64>) = held.unzip();
        // What it may hold instead, where it chooses itself.
        let chosen = facts.rooms.iter().filter_map(|room| {
            let offer = facts.offers.get(usize::from(room.offer))?;
            let layers = f64::from(room.layers) / f64::from(offer.num_layers.max(1));
            Some(room.bytes.min((offer.file_bytes as f64 * layers) as u64))
        });
        let room_bytes = rooms.into_iter().sum::<u64>().max(chosen.max().unwrap_or(0));
        // No line of JSON has more than numbers, whatever was announced.
        let read_bytes_per_s = rates.into_iter().filter(|rate| rate.is_finite()).reduce(f64::max)?;
        Some(Peer { read_bytes_per_s, room_bytes, rtt_ms }).filter(|peer| peer.rtt_ms.is_finite())
    }

    fn own_node(&self) -> Node {
        let state = if self.serving.gate.paused { "paused" } else { "up" };
        let ready = &self.serving.models.leading().ready;
        let resident_bytes: u64 = self.serving.models.all().map(Held::resident_bytes).sum();
        Node {
            id: hex(self.node.me),
            name: "this machine".into(),
            me: true,
            trusted: true,
            state: state.into(),
            class: class(ready.class),
            device: if ready.device.starts_with("cpu ") { String::new() } else { ready.device.clone() },
            connection: Connection { path: "self".into(), ..Connection::default() },
            holdings: holdings(self.view.swarm.get(self.node.me)),
            layer_ms: Some(ready.times.decode_ms),
            memory_bytes: resident_bytes + self.serving.models.first.spec.kv_bytes,
            kv_free_bytes: self.serving.models.first.spec.kv_bytes,
            ..Node::default()
        }
    }

    fn node(&self, node: NodeId, peers: &[PeerInfo]) -> Node {
        let link = peers.iter().find(|peer| peer.node == node);
        let capability = self.view.swarm.get(node);
        // Of the first model that both hold.
        let held = self.serving.models.all().find_map(|own| capability?.holding(own.id));
        // For prompts about any of the models here.
        let figures = self.serving.models.all().filter_map(|own| self.trusting.figures(node, own.id));
        let (passed, failed) = figures.fold((0, 0), |(passed, failed), figures| {
            (passed + figures.requests_ok, failed + u64::from(figures.strikes))
        });
        Node {
            id: hex(node),
            name: node.to_string(),
            state: if link.is_some() { "up" } else { "suspect" }.into(),
            class: self.view.facts.get(&node).map(|facts| class(facts.class)).unwrap_or_default(),
            device: self.view.facts.get(&node).map(|facts| facts.device().to_owned()).unwrap_or_default(),
            connection: Connection {
                path: link.map_or_else(|| "none".into(), |peer| peer.path.to_string()),
                rtt_ms: self.announcing.gossip.rtt_ms(node),
                bytes_in: link.map_or(0, |peer| peer.bytes_in),
                bytes_out: link.map_or(0, |peer| peer.bytes_out),
            },
            holdings: holdings(capability),
            layer_ms: held.map(|held| held.decode_ms),
            kv_free_bytes: held.map_or(0, |held| held.kv_bytes),
            load: held
                .map_or(0.0, |held| (f64::from(held.active) / f64::from(held.batch_knee.max(1))).min(1.0)),
            checks_passed: passed,
            checks_failed: failed,
            ..Node::default()
        }
    }

    /// The own models first, then those others offer.
    fn swarm_models(&self) -> Vec<SwarmModel> {
        let mut known: BTreeMap<ModelId, (String, u32, u64)> = BTreeMap::new();
        for offer in self.view.facts.values().flat_map(|facts| &facts.offers) {
            let layers = offer.num_layers.min(MAX_LAYERS);
            known.entry(offer.model).or_insert((offer.name.clone(), layers, offer.file_bytes));
        }
        let mut own: Vec<(ModelId, (String, u32, u64))> = Vec::new();
        for held in self.serving.models.all() {
            if own.iter().any(|(id, _)| *id == held.id) {
                continue;
            }
            // Of a model that is not here yet, what its holders say.
            let (_, layers, bytes) = known.remove(&held.id).unwrap_or_default();
            let (layers, bytes) = match held.ready.num_layers {
                0 => (layers, bytes),
                here => (here, held.file_bytes),
            };
            own.push((held.id, (held.about.name.clone(), layers, bytes)));
        }
        own.into_iter().chain(known).map(|(id, about)| self.swarm_model(id, about)).collect()
    }

    fn swarm_model(&self, id: ModelId, (name, num_layers, file_bytes): (String, u32, u64)) -> SwarmModel {
        let mut holders = vec![0; num_layers as usize];
        for node in self.view.facts.keys().chain([&self.node.me]) {
            let holding = self.view.swarm.get(*node).and_then(|capability| capability.holding(id));
            let loaded =
                holding.into_iter().flat_map(|holding| holding.loaded.iter().chain(&holding.on_disk));
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
            paused: self.serving.gate.paused,
            layers: self
                .serving
                .models
                .all()
                .flat_map(|held| held.served.iter().map(|range| layers(held.id, *range)))
                .collect(),
            memory_bytes: Some(self.serving.models.first.spec.kv_bytes),
            threads: self.serving.models.first.spec.manners.threads.map(|threads| threads as u32),
            upload_bytes_per_s: None,
            served_layer_tokens: self.serving.totals.layer_rows,
            served_sessions: self.serving.totals.sessions,
            bytes_in: peers.iter().map(|peer| peer.bytes_in).sum(),
            bytes_out: peers.iter().map(|peer| peer.bytes_out).sum(),
        }
    }
}
