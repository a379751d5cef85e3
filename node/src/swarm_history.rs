//! How it went on other days: a ring of samples in one file of fixed size.
//!
//! ```text
//! HOME/swarm-history         SLOTS records of RECORD bytes; the record of a span stands at (start / SPAN_S) % SLOTS
//!
//! record   start s u64 | seconds u32 | answers u32 | tokens u32 | gaps u32 | gaps ms u64 | faults u32 | peers u32
//!          round trip us u32, 0 for none | given u64 | balance i64 | check u32          all little-endian
//! ```
//!
//! Every [`SPAN_S`] the daemon writes one record, and once more when it stops. A record lies within one sector and is written
//! at once; one that is torn all the same, of another version, or older than [`DAYS`] fails its check or its time and is
//! none. What a node writes twice into one span, because it was restarted, is added up. There are times, counts and
//! sums in it: no prompt, no name of a model or node.
//!
//! Limits: the file is sparse until it is full, and never longer than [`FILE_BYTES`].

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use api::swarm_records::{History, MAX_DAYS, Sample};

use crate::platform::files::{FileAt, NoLinks, OwnerOnly};

/// Seconds of a span.
pub const SPAN_S: u64 = 300;
/// Days that are kept.
const DAYS: u64 = MAX_DAYS as u64;
/// Seconds of a day.
const DAY_S: u64 = 86_400;
/// Spans that are kept.
const SLOTS: u64 = DAYS * DAY_S / SPAN_S;
/// A power of two, so that none lies across the border of two sectors.
const RECORD: usize = 64;
/// Of the whole file.
pub const FILE_BYTES: u64 = SLOTS * RECORD as u64;
/// What the check of a record is made for.
const CONTEXT: &str = "shoal/swarm-history/1";

/// What is counted over a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    start_s: u64,
    seconds: u32,
    answers: u32,
    tokens: u32,
    /// Tokens after the first of each answer, and how long those took.
    gaps: u32,
    gaps_ms: u64,
    faults: u32,
    peers: u32,
    /// Microseconds; 0 for none.
    rtt_us: u32,
    given: u64,
    balance: i64,
}

/// What a record is made of beside what was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Peers connected.
    pub peers: usize,
    /// Median of the round trips to them.
    pub rtt_ms: Option<f64>,
    /// Layer passes computed for others since the start.
    pub given: u64,
    /// Layer passes given to all peers less those taken.
    pub balance: i64,
}

impl Record {
    fn bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.start_s.to_le_bytes());
        for part in [self.seconds, self.answers, self.tokens, self.gaps] {
            put(&part.to_le_bytes());
        }
        put(&self.gaps_ms.to_le_bytes());
        for part in [self.faults, self.peers, self.rtt_us] {
            put(&part.to_le_bytes());
        }
        put(&self.given.to_le_bytes());
        put(&self.balance.to_le_bytes());
        let check = check(&bytes);
        bytes[RECORD - 4..].copy_from_slice(&check);
        bytes
    }

    /// The record in these bytes; `None` for what is none.
    fn read(bytes: &[u8; RECORD]) -> Option<Self> {
        if bytes[RECORD - 4..] != check(bytes) {
            return None;
        }
        let small = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let large = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            start_s: large(0)?,
            seconds: small(8)?,
            answers: small(12)?,
            tokens: small(16)?,
            gaps: small(20)?,
            gaps_ms: large(24)?,
            faults: small(32)?,
            peers: small(36)?,
            rtt_us: small(40)?,
            given: large(44)?,
            balance: large(52)? as i64,
        })
    }

    /// This span, and a later one or a later part of it.
    fn with(self, later: Self) -> Self {
        Self {
            start_s: self.start_s,
            seconds: self.seconds.saturating_add(later.seconds),
            answers: self.answers.saturating_add(later.answers),
            tokens: self.tokens.saturating_add(later.tokens),
            gaps: self.gaps.saturating_add(later.gaps),
            gaps_ms: self.gaps_ms.saturating_add(later.gaps_ms),
            faults: self.faults.saturating_add(later.faults),
            peers: self.peers.max(later.peers),
            rtt_us: if later.rtt_us == 0 { self.rtt_us } else { later.rtt_us },
            given: self.given.saturating_add(later.given),
            balance: later.balance,
        }
    }

    fn sample(&self, at_s: u64) -> Sample {
        Sample {
            at_s,
            seconds: self.seconds,
            answers: self.answers,
            tokens: self.tokens,
            tok_s: (self.gaps > 0 && self.gaps_ms > 0)
                .then(|| f64::from(self.gaps) * 1e3 / self.gaps_ms as f64),
            faults: self.faults,
            peers: self.peers,
            rtt_ms: (self.rtt_us > 0).then(|| f64::from(self.rtt_us) / 1e3),
            given: self.given,
            balance: self.balance,
        }
    }
}

