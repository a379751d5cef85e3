//! Drafts change how many passes an answer takes, and no token of it.
//!
//! `SHOAL_FIGURES=1` also measures what they bring, through nodes that are some way apart: `node/docs/benchmarks.md` says how.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use harness::{
    Shoal, data, http,
    node::Node,
    prompt::Prompt,
    root,
    wires::{Mood, Wires},
};
use serde_json::{Value, json};
use shard::{
    gguf::Gguf,
    quant,
    synthetic::{self, Shape},
};
use tempfile::TempDir;

/// A text that repeats itself, so that minnow does too.
const REPEATS: &str =
    "The fox sat by the fire. The owl sat by the fire. The bear sat by the fire. The fox sat by the";

fn ids(line: &Value) -> &Vec<Value> {
    line["ids"].as_array().unwrap_or_else(|| panic!("{line}"))
}

/// The owner agrees that strangers compute.
fn agree(node: &Node) {
    let agreed = http::ask(node, "POST", "/swarm/consent", &json!({"mode": "boomerang", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
}

/// {greedy, sampled} x {raw, c8}, with each drafter and with none: the same ids, and on one machine too. With `SHOAL_DRAFT` every
/// draft is sent, whatever it costs.
#[test]
fn drafts_change_no_token() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let api = ["--ask-only", "--api", "127.0.0.1:0", "--draft", "lookup,minnow"];
    let asks = Node::start_with(&home("a"), &api, &[("SHOAL_DRAFT", "5:1")]);
    let serve =
        |name: &str, layers: &str| Node::start(&home(name), &["--layers", layers, "--peer", asks.tcp()]);
    let _serve = [serve("b", "1..4"), serve("c", "4..7")];
    asks.meets(2);
    agree(&asks);

    let mut proposed = 0;
    for sampled in [&[][..], &["--temperature", "0.8", "--top-p", "0.95", "--seed", "7"]] {
        for wire in [&["--wire", "raw"][..], &["--wire", "c8"]] {
            let ask = |draft: &str| {
                let args =
                    ["run", "--via", "swarm", "--raw", "-n", "24", "--verify", "off", "--draft", draft];
                asks.ask(&[&args, sampled, wire, &[REPEATS]].concat())
            };
            let plain = ask("off");
            assert!(plain["drafts"].is_null() && plain["faults"] == json!([]), "{plain}");
            let drafted = ask("lookup");
            assert_eq!(ids(&drafted), ids(&plain), "{wire:?} {sampled:?}: {drafted}");
            proposed += drafted["drafts"]["proposed"].as_u64().unwrap_or(0);
            assert_eq!(asks.ask(&["why"])["drafts"], drafted["drafts"]);
            // A model that drafts for itself is always right where nothing is rounded, whatever is drawn.
            let itself = ask("minnow");
            assert_eq!(ids(&itself), ids(&plain), "{wire:?} {sampled:?}: {itself}");
            let count = |what: &str| itself["drafts"][what].as_u64().unwrap_or(0);
            assert!(count("proposed") > 10, "{itself}");
            // What was drafted behind the end of a text is neither right nor wrong.
            if wire == ["--wire", "raw"] && ids(&itself).len() == 24 {
                assert_eq!(count("right"), count("proposed"), "{itself}");
            }
            if wire == ["--wire", "raw"] && sampled.is_empty() {
                let args = ["run", "--json", "--raw", "-n", "24", "--draft", "off"];
                let alone = Shoal::new().json([&args, sampled, &[REPEATS]].concat(), "");
                assert_eq!(ids(&alone), ids(&plain));
            }
        }
    }
    assert!(proposed > 20, "{proposed} tokens drafted");

    // A form forces names of members: few passes, and the text that comes without drafts.
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["favorite_animal", "number_of_legs"],
        "properties": {"favorite_animal": {"enum": ["fox", "bear"]}, "number_of_legs": {"type": "integer", "minimum": 0, "maximum": 9}}});
    let form = |draft: &str| {
        let body = json!({"messages": [{"role": "user", "content": "Tell me of an animal."}], "seed": 3, "mode": "boomerang",
            "max_tokens": 60, "draft": draft,
            "response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}});
        http::ask(&asks, "POST", "/v1/chat/completions", &body).body
    };
    assert_eq!(form("grammar,minnow")["choices"], form("off")["choices"]);
    let (plain, drafted) = (form("off"), form("grammar"));
    assert_eq!(drafted["choices"], plain["choices"], "{drafted} {plain}");
    let drafts = &drafted["shoal"]["drafts"];
    assert!(drafts["right"].as_u64() > Some(4) && drafts["by"] == json!(["grammar"]), "{drafted}");
    assert!(drafts["tokens_per_pass"].as_f64() > Some(1.5), "{drafted}");
    let refused = form("eagle");
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("draft") && why.contains("lookup, grammar and head"), "{refused}");
}

/// Alone, too: no token is another one, whatever drafts, and a conversation goes on from what it kept. With `SHOAL_DRAFT` every
/// draft is sent.
#[test]
fn drafts_alone_change_no_token() {
    let shoal = Shoal::new();
    let run = |draft: &str, more: &[&str]| {
        let args = ["run", "--json", "--raw", "-n", "40", "--draft", draft];
        shoal.json_in([&args, more, &[REPEATS]].concat(), "", &[("SHOAL_DRAFT", "5:1")])
    };
    let mut proposed = 0;
    for more in [&[][..], &["--temperature", "0.8", "--top-p", "0.95", "--seed", "7", "--logprobs", "2"]] {
        let (plain, drafted) = (run("off", more), run("lookup", more));
        assert!(plain["drafts"].is_null(), "{plain}");
        assert_eq!(ids(&drafted), ids(&plain), "{drafted}");
        proposed += drafted["drafts"]["proposed"].as_u64().unwrap_or(0);
    }
    assert!(proposed > 20, "{proposed} tokens drafted");
    let chat = |draft: &str| {
        let args = ["chat", "--json", "-n", "30", "--draft", draft];
        shoal.json_in(args, "Tell me of the fox and the fox.\nAnd of the fox?\n", &[("SHOAL_DRAFT", "5:1")])
    };
    let (plain, drafted) = (chat("off"), chat("lookup"));
    assert_eq!(ids(&drafted), ids(&plain));
    assert!(plain["reused_tokens"].as_u64() > Some(30), "{plain}");
    assert_eq!(drafted["reused_tokens"], plain["reused_tokens"]);
}

/// The layer that a model has for it, without being asked: its weights are random, so most of its guesses are wrong, and no token
/// is another one.
#[test]
fn the_layer_of_the_model_itself_changes_no_token() {
    let model = data("mtp/qwen35.gguf");
    let run = |draft: &str, more: &[&str]| {
        let args =
            ["run", "--json", "--raw", "-n", "40", "--model", model.to_str().unwrap(), "--draft", draft];
        Shoal::new().json_in([&args, more, &[REPEATS]].concat(), "", &[("SHOAL_DRAFT", "5:1")])
    };
    for more in [&[][..], &["--temperature", "0.8", "--top-p", "0.95", "--seed", "7", "--logprobs", "2"]] {
        let plain = run("off", more);
        for (draft, by) in [("head", json!(["head"])), ("auto", json!(["lookup", "head"]))] {
            let drafted = run(draft, more);
            assert_eq!(ids(&drafted), ids(&plain), "{drafted}");
            assert_eq!(drafted["drafts"]["by"], by, "{drafted}");
            assert!(drafted["drafts"]["proposed"].as_u64() > Some(20), "{drafted}");
        }
    }
    // Through a swarm the other stages go back, too, and nothing is sent again: what recurs goes back to its last pass, whose inputs
    // are kept.
    let folder = TempDir::new().unwrap();
    let start = |name: &str, args: &[&str]| {
        let args = [&["--model", model.to_str().unwrap()], args].concat();
        Node::start_with(&folder.path().join(name), &args, &[("SHOAL_DRAFT", "5:1")])
    };
    let asks = start("a", &["--ask-only", "--api", "127.0.0.1:0"]);
    let _serve = [
        start("b", &["--layers", "1..2", "--peer", asks.tcp()]),
        start("c", &["--layers", "2..3", "--peer", asks.tcp()]),
    ];
    asks.meets(2);
    agree(&asks);
    for sampled in [&[][..], &["--temperature", "0.8", "--seed", "7"]] {
        let ask = |draft: &str| {
            let args = ["run", "--via", "swarm", "--raw", "-n", "40", "--draft", draft];
            asks.ask(&[&args, sampled, &[REPEATS]].concat())
        };
        let plain = ask("off");
        for draft in ["head", "lookup,head"] {
            let drafted = ask(draft);
            assert_eq!(ids(&drafted), ids(&plain), "{drafted}");
            assert_eq!(drafted["faults"], json!([]), "{drafted}");
            assert!(drafted["drafts"]["proposed"].as_u64() > Some(20), "{drafted}");
            assert!(
                drafted["drafts"]["proposed"].as_u64() > drafted["drafts"]["right"].as_u64(),
                "{drafted}"
            );
            let why = asks.ask(&["why"]).to_string();
            assert!(!why.contains("replay"), "{why}");
        }
    }
}

/// A model of random weights that has the embedded model's vocabulary, or another one.
fn draft_model(folder: &Path, speaks: bool) -> PathBuf {
    let path = folder.join(if speaks { "babbles.gguf" } else { "other.gguf" });
    let tiny = synthetic::shape("tiny").unwrap();
    let shape = Shape { layers: 1, vocab: 2048, ..tiny.clone() };
    // The other one has as many tokens, and others.
    let speaker = match speaks {
        true => root().join("shard/minnow/minnow.gguf"),
        false => data("families/qwen2.gguf"),
    };
    let speaker = Gguf::open(speaker).unwrap();
    shape.write_speaking(&path, &quant::Q8_0, 3, speaker.metadata()).unwrap();
    path
}

/// A draft model of the same vocabulary changes no token, however wrong it is; one of another vocabulary is refused, alone and
/// by a node. With `SHOAL_DRAFT` every draft is sent.
#[test]
fn a_draft_model_changes_no_token() {
    let folder = TempDir::new().unwrap();
    let babbles = draft_model(folder.path(), true);
    let babbles = babbles.to_str().unwrap();
    let shoal = Shoal::new();
    let run = |draft: &str, more: &[&str]| {
        let args = ["run", "--json", "--raw", "-n", "24", "--draft", draft];
        shoal.json_in([&args, more, &[REPEATS]].concat(), "", &[("SHOAL_DRAFT", "5:1")])
    };
    for more in [&[][..], &["--temperature", "0.8", "--top-p", "0.95", "--seed", "7"]] {
        let plain = run("off", more);
        let count = |line: &Value, what: &str| line["drafts"][what].as_u64().unwrap_or(0);
        let itself = run("minnow", more);
        assert_eq!(ids(&itself), ids(&plain), "{itself}");
        assert_eq!(itself["drafts"]["by"], json!(["model"]));
        assert!(count(&itself, "proposed") > 10, "{itself}");
        if ids(&itself).len() == 24 {
            assert_eq!(count(&itself, "right"), count(&itself, "proposed"), "{itself}");
        }
        let wrong = run(&format!("lookup,{babbles}"), more);
        assert_eq!(ids(&wrong), ids(&plain), "{wrong}");
        assert!(count(&wrong, "right") < count(&wrong, "proposed"), "{wrong}");
    }
    // Without `SHOAL_DRAFT` it is dropped where it does not pay, and no token is another one then, either.
    let args = ["run", "--json", "--raw", "-n", "24", "--draft"];
    let (plain, drafted) = (
        shoal.json([&args[..], &["off", REPEATS]].concat(), ""),
        shoal.json([&args[..], &[babbles, REPEATS]].concat(), ""),
    );
    assert_eq!(ids(&drafted), ids(&plain), "{drafted}");

    // A tokenizer of another family.
    let other = draft_model(folder.path(), false);
    let other = other.to_str().unwrap();
    let (code, why) = shoal.fails(["run", "--draft", other, "Hello"], "");
    assert!(code != 0 && why.contains("their vocabularies differ"), "{why}");
    let join =
        ["join", "--loopback", "--json", "--yes", "--until-stdin-closes", "--threads", "1", "--draft", other];
    let (code, why) = shoal.fails(join, "");
    assert!(code != 0 && why.contains("their vocabularies differ"), "{why}");
}

/// A head that learned from few answers changes no token, alone (`run`, `serve`) and through a swarm that loses a node in the middle; one
/// of another model is refused, and so is one where nothing drafts. With `SHOAL_DRAFT` every draft is sent.
#[test]
fn a_draft_head_changes_no_token() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let (head, shoal) = (home("minnow.draft.gguf"), Shoal::new());
    let head = head.to_str().unwrap();
    const PROMPT: &str = "Tell me a story about a bear.";
    let prompts = home("prompts.txt");
    let others =
        "Tell me a story about a fox.\n\nTell me a story about an owl.\nTell me a story about a hen.\n";
    std::fs::write(&prompts, format!("{others}{PROMPT}\n")).unwrap();
    let few = ["--answer-tokens", "9000", "--width", "64", "--vocabulary", "512", "--epochs", "40"];
    let distill = ["distill", "--output", head, "--json"];
    let made = shoal.json([&distill[..], &few, &["--prompts", prompts.to_str().unwrap()]].concat(), "");
    assert!(made["tokens"].as_u64() >= Some(9000) && made["right"][0].as_f64() > Some(0.1), "{made}");
    let (code, why) = shoal.fails(distill, "");
    assert!(code != 0 && why.contains("exists"), "{why}");

    let every = [("SHOAL_DRAFT", "5:1")];
    let count = |line: &Value, what: &str| line["drafts"][what].as_u64().unwrap_or(0);
    for more in [&[][..], &["--temperature", "0.8", "--top-p", "0.95", "--seed", "7"]] {
        let run = |draft: &[&str]| {
            let args = ["run", "--json", "-n", "40"];
            shoal.json_in([&args, more, draft, &[PROMPT]].concat(), "", &every)
        };
        let (plain, drafted) = (run(&["--draft", "off"]), run(&["--draft", "head", "--draft-head", head]));
        assert_eq!(ids(&drafted), ids(&plain), "{drafted}");
        assert_eq!(drafted["drafts"]["by"], json!(["head"]));
        assert!(count(&drafted, "proposed") > 10, "{drafted}");
        assert!(!more.is_empty() || count(&drafted, "right") > 3, "{drafted}");
    }

    let draft = ["--ask-only", "--api", "127.0.0.1:0", "--draft-head", head];
    let asks = Node::start_with(&home("a"), &draft, &every);
    let serve =
        |name: &str, layers: &str| Node::start(&home(name), &["--layers", layers, "--peer", asks.tcp()]);
    let (_b, mut twins) = (serve("b", "1..4"), [serve("c", "4..7"), serve("d", "4..7")]);
    asks.meets(3);
    agree(&asks);
    for sampled in [&[][..], &["--temperature", "0.8", "--seed", "7"]] {
        let ask = |draft: &str| {
            let args = ["run", "--via", "swarm", "-n", "60", "--verify", "off", "--draft", draft];
            asks.ask(&[&args, sampled, &[PROMPT]].concat())
        };
        let (plain, drafted) = (ask("off"), ask("head"));
        assert_eq!(ids(&drafted), ids(&plain), "{drafted}");
        assert!(count(&drafted, "proposed") > 10, "{drafted}");
    }
    let args = ["-n", "120", "--verify", "off", "--draft", "head", PROMPT];
    let mut prompt = Prompt::run(&asks.home, args);
    while prompt.tokens.len() < 15 && prompt.step() {}
    let route = prompt.route.to_string();
    let dies = twins.iter_mut().find(|node| route.contains(&node.name)).unwrap_or_else(|| panic!("{route}"));
    dies.child.kill().unwrap();
    while prompt.step() {}
    let (last, plain) = (
        prompt.last.take().unwrap(),
        asks.ask(&["run", "--via", "swarm", "-n", "120", "--draft", "off", PROMPT]),
    );
    assert_eq!(ids(&last), ids(&plain), "{last}");
    assert!(count(&last, "proposed") > 10, "{last}");

    let (code, why) = shoal
        .fails(["run", "--draft-head", root().join("shard/minnow/minnow.gguf").to_str().unwrap(), "Hi"], "");
    assert!(code != 0 && why.contains("no draft head"), "{why}");
    let other = data("families/qwen2.gguf");
    let (code, why) =
        shoal.fails(["run", "--model", other.to_str().unwrap(), "--draft-head", head, "Hi"], "");
    assert!(code != 0 && why.contains("another model"), "{why}");
    let (code, why) = shoal.fails(["eval", "--tokens", "1", "--draft-head", head], "");
    assert!(code != 0 && why.contains("--draft-head is for"), "{why}");
}

