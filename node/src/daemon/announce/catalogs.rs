//! Newer catalogs of models come from peers: of authors that are trusted here, and no others.
//!
//! A node asks each peer that it is connected to for what is newer than its own, when they meet and every [`AGAIN`], and hands
//! on what it has in the same way. So a catalog that its author gave to one node reaches all that trust that author, without an
//! address that could be watched or taken down. A peer is told which authors are asked for, and nothing else.
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
    /// Ends with this.
    asking: JoinSet<()>,
}

impl Catalogs {
    pub(super) fn new(home: PathBuf, network: Network) -> Self {
        let mut asking = JoinSet::new();
        asking.spawn(renew(network.clone(), home.clone()));
        Self { home, network, asking }
    }

    /// Answers a peer that has version `sequence` of a catalog of `author`.
    pub(in crate::daemon) fn answer(&mut self, author: NodeId, sequence: u64, reply: ReplyTo) {
        while self.asking.try_join_next().is_some() {}
        let (home, network) = (self.home.clone(), self.network.clone());
        self.asking.spawn(async move {
            let newer = spawn_blocking(move || catalog::newer(&home, author, sequence)).await;
            let text = newer.ok().flatten().filter(|text| text.len() <= MAX_CATALOG);
            network.answer(reply, Answer::Catalog(text.unwrap_or_default().into_bytes()));
        });
    }
}

/// Asks one peer after another.
async fn renew(network: Network, home: PathBuf) {
    let mut asked: HashMap<NodeId, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(ROUND).await;
        let peers = network.peers().await;
        asked.retain(|node, at| at.elapsed() < AGAIN && peers.iter().any(|peer| peer.node == *node));
        let next = peers.iter().find(|peer| !asked.contains_key(&peer.node));
        if let Some(peer) = next {
            asked.insert(peer.node, Instant::now());
            ask(&network, &home, peer.node).await;
        }
    }
}

/// Asks one peer for what is newer than each catalog that counts here.
async fn ask(network: &Network, home: &Path, peer: NodeId) {
    let folder = home.to_owned();
    let Ok(Ok(known)) = spawn_blocking(move || catalog::known(&folder)).await else { return };
    for signed in known {
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
