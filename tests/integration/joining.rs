//! What a person may expect of "join a swarm with one command", point by point, on real processes and sockets.
//!
//! | point | where |
//! |---|---|
//! | 1 one command, no questions, no rights, nothing installed | [`one_command_is_enough`] |
//! | 2 says what it is, how it is reached, who is there; the first prompt needs no weights | [`it_says_who_it_is_and_how_it_is_reached`], [`the_first_prompt_of_a_fresh_node_needs_no_weights`], [`the_api_answers_before_there_is_anything_to_answer_with`] |
//! | 3 never more than was said; leaving finishes what runs | [`it_says_what_it_takes_and_leaves_in_order`]; disk in `pull.rs`, memory of several models in `models.rs`, progress and resuming in `content.rs` |
//! | 4 a line that works for a friend, at once | [`an_invite_is_all_a_friend_needs`], [`a_prompt_asked_at_once_waits_for_the_first_peer`] |
//! | 5 afterwards it can be asked, and says nothing about the person | [`afterwards_every_question_has_an_answer`] |
//! | 6 alone, then together, frozen, killed and back from memory | [`alone_together_frozen_and_back`] |
//! | 7 the truth about privacy, in a sentence | [`the_truth_is_told_before_anything_starts`] |
//! | 8 nothing to configure behind a router | `lab.rs`; the advice is tested beside `node/src/daemon/status/reach.rs` |
//!
//! Times that matter to a person (two seconds, ten seconds) are printed, not asserted: a busy machine is no fault.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal, binary, data, http,
    node::{Node, PATIENCE},
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// The user `nobody`, without rights on every Unix.
const NOBODY: u32 = 65_534;

fn alone(tokens: &str) -> Value {
    Shoal::new().json(["run", "--json", "-n", tokens, PROMPT], "")
}

/// Waits until `asked` says what `wanted` accepts.
fn wait_until(node: &Node, question: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let said = node.ask(&[question]);
        if wanted(&said) {
            return said;
        }
        assert!(started.elapsed() < PATIENCE, "{question}: {said}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The peer as `node` lists it.
fn peer<'a>(peers: &'a Value, node: &Node) -> Option<&'a Value> {
    peers["peers"].as_array()?.iter().find(|peer| peer["node"] == node.name.as_str())
}

/// What a process prints until a line contains `last`.
fn lines_until(child: &mut std::process::Child, last: &str) -> String {
    let mut text = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        text += &line;
        text.push('\n');
        if line.contains(last) {
            return text;
        }
    }
    panic!("no line with {last:?} in {text}");
}

#[test]
fn one_command_is_enough() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    // As a person without rights, on a machine that knows nothing of shoal: no variable, no terminal, no file.
    let root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let program = folder.path().join("shoal");
    let mut command = if root {
        fs::copy(binary(), &program).unwrap();
        for path in [folder.path(), &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY);
        command
    } else {
        Command::new(binary())
    };
    let started = Instant::now();
    let mut child = command
        .args(["join", "--yes", "--json", "--loopback", "--until-stdin-closes"])
        .env_clear()
        .env("HOME", &home)
        .current_dir(&home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = lines_until(&mut child, "\"ready\"");
    println!("ready after {:?}", started.elapsed());
    let ready: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(!ready["model"]["serving"].as_array().unwrap().is_empty(), "{ready}");
    let own = home.join(".local/share/shoal");
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(own.join("identity.key")).unwrap().permissions().mode() & 0o777, 0o600);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(all_private(&own) > 1);
    let left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".local"], "nothing is written outside its own folder");
}

/// Holds that group and others have no right on anything in a data folder; how much there is.
fn all_private(folder: &Path) -> usize {
    let (mut open, mut seen) = (vec![folder.to_owned()], 0);
    while let Some(path) = open.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let mode = about.permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
        seen += 1;
        if about.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    seen
}

