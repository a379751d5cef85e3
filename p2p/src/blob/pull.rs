//! Fetches the wanted groups of a model from several sources at once.
//!
//! Each source has a loop of its own: claim some groups of the [`super::plan::Plan`], ask for them, check and
//! write one after the other. All loops run in the caller's task, so dropping the future stops everything; groups that
//! were written stay in the file.
//!
//! - A source is dropped at the first group that is wrong, and when a group takes longer than
//!   [`Options::group_timeout`]: at most 64 KiB are lost. What it had claimed goes to the others. A web server whose
//!   connection breaks is asked again, [`Source::retries`] times in a row, after waits that double from
//!   [`FIRST_WAIT`].
//! - The claim of a source grows to what it delivers in a second, so a slow one never holds much.
//! - Every [`COMMIT_BYTES`] or [`COMMIT_EVERY`] the file and its record are flushed; a power cut costs at most that.
//! - Nothing outside the wanted groups is written, and nothing at all when they would exceed
//!   [`Options::disk_bytes`].

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::{Instant, interval, sleep, timeout},
};

use super::{
    Error, GROUP_BYTES, GroupSet, Outboard, Pace, SparseFile,
    plan::Plan,
    source::{Source, SourceError},
    sparse,
    wire::MAX_RUN,
};

/// Bytes after which file and record are flushed: a third of a second of a SATA disk.
pub const COMMIT_BYTES: u64 = 64 << 20;
/// Time after which file and record are flushed.
pub const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// Wait before a broken web server is asked again; doubles each time.
pub const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Groups of a source's first claim: small, since nothing is known of its speed.
const FIRST_RUN: u32 = 4;
/// Sources at once; more are left waiting in their channel until one is dropped.
pub const MAX_SOURCES: usize = 32;

/// What to fetch and within which bounds.
#[derive(Clone, Debug)]
pub struct Options {
    /// The groups that shall be in the file.
    pub wanted: GroupSet,
    /// Most disk that the file and what belongs to it may take; `None` for as much as there is.
    pub disk_bytes: Option<u64>,
    /// How fast at most, over all sources.
    pub pace: Arc<Pace>,
    /// Longest time for one group: 15 s by default, 35 kbit/s.
    pub group_timeout: Duration,
}

impl Options {
    /// Fetches `wanted` as fast as it comes.
    pub fn new(wanted: GroupSet) -> Self {
        let pace = Arc::new(Pace::new(None));
        Self { wanted, disk_bytes: None, pace, group_timeout: Duration::from_secs(15) }
    }
}

/// What happens during a pull.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// How much there is to do; first of all.
    Started {
        /// Bytes of the wanted groups.
        total_bytes: u64,
        /// Bytes of them that are here already.
        have_bytes: u64,
    },
    /// A source takes part.
    Joined {
        /// Its name.
        source: String,
    },
    /// A group has arrived.
    Progress {
        /// From whom.
        source: String,
        /// Bytes of wanted groups that are here now.
        done_bytes: u64,
    },
    /// A web server broke and will be asked again.
    Retrying {
        /// Its name.
        source: String,
        /// What happened.
        why: String,
    },
    /// A source takes no part any more.
    Dropped {
        /// Its name.
        source: String,
        /// What happened.
        why: String,
        /// Whether it handed over bytes that are not the model's.
        lied: bool,
    },
}

/// What a pull did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes written.
    pub fetched_bytes: u64,
    /// Bytes that arrived sound but were here by then.
    pub spare_bytes: u64,
    /// Bytes written, by source, in the order they joined.
    pub by_source: Vec<(String, u64)>,
}

/// What the loops of the sources share.
struct Shared<'a> {
    file: &'a mut SparseFile,
    plan: Plan,
    report: Report,
    on: &'a mut (dyn FnMut(Event) + Send),
    /// Bytes of wanted groups that are here.
    done_bytes: u64,
    /// Bytes written since the last checkpoint.
    unsaved_bytes: u64,
    /// Why sources were dropped.
    dropped: Vec<String>,
    /// The disk failed: nothing makes sense any more.
    failed: Option<Error>,
}

struct Pull<'a> {
    shared: Mutex<Shared<'a>>,
    tree: Arc<Outboard>,
    options: &'a Options,
    /// Raised when work becomes free or ends.
    changed: Notify,
}

