//! What who runs a node for months relies on: settings, the log's silence about prompts, doctor, status, manual pages.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary,
    collector::{Collector, Span},
    http,
    node::{Node, PATIENCE},
};
use serde_json::Value;
use tempfile::TempDir;

/// Runs a command with its own home and these variables.
fn with(home: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(args).env("SHOAL_HOME", home).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().unwrap()
}

fn last_json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_setting_comes_from_the_flag_else_the_environment_else_the_file() {
    let home = TempDir::new().unwrap();
    let show = |variables: &[(&str, &str)], extra: &[&str]| {
        let shown =
            last_json(&with(home.path(), variables, &[&["config", "show", "--json"], extra].concat()));
        let rows = shown["settings"].as_array().unwrap().clone();
        move |key: &str| {
            let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key}"));
            (row["value"].as_str().unwrap_or_default().to_owned(), row["source"].as_str().unwrap().to_owned())
        }
    };
    let row = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(show(&[], &[])("join.swarm"), row("shoal", "default"));
    fs::write(home.path().join("config.toml"), "threads = 1\n[join]\nswarm = \"of the file\"\n").unwrap();
    assert_eq!(show(&[], &[])("join.swarm"), row("of the file", "file"));
    assert_eq!(show(&[("SHOAL_SWARM", "of the env")], &[])("join.swarm"), row("of the env", "env"));
    let said = show(&[("SHOAL_SWARM", "of the env")], &["--", "join", "--swarm", "of the flag"]);
    assert_eq!(said("join.swarm"), row("of the flag", "flag"));
    assert_eq!(said("threads"), row("1", "file"));

    // A command is run with it, and a broken file stops every command that reads it, with the way out.
    let other = home.path().join("other.toml");
    fs::write(&other, "[run]\nmax_tokens = 3\n").unwrap();
    let other = other.to_str().unwrap();
    let ran = last_json(&with(home.path(), &[], &["run", "--config", other, "--json", "Tell me a story"]));
    assert_eq!(ran["ids"].as_array().unwrap().len(), 3);
    fs::write(home.path().join("config.toml"), "[join]\nmemroy = 3\n").unwrap();
    let refused = with(home.path(), &[], &["model", "list"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(error.contains("config.toml") && error.contains("did you mean \"join.memory\"?"), "{error}");
    for still in [&["config", "path"][..], &["completions", "bash"], &["model", "list", "--config", "none"]] {
        assert!(with(home.path(), &[], still).status.success(), "{still:?}");
    }
}

#[test]
fn every_command_is_in_the_manual_and_completed() {
    let shoal = Shoal::new();
    let folder = shoal.home().join("man");
    let made = shoal.json(["man", "--json", folder.to_str().unwrap()], "");
    assert!(made["pages"].as_u64().unwrap() > 30, "{made}");
    let page = fs::read_to_string(folder.join("shoal-join.1")).unwrap();
    assert!(page.contains("memory") && page.contains("SHOAL_SWARM"), "{page}");
    assert!(!folder.join("shoal-worker.1").exists(), "the worker is not for people");
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef shoal"), ("fish", "complete -c shoal")] {
        let script = shoal.ok(["completions", shell], "");
        assert!(script.contains(part) && script.contains("doctor"), "{shell}");
    }
}

