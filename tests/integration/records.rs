//! What a node keeps of its swarm for its owner: names of nodes, how it went, the steps of an answer, invites.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use harness::{binary, http, node::Node, prompt::Prompt};
use serde_json::{Value, json};
use tempfile::TempDir;

const QUESTION: &str = "Tell me a long story about a fox who finds a lantern in the snow.";

fn text(home: &std::path::Path, args: &[&str]) -> String {
    let output = harness::output(Command::new(binary()).args(args).arg("--home").arg(home)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The steps of an answer as `kind node`, where one is named.
fn steps(timeline: &Value) -> Vec<String> {
    let said = |step: &Value| {
        let node = step["node"].as_str().map_or_else(String::new, |node| format!(" {}", &node[..8]));
        format!("{}{node}", step["step"].as_str().unwrap())
    };
    timeline["steps"].as_array().unwrap().iter().map(said).collect()
}

fn tokens(line: &Value) -> u64 {
    line["completion_tokens"].as_u64().unwrap()
}

#[test]
fn a_node_remembers_names_days_and_the_steps_of_a_failover() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let mut first = Node::start(&home("a"), &["--layers", "1..7"]);
    let mut second = Node::start(&home("b"), &["--layers", "1..7", "--peer", first.tcp()]);
    let asks = Node::start(
        &home("c"),
        &["--ask-only", "--api", "127.0.0.1:0", "--peer", first.tcp(), "--peer", second.tcp()],
    );
    asks.meets(2);
    assert_eq!(http::ask(&asks, "GET", "/swarm/answers", &json!(null)).body["answers"], json!([]));
    let empty = http::ask(&asks, "GET", "/swarm/history", &json!(null)).body;
    assert_eq!(empty["samples"], json!([]), "nothing is invented before there is anything");
    assert!(text(&asks.home, &["status", "--history"]).starts_with("Nothing yet"));

    // A node is called something: here, on the page and in the terminal, and nowhere else.
    let named = json!({"node": first.name, "name": "attic", "color": "teal"});
    assert_eq!(http::ask(&asks, "POST", "/swarm/names", &named).body, named);
    assert_eq!(http::ask(&asks, "GET", "/swarm", &json!(null)).body["names"], json!([named]));
    let peers = asks.ask(&["peers"]);
    let called = |node: &Node| {
        let mut peers = peers["peers"].as_array().unwrap().iter();
        peers.find(|peer| peer["node"] == node.name.as_str()).unwrap()["called"].clone()
    };
    assert_eq!((called(&first), called(&second)), (json!("attic"), json!(null)), "{peers}");
    assert!(text(&asks.home, &["peers"]).contains("\"attic\""));
    // The terminal gives names, too: by the beginning of a node's digits, and by what it is called.
    let given = asks.ask(&["peers", "name", &second.name[..8], "cellar", "--color", "blue"]);
    assert_eq!(given, json!({"node": second.name, "name": "cellar", "color": "blue"}));
    let named = json!({"node": first.name, "name": "loft", "color": "teal"});
    assert_eq!(asks.ask(&["peers", "name", "attic", "loft"]), named);
    let names = || http::ask(&asks, "GET", "/swarm", &json!(null)).body["names"].clone();
    assert_eq!(names(), json!([given, named]));
    asks.ask(&["peers", "name", "cellar", "--clear"]);
    assert_eq!(names(), json!([named]));
    asks.ask(&["peers", "name", "loft", "attic"]);
    assert!(!first.ask(&["status"]).to_string().contains("attic"), "no other node hears of it");

    // A stage dies in the middle: the answer tells its steps.
    let mut prompt = Prompt::run(&asks.home, ["--mode", "boomerang", "-n", "48", QUESTION]);
    assert!(prompt.reaches(8));
    let victim = prompt.strangers(&asks.name)[0].clone();
    let other = if victim == first.name { second.name.clone() } else { first.name.clone() };
    let lost = if victim == first.name { &mut first } else { &mut second };
    lost.child.kill().unwrap();
    let line = prompt.ends();
    assert_eq!(line["faults"].as_array().map(Vec::len), Some(1), "{line}");
    let told = http::ask(&asks, "GET", "/swarm/answers", &json!(null)).body;
    let timeline = &told["answers"][0]["timeline"];
    assert_eq!((told["answers"].as_array().unwrap().len(), timeline), (1, &line["timeline"]));
    let said = steps(timeline);
    let token_of = |wanted: &str| {
        let mut steps = timeline["steps"].as_array().unwrap().iter();
        steps.find(|step| step["step"] == wanted).unwrap()["token"].as_u64().unwrap()
    };
    assert_eq!((token_of("leased"), token_of("first_token"), token_of("ended")), (0, 1, tokens(&line)));
    let place = |wanted: String| {
        said.iter().position(|step| *step == wanted).unwrap_or_else(|| panic!("{wanted} in {said:?}"))
    };
    let order = [
        place("leased".into()),
        place("first_token".into()),
        place(format!("lost {}", &victim[..8])),
        place(format!("took_over {}", &other[..8])),
        place("went_on".into()),
        place("ended".into()),
    ];
    assert!(order.is_sorted(), "{said:?}");
    let why = text(&asks.home, &["why"]);
    assert!(why.contains(&format!("{} is lost", &victim[..8])) && why.contains("takes over from"), "{why}");

    // The node stops, and what it wrote down says how it went.
    text(&asks.home, &["leave"]);
    let history: Value = serde_json::from_str(&text(&asks.home, &["status", "--history", "--json"])).unwrap();
    let sum = |of: &str| {
        let samples = history["samples"].as_array().unwrap().iter();
        samples.map(|sample| sample[of].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum("answers"), sum("faults")), (1, 1), "{history}");
    assert_eq!(sum("tokens"), tokens(&line), "{history}");
    let rates = history["samples"].as_array().unwrap().iter().filter_map(|sample| sample["tok_s"].as_f64());
    assert_eq!(rates.filter(|rate| *rate > 0.0).count(), 1, "{history}");
    assert!(text(&asks.home, &["status", "--history"]).lines().count() >= 3);
    for name in ["swarm-history", "node-names.json"] {
        let about = fs::metadata(asks.home.join(name)).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o600, "{name}");
        let bytes = fs::read(asks.home.join(name)).unwrap();
        let fox = bytes.windows(3).any(|part| part == b"fox");
        assert!(!fox, "{name} has no word of a prompt");
    }
}

#[test]
fn an_invite_over_the_api_is_the_one_of_the_terminal_and_lets_a_friend_in() {
    let folder = TempDir::new().unwrap();
    let node =
        Node::start(&folder.path().join("a"), &["--layers", "1..7", "--private", "--api", "127.0.0.1:0"]);
    let told = http::ask(&node, "GET", "/swarm/invite", &json!(null));
    let code = told.body["code"].as_str().unwrap();
    assert!(code.starts_with("shoal1"), "{code}");
    let rows = told.body["qr"].as_array().unwrap();
    assert!(rows.len() >= 21 && rows.iter().all(|row| row.as_str().unwrap().len() == rows.len()));
    // As a link, which the page shows.
    let link = format!("shoal:{code}");
    let friend = Node::start(&folder.path().join("b"), &["--ask-only", &link]);
    friend.meets(1);
}