/// Of all of a record but its end.
fn check(bytes: &[u8; RECORD]) -> [u8; 4] {
    let hash = blake3::derive_key(CONTEXT, &bytes[..RECORD - 4]);
    [hash[0], hash[1], hash[2], hash[3]]
}

fn path(home: &Path) -> PathBuf {
    home.join("swarm-history")
}

fn place(start_s: u64) -> u64 {
    start_s / SPAN_S % SLOTS * RECORD as u64
}

/// Adds a record to the file.
fn write(home: &Path, record: Record) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).owner_only().no_links();
    let file = options.open(path(home))?;
    if file.metadata()?.len() != FILE_BYTES {
        file.set_len(FILE_BYTES)?;
    }
    let mut bytes = [0; RECORD];
    file.read_exact_at(&mut bytes, place(record.start_s))?;
    let before = Record::read(&bytes).filter(|before| before.start_s == record.start_s);
    let record = before.map_or(record, |before| before.with(record));
    file.write_all_at(&record.bytes(), place(record.start_s))
}

/// The last `days` below `home`, in as many spans for any number of days. Nothing where there is no file.
///
/// # Errors
/// Those of reading.
pub fn read(home: &Path, now_s: u64, days: u32) -> io::Result<History> {
    let days = days.clamp(1, MAX_DAYS);
    let span_s = SPAN_S * u64::from(days);
    let since_s = now_s.saturating_sub(u64::from(days) * DAY_S);
    let mut bytes = Vec::new();
    match File::open(path(home)) {
        Ok(file) => drop(io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES), &mut bytes)?),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    // A clock that was ahead has left records of the future.
    let fits = |record: &Record| (since_s..=now_s).contains(&record.start_s);
    let mut records: Vec<Record> =
        bytes.as_chunks::<RECORD>().0.iter().filter_map(Record::read).filter(fits).collect();
    records.sort_by_key(|record| record.start_s);
    let mut samples: Vec<(u64, Record)> = Vec::new();
    for record in records {
        let at_s = record.start_s / span_s * span_s;
        match samples.last_mut().filter(|last| last.0 == at_s) {
            Some(last) => last.1 = last.1.with(record),
            None => samples.push((at_s, record)),
        }
    }
    let samples = samples.iter().map(|(at_s, record)| record.sample(*at_s)).collect();
    Ok(History { now_s, days, span_s, samples })
}

/// The daemon's side: counts, and writes what was counted when a span is over.
#[derive(Debug)]
pub struct Recorder {
    home: PathBuf,
    counted: Record,
    since_s: u64,
    given_before: u64,
}

impl Recorder {
    /// Counts from now on.
    pub fn new(home: PathBuf, now_s: u64) -> Self {
        Self { home, counted: Record::default(), since_s: now_s, given_before: 0 }
    }

    /// An answer that this node conducted has ended.
    pub fn answered(&mut self, tokens: usize, tok_s: f64, faults: usize) {
        let counted = &mut self.counted;
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        counted.answers = counted.answers.saturating_add(1);
        counted.tokens = counted.tokens.saturating_add(small(tokens));
        counted.faults = counted.faults.saturating_add(small(faults));
        if tokens > 1 && tok_s.is_finite() && tok_s > 0.0 {
            let gaps = small(tokens - 1);
            counted.gaps = counted.gaps.saturating_add(gaps);
            counted.gaps_ms = counted.gaps_ms.saturating_add((f64::from(gaps) * 1e3 / tok_s).round() as u64);
        }
    }

    /// Whether a span is over.
    pub fn is_due(&self, now_s: u64) -> bool {
        now_s / SPAN_S != self.since_s / SPAN_S
    }

