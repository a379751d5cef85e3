use std::{
    ops::Range,
    os::unix::fs::MetadataExt,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use scheduler::ModelId;
use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::*;
use crate::blob::{
    Form, PeerSource,
    serve::{Limits, serve},
    testing::{OneModel, model, outboard_of},
    wire::{ANSWER_BYTES, MAX_DESCRIPTION},
};

const G: usize = GROUP_BYTES as usize;

/// A model, the file that is filled with it and what happens meanwhile.
struct Bench {
    data: Vec<u8>,
    original: NamedTempFile,
    home: TempDir,
    tree: Arc<Outboard>,
    encoded: Vec<u8>,
    events: Vec<Event>,
}

impl Bench {
    fn new(bytes: usize) -> Self {
        let (data, original) = model(bytes, 9);
        let (tree, encoded) = outboard_of(original.path());
        Self { data, original, home: TempDir::new().unwrap(), tree, encoded, events: Vec::new() }
    }

    fn folder(&self) -> &Path {
        self.home.path()
    }

    fn open(&self) -> SparseFile {
        SparseFile::open(self.folder(), self.tree.clone(), &self.encoded).unwrap()
    }

    /// An honest peer that has `have`.
    fn peer(&self, name: &str, have: Option<GroupSet>) -> Box<dyn Source> {
        let stream = self.stream_of(have, Form::Packed);
        Box::new(PeerSource::new(name, stream, Form::Packed).unwrap())
    }

    fn stream(&self, have: Option<GroupSet>) -> DuplexStream {
        self.stream_of(have, Form::Plain)
    }

    fn stream_of(&self, have: Option<GroupSet>, form: Form) -> DuplexStream {
        let (_, shelf) = OneModel::new(self.original.path(), have);
        let (asker, answerer) = duplex(G);
        tokio::spawn(async move { serve(answerer, form, shelf, &Limits::default()).await });
        asker
    }

    async fn pull(&mut self, mut sources: Vec<Box<dyn Source>>, options: &Options) -> Result<Report, Error> {
        let mut file = self.open();
        let events = &mut self.events;
        pull(&mut file, &mut sources, None, options, &mut |event| events.push(event)).await
    }

    fn all(&self) -> Options {
        Options::new(GroupSet::all(self.tree.groups()))
    }

    fn assert_whole(&self) {
        assert!(std::fs::read(self.open().path()).unwrap() == self.data);
        assert!(self.open().have().covers(&GroupSet::all(self.tree.groups())), "the record is complete");
    }

    fn dropped(&self) -> Vec<(&str, bool)> {
        let dropped = |event| match event {
            &Event::Dropped { ref source, lied, .. } => Some((source.as_str(), lied)),
            _ => None,
        };
        self.events.iter().filter_map(dropped).collect()
    }

    /// Groups that arrived from `name`.
    fn groups_from(&self, name: &str) -> usize {
        self.events.iter().filter(|e| matches!(e, Event::Progress { source, .. } if source == name)).count()
    }
}

/// A stream that flips a bit of the byte at `bad` of what it delivers, and counts what it delivered.
struct Tampered<S> {
    stream: S,
    bad: u64,
    seen: Arc<Mutex<u64>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Tampered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        let mut seen = self.seen.lock().unwrap();
        if (*seen..*seen + read).contains(&self.bad) {
            buf.filled_mut()[before + (self.bad - *seen) as usize] ^= 0x10;
        }
        *seen += read;
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tampered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn one_peer_gives_everything_and_the_record_survives() {
    let mut bench = Bench::new(37 * G + 11);
    let report = bench.pull(vec![bench.peer("a", None)], &bench.all()).await.unwrap();
    assert_eq!(report.fetched_bytes, bench.data.len() as u64);
    assert_eq!(bench.groups_from("a"), 38);
    bench.assert_whole();
    let again = bench.pull(Vec::new(), &bench.all()).await.unwrap();
    assert_eq!(again.fetched_bytes, 0, "nothing is missing, so no source is needed");
}

#[tokio::test]
async fn two_peers_are_both_used() {
    let mut bench = Bench::new(64 * G);
    // Together at 8 MB/s: neither can be done before the other has begun.
    let options = Options { pace: Arc::new(Pace::new(Some(8_000_000))), ..bench.all() };
    let report = bench.pull(vec![bench.peer("a", None), bench.peer("b", None)], &options).await.unwrap();
    assert!(report.by_source.iter().all(|(_, bytes)| *bytes >= 4 * GROUP_BYTES), "{report:?}");
    bench.assert_whole();
}

#[tokio::test]
async fn peers_that_hold_different_parts_complete_each_other() {
    let mut bench = Bench::new(20 * G);
    let half = |ranges: &[Range<u64>]| Some(GroupSet::of_bytes(20 << 16, ranges));
    let even = bench.peer("even", half(&[0..5 << 16, 9 << 16..10 << 16]));
    let odd = bench.peer("odd", half(&[4 << 16..9 << 16, 10 << 16..20 << 16]));
    bench.pull(vec![even, odd], &bench.all()).await.unwrap();
    assert!(bench.groups_from("even") >= 5 && bench.groups_from("odd") >= 14);
    bench.assert_whole();
    let mut other = Bench::new(20 * G);
    let some = other.peer("some", half(&[0..19 << 16]));
    let failed = other.pull(vec![some], &other.all()).await;
    assert!(matches!(failed, Err(Error::NoSource { missing: 1, .. })), "{failed:?}");
    assert_eq!(other.open().have().len(), 19, "what could be had is kept");
}

#[tokio::test]
async fn a_lying_seeder_is_left_at_its_first_bad_group_and_the_pull_completes_from_another() {
    for bad_group in [0, 1, 7, 30] {
        let mut bench = Bench::new(40 * G);
        let seen = Arc::new(Mutex::new(0));
        // The bad byte is the last of a group: up to there everything is right.
        let description = 16 + 16 + 8;
        let answers = runs_before(bad_group);
        let bad = description + answers * ANSWER_BYTES as u64 + (bad_group + 1) * GROUP_BYTES - 1;
        let liar = Tampered { stream: bench.stream(None), bad, seen: seen.clone() };
        let alone = bench
            .pull(vec![Box::new(PeerSource::new("liar", liar, Form::Plain).unwrap())], &bench.all())
            .await;
        assert!(matches!(alone, Err(Error::NoSource { .. })), "{alone:?}");
        assert_eq!(bench.dropped(), [("liar", true)]);
        assert_eq!(
            bench.open().have().len() as u64,
            bad_group,
            "the groups before the lie are sound and kept"
        );
        assert_eq!(*seen.lock().unwrap(), bad + 1, "not a byte behind the bad group was read");
        let honest = bench.pull(vec![bench.peer("honest", None)], &bench.all()).await.unwrap();
        assert_eq!(honest.fetched_bytes, (40 - bad_group) * GROUP_BYTES);
        bench.assert_whole();
    }
}

/// Answers that a lone, fast peer gives up to `group`: claims grow 4, 8, 16, ...
fn runs_before(group: u64) -> u64 {
    (0..).find(|&runs| 4 * ((1 << runs) - 1) > group).unwrap()
}

#[tokio::test]
async fn a_lying_seeder_beside_an_honest_one_costs_one_group() {
    let mut bench = Bench::new(60 * G);
    let seen = Arc::new(Mutex::new(0));
    let liar = Tampered { stream: bench.stream(None), bad: 40 + 16 + GROUP_BYTES + 5, seen };
    let sources = vec![
        Box::new(PeerSource::new("liar", liar, Form::Plain).unwrap()) as Box<dyn Source>,
        bench.peer("honest", None),
    ];
    bench.pull(sources, &bench.all()).await.unwrap();
    assert_eq!(bench.dropped(), [("liar", true)]);
    assert_eq!((bench.groups_from("liar"), bench.groups_from("honest")), (1, 59));
    bench.assert_whole();
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_silent_seeder_is_dropped_within_one_group() {
    let mut bench = Bench::new(30 * G);
    // One never answers, one answers and then trickles.
    let (silent, _keep) = duplex(64);
    let (trickle, mut end) = duplex(1 << 12);
    let honest_description =
        crate::blob::wire::Description { bytes: 30 << 16, have: GroupSet::all(30) }.encode();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut request = [0; 64];
        let head = |kind, len| {
            crate::blob::wire::Answer { kind, status: crate::blob::wire::Status::Fine, len }.encode()
        };
        end.read_exact(&mut request).await.unwrap();
        end.write_all(&head(1, honest_description.len() as u64)).await.unwrap();
        end.write_all(&honest_description).await.unwrap();
        end.read_exact(&mut request).await.unwrap();
        let count = u64::from(u32::from_le_bytes(std::array::from_fn(|i| request[44 + i])));
        end.write_all(&head(3, count * GROUP_BYTES)).await.unwrap();
        while end.write_all(&[1]).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let (stalled, mut never) = (bench.peer("honest", None), Vec::new());
    never.push(Box::new(PeerSource::new("silent", silent, Form::Plain).unwrap()) as Box<dyn Source>);
    never.push(Box::new(PeerSource::new("trickle", trickle, Form::Plain).unwrap()) as Box<dyn Source>);
    let started = Instant::now();
    let alone = bench.pull(never, &bench.all()).await;
    assert!(matches!(alone, Err(Error::NoSource { missing: 30, .. })), "{alone:?}");
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    assert_eq!(bench.dropped(), [("silent", false), ("trickle", false)]);
    bench.pull(vec![stalled], &bench.all()).await.unwrap();
    bench.assert_whole();
}

#[tokio::test]
async fn any_flipped_byte_of_any_group_is_never_accepted() {
    // 3 groups; the flip walks through every group, the edges of each and the short last one.
    let bytes = 2 * G + 500;
    let flips = (0..bytes).filter(|at| at % 4099 == 0 || at % G < 2 || at % G > G - 3 || at + 3 > bytes);
    let mut tried = 0;
    let bench = Bench::new(bytes);
    for at in flips {
        let home = TempDir::new().unwrap();
        let bad = (40 + ANSWER_BYTES + at) as u64;
        let liar = Tampered { stream: bench.stream(None), bad, seen: Arc::default() };
        let mut file = SparseFile::open(home.path(), bench.tree.clone(), &bench.encoded).unwrap();
        let source: Box<dyn Source> = Box::new(PeerSource::new("liar", liar, Form::Plain).unwrap());
        let pulled = pull(&mut file, &mut [source], None, &bench.all(), &mut |_| {}).await;
        assert!(pulled.is_err(), "byte {at}");
        assert!(!file.have().contains((at / G) as u32), "byte {at}");
        let on_disk = std::fs::read(file.path()).unwrap();
        assert_eq!(on_disk[at], 0, "byte {at} did not reach the disk");
        tried += 1;
    }
    assert!(tried > 40);
}

#[tokio::test]
async fn only_wanted_groups_are_on_disk_and_the_cap_is_never_passed() {
    let mut bench = Bench::new(200 * G);
    let wanted = GroupSet::of_bytes(200 << 16, &[0..3 << 16, 150 << 16..157 << 16]);
    let needed = sparse::disk_bytes(200 << 16, &wanted);
    let mut options = Options { disk_bytes: Some(needed - 1), ..Options::new(wanted.clone()) };
    let refused = bench.pull(vec![bench.peer("a", None)], &options).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert!(bench.events.is_empty() && bench.open().have().is_empty(), "nothing was asked for");
    options.disk_bytes = Some(needed);
    let report = bench.pull(vec![bench.peer("a", None)], &options).await.unwrap();
    assert_eq!(report.fetched_bytes, 10 * GROUP_BYTES);
    let file = std::fs::metadata(bench.open().path()).unwrap();
    assert_eq!((file.len(), file.blocks() * 512), (200 << 16, 10 << 16));
    let folder: u64 = std::fs::read_dir(bench.folder())
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().blocks() * 512)
        .sum();
    let rounding = 4 * 4096;
    assert!(folder <= needed + rounding, "{folder} bytes of disk where {needed} were offered");
    // More layers later: what is here counts against the cap too.
    let more = Options {
        disk_bytes: Some(needed),
        ..Options::new(GroupSet::of_bytes(200 << 16, &[0..1 << 16, 9 << 16..10 << 16]))
    };
    assert!(matches!(bench.pull(vec![bench.peer("a", None)], &more).await, Err(Error::TooLarge { .. })));
}

#[tokio::test]
async fn a_pull_that_is_dropped_in_the_middle_loses_nothing_that_was_written() {
    let mut bench = Bench::new(50 * G);
    let mut file = bench.open();
    let seen = Arc::new(Notify::new());
    let heard = seen.clone();
    let mut groups = 0;
    let mut on = move |event| {
        groups += u32::from(matches!(event, Event::Progress { .. }));
        if groups == 10 {
            heard.notify_one();
        }
    };
    let options = Options { pace: Arc::new(Pace::new(Some(100 << 16))), ..bench.all() };
    let mut sources = [bench.peer("a", None)];
    tokio::select! {
        _ = pull(&mut file, &mut sources, None, &options, &mut on) => panic!("it ended before it was stopped"),
        _ = seen.notified() => {}
    }
    let had = file.have().len();
    assert!((10..50).contains(&had));
    drop(file);
    let mut file = bench.open();
    assert!(file.have().is_empty(), "nothing was flushed yet");
    assert_eq!(file.recheck(&GroupSet::all(50), &mut |_| true).unwrap(), had);
    drop(file);
    bench.pull(vec![bench.peer("a", None)], &bench.all()).await.unwrap();
    bench.assert_whole();
}

#[tokio::test]
async fn a_source_that_comes_later_is_used() {
    let bench = Bench::new(10 * G);
    let (send, more) = mpsc::channel(1);
    send.send(bench.peer("late", None)).await.unwrap();
    drop(send);
    let mut file = bench.open();
    let report = pull(&mut file, &mut [], Some(more), &bench.all(), &mut |_| {}).await.unwrap();
    assert_eq!(report.by_source, [("late".to_owned(), 10 << 16)]);
    let mut empty = SparseFile::open(&bench.folder().join("x"), bench.tree.clone(), &bench.encoded).unwrap();
    let (_, closed) = mpsc::channel(1);
    let alone = pull(&mut empty, &mut [], Some(closed), &bench.all(), &mut |_| {}).await;
    assert!(matches!(alone, Err(Error::NoSource { missing: 10, .. })));
}

#[tokio::test]
async fn a_peer_of_another_model_or_with_an_endless_description_is_refused() {
    let mut bench = Bench::new(8 * G);
    let other = Bench::new(9 * G);
    let failed = bench.pull(vec![other.peer("other", None)], &bench.all()).await;
    assert!(matches!(failed, Err(Error::NoSource { missing: 8, .. })), "{failed:?}");
    for answer in [
        crate::blob::wire::Answer {
            kind: 1,
            status: crate::blob::wire::Status::Fine,
            len: MAX_DESCRIPTION as u64 + 1,
        },
        crate::blob::wire::Answer { kind: 1, status: crate::blob::wire::Status::Fine, len: u64::MAX },
        crate::blob::wire::Answer { kind: 2, status: crate::blob::wire::Status::Fine, len: 40 },
    ] {
        use tokio::io::AsyncWriteExt;
        let (stream, mut end) = duplex(1 << 10);
        end.write_all(&answer.encode()).await.unwrap();
        let source = Box::new(PeerSource::new("odd", stream, Form::Plain).unwrap());
        assert!(bench.pull(vec![source], &bench.all()).await.is_err());
    }
    assert_eq!(bench.dropped().iter().filter(|(_, lied)| *lied).count(), 3);
}

#[tokio::test]
async fn the_tree_comes_from_the_first_peer_that_has_it_and_liars_are_removed() {
    let bench = Bench::new(70 * G + 3);
    let id = bench.tree.id();
    let patience = Duration::from_secs(15);
    let liar = |bad| {
        Box::new(
            PeerSource::new(
                "liar",
                Tampered { stream: bench.stream(None), bad, seen: Arc::default() },
                Form::Plain,
            )
            .unwrap(),
        ) as Box<dyn Source>
    };
    let other = Bench::new(3 * G);
    let mut sources =
        vec![other.peer("other", None), liar(16 + 64 + 1000), liar(16 + 9), bench.peer("good", None)];
    let (tree, encoded) =
        crate::blob::source::tree(&mut sources, Some(id), u64::MAX, patience).await.unwrap();
    assert_eq!((tree, encoded), (bench.tree.as_ref().clone(), bench.encoded.clone()));
    assert_eq!(sources.iter().map(|s| s.name()).collect::<Vec<_>>(), ["other", "good"]);
    let capped = crate::blob::source::tree(&mut sources, Some(id), 70 << 16, patience).await;
    assert!(matches!(capped, Err(Error::NoSource { .. })), "a file larger than what is allowed");
    let unknown =
        crate::blob::source::tree(&mut sources, Some(ModelId::numbered(1)), u64::MAX, patience).await;
    assert!(unknown.is_err());
}