#[test]
fn nothing_in_the_data_folder_is_readable_by_others_after_real_use() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("asks");
    let serves = Node::start(&folder.path().join("serves"), &["--layers", "1..7"]);
    // What an earlier version left, and a model of the person's own that is shared.
    fs::create_dir_all(home.join("models")).unwrap();
    fs::write(home.join("models/left"), "x").unwrap();
    fs::set_permissions(home.join("models/left"), fs::Permissions::from_mode(0o644)).unwrap();
    let args = ["--ask-only", "--api", "127.0.0.1:0", "--peer", serves.tcp()];
    let asks = Node::start(&home, &args);
    asks.meets(1);
    asks.wait_for("answering");
    let answer = asks.ask(&["run", "--via", "swarm", "-n", "8", "Tell me a story"]);
    assert!(answer["ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{answer}");
    assert!(all_private(&home) > 5 && all_private(&folder.path().join("serves")) > 3);
}

#[test]
fn it_says_who_it_is_and_how_it_is_reached() {
    let folder = TempDir::new().unwrap();
    let started = Instant::now();
    let first = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    println!("first words after {:?}", started.elapsed());
    let status = first.ask(&["status"]);
    assert_eq!(status["node"].as_str().unwrap().len(), 64, "{status}");
    assert_eq!(status["model"]["serving"], serde_json::json!(["1..7"]), "{status}");
    assert_eq!(status["reached"]["class"], "loopback", "{status}");
    assert!(status["reached"]["why"].as_str().unwrap().contains("this machine"), "{status}");

    let second = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", first.tcp()]);
    second.meets(1);
    println!("a peer, its layers and its path after {:?}", started.elapsed());
    let peers = second.ask(&["peers"]);
    let known = peer(&peers, &first).unwrap();
    assert_eq!(known["path"], "loopback", "{peers}");
    assert_eq!(known["models"][0]["layers"], serde_json::json!(["1..7"]), "{peers}");
    assert_eq!(second.ask(&["status"])["peers"], 1);
}

#[test]
fn the_first_prompt_of_a_fresh_node_needs_no_weights() {
    let folder = TempDir::new().unwrap();
    let fixture = data("families/qwen2.gguf");
    let fixture = fixture.to_str().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--model", fixture]);
    let code = serves.ask(&["invite"])["code"].as_str().unwrap().to_owned();

    // Zero history: an empty folder and the code.
    let fresh = folder.path().join("b");
    let asks = Node::start(&fresh, &[&code, "--ask-only"]);
    asks.meets(1);
    let name = asks.ask(&["peers"])["peers"][0]["models"][0]["name"].as_str().unwrap().to_owned();
    let ask = ["run", "--via", "swarm", "--mode", "open", "--model", &name, "-n", "12", "--raw", "a b c"];
    let answer = asks.ask(&ask);
    let local = Shoal::new().json(["run", "--json", "--model", fixture, "-n", "12", "--raw", "a b c"], "");
    assert_eq!(answer["ids"], local["ids"], "{answer}");
    assert_eq!(answer["conductor"], serves.name.as_str(), "{answer}");
    let bytes = bytes_below(&fresh);
    assert!(bytes < fs::metadata(fixture).unwrap().len() / 2, "{bytes} bytes were kept for one answer");
}

#[test]
fn the_api_answers_before_there_is_anything_to_answer_with() {
    let folder = TempDir::new().unwrap();
    let args = ["--model", "a-model-without-holders", "--ask-only", "--api", "127.0.0.1:0"];
    let node = Node::start(&folder.path().join("a"), &args);
    let ask = serde_json::json!({ "messages": [{ "role": "user", "content": PROMPT }] });
    let answer = http::ask(&node, "POST", "/v1/chat/completions", &ask);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.head.contains("retry-after: "), "{answer:?}");
    // It is loading, or no node holds it, depending on when the request came.
    assert!(!answer.body["error"]["message"].as_str().unwrap().is_empty(), "{answer:?}");
}

/// Length of all files in a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata().unwrap() {
            data if data.is_dir() => bytes_below(&entry.path()),
            data => data.len(),
        })
        .sum()
}