    /// Writes what was counted, and begins again. A clock that was set back loses a span.
    pub fn record(&mut self, now_s: u64, gauges: Gauges) {
        let start_s = self.since_s / SPAN_S * SPAN_S;
        // A machine that slept has not run all of that time.
        let end_s = now_s.min(start_s + SPAN_S);
        let record = Record {
            start_s,
            seconds: end_s.saturating_sub(self.since_s) as u32,
            peers: u32::try_from(gauges.peers).unwrap_or(u32::MAX),
            rtt_us: gauges.rtt_ms.map_or(0, |ms| (ms * 1e3).round().clamp(1.0, f64::from(u32::MAX)) as u32),
            given: gauges.given.saturating_sub(self.given_before),
            balance: gauges.balance,
            ..self.counted
        };
        (self.counted, self.since_s, self.given_before) = (Record::default(), now_s, gauges.given);
        if let Err(error) = write(&self.home, record) {
            tracing::warn!(%error, "a sample of the history could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const NOON: u64 = 1_700_000_000 / DAY_S * DAY_S + DAY_S / 2;

    fn gauges(given: u64) -> Gauges {
        Gauges { peers: 3, rtt_ms: Some(12.5), given, balance: -7 }
    }

    #[test]
    fn there_is_nothing_before_something_happened() {
        let home = tempfile::tempdir().unwrap();
        let history = read(home.path(), NOON, 1).unwrap();
        assert_eq!((history.samples.len(), history.span_s), (0, SPAN_S));
        assert!(!path(home.path()).exists(), "reading makes no file");
    }

    #[test]
    fn a_span_says_what_was_counted_and_a_restart_adds_to_it() {
        let home = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(home.path().to_owned(), NOON + 10);
        assert!(!recorder.is_due(NOON + SPAN_S - 1) && recorder.is_due(NOON + SPAN_S));
        recorder.answered(11, 5.0, 1);
        recorder.answered(1, 0.0, 0);
        recorder.record(NOON + 100, gauges(40));
        let mut recorder = Recorder::new(home.path().to_owned(), NOON + 200);
        recorder.answered(21, 10.0, 0);
        recorder.record(NOON + SPAN_S, Gauges { rtt_ms: None, peers: 1, given: 2, balance: 9 });
        let history = read(home.path(), NOON + 2 * SPAN_S, 1).unwrap();
        let expected = Sample {
            at_s: NOON,
            seconds: 190,
            answers: 3,
            tokens: 33,
            tok_s: Some(7.5),
            faults: 1,
            peers: 3,
            rtt_ms: Some(12.5),
            given: 42,
            balance: 9,
        };
        assert_eq!(history.samples, [expected]);
        // An idle span has a sample that says so, and no rate.
        recorder.record(NOON + 2 * SPAN_S, Gauges::default());
        let history = read(home.path(), NOON + 2 * SPAN_S, 1).unwrap();
        let idle = &history.samples[1];
        assert_eq!((idle.seconds, idle.answers, idle.tok_s, idle.rtt_ms), (300, 0, None, None));
    }

    #[test]
    fn the_file_keeps_its_size_and_forgets_after_thirty_days() {
        let home = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(home.path().to_owned(), NOON);
        let mut now_s = NOON;
        for span in 0..SLOTS + 500 {
            now_s = NOON + (span + 1) * SPAN_S;
            recorder.answered(2, 4.0, 0);
            recorder.record(now_s, gauges(span));
        }
        let about = fs::metadata(path(home.path())).unwrap();
        assert_eq!((about.len(), about.permissions().mode() & 0o777), (FILE_BYTES, 0o600));
        for days in 1..=MAX_DAYS {
            let history = read(home.path(), now_s, days).unwrap();
            let spans = history.samples.len();
            assert!((287..=290).contains(&spans), "{spans} spans of {days} days");
            assert!(history.samples.is_sorted_by_key(|sample| sample.at_s));
        }
        let all = read(home.path(), now_s, MAX_DAYS).unwrap();
        let answers: u32 = all.samples.iter().map(|sample| sample.answers).sum();
        assert_eq!(u64::from(answers), SLOTS);
        assert!(read(home.path(), now_s + 31 * DAY_S, MAX_DAYS).unwrap().samples.is_empty());
        assert!(read(home.path(), NOON - DAY_S, MAX_DAYS).unwrap().samples.is_empty(), "a clock set back");
    }

    #[test]
    fn torn_and_foreign_records_are_none() {
        let home = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(home.path().to_owned(), NOON);
        recorder.record(NOON + SPAN_S, gauges(1));
        recorder.record(NOON + 2 * SPAN_S, gauges(2));
        let mut bytes = fs::read(path(home.path())).unwrap();
        bytes[place(NOON) as usize + 12] ^= 1;
        fs::write(path(home.path()), &bytes).unwrap();
        assert_eq!(read(home.path(), NOON + DAY_S / 2, 1).unwrap().samples.len(), 1);
        // A file of another length is made right, whatever is in it.
        fs::write(path(home.path()), vec![7; 1_000_001]).unwrap();
        assert!(read(home.path(), NOON, 30).unwrap().samples.is_empty());
        recorder.record(NOON + 3 * SPAN_S, gauges(3));
        assert_eq!(fs::metadata(path(home.path())).unwrap().len(), FILE_BYTES);
        assert_eq!(read(home.path(), NOON + DAY_S / 2, 1).unwrap().samples.len(), 1);
    }

    #[test]
    fn every_field_is_read_as_it_was_written() {
        let record = Record {
            start_s: 1,
            seconds: 2,
            answers: 3,
            tokens: 4,
            gaps: 5,
            gaps_ms: u64::MAX,
            faults: 7,
            peers: 8,
            rtt_us: u32::MAX,
            given: 10,
            balance: i64::MIN,
        };
        assert_eq!(Record::read(&record.bytes()), Some(record));
        assert_eq!(record.with(record).gaps_ms, u64::MAX, "sums do not wrap");
        assert_eq!(Record::read(&[0; RECORD]), None);
    }
}