/// Lets a node end, which sends what is left, and gives its spans once there is one of that name.
fn spans(mut node: Node, to: &Collector, name: &str) -> Vec<Span> {
    drop(node.stdin.take());
    let began = Instant::now();
    loop {
        let spans = to.spans();
        if spans.iter().any(|span| span.name == name) {
            return spans;
        }
        assert!(began.elapsed() < PATIENCE, "no span {name} in {PATIENCE:?}: {spans:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The only span of that name, and the spans right below it.
fn family<'a>(spans: &'a [Span], name: &str) -> (&'a Span, Vec<&'a Span>) {
    let mut named = spans.iter().filter(|span| span.name == name);
    let (parent, more) = (named.next().unwrap(), named.next());
    assert!(parent.parent.is_empty() && more.is_none(), "{parent:?} {more:?}");
    (parent, spans.iter().filter(|span| span.parent == parent.id && span.trace == parent.trace).collect())
}

/// Two nodes that report everything they can, to a log and to a collector of traces; what they say of a prompt is when and
/// how much, not what or whose.
#[test]
fn what_is_reported_of_a_prompt_has_hops_and_nothing_of_the_prompt() {
    let folder = TempDir::new().unwrap();
    let (of_requester, of_stage) = (Collector::new(), Collector::new());
    let start = |name: &str, to: &Collector, args: &[&str]| {
        let home = folder.path().join(name);
        fs::create_dir_all(&home).unwrap();
        let log = File::create(home.join("log")).unwrap();
        let mut command = Command::new(binary());
        command.env("SHOAL_LOG", "trace").env("SHOAL_OTLP", &to.url).stderr(log);
        Node::launch(command, &home, &[&["--loopback"], args].concat())
    };
    let serves = start("serves", &of_stage, &["--layers", "1..7"]);
    let asks = start("asks", &of_requester, &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    const PROMPT: &str = "Tell me a story about Xanthippe and her quokka";
    let done = asks.ask(&["run", "--via", "swarm", "-n", "12", PROMPT]);
    assert_eq!(done["stages"].as_array().unwrap().len(), 3, "{done}");
    let log = |node: &Node| fs::read_to_string(node.home.join("log")).unwrap();
    let (requester, stage) = (log(&asks), log(&serves));
    assert!(requester.contains("prompt{") && requester.contains("hop{node="), "{requester}");
    assert!(requester.contains("answered"), "{requester}");
    assert!(stage.contains("requester=requester-") && stage.contains("hop{layer=1"), "{stage}");

    let (requester_key, stage_key) = (asks.name.clone(), serves.name.clone());
    let at_requester = spans(asks, &of_requester, "prompt");
    let at_stage = spans(serves, &of_stage, "serve");
    let (prompt_span, hops) = family(&at_requester, "prompt");
    let said = |span: &Span, key: &str| span.attributes.get(key).cloned().unwrap_or_default();
    assert_eq!(said(prompt_span, "service.name"), "shoal");
    assert_eq!(said(prompt_span, "tokens"), "12");
    assert!(done["session"].as_str().unwrap().starts_with(&said(prompt_span, "session")));
    // Each of three stages computes the prompt and eleven tokens more.
    for (node, layers) in [(&requester_key, "0..1"), (&stage_key, "1..7"), (&requester_key, "7..8")] {
        let of_stage = hops.iter().filter(|hop| hop.name == "hop" && said(hop, "layers") == layers);
        let of_stage: Vec<&&Span> = of_stage.collect();
        // A frame that a busy machine let wait for long is sent again.
        let positions: BTreeSet<String> = of_stage.iter().map(|hop| said(hop, "from")).collect();
        assert_eq!(positions.len(), 12, "{layers}: {hops:?}");
        assert!(of_stage.iter().all(|hop| node.starts_with(&said(hop, "node")) && hop.took_ns > 0));
    }
    let (serve, served) = family(&at_stage, "serve");
    assert_eq!(said(serve, "session"), said(prompt_span, "session"));
    assert!(said(serve, "requester").starts_with("requester-"));
    let served = served.iter().filter(|hop| hop.name == "hop" && said(hop, "layer") == "1");
    let positions: BTreeSet<String> = served.map(|hop| said(hop, "from")).collect();
    assert_eq!(positions.len(), 12);

    let ids: Vec<String> = done["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let prompt: Vec<String> = Shoal::new()
        .json(["tokenize", "--json", PROMPT], "")
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    let answer = done["text"].as_str().unwrap();
    // Strings stand in the protobuf as they are; numbers are looked for in what it decodes to.
    let traces = |to: &Collector, spans: &[Span]| {
        let raw: Vec<String> =
            to.bodies().iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect();
        format!("{} {spans:?}", raw.join(" "))
    };
    let (traced, stage_traced) = (traces(&of_requester, &at_requester), traces(&of_stage, &at_stage));
    for text in [&requester, &stage, &traced, &stage_traced] {
        for secret in ["Xanthippe", "quokka", "story about", answer.trim()] {
            assert!(!secret.is_empty() && !text.contains(secret), "{secret:?} is reported");
        }
        for three in ids.windows(3).chain(prompt.windows(3)) {
            for between in [", ", ",", " "] {
                let secret = three.join(between);
                assert!(!text.contains(&secret), "token ids {secret} are reported");
            }
        }
    }
    for text in [&stage, &stage_traced] {
        assert!(!text.contains(&requester_key), "the stage reports the requester's key");
    }
}

#[test]
fn doctor_writes_a_report_that_names_no_person() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("a-very-private-home");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("config.toml"), "[join]\nswarm = \"secret-friends\"\n").unwrap();
    let node = Node::start(&home, &["--layers", "1..4"]);
    let report = folder.path().join("report.json");
    let output = with(&home, &[], &["doctor", "--report", report.to_str().unwrap()]);
    // Alone, the missing peers need attention.
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&report).unwrap();
    let said: Value = serde_json::from_str(&text).unwrap();
    let checks: Vec<&str> =
        said["checks"].as_array().unwrap().iter().map(|check| check["check"].as_str().unwrap()).collect();
    for check in [
        "clock",
        "processor",
        "numerics",
        "devices",
        "memory",
        "disk",
        "files",
        "key",
        "settings",
        "node",
        "ports",
        "peers",
    ] {
        assert!(checks.contains(&check), "{check} is missing in {checks:?}");
    }
    assert_eq!(said["settings_changed"]["join.swarm"], "file");
    let mut secrets = vec!["a-very-private-home", "secret-friends", "127.0.0.1", "/ip4", node.name.as_str()];
    let user = std::env::var("USER").unwrap_or_default();
    if user.len() > 4 {
        secrets.push(&user);
    }
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

/// The words of every query below a board's `panels`.
fn queries(board: &Value, all: &mut Vec<String>) {
    match board {
        Value::Object(members) => {
            all.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| queries(member, all));
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, all)),
        _ => {}
    }
}

