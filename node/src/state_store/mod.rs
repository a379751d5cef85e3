//! States of ended sessions on disk, for prompts of the next days that begin like them: `--keep-state`. They are of own prompts, and of those of other
//! nodes that permit it (`--let-keep`).
//!
//! A process that may open files makes the file ([`Place`]); the process that computes gets its descriptor and the key
//! ([`Ticket`]), and keeps what it has computed there ([`StateStore`]). Writing happens on a thread of its own, one state at a
//! time, and never delays a pass: a state that comes while another is written waits for its turn with the caller.
//!
//! One file belongs to one model, by what its content is, and one process at a time holds it. What a state says is what its
//! session said: it is encrypted with a key of the node's identity, and forgotten after [`file::KEPT_FOR`].

pub mod file;

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use shard::state::SessionState;

pub use self::file::DiskUse;
use self::file::{BLOCK, KEPT_FOR, Label, MAX_RECORD, Name, StateFile, disk_use};
use crate::{Error, Result, clock::unix_s, platform::files::OwnerOnly, sealed};

/// What the key of these files is for.
const PURPOSE: &str = "shoal states 1";
/// How often a lock is tried, and how long after each time.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// A session that ended so long ago is written: the next turn of a conversation begins with it and holds it whole.
pub const COLD: Duration = Duration::from_secs(1);
/// States that wait to be written.
const MOST_WAITING: usize = 8;
/// The smallest file that is worth its name.
pub const LEAST_BYTES: u64 = 16 << 20;

/// Where the states of one model lie, held by this process.
#[derive(Debug)]
pub struct Place {
    file: File,
    path: PathBuf,
    secret: [u8; 32],
    loan: Arc<Loan>,
}

/// Held by what a [`Place`] is lent to.
#[derive(Debug)]
pub struct Loan;

/// What a process that may open no file needs of a [`Place`].
pub struct Ticket {
    /// The open file.
    pub file: File,
    /// Where it is.
    pub path: PathBuf,
    /// What it is encrypted with.
    pub secret: [u8; 32],
}

impl Place {
    /// Makes or opens the file of what `model` names, `bytes` long, in the data folder. Files that were not written to for
    /// [`KEPT_FOR`] are deleted.
    ///
    /// # Errors
    /// When it cannot be written, or another process holds it.
    pub fn open(home: &Path, model: &[u8], bytes: u64) -> Result<Self> {
        if cfg!(windows) {
            return Err(Error::usage(
                "--keep-state needs files that one process locks and another one writes to, which Windows does not have: leave \
                 it away",
            ));
        }
        let folder = home.join("state");
        DirBuilder::new().recursive(true).owner_only().create(&folder)?;
        tidy(&folder)?;
        let secret = sealed::secret(home, PURPOSE)?;
        let name = blake3::keyed_hash(&secret, model);
        let path = folder.join(HEXLOWER.encode(&name.as_bytes()[..16]));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).owner_only().open(&path)?;
        claim(&file).map_err(|_| {
            Error::usage(
                "another process keeps the states of this model; stop it, or leave --keep-state away",
            )
        })?;
        file.set_len(bytes / BLOCK as u64 * BLOCK as u64)?;
        let secret = *blake3::keyed_hash(&secret, name.as_bytes()).as_bytes();
        Ok(Self { file, path, secret, loan: Arc::new(Loan) })
    }

    /// What the file takes of the disk.
    pub fn disk_use(&self) -> DiskUse {
        disk_use(&self.file)
    }

    /// As [`Place::ticket`], to one at a time: until the loan is dropped there is no other.
    pub fn lend(&self) -> Option<(Ticket, Arc<Loan>)> {
        let loan = (Arc::strong_count(&self.loan) == 1).then(|| self.loan.clone())?;
        Some((self.ticket().ok()?, loan))
    }

    /// For the process that computes; the lock stays with this one and ends with both.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn ticket(&self) -> Result<Ticket> {
        Ok(Ticket { file: self.file.try_clone()?, path: self.path.clone(), secret: self.secret })
    }
}

/// Locks the file. What computed for a process that was killed holds it until it notices.
fn claim(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..TRIES {
        if file.try_lock().is_ok() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    file.try_lock()
}

/// Deletes files that no process holds and that are too old.
fn tidy(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        // Another process that starts now deletes it as well.
        let Ok(file) = File::open(entry.path()) else { continue };
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age > KEPT_FOR && file.try_lock().is_ok() {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Does something with a file in the background: an answer does not wait for a disk.
pub fn behind(file: &Arc<StateFile>, work: impl FnOnce(&StateFile) + Send + 'static) {
    let file = file.clone();
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || work(&file))),
        Err(_) => work(&file),
    }
}

struct Save {
    label: Label,
    state: SessionState,
}

