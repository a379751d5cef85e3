//! What `status` and `peers` answer; the commands turn it into text.

mod api_view;
mod reach;

use scheduler::{LayerRange, LayerSet, ModelId, NodeId, holders::bares};

use super::{Daemon, serve::Held, view::Facts};
use crate::reports::{
    AnnouncementsStatus, CapsStatus, DeviceStatus, ExpertsStatus, FetchReport, KeptState, LayersStatus,
    LimitReport, LinkReport, LoadStatus, MemoryStatus, ModelReport, NetworkStatus, PeerLoad, PeerModel,
    PeerReport, PeersReport, ProcessStatus, RefusedReport, SessionsStatus, SoleHolder, SpeedStatus,
    StatusReport, WorkStatus,
};
use crate::state_store::DiskUse;

impl Daemon {
    /// The answer to `status`; what follows it is not said here.
    pub(super) async fn status(&mut self) -> StatusReport {
        let now = self.node.now();
        let figures = self.serving.figures(now);
        let addresses = self.node.network.addresses().await;
        let models: Vec<ModelReport> =
            self.serving.models.all().map(|held| self.model_report(held)).collect();
        let peers = self.node.network.peers().await;
        let link = |peer: &p2p::PeerInfo| {
            let (node, link) = (format!("{:?}", peer.node), peer.link?);
            Some(LinkReport { node, link: link.to_string(), module_helps: link.module_helps() })
        };
        let fetches: Vec<FetchReport> =
            self.serving.models.all().filter_map(|held| held.fetching.clone()).collect();
        StatusReport {
            network: NetworkStatus {
                node: format!("{:?}", self.node.me),
                reached: reach::reach(self.announcing.reachability, &addresses),
                addresses,
                links: peers.iter().filter_map(link).collect(),
                peers: peers.len(),
                refused_versions: self.refused_versions().await,
                known_nodes: self.view.swarm.len().saturating_sub(1),
            },
            model: models.first().cloned().unwrap_or_default(),
            models,
            work: WorkStatus {
                sessions: SessionsStatus {
                    serving: self.serving.strangers(),
                    served: self.serving.totals.sessions,
                },
                load: LoadStatus {
                    active: figures.active,
                    batch_knee: figures.knee,
                    queue_ms: figures.queue_ms,
                    visit_ms: figures.visit_ms,
                    kv_bytes: figures.kv_bytes,
                },
                announcements: AnnouncementsStatus {
                    said: self.announcing.gossip.said_count,
                    said_bytes: self.announcing.gossip.said_bytes,
                    heard: self.announcing.gossip.heard_count,
                },
                prompts: self.prompts.in_flight.len(),
                served_positions: self.serving.totals.rows,
                bytes_in: self.serving.totals.bytes_in,
                bytes_out: self.serving.totals.bytes_out,
                paused: self.serving.gate.paused,
            },
            fetching: fetches.first().cloned(),
            fetches,
            line: self.announcing.line_status(),
            content: self.announcing.content_status(&self.serving.pulls),
            caps: self.caps_status(),
            kept_state: self.kept_state(),
            limits: LimitReport::all(self.node.network.governor()),
            process: ProcessStatus {
                kv_bytes: self.serving.models.first.spec.kv_bytes,
                pid: std::process::id(),
                worker_pid: self.serving.models.first.worker.borrow().pid(),
                draining: self.serving.gate.is_draining(),
                reachability: format!("{:?}", self.announcing.reachability).to_lowercase(),
                uptime_s: self.node.started.elapsed().as_secs_f64(),
            },
            end: false,
        }
    }

    /// What `--keep-state` takes of the disk: states of the worker, and what ended prompts left behind.
    fn kept_state(&self) -> Option<KeptState> {
        let states = self.serving.models.first.spec.room.disk_use();
        let both = [states, self.prompts.disk_use()].into_iter().flatten().reduce(DiskUse::with)?;
        Some(KeptState { bytes: both.bytes, most_bytes: both.most_bytes })
    }

    /// Nodes of this swarm that speak another version of the protocols, with a sentence for each.
    async fn refused_versions(&self) -> Vec<RefusedReport> {
        let ours = p2p::VERSION;
        let say = |peer: p2p::RefusedPeer| {
            let older = if peer.version < ours { "that node" } else { "this node" };
            let why = format!(
                "it speaks version {} of the protocols and this node speaks version {ours}: update {older}",
                peer.version
            );
            RefusedReport { node: format!("{:?}", peer.node), version: peer.version, why }
        };
        self.node.network.refused().await.into_iter().map(say).collect()
    }