#[test]
fn the_board_asks_for_figures_that_a_node_tells() {
    let home = TempDir::new().unwrap();
    let node = Node::start(home.path(), &["--api", "127.0.0.1:0"]);
    node.wait_for("answering");
    let body = serde_json::json!({"prompt": "Once", "max_tokens": 4});
    let answer = http::ask(&node, "POST", "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = http::metrics(&node);
    let lines = told.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeSet<&str> = lines.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let board = include_str!("../../node/packaging/grafana.json");
    let mut asked = Vec::new();
    queries(&serde_json::from_str(board).unwrap(), &mut asked);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names: BTreeSet<&str> = asked
        .iter()
        .flat_map(|query| query.split(|c| !is_word(c)))
        .filter(|word| word.starts_with("shoal_"))
        .collect();
    assert!(names.len() > 8, "{names:?}");
    let missing: Vec<_> = names.difference(&known).collect();
    assert!(missing.is_empty(), "no node tells {missing:?}; it tells {known:?}");
    for label in ["dialect", "status", "resource"] {
        assert!(told.contains(&format!("{label}=\"")), "no figure has a {label}: {told}");
    }
}

#[test]
fn status_is_followed_line_by_line_where_there_is_no_terminal() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--layers", "1..4"]);
    let mut watch = Command::new(binary())
        .args(["status", "--watch", "--json", "--every", "0.1", "--home"])
        .arg(&node.home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines().map_while(Result::ok).take(3);
    let looks: Vec<Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(looks.len(), 3);
    for look in &looks {
        assert_eq!(look["node"], node.name.as_str());
        assert!(look["memory_bytes"].as_u64().unwrap() > 1 << 20, "{look}");
        assert_eq!(look["positions_per_s"], 0.0);
    }
    assert!(looks[0]["uptime_s"].as_f64() < looks[2]["uptime_s"].as_f64());
    // It ends with its reader and not an hour later, when the next line is due.
    let mut watch = Command::new(binary())
        .args(["status", "--watch", "--every", "3600", "--home"])
        .arg(&node.home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut lines = BufReader::new(watch.stdout.take().unwrap());
    lines.read_line(&mut first).unwrap();
    assert!(first.contains("peers"), "{first}");
    assert!(watch.try_wait().unwrap().is_none(), "it follows");
    drop(lines);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let ended = loop {
        match watch.try_wait().unwrap() {
            None if std::time::Instant::now() < end => {
                std::thread::sleep(std::time::Duration::from_millis(50))
            }
            ended => break ended,
        }
    };
    let _ = watch.kill();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