#[test]
fn it_says_what_it_takes_and_leaves_in_order() {
    let folder = TempDir::new().unwrap();
    // What it will take is said before it is taken: layers, memory for them, memory for others.
    let mut child = Command::new(binary())
        .args(["join", "--yes", "--loopback", "--until-stdin-closes", "--layers", "2..4", "--memory", "64"])
        .env("SHOAL_HOME", folder.path().join("text"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = lines_until(&mut child, "This node is");
    let first = said.lines().next().unwrap();
    for part in ["2 of 8 layers", "in memory", "64.00 MiB", "low priority"] {
        assert!(first.contains(part), "{part:?} is not in {first:?}");
    }
    // And what --yes records, which is what is found afterwards.
    for part in ["boomerang mode", "open mode", "reads all of the text", "relays for members", "--revoke"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    for mode in ["boomerang", "open"] {
        assert!(folder.path().join("text").join(format!("agreed-{mode}")).is_file(), "{mode}");
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());

    // Leaving lets a prompt that runs through this node end on it.
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let mut run = Command::new(binary())
        .args(["run", "--via", "swarm", "--json", "-n", "96", "--home"])
        .arg(&asks.home)
        .arg(PROMPT)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("\"token\"")).expect("it begins");
    let mut leave = Command::new(binary());
    let leave =
        leave.args(["leave", "--json", "--home"]).arg(&serves.home).stdout(Stdio::piped()).spawn().unwrap();
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert_eq!(last["ids"], alone("96")["ids"], "{last}");
    assert!(last["faults"].as_array().unwrap().is_empty(), "it left in the middle: {last}");
    let left: Value = serde_json::from_slice(&leave.wait_with_output().unwrap().stdout).unwrap();
    assert!(run.wait().unwrap().success());
    assert_eq!(left["left"], true);
    assert_eq!(asks.wait_for("left")["node"], serves.name.as_str());
}

#[test]
fn an_invite_is_all_a_friend_needs() {
    let folder = TempDir::new().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--private"]);
    let invite = first.ask(&["invite"]);
    let code = invite["code"].as_str().unwrap();
    let text = Command::new(binary()).args(["invite", "--home"]).arg(&first.home).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("shoal join {code}")), "{text}");
    assert!(
        text.lines().filter(|line| line.contains(['█', '▀', '▄'])).count() > 10,
        "no picture of it: {text}"
    );

    let friend = Node::start(&folder.path().join("b"), &[code, "--ask-only"]);
    friend.meets(1);
    let answer = friend.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
    assert_eq!(answer["ids"], alone("8")["ids"]);

    // Who knows the address but not the code stays outside.
    let outsider = Node::start(&folder.path().join("c"), &["--ask-only", "--peer", first.tcp()]);
    let other = Node::start(&folder.path().join("d"), &["--ask-only", "--private", "--peer", first.tcp()]);
    let friends = first.ask(&["peers"]);
    assert!(peer(&friends, &friend).is_some(), "{friends}");
    for stranger in [&outsider, &other] {
        assert_eq!(stranger.ask(&["status"])["peers"], 0);
        assert!(peer(&first.ask(&["peers"]), stranger).is_none());
    }
    // A code with a mistake is refused with what to do.
    let spoiled = code.replacen(&code[20..22], if &code[20..22] == "qq" { "pp" } else { "qq" }, 1);
    let (exit, error) = Shoal::new().fails(["join", &spoiled, "--yes", "--loopback"], "");
    assert!(exit == 2 && error.contains("ask for a new one"), "{exit} {error}");
}

/// A prompt that is asked before the first peer has answered waits for it, whether its own machine conducts it or that peer.
#[test]
fn a_prompt_asked_at_once_waits_for_the_first_peer() {
    let folder = TempDir::new().unwrap();
    let also = data("families/qwen3.gguf");
    let also = also.to_str().unwrap();
    let first = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--also", also]);
    // It answers no dial until both prompts wait.
    signal(&first, "STOP");
    let friend = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", first.tcp()]);
    friend.ask(&["consent", "open"]);
    let mut conducted = Prompt::run(&friend.home, ["-n", "8", PROMPT]);
    let mut handed = Prompt::run(&friend.home, ["--model", "qwen3", "--mode", "open", "-n", "2", PROMPT]);
    thread::sleep(Duration::from_millis(500));
    signal(&first, "CONT");
    assert_eq!(conducted.ends()["ids"], alone("8")["ids"]);
    assert_eq!(handed.ends()["completion_tokens"], 2);
}

