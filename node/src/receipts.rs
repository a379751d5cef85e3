//! Receipts of work, signed by both sides: kept on disk, and counted into a balance with every peer.
//!
//! `receipts` in the data folder holds them one after the other, each [`Receipt::LEN`] bytes. The balance
//! ([`scheduler::account`]) gives a peer its tier, which decides who goes first when the node is busy and nothing else.
//!
//! Limits: the latest [`KEPT`] receipts; the file is rewritten when it has twice as many. A damaged one is skipped, since
//! its signatures no longer fit.

use std::{
    collections::VecDeque,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use p2p::wire::receipt::{Receipt, Work};
use scheduler::{
    ModelId, NodeId,
    account::{self, Entry, Ledger, Tier},
    layer_cost::LayerCosts,
};

use crate::reports::{BalanceReport, ReceiptReport, ReceiptsReport};

/// Receipts kept, 1.2 MB.
const KEPT: usize = 4_096;

/// All receipts of this node, given and taken.
#[derive(Debug)]
pub struct Receipts {
    path: PathBuf,
    me: NodeId,
    ledger: Ledger,
    kept: VecDeque<[u8; Receipt::LEN]>,
    in_file: usize,
}

/// Work as the ledger counts it: each layer by its own cost, where `costs` knows the model; else all alike.
fn counted(work: &Work, costs: impl Fn(ModelId) -> Option<LayerCosts>) -> account::Work {
    let weight = costs(work.model).map_or(f64::from(work.layers.len()), |costs| costs.weight(work.layers, 0));
    account::Work {
        stage: work.stage,
        requester: work.requester,
        session: work.session,
        grant: work.grant.number(),
        milli_layers: (weight * 1e3).round() as u64,
        prefill_tokens: work.prefill_tokens,
        decode_tokens: work.decode_tokens,
        ended_unix_s: work.ended_unix_s,
    }
}

impl Receipts {
    /// Reads what is kept in the data folder `home` of node `me`; `costs` says what layers cost of the models that are known.
    pub fn open(
        home: &Path,
        me: NodeId,
        now_unix_s: u32,
        costs: impl Fn(ModelId) -> Option<LayerCosts>,
    ) -> Self {
        let path = home.join("receipts");
        let file = fs::read(&path).unwrap_or_default();
        let mut receipts = Self {
            path,
            me,
            ledger: Ledger::new(me),
            kept: VecDeque::new(),
            in_file: file.len() / Receipt::LEN,
        };
        for bytes in file.as_chunks::<{ Receipt::LEN }>().0.iter().rev().take(KEPT).rev() {
            if let Ok(receipt) = Receipt::open(bytes) {
                receipts.ledger.enter(now_unix_s, &counted(receipt.work(), &costs));
                receipts.kept.push_back(*bytes);
            }
        }
        receipts
    }

    /// Keeps a receipt that is new, fits and is signed by both.
    pub fn enter(
        &mut self,
        bytes: &[u8; Receipt::LEN],
        now_unix_s: u32,
        costs: impl Fn(ModelId) -> Option<LayerCosts>,
    ) -> Option<Entry> {
        let receipt = Receipt::open(bytes).ok()?;
        let entry = self.ledger.enter(now_unix_s, &counted(receipt.work(), costs));
        if entry == Entry::Counted {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(*bytes);
            if let Err(error) = self.write(bytes) {
                tracing::warn!(%error, "a receipt could not be written");
            }
        }
        Some(entry)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.in_file < 2 * KEPT {
            self.in_file += 1;
            return OpenOptions::new().create(true).append(true).open(&self.path)?.write_all(bytes);
        }
        let fresh = self.path.with_extension("new");
        let all: Vec<u8> = self.kept.iter().flatten().copied().collect();
        fs::write(&fresh, all)?;
        self.in_file = self.kept.len();
        fs::rename(fresh, &self.path)
    }

    /// How a peer stands with this node.
    pub fn tier(&self, peer: NodeId) -> Tier {
        self.ledger.tier(peer)
    }

    /// Nodes that have worked for this one.
    pub fn contributors(&self) -> usize {
        self.ledger.contributors()
    }

    /// What this node gave to all peers beyond what it took, in layer passes.
    pub fn surplus(&self) -> i64 {
        self.ledger.surplus().clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// All kept receipts, the latest last, and the balance with every peer in them, in units of work given beyond
    /// what was taken.
    pub fn list(&self) -> ReceiptsReport {
        let works: Vec<Work> =
            self.kept.iter().filter_map(|bytes| Some(*Receipt::open(bytes).ok()?.work())).collect();
        let peer = |work: &Work| if work.stage == self.me { work.requester } else { work.stage };
        let mut peers: Vec<NodeId> = works.iter().map(peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let balances = peers.iter().map(|peer| BalanceReport {
            node: format!("{peer:?}"),
            balance: self.ledger.balance(*peer) as i64,
            tier: format!("{:?}", self.ledger.tier(*peer)).to_lowercase(),
        });
        let receipts = works.iter().map(|work| ReceiptReport {
            session: format!("{:?}", work.session),
            stage: format!("{:?}", work.stage),
            requester: format!("{:?}", work.requester),
            model: format!("{:?}", work.model),
            start: work.layers.start(),
            end: work.layers.end(),
            prefill_tokens: work.prefill_tokens,
            decode_tokens: work.decode_tokens,
            head: data_encoding::HEXLOWER.encode(&work.head),
            ended_unix_s: work.ended_unix_s,
        });
        ReceiptsReport { receipts: receipts.collect(), peers: balances.collect(), end: false }
    }
}