/// The states of one model on disk; see the module's page.
pub struct StateStore {
    file: Arc<StateFile>,
    saves: SyncSender<Save>,
    /// States handed on and not written yet.
    writing: Arc<AtomicUsize>,
}

impl StateStore {
    /// Opens what is there, and starts the thread that writes.
    ///
    /// # Errors
    /// When the file cannot be read or the thread not started.
    pub fn open(ticket: Ticket) -> Result<Self> {
        let file = Arc::new(StateFile::open(ticket.file, ticket.secret, unix_s())?);
        // None waits: what is being written has left the channel.
        let (saves, taken) = sync_channel::<Save>(0);
        let (to, writing) = (file.clone(), Arc::new(AtomicUsize::new(0)));
        let busy = writing.clone();
        thread::Builder::new().name("states".into()).spawn(move || {
            for Save { label, state } in taken {
                let saved =
                    state.snapshot().map_err(Error::from).and_then(|bytes| to.put(label, &bytes, unix_s()));
                if let Err(error) = saved {
                    tracing::warn!(%error, "a state is not kept on disk");
                }
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        })?;
        Ok(Self { file, saves, writing })
    }

    /// The beginning of `state` that may be kept, apart from what happens to it; `None` when it is empty, cannot be had twice, or when
    /// what would fit is behind a window of a layer.
    pub fn part(state: &SessionState) -> Option<SessionState> {
        let bytes = state.snapshot_bytes().max(1);
        let positions = state.len();
        let most = if bytes <= MAX_RECORD { positions } else { positions * (MAX_RECORD / 2) / bytes };
        state.share(most).filter(|state| !state.is_empty())
    }

    /// Has it written as `label` says; gives it back when another one is being written.
    ///
    /// # Errors
    /// The state, to be tried again.
    fn save(&self, label: Label, state: SessionState) -> std::result::Result<(), SessionState> {
        self.writing.fetch_add(1, Ordering::AcqRel);
        self.saves.try_send(Save { label, state }).map_err(|refused| {
            self.writing.fetch_sub(1, Ordering::AcqRel);
            let (TrySendError::Full(save) | TrySendError::Disconnected(save)) = refused;
            save.state
        })
    }

    /// Whether a state is being written.
    pub fn is_writing(&self) -> bool {
        self.writing.load(Ordering::Acquire) > 0
    }

    /// Fills an empty state of the same model, layers and kind; whether it was there.
    pub fn load(&self, name: &Name, state: &mut SessionState) -> bool {
        let Some(bytes) = self.file.get(name, unix_s()) else { return false };
        match state.restore(&bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a state on disk does not fit and is forgotten");
                self.file.remove(name);
                false
            }
        }
    }

    /// Names and notes of all states.
    pub fn notes(&self) -> Vec<(Name, Vec<u8>)> {
        self.file.notes()
    }

    /// Forgets a state.
    pub fn remove(&self, name: &Name) {
        self.file.remove(name);
    }

    /// Bytes of states on disk.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}

/// States of sessions that ended a moment ago, each with what says of what it is, until they are written.
///
/// Bounds: [`MOST_WAITING`] of them, within a number of bytes where there are several; what waits longest goes first.
pub struct Waiting<T> {
    states: VecDeque<(T, SessionState, Instant)>,
    limit_bytes: usize,
}

impl<T> Waiting<T> {
    /// None yet.
    pub fn new(limit_bytes: usize) -> Self {
        Self { states: VecDeque::new(), limit_bytes }
    }

    /// A session ended.
    pub fn push(&mut self, of: T, state: SessionState, now: Instant) {
        self.states.push_back((of, state, now));
        let bytes = |states: &VecDeque<(T, SessionState, Instant)>| {
            states.iter().map(|(_, state, _)| state.bytes()).sum::<usize>()
        };
        while self.states.len() > MOST_WAITING
            || self.states.len() > 1 && bytes(&self.states) > self.limit_bytes
        {
            self.states.pop_front();
        }
    }

    /// Forgets those that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.states.retain(|(of, ..)| keep(of));
    }

    /// How long until the first one is worth a look, if any waits.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        let (.., ended) = self.states.front()?;
        let left = COLD.saturating_sub(now.saturating_duration_since(*ended));
        // One that is due waits for another that is being written.
        Some(if left.is_zero() { COLD } else { left })
    }

    /// Hands the first one to `store` if it is due and none is being written, as `named` says; what it was of.
    pub fn write(
        &mut self,
        store: &StateStore,
        now: Instant,
        named: impl Fn(&T) -> Option<Label>,
    ) -> Option<T> {
        let (.., ended) = self.states.front()?;
        if now.saturating_duration_since(*ended) < COLD {
            return None;
        }
        let (of, state, ended) = self.states.pop_front()?;
        match store.save(named(&of)?, state) {
            Ok(()) => Some(of),
            Err(state) => {
                self.states.push_front((of, state, ended));
                None
            }
        }
    }
}
