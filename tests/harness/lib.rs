//! What the integration tests share: the fixtures and the `shoal` binary.
#![forbid(unsafe_code)]

pub mod collector;
pub mod gguf_parts;
pub mod http;
pub mod imports;
pub mod lab;
pub mod nemesis;
pub mod node;
pub mod prompt;
pub mod registry;
pub mod wires;

use std::{
    ffi::OsStr,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{OnceLock, mpsc::sync_channel},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies below the root")
}

/// A fixture below `tests/data`.
pub fn data(name: &str) -> PathBuf {
    root().join("tests/data").join(name)
}

/// The number in the environment variable `name`, or `otherwise` where there is none.
///
/// # Panics
/// When something else is in it.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// How variables begin that cargo sets for the tests of one package.
const OF_A_PACKAGE: [&str; 4] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];

/// The `shoal` binary, built once per test run with the profile of the tests. `SHOAL_BINARY` names one that is there already.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(there) = std::env::var_os("SHOAL_BINARY") {
            return there.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        // What cargo says of the package under test is not about the build of another: build scripts that look at it
        // (ring's does) would run again, and with them most of libp2p be compiled again.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| OF_A_PACKAGE.iter().any(|prefix| name.starts_with(prefix))) {
                build.env_remove(name);
            }
        }
        let built = build
            // Of the whole workspace and with its examples: `cargo test --workspace` has resolved the same features of every
            // library then, and nothing is compiled twice. The tests' own features add the second executor and traces.
            .args(["build", "--quiet", "--workspace", "--bin", "shoal", "--examples"])
            .args(["--message-format", "json"])
            .current_dir(root())
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "the binary does not build");
        let messages = String::from_utf8(built.stdout).expect("cargo prints UTF-8");
        let mut executable = messages.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let of_shoal = message["target"]["name"] == "shoal";
            message["executable"].as_str().filter(|_| of_shoal).map(PathBuf::from)
        });
        executable.next_back().expect("cargo names the binary")
    })
}

/// A command that has not ended by then never will; on a busy machine none needs a tenth of it.
pub const ENDED: Duration = Duration::from_secs(400);

/// Runs a command to its end and gives what it printed.
///
/// # Panics
///
/// When it does not end: after [`ENDED`] it is killed, with everything that it started.
///
/// # Errors
///
/// When it cannot be started.
pub fn output(command: &mut Command) -> std::io::Result<Output> {
    // A group of its own, so that no process that it started outlives it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(ended(command.spawn()?, ENDED))
}

/// Waits for the leader of a process group, at most for so long.
fn ended(child: Child, within: Duration) -> Output {
    let group = child.id();
    let (send, output) = sync_channel(1);
    thread::spawn(move || {
        let _ = send.send(child.wait_with_output());
    });
    if let Ok(output) = output.recv_timeout(within) {
        return output.expect("a process can be waited for");
    }
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    let said = output.recv_timeout(Duration::from_secs(10)).ok().and_then(Result::ok);
    let said = said.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    panic!("no end in {within:?}; it said: {}", String::from_utf8_lossy(&said));
}

/// Runs `shoal` with its own empty home and no terminal.
pub struct Shoal {
    home: TempDir,
}

impl Default for Shoal {
    fn default() -> Self {
        Self::new()
    }
}

/// Standard output of a command that must have succeeded.
fn succeeded(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "shoal failed: {error}");
    String::from_utf8(output.stdout).expect("shoal prints UTF-8")
}

impl Shoal {
    /// A newcomer: nothing is configured.
    pub fn new() -> Self {
        Self { home: TempDir::new().expect("a temporary folder") }
    }

    /// Where this user's files are.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs a command with `input` on standard input.
    pub fn run_with(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &str) -> Output {
        self.run_in(args, input, &[])
    }

    /// As [`Self::run_with`], with further variables of the environment.
    pub fn run_in(
        &self,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: &str,
        variables: &[(&str, &str)],
    ) -> Output {
        let mut child = Command::new(binary())
            .args(args)
            .envs(variables.iter().copied())
            .env("SHOAL_HOME", self.home())
            .env_remove("SHOAL_MODEL")
            .env_remove("SHOAL_THREADS")
            .env_remove("SHOAL_ISA")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("shoal starts");
        let mut stdin = child.stdin.take().expect("standard input is piped");
        // A command that fails early does not read: that is its right.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        ended(child, ENDED)
    }

    /// Runs a command that must succeed and gives its standard output.
    pub fn ok(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &str) -> String {
        succeeded(self.run_with(args, input))
    }

    /// Runs a command that must succeed and parses the last line it prints.
    pub fn json(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &str) -> Value {
        self.json_in(args, input, &[])
    }

    /// As [`Self::json`], with further variables of the environment.
    pub fn json_in(
        &self,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: &str,
        variables: &[(&str, &str)],
    ) -> Value {
        let text = succeeded(self.run_in(args, input, variables));
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e} in {last:?}"))
    }

    /// Runs a command that must fail and gives (exit code, standard error).
    pub fn fails(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &str) -> (i32, String) {
        let output = self.run_with(args, input);
        assert!(!output.status.success(), "shoal should have failed");
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
