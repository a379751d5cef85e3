//! How commands talk to the running node: a socket in its data folder, one JSON object per line.
//!
//! The socket file is the key: it lies in a folder only its owner may enter. A question is one line; the answer is one
//! or more lines, the last of which has `"end": true`, or an `"error"`. Closing the connection cancels what was asked.
//!
//! Limits: [`MAX_LINE`] per line, connections by the governor ([`Resource::Callers`]); one more is closed at once.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

pub use api::choice::{Mode, Shadow, Verify};
use p2p::Governor;
use scheduler::governor::{Holder, Resource};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    sync::mpsc,
};

use crate::{
    Error, Result,
    events::{PlanReport, PromptEvent, PromptRequest, Refusal},
    platform::control_socket::{self, Listener, ReadHalf, WriteHalf},
    reports::{
        AnswersReport, InviteReport, PeersReport, PullLine, ReceiptsReport, StatusReport, SwitchReport,
        Switched, View,
    },
};

/// Of whom stages may get a state that they lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lenders {
    /// Of no node.
    #[default]
    Off,
    /// Of nodes whose work for this one was checked often enough that it is not any more each time.
    Known,
    /// Of any node that computed it.
    Any,
}

/// A prompt is text a person or a program wrote: 4 MiB is a thousand pages.
const MAX_LINE: u64 = 4 << 20;
/// Lines on their way to one caller; the node waits for a caller that does not read.
pub const LINES: usize = 64;
/// Questions waiting for the node.
pub const QUESTIONS: usize = 64;

/// A model to fetch from peers and mirrors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PullAsk {
    /// Its id, 64 hex digits.
    pub id: Option<String>,
    /// Without an id: the name it is announced under.
    pub called: Option<String>,
    /// What to call it here.
    pub name: Option<String>,
    /// Mirrors' addresses.
    pub from: Vec<String>,
    /// The layers as pairs of first and end; none for the whole file.
    pub layers: Vec<(u32, u32)>,
    /// Most disk that all pulled models may take, within what the node was offered.
    pub disk_bytes: Option<u64>,
    /// How fast at most, within what the node was offered.
    pub bytes_per_s: Option<u64>,
    /// Only say what would be fetched.
    pub plan_only: bool,
}

/// What a command can ask of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Question {
    /// Answer a prompt, token by token.
    Generate(Box<PromptRequest>),
    /// Predict what answering it would take.
    Plan(Box<PromptRequest>),
    /// What happened to a prompt: the given one, else the last.
    Why {
        /// Its session in hex, or a beginning of it.
        session: Option<String>,
    },
    /// What happened to the last answers, step by step.
    Answers,
    /// Continue an interrupted answer: the given one, else the last.
    Resume {
        /// Its name, or a beginning of it.
        session: Option<String>,
    },
    /// Stop a running answer for good: nothing of it is kept.
    Cancel {
        /// Its session in hex.
        session: String,
    },
    /// What this node is doing.
    Status,
    /// Who it knows.
    Peers,
    /// What the API and its page show.
    View,
    /// A code for a friend.
    Invite,
    /// Fetch a model, or some layers of it.
    Pull(Box<PullAsk>),
    /// Work done for others and by others, as both sides signed.
    Receipts,
    /// Finish what runs, say good-bye, stop.
    Leave,
    /// Serve others, or not for now.
    Pause {
        /// Whether to stop serving.
        paused: bool,
    },
}

/// How long a stopping node waits until its last answers are written.
const FLUSH: Duration = Duration::from_secs(1);

/// A question with the way back to the caller.
pub struct Call {
    /// What.
    pub question: Question,
    /// Where the lines of the answer go; closed when the caller went away.
    pub lines: mpsc::Sender<Line>,
}

/// A line of an answer. On the socket it is the JSON of what it holds; only this module turns one into the other.
#[derive(Clone, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// What happens to a prompt.
    Prompt(PromptEvent),
    /// What a prompt would take.
    Plan(Box<PlanReport>),
    /// What the API shows.
    View(Box<View>),
    /// The nodes known.
    Peers(PeersReport),
    /// What the node does.
    Status(Box<StatusReport>),
    /// How a pull goes.
    Pull(Box<PullLine>),
    /// The last answers.
    Answers(AnswersReport),
    /// Work as both sides signed it.
    Receipts(ReceiptsReport),
    /// A code for a friend.
    Invite(InviteReport),
    /// What a command changed.
    Switched(SwitchReport),
}

impl From<PromptEvent> for Line {
    fn from(event: PromptEvent) -> Self {
        Self::Prompt(event)
    }
}

impl From<Refusal> for Line {
    fn from(refusal: Refusal) -> Self {
        Self::Prompt(PromptEvent::Failed(refusal))
    }
}

impl From<PlanReport> for Line {
    fn from(plan: PlanReport) -> Self {
        Self::Plan(Box::new(plan))
    }
}

impl From<View> for Line {
    fn from(view: View) -> Self {
        Self::View(Box::new(view))
    }
}

impl From<PeersReport> for Line {
    fn from(peers: PeersReport) -> Self {
        Self::Peers(peers)
    }
}

