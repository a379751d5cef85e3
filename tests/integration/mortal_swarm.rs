//! A swarm whose nodes die in the middle of an answer, every kind of death, and come back.

use std::{
    cell::RefCell,
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

use harness::{binary, node::Node};
use serde_json::Value;
use tempfile::TempDir;

/// A prompt that has not ended by then hangs.
const BOUND: Duration = Duration::from_secs(150);
/// What drafts, as often as it is drawn; `auto` is here what `SHOAL_DRAFT` says.
pub(crate) const DRAFTS: [&str; 5] = ["auto", "auto", "lookup", "off", "lookup,minnow"];
/// Two ways to hold the middle layers twice: with a follower for each segment, and so that the node that takes over cuts
/// differently.
pub(crate) const LAYERS: [&[&str]; 2] =
    [&["1..4", "4..7", "1..4", "4..7"], &["1..3,3..5", "3..5,5..7", "5..7,1..3"]];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// `kill -9` of the node: its worker dies with it.
    Killed,
    /// The node's process is frozen: its connections stay open and nothing comes.
    Frozen,
    /// `kill -9` of the worker: the node lives and says so.
    Worker,
    /// It leaves as a user would let it.
    Leaves,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Killed, Kind::Frozen, Kind::Worker, Kind::Leaves];

/// A node that asks, and nodes that hold its model's middle twice.
pub(crate) struct Swarm {
    layers: Vec<String>,
    /// The model, where it is not minnow, as every node is told it.
    model: Vec<String>,
    folder: TempDir,
    pub(crate) asks: Node,
    pub(crate) serves: Vec<Node>,
    /// Commands that send nodes away and have not ended yet.
    leaves: RefCell<Vec<Child>>,
}

impl Swarm {
    /// Nodes that hold these `layers` each, of the model that the arguments `model` name.
    pub(crate) fn start(layers: &[impl ToString], model: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let drafter: &[&str] = if model.is_empty() { &["--draft", "minnow"] } else { &[] };
        let args = [&["--ask-only"], drafter, model].concat();
        let asks = Node::start_as(&folder.path().join("home"), &args, |command| {
            command.env("SHOAL_LOG", "info,node::request=debug").env("SHOAL_DRAFT", "5:1").stderr(log);
        });
        let layers = layers.iter().map(ToString::to_string).collect();
        let model = model.iter().map(ToString::to_string).collect();
        let mut swarm = Self { layers, model, folder, asks, serves: Vec::new(), leaves: RefCell::default() };
        swarm.serves = (0..swarm.layers.len()).map(|index| swarm.node(index)).collect();
        swarm.asks.meets(swarm.layers.len());
        swarm
    }

    /// What the node that asks has said lately.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn node(&self, index: usize) -> Node {
        let home = self.folder.path().join(index.to_string());
        let model: Vec<&str> = self.model.iter().map(String::as_str).collect();
        let args = ["--layers", self.layers[index].as_str(), "--peer", self.asks.tcp()];
        Node::start(&home, &[&args, &model[..]].concat())
    }

    /// Strikes a stage of `route` that another node computes, the `stage`th of them; returns which node that is.
    pub(crate) fn strike_stage(&self, route: &Value, stage: usize, kind: Kind) -> usize {
        let stages = route["stages"].as_array().unwrap();
        let names: Vec<&str> = stages.iter().map(|stage| stage["node"].as_str().unwrap()).collect();
        let others: Vec<&str> = names.into_iter().filter(|name| *name != self.asks.name).collect();
        let name = others[stage % others.len()];
        let index = self.serves.iter().position(|node| node.name == name).unwrap();
        self.strike(index, kind);
        index
    }

    pub(crate) fn strike(&self, index: usize, kind: Kind) {
        let node = &self.serves[index];
        let send = |signal: &str, pid: u64| {
            assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
        };
        match kind {
            Kind::Killed => send("-KILL", u64::from(node.child.id())),
            Kind::Frozen => send("-STOP", u64::from(node.child.id())),
            Kind::Worker => send("-KILL", node.ask(&["status"])["worker_pid"].as_u64().unwrap()),
            Kind::Leaves => {
                let mut leave = Command::new(binary());
                leave.arg("leave").arg("--home").arg(&node.home).stdout(Stdio::null());
                self.leaves.borrow_mut().push(leave.spawn().unwrap());
            }
        }
    }

    /// Ends whatever is left of a node and starts it again.
    pub(crate) fn restore(&mut self, index: usize) {
        // Who leaves says good-bye; a command that comes late would send the successor away.
        for mut leave in self.leaves.take() {
            let _ = leave.wait();
        }
        let _ = self.serves[index].child.kill();
        let _ = self.serves[index].child.wait();
        self.serves[index] = self.node(index);
        self.asks.meets(self.layers.len());
        // What its predecessor said may still be believed: that it is about to leave, for one.
        let (node, started) = (&self.serves[index], Instant::now());
        loop {
            let peers = self.asks.ask(&["peers"]);
            let mut of_it =
                peers["peers"].as_array().unwrap().iter().filter(|p| p["node"] == node.name.as_str());
            if of_it.any(|p| p["addresses"].as_array().unwrap().iter().any(|a| a == node.tcp())) {
                return;
            }
            assert!(started.elapsed() < BOUND, "its predecessor is believed: {peers}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Runs a prompt and strikes when the time has come; gives the last line.
pub(crate) fn run(
    swarm: &Swarm,
    ask: &[String],
    shadow: &str,
    draft: &str,
    strike: &mut dyn FnMut(&Value, usize),
) -> Value {
    let mut child = Command::new(binary())
        .args(["run", "--via", "swarm", "--json", "--shadow", shadow, "--draft", draft, "--home"])
        .arg(&swarm.asks.home)
        .args(ask)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (send, lines) = sync_channel::<Value>(1_024);
    let stdout = child.stdout.take().unwrap();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str(&line).unwrap());
        }
    });
    let started = Instant::now();
    let (mut tokens, mut route) = (0, Value::Null);
    loop {
        let left = BOUND.saturating_sub(started.elapsed());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("no end within {BOUND:?}, {tokens} tokens came; route {route}")
        });
        match line["event"].as_str() {
            Some("route") => route = line.clone(),
            Some("token") => tokens += 1,
            _ => {}
        }
        if line["end"] == true {
            assert!(child.wait().unwrap().success(), "{line}\n{}", swarm.log());
            return line;
        }
        strike(&route, tokens);
    }
}
