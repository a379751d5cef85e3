//! Model files that strangers wrote, through the real binary: a good file is taken apart into the fields of its header, and
//! changed where it hurts: numbers at their extremes, types that are others', pieces cut, doubled, swapped and renamed.
//!
//! `shoal model inspect` must answer each with a description or a sentence: no panic, no abort, at most two seconds of
//! processor time, and little more memory than the good file takes. The last two are limits of the system that the
//! process runs under, so that what exceeds them dies of it. A seeded sample runs always, 2,000 with
//! `SHOAL_HOSTILE=full`; `SHOAL_SEED` draws others.

use std::{
    fs,
    ops::Range,
    path::Path,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use harness::{
    binary, data,
    gguf_parts::{Field, Parts},
};
use scheduler::rng::Rng;
use tempfile::TempDir;

/// Files of a sample, and of the whole run.
const SAMPLE: usize = 64;
const ALL: usize = 2_000;
/// Processor time of one, s.
const CPU_S: u32 = 2;
/// Memory beyond what the good file takes and twice a file, KiB.
const SLACK_KIB: u64 = 4 << 10;
/// Files looked at side by side.
const AT_ONCE: usize = 4;

/// A field of this kind.
fn any(parts: &Parts, rng: &mut Rng, kind: Field) -> Range<usize> {
    let all: Vec<&Range<usize>> = parts
        .fields
        .iter()
        .filter(|(of, range)| *of == kind && !range.is_empty())
        .map(|(_, range)| range)
        .collect();
    all[rng.below(all.len())].clone()
}

fn entry(parts: &Parts, rng: &mut Rng) -> Range<usize> {
    parts.entries[rng.below(parts.entries.len())].clone()
}

/// The file, changed once.
fn changed(parts: &Parts, rng: &mut Rng) -> Vec<u8> {
    let mut file = parts.bytes.clone();
    match rng.below(8) {
        0 | 1 => {
            let range = any(parts, rng, Field::Number);
            let long = file.len() as u64;
            let extremes = [
                0,
                1,
                2,
                7,
                31,
                33,
                255,
                long - 1,
                long,
                long + 1,
                1 << 20,
                1 << 31,
                1 << 32,
                (1 << 59) + 1,
                1 << 62,
                u64::MAX / 32,
                i64::MAX as u64,
                u64::MAX - 31,
                u64::MAX - 1,
                u64::MAX,
            ];
            let value = extremes[rng.below(extremes.len())].to_le_bytes();
            let width = range.len();
            file[range].copy_from_slice(&value[..width]);
        }
        2 => {
            let range = any(parts, rng, Field::Type);
            file[range].copy_from_slice(&(rng.below(48) as u32).to_le_bytes());
        }
        3 => {
            let end = parts.fields[rng.below(parts.fields.len())].1.end;
            file.truncate(end + rng.below(3));
        }
        4 => {
            // Doubled, behind itself or somewhere else; the counts stay.
            let (entry, place) = (entry(parts, rng), entry(parts, rng).start);
            file.splice(place..place, parts.bytes[entry].iter().copied());
        }
        5 => {
            let entry = entry(parts, rng);
            file.drain(entry);
        }
        6 => {
            // One's name, key or value becomes another's.
            let (to, from) = (any(parts, rng, Field::Text), any(parts, rng, Field::Text));
            let len = parts.bytes[from.clone()].len() as u64;
            file.splice(to.clone(), parts.bytes[from].iter().copied());
            file[to.start - 8..to.start].copy_from_slice(&len.to_le_bytes());
        }
        _ => {
            for _ in 0..1 + rng.below(8) {
                let range = &parts.fields[rng.below(parts.fields.len())].1;
                let at = (range.start + rng.below(range.len().max(1))).min(file.len() - 1);
                file[at] ^= 1 + rng.below(255) as u8;
            }
        }
    }
    file
}

/// `shoal model inspect` of a file, with so much address space.
fn inspect(file: &Path, home: &Path, kib: u64) -> Output {
    let script = format!("ulimit -v {kib}; ulimit -t {CPU_S}; exec \"$0\" model inspect --json \"$1\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(binary()).arg(file).env("SHOAL_HOME", home);
    command.stdin(Stdio::null()).output().expect("a shell")
}

/// The least address space that a file is described in, to the next MiB, KiB.
fn least(file: &Path, home: &Path) -> u64 {
    let (mut low, mut high) = (1, 4 << 10);
    assert!(inspect(file, home, high << 10).status.success(), "the good file is good");
    while low + 1 < high {
        let middle = (low + high) / 2;
        let enough = inspect(file, home, middle << 10).status.success();
        (low, high) = if enough { (low, middle) } else { (middle, high) };
    }
    high << 10
}

#[test]
fn files_of_strangers_are_described_or_refused() {
    let seed = std::env::var("SHOAL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(14);
    let count = if super::full() { ALL } else { SAMPLE };
    let folder = TempDir::new().unwrap();
    let families: Vec<Parts> = ["llama", "gemma3", "mixtral", "qwen2"]
        .iter()
        .map(|name| Parts::of(fs::read(data("families").join(format!("{name}.gguf"))).unwrap()))
        .collect();
    let good = folder.path().join("good.gguf");
    let longest = families.iter().max_by_key(|parts| parts.bytes.len()).unwrap();
    fs::write(&good, &longest.bytes).unwrap();
    let kib = least(&good, folder.path());
    println!("seed {seed}: {count} files, {} MiB of address space for a good one", kib >> 10);
    let (next, described) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = || {
        let mut longest = Duration::ZERO;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return longest;
            }
            let mut rng = Rng::new(seed ^ (index as u64) << 16);
            let bytes = changed(&families[index % families.len()], &mut rng);
            let path = folder.path().join(format!("{index}.gguf"));
            fs::write(&path, &bytes).unwrap();
            let started = Instant::now();
            let output = inspect(&path, folder.path(), kib + 2 * (bytes.len() as u64 >> 10) + SLACK_KIB);
            longest = longest.max(started.elapsed());
            let told = String::from_utf8_lossy(&output.stderr);
            let ended = output.status.code().is_some_and(|code| (0..=2).contains(&code));
            assert!(
                ended && !told.contains("panicked"),
                "seed {seed}, file {index}: {}: {told}",
                output.status
            );
            assert!(
                output.status.success() || !told.trim().is_empty(),
                "seed {seed}, file {index}: no reason"
            );
            described.fetch_add(usize::from(output.status.success()), Ordering::Relaxed);
            fs::remove_file(path).unwrap();
        }
    };
    let longest = std::thread::scope(|scope| {
        let looking: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(look)).collect();
        looking.into_iter().map(|one| one.join().unwrap()).max().unwrap()
    });
    let described = described.into_inner();
    println!("{described} described, {} refused, the slowest after {longest:?}", count - described);
    assert!(described > 0 && described < count, "some changes hurt and some do not");
}