/// Brings all groups of `options.wanted` into `file` from `sources` and from those that arrive on `more` meanwhile.
///
/// Of several `sources`, one may be left in the middle of an answer when the others end the pull: only a source that
/// pulled alone and was not dropped can be used again.
///
/// `on` hears what happens; it is called between two groups and should return at once.
///
/// # Errors
/// [`Error::TooLarge`] before anything is fetched; [`Error::NoSource`] when none of the sources is left and `more` is
/// closed or absent; [`Error::Io`] of the disk. What has been fetched stays.
pub async fn pull(
    file: &mut SparseFile,
    sources: &mut [Box<dyn Source>],
    mut more: Option<mpsc::Receiver<Box<dyn Source>>>,
    options: &Options,
    on: &mut (dyn FnMut(Event) + Send),
) -> Result<Report, Error> {
    let tree = file.tree().clone();
    let needed = sparse::disk_bytes(tree.bytes(), &file.have().union(&options.wanted));
    if let Some(offered) = options.disk_bytes.filter(|&offered| needed > offered) {
        return Err(Error::TooLarge { needed, offered });
    }
    let missing = options.wanted.minus(file.have());
    let total_bytes = options.wanted.bytes(tree.bytes());
    let done_bytes = total_bytes - missing.bytes(tree.bytes());
    on(Event::Started { total_bytes, have_bytes: done_bytes });
    let shared = Shared {
        file,
        plan: Plan::new(missing),
        report: Report::default(),
        on,
        done_bytes,
        unsaved_bytes: 0,
        dropped: Vec::new(),
        failed: None,
    };
    let pull = Pull { shared: Mutex::new(shared), tree, options, changed: Notify::new() };
    let mut loops: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    for source in sources.iter_mut() {
        let index = pull.enter(source.name());
        loops.push(Box::pin(pull.drive(index, source.as_mut())));
    }
    let mut tick = interval(COMMIT_EVERY);
    tick.tick().await;
    let mut saved = Instant::now();
    let ended = loop {
        if let Some(end) = pull.ended(loops.is_empty() && more.is_none()) {
            break end;
        }
        tokio::select! {
            biased;
            _ = loops.next(), if !loops.is_empty() => {}
            source = next(&mut more), if more.is_some() && loops.len() < MAX_SOURCES => match source {
                Some(mut source) => {
                    let index = pull.enter(source.name());
                    let pull = &pull;
                    loops.push(Box::pin(async move { pull.drive(index, source.as_mut()).await }));
                }
                None => more = None,
            },
            _ = pull.due() => {}
            _ = tick.tick() => {}
        }
        let due = pull.lock().unsaved_bytes;
        if due >= COMMIT_BYTES || due > 0 && saved.elapsed() >= COMMIT_EVERY {
            // The loops rest meanwhile: what they would write then could not be flushed any faster.
            pull.save().await?;
            saved = Instant::now();
        }
    };
    drop(loops);
    pull.save().await?;
    let shared = pull.shared.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    ended.map(|()| shared.report)
}

async fn next(more: &mut Option<mpsc::Receiver<Box<dyn Source>>>) -> Option<Box<dyn Source>> {
    more.as_mut()?.recv().await
}

