//! A web server that speaks as Hugging Face and an Ollama registry do, for one model: listings, manifests, redirects to a
//! store of blobs, ranges, and connections that end in the middle.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

/// What the server answers with.
struct Site {
    model: Vec<u8>,
    /// The hash that the registries name, which need not be the model's.
    sha256: String,
    /// Answers of the file that end after so many bytes each.
    cuts: AtomicUsize,
    cut_bytes: usize,
    sent: AtomicU64,
    asked: Mutex<Vec<String>>,
    /// Other files, by path.
    published: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// The server, as long as it lives.
pub struct Registry {
    port: u16,
    site: Arc<Site>,
}

/// The license that the Ollama side tells.
pub const LICENSE: &str = "                        MIT License\n\nCopyright (c) A Publisher\n";

impl Registry {
    /// Serves `model`, whose registries name `sha256`; the first `cuts` answers of the file end after `cut_bytes`.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(model: Vec<u8>, sha256: String, cuts: usize, cut_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (sent, asked) = (AtomicU64::new(0), Mutex::default());
        let (cuts, published) = (AtomicUsize::new(cuts), Mutex::default());
        let site = Arc::new(Site { model, sha256, cuts, cut_bytes, sent, asked, published });
        let shared = site.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let site = shared.clone();
                thread::spawn(move || site.answer(&stream, port));
            }
        });
        Self { port, site }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Has it answer `path` with `bytes` as well.
    pub fn publish(&self, path: &str, bytes: Vec<u8>) {
        self.site.published.lock().expect("no thread panics with it").insert(path.to_owned(), bytes);
    }

    /// Bytes of the file that were sent.
    pub fn sent(&self) -> u64 {
        self.site.sent.load(Ordering::SeqCst)
    }

    /// What was asked for, as `PATH` or `PATH RANGE`.
    pub fn asked(&self) -> Vec<String> {
        self.site.asked.lock().expect("no thread panics with it").clone()
    }
}

fn head(out: &mut impl Write, status: &str, more: &str, len: usize) {
    // A client that is gone needs no answer.
    let _ = write!(out, "HTTP/1.1 {status}\r\n{more}Content-Length: {len}\r\nConnection: close\r\n\r\n");
}

impl Site {
    fn answer(&self, stream: &TcpStream, port: u16) {
        let mut lines =
            BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let Some(first) = lines.next() else { return };
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let range =
            lines.find_map(|line| Some(line.to_lowercase().strip_prefix("range: bytes=")?.to_owned()));
        let asked = range.as_ref().map_or(path.clone(), |range| format!("{path} {range}"));
        self.asked.lock().expect("no thread panics with it").push(asked);
        let mut out = stream;
        let redirect = format!("Location: http://127.0.0.1:{port}/store/{}\r\n", self.sha256);
        let known = format!("sha256:{}", self.sha256);
        match path.split('?').next().unwrap_or_default() {
            "/api/models/me/mine-GGUF/tree/main" => json_answer(
                &mut out,
                &json!([
                    {"type": "file", "path": "README.md", "size": 7},
                    {"type": "file", "path": "mine-Q8_0.gguf", "size": self.model.len(),
                     "lfs": {"oid": self.sha256, "size": self.model.len()}},
                ]),
            ),
            "/api/models/me/mine-GGUF" => {
                json_answer(&mut out, &json!({"cardData": {"license": "apache-2.0"}}));
            }
            "/v2/library/mine/manifests/latest" => json_answer(
                &mut out,
                &json!({"schemaVersion": 2, "layers": [
                    {"mediaType": "application/vnd.ollama.image.model", "digest": known, "size": self.model.len()},
                    {"mediaType": "application/vnd.ollama.image.license",
                     "digest": format!("sha256:{}", "0".repeat(64)), "size": LICENSE.len()},
                ]}),
            ),
            license if license.ends_with(&"0".repeat(64)) => {
                head(&mut out, "200 OK", "", LICENSE.len());
                let _ = out.write_all(LICENSE.as_bytes());
            }
            "/me/mine-GGUF/resolve/main/mine-Q8_0.gguf" => head(&mut out, "302 Found", &redirect, 0),
            blob if blob == format!("/v2/library/mine/blobs/{known}") => {
                head(&mut out, "307 Temporary Redirect", &redirect, 0);
            }
            store if store == format!("/store/{}", self.sha256) => self.file(&mut out, range.as_deref()),
            other => match self.published.lock().expect("no thread panics with it").get(other) {
                Some(bytes) => {
                    head(&mut out, "200 OK", "", bytes.len());
                    let _ = out.write_all(bytes);
                }
                None => head(&mut out, "404 Not Found", "", 0),
            },
        }
    }

    /// The file, or a range of it, or the beginning of what was asked for.
    fn file(&self, out: &mut impl Write, range: Option<&str>) {
        let all = self.model.len();
        let number = |text: &str| text.parse::<usize>().ok();
        let (start, end) = match range.and_then(|range| range.split_once('-')) {
            Some((start, end)) => {
                (number(start).unwrap_or(0), number(end).map_or(all, |end| all.min(end + 1)))
            }
            None => (0, all),
        };
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        let more = format!("Content-Range: bytes {start}-{}/{all}\r\nETag: \"{}\"\r\n", end - 1, self.sha256);
        head(out, status, &more, end - start);
        let mut data = &self.model[start..end];
        let ends = |left: usize| left.checked_sub(1);
        // A question for the length is answered whole.
        if data.len() > self.cut_bytes
            && self.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ends).is_ok()
        {
            data = &data[..self.cut_bytes];
        }
        if out.write_all(data).is_ok() {
            self.sent.fetch_add(data.len() as u64, Ordering::SeqCst);
        }
    }
}

fn json_answer(out: &mut impl Write, document: &Value) {
    let text = document.to_string();
    head(out, "200 OK", "Content-Type: application/json\r\n", text.len());
    let _ = out.write_all(text.as_bytes());
}
