//! The answer to `status`: what a node does, holds and may take.
//!
//! Groups of fields are flattened: in JSON they stand side by side, in the order written here.

use api::swarm::Reachability;
use serde::{Deserialize, Serialize};

use super::{FetchReport, LimitReport};

/// The answer to `status`, and what `join --json` says when it is ready.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// Its place in the swarm.
    #[serde(flatten)]
    pub network: NetworkStatus,
    /// The first of `models`.
    pub model: ModelReport,
    /// The models of the node.
    pub models: Vec<ModelReport>,
    /// What it computes for others.
    #[serde(flatten)]
    pub work: WorkStatus,
    /// The first of `fetches`.
    pub fetching: Option<FetchReport>,
    /// What was last said of each model that is not here yet.
    pub fetches: Vec<FetchReport>,
    /// What its line carries.
    pub line: LineStatus,
    /// Models handed out and fetched.
    pub content: ContentStatus,
    /// What it may take.
    pub caps: CapsStatus,
    /// What `--keep-state` takes of the disk; nothing without it.
    pub kept_state: Option<KeptState>,
    /// What others may hold of it, and do.
    pub limits: Vec<LimitReport>,
    /// The node as a process.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// No line follows: `true` on the socket, left out of `--json`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// A node's place in the swarm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// Its name, 64 hex digits.
    pub node: String,
    /// How others reach it.
    pub reached: Reachability,
    /// Where it can be dialed.
    pub addresses: Vec<String>,
    /// Peers connected now.
    pub peers: usize,
    /// Nodes of the swarm that speak another version of the protocols.
    pub refused_versions: Vec<RefusedReport>,
    /// Nodes whose announcements count, this one left out.
    pub known_nodes: usize,
    /// What carries frames to the peers that any were sent to, or with which more than a stream was tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
}

/// What carries frames to a neighbor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkReport {
    /// The neighbor's name, 64 hex digits.
    pub node: String,
    /// The link in use, the medians of 16 KiB echoes, and how many frames went how.
    pub link: String,
    /// Whether the kernel module helps this node there, as its echoes were measured; absent where they were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_helps: Option<bool>,
}

/// A node that speaks another version of the protocols.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedReport {
    /// Its name, 64 hex digits.
    pub node: String,
    /// The version it speaks.
    pub version: u32,
    /// A sentence with what to do.
    pub why: String,
}

/// What a node computes for others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkStatus {
    /// Sessions of other nodes.
    pub sessions: SessionsStatus,
    /// How busy it is, as it announces it.
    pub load: LoadStatus,
    /// Announcements sent and received.
    pub announcements: AnnouncementsStatus,
    /// Its own prompts in flight.
    pub prompts: usize,
    /// Positions computed for others since the start.
    pub served_positions: u64,
    /// Bytes received for that.
    pub bytes_in: u64,
    /// Bytes sent for that.
    pub bytes_out: u64,
    /// Whether it serves no new sessions because the user said so.
    pub paused: bool,
}

/// Sessions of other nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionsStatus {
    /// Open now.
    pub serving: usize,
    /// Ended since the start.
    pub served: u64,
}

/// How busy a node is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadStatus {
    /// Sessions that compute now.
    pub active: u32,
    /// Sessions at once with which a step takes twice as long as alone.
    pub batch_knee: u32,
    /// How long a job waits.
    pub queue_ms: f64,
    /// What a job takes besides its layers.
    pub visit_ms: f64,
    /// Memory left for sessions.
    pub kv_bytes: u64,
}

/// Announcements since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AnnouncementsStatus {
    /// Sent.
    pub said: u64,
    /// Their bytes.
    pub said_bytes: u64,
    /// Received from others.
    pub heard: u64,
}

/// What the line of a node is taken to carry.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LineStatus {
    /// The farthest way in use: `loopback`, `lan`, `direct`, `relayed`.
    pub path: String,
    /// Sent, bytes per second.
    pub up_bytes_per_s: f64,
    /// Received, bytes per second.
    pub down_bytes_per_s: f64,
    /// Whether that was seen, and is not the assumption for such a way.
    pub measured: bool,
}

