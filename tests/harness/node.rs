//! Nodes as processes of their own: started, asked, frozen, killed.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::binary;

/// A node that has not said something after this long never will.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A running `shoal join`.
pub struct Node {
    /// Its data folder.
    pub home: PathBuf,
    /// Its name in hex.
    pub name: String,
    /// Where it can be dialed.
    pub addresses: Vec<String>,
    /// What it said about its API, if it has one: `url`, `page`, `token_file`.
    pub api: Value,
    /// Its process.
    pub child: Child,
    lines: Receiver<Value>,
    /// It stops when this closes.
    pub stdin: Option<ChildStdin>,
}

impl Node {
    /// Starts a node on loopback with one thread and waits until it can be asked.
    pub fn start(home: &Path, args: &[&str]) -> Self {
        Self::start_as(home, args, |_| {})
    }

    /// As [`Node::start`], with variables of the environment.
    pub fn start_with(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_as(home, args, |command| {
            command.envs(variables.iter().copied());
        })
    }

    /// As [`Node::start`]; `prepare` may change its environment and where its standard error goes.
    pub fn start_as(home: &Path, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(binary());
        prepare(&mut command);
        Self::launch(command, home, &[&["--loopback"], args].concat())
    }

    /// Starts a node with one thread as `command`, which runs the binary somewhere, and waits until it can be asked.
    pub fn launch(mut command: Command, home: &Path, args: &[&str]) -> Self {
        let mut child = command
            .args(["join", "--json", "--yes", "--until-stdin-closes", "--threads", "1", "--no-pin"])
            .args(args)
            .env("SHOAL_HOME", home)
            // Sessions of requesters that were killed linger for a while; tests kill many.
            .env("SHOAL_SESSIONS", "64")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = sync_channel(1_024);
        let stdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.try_send(serde_json::from_str(&line).unwrap());
            }
        });
        let stdin = child.stdin.take();
        let mut node = Self {
            home: home.to_owned(),
            name: String::new(),
            addresses: Vec::new(),
            api: Value::Null,
            child,
            lines,
            stdin,
        };
        // Either may come first.
        let (mut listening, mut ready) = (!args.contains(&"--api"), None);
        while !listening || ready.is_none() {
            let line = node.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("neither listening nor ready in {PATIENCE:?}"));
            match line["event"].as_str() {
                Some("listening") => (listening, node.api) = (true, line),
                Some("ready") => ready = Some(line),
                _ => {}
            }
        }
        let ready = ready.unwrap_or_default();
        node.name = ready["node"].as_str().unwrap().to_owned();
        node.addresses =
            ready["addresses"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().to_owned()).collect();
        node
    }

    /// Waits for an event it reports.
    pub fn wait_for(&self, event: &str) -> Value {
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {event} in {PATIENCE:?}"));
            if line["event"] == event {
                return line;
            }
        }
    }

    /// Runs a command against it and gives the last line, parsed.
    pub fn ask(&self, args: &[&str]) -> Value {
        let mut command = Command::new(binary());
        let output = crate::output(command.args(args).args(["--json", "--home"]).arg(&self.home)).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    }

    /// An address on TCP.
    pub fn tcp(&self) -> &str {
        self.addresses.iter().find(|address| address.contains("/tcp/")).expect("it listens on TCP")
    }

    /// Waits until `count` peers that hold something are connected.
    pub fn meets(&self, count: usize) {
        let holds =
            |p: &Value| p["connected"] == true && p["models"].as_array().is_some_and(|m| !m.is_empty());
        self.sees(count, holds);
    }

    /// Waits until at least `count` of the peers it knows are as `wanted`.
    pub fn sees(&self, count: usize, wanted: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        loop {
            let peers = self.ask(&["peers"]);
            let seen = peers["peers"].as_array().unwrap().iter().filter(|peer| wanted(peer)).count();
            if seen >= count {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{seen} of {count}: {peers}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
