//! The lines that tell how a model comes to a machine: of `model pull`, and of a node that fetches one for itself.

use p2p::blob;
use serde::{Deserialize, Serialize};

use crate::library::Entry;

/// What is to be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PullPlan {
    /// What the model is called here.
    pub name: String,
    /// Its id in hex.
    pub id: String,
    /// Length of the whole file.
    pub file_bytes: u64,
    /// Bytes wanted of it.
    pub total_bytes: u64,
    /// Bytes of those that are not here.
    pub missing_bytes: u64,
    /// Layers of the whole model; `None` where the whole file is wanted.
    pub num_layers: Option<u32>,
    /// Those wanted, as first and end.
    pub layers: Vec<[u32; 2]>,
    /// The mirrors.
    pub from: Vec<String>,
}

impl PullPlan {
    /// The layers wanted, as people read them.
    pub fn layers(&self) -> Vec<String> {
        self.layers.iter().map(|[start, end]| format!("{start}..{end}")).collect()
    }

    /// Bytes of those wanted that are here.
    pub fn here_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.missing_bytes)
    }
}

/// What a pull did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Bytes written, by source, in the order they joined.
    pub by_source: Vec<SourceBytes>,
    /// Bytes written.
    pub fetched_bytes: u64,
    /// Bytes that arrived sound but were here by then.
    pub spare_bytes: u64,
}

/// What came from one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBytes {
    /// Its name.
    pub source: String,
    /// Bytes written.
    pub bytes: u64,
}

impl From<&blob::Report> for Transfer {
    fn from(report: &blob::Report) -> Self {
        let one = |(source, bytes): &(String, u64)| SourceBytes { source: source.clone(), bytes: *bytes };
        Self {
            by_source: report.by_source.iter().map(one).collect(),
            fetched_bytes: report.fetched_bytes,
            spare_bytes: report.spare_bytes,
        }
    }
}

/// A line of a pull.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum PullLine {
    /// How much there is to do.
    Started {
        /// Bytes wanted.
        total_bytes: u64,
        /// Bytes of them that are here already.
        have_bytes: u64,
    },
    /// A source takes part.
    Joined {
        /// Its name.
        source: String,
    },
    /// Something has arrived.
    Moved {
        /// From whom.
        source: String,
        /// Bytes wanted that are here now.
        done_bytes: u64,
    },
    /// A web server broke and will be asked again.
    Retrying {
        /// Its name.
        source: String,
        /// What happened.
        why: String,
    },
    /// A source takes no part any more.
    Dropped {
        /// Its name.
        source: String,
        /// What happened.
        why: String,
        /// Whether it handed over bytes that are not the model's.
        lied: bool,
    },
    /// What is about to be fetched.
    Plan {
        /// How much, of what.
        #[serde(flatten)]
        plan: PullPlan,
        /// Peers that have it, where a node looked for them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peers: Option<usize>,
        /// Its license, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        license: Option<String>,
        /// No line follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        end: bool,
    },
    /// No source has the hash tree, without which nothing can be checked in parts.
    NoTree {
        /// What each said.
        why: Vec<String>,
        /// No line follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        end: bool,
    },
    /// It is here.
    Done {
        /// As what.
        #[serde(flatten)]
        entry: Entry,
        /// What was done for it; `None` where nothing was.
        #[serde(flatten)]
        transfer: Option<Transfer>,
        /// Whether it was here before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        here: bool,
        /// No line follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        end: bool,
    },
}

impl PullLine {
    /// Whether it is the last one of an answer.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Plan { end: true, .. } | Self::NoTree { end: true, .. } | Self::Done { end: true, .. }
        )
    }

    /// As it is printed: `end` belongs to the socket.
    #[must_use]
    pub fn without_end(mut self) -> Self {
        if let Self::Plan { end, .. } | Self::NoTree { end, .. } | Self::Done { end, .. } = &mut self {
            *end = false;
        }
        self
    }

    /// The event of a pull that it tells; `None` for the other lines.
    pub fn event(self) -> Option<blob::Event> {
        Some(match self {
            Self::Started { total_bytes, have_bytes } => blob::Event::Started { total_bytes, have_bytes },
            Self::Joined { source } => blob::Event::Joined { source },
            Self::Moved { source, done_bytes } => blob::Event::Progress { source, done_bytes },
            Self::Retrying { source, why } => blob::Event::Retrying { source, why },
            Self::Dropped { source, why, lied } => blob::Event::Dropped { source, why, lied },
            Self::Plan { .. } | Self::NoTree { .. } | Self::Done { .. } => return None,
        })
    }
}

impl From<blob::Event> for PullLine {
    fn from(event: blob::Event) -> Self {
        match event {
            blob::Event::Started { total_bytes, have_bytes } => Self::Started { total_bytes, have_bytes },
            blob::Event::Joined { source } => Self::Joined { source },
            blob::Event::Progress { source, done_bytes } => Self::Moved { source, done_bytes },
            blob::Event::Retrying { source, why } => Self::Retrying { source, why },
            blob::Event::Dropped { source, why, lied } => Self::Dropped { source, why, lied },
        }
    }
}

