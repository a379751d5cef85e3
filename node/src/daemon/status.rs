//! What `status`, `peers`, `invite` and `why` print, as JSON; the commands turn it into text.

use scheduler::{LayerRange, LayerSet, NodeId, holders::bares};
use serde_json::{Value, json};

use super::{Daemon, workers::Held};

impl Daemon {
    pub(super) async fn status(&mut self) -> Value {
        let now = self.now();
        let figures = self.figures(now);
        let addresses = self.network.addresses().await;
        let models: Vec<Value> = self.models().map(|held| self.model_json(held)).collect();
        let model = models.first().cloned().unwrap_or_default();
        let fetching: Vec<&Value> = self.models().filter_map(|held| held.fetching.as_ref()).collect();
        json!({
            "node": format!("{:?}", self.me),
            "reached": super::reach::reach(self.reachability, &addresses),
            "addresses": addresses,
            "peers": self.network.peers().await.len(),
            "refused_versions": self.refused_versions().await,
            "known_nodes": self.view.len().saturating_sub(1),
            "model": model,
            "models": models,
            "sessions": { "serving": self.strangers(), "served": self.totals.sessions },
            "load": {
                "active": figures.active,
                "batch_knee": figures.knee,
                "queue_ms": figures.queue_ms,
                "visit_ms": figures.visit_ms,
                "kv_bytes": figures.kv_bytes,
            },
            "announcements": {
                "said": self.gossip.said_count,
                "said_bytes": self.gossip.said_bytes,
                "heard": self.gossip.heard_count,
            },
            "prompts": self.in_flight.len(),
            "served_positions": self.totals.rows,
            "bytes_in": self.totals.bytes_in,
            "bytes_out": self.totals.bytes_out,
            "paused": self.paused,
            "fetching": fetching.first(),
            "fetches": fetching,
            "line": self.line_json(),
            "content": self.content_json(),
            "caps": self.caps_json(),
            "kv_bytes": self.held.spec.kv_bytes,
            "pid": std::process::id(),
            "worker_pid": self.held.worker.borrow().pid(),
            "draining": *self.draining.borrow(),
            "reachability": format!("{:?}", self.reachability).to_lowercase(),
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "end": true,
        })
    }

    /// Nodes of this swarm that speak another version of the protocols, with a sentence for each.
    async fn refused_versions(&self) -> Vec<Value> {
        let ours = p2p::VERSION;
        let say = |peer: p2p::RefusedPeer| {
            let older = if peer.version < ours { "that node" } else { "this node" };
            let why = format!(
                "it speaks version {} of the protocols and this node speaks version {ours}: update {older}",
                peer.version
            );
            json!({ "node": format!("{:?}", peer.node), "version": peer.version, "why": why })
        };
        self.network.refused().await.into_iter().map(say).collect()
    }

    /// A model of this node.
    fn model_json(&self, held: &Held) -> Value {
        let ready = &held.ready;
        json!({
            "name": if held.loaded.is_empty() { &held.about.name } else { &ready.name },
            "called": held.about.name,
            "id": (held.id != scheduler::ModelId::default()).then(|| format!("{:?}", held.id)),
            "num_layers": ready.num_layers,
            "loaded": spans(&held.loaded),
            "serving": spans(&held.served),
            "offered": spans(&self.offered(held)),
            "resident_bytes": ready.resident_bytes,
            "sandboxed": ready.sandboxed,
            "decode_ms_per_layer": ready.decode_ms,
            "prefill_ms_per_layer": ready.prefill_ms,
            "visit_ms": ready.visit_ms,
            "read_bytes_per_s": ready.read_bytes_per_s(),
            "load_ms": ready.load_ms,
            "worker_pid": held.worker.borrow().pid(),
            "fetching": held.fetching,
            "bares": self.bares(held),
        })
    }

    /// The nodes without which a layer of a model has no holder. The first and the last layer do not count: every
    /// requester holds those itself.
    fn bares(&self, held: &Held) -> Vec<Value> {
        let num_layers = held.ready.num_layers;
        let between = LayerRange::new(1, num_layers.saturating_sub(1)).or(LayerRange::new(0, num_layers));
        let inner = |ranges: &[LayerRange]| -> LayerSet {
            ranges.iter().filter_map(|range| between.and_then(|between| range.intersect(between))).collect()
        };
        let others = self.facts.keys().filter_map(|node| {
            let capability = self.view.get(*node).filter(|capability| !capability.claim().draining)?;
            Some((*node, inner(&capability.holding(held.id)?.loaded)))
        });
        let known: Vec<(NodeId, LayerSet)> = others
            .chain([(self.me, inner(&self.offered(held)))])
            .filter(|(_, set)| !set.is_empty())
            .collect();
        bares(&known)
            .into_iter()
            .map(|bares| {
                json!({ "node": format!("{:?}", bares.node), "own": bares.node == self.me,
                    "layers": spans(bares.layers.ranges()) })
            })
            .collect()
    }

    pub(super) async fn peers(&mut self) -> Value {
        let connected = self.network.peers().await;
        let known = self.facts.iter().map(|(node, facts)| {
            let link = connected.iter().find(|peer| peer.node == *node);
            let load = self.view.get(*node).and_then(|c| self.models().find_map(|own| c.holding(own.id))).map(|holding| {
                json!({ "active": holding.active, "batch_knee": holding.batch_knee, "queue_ms": holding.queue_ms,
                    "kv_bytes": holding.kv_bytes })
            });
            let holdings = self.view.get(*node).map_or_else(Vec::new, |capability| {
                let holdings = capability.claim().holdings.iter();
                holdings.map(|holding| (holding.model, spans(&holding.loaded))).collect()
            });
            let offers: Vec<Value> = facts
                .offers
                .iter()
                .map(|offer| {
                    let layers =
                        holdings.iter().find(|(model, _)| *model == offer.model).map(|(_, layers)| layers);
                    json!({ "name": offer.name, "id": format!("{:?}", offer.model),
                        "num_layers": offer.num_layers, "layers": layers })
                })
                .collect();
            json!({
                "node": format!("{node:?}"),
                "agent": facts.agent,
                "trust": self.standing(*node),
                "class": format!("{:?}", facts.class).to_lowercase(),
                "connected": link.is_some(),
                "path": link.map(|peer| peer.path.to_string()),
                "rtt_ms": self.gossip.rtt_ms(*node),
                "addresses": facts.addresses,
                "load": load,
                "models": offers,
            })
        });
        json!({ "peers": known.collect::<Vec<_>>(), "end": true })
    }

    pub(super) async fn invite_code(&mut self) -> Value {
        let addresses = self.network.addresses().await;
        let mut invite = self.invite.clone();
        invite
            .contacts
            .insert(0, p2p::wire::control::Contact { node: self.me, addresses: addresses.clone() });
        json!({ "code": invite.code(), "addresses": addresses, "end": true })
    }

    pub(super) fn why(&self, session: Option<&str>) -> Value {
        let wanted = |line: &&Value| {
            session.is_none_or(|prefix| line["session"].as_str().is_some_and(|name| name.starts_with(prefix)))
        };
        match self.history.iter().rev().find(wanted) {
            Some(line) => {
                let mut line = line.clone();
                line["end"] = json!(true);
                line
            }
            None => {
                json!({ "error": "no such prompt is remembered; `shoal run` one first (the last 64 are kept)" })
            }
        }
    }
}

/// Ranges as users read them.
fn spans(ranges: &[LayerRange]) -> Vec<String> {
    ranges.iter().map(|range| format!("{}..{}", range.start(), range.end())).collect()
}
