//! `shoal model pull|share|export` as processes: whole models and single layers from a mirror, `kill -9` in the middle.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use harness::{Shoal, binary};
use serde_json::Value;
use shard::{quant, synthetic};
use tempfile::TempDir;

/// A web server with ranges that counts what it sends and can be slow.
struct Mirror {
    port: u16,
    sent: Arc<AtomicU64>,
}

impl Mirror {
    /// Serves the files of `folder`; a pause of `pause` after each 64 KiB.
    fn new(folder: &Path, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::new(AtomicU64::new(0));
        let (folder, counter) = (folder.to_owned(), sent.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (folder, counter) = (folder.clone(), counter.clone());
                thread::spawn(move || answer(stream, &folder, &counter, pause));
            }
        });
        Self { port, sent }
    }

    fn url(&self, file: &str) -> String {
        format!("http://127.0.0.1:{}/org/repo/resolve/main/{file}", self.port)
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

/// Answers one request and closes.
fn answer(stream: std::net::TcpStream, folder: &Path, sent: &AtomicU64, pause: Duration) {
    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let Some(first) = lines.next() else { return };
    let range = lines.find_map(|line| Some(line.to_lowercase().strip_prefix("range: bytes=")?.to_owned()));
    let name =
        first.split(' ').nth(1).and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned();
    let mut out = &stream;
    let Ok(data) = fs::read(folder.join(&name)) else {
        let _ = out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let number = |text: &str| text.parse::<usize>().ok();
    let asked = range.as_deref().and_then(|range| range.split_once('-'));
    let (start, end) = match asked {
        Some((start, end)) => (number(start).unwrap_or(0), number(end).map_or(data.len(), |end| end + 1)),
        None => (0, data.len()),
    };
    let status = if asked.is_some() { "206 Partial Content" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Range: bytes {start}-{}/{}\r\nContent-Length: {}\r\nETag: \"1\"\r\nConnection: close\r\n\r\n",
        end - 1,
        data.len(),
        end - start
    );
    let _ = out.write_all(head.as_bytes());
    for part in data[start..end].chunks(1 << 16) {
        if out.write_all(part).is_err() {
            return;
        }
        sent.fetch_add(part.len() as u64, Ordering::SeqCst);
        thread::sleep(pause);
    }
}

/// A folder with `tiny.gguf`, a model of some MB, and its tree.
fn site(tree: bool) -> (TempDir, PathBuf) {
    let site = TempDir::new().unwrap();
    let file = site.path().join("tiny.gguf");
    let shape = synthetic::SHAPES.iter().find(|(name, _)| *name == "tiny").unwrap().1.clone();
    let shape = synthetic::Shape { layers: 8, ..shape };
    shape.write(&file, &quant::Q8_0, 3).unwrap();
    if tree {
        let author = Shoal::new();
        author.ok(["model", "share", path(&file)], "");
        let out = site.path().join("export.gguf");
        author.ok(["model", "export", "tiny", path(&out)], "");
        assert!(fs::read(&out).unwrap() == fs::read(&file).unwrap());
        fs::rename(site.path().join("export.gguf.obao"), site.path().join("tiny.gguf.obao")).unwrap();
    }
    (site, file)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn id_of(file: &Path) -> String {
    blake3::hash(&fs::read(file).unwrap()).to_hex().to_string()
}

fn pulled(shoal: &Shoal, id: &str) -> PathBuf {
    shoal.home().join("models").join(id).join("model.gguf")
}

#[test]
fn a_model_is_pulled_whole_by_address_and_by_id() {
    let (site, file) = site(true);
    let mirror = Mirror::new(site.path(), Duration::ZERO);
    let id = id_of(&file);
    let shoal = Shoal::new();
    let (code, error) = shoal.fails(["model", "pull", &mirror.url("tiny.gguf")], "");
    assert!(code == 2 && error.contains("--yes"), "{error}");
    let done = shoal.json(["model", "pull", &mirror.url("tiny.gguf"), "--yes", "--json"], "");
    assert_eq!((done["event"].as_str(), done["id"].as_str()), (Some("done"), Some(id.as_str())));
    assert_eq!(done["name"], "tiny");
    assert!(fs::read(pulled(&shoal, &id)).unwrap() == fs::read(&file).unwrap());
    let again = shoal.json(["model", "pull", "tiny", "--yes", "--json"], "");
    assert_eq!(again["fetched_bytes"], 0);
    let report = shoal.json(["model", "inspect", "tiny", "--json"], "");
    assert_eq!(report["layers"], 8);
    // The other way round: the id is known, the tree is checked against it.
    let other = Shoal::new();
    other.ok(["model", "pull", &id, "--from", &mirror.url("tiny.gguf"), "--yes"], "");
    let wrong = "0".repeat(64);
    let (_, error) = other.fails(["model", "pull", &wrong, "--from", &mirror.url("tiny.gguf"), "--yes"], "");
    assert!(error.contains("the tree of another model"), "{error}");
    other.ok(["model", "rm", "tiny"], "");
    assert!(!pulled(&other, &id).exists());
    let (code, error) = other.fails(["model", "pull", &id, "--yes"], "");
    assert!(code == 2 && error.contains("--from"), "{error}");
}

#[test]
fn only_the_asked_layers_are_fetched_and_more_can_follow() {
    let (site, file) = site(true);
    let mirror = Mirror::new(site.path(), Duration::ZERO);
    let (shoal, url, id) = (Shoal::new(), mirror.url("tiny.gguf"), id_of(&file));
    let whole = fs::metadata(&file).unwrap().len();
    let done = shoal.json(["model", "pull", &url, "--layers", "2..4", "--yes", "--json"], "");
    let on_disk = fs::metadata(pulled(&shoal, &id)).unwrap();
    let (fetched, disk) = (done["fetched_bytes"].as_u64().unwrap(), on_disk.blocks() * 512);
    assert_eq!(on_disk.len(), whole);
    // The header step is 2 MiB and holds the first layers of a model this small.
    assert!(disk <= (2 << 20) + whole * 2 / 8 + (3 << 16), "{disk} of {whole} bytes of disk");
    assert!(mirror.sent() < disk + (1 << 17), "{} sent, {fetched} fetched, {disk} on disk", mirror.sent());
    let (code, error) = shoal.fails(["run", "--model", "tiny", "--raw", "x"], "");
    assert!(code == 2 && error.contains("only a part"), "{error}");
    let (code, error) = shoal.fails(["model", "pull", "tiny", "--layers", "7..9", "--yes"], "");
    assert!(code == 2 && error.contains("7..9"), "{error}");
    let before = mirror.sent();
    shoal.ok(["model", "pull", "tiny", "--layers", "5..8", "--yes"], "");
    assert!(mirror.sent() - before < whole / 2 + (1 << 17));
    shoal.ok(["model", "pull", "tiny", "--yes"], "");
    assert!(fs::read(pulled(&shoal, &id)).unwrap() == fs::read(&file).unwrap());
    assert!(mirror.sent() < whole + (1 << 18), "nothing was fetched twice: {} of {whole}", mirror.sent());
}

/// Starts a pull, waits until `bytes` of `file` are on disk, kills it like a power cut does.
fn killed(shoal: &Shoal, args: &[&str], file: &Path, bytes: u64) {
    let mut child = Command::new(binary())
        .args(args)
        .env("SHOAL_HOME", shoal.home())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !fs::metadata(file).is_ok_and(|meta| meta.blocks() * 512 >= bytes) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_pull_killed_three_times_fetches_nothing_twice() {
    let (site, file) = site(true);
    // 64 KiB per 20 ms: slow enough to be killed at chosen places.
    let mirror = Mirror::new(site.path(), Duration::from_millis(20));
    let (shoal, url, id) = (Shoal::new(), mirror.url("tiny.gguf"), id_of(&file));
    let whole = fs::metadata(&file).unwrap().len();
    let there = pulled(&shoal, &id);
    for part in 1..=3 {
        killed(&shoal, &["model", "pull", &url, "--yes"], &there, whole * part / 5);
    }
    let done = shoal.json(["model", "pull", &url, "--yes", "--json"], "");
    let fetched = done["fetched_bytes"].as_u64().unwrap();
    assert!(
        fetched <= whole * 2 / 5 + (1 << 16),
        "{fetched} of {whole} fetched after three fifths were here"
    );
    assert!(fs::read(&there).unwrap() == fs::read(&file).unwrap());
    // Beside the file: trees, probes, and what was on the wire when the process died.
    assert!(mirror.sent() < whole + 3 * (1 << 20), "{} sent for {whole}", mirror.sent());
}

#[test]
fn a_pull_killed_after_its_bytes_were_damaged_heals() {
    let (site, file) = site(true);
    let mirror = Mirror::new(site.path(), Duration::from_millis(20));
    let (shoal, url, id) = (Shoal::new(), mirror.url("tiny.gguf"), id_of(&file));
    let there = pulled(&shoal, &id);
    killed(&shoal, &["model", "pull", &url, "--yes"], &there, 1 << 20);
    // As when nothing was flushed yet: all of it is unsure. Half a group is overwritten.
    let _ = fs::remove_file(there.with_file_name("model.have"));
    let mut bytes = fs::read(&there).unwrap();
    bytes[(3 << 16) + 100..(3 << 16) + 30_000].fill(0x55);
    fs::write(&there, &bytes).unwrap();
    shoal.ok(["model", "pull", &url, "--yes"], "");
    assert!(fs::read(&there).unwrap() == fs::read(&file).unwrap());
}

#[test]
fn without_a_tree_a_whole_file_is_checked_at_the_end() {
    let (site, file) = site(false);
    let mirror = Mirror::new(site.path(), Duration::ZERO);
    let (url, id) = (mirror.url("tiny.gguf"), id_of(&file));
    let shoal = Shoal::new();
    let (code, error) = shoal.fails(["model", "pull", &url, "--layers", "0..2", "--yes"], "");
    assert!(code == 2 && error.contains("hash tree"), "{error}");
    let wrong = "1".repeat(64);
    let (_, error) = shoal.fails(["model", "pull", &wrong, "--from", &url, "--yes"], "");
    assert!(error.contains("does not belong to this model"), "{error}");
    assert!(!shoal.home().join("models.json").exists(), "a wrong file is not kept");
    // A page about a model is none.
    fs::write(site.path().join("page"), "<html>a model</html>".repeat(20)).unwrap();
    let (code, error) = shoal.fails(["model", "pull", &mirror.url("page"), "--yes"], "");
    assert!(code == 2 && error.contains("is no model"), "{error}");
    assert!(!shoal.home().join("models.json").exists());
    let done = shoal.json(["model", "pull", &url, "--yes", "--json"], "");
    assert_eq!(done["id"], id);
    assert!(fs::read(pulled(&shoal, &id)).unwrap() == fs::read(&file).unwrap());
    let list = shoal.json(["model", "list", "--json"], "");
    assert_eq!(list[1]["present_bytes"], list[1]["bytes"]);
}

#[test]
fn the_disk_cap_holds_over_all_models_together() {
    let (site, file) = site(true);
    let mirror = Mirror::new(site.path(), Duration::ZERO);
    let (shoal, url) = (Shoal::new(), mirror.url("tiny.gguf"));
    let whole = fs::metadata(&file).unwrap().len();
    let (code, error) = shoal.fails(["model", "pull", &url, "--yes", "--disk", &(whole / 2).to_string()], "");
    assert!(code == 1 && error.contains("offered"), "{error}");
    let used = disk(&shoal.home().join("models"));
    assert!(used <= whole / 2, "{used}");
    shoal.ok(["model", "pull", &url, "--yes", "--disk", &(2 * whole).to_string()], "");
    // Another model of the same size does not fit beside it.
    let mut other = fs::read(&file).unwrap();
    *other.last_mut().unwrap() ^= 1;
    fs::write(site.path().join("other.gguf"), &other).unwrap();
    let cap = (whole * 3 / 2).to_string();
    let (_, error) = shoal.fails(["model", "pull", &mirror.url("other.gguf"), "--yes", "--disk", &cap], "");
    assert!(error.contains("offered"), "{error}");
    assert!(disk(&shoal.home().join("models")) <= whole * 3 / 2);
}

/// Bytes of disk below `folder`.
fn disk(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .map(|entry| match entry.metadata().unwrap() {
            meta if meta.is_dir() => disk(&entry.path()),
            meta => meta.blocks() * 512,
        })
        .sum()
}

#[test]
fn progress_is_told_to_programs_and_ctrl_c_keeps_what_is_here() {
    let (site, file) = site(true);
    let mirror = Mirror::new(site.path(), Duration::from_millis(60));
    let (shoal, url, id) = (Shoal::new(), mirror.url("tiny.gguf"), id_of(&file));
    let mut child = Command::new(binary())
        .args(["model", "pull", &url, "--yes", "--json"])
        .env("SHOAL_HOME", shoal.home())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut events = Vec::new();
    let progress = lines.by_ref().find_map(|line| {
        let event: Value = serde_json::from_str(&line).unwrap();
        events.push(event["event"].as_str().unwrap().to_owned());
        (event["event"] == "progress" && event["done_bytes"].as_u64()? > 1 << 19).then_some(event)
    });
    let progress = progress.expect("progress is told");
    assert!(progress["bytes_per_s"].as_u64().unwrap() > 0 && progress["eta_s"].is_u64());
    assert_eq!(events[0], "plan");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(error.contains("goes on"), "{error}");
    let list = shoal.json(["model", "list", "--json"], "");
    let here = list[1]["present_bytes"].as_u64().unwrap();
    assert!(here > 1 << 19 && list[1]["id"] == id, "{list}");
    assert!(here < fs::metadata(&file).unwrap().len());
}