#[test]
fn only_who_is_on_the_list_of_members_is_let_in_and_who_is_taken_off_is_let_go() {
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("members");
    fs::write(&list, "# none yet\n").unwrap();
    let listed = ["--layers", "1..7", "--private", "--members", list.to_str().unwrap()];
    let first = Node::start(&folder.path().join("a"), &listed);
    let code = first.ask(&["invite"])["code"].as_str().unwrap().to_owned();
    let friend = Node::start(&folder.path().join("b"), &[&code, "--ask-only"]);
    thread::sleep(Duration::from_secs(1));
    assert!(peer(&first.ask(&["peers"]), &friend).is_none() && friend.ask(&["status"])["peers"] == 0);
    assert_eq!(friend.name.len(), 64, "a full name: {}", friend.name);
    fs::write(&list, format!("{}  a friend\n", friend.name)).unwrap();
    friend.meets(1);
    let answer = friend.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
    assert_eq!(answer["ids"], alone("8")["ids"]);
    // A list that cannot be read changes nothing; one without the friend lets it go.
    fs::write(&list, "a friend\n").unwrap();
    thread::sleep(Duration::from_secs(6));
    friend.meets(1);
    fs::write(&list, "").unwrap();
    wait_until(&friend, "status", |status| status["peers"] == 0);
    let (exit, error) =
        Shoal::new().fails(["join", "--members", "/nowhere/members", "--yes", "--loopback"], "");
    assert!(exit == 2 && error.contains("list of members"), "{exit} {error}");
}

#[test]
fn afterwards_every_question_has_an_answer() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("a-folder-of-mine");
    let serves = Node::start(&home, &["--layers", "1..7"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let run = asks.ask(&["run", "--via", "swarm", "-n", "12", PROMPT]);
    let why = asks.ask(&["why", &run["session"].as_str().unwrap()[..8]]);
    assert_eq!(why["session"], run["session"], "{why}");
    // The last stage samples: what it takes is in the time between tokens.
    let stages = why["stages"].as_array().unwrap();
    let hops = &stages[..stages.len() - 1];
    assert!(!hops.is_empty() && hops.iter().all(|stage| stage["ms"].as_f64() > Some(0.0)), "{why}");
    assert!(why["predicted"]["tok_s"].as_f64().unwrap() > 0.0, "{why}");
    let status = serves.ask(&["status"]);
    for counted in ["served_positions", "bytes_in", "bytes_out"] {
        assert!(status[counted].as_u64().unwrap() > 0, "{counted}: {status}");
    }

    // The doctor's report can be shown to anyone.
    let doctor = Command::new(binary()).args(["doctor", "--json", "--home"]).arg(&home).output().unwrap();
    let report = String::from_utf8(doctor.stdout).unwrap();
    let parsed: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_eq!(parsed["ok"] == true, doctor.status.success(), "{report}");
    for secret in ["a-folder-of-mine", "127.0.0.1", serves.name.as_str()] {
        assert!(!report.contains(secret), "{secret}: {report}");
    }
    // Asking a node that is not there fails, and says how to start one.
    let (exit, error) = Shoal::new().fails(["status"], "");
    assert!(exit != 0 && error.contains("shoal join"), "{error}");
}

#[test]
fn alone_together_frozen_and_back() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("b");
    let asks = Node::start(&home, &["--ask-only"]);
    let whole = alone("16");
    let here = asks.ask(&["run", "-n", "16", PROMPT]);
    assert_eq!(here["ids"], whole["ids"], "without any peer everything still works");

    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--peer", asks.tcp()]);
    asks.meets(1);
    let together = asks.ask(&["run", "--via", "swarm", "-n", "16", PROMPT]);
    assert_eq!(together["ids"], whole["ids"]);
    assert_eq!(together["stages"][1]["node"], serves.name.as_str(), "{together}");

    // The lid closes and opens again: the other one is missed, and then it is back.
    signal(&serves, "STOP");
    wait_until(&asks, "peers", |peers| peer(peers, &serves).is_none_or(|peer| peer["connected"] == false));
    signal(&serves, "CONT");
    asks.meets(1);
    assert_eq!(asks.ask(&["run", "--via", "swarm", "-n", "16", PROMPT])["ids"], whole["ids"]);

    // Killed, and started again with nothing but its folder: it knows whom to look for.
    drop(asks);
    let started = Instant::now();
    let again = Node::start(&home, &["--ask-only"]);
    let ready = started.elapsed();
    again.meets(1);
    println!("ready after {ready:?}, back in the swarm after {:?}", started.elapsed());
    assert_eq!(again.ask(&["run", "--via", "swarm", "-n", "16", PROMPT])["ids"], whole["ids"]);
}