/// Models handed out and fetched.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContentStatus {
    /// The models that others may fetch here.
    pub shared: Vec<SharedModel>,
    /// Uploads now.
    pub uploads: usize,
    /// Sent since the start.
    pub uploaded_bytes: u64,
    /// Pulls now that commands asked for.
    pub pulls: usize,
    /// Received since the start.
    pub downloaded_bytes: u64,
    /// Nodes that handed over bytes that are not the model's.
    pub liars: usize,
}

/// A model that others may fetch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedModel {
    /// Its name here.
    pub name: String,
    /// Its id in hex.
    pub id: String,
    /// Length of its file.
    pub bytes: u64,
}

/// What a node may take; `None` for what there is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CapsStatus {
    /// Sessions of other nodes at a time.
    pub sessions: usize,
    /// Memory for the caches of all sessions.
    pub kv_bytes: u64,
    /// Disk for pulled models.
    pub disk_bytes: Option<u64>,
    /// Memory for weights.
    pub weights_bytes: Option<u64>,
    /// Models sent, bytes per second.
    pub upload_bytes_per_s: Option<u64>,
    /// Models received, bytes per second.
    pub download_bytes_per_s: Option<u64>,
    /// A model that nothing has needed for so long is unloaded.
    pub unload_after_s: Option<u64>,
}

/// What is kept of ended prompts on the disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptState {
    /// What its files take, room for the next states included.
    pub bytes: u64,
    /// The most they may take.
    pub most_bytes: u64,
}

/// A node as a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Memory for the caches of all sessions.
    pub kv_bytes: u64,
    /// The daemon.
    pub pid: u32,
    /// The worker of the first model; 0 for none.
    pub worker_pid: u32,
    /// Whether it is about to leave.
    pub draining: bool,
    /// What others found when they dialed it: `public`, `private` or `unknown`.
    pub reachability: String,
    /// Since the start.
    pub uptime_s: f64,
}

/// A model of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelReport {
    /// What its file calls itself; until that is here, what the user calls it.
    pub name: String,
    /// What the user calls it.
    pub called: String,
    /// Its id in hex, once it is known.
    pub id: Option<String>,
    /// Which of its layers are where.
    #[serde(flatten)]
    pub layers: LayersStatus,
    /// The process that holds it.
    #[serde(flatten)]
    pub memory: MemoryStatus,
    /// What computes it here.
    #[serde(flatten)]
    pub device: DeviceStatus,
    /// How fast it computes here.
    #[serde(flatten)]
    pub speed: SpeedStatus,
    /// Which experts of its layers are here, where not all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsStatus>,
    /// The process that computes; 0 for none.
    pub worker_pid: u32,
    /// What was last said of its way to this machine.
    pub fetching: Option<FetchReport>,
    /// The nodes without which a layer has no holder.
    pub bares: Vec<SoleHolder>,
}

/// Layers of a model, as `start..end`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayersStatus {
    /// Of the whole model; 0 until its header is here.
    pub num_layers: u32,
    /// In memory.
    pub loaded: Vec<String>,
    /// Whether the first and the last one are: prompts begin and end here then, and no peer reads them.
    pub ends: bool,
    /// Computed for others.
    pub serving: Vec<String>,
    /// Announced to others.
    pub offered: Vec<String>,
}

/// The process that holds a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Bytes of all weights in memory.
    pub resident_bytes: u64,
    /// Whether it ended because nothing needed the model: it is loaded again when something does.
    pub unloaded: bool,
    /// Whether it gave up network, writing and starting programs.
    pub sandboxed: bool,
    /// Whether the kernel has Landlock, too.
    pub landlocked: bool,
}

/// What computes a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// The device, in words.
    pub device: String,
    /// Whether its results are bit for bit those of profile `d1`: `d1` or `approx`.
    pub class: String,
    /// What is wrong with the device that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_trouble: Option<String>,
}

