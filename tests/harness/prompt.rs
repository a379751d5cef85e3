//! A prompt in flight: a command of its own, its lines with the moments they came.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::binary;

/// A prompt that says nothing for this long hangs.
pub const BOUND: Duration = Duration::from_secs(60);

/// A running `shoal run` or `shoal resume`.
pub struct Prompt {
    /// Its process.
    pub child: Child,
    lines: Receiver<(Instant, Value)>,
    /// The route it began with.
    pub route: Value,
    /// Ids that came token by token, and when.
    pub tokens: Vec<(Instant, Value)>,
    /// What it said of an interrupted answer that it continues.
    pub resumed: Value,
    /// The last line, once it came.
    pub last: Option<Value>,
    /// It hangs when it says nothing for this long: [`BOUND`], longer where many share a machine.
    pub bound: Duration,
}

impl Prompt {
    /// Asks the node with this data folder: `shoal run --via swarm --json ARGS`.
    pub fn run(home: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        Self::command(home, &["run", "--via", "swarm"], args)
    }

    /// Continues the last interrupted answer.
    pub fn resume(home: &Path) -> Self {
        Self::command(home, &["resume"], [""; 0])
    }

    fn command(home: &Path, words: &[&str], args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut child = Command::new(binary())
            .args(words)
            .args(["--json", "--home"])
            .arg(home)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // An answer has a few hundred lines; a test that does not read them must not stop it.
        let (send, lines) = sync_channel(16_384);
        let stdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str(&line) else { continue };
                let _ = send.send((Instant::now(), line));
            }
        });
        let (route, tokens, resumed) = (Value::Null, Vec::new(), Value::Null);
        Self { child, lines, route, tokens, resumed, last: None, bound: BOUND }
    }

    /// Reads one line; false after the last, or when it ended without one.
    pub fn step(&mut self) -> bool {
        use std::sync::mpsc::RecvTimeoutError;
        let bound = self.bound;
        let (at, line) = match self.lines.recv_timeout(bound) {
            Ok(said) => said,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                panic!("nothing for {bound:?} after {} tokens; route {}", self.tokens.len(), self.route)
            }
        };
        match line["event"].as_str() {
            Some("route") => self.route = line,
            Some("token") => self.tokens.push((at, line["id"].clone())),
            Some("resumed") => self.resumed = line,
            _ if line["end"] == true => self.last = Some(line),
            _ => {}
        }
        self.last.is_none()
    }

    /// Reads until so many tokens came. False when it ended before.
    pub fn reaches(&mut self, tokens: usize) -> bool {
        while self.tokens.len() < tokens || self.route.is_null() {
            if !self.step() {
                return false;
            }
        }
        true
    }

    /// Reads to the end, which must be a good one.
    pub fn ends(&mut self) -> Value {
        while self.step() {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}; last line {:?}", self.complaint(), self.last);
        self.last.clone().expect("an answer that ends well has a last line")
    }

    /// Reads to the end, which must be a bad one; gives what it says on standard error.
    pub fn fails(&mut self) -> String {
        while self.step() {}
        assert!(!self.child.wait().unwrap().success(), "{:?}", self.last);
        self.complaint()
    }

    fn complaint(&mut self) -> String {
        let mut said = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut said);
        said
    }

    /// Ids that came token by token, after those said before an interruption.
    pub fn ids(&self) -> Vec<Value> {
        let before = self.resumed["ids"].as_array().into_iter().flatten().cloned();
        before.chain(self.tokens.iter().map(|token| token.1.clone())).collect()
    }

    /// Nodes of the route that are not `home`, in order, by name.
    pub fn strangers(&self, home: &str) -> Vec<String> {
        let stages = self.route["stages"].as_array().into_iter().flatten();
        let names = stages.filter_map(|stage| stage["node"].as_str()).filter(|name| *name != home);
        names.map(str::to_owned).collect()
    }

    /// The longest wait for a token that came after `since`, ms.
    pub fn stall_ms(&self, since: Instant) -> f64 {
        let came: Vec<Instant> = self.tokens.iter().map(|token| token.0).collect();
        let gaps = came.windows(2).filter(|pair| pair[1] > since).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default().as_secs_f64() * 1e3
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
