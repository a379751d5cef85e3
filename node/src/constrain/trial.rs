//! A form is compiled first where nothing can be lost.
//!
//! The process that would answer (the daemon's side of a worker, or `shoal serve`) starts `shoal worker --form`, which
//! confines itself as a worker does, takes little processor time and memory, compiles the form over single bytes, says
//! whether that worked, and ends. A form that overflows a stack or never ends takes down that process alone. What passed
//! is remembered, so that a client that asks a thousand times with one schema waits once.
//!
//! ```text
//! parent: the form as JSON, then the end of the stream        child: `+`, or `-` and why not
//! ```
//!
//! Bounds: [`MAX_TRIALS`] processes at once; requests that wait for one by the governor ([`Resource::Forms`]); [`MAX_PASSED`]
//! remembered forms; [`CPU_SECONDS`], [`MEMORY_BYTES`] and [`PATIENCE`] for each trial.
//!
//! Limits: without a filter of the system (outside Linux) the process has limits, but no sandbox.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use api::inference::{Failure, Format};
use p2p::Governor;
use scheduler::governor::{Holder, Resource};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

use super::{Constraints, Tags};
use crate::{
    Error, Result,
    confine::{
        self, Purpose,
        child::{Child, lock, to_parent},
    },
    platform::streams::Stream,
};

/// Processes that try forms at once: as many as keep a small machine's cores from being taken by clients' forms.
const MAX_TRIALS: usize = 2;
/// Forms that passed and are remembered, by their hash.
const MAX_PASSED: usize = 256;
/// Processor time of one trial: the engine's own limits end most work within one second of an optimized build.
const CPU_SECONDS: u64 = 10;
/// Memory of one trial beyond what the program itself takes.
const MEMORY_BYTES: u64 = 1 << 30;
/// When a trial is given up although its processor time is not used up: on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longest form that is read, and longest answer.
const MAX_BYTES: u64 = 4 << 20;

static TRIALS: Semaphore = Semaphore::const_new(MAX_TRIALS);
static PASSED: Mutex<VecDeque<[u8; 32]>> = Mutex::new(VecDeque::new());

/// Why a form was not found to be usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untried {
    /// It cannot be used, and why.
    Form(String),
    /// Too many forms wait to be tried.
    Busy,
    /// It could not be tried.
    Failed(String),
}

impl From<Untried> for Failure {
    fn from(untried: Untried) -> Self {
        match untried {
            Untried::Form(why) => Self::invalid("response_format", why),
            Untried::Busy => Self::busy(1),
            Untried::Failed(why) => Self::Unavailable { why, retry_after_s: 1 },
        }
    }
}

/// Measures a form and compiles it in a process of its own, started from `program`, for `holder` under `governor`.
///
/// # Errors
/// [`Untried`].
pub async fn attempt(
    program: &Path,
    format: &Format,
    (governor, holder): (&Governor, Holder),
) -> Result<(), Untried> {
    if matches!(format, Format::Text | Format::JsonObject) {
        return Ok(());
    }
    super::measure(format).map_err(Untried::Form)?;
    let failed = |error: String| Untried::Failed(format!("the answer's form could not be tried: {error}"));
    let text = serde_json::to_vec(format).map_err(|error| failed(error.to_string()))?;
    let hash = *blake3::hash(&text).as_bytes();
    if lock(&PASSED).contains(&hash) {
        return Ok(());
    }
    let _permit = governor.take(holder, Resource::Forms, 1).map_err(|_| Untried::Busy)?;
    let _turn = TRIALS.acquire().await.map_err(|error| failed(error.to_string()))?;
    let said = ask(program, &text).await.map_err(|error| failed(error.to_string()))?;
    match said.split_first() {
        Some((b'+', [])) => {
            let mut passed = lock(&PASSED);
            passed.push_back(hash);
            if passed.len() > MAX_PASSED {
                passed.pop_front();
            }
            Ok(())
        }
        Some((b'-', why)) => Err(Untried::Form(String::from_utf8_lossy(why).into_owned())),
        _ => Err(Untried::Form(format!(
            "compiling the form takes more than {CPU_SECONDS} s or {} MiB: simplify it",
            MEMORY_BYTES >> 20
        ))),
    }
}

/// What the child says of a form; nothing when it dies or takes too long.
async fn ask(program: &Path, text: &[u8]) -> io::Result<Vec<u8>> {
    let (child, ours) = Child::start(program.to_owned(), &["worker", "--form"], false).await?;
    ours.set_nonblocking(true)?;
    let mut stream = Stream::from_std(ours)?;
    let talk = async {
        // A child that is gone reads nothing; that it said nothing tells.
        let _ = stream.write_all(text).await;
        let _ = stream.shutdown().await;
        let mut said = Vec::new();
        let _ = stream.take(MAX_BYTES).read_to_end(&mut said).await;
        said
    };
    let said = tokio::time::timeout(PATIENCE, talk).await.unwrap_or_default();
    child.kill();
    Ok(said)
}

/// The child: `shoal worker --form`.
///
/// # Errors
/// When standard input is no socket, or what comes over it is no form.
pub fn run() -> Result<()> {
    let mut stream = to_parent()?;
    confine::begin_child();
    confine::limit_time(CPU_SECONDS);
    confine::limit_memory(MEMORY_BYTES);
    confine::enter(Purpose::Compute);
    let mut text = Vec::new();
    (&stream).take(MAX_BYTES).read_to_end(&mut text)?;
    let format = serde_json::from_slice(&text)?;
    let constraints = Constraints::of_bytes(Tags::Qwen).map_err(|error| Error::Failed(error.to_string()))?;
    let said = match constraints.constraint(&format) {
        Ok(_) => "+".into(),
        Err(failure) => format!("-{failure}"),
    };
    Ok(stream.write_all(said.as_bytes())?)
}