/// Experts of layers that are on several nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpertsStatus {
    /// Those here, as `start..end`.
    pub here: String,
    /// Nodes that compute the others for this one, in hex; none for a node that computes its experts for those that lead.
    pub from: Vec<String>,
    /// What those nodes add to a layer and token, ms; nothing while experts are missing, or for a node that leads none.
    pub decode_ms_per_layer: Option<f64>,
    /// What is missing, for people.
    pub missing: Option<String>,
}

/// How fast a model is computed, measured at load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SpeedStatus {
    /// One decoded token through one layer, ms.
    pub decode_ms_per_layer: f64,
    /// One prompt token through one layer, ms.
    pub prefill_ms_per_layer: f64,
    /// Entering once, ms.
    pub visit_ms: f64,
    /// Weights read while decoding.
    pub read_bytes_per_s: Option<f64>,
    /// Time to load, ms.
    pub load_ms: f64,
}

/// A node without which some layers have no holder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SoleHolder {
    /// Its name, 64 hex digits.
    pub node: String,
    /// Whether it is this node.
    pub own: bool,
    /// Those layers, as `start..end`.
    pub layers: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// Programs read these names: one that changes breaks them.
    #[test]
    fn the_names_and_places_of_all_fields_are_fixed() {
        let report = StatusReport {
            models: vec![ModelReport {
                bares: vec![SoleHolder::default()],
                experts: Some(ExpertsStatus::default()),
                ..ModelReport::default()
            }],
            end: true,
            ..StatusReport::default()
        };
        let status = serde_json::to_value(&report).unwrap();
        assert_eq!(
            keys(&status).join(" "),
            "node reached addresses peers refused_versions known_nodes model models sessions load announcements prompts \
             served_positions bytes_in bytes_out paused fetching fetches line content caps kept_state limits kv_bytes pid \
             worker_pid draining reachability uptime_s end"
        );
        assert_eq!(
            keys(&status["models"][0]).join(" "),
            "name called id num_layers loaded ends serving offered resident_bytes unloaded sandboxed landlocked device class \
             decode_ms_per_layer prefill_ms_per_layer visit_ms read_bytes_per_s load_ms experts worker_pid fetching bares"
        );
        assert_eq!(keys(&status["models"][0]["experts"]).join(" "), "here from decode_ms_per_layer missing");
        for (part, names) in [
            ("reached", "class why"),
            ("sessions", "serving served"),
            ("load", "active batch_knee queue_ms visit_ms kv_bytes"),
            ("announcements", "said said_bytes heard"),
            ("line", "path up_bytes_per_s down_bytes_per_s measured"),
            ("content", "shared uploads uploaded_bytes pulls downloaded_bytes liars"),
            (
                "caps",
                "sessions kv_bytes disk_bytes weights_bytes upload_bytes_per_s download_bytes_per_s unload_after_s",
            ),
        ] {
            assert_eq!(keys(&status[part]).join(" "), names, "{part}");
        }
        assert_eq!(keys(&status["models"][0]["bares"][0]).join(" "), "node own layers");
    }

    #[test]
    fn what_is_written_is_read_again_and_gaps_are_defaults() {
        let mut report = StatusReport::default();
        report.network.node = "aa".into();
        report.work.bytes_in = u64::MAX;
        report.model.speed.read_bytes_per_s = Some(1.5);
        report.fetching = Some(FetchReport::Looking { model: "minnow".into() });
        report.process.pid = 7;
        let line = serde_json::to_value(&report).unwrap();
        let read: StatusReport = serde_json::from_value(line.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), line);
        assert!(line.get("end").is_none());
        let sparse: StatusReport =
            serde_json::from_value(json!({ "node": "bb", "model": { "loaded": ["0..2"] } })).unwrap();
        assert_eq!((sparse.network.node.as_str(), sparse.model.layers.loaded.len()), ("bb", 1));
    }
}