/// What a node says of a model that it fetches for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FetchReport {
    /// Who has it is being found out.
    Looking {
        /// What it is called.
        model: String,
    },
    /// Its id is known.
    Found {
        /// What it is called.
        model: String,
        /// Its id in hex.
        id: String,
    },
    /// An attempt failed.
    Waiting {
        /// What it is called.
        model: String,
        /// Why.
        why: String,
        /// When it is tried again, seconds; `None` where waiting cures nothing.
        #[serde(default)]
        again_s: Option<u64>,
    },
    /// A source takes no part any more.
    Dropped {
        /// Its name.
        source: String,
        /// What happened.
        why: String,
        /// Whether it handed over bytes that are not the model's.
        lied: bool,
    },
    /// Layers of it come.
    Fetching {
        /// How much, of what.
        #[serde(flatten)]
        plan: PullPlan,
        /// How far it is; `None` before the first byte.
        #[serde(flatten)]
        progress: Option<Progress>,
    },
    /// All of them are here.
    Fetched {
        /// How much, of what.
        #[serde(flatten)]
        plan: PullPlan,
        /// What came from whom.
        #[serde(flatten)]
        transfer: Transfer,
        /// Bytes wanted that are here: all.
        done_bytes: u64,
    },
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes wanted that are here now.
    pub done_bytes: u64,
    /// How fast they come.
    pub bytes_per_s: u64,
    /// When the rest is here at that speed.
    pub eta_s: u64,
}

impl FetchReport {
    /// The id in hex of the model, in the lines that name it.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Found { id, .. } => Some(id),
            Self::Fetching { plan, .. } | Self::Fetched { plan, .. } => Some(&plan.id),
            Self::Looking { .. } | Self::Waiting { .. } | Self::Dropped { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plan() -> PullPlan {
        PullPlan {
            name: "m".into(),
            id: "00".into(),
            file_bytes: 9,
            total_bytes: 8,
            missing_bytes: 5,
            num_layers: Some(4),
            layers: vec![[0, 1], [3, 4]],
            from: vec!["http://mirror".into()],
        }
    }

    fn plan_line(event: &str) -> Value {
        json!({ "event": event, "name": "m", "id": "00", "file_bytes": 9, "total_bytes": 8, "missing_bytes": 5,
            "num_layers": 4, "layers": [[0, 1], [3, 4]], "from": ["http://mirror"] })
    }

    fn with(mut line: Value, more: Value) -> Value {
        for (name, value) in more.as_object().unwrap() {
            line[name] = value.clone();
        }
        line
    }

    /// Programs read these lines: a name that changes breaks them.
    #[test]
    fn lines_have_fixed_names_and_are_read_again() {
        let source = SourceBytes { source: "peer".into(), bytes: 5 };
        let transfer = Transfer { by_source: vec![source], fetched_bytes: 5, spare_bytes: 1 };
        let did =
            json!({ "by_source": [{ "source": "peer", "bytes": 5 }], "fetched_bytes": 5, "spare_bytes": 1 });
        let progress = Progress { done_bytes: 6, bytes_per_s: 2, eta_s: 1 };
        let fetches = [
            (FetchReport::Looking { model: "m".into() }, json!({ "event": "looking", "model": "m" })),
            (
                FetchReport::Waiting { model: "m".into(), why: "no".into(), again_s: None },
                json!({ "event": "waiting", "model": "m", "why": "no", "again_s": null }),
            ),
            (FetchReport::Fetching { plan: plan(), progress: None }, plan_line("fetching")),
            (
                FetchReport::Fetching { plan: plan(), progress: Some(progress) },
                with(plan_line("fetching"), json!({ "done_bytes": 6, "bytes_per_s": 2, "eta_s": 1 })),
            ),
            (
                FetchReport::Fetched { plan: plan(), transfer: transfer.clone(), done_bytes: 8 },
                with(with(plan_line("fetched"), did.clone()), json!({ "done_bytes": 8 })),
            ),
        ];
        for (report, line) in fetches {
            assert_eq!(serde_json::to_value(&report).unwrap(), line);
            assert_eq!(serde_json::from_value::<FetchReport>(line).unwrap(), report);
        }
        let entry = Entry {
            name: "m".into(),
            path: "/m.gguf".into(),
            id: "00".into(),
            bytes: 9,
            shared: false,
            withheld: false,
            from: Vec::new(),
            reference: None,
            modified_ms: None,
        };
        let kept = json!({ "event": "done", "name": "m", "path": "/m.gguf", "id": "00", "bytes": 9, "shared": false,
            "withheld": false, "from": [], "modified_ms": null });
        let pulls = [
            (
                PullLine::Plan { plan: plan(), peers: Some(2), license: None, end: true },
                with(plan_line("plan"), json!({ "peers": 2, "end": true })),
            ),
            (
                PullLine::NoTree { why: vec!["no".into()], end: true },
                json!({ "event": "no_tree", "why": ["no"], "end": true }),
            ),
            (
                PullLine::Done { entry: entry.clone(), transfer: None, here: true, end: false },
                with(kept.clone(), json!({ "here": true })),
            ),
            (
                PullLine::Done { entry, transfer: Some(transfer), here: false, end: true },
                with(with(kept, did), json!({ "end": true })),
            ),
        ];
        for (report, line) in pulls {
            assert_eq!(serde_json::to_value(&report).unwrap(), line);
            assert_eq!(serde_json::from_value::<PullLine>(line.clone()).unwrap(), report);
            assert_eq!(report.is_last(), line["end"] == true);
            assert!(!report.without_end().is_last());
        }
    }

    #[test]
    fn an_event_of_a_pull_survives_its_line() {
        let source = || "peer".to_owned();
        for event in [
            blob::Event::Started { total_bytes: 2, have_bytes: 1 },
            blob::Event::Joined { source: source() },
            blob::Event::Progress { source: source(), done_bytes: 2 },
            blob::Event::Retrying { source: source(), why: "502".into() },
            blob::Event::Dropped { source: source(), why: "lies".into(), lied: true },
        ] {
            let line = serde_json::to_string(&PullLine::from(event.clone())).unwrap();
            assert_eq!(serde_json::from_str::<PullLine>(&line).unwrap().event(), Some(event));
        }
    }
}
