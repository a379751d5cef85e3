//! What is remembered of other nodes: whether they were right, and what was signed for.

use std::{collections::BTreeSet, fs, io, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use p2p::{
    ReplyTo,
    wire::{
        announce::Class,
        control::{Answer, Refusal},
        receipt::Receipt,
    },
};
use scheduler::{
    Millis, ModelId, NodeId, SessionId,
    trust::{Outcome, Record, Standing},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Daemon, probation::is_proof};
use crate::{clock, sessions::Order};

/// Proofs kept, the oldest goes first; one has at most 8 MiB.
const MAX_PROOFS: usize = 32;
/// A stage that has not answered by then has ended.
const PATIENCE: Duration = Duration::from_secs(2);

impl Daemon {
    /// Nodes whose results cannot be compared by their bits.
    pub(super) fn approx(&self) -> BTreeSet<NodeId> {
        self.facts.iter().filter(|(_, facts)| facts.class != Class::D1).map(|(node, _)| *node).collect()
    }

    /// Nodes that were proven wrong: no prompt goes through them.
    pub(super) fn denied(&self) -> BTreeSet<NodeId> {
        self.trust.denied(Millis(clock::unix_ms()))
    }

    /// A requester wants the bill.
    pub(super) fn settle(&self, from: NodeId, session: SessionId, upto: u32, reply: ReplyTo) {
        let network = self.network.clone();
        let gone = || Answer::refused(Refusal::Failed, "no such session");
        let Some(inlets) = self.table.get(session).filter(|inlets| inlets.requester == from) else {
            return network.answer(reply, gone());
        };
        let (answer, answered) = oneshot::channel();
        if inlets.orders.try_send(Order::Settle { upto, answer }).is_err() {
            return network.answer(reply, gone());
        }
        tokio::spawn(async move {
            let settled = tokio::time::timeout(PATIENCE, answered).await.ok().and_then(Result::ok);
            network.answer(reply, settled.unwrap_or_else(gone));
        });
    }

    /// A requester signed for our work.
    pub(super) fn keep_receipt(&mut self, from: NodeId, receipt: &[u8; Receipt::LEN]) {
        let entry = self.receipts.enter(receipt, clock::receipt_s());
        tracing::debug!(%from, ?entry, "a receipt came");
    }

    /// Remembers how everybody did in a prompt.
    pub(super) fn learn(
        &mut self,
        model: ModelId,
        outcomes: Vec<(NodeId, Outcome)>,
        receipts: &[[u8; Receipt::LEN]],
        proofs: &[Vec<u8>],
    ) {
        for receipt in receipts {
            self.receipts.enter(receipt, clock::receipt_s());
        }
        for proof in proofs {
            if let Err(error) = keep_proof(&self.home.join("proofs"), proof) {
                tracing::warn!(%error, "a proof could not be kept");
            }
        }
        if outcomes.is_empty() {
            return;
        }
        let now = Millis(clock::unix_ms());
        for (node, outcome) in outcomes {
            if matches!(outcome, Outcome::Mismatch | Outcome::Equivocated) {
                tracing::warn!(%node, "proven wrong: no prompt goes through it for a while");
            }
            self.trust.note(now, node, model, outcome);
            // Nothing but a challenge is asked of whoever owes a proof.
            if let Outcome::Verified { tokens } = outcome
                && is_proof(tokens)
            {
                self.trust.proved(now, node);
            }
            self.view.set_trust(node, self.trust.score(node, model));
        }
        if let Err(error) = self.trust.save() {
            tracing::warn!(%error, "what was learned of others could not be written");
        }
    }

    /// Receipts and balances.
    pub(super) fn list_receipts(&self) -> Value {
        let mut list = self.receipts.list();
        list["end"] = json!(true);
        list
    }

    /// What is known of a node, for `peers`.
    pub(super) fn standing(&self, node: NodeId) -> Value {
        let tier = format!("{:?}", self.receipts.tier(node)).to_lowercase();
        // What it did for any of the models here.
        let figures = self.models().filter_map(|held| self.trust.figures(node, held.id));
        let figures = figures.reduce(|a, b| if b.requests > a.requests { b } else { a }).unwrap_or_default();
        let standing = match Record::from(figures).standing(Millis(clock::unix_ms())) {
            Standing::Good => "good",
            Standing::Quarantined { .. } => "quarantined",
            Standing::MustProve => "must_prove",
            Standing::Banned { .. } => "banned",
        };
        json!({
            "requests": figures.requests,
            "verified": figures.requests_ok,
            "failures": figures.failures,
            "strikes": figures.strikes,
            "must_prove": figures.must_prove,
            "barred": self.denied().contains(&node),
            "standing": standing,
            "tier": tier,
        })
    }
}

fn keep_proof(folder: &Path, proof: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // A proof holds what the prompt can be read from.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    let mut kept: Vec<_> = fs::read_dir(folder)?
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    kept.sort();
    for (_, path) in kept.iter().take((kept.len() + 1).saturating_sub(MAX_PROOFS)) {
        fs::remove_file(path)?;
    }
    let name = blake3::hash(proof).to_hex();
    fs::write(folder.join(format!("{}.proof", &name[..16])), proof)
}
