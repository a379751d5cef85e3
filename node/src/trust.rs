//! Whom this node believes, kept between runs: the experience of [`scheduler::trust`] with every node and model.
//!
//! Kept in `trust.json` in the data folder, written whole and renamed into place, so that a crash leaves the old one. A
//! file that cannot be read is set aside and everybody is a stranger again.
//!
//! Limits: [`MAX_RECORDS`]; beyond, the record with the fewest requests and no strike goes, so strangers cannot push
//! out what is known of liars.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use scheduler::{
    Millis, ModelId, NodeId,
    trust::{Figures, Outcome, Record, Standing},
};
use serde::{Deserialize, Serialize};

/// Records kept; a megabyte of file.
const MAX_RECORDS: usize = 4_096;

/// Experience with all nodes. Its clock is Unix time in milliseconds.
#[derive(Debug, Default)]
pub struct Trust {
    path: PathBuf,
    records: BTreeMap<(NodeId, ModelId), Record>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    node: String,
    model: String,
    requests: u64,
    tokens_ok: u64,
    requests_ok: u64,
    failures: u64,
    strikes: u32,
    barred_until_unix_ms: Option<u64>,
    must_prove: bool,
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()
}

impl Trust {
    /// Reads what is kept in the data folder `home`.
    pub fn open(home: &Path) -> Self {
        let path = home.join("trust.json");
        let mut trust = Self { path, records: BTreeMap::new() };
        match fs::read(&trust.path).map(|text| serde_json::from_slice::<Vec<Saved>>(&text)) {
            Ok(Ok(saved)) => {
                let records = saved.into_iter().take(MAX_RECORDS).filter_map(|saved| {
                    let key = (NodeId::new(bytes(&saved.node)?), ModelId::new(bytes(&saved.model)?));
                    let figures = Figures {
                        requests: saved.requests,
                        tokens_ok: saved.tokens_ok,
                        requests_ok: saved.requests_ok,
                        failures: saved.failures,
                        strikes: saved.strikes,
                        barred_until: saved.barred_until_unix_ms.map(Millis),
                        must_prove: saved.must_prove,
                    };
                    Some((key, Record::from(figures)))
                });
                trust.records.extend(records);
            }
            Ok(Err(error)) => {
                let aside = trust.path.with_extension("json.unreadable");
                tracing::warn!(%error, aside = %aside.display(), "what was known of other nodes cannot be read");
                let _ = fs::rename(&trust.path, aside);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "what was known of other nodes cannot be read"),
        }
        trust
    }