/// `shoal chat --via swarm` is answered by the node that runs here, which keeps what a conversation has computed.
#[test]
fn a_conversation_through_the_swarm_goes_on_from_what_was_kept() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let asks = Node::start(&home("a"), &["--ask-only", "--api", "127.0.0.1:0"]);
    let _serves = Node::start(&home("b"), &["--layers", "1..7", "--peer", asks.tcp()]);
    asks.meets(1);
    agree(&asks);
    let turns = "Tell me a story about a fox.\nWho was in it?\n";
    let args = ["chat", "--json", "-n", "24", "--home", asks.home.to_str().unwrap()];
    let shoal = Shoal::new();
    let alone = shoal.ok(["chat", "--json", "-n", "24"], turns);
    let through = shoal.ok([&args[..], &["--via", "swarm"]].concat(), turns);
    let answers = |text: &str| -> Vec<Value> {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == "done").collect()
    };
    let (alone, through) = (answers(&alone), answers(&through));
    assert_eq!((alone.len(), through.len()), (2, 2));
    for (alone, through) in alone.iter().zip(&through) {
        assert_eq!(ids(through), ids(alone));
    }
    assert!(through[1]["cached_tokens"].as_u64() > Some(20), "{}", through[1]);
    let (code, why) = Shoal::new().fails(["chat", "--via", "swarm"], turns);
    assert!(code == 2 && why.contains("no node runs here"), "{why}");
}

