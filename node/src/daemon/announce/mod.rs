//! What this node tells others of itself: announcements, the line, the way in, and the models it hands out.
//!
//! [`Announcing`] owns when to speak and what was said (`gossip.rs`), what the line carries (`bandwidth.rs`), what is
//! shared (`share.rs`) and which catalogs are handed on (`catalogs.rs`). What it says of layers and load it reads from [`Serving`](super::serve::Serving).

mod bandwidth;
mod catalogs;
mod gossip;
mod share;

use std::{collections::BTreeSet, path::PathBuf};

use p2p::{
    Reachability,
    invite::Invite,
    wire::{announce::Offer, control::Contact},
};
use scheduler::{Millis, ModelId};
use tokio::sync::watch;

pub(super) use self::gossip::Announcer;
use self::{
    bandwidth::{Crossed, Line},
    catalogs::Catalogs,
    share::Uploads,
};
use super::setup::{Caps, Node};
use crate::{
    clock,
    reports::{InviteReport, LineStatus},
};

/// See the module's page.
pub(super) struct Announcing {
    pub(super) node: Node,
    pub(super) gossip: Announcer,
    pub(super) line: Line,
    /// Bytes of models fetched when it was looked last.
    fetched_bytes: u64,
    /// Whether the user caps what is handed out of models.
    capped: bool,
    pub(super) reachability: Reachability,
    /// What an invite from this node says about the swarm.
    invite: Invite,
    pub(super) uploads: Uploads,
    pub(super) catalogs: Catalogs,
    /// Models whose owner shares them.
    pub(super) shared: watch::Receiver<Vec<Offer>>,
    /// Those of them that others find this node by.
    pub(super) provided: BTreeSet<ModelId>,
}

impl Announcing {
    /// Nothing said yet; shares the models of the library below `home`.
    pub(super) fn new(node: Node, home: PathBuf, invite: Invite, caps: &Caps) -> Self {
        let governor = node.network.governor().clone();
        let catalogs = Catalogs::new(home.clone(), node.network.clone(), invite.psk.is_some());
        Self {
            node,
            gossip: Announcer::new(clock::unix_ms()),
            line: Line::default(),
            fetched_bytes: 0,
            capped: caps.upload_bytes_per_s.is_some(),
            reachability: Reachability::Unknown,
            invite,
            uploads: Uploads::new(home.clone(), caps.upload_bytes_per_s, governor),
            catalogs,
            shared: share::watch_list(home),
            provided: BTreeSet::new(),
        }
    }

    /// A code for a friend. `model`: what this node serves; it is named where the friend can fetch it.
    pub(super) async fn invite_code(&self, model: ModelId) -> InviteReport {
        let addresses = self.node.network.addresses().await;
        let mut peers = self.node.network.peers().await;
        // Those that have been here longest are likeliest to stay.
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.connected_for_ms));
        let others = peers.into_iter().map(|peer| Contact { node: peer.node, addresses: peer.addresses });
        let embedded = model == ModelId::new(crate::library::embedded_hash());
        // Not what is announced by now: an invite right after the start names the model too.
        let fetched_here = embedded || self.uploads.shares(model).await;
        let model = Some(model).filter(|_| fetched_here);
        let me = Contact { node: self.node.me, addresses: addresses.clone() };
        let invite = Invite { model, ..self.invite.clone() }.offer(me, others);
        InviteReport {
            code: invite.code(),
            swarm: invite.name,
            model: invite.model.map(crate::content::hex),
            addresses,
            end: true,
        }
    }

    /// Looks at what crosses, while something does: of models `fetched` bytes so far, and sessions unless `idle`.
    pub(super) async fn watch_line(&mut self, now: Millis, fetched: u64, idle: bool) {
        let uploads = self.uploads.running() > 0;
        let fetches = std::mem::replace(&mut self.fetched_bytes, fetched) != fetched;
        if !uploads && !fetches && idle {
            return self.line.rest();
        }
        if !self.line.is_due(now) {
            return;
        }
        let peers = self.node.network.peers().await;
        let crossed = peers.into_iter().map(|peer| Crossed {
            node: peer.node,
            path: peer.path,
            bytes_in: peer.bytes_in,
            bytes_out: peer.bytes_out,
        });
        let handing_out = uploads && !self.capped;
        self.line.look(now, handing_out, crossed);
    }

    /// What is said of the line, for `status`.
    pub(super) fn line_status(&self) -> LineStatus {
        let farthest = self.gossip.farthest();
        let (up, down) = self.line.rates(farthest, self.node.now());
        LineStatus {
            path: farthest.to_string(),
            up_bytes_per_s: up * 1e3,
            down_bytes_per_s: down * 1e3,
            measured: self.line.is_measured(farthest),
        }
    }
}
