//! Joins a swarm inside another program, and asks the node that runs there.
//!
//! `cargo run -p shoal-node --example join [CODE]`
//!
//! The command line is the interface: what `shoal join` takes goes here too. With `--quiet` it prints nothing but errors, so that
//! standard output is the program's own. A node computes in processes of its own, which are this program started again with the
//! word `worker`: `main` begins with that.
#![forbid(unsafe_code)]

use std::{ffi::OsString, thread, time::Duration};

use node::{
    Error, Result, commands, config,
    control::{self, Question},
    reports::{StatusReport, SwitchReport},
};
use tokio::runtime;

fn shoal(words: Vec<OsString>) -> Result<()> {
    commands::run(config::command_line(&words)?)
}

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "worker") {
        return shoal(words);
    }
    // A home of its own: the user's node, if one runs, is another.
    let home = std::env::temp_dir().join(format!("shoal-example-{}", std::process::id()));
    let mut join: Vec<OsString> =
        ["shoal", "--config", "none", "join", "--ask-only", "--quiet"].map(Into::into).to_vec();
    join.extend(["--home".into(), home.clone().into()]);
    join.extend(words.into_iter().skip(1));
    let node = thread::spawn(|| shoal(join));
    while !control::is_running(&home) && !node.is_finished() {
        thread::sleep(Duration::from_millis(20));
    }

    // The program does what it is for, and asks its node; prompts go by `inference::swarm`, as those of the API do.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = runtime.block_on(control::one::<StatusReport>(&home, &Question::Status));
    if let Ok(status) = &asked {
        println!(
            "this program is the node {}, reached as {}",
            status.network.node, status.network.reached.class
        );
        runtime.block_on(control::one::<SwitchReport>(&home, &Question::Leave))?;
    }
    let ended = node.join().map_err(|_| Error::Failed("the node failed".into()))?;
    std::fs::remove_dir_all(&home)?;
    ended.and(asked.map(drop))
}