impl From<StatusReport> for Line {
    fn from(status: StatusReport) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<PullLine> for Line {
    fn from(line: PullLine) -> Self {
        Self::Pull(Box::new(line))
    }
}

impl From<AnswersReport> for Line {
    fn from(answers: AnswersReport) -> Self {
        Self::Answers(answers)
    }
}

impl From<ReceiptsReport> for Line {
    fn from(receipts: ReceiptsReport) -> Self {
        Self::Receipts(receipts)
    }
}

impl From<InviteReport> for Line {
    fn from(invite: InviteReport) -> Self {
        Self::Invite(invite)
    }
}

impl From<Switched> for Line {
    fn from(now: Switched) -> Self {
        Self::Switched(now.into())
    }
}

/// Where the socket of a node with this data folder is.
pub fn socket(home: &Path) -> PathBuf {
    home.join("control.sock")
}

/// Whether a node runs with the data folder `home`.
pub fn is_running(home: &Path) -> bool {
    control_socket::is_open(&socket(home))
}

/// Why a command that was to ask the node cannot.
pub fn runs_nowhere() -> Error {
    Error::usage("no node runs here; start one with `shoal join`, or say --via local")
}

/// The message for a second node with the same data folder.
pub fn runs_already(home: &Path) -> Error {
    Error::usage(format!(
        "a node is running with the data folder {}; `shoal status` shows it, `shoal leave` stops it",
        home.display()
    ))
}

/// Opens the socket. A node that runs already keeps it.
pub fn listen(home: &Path) -> Result<Listener> {
    let path = socket(home);
    if is_running(home) {
        return Err(runs_already(home));
    }
    Listener::bind(&path).map_err(|e| {
        Error::Failed(format!(
            "cannot open {}: {e}; choose a shorter or writable folder with --home",
            path.display()
        ))
    })
}

/// Waits until every caller has its answer, or long enough.
pub async fn flush(governor: &Governor) {
    let all = governor.limits().of(Resource::Callers).node;
    let _ = governor.wait(Holder::default(), Resource::Callers, all, FLUSH).await;
}

/// Takes callers until the node stops.
pub async fn serve(mut listener: Listener, calls: mpsc::Sender<Call>, governor: Governor) {
    while let Ok(caller) = listener.accept().await {
        let Ok(seat) = governor.take(Holder::default(), Resource::Callers, 1) else { continue };
        let calls = calls.clone();
        tokio::spawn(async move {
            let _ = attend(caller, calls).await;
            drop(seat);
        });
    }
}

async fn attend((read, mut write): (ReadHalf, WriteHalf), calls: mpsc::Sender<Call>) -> io::Result<()> {
    let mut read = BufReader::new(read);
    let mut line = String::new();
    (&mut read).take(MAX_LINE).read_line(&mut line).await?;
    let (lines, mut answer) = mpsc::channel(LINES);
    match serde_json::from_str::<Question>(&line) {
        Ok(question) => {
            if calls.send(Call { question, lines }).await.is_err() {
                return Ok(());
            }
        }
        Err(e) => {
            let _ = lines.send(Refusal::new(format!("not a question: {e}")).into()).await;
            drop(lines);
        }
    }
    let mut rest = String::new();
    loop {
        tokio::select! {
            line = answer.recv() => {
                let Some(line) = line else { return Ok(()) };
                // Through a value, so that numbers are written as `--json` prints them.
                let line = serde_json::to_value(&line)?;
                write.write_all(format!("{line}\n").as_bytes()).await?;
            }
            // The caller went away (or talks out of turn): dropping `answer` tells its sender.
            _ = read.read_line(&mut rest) => return Ok(()),
        }
    }
}

/// The caller's end: asks one question and reads lines.
pub struct Caller {
    lines: tokio::io::Lines<BufReader<ReadHalf>>,
    _write: WriteHalf,
}

impl Caller {
    /// Asks the node that runs with the data folder `home`.
    ///
    /// # Errors
    /// When none runs there.
    pub async fn ask(home: &Path, question: &Question) -> Result<Self> {
        let (read, mut write) = control_socket::connect(&socket(home)).await.map_err(|_| {
            Error::usage(
                "no node is running here; start one with `shoal join` (or name its folder with --home)",
            )
        })?;
        write.write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes()).await?;
        Ok(Self { lines: BufReader::new(read).lines(), _write: write })
    }

    /// The next event of a prompt, a refusal included; `None` after the last or when the node went away.
    pub async fn event(&mut self) -> Option<PromptEvent> {
        serde_json::from_str(&self.lines.next_line().await.ok()??).ok()
    }

    /// The next line of the answer, `None` after the last.
    ///
    /// # Errors
    /// When the node refuses, or says what is not a `T`.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(line) = self.lines.next_line().await? else { return Ok(None) };
        match serde_json::from_str::<Refusal>(&line) {
            Ok(refusal) => Err(Error::Failed(refusal.error)),
            Err(_) => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}

/// Asks and takes the one line of the answer.
///
/// # Errors
/// When no node runs there, it refuses, it does not answer in time, or it says what is not a `T`.
pub async fn one<T: DeserializeOwned>(home: &Path, question: &Question) -> Result<T> {
    let mut caller = Caller::ask(home, question).await?;
    let line = tokio::time::timeout(Duration::from_secs(30), caller.next()).await;
    match line {
        Ok(line) => line?.ok_or_else(|| Error::Failed("the node stopped before it answered".into())),
        Err(_) => {
            Err(Error::Failed("the node did not answer within 30 s; if it goes on like that, stop it and start it again with `shoal join`".into()))
        }
    }
}
