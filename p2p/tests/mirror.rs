//! Models from real web servers: nginx with ranges, redirects and a limited rate; Python's server, which knows no ranges.
//!
//! Where a server is not installed its tests say so and do nothing; the full check requires both.

#![allow(clippy::single_range_in_vec_init, reason = "lists of byte ranges, often of one, are meant as such")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use p2p::blob::{
    Error, Event, Form, GROUP_BYTES, GroupSet, Held, HttpSource, Options, Outboard, Pace, PeerSource, Report,
    Shelf, Source, SparseFile, plain, pull, serve, source,
};
use scheduler::ModelId;
use tempfile::TempDir;

const G: u64 = GROUP_BYTES;
const PATIENCE: Duration = Duration::from_secs(15);

/// A child process that ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found =
        folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).find(|p| p.is_file());
    if found.is_none() {
        assert!(std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none(), "{names:?} must be installed here");
        eprintln!("skipped: {names:?} is not installed");
    }
    found
}

/// A free port. If another process takes it first, the server does not start and the next port is tried.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts `make(port)` until it accepts connections.
fn start(make: impl Fn(u16) -> Command) -> Server {
    for _ in 0..5 {
        let port = port();
        let child = make(port).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Server { child: child.expect("the server starts"), port };
        for _ in 0..500 {
            if server.child.try_wait().unwrap().is_some() {
                break;
            }
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("the server does not start");
}

/// nginx serving `root`: plain, below `/slow/` at 2 MB/s, and `/org/repo/resolve/main/` by redirect as a model hub does.
fn nginx(root: &Path) -> Option<Server> {
    let nginx = program(&["nginx"])?;
    let (root, home) = (root.to_owned(), root.join(".nginx"));
    fs::create_dir_all(&home).unwrap();
    Some(start(move |port| {
        let (root, home) = (root.display(), home.display());
        let config = format!(
            "daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;
             events {{ worker_connections 64; }}
             http {{
               access_log off; default_type application/octet-stream;
               client_body_temp_path {home}; proxy_temp_path {home}; fastcgi_temp_path {home};
               uwsgi_temp_path {home}; scgi_temp_path {home};
               server {{
                 listen 127.0.0.1:{port}; root {root};
                 location /slow/ {{ alias {root}/; limit_rate 2m; }}
                 location /org/repo/resolve/main/ {{ return 302 /cdn$uri?signature=x; }}
                 location /cdn/org/repo/resolve/main/ {{ alias {root}/; }}
                 location /loop/ {{ return 302 /loop/again; }}
               }}
             }}"
        );
        let path = root.to_string() + "/.nginx/nginx.conf";
        fs::write(&path, config).unwrap();
        let mut command = Command::new(&nginx);
        command.arg("-c").arg(path).arg("-p").arg(home.to_string());
        command
    }))
}

/// Python's server: whole files only.
fn without_ranges(root: &Path) -> Option<Server> {
    let python = program(&["python3"])?;
    let root = root.to_owned();
    Some(start(move |port| {
        let mut command = Command::new(&python);
        command
            .args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"])
            .arg(&root)
            .arg(port.to_string());
        command
    }))
}

/// A model `m.gguf` with its tree beside it.
struct Site {
    root: TempDir,
    data: Vec<u8>,
    tree: Arc<Outboard>,
    encoded: Vec<u8>,
}

impl Site {
    fn new(bytes: u64) -> Self {
        let root = TempDir::new().unwrap();
        let mut data = vec![0; bytes as usize];
        blake3::Hasher::new().update(b"site").finalize_xof().fill(&mut data);
        let path = root.path().join("m.gguf");
        fs::write(&path, &data).unwrap();
        let (tree, encoded) = Outboard::make(&path, &mut |_| true).unwrap();
        fs::write(root.path().join("m.gguf.obao"), &encoded).unwrap();
        Self { root, data, tree: Arc::new(tree), encoded }
    }

    fn open(&self, home: &TempDir) -> SparseFile {
        SparseFile::open(home.path(), self.tree.clone(), &self.encoded).unwrap()
    }

    fn all(&self) -> Options {
        Options::new(GroupSet::all(self.tree.groups()))
    }

    async fn pull(
        &self,
        home: &TempDir,
        sources: &mut [Box<dyn Source>],
        options: &Options,
    ) -> (Result<Report, Error>, Vec<Event>) {
        let mut events = Vec::new();
        let mut file = self.open(home);
        let report = pull(&mut file, sources, None, options, &mut |event| events.push(event)).await;
        (report, events)
    }

    fn assert_whole(&self, home: &TempDir) {
        assert!(fs::read(self.open(home).path()).unwrap() == self.data);
    }

    /// An honest peer with everything.
    fn peer(&self) -> Box<dyn Source> {
        struct One(ModelId, Arc<Held>);
        impl Shelf for One {
            fn find(&self, id: ModelId) -> Option<Arc<Held>> {
                (id == self.0).then(|| self.1.clone())
            }
        }
        let (path, obao) = (self.root.path().join("m.gguf"), self.root.path().join("m.gguf.obao"));
        let held = Held::open(self.tree.id(), path, obao, None).unwrap();
        let shelf = Arc::new(One(self.tree.id(), Arc::new(held)));
        let (asker, answerer) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { serve(answerer, Form::Packed, shelf, &Default::default()).await });
        Box::new(PeerSource::new("peer", asker, Form::Packed).unwrap())
    }
}

fn http(url: &str) -> Box<dyn Source> {
    Box::new(HttpSource::new(url).unwrap())
}

#[tokio::test]
async fn a_mirror_gives_tree_and_ranges_through_redirects() {
    let site = Site::new(21 * G + 17);
    let Some(server) = nginx(site.root.path()) else { return };
    for path in ["m.gguf", "org/repo/resolve/main/m.gguf?download=true"] {
        let mut sources = vec![http(&server.url(path))];
        let (tree, encoded) = source::tree(&mut sources, None, u64::MAX, PATIENCE).await.unwrap();
        assert_eq!((tree.id(), &encoded), (site.tree.id(), &site.encoded), "{path}");
        let home = TempDir::new().unwrap();
        let wanted = GroupSet::of_bytes(site.tree.bytes(), &[3 * G..5 * G, 20 * G..22 * G]);
        let (report, _) = site.pull(&home, &mut sources, &Options::new(wanted)).await;
        assert_eq!(report.unwrap().fetched_bytes, 3 * G + 17, "{path}");
        let (report, _) = site.pull(&home, &mut sources, &site.all()).await;
        assert_eq!(report.unwrap().fetched_bytes, 18 * G, "{path}");
        site.assert_whole(&home);
    }
    let probe = HttpSource::new(&server.url("m.gguf")).unwrap().probe().await.unwrap();
    assert_eq!(probe, (site.tree.bytes(), true));
    for path in ["absent.gguf", "loop/m.gguf"] {
        let home = TempDir::new().unwrap();
        let (report, _) = site.pull(&home, &mut [http(&server.url(path))], &site.all()).await;
        assert!(matches!(report, Err(Error::NoSource { .. })), "{path}: {report:?}");
    }
}

#[tokio::test]
async fn a_mirror_and_a_peer_are_both_used_at_once() {
    let site = Site::new(96 * G);
    let Some(server) = nginx(site.root.path()) else { return };
    let home = TempDir::new().unwrap();
    // Together at 5 MB/s: the first source cannot take everything before the other has begun.
    let options = Options { pace: Arc::new(Pace::new(Some(5_000_000))), ..site.all() };
    let mut sources = [http(&server.url("m.gguf")), site.peer(), http(&server.url("slow/m.gguf"))];
    let (report, _) = site.pull(&home, &mut sources, &options).await;
    let report = report.unwrap();
    assert!(report.by_source.iter().all(|(_, bytes)| *bytes >= G), "{report:?}");
    assert_eq!(report.fetched_bytes, 96 * G);
    site.assert_whole(&home);
}

#[tokio::test]
async fn a_mirror_with_another_file_is_left_and_the_pull_completes_elsewhere() {
    let site = Site::new(30 * G);
    let other = TempDir::new().unwrap();
    let mut bad = site.data.clone();
    bad[5] ^= 1;
    fs::write(other.path().join("m.gguf"), &bad).unwrap();
    fs::write(other.path().join("short.gguf"), &bad[..100]).unwrap();
    let Some(server) = nginx(other.path()) else { return };
    let home = TempDir::new().unwrap();
    let (report, events) = site.pull(&home, &mut [http(&server.url("m.gguf"))], &site.all()).await;
    assert!(matches!(report, Err(Error::NoSource { missing: 30, .. })), "{report:?}");
    assert!(matches!(events.last(), Some(Event::Dropped { lied: true, .. })), "{events:?}");
    let mut sources = [http(&server.url("short.gguf")), site.peer()];
    let (report, events) = site.pull(&home, &mut sources, &site.all()).await;
    assert_eq!(report.unwrap().fetched_bytes, 30 * G);
    assert!(events.iter().any(|event| matches!(event, Event::Dropped { lied: false, .. })));
    site.assert_whole(&home);
    // No tree of this model is there, and a tree of another model is not taken for it.
    fs::write(other.path().join("m.gguf.obao"), &Site::new(3 * G).encoded).unwrap();
    let mut sources = vec![http(&server.url("m.gguf")), http(&server.url("short.gguf"))];
    let none = source::tree(&mut sources, Some(site.tree.id()), u64::MAX, PATIENCE).await;
    assert!(matches!(none, Err(Error::NoSource { .. })) && sources.len() == 1);
}

#[tokio::test]
async fn a_server_without_ranges_serves_whole_files_and_is_left_for_parts() {
    let site = Site::new(300 * G + 9);
    let Some(server) = without_ranges(site.root.path()) else { return };
    let probe = HttpSource::new(&server.url("m.gguf")).unwrap().probe().await.unwrap();
    assert_eq!(probe, (site.tree.bytes(), false));
    let home = TempDir::new().unwrap();
    let (report, _) = site.pull(&home, &mut [http(&server.url("m.gguf"))], &site.all()).await;
    assert_eq!(report.unwrap().fetched_bytes, site.tree.bytes());
    site.assert_whole(&home);
    let home = TempDir::new().unwrap();
    let far = GroupSet::of_bytes(site.tree.bytes(), &[290 * G..291 * G]);
    let (report, events) = site.pull(&home, &mut [http(&server.url("m.gguf"))], &Options::new(far)).await;
    assert!(matches!(report, Err(Error::NoSource { missing: 1, .. })), "{report:?}");
    let told = events.iter().any(|e| matches!(e, Event::Dropped { why, .. } if why.contains("range")));
    assert!(told, "{events:?}");
}

#[tokio::test]
async fn a_plain_download_is_resumed_where_it_was_flushed() {
    let site = Site::new(40 * G + 3);
    let Some(server) = nginx(site.root.path()) else { return };
    let home = TempDir::new().unwrap();
    let options =
        |pace| plain::Options { disk_bytes: None, pace: Arc::new(Pace::new(pace)), timeout: PATIENCE };
    let url = server.url("m.gguf");
    let stopped = plain::fetch(home.path(), &url, &options(None), &mut |done, _| done < 10 * G).await;
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    let mut first = None;
    let mut hear = |done, all| {
        assert_eq!(all, site.tree.bytes());
        first.get_or_insert(done);
        true
    };
    let complete = plain::fetch(home.path(), &url, &options(None), &mut hear).await.unwrap();
    assert!(first.unwrap() > 10 * G, "it went on from where it was");
    assert!(fs::read(&complete.path).unwrap() == site.data);
    drop(complete);
    // Another file at the same address: what is here is worth nothing.
    let home = TempDir::new().unwrap();
    let _ = plain::fetch(home.path(), &url, &options(None), &mut |done, _| done < 10 * G).await;
    let other: Vec<u8> = site.data.iter().map(|byte| !byte).collect();
    fs::write(site.root.path().join("m.gguf"), &other[..other.len() - 5]).unwrap();
    let complete = plain::fetch(home.path(), &url, &options(None), &mut |_, _| true).await.unwrap();
    assert!(fs::read(&complete.path).unwrap() == other[..other.len() - 5]);
    drop(complete);
    let capped = plain::Options { disk_bytes: Some(10 * G), ..options(None) };
    let home = TempDir::new().unwrap();
    let refused = plain::fetch(home.path(), &url, &capped, &mut |_, _| true).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}

/// A mirror that breaks after some bytes of each answer, as a bad network does; ranges are honored.
fn flaky(data: Vec<u8>, bytes_per_answer: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                request.push(byte[0]);
            }
            let text = String::from_utf8_lossy(&request).to_lowercase();
            let Some(range) = text.split("range: bytes=").nth(1) else { continue };
            let (start, rest) = range.split_once('-').unwrap();
            let start: usize = start.parse().unwrap();
            let end: usize = rest.lines().next().unwrap().trim().parse().unwrap();
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/{}\r\nContent-Length: {}\r\n\r\n",
                data.len(),
                end + 1 - start
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&data[start..(end + 1).min(start + bytes_per_answer)]);
        }
    });
    port
}

#[tokio::test]
async fn a_mirror_that_breaks_is_asked_again_and_nothing_is_fetched_twice() {
    let site = Site::new(12 * G);
    let port = flaky(site.data.clone(), 5 * G as usize + 100);
    let home = TempDir::new().unwrap();
    let url = format!("http://127.0.0.1:{port}/m.gguf");
    let (report, events) = site.pull(&home, &mut [http(&url)], &site.all()).await;
    let report = report.unwrap();
    assert_eq!((report.fetched_bytes, report.spare_bytes), (12 * G, 0));
    assert!(events.iter().any(|event| matches!(event, Event::Retrying { .. })), "{events:?}");
    site.assert_whole(&home);
}