    /// Writes everything to the data folder.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn save(&self) -> io::Result<()> {
        let saved: Vec<Saved> = self
            .records
            .iter()
            .map(|((node, model), record)| {
                let figures = record.figures();
                Saved {
                    node: HEXLOWER.encode(node.as_bytes()),
                    model: HEXLOWER.encode(model.as_bytes()),
                    requests: figures.requests,
                    tokens_ok: figures.tokens_ok,
                    requests_ok: figures.requests_ok,
                    failures: figures.failures,
                    strikes: figures.strikes,
                    barred_until_unix_ms: figures.barred_until.map(|until| until.0),
                    must_prove: figures.must_prove,
                }
            })
            .collect();
        let fresh = self.path.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec(&saved)?)?;
        fs::rename(fresh, &self.path)
    }

    /// Notes what happened with a node.
    pub fn note(&mut self, now: Millis, node: NodeId, model: ModelId, outcome: Outcome) {
        let key = (node, model);
        if self.records.len() >= MAX_RECORDS && !self.records.contains_key(&key) {
            let least = self
                .records
                .iter()
                .map(|(key, record)| (record.figures(), *key))
                .filter(|(figures, _)| figures.strikes == 0)
                .min_by_key(|(figures, _)| figures.requests);
            match least {
                Some((_, least)) => drop(self.records.remove(&least)),
                None => return,
            }
        }
        self.records.entry(key).or_default().note(now, outcome);
    }

    /// Nodes that nothing is to be asked of: proven wrong, and neither their time nor their proof is over.
    pub fn denied(&self, now: Millis) -> BTreeSet<NodeId> {
        let barred = self.records.iter().filter(|(_, record)| record.standing(now) != Standing::Good);
        barred.map(|((node, _), _)| *node).collect()
    }

    /// Nodes whose time is over and who owe a proof, whatever model they were wrong about.
    pub fn owing(&self, now: Millis) -> BTreeSet<NodeId> {
        let (mut owing, mut barred) = (BTreeSet::new(), BTreeSet::new());
        for ((node, _), record) in &self.records {
            match record.standing(now) {
                Standing::MustProve => owing.insert(*node),
                Standing::Quarantined { .. } | Standing::Banned { .. } => barred.insert(*node),
                Standing::Good => false,
            };
        }
        &owing - &barred
    }

    /// A node passed its challenge.
    pub fn proved(&mut self, now: Millis, node: NodeId) {
        let its = self.records.iter_mut().filter(|((of, _), _)| *of == node);
        its.for_each(|(_, record)| record.proved(now));
    }

    /// How far a node is to be trusted with `model`, in `(0, 1]`: 1 for one that stands no worse than a stranger. A
    /// stranger's own lower bound would make every plan with strangers look slower than it will be.
    pub fn score(&self, node: NodeId, model: ModelId) -> f64 {
        let stranger = Record::default().score();
        self.records.get(&(node, model)).map_or(1.0, |record| (record.score() / stranger).min(1.0))
    }

    /// Share of the requests to check, by node; who is not in it is new, and checked always.
    pub fn shares(&self, model: ModelId) -> BTreeMap<NodeId, f64> {
        let known = self.records.iter().filter(|((_, of), _)| *of == model);
        known.map(|((node, _), record)| (*node, record.check_share())).collect()
    }

    /// What is known of a node with `model`.
    pub fn figures(&self, node: NodeId, model: ModelId) -> Option<Figures> {
        self.records.get(&(node, model)).map(Record::figures)
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{
        Millis, ModelId, NodeId,
        trust::{Outcome, QUARANTINE_MS},
    };

    use super::{MAX_RECORDS, Trust};

    #[test]
    fn experience_survives_a_restart_and_a_damaged_file() {
        let home = tempfile::TempDir::new().unwrap();
        let (model, now) = (ModelId::new([7; 32]), Millis(1_800_000_000_000));
        let mut trust = Trust::open(home.path());
        trust.note(now, NodeId::numbered(1), model, Outcome::Verified { tokens: 50 });
        trust.note(now, NodeId::numbered(2), model, Outcome::Mismatch);
        trust.note(now, NodeId::numbered(3), model, Outcome::Stalled);
        trust.save().unwrap();
        let again = Trust::open(home.path());
        assert_eq!(again.records, trust.records);
        assert_eq!(again.denied(now), [NodeId::numbered(2)].into());
        assert_eq!(again.score(NodeId::numbered(9), model), 1.0, "a stranger");
        assert!(again.score(NodeId::numbered(3), model) < 1.0);
        assert_eq!(again.shares(model)[&NodeId::numbered(1)], 1.0, "on probation");
        std::fs::write(home.path().join("trust.json"), b"[{").unwrap();
        assert!(Trust::open(home.path()).records.is_empty());
        assert!(home.path().join("trust.json.unreadable").exists());
    }

    #[test]
    fn a_node_that_was_wrong_once_owes_a_proof_when_its_time_is_over() {
        let home = tempfile::TempDir::new().unwrap();
        let (one, other) = (ModelId::new([7; 32]), ModelId::new([8; 32]));
        let (now, node) = (Millis(1_800_000_000_000), NodeId::numbered(1));
        let later = now + QUARANTINE_MS;
        let mut trust = Trust::open(home.path());
        trust.note(now, node, one, Outcome::Mismatch);
        trust.note(now, NodeId::numbered(2), one, Outcome::Verified { tokens: 9 });
        assert_eq!(trust.owing(now), [].into());
        assert_eq!(trust.owing(later), [node].into());
        // Too early, and by another node: nothing changes.
        trust.proved(now, node);
        trust.proved(later, NodeId::numbered(2));
        assert_eq!((trust.owing(later), trust.denied(later)), ([node].into(), [node].into()));
        // Wrong about two models: one proof is enough, once both times are over.
        trust.note(now + 5, node, other, Outcome::Mismatch);
        assert_eq!(trust.owing(later), [].into());
        trust.proved(later + 5, node);
        assert_eq!((trust.owing(later + 5), trust.denied(later + 5)), ([].into(), [].into()));
        assert_eq!(trust.figures(node, one).unwrap().strikes, 1, "remembered");
    }

    #[test]
    fn strangers_do_not_push_out_liars() {
        let home = tempfile::TempDir::new().unwrap();
        let (model, now) = (ModelId::new([7; 32]), Millis(1_800_000_000_000));
        let mut trust = Trust::open(home.path());
        trust.note(now, NodeId::numbered(0), model, Outcome::Mismatch);
        for node in 1..MAX_RECORDS as u64 + 50 {
            trust.note(now, NodeId::numbered(node), model, Outcome::Finished);
        }
        assert_eq!(trust.records.len(), MAX_RECORDS);
        assert_eq!(trust.denied(now), [NodeId::numbered(0)].into());
    }
}
