//! What is remembered of other nodes: whether they were right, and what was signed for.

mod probation;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

use p2p::wire::receipt::Receipt;
use scheduler::{
    Millis, ModelId, NodeId,
    layer_cost::LayerCosts,
    trust::{Figures, Outcome, Record, Standing},
};

pub(super) use self::probation::ask as challenge;
use self::probation::{Challenges, is_proof};
use crate::{
    clock,
    platform::files,
    receipts::Receipts,
    reports::{ReceiptsReport, TrustReport},
    trust::Trust,
};

/// Proofs kept, the oldest goes first; one has at most 8 MiB.
const MAX_PROOFS: usize = 32;

/// What this node holds of others: verdicts, receipts, and who has to prove itself again.
pub(super) struct Trusting {
    /// The folder of proofs against liars.
    proofs: PathBuf,
    trust: Trust,
    receipts: Receipts,
    challenges: Challenges,
}

impl Trusting {
    /// What was remembered below `home` by the node `me`.
    pub(super) fn open(home: &Path, me: NodeId, costs: impl Fn(ModelId) -> Option<LayerCosts>) -> Self {
        Self {
            proofs: home.join("proofs"),
            trust: Trust::open(home),
            receipts: Receipts::open(home, me, clock::receipt_s(), costs),
            challenges: Challenges::default(),
        }
    }

    /// How a requester stands here, by the work that was signed for.
    pub(super) fn tier(&self, from: NodeId) -> usize {
        self.receipts.tier(from) as usize
    }

    /// Nodes that have worked for this one.
    pub(super) fn contributors(&self) -> usize {
        self.receipts.contributors()
    }

    /// What the nodes that have computed `model` contributed to it, see [`Trust::shares`].
    pub(super) fn shares(&self, model: ModelId) -> BTreeMap<NodeId, f64> {
        self.trust.shares(model)
    }

    /// What is remembered of `node` in prompts to `model`.
    pub(super) fn figures(&self, node: NodeId, model: ModelId) -> Option<Figures> {
        self.trust.figures(node, model)
    }

    /// The node to challenge now, of those that owe a proof and that `able` says can be challenged.
    pub(super) fn next_challenge(&mut self, able: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let owing = self.trust.owing(Millis(clock::unix_ms()));
        let able: Vec<NodeId> = owing.into_iter().filter(|node| able(*node)).collect();
        self.challenges.next(Instant::now(), able.into_iter())
    }

    /// Nodes that were proven wrong: no prompt goes through them.
    pub(super) fn denied(&self) -> BTreeSet<NodeId> {
        self.trust.denied(Millis(clock::unix_ms()))
    }

    /// A requester signed for our work.
    pub(super) fn keep_receipt(
        &mut self,
        from: NodeId,
        receipt: &[u8; Receipt::LEN],
        costs: impl Fn(ModelId) -> Option<LayerCosts>,
    ) {
        let entry = self.receipts.enter(receipt, clock::receipt_s(), costs);
        tracing::debug!(%from, ?entry, "a receipt came");
    }

    /// Remembers how the nodes did in a prompt; returns how far each is trusted from now on.
    pub(super) fn learn(
        &mut self,
        (model, costs): (ModelId, Option<&LayerCosts>),
        outcomes: Vec<(NodeId, Outcome)>,
        receipts: &[[u8; Receipt::LEN]],
        proofs: &[Vec<u8>],
    ) -> Vec<(NodeId, f64)> {
        for receipt in receipts {
            self.receipts.enter(receipt, clock::receipt_s(), |of| costs.filter(|_| of == model).cloned());
        }
        for proof in proofs {
            if let Err(error) = keep_proof(&self.proofs, proof) {
                tracing::warn!(%error, "a proof could not be kept");
            }
        }
        if outcomes.is_empty() {
            return Vec::new();
        }
        let now = Millis(clock::unix_ms());
        let mut scores = Vec::with_capacity(outcomes.len());
        for (node, outcome) in outcomes {
            if matches!(outcome, Outcome::Mismatch | Outcome::Equivocated) {
                tracing::warn!(%node, "proven wrong: no prompt goes through it for a while");
            }
            self.trust.note(now, node, model, outcome);
            // A node that owes a proof is asked nothing but challenges.
            if let Outcome::Verified { tokens } = outcome
                && is_proof(tokens)
            {
                self.trust.proved(now, node);
            }
            scores.push((node, self.trust.score(node, model)));
        }
        if let Err(error) = self.trust.save() {
            tracing::warn!(%error, "what was learned of others could not be written");
        }
        scores
    }

    /// What this node gave to all peers beyond what it took, in layer passes.
    pub(super) fn surplus(&self) -> i64 {
        self.receipts.surplus()
    }

    /// Receipts and balances.
    pub(super) fn list_receipts(&self) -> ReceiptsReport {
        ReceiptsReport { end: true, ..self.receipts.list() }
    }

    /// What is known of a node by prompts to `models`, for `peers`.
    pub(super) fn standing(&self, node: NodeId, models: impl Iterator<Item = ModelId>) -> TrustReport {
        let tier = format!("{:?}", self.receipts.tier(node)).to_lowercase();
        // What it did for any of the models here.
        let figures = models.filter_map(|model| self.trust.figures(node, model));
        let figures = figures.reduce(|a, b| if b.requests > a.requests { b } else { a }).unwrap_or_default();
        let standing = match Record::from(figures).standing(Millis(clock::unix_ms())) {
            Standing::Good => "good",
            Standing::Quarantined { .. } => "quarantined",
            Standing::MustProve => "must_prove",
            Standing::Banned { .. } => "banned",
        };
        TrustReport {
            requests: figures.requests,
            verified: figures.requests_ok,
            failures: figures.failures,
            strikes: figures.strikes,
            must_prove: figures.must_prove,
            barred: self.denied().contains(&node),
            standing: standing.to_owned(),
            tier,
        }
    }
}

fn keep_proof(folder: &Path, proof: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // A proof holds what the prompt can be read from.
    files::take_from_others(folder, &fs::metadata(folder)?)?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_node_proven_wrong_is_denied_now_and_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let (me, other, model) = (NodeId::numbered(1), NodeId::numbered(2), ModelId::numbered(7));
        let mut trusting = Trusting::open(home.path(), me, |_| None);
        let mut learn = |outcome| trusting.learn((model, None), vec![(other, outcome)], &[], &[]);
        let good = learn(Outcome::Verified { tokens: 64 });
        let bad = learn(Outcome::Mismatch);
        assert_eq!((good[0].0, bad[0].0), (other, other));
        assert!(bad[0].1 < good[0].1, "{bad:?} after {good:?}");
        assert_eq!(trusting.next_challenge(|_| true), None, "its quarantine is not over");
        for trusting in [trusting, Trusting::open(home.path(), me, |_| None)] {
            assert_eq!(trusting.denied(), BTreeSet::from([other]));
            let standing = trusting.standing(other, [ModelId::numbered(8), model].into_iter());
            assert_eq!((standing.barred, standing.strikes), (true, 1));
        }
    }

    #[test]
    fn proofs_are_private_and_bounded() {
        let home = tempfile::tempdir().unwrap();
        let mut trusting = Trusting::open(home.path(), NodeId::numbered(1), |_| None);
        for n in 0..MAX_PROOFS as u8 + 3 {
            trusting.learn((ModelId::numbered(7), None), Vec::new(), &[], &[vec![n; 8]]);
        }
        let folder = home.path().join("proofs");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), MAX_PROOFS);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
