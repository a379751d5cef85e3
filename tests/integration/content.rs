//! Models by content among real processes: fetched from several peers at once, checked, resumed; and a node that has
//! nothing of a model, answers its first prompt through peers and comes to serve some layers.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary,
    node::{Node, PATIENCE},
};
use p2p::{
    Identity, Plane,
    blob::{
        GROUP_BYTES, GroupSet, Outboard, group_count, group_len,
        wire::{Answer, Description, REQUEST_BYTES, Request, Status},
    },
    wire::announce::{Class, Draft, Offer, own_operator, seal},
};
use scheduler::{Claim, Holding, ModelId};
use serde_json::Value;
use shard::{quant, synthetic};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A model of some MB with random weights: only its bytes matter.
fn weights(folder: &Path, layers: usize) -> PathBuf {
    let file = folder.join("tiny.gguf");
    let shape = synthetic::SHAPES.iter().find(|(name, _)| *name == "tiny").unwrap().1.clone();
    synthetic::Shape { layers, ..shape }.write(&file, &quant::Q8_0, 3).unwrap();
    file
}

/// The model of the binary under another name, which makes it another model that no node has.
fn story(folder: &Path) -> PathBuf {
    let mut bytes = node::library::embedded_bytes().to_vec();
    let key = b"general.name";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it has a name");
    // Key, u32 type, u64 length, text.
    bytes[at + key.len() + 12] ^= 0x20;
    let file = folder.join("story.gguf");
    fs::write(&file, bytes).unwrap();
    file
}

fn id_of(file: &Path) -> String {
    blake3::hash(&fs::read(file).unwrap()).to_hex().to_string()
}

fn pulled(home: &Path, id: &str) -> PathBuf {
    home.join("models").join(id).join("model.gguf")
}

fn disk(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |meta| meta.blocks() * 512)
}

/// Runs a command with the folder of a node.
fn shoal(home: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env("SHOAL_HOME", home).stdin(Stdio::null());
    command
}