impl<'a> Pull<'a> {
    fn lock(&self) -> MutexGuard<'_, Shared<'a>> {
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How it ended, if it did; `alone` when no source is there and none can come.
    fn ended(&self, alone: bool) -> Option<Result<(), Error>> {
        let mut shared = self.lock();
        if let Some(failed) = shared.failed.take() {
            return Some(Err(failed));
        }
        let missing = shared.plan.left();
        match missing {
            0 => Some(Ok(())),
            _ if alone => Some(Err(Error::NoSource { missing, why: std::mem::take(&mut shared.dropped) })),
            _ => None,
        }
    }

    /// Returns when there is something for the main loop to look at.
    async fn due(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let shared = self.lock();
                let due = shared.unsaved_bytes >= COMMIT_BYTES;
                if due || shared.failed.is_some() || shared.plan.left() == 0 {
                    return;
                }
            }
            changed.await;
        }
    }

    async fn save(&self) -> Result<(), Error> {
        let checkpoint = {
            let mut shared = self.lock();
            shared.unsaved_bytes = 0;
            shared.file.checkpoint()
        };
        spawn_blocking(move || checkpoint.commit())
            .await
            .unwrap_or_else(|e| Err(Error::io("", std::io::Error::other(e))))
    }

    /// The number of a new source.
    fn enter(&self, source: &str) -> usize {
        let mut shared = self.lock();
        shared.report.by_source.push((source.to_owned(), 0));
        shared.report.by_source.len() - 1
    }

    /// The life of one source.
    async fn drive(&self, index: usize, source: &mut dyn Source) {
        let name = source.name().to_owned();
        let mut broken = 0;
        loop {
            let before = self.lock().report.by_source[index].1;
            let error = match self.take_from(index, source).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let moved = self.lock().report.by_source[index].1 > before;
            broken = if moved { 1 } else { broken + 1 };
            let again = error.is_passing() && broken <= source.retries();
            self.give_up(index, &name, &error, again);
            if !again {
                return;
            }
            sleep(FIRST_WAIT * (1 << (broken - 1).min(5))).await;
        }
    }

    /// Frees what the failed source had before it and tells why.
    fn give_up(&self, index: usize, source: &str, error: &SourceError, again: bool) {
        {
            let mut shared = self.lock();
            shared.plan.release(index);
            let (name, why) = (source.to_owned(), error.to_string());
            if again {
                (shared.on)(Event::Retrying { source: name, why });
            } else {
                shared.dropped.push(format!("{name}: {why}"));
                let lied = matches!(error, SourceError::Lied(_));
                (shared.on)(Event::Dropped { source: name, why, lied });
            }
        }
        self.changed.notify_waiters();
    }

    /// Takes groups from `source` until nothing is left that it has, or it fails.
    async fn take_from(&self, index: usize, source: &mut dyn Source) -> Result<(), SourceError> {
        let patience = self.options.group_timeout;
        let described = within(patience, source.describe(self.tree.id())).await?;
        if described.bytes != self.tree.bytes() {
            let why = format!("its file has {} bytes, the model {}", described.bytes, self.tree.bytes());
            return Err(SourceError::Refused(why));
        }
        let have = described.have.as_ref();
        {
            let mut shared = self.lock();
            let source = source.name().to_owned();
            (shared.on)(Event::Joined { source });
        }
        let mut run_len = FIRST_RUN;
        loop {
            let changed = self.changed.notified();
            let run = {
                let mut shared = self.lock();
                if !shared.plan.needs(have) || shared.failed.is_some() {
                    return Ok(());
                }
                shared.plan.claim(index, run_len, have)
            };
            let Some(run) = run else {
                // Others are at all that this one has; if they fail it is free again.
                changed.await;
                continue;
            };
            let started = Instant::now();
            within(patience.saturating_mul(2), source.start(&self.tree, run.clone())).await?;
            let mut group = vec![0; GROUP_BYTES as usize];
            for number in run.clone() {
                let group = &mut group[..self.tree.group_len(number)];
                self.options.pace.take(group.len()).await;
                within(patience, source.next(group)).await?;
                self.accept(index, number, group)?;
            }
            let per_s = f64::from(run.end - run.start) / started.elapsed().as_secs_f64().max(1e-3);
            run_len = (per_s as u32).clamp(1, MAX_RUN).min(run_len.saturating_mul(2));
        }
    }

    /// Checks and writes a group that arrived.
    fn accept(&self, index: usize, number: u32, group: &[u8]) -> Result<(), SourceError> {
        let mut shared = self.lock();
        let bytes = group.len() as u64;
        if !self.options.wanted.contains(number) {
            return Ok(());
        }
        match shared.file.write(number, group) {
            Ok(true) => {
                shared.report.fetched_bytes += bytes;
                shared.report.by_source[index].1 += bytes;
                shared.unsaved_bytes += bytes;
                shared.plan.deliver(number);
                shared.done_bytes += bytes;
                let source = shared.report.by_source[index].0.clone();
                let done_bytes = shared.done_bytes;
                (shared.on)(Event::Progress { source, done_bytes });
            }
            Ok(false) => {
                shared.report.spare_bytes += bytes;
                shared.plan.deliver(number);
            }
            Err(Error::Mismatch { what }) => return Err(SourceError::Lied(what)),
            Err(error) => shared.failed = Some(error),
        }
        if shared.failed.is_some() || shared.plan.left() == 0 || shared.unsaved_bytes >= COMMIT_BYTES {
            drop(shared);
            self.changed.notify_waiters();
        }
        Ok(())
    }
}

async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    timeout(patience, work).await.unwrap_or(Err(SourceError::Slow))
}

#[cfg(test)]
mod tests;