/// Prompts of the figures: what they are called, the prompt, and the form of the answer.
fn figures() -> Vec<(&'static str, String, Option<Value>)> {
    let code = (0..8).map(|n| format!(
        "def area_{n}(width, height):\n    \"\"\"Return the area of rectangle {n}.\"\"\"\n    result = width * height\n    return result\n\n"
    ));
    let code: String = code.collect();
    let schema = json!({"type": "object", "additionalProperties": false,
        "required": ["customer_identifier", "delivery_address", "requested_delivery_window", "contains_fragile_items"],
        "properties": {
            "customer_identifier": {"type": "integer", "minimum": 0, "maximum": 999},
            "delivery_address": {"type": "object", "additionalProperties": false, "required": ["country_of_destination", "postal_code"],
                "properties": {"country_of_destination": {"enum": ["France", "Germany", "Spain"]}, "postal_code": {"type": "integer", "minimum": 0, "maximum": 99999}}},
            "requested_delivery_window": {"enum": ["morning", "afternoon", "evening"]},
            "contains_fragile_items": {"type": "boolean"}}});
    // None of these is among the prompts of `shoal distill`.
    let prose = [
        "Tell me a story about a fox who finds a lantern in the snow.",
        "Why is the sky blue, and why is it red in the evening?",
        "Describe what two astronauts talk about on their way to Mars.",
        "What should I pack for a hike of three days in autumn, and why?",
        "Write about the life of an inventor who was never famous.",
    ];
    let prose = prose.into_iter().map(|prompt| ("prose", prompt.to_owned(), None));
    prose.chain([
        (
            "summary",
            format!(
                "Summarize in a few sentences:\n\n{}",
                include_str!("../../node/docs/privacy.md").chars().take(2_000).collect::<String>()
            ),
            None,
        ),
        (
            "code edit",
            format!(
                "Rename the variable `result` to `area` in this file and print the whole file again.\n\n```python\n{code}```"
            ),
            None,
        ),
        ("JSON", "Write the delivery order of customer 42, who lives in Paris.".into(), Some(schema)),
    ])
    .collect()
}

