//! Several nodes on this machine, each a process of its own with its own key and data folder.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use shard::kernels::threads::Pool;
use tempfile::TempDir;

use crate::{
    Error, Result,
    cli::{EngineArgs, swarm::LinkArgs},
    control, platform, private_folder,
    reports::{JoinLine, Listening, PeersReport},
};

/// A node loads a small model and opens sockets; a minute means that it hangs.
const START_S: u64 = 60;
/// Until everybody has heard of everybody.
const MEET_S: u64 = 30;

/// One node.
pub struct Node {
    /// Its data folder.
    pub home: PathBuf,
    /// Its name in hex.
    pub name: String,
    /// Layers it serves, as the command line writes them; empty for the one that only asks.
    pub layers: String,
    child: Child,
    /// Where its API is.
    pub api: Option<Listening>,
    /// Held open: the node stops when it closes.
    _stdin: Option<ChildStdin>,
}

/// A swarm on this machine. Dropping it stops every node.
pub struct LocalSwarm {
    /// The first one only asks; the others serve.
    pub nodes: Vec<Node>,
    _folder: TempDir,
}

impl LocalSwarm {
    /// Starts the nodes with the layers given, the first as the one who asks, and waits until it knows all others.
    /// The first one answers over HTTP at `api`; frames between them take `links`.
    pub fn start(
        engine: &EngineArgs,
        layers: &[String],
        (api, links): (Option<SocketAddr>, &LinkArgs),
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("shoal-").tempdir()?;
        let mut swarm = Self { nodes: Vec::new(), _folder: folder };
        let mut first = None;
        for (index, layers) in layers.iter().enumerate() {
            let home = swarm._folder.path().join(index.to_string());
            private_folder::prepare(&home)?;
            let api = api.filter(|_| index == 0);
            let (node, address) = start_node(&home, engine, layers, first.as_deref(), (api, links))?;
            first = first.or(address);
            swarm.nodes.push(node);
        }
        swarm.wait_until_met()?;
        Ok(swarm)
    }

    /// Data folder of the node that asks.
    pub fn home(&self) -> &Path {
        &self.nodes[0].home
    }

    /// Ends a node as a power cut would.
    pub fn kill(&mut self, name: &str) -> bool {
        let Some(node) = self.nodes.iter_mut().find(|node| node.name == name) else { return false };
        node.child.kill().is_ok() && node.child.wait().is_ok()
    }

    fn wait_until_met(&mut self) -> Result<()> {
        let others = self.nodes.len() - 1;
        let started = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        loop {
            let known: PeersReport =
                runtime.block_on(control::one(self.home(), &control::Question::Peers))?;
            let met = known.peers.iter().filter(|peer| peer.connected && !peer.models.is_empty()).count();
            if met >= others {
                return Ok(());
            }
            if started.elapsed() > Duration::from_secs(MEET_S) {
                return Err(Error::Failed(format!("only {met} of {others} nodes met within {MEET_S} s")));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for LocalSwarm {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node._stdin = None;
        }
        for node in &mut self.nodes {
            let deadline = Instant::now() + Duration::from_secs(3);
            while matches!(node.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
            }
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

/// The node and an address others can start from.
fn start_node(
    home: &Path,
    engine: &EngineArgs,
    layers: &str,
    peer: Option<&str>,
    (api, links): (Option<SocketAddr>, &LinkArgs),
) -> Result<(Node, Option<String>)> {
    let mut command = Command::new(platform::program()?);
    command.arg("join").args([
        "--json",
        "--yes",
        "--loopback",
        "--until-stdin-closes",
        "--model",
        engine.model(),
    ]);
    command.arg("--home").arg(home);
    // What the user set for their own node is not meant for these.
    command.env("SHOAL_CONFIG", "none");
    for name in crate::config::variables("join.") {
        command.env_remove(name);
    }
    // All their sessions are the same person's.
    command.args(["--sessions", "64"]);
    // The stages of a prompt take turns, so each may have the whole machine. The node that comes first has its cores for
    // itself, the threads of the others are free to move.
    let threads = engine.threads.map_or_else(Pool::physical_cores, usize::from);
    command.args(["--threads", &threads.to_string()]);
    if engine.no_pin {
        command.arg("--no-pin");
    }
    if let Some(isa) = &engine.isa {
        command.args(["--isa", isa]);
    }
    command.args(["--device", &engine.device()?.to_string(), "--link", links.link.name()]);
    command.args(["--spin", &links.spin.to_string(), "--link-loss", &links.link_loss.to_string()]);
    command.args(["--link-turn", &links.link_turn.to_string()]);
    if let Some(ctx) = engine.ctx {
        command.args(["--ctx", &ctx.to_string()]);
    }
    if layers.is_empty() {
        command.arg("--ask-only")
    } else {
        command.args(["--layers", layers])
    };
    if let Some(api) = api {
        command.args(["--api", &api.to_string()]);
    }
    if let Some(peer) = peer {
        command.args(["--peer", peer]);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (send, lines) = mpsc::sync_channel(16);
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                // Only the first lines matter here; a full channel must not block the node.
                let _ = send.try_send(line);
            }
        });
    }
    let mut listening = None;
    let ready = loop {
        let line = lines.recv_timeout(Duration::from_secs(START_S)).map_err(|_| {
            let _ = child.kill();
            Error::Failed("a node did not start; what it said is above".into())
        })?;
        match serde_json::from_str(&line)? {
            JoinLine::Listening(api) => listening = Some(api),
            JoinLine::Ready(status) => break status.network,
            _ => {}
        }
    };
    let (name, addresses) = (ready.node, ready.addresses);
    let address = addresses.iter().find(|address| address.contains("/tcp/")).or(addresses.first()).cloned();
    let stdin = child.stdin.take();
    let node =
        Node { home: home.to_owned(), name, layers: layers.to_owned(), child, api: listening, _stdin: stdin };
    Ok((node, address))
}

/// Which layers each of `nodes` serves so that every middle layer of a model of `num_layers` is held twice: a node may
/// die. The first one keeps the ends and serves none.
pub fn shares(num_layers: u32, nodes: usize) -> Vec<String> {
    let (first, last) = (1, num_layers - 1);
    let servers = nodes - 1;
    let parts = servers.min((last - first) as usize).max(1);
    let cut = |part: usize| first + (last - first) * part as u32 / parts as u32;
    let range = |part: usize| format!("{}..{}", cut(part % parts), cut(part % parts + 1));
    let share = |server: usize| match parts {
        1 => range(0),
        _ => format!("{},{}", range(server), range(server + 1)),
    };
    std::iter::once(String::new()).chain((0..servers).map(share)).collect()
}

#[cfg(test)]
mod tests {
    use super::shares;
    use crate::cli::swarm::Layers;

    #[test]
    fn every_middle_layer_is_held_by_two() {
        assert_eq!(shares(8, 4), ["", "1..3,3..5", "3..5,5..7", "5..7,1..3"]);
        for (layers, nodes) in [(8, 3), (8, 4), (8, 6), (4, 9), (32, 5), (26, 12)] {
            let shares = shares(layers, nodes);
            assert_eq!(shares.len(), nodes);
            for layer in 1..layers - 1 {
                let holds = |share: &&String| {
                    share.parse::<Layers>().is_ok_and(|held| held.0.iter().any(|range| range.contains(layer)))
                };
                assert!(shares.iter().filter(holds).count() >= 2, "layer {layer} of {layers} on {nodes}");
            }
        }
    }
}
