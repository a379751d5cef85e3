//! A whole file from a web server, when no source offers its tree.
//!
//! Nothing can be checked before everything is here, so the file stays in a folder of its own until it is complete;
//! then it is hashed, which makes its tree and its name. With a name given, another one means the file is thrown away;
//! without, the name is that of what this server sent, and it is reported.
//!
//! ```text
//! FOLDER/partial         the bytes so far
//! FOLDER/partial.state   "SHOALPL1", flushed bytes u64, length u64, validator, BLAKE3 of all before
//! FOLDER/lock
//! ```
//!
//! Every [`super::pull::COMMIT_BYTES`] and every few seconds the bytes are flushed and then the state; a pull that was killed
//! goes on from there if the server still has the same file (`If-Range` with its strong ETag or Last-Modified) and
//! answers ranges, else from the start. A broken connection is made again as in [`super::pull()`].
//!
//! Limits: one source; the file's bytes are not checked while they come.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT_ENCODING, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE},
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use super::{
    Error, MAX_FILE_BYTES, Pace,
    file_at::FileAt,
    http::{address, broken, client, content_range, refused},
    pull::{COMMIT_BYTES, COMMIT_EVERY, FIRST_WAIT},
    source::SourceError,
    sparse::{lock, replace},
};

const MAGIC: &[u8; 8] = b"SHOALPL1";
/// Longest validator that is kept; a longer one counts as none.
const MAX_VALIDATOR: usize = 512;
/// Breaks in a row that are endured.
const RETRIES: u32 = 5;

/// Where a whole file comes from and within which bounds.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most bytes it may have.
    pub disk_bytes: Option<u64>,
    /// How fast at most.
    pub pace: Arc<Pace>,
    /// Longest silence.
    pub timeout: Duration,
}

/// A file that is complete and not yet hashed. Its folder is locked while this lives.
#[derive(Debug)]
pub struct Complete {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    _lock: File,
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq)]
struct State {
    flushed: u64,
    bytes: u64,
    validator: String,
}

impl State {
    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.flushed.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.validator.as_bytes());
        out.extend(*blake3::hash(&out).as_bytes());
        out
    }

    fn decode(encoded: &[u8]) -> Option<Self> {
        let (signed, digest) = encoded.split_last_chunk::<32>()?;
        let (head, validator) = signed.split_at_checked(24)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let sound = blake3::hash(signed) == *digest && &head[..8] == MAGIC;
        let validator = String::from_utf8(validator.to_vec()).ok().filter(|v| v.len() <= MAX_VALIDATOR)?;
        sound.then(|| Self { flushed: number(8), bytes: number(16), validator })
    }
}

/// What names this version of the file: a strong ETag, else the date.
fn validator(headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|value: &reqwest::header::HeaderValue| value.to_str().ok());
    let etag = text(ETAG).filter(|etag| !etag.starts_with("W/"));
    let found = etag.or(text(LAST_MODIFIED)).unwrap_or_default();
    if found.len() <= MAX_VALIDATOR { found.to_owned() } else { String::new() }
}