/// An answer through the API of `asks`: ids are not shown there, so the text, and the report.
fn answer(asks: &Node, prompt: &str, form: Option<&Value>, draft: &str) -> (String, Value) {
    let mut body = json!({"messages": [{"role": "user", "content": prompt}], "seed": 1, "temperature": 0, "mode": "boomerang",
        "verify": "none", "shadow": "none", "max_tokens": 96, "draft": draft});
    if let Some(form) = form {
        body["response_format"] =
            json!({"type": "json_schema", "json_schema": {"name": "order", "schema": form}});
    }
    let said = http::ask(asks, "POST", "/v1/chat/completions", &body).body;
    let text = said["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{said}"));
    (text.to_owned(), said["shoal"].clone())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn figures_of_drafts() {
    if std::env::var_os("SHOAL_FIGURES").is_none() {
        println!(
            "skipped: SHOAL_FIGURES=1 measures, and prints what it measured; SHOAL_MODEL and SHOAL_HEAD name .gguf files, \
             SHOAL_DELAYS=0,50,100 milliseconds of one way"
        );
        return;
    }
    let model = std::env::var("SHOAL_MODEL").unwrap_or_else(|_| "minnow".into());
    let layers: u32 = std::env::var("SHOAL_LAYERS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let runs: usize = std::env::var("SHOAL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let head = std::env::var("SHOAL_HEAD").unwrap_or_default();
    let head = if head.is_empty() { Vec::new() } else { vec!["--draft-head", &head] };
    println!(
        "| one way | text | no drafts, tok/s | drafts, tok/s | ratio | tokens a pass | right of drafted |\n|---|---|---|---|---|---|---|"
    );
    let delays = std::env::var("SHOAL_DELAYS").unwrap_or_else(|_| "0,50,100".into());
    for ms in delays.split(',').map(|ms| ms.parse().expect("SHOAL_DELAYS has milliseconds")) {
        // Wires are late from the start: a node that is suddenly slower seems dead and is dialed once more, beside the wire.
        let (wires, folder) = (Wires::new(), TempDir::new().unwrap());
        wires.set(if ms == 0 { Mood::Open } else { Mood::Late(Duration::from_millis(ms)) });
        let start = |name: &str, args: &[&str]| {
            let common = ["--model", &model, "--listen", "/ip4/127.0.0.1/tcp/0", "--no-discovery"];
            Node::start(&folder.path().join(name), &[&common, args].concat())
        };
        let asks = start("a", &[&["--ask-only", "--api", "127.0.0.1:0"][..], &head].concat());
        let half = layers / 2;
        let (first, second) = (format!("1..{half}"), format!("{half}..{}", layers - 1));
        let to = |from: &'static str, name: &'static str, node: &Node| {
            super::delay::wire(&wires, from, name, node)
        };
        let b = start("b", &["--layers", &first, "--peer", &to("b", "a", &asks)]);
        let _c =
            start("c", &["--layers", &second, "--peer", &to("c", "a", &asks), "--peer", &to("c", "b", &b)]);
        asks.meets(2);
        b.meets(1);
        agree(&asks);
        super::delay::settle(&asks, "boomerang");
        for (name, prompt, form) in figures() {
            let (mut plain, mut drafted, mut drafts) = (Vec::new(), Vec::new(), Value::Null);
            for _ in 0..runs {
                let (text, report) = answer(&asks, &prompt, form.as_ref(), "off");
                plain.push(report["tok_s"].as_f64().unwrap());
                let (again, report) = answer(&asks, &prompt, form.as_ref(), "auto");
                assert_eq!(again, text, "drafts change no token");
                drafted.push(report["tok_s"].as_f64().unwrap());
                drafts = report["drafts"].clone();
            }
            let (plain, drafted) = (median(plain), median(drafted));
            println!(
                "| {ms} ms | {name} | {plain:.2} | {drafted:.2} | {:.2} | {:.2} | {} of {} |",
                drafted / plain,
                drafts["tokens_per_pass"].as_f64().unwrap_or(1.0),
                drafts["right"],
                drafts["proposed"]
            );
        }
    }
}