fn signal(node: &Node, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &node.child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn the_truth_is_told_before_anything_starts() {
    let folder = TempDir::new().unwrap();
    let mut child = Command::new(binary())
        .args(["join", "--yes", "--loopback", "--until-stdin-closes"])
        .env("SHOAL_HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = lines_until(&mut child, "This node is");
    let truth = said.lines().position(|line| line.contains("strangers") && line.contains("reconstruct"));
    let begins = said.lines().position(|line| line.contains("This node is"));
    assert!(truth.is_some() && truth < begins, "{said}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// `shoal` on a terminal where `typed` is typed, by util-linux's `script`.
fn at_a_terminal(home: &std::path::Path, args: &[&str], typed: &str) -> std::process::Child {
    let words: Vec<String> = args.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("{} {}", binary().display(), words.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("SHOAL_HOME", home).env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("script starts");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), typed.as_bytes()).unwrap();
    child
}

#[test]
fn a_link_that_is_opened_asks_first_whatever_was_agreed_to() {
    if Command::new("script").arg("--version").output().is_err() {
        assert!(std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none(), "script is not installed");
        return eprintln!("skipped: script is not installed");
    }
    let folder = TempDir::new().unwrap();
    let there = Node::start(&folder.path().join("there"), &["--layers", "1..7"]);
    let code = there.ask(&["invite"])["code"].as_str().unwrap().to_owned();
    let link = format!("shoal:{code}");
    let home = folder.path().join("home");
    // All that a person can have agreed to beforehand.
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(home.join("config.toml"), "[join]\nyes = true\n").unwrap();
    for file in ["agreed-boomerang", "agreed-open"] {
        fs::write(home.join(file), "").unwrap();
    }
    let inside = || fs::read_dir(&home).unwrap().count();
    let before = inside();

    // A program that is no terminal cannot answer for a person.
    let config = home.join("config.toml");
    let config = config.to_str().unwrap();
    let opens = ["--config", config, "join", "--ask", "--loopback", &link];
    let mut command = Command::new(binary());
    let output = harness::output(command.args(opens).env("SHOAL_HOME", &home)).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("needs a terminal"), "{said}");
    assert_eq!(inside(), before, "nothing is written before the answer");

    // An empty line is a no, and another closes the window.
    let mut no = at_a_terminal(&home, &opens, "\n\n");
    let text = lines_until(&mut no, "nothing was started");
    assert!(text.contains("asks this machine to join") && text.contains("[y/N]"), "{text}");
    let _ = (no.kill(), no.wait());
    assert_eq!(inside(), before, "nothing is written before the answer");
    assert_eq!(there.ask(&["status"])["peers"], 0);

    // Then what it serves is asked, as ever.
    let mut yes = at_a_terminal(&home, &opens, "y\ny\n");
    let text = lines_until(&mut yes, "This node is");
    assert!(text.contains("[Y/n]") && text.contains("[y/N]"), "{text}");
    there.meets(1);
    drop(yes.stdin.take());
    let mut leave = Command::new(binary());
    harness::output(leave.arg("leave").env("SHOAL_HOME", &home)).unwrap();
    let _ = yes.wait();
}