    /// A model of this node.
    fn model_report(&self, held: &Held) -> ModelReport {
        let ready = &held.ready;
        ModelReport {
            name: if held.loaded.is_empty() { &held.about.name } else { &ready.name }.clone(),
            called: held.about.name.clone(),
            id: (held.id != scheduler::ModelId::default()).then(|| format!("{:?}", held.id)),
            layers: LayersStatus {
                num_layers: ready.num_layers,
                loaded: spans(&held.loaded),
                ends: ready.has_ends(),
                serving: spans(&held.served),
                offered: spans(&self.serving.offered(held)),
            },
            memory: MemoryStatus {
                resident_bytes: held.resident_bytes(),
                unloaded: held.is_unloaded(),
                sandboxed: ready.confinement.filtered,
                landlocked: ready.confinement.landlocked,
            },
            device: DeviceStatus {
                device: ready.device.clone(),
                class: format!("{:?}", ready.class).to_lowercase(),
                device_trouble: held.trouble().map(str::to_owned),
            },
            speed: SpeedStatus {
                decode_ms_per_layer: ready.times.decode_ms,
                prefill_ms_per_layer: ready.times.prefill_ms,
                visit_ms: ready.times.visit_ms,
                read_bytes_per_s: ready.read_bytes_per_s(),
                load_ms: ready.load_ms,
            },
            experts: held.spec.experts.as_ref().map(|share| ExpertsStatus {
                here: share.range.to_string(),
                from: share.from.iter().map(|node| format!("{node:?}")).collect(),
                decode_ms_per_layer: share.times().map(|times| times.decode_ms),
                missing: share.lacking(),
            }),
            worker_pid: held.worker.borrow().pid(),
            fetching: held.fetching.clone(),
            bares: self.bares(held),
        }
    }

    /// The nodes without which a layer of a model has no holder. The first and the last layer do not count: every
    /// requester holds those itself.
    fn bares(&self, held: &Held) -> Vec<SoleHolder> {
        let num_layers = held.ready.num_layers;
        let between = LayerRange::new(1, num_layers.saturating_sub(1)).or(LayerRange::new(0, num_layers));
        let inner = |ranges: &[LayerRange]| -> LayerSet {
            ranges.iter().filter_map(|range| between.and_then(|between| range.intersect(between))).collect()
        };
        let others = self.view.facts.keys().filter_map(|node| {
            let capability = self.view.swarm.get(*node).filter(|capability| !capability.claim().draining)?;
            Some((*node, inner(capability.holding(held.id)?.held_set().ranges())))
        });
        let known: Vec<(NodeId, LayerSet)> = others
            .chain([(self.node.me, inner(&self.serving.offered(held)))])
            .filter(|(_, set)| !set.is_empty())
            .collect();
        bares(&known)
            .into_iter()
            .map(|bares| {
                let layers = spans(bares.layers.ranges());
                SoleHolder { node: format!("{:?}", bares.node), own: bares.node == self.node.me, layers }
            })
            .collect()
    }

    pub(super) async fn peers(&mut self) -> PeersReport {
        let connected = self.node.network.peers().await;
        let peer = |(node, facts): (&NodeId, &Facts)| {
            let link = connected.iter().find(|peer| peer.node == *node);
            let capability = self.view.swarm.get(*node);
            let common = capability.and_then(|c| self.serving.models.all().find_map(|own| c.holding(own.id)));
            let load = common.map(|holding| PeerLoad {
                active: holding.active,
                batch_knee: holding.batch_knee,
                queue_ms: holding.queue_ms,
                kv_bytes: holding.kv_bytes,
            });
            let layers = |model: ModelId| {
                let holding = capability?.claim().holdings.iter().find(|holding| holding.model == model)?;
                Some(spans(holding.held_set().ranges()))
            };
            let models = facts.offers.iter().map(|offer| PeerModel {
                name: offer.name.clone(),
                id: format!("{:?}", offer.model),
                num_layers: offer.num_layers,
                layers: layers(offer.model),
            });
            PeerReport {
                node: format!("{node:?}"),
                called: None,
                agent: facts.agent.clone(),
                trust: self.trusting.standing(*node, self.serving.models.all().map(|held| held.id)),
                class: format!("{:?}", facts.class).to_lowercase(),
                device: facts.device().to_owned(),
                connected: link.is_some(),
                path: link.map(|peer| peer.path.to_string()),
                link: link.and_then(|peer| peer.link).map(|link| link.to_string()),
                rtt_ms: self.announcing.gossip.rtt_ms(*node),
                addresses: facts.addresses.clone(),
                load,
                models: models.collect(),
            }
        };
        PeersReport { peers: self.view.facts.iter().map(peer).collect(), end: true }
    }

    /// What the node may take, for `status`.
    fn caps_status(&self) -> CapsStatus {
        CapsStatus {
            sessions: self.caps.sessions,
            kv_bytes: self.serving.models.first.spec.kv_bytes,
            disk_bytes: self.caps.disk_bytes,
            weights_bytes: self.caps.weights_bytes,
            upload_bytes_per_s: self.caps.upload_bytes_per_s,
            download_bytes_per_s: self.caps.download_bytes_per_s,
            unload_after_s: self.caps.unload_after.map(|after| after.as_secs()),
        }
    }
}

/// Ranges as users read them.
fn spans(ranges: &[LayerRange]) -> Vec<String> {
    ranges.iter().map(|range| format!("{}..{}", range.start(), range.end())).collect()
}