/// Fetches the whole file at `url` into `folder`, which is created. `on` receives the bytes here and the
/// length and returns whether to go on.
///
/// # Errors
/// [`Error::TooLarge`] when the server announces more than is offered; [`Error::Source`] when it refuses or breaks
/// repeatedly: what is flushed stays; [`Error::Stopped`] by `on`; [`Error::Locked`]; [`Error::Io`].
pub async fn fetch(
    folder: &Path,
    url: &str,
    options: &Options,
    on: &mut (dyn FnMut(u64, u64) -> bool + Send),
) -> Result<Complete, Error> {
    fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
    let (lock, path) = (lock(folder)?, folder.join("partial"));
    let url = address(url)?;
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = Arc::new(file.map_err(|e| Error::io(&path, e))?);
    let mut download = Download { client: client()?, url, path, file, state: None, at: 0, options };
    download.resume()?;
    let mut broken = 0;
    loop {
        let before = download.at;
        match download.attempt(on).await {
            Ok(()) => break,
            Err(Error::Source(e)) if e.is_passing() => {
                broken = if download.at > before { 1 } else { broken + 1 };
                if broken > RETRIES {
                    return Err(e.into());
                }
                tracing::info!(error = %e, "asking the mirror again");
                sleep(FIRST_WAIT * (1 << (broken - 1).min(5))).await;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Complete { bytes: download.at, path: download.path, _lock: lock })
}

struct Download<'a> {
    client: Client,
    url: Url,
    path: PathBuf,
    file: Arc<File>,
    /// The version that is being fetched, once a server has named it.
    state: Option<State>,
    /// Bytes in the file.
    at: u64,
    options: &'a Options,
}

impl Download<'_> {
    fn state_path(&self) -> PathBuf {
        self.path.with_extension("state")
    }

    /// Goes back to what an earlier download flushed.
    fn resume(&mut self) -> Result<(), Error> {
        let here = self.file.metadata().map_err(|e| Error::io(&self.path, e))?.len();
        let kept = fs::read(self.state_path()).ok().and_then(|bytes| State::decode(&bytes));
        if let Some(state) = kept.filter(|state| state.flushed <= here) {
            self.at = state.flushed;
            self.state = Some(state);
        }
        Ok(())
    }

    async fn ask(&self) -> Result<Response, SourceError> {
        let mut request = self.client.get(self.url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(state) = self.state.as_ref().filter(|state| self.at > 0 && !state.validator.is_empty()) {
            let range = format!("bytes={}-", self.at);
            request = request.header(RANGE, range).header(IF_RANGE, &state.validator);
        }
        timeout(self.options.timeout, request.send()).await.map_err(|_| SourceError::Slow)?.map_err(broken)
    }

    /// One connection, to the end of the file.
    async fn attempt(&mut self, on: &mut (dyn FnMut(u64, u64) -> bool + Send)) -> Result<(), Error> {
        if self.state.as_ref().is_some_and(|state| state.bytes == self.at) {
            return Ok(());
        }
        let mut response = self.ask().await?;
        let bytes = match response.status() {
            StatusCode::OK => {
                self.at = 0;
                response.content_length().ok_or_else(|| {
                    SourceError::Refused("the server does not say how long the file is".into())
                })?
            }
            StatusCode::PARTIAL_CONTENT => match content_range(response.headers()) {
                Some((first, last, total)) if first == self.at && last + 1 == total => total,
                _ => return Err(SourceError::Refused("the server answers another range".into()).into()),
            },
            status => return Err(refused(status).into()),
        };
        if let Some(offered) = self.options.disk_bytes.filter(|&offered| bytes > offered) {
            return Err(Error::TooLarge { needed: bytes, offered });
        }
        if !(1..=MAX_FILE_BYTES).contains(&bytes) {
            return Err(SourceError::Refused(format!("{bytes} bytes cannot be a model")).into());
        }
        self.state = Some(State { flushed: self.at, bytes, validator: validator(response.headers()) });
        self.file.set_len(self.at).map_err(|e| Error::io(&self.path, e))?;
        let (mut unsaved, mut saved) = (0, Instant::now());
        while self.at < bytes {
            let next = timeout(self.options.timeout, response.chunk()).await;
            let chunk = next.map_err(|_| SourceError::Slow)?.map_err(broken)?;
            let Some(chunk) = chunk else {
                self.save().await?;
                return Err(SourceError::Closed("the server ended in the middle of the file".into()).into());
            };
            if chunk.len() as u64 > bytes - self.at {
                return Err(SourceError::Lied("more bytes than announced".into()).into());
            }
            self.options.pace.take(chunk.len()).await;
            self.write(&chunk)?;
            unsaved += chunk.len() as u64;
            if unsaved >= COMMIT_BYTES || saved.elapsed() >= COMMIT_EVERY {
                self.save().await?;
                (unsaved, saved) = (0, Instant::now());
            }
            if !on(self.at, bytes) {
                self.save().await?;
                return Err(Error::Stopped);
            }
        }
        self.save().await
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(chunk, self.at).map_err(|e| Error::io(&self.path, e))?;
        self.at += chunk.len() as u64;
        Ok(())
    }

    /// Flushes the data, then the state.
    async fn save(&mut self) -> Result<(), Error> {
        let Some(state) = self.state.as_mut() else { return Ok(()) };
        state.flushed = self.at;
        let encoded = state.encode();
        let (file, path, kept) = (self.file.clone(), self.path.clone(), self.state_path());
        let saved = spawn_blocking(move || {
            file.sync_data().map_err(|e| Error::io(path, e))?;
            replace(&kept, &[&encoded])
        });
        saved.await.unwrap_or_else(|e| Err(Error::io("", std::io::Error::other(e))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_was_changed_is_no_state() {
        let state = State { flushed: 5, bytes: 9, validator: "\"abc\"".into() };
        let good = state.encode();
        assert_eq!(State::decode(&good), Some(state));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(State::decode(&bad), None, "byte {at}");
            assert_eq!(State::decode(&good[..at]), None);
        }
    }

    #[test]
    fn a_weak_etag_gives_way_to_the_date() {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, "W/\"1\"".parse().unwrap());
        assert_eq!(validator(&headers), "");
        headers.insert(LAST_MODIFIED, "Sat, 21 Nov 2026 05:00:00 GMT".parse().unwrap());
        assert_eq!(validator(&headers), "Sat, 21 Nov 2026 05:00:00 GMT");
        headers.insert(ETAG, "\"2\"".parse().unwrap());
        assert_eq!(validator(&headers), "\"2\"");
    }
}
