//! Newer catalogs of models come from peers: of authors that are trusted here, and no others.
//!
//! In an open swarm the release's own catalog travels, and nothing else: whom a user trusts, and what a catalog of a company
//! names, is not for strangers. In a private swarm those of all trusted authors do.
//!
//! A node asks each peer that it is connected to for what is newer than its own, when they meet and every [`AGAIN`], and hands
//! on what it has in the same way. So a catalog that its author gave to one node reaches all that trust that author, without an
//! address that could be watched or taken down.
//!
//! Limits: one peer in [`ROUND`], [`MAX_CATALOG`] bytes of a catalog: a longer one comes from its file or address only.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use p2p::{
    Network, ReplyTo,
    wire::control::{Answer, Ask, MAX_CATALOG},
};
use scheduler::NodeId;
use tokio::task::{JoinSet, spawn_blocking};

use crate::catalog;

/// A peer is asked so often.
const AGAIN: Duration = Duration::from_secs(3_600);
/// How often a peer is looked for that is to be asked.
const ROUND: Duration = Duration::from_secs(3);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The catalogs below a data folder, for peers and from them.
pub(in crate::daemon) struct Catalogs {
    home: PathBuf,
    network: Network,
    is_private: bool,
    /// Ends with this.
    asking: JoinSet<()>,
}

impl Catalogs {
    pub(super) fn new(home: PathBuf, network: Network, is_private: bool) -> Self {
        let mut asking = JoinSet::new();
        asking.spawn(renew(network.clone(), home.clone(), is_private));
        Self { home, network, is_private, asking }
    }

    /// Answers a peer that has version `sequence` of a catalog of `author`.
    pub(in crate::daemon) fn answer(&mut self, author: NodeId, sequence: u64, reply: ReplyTo) {
        while self.asking.try_join_next().is_some() {}
        let (home, network) = (self.home.clone(), self.network.clone());
        let travels = travels(author, self.is_private);
        self.asking.spawn(async move {
            let newer = move || catalog::newer(&home, author, sequence).filter(|_| travels);
            let newer = spawn_blocking(newer).await;
            let text = newer.ok().flatten().filter(|text| text.len() <= MAX_CATALOG);
            network.answer(reply, Answer::Catalog(text.unwrap_or_default().into_bytes()));
        });
    }
}

/// Whether catalogs of an author are asked for and handed on.
fn travels(author: NodeId, is_private: bool) -> bool {
    is_private || catalog::shipped().is_ok_and(|shipped| shipped.author == author)
}

/// Asks one peer after another.
async fn renew(network: Network, home: PathBuf, is_private: bool) {
    let mut asked: HashMap<NodeId, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(ROUND).await;
        let peers = network.peers().await;
        asked.retain(|node, at| at.elapsed() < AGAIN && peers.iter().any(|peer| peer.node == *node));
        let next = peers.iter().find(|peer| !asked.contains_key(&peer.node));
        if let Some(peer) = next {
            asked.insert(peer.node, Instant::now());
            ask(&network, &home, peer.node, is_private).await;
        }
    }
}

/// Asks one peer for what is newer than each catalog that counts here.
async fn ask(network: &Network, home: &Path, peer: NodeId, is_private: bool) {
    let folder = home.to_owned();
    let Ok(Ok(known)) = spawn_blocking(move || catalog::known(&folder)).await else { return };
    for signed in known.into_iter().filter(|signed| travels(signed.author, is_private)) {
        let question = Ask::Catalog { author: signed.author, sequence: signed.catalog.sequence };
        let text = match network.ask(peer, &question, PATIENCE).await {
            Ok(Answer::Catalog(text)) => text,
            Ok(_) => continue,
            // A node of before closes the stream.
            Err(_) => return,
        };
        if text.is_empty() {
            continue;
        }
        let folder = home.to_owned();
        let renewed = spawn_blocking(move || catalog::renew(&folder, signed.author, &text)).await;
        match renewed {
            Ok(Ok(newer)) => {
                let (name, sequence) = (newer.catalog.name, newer.catalog.sequence);
                tracing::info!(%peer, name, sequence, "a newer catalog of models came from a peer");
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "a peer sent a catalog that does not count"),
            Err(_) => return,
        }
    }
}