/// A node that shares `file`, and nothing else.
fn holder(home: &Path, file: &Path, args: &[&str]) -> Node {
    let shared = shoal(home).args(["model", "share"]).arg(file).stdout(Stdio::null()).status().unwrap();
    assert!(shared.success());
    Node::start(home, &[&["--ask-only"], args].concat())
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come to be in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `node` has heard of `count` others that offer something.
fn knows(node: &Node, count: usize) {
    until("the acquaintance", || {
        let peers = node.ask(&["peers"]);
        let offers = |peer: &&Value| peer["models"].as_array().is_some_and(|models| !models.is_empty());
        peers["peers"].as_array().unwrap().iter().filter(offers).count() >= count
    });
}

/// A pull in the background; its JSON lines.
struct Pull {
    child: Child,
    lines: Receiver<Value>,
}

impl Pull {
    fn start(home: &Path, args: &[&str]) -> Self {
        use std::io::BufRead;
        let mut child = shoal(home)
            .args(["model", "pull", "--yes", "--json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, lines) = sync_channel(16_384);
        thread::spawn(move || {
            for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines }
    }

    /// The next line that `wanted` takes.
    fn next(&mut self, seen: &mut Vec<Value>, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|why| panic!("the pull says no more ({why}): {seen:?}"));
            seen.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A member of the swarm that says it has a model and hands out other bytes. It counts the groups it sent.
struct Liar {
    name: String,
    sent: Arc<AtomicU64>,
    _runtime: tokio::runtime::Runtime,
}

impl Liar {
    fn start(file: &Path, swarm: &str, peer: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (tree, encoded) = Outboard::make(file, &mut |_| true).unwrap();
        let identity = Identity::from_seed([66; 32]);
        let mut config = p2p::Config::loopback(identity.clone());
        config.swarm = p2p::SwarmId::named(swarm);
        config.bootstrap = vec![peer.to_owned()];
        let sent = Arc::new(AtomicU64::new(0));
        let counter = sent.clone();
        let (encoded, model, bytes) = (Arc::new(encoded), tree.id(), tree.bytes());
        let name = format!("{:?}", identity.node());
        runtime.spawn(async move {
            let (network, mut events) = p2p::spawn(config).await.unwrap();
            let mut sequence = 1;
            while let Some(event) = events.next().await {
                match event {
                    p2p::Event::Connected { .. } | p2p::Event::RoundTrip { .. } => {
                        sequence += 1;
                        let mut draft = boast(&identity, model, bytes, sequence);
                        draft.addresses = network.addresses().await;
                        let _ = network.publish(seal(&draft, &identity).unwrap()).await;
                    }
                    p2p::Event::Incoming { plane: Plane::Blob | Plane::Packed, stream, .. } => {
                        tokio::spawn(lie(stream, encoded.clone(), bytes, counter.clone()));
                    }
                    _ => {}
                }
            }
        });
        Self { name, sent, _runtime: runtime }
    }
}

/// What the liar says of itself.
fn boast(identity: &Identity, model: ModelId, bytes: u64, sequence: u64) -> Draft {
    let node = identity.node();
    let holding = Holding {
        model,
        loaded: Vec::new(),
        on_disk: Vec::new(),
        decode_ms: 1.0,
        prefill_ms: 1.0,
        visit_ms: 1.0,
        queue_ms: 0.0,
        load_ms: 1.0,
        active: 0,
        batch_knee: 1,
        kv_bytes: 0,
    };
    let offer = Offer {
        model,
        name: "tiny".into(),
        num_layers: 8,
        hidden: 64,
        context: 64,
        file_bytes: bytes,
        costs: None,
    };
    let claim = Claim {
        node,
        operator: own_operator(node),
        sequence,
        region: 0,
        access_ms: 0.0,
        up_bytes_per_ms: 1e6,
        down_bytes_per_ms: 1e6,
        draining: false,
        holdings: vec![holding],
    };
    let (links, addresses) = (Vec::new(), Vec::new());
    Draft {
        claim,
        class: Class::D1,
        offers: vec![offer],
        links,
        coordinate: None,
        rooms: Vec::new(),
        addresses,
        ttl_ms: 60_000,
        agent: "liar".into(),
    }
}

/// Serves the true tree and false groups.
async fn lie(mut stream: p2p::Stream, tree: Arc<Vec<u8>>, bytes: u64, sent: Arc<AtomicU64>) {
    let mut request = [0; REQUEST_BYTES];
    while stream.read_exact(&mut request).await.is_ok() {
        let Ok(request) = Request::decode(&request) else { return };
        let payload = match request {
            Request::Describe { .. } => {
                Description { bytes, have: GroupSet::all(group_count(bytes)) }.encode()
            }
            Request::Tree { .. } => tree.to_vec(),
            Request::Groups { first, count, .. } => {
                let len: usize = (first..first + count).map(|group| group_len(bytes, group)).sum();
                vec![0x55; len]
            }
        };
        let head = Answer { kind: request.kind(), status: Status::Fine, len: payload.len() as u64 };
        if stream.write_all(&head.encode()).await.is_err() {
            return;
        }
        for part in payload.chunks(GROUP_BYTES as usize) {
            if stream.write_all(part).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            if matches!(request, Request::Groups { .. }) {
                sent.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn a_model_comes_from_several_peers_though_one_dies_and_one_lies() {
    let folder = TempDir::new().unwrap();
    let file = weights(folder.path(), 24);
    let (id, whole) = (id_of(&file), fs::metadata(&file).unwrap().len());
    let home = |name: &str| folder.path().join(name);
    // Slow enough that one can die in the middle.
    let first = holder(&home("a"), &file, &["--upload", "2MB"]);
    let peer = first.tcp().to_owned();
    let second = holder(&home("b"), &file, &["--upload", "2MB", "--peer", &peer]);
    let mut third = holder(&home("c"), &file, &["--upload", "2MB", "--peer", &peer]);
    let liar = Liar::start(&file, "shoal", &peer);
    let puller = Node::start(&home("d"), &["--ask-only", "--peer", &peer]);
    knows(&puller, 4);
    let half = (whole / 2).to_string();
    let mut too_small = shoal(&puller.home);
    let too_small =
        harness::output(too_small.args(["model", "pull", "tiny", "--yes", "--disk", &half])).unwrap();
    assert!(String::from_utf8_lossy(&too_small.stderr).contains("offered"), "{too_small:?}");
    assert!(disk(&pulled(&puller.home, &id)) <= whole / 2);

    let mut seen = Vec::new();
    let mut pull = Pull::start(&puller.home, &["tiny"]);
    let plan = pull.next(&mut seen, |line| line["event"] == "plan");
    assert_eq!((plan["id"].as_str(), plan["total_bytes"].as_u64()), (Some(id.as_str()), Some(whole)));
    let told = pull.next(&mut seen, |line| {
        line["event"] == "progress" && line["done_bytes"].as_u64().unwrap() > whole / 4
    });
    assert!(told["bytes_per_s"].as_u64().unwrap() > 0 && told["eta_s"].is_u64(), "{told}");
    third.child.kill().unwrap();
    third.child.wait().unwrap();
    let done = pull.next(&mut seen, |line| line["event"] == "done");
    assert!(pull.child.wait().unwrap().success());
    assert!(fs::read(pulled(&puller.home, &id)).unwrap() == fs::read(&file).unwrap());

    let by = |name: &str| -> u64 {
        let sources = done["by_source"].as_array().unwrap().iter();
        sources
            .filter(|source| source["source"] == name)
            .map(|source| source["bytes"].as_u64().unwrap())
            .sum()
    };
    assert!(by(&first.name) > 0 && by(&second.name) > 0, "{done}");
    assert_eq!(by(&liar.name), 0, "{done}");
    let dropped = |name: &str| seen.iter().find(|line| line["event"] == "dropped" && line["source"] == name);
    let lied = dropped(&liar.name).unwrap_or_else(|| panic!("the liar was not found out: {seen:?}"));
    assert_eq!(lied["lied"], true, "{lied}");
    // Caught at its first group: what it had sent beyond lay on the way.
    assert!(liar.sent.load(Ordering::SeqCst) <= 4, "{:?} groups", liar.sent);
    assert!(dropped(&third.name).is_none_or(|line| line["lied"] == false));
    let status = puller.ask(&["status"]);
    assert_eq!(status["content"]["liars"], 1, "{status}");
    assert!(status["content"]["downloaded_bytes"].as_u64().unwrap() >= whole);

    // Who is paused hands out nothing; who pulled hands on.
    second.ask(&["pause"]);
    first.ask(&["pause"]);
    let last = Node::start(&home("e"), &["--ask-only", "--peer", &peer]);
    knows(&last, 1);
    let done = Pull::start(&last.home, &[&id]).next(&mut Vec::new(), |line| line["event"] == "done");
    assert_eq!(done["by_source"].as_array().unwrap().iter().filter(|s| s["bytes"] != 0).count(), 1, "{done}");
    assert_eq!(done["fetched_bytes"], whole);
    assert_eq!(first.ask(&["pause", "--off"])["paused"], false);
}

#[test]
fn a_pull_through_a_node_that_is_killed_goes_on_where_it_was() {
    let folder = TempDir::new().unwrap();
    let file = weights(folder.path(), 16);
    let (id, whole) = (id_of(&file), fs::metadata(&file).unwrap().len());
    let source = holder(&folder.path().join("a"), &file, &[]);
    let home = folder.path().join("b");
    let start = |rate: &str| {
        let node = Node::start(&home, &["--ask-only", "--peer", source.tcp(), "--download", rate]);
        knows(&node, 1);
        node
    };
    let mut node = start(&(whole / 4).to_string());
    let mut pull = Pull::start(&home, &[&id]);
    let there = pulled(&home, &id);
    until("half of the model", || disk(&there) >= whole / 2);
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    assert!(!pull.child.wait().unwrap().success(), "the caller hears that its node is gone");
    drop(node);
    let node = start("1GB");
    let done = Pull::start(&home, &[&id]).next(&mut Vec::new(), |line| line["event"] == "done");
    let fetched = done["fetched_bytes"].as_u64().unwrap();
    assert!(fetched > 0 && fetched <= whole * 6 / 10, "{fetched} of {whole} fetched after half was here");
    assert!(fs::read(&there).unwrap() == fs::read(&file).unwrap());
    drop(node);
}

#[test]
fn a_node_with_nothing_answers_at_once_and_comes_to_serve_its_layers() {
    const PROMPT: &str = "Tell me a story about an owl who learns to swim";
    let folder = TempDir::new().unwrap();
    let file = story(folder.path());
    let (id, whole) = (id_of(&file), fs::metadata(&file).unwrap().len());
    let path = file.to_str().unwrap();
    let home = |name: &str| folder.path().join(name);
    let alone = Shoal::new().json(["run", "--json", "-n", "24", "--model", path, PROMPT], "");

    // All but the last two have the file; no node serves layers 3..5. Only one shares.
    let asks = Node::start(&home("a"), &["--model", path, "--ask-only"]);
    let peer = asks.tcp().to_owned();
    let shares = shoal(&home("b")).args(["model", "share", path]).stdout(Stdio::null()).status().unwrap();
    assert!(shares.success());
    let holds = Node::start(&home("b"), &["--model", path, "--layers", "1..3,5..7", "--peer", &peer]);

    // So slow that nothing of it is here when the first prompt is answered.
    let slow = ["--model", "story", "--layers", "3..5", "--peer", &peer, "--download", "20kB"];
    let fresh = Node::start(&home("c"), &slow);
    let helper = Node::start(&home("d"), &["--model", path, "--layers", "3..5", "--peer", &peer]);
    knows(&fresh, 2);
    knows(&holds, 1);
    knows(&helper, 1);
    until("a node that serves what is called so", || {
        let peers = fresh.ask(&["peers"]);
        let mut models = peers["peers"].as_array().unwrap().iter().flat_map(|peer| peer["models"].as_array());
        models.any(|models| {
            models.iter().any(|model| model["name"] == "story" && model["layers"][0].is_string())
        })
    });
    let name = holds.ask(&["status"])["model"]["name"].as_str().unwrap().to_owned();
    // Who joins with --yes agreed that a node with the model reads prompts; a mode that is named is kept to.
    let named = ["run", "--via", "swarm", "--mode", "boomerang", "-n", "24", PROMPT];
    let refused = harness::output(shoal(&fresh.home).args(named)).unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("--mode open"), "{why}");
    let answer = fresh.ask(&["run", "--via", "swarm", "-n", "24", PROMPT]);
    assert_eq!(answer["ids"], alone["ids"], "{answer}");
    let status = fresh.ask(&["status"]);
    assert_eq!(status["model"]["loaded"].as_array().unwrap().len(), 0, "{status}");
    assert!(status["content"]["downloaded_bytes"].as_u64().unwrap() < whole / 2, "{status}");
    drop(fresh);
    // In order, so that no node counts on its layers any more.
    assert_eq!(helper.ask(&["leave"])["left"], true);

    let cap = (whole * 9 / 10).to_string();
    let sparse = Node::start(
        &home("e"),
        &["--model", &id, "--max-layers", "2", "--peer", &peer, "--disk", &cap, "--sessions", "1"],
    );
    let serving = sparse.wait_for("serving");
    assert_eq!(serving["model"]["serving"].as_array().unwrap(), &["3..5"], "{serving}");
    assert_eq!(serving["model"]["loaded"], serving["model"]["serving"]);
    assert!(serving["model"]["decode_ms_per_layer"].as_f64().unwrap() > 0.0, "{serving}");
    assert!(serving["model"]["read_bytes_per_s"].as_f64().unwrap() > 0.0, "{serving}");
    assert_eq!(serving["caps"]["sessions"], 1);
    let taken = disk(&pulled(&sparse.home, &id));
    assert!(taken < whole * 9 / 10, "{taken} of {whole} bytes on disk");
    asks.meets(2);
    let run = ["run", "--via", "swarm", "--mode", "boomerang", "--model", &name, "-n", "24", PROMPT];
    let mut answer = Value::Null;
    until("a route over the new layers", || {
        let output = harness::output(shoal(&asks.home).args(run).arg("--json")).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        answer = text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        output.status.success()
    });
    assert_eq!(answer["ids"], alone["ids"], "{answer}");
    let stages = answer["stages"].as_array().unwrap();
    assert!(
        stages.iter().any(|stage| stage["node"] == sparse.name.as_str() && stage["start"] == 3),
        "{answer}"
    );
    assert!(sparse.ask(&["status"])["served_positions"].as_u64().unwrap() >= 24);

    // A restart continues with what is here, without peers.
    let home = sparse.home.clone();
    drop(sparse);
    let again = Node::start(&home, &["--model", &id, "--max-layers", "2", "--peer", &peer]);
    let serving = again.wait_for("serving");
    assert_eq!(serving["model"]["serving"].as_array().unwrap(), &["3..5"], "{serving}");
    assert_eq!(serving["content"]["downloaded_bytes"], 0, "{serving}");
}

#[test]
fn the_first_layers_are_served_while_the_last_ones_come() {
    const PROMPT: &str = "Tell me a story about an owl who learns to swim";
    let folder = TempDir::new().unwrap();
    let file = story(folder.path());
    let (id, path) = (id_of(&file), file.to_str().unwrap());
    let home = |name: &str| folder.path().join(name);
    let alone = Shoal::new().json(["run", "--json", "-n", "96", "--model", path, PROMPT], "");

    // Layer 1 is held by no node that is fast.
    let asks = Node::start(&home("a"), &["--model", path, "--ask-only"]);
    let peer = asks.tcp().to_owned();
    let holds = Node::start(&home("b"), &["--model", path, "--layers", "2..7", "--peer", &peer]);
    // The rest comes from another one, when the first layer is served.
    let seeder = holder(&home("c"), &file, &["--upload", "100kB", "--peer", &peer]);
    let fresh = Node::start(&home("d"), &["--model", &id, "--layers", "1..4", "--peer", &peer]);
    let part = fresh.wait_for("serving_part");
    let serving = part["model"]["serving"].as_array().unwrap();
    assert!(serving[0].as_str().unwrap().starts_with("1..") && serving != &["1..4"], "{part}");
    assert!(part["fetching"]["total_bytes"].is_u64(), "the rest is on its way: {part}");

    let model = holds.ask(&["status"])["model"]["name"].as_str().unwrap().to_owned();
    let run = ["run", "--via", "swarm", "--mode", "boomerang", "--model", &model, "-n", "96", PROMPT];
    let ask = || -> Option<Value> {
        let output = harness::output(shoal(&asks.home).args(run).arg("--json")).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
        last.filter(|_| output.status.success())
    };
    let mut first = None;
    until("a route over the first layer", || {
        first = ask();
        first.is_some()
    });
    let computed = |answer: &Value| {
        assert_eq!(answer["ids"], alone["ids"], "{answer}");
        let stages = answer["stages"].as_array().unwrap();
        let there = stages.iter().find(|stage| stage["node"] == fresh.name.as_str());
        assert_eq!(there.unwrap_or(&Value::Null)["start"], 1, "{answer}");
    };
    computed(&first.unwrap());
    // Prompts that run while the node comes to hold more end where they began.
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut asked, started) = (0, Instant::now());
            while !over.load(Ordering::SeqCst) && started.elapsed() < PATIENCE {
                let answer = ask().expect("an answer");
                computed(&answer);
                asked += 1;
            }
            asked
        });
        let fast = holder(&home("e"), &file, &["--peer", &peer]);
        let whole = fresh.wait_for("serving");
        drop(fast);
        over.store(true, Ordering::SeqCst);
        println!("{} prompts meanwhile", asking.join().unwrap());
        assert_eq!(whole["model"]["serving"].as_array().unwrap(), &["1..4"], "{whole}");
        assert!(whole["fetching"].is_null(), "{whole}");
    });
    drop(seeder);
}

#[test]
fn a_code_brings_the_model_and_a_swarm_outlives_its_founder() {
    const PROMPT: &str = "Tell me a story about an owl who learns to swim";
    let folder = TempDir::new().unwrap();
    let file = story(folder.path());
    let (id, path) = (id_of(&file), file.to_str().unwrap());
    let home = |name: &str| folder.path().join(name);
    let alone = Shoal::new().json(["run", "--json", "-n", "16", "--model", path, PROMPT], "");
    let shares = shoal(&home("a")).args(["model", "share", path]).stdout(Stdio::null()).status().unwrap();
    assert!(shares.success());
    let mut founder = Node::start(&home("a"), &["--model", path, "--private"]);
    let code = |node: &Node| node.ask(&["invite"])["code"].as_str().unwrap().to_owned();

    // Nothing but the code: the model comes from who invites, and is served.
    let first = code(&founder);
    let member = Node::start(&home("b"), &[&first]);
    let serving = member.wait_for("serving");
    assert!(!serving["model"]["serving"].as_array().unwrap().is_empty(), "{serving}");
    assert!(fs::read(pulled(&member.home, &id)).unwrap() == fs::read(&file).unwrap());

    founder.child.kill().unwrap();
    founder.child.wait().unwrap();
    let second = code(&member);
    assert_ne!(first, second, "it names who can be reached");
    assert!(first.len() <= 320 && second.len() <= 320, "{} and {} characters", first.len(), second.len());
    let newcomer = Node::start(&home("c"), &[&second]);
    let serving = newcomer.wait_for("serving");
    assert!(!serving["model"]["serving"].as_array().unwrap().is_empty(), "{serving}");
    newcomer.meets(1);
    let answer = newcomer.ask(&["run", "--via", "swarm", "-n", "16", PROMPT]);
    assert_eq!(answer["ids"], alone["ids"], "{answer}");
}
