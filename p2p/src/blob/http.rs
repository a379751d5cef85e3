//! A web server as a source: any HTTP(S) mirror that answers range requests, Hugging Face included.
//!
//! The server needs to know nothing of Shoal: groups are plain byte ranges of the file, proven by a tree that comes
//! from a peer or from `FILE.obao` beside the file. Redirects are followed (at most [`MAX_REDIRECTS`], never from HTTPS
//! to HTTP), and every request starts at the original address, because redirect targets are often signed for minutes.
//!
//! A server that ignores ranges and sends the whole file is used only as far as the wanted groups come in order with
//! gaps of at most [`MAX_SKIP`], read past and thrown away; beyond that it is given up.

use std::{ops::Range, time::Duration};

use bytes::{Buf, Bytes};
use futures::{
    TryStreamExt,
    future::{BoxFuture, FutureExt},
};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_RANGE, HeaderMap, RANGE},
    redirect,
};
use scheduler::ModelId;
use tokio::{io::BufReader, time::timeout};
use tokio_util::io::StreamReader;

use super::{
    GROUP_BYTES, Outboard,
    source::{Described, Source, SourceError, Tree},
};

/// Most redirects of one request; Hugging Face takes one or two.
pub const MAX_REDIRECTS: usize = 8;
/// Most bytes of a file without ranges that are read and thrown away to reach a wanted group.
pub const MAX_SKIP: u64 = 16 << 20;
/// Longest time to reach the server. A name that resolves to dead addresses only is given up after this.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest time for a small document, connecting included.
const DOCUMENT: Duration = Duration::from_secs(30);

/// A file on a web server.
pub struct HttpSource {
    client: Client,
    url: Url,
    /// What is asked beyond the address, e.g. that the file has not changed.
    body: Option<Body>,
}

/// An answer that is being read.
struct Body {
    response: Response,
    /// Received and not handed over.
    left: Bytes,
    /// Where in the file `left` starts.
    at: u64,
    /// Where in the file the answer ends.
    end: u64,
}

/// A client for models: no proxies of content encodings, bounded redirects.
///
/// # Errors
/// [`SourceError::Refused`] when this system's certificates cannot be read.
pub(super) fn client() -> Result<Client, SourceError> {
    let follow = redirect::Policy::custom(|attempt| {
        let downgrade =
            attempt.previous().iter().any(|url| url.scheme() == "https") && attempt.url().scheme() != "https";
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if downgrade {
            attempt.error("a redirect from https to http")
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .user_agent(concat!("shoal/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .redirect(follow)
        .build()
        .map_err(|e| SourceError::Refused(chain(&e)))
}

/// The address of a model: `http` or `https`; Hugging Face's page of a file (`/blob/`) becomes the file (`/resolve/`).
///
/// # Errors
/// [`SourceError::Refused`] saying what an address looks like.
pub fn address(text: &str) -> Result<Url, SourceError> {
    let wrong = |why: &str| SourceError::Refused(format!("\"{text}\" is no address of a model: {why}"));
    let mut url = Url::parse(text).map_err(|e| wrong(&e.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("it must begin with http:// or https://"));
    }
    if url.host_str() == Some("huggingface.co") {
        let path = url.path().replacen("/blob/", "/resolve/", 1);
        url.set_path(&path);
    }
    url.set_fragment(None);
    Ok(url)
}

/// An error with its causes, without the address: it is named beside it and may hold a signature.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

pub(super) fn broken(error: reqwest::Error) -> SourceError {
    let error = error.without_url();
    match error.is_redirect() || error.is_builder() {
        true => SourceError::Refused(chain(&error)),
        false => SourceError::Closed(chain(&error)),
    }
}

/// Refusals that another attempt may not meet are broken connections.
pub(super) fn refused(status: StatusCode) -> SourceError {
    let why = format!("the server answers {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => SourceError::Closed(why),
        status if status.is_server_error() => SourceError::Closed(why),
        _ => SourceError::Refused(why),
    }
}

/// First byte, last byte and length of `Content-Range: bytes 5-9/20`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (first <= last && last < total).then_some((first, last, total))
}

/// A small document at `url`, such as a registry's list of files: at most `most_bytes`, within [`DOCUMENT`]. `accept` is the
/// media type asked for; empty asks for none.
///
/// # Errors
/// [`SourceError::Refused`] for an address that cannot be asked and a document that is longer; [`SourceError::Closed`] and
/// [`SourceError::Slow`] as the server behaves.
pub async fn document(url: &str, accept: &str, most_bytes: usize) -> Result<Vec<u8>, SourceError> {
    let read = async {
        let mut request = client()?.get(address(url)?);
        if !accept.is_empty() {
            request = request.header(ACCEPT, accept);
        }
        let mut response = request.send().await.map_err(broken)?;
        if response.status() != StatusCode::OK {
            return Err(refused(response.status()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            if chunk.len() > most_bytes - bytes.len() {
                return Err(SourceError::Refused(format!("the document is longer than {most_bytes} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    timeout(DOCUMENT, read).await.unwrap_or(Err(SourceError::Slow))
}

impl HttpSource {
    /// The file at `url`.
    ///
    /// # Errors
    /// [`SourceError::Refused`] for an address that cannot be one of a model.
    pub fn new(url: &str) -> Result<Self, SourceError> {
        Ok(Self { client: client()?, url: address(url)?, body: None })
    }

    /// The length of the file and whether the server answers range requests.
    ///
    /// # Errors
    /// [`SourceError::Closed`] and [`SourceError::Refused`], as the server says.
    pub async fn probe(&self) -> Result<(u64, bool), SourceError> {
        let response = self.get(0..1).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => match content_range(response.headers()) {
                Some((0, 0, total)) => Ok((total, true)),
                _ => Err(SourceError::Refused("the server answers another range than asked for".into())),
            },
            StatusCode::OK => match response.content_length() {
                Some(total) => Ok((total, false)),
                None => Err(SourceError::Refused("the server does not say how long the file is".into())),
            },
            status => Err(refused(status)),
        }
    }

    async fn get(&self, range: Range<u64>) -> Result<Response, SourceError> {
        let range = format!("bytes={}-{}", range.start, range.end - 1);
        let request =
            self.client.get(self.url.clone()).header(RANGE, range).header(ACCEPT_ENCODING, "identity");
        request.send().await.map_err(broken)
    }

    async fn open(&self, range: Range<u64>, bytes: u64) -> Result<Body, SourceError> {
        let response = self.get(range.clone()).await?;
        let another = || SourceError::Refused(format!("its file is not the model's {bytes} bytes long"));
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let (first, last, total) = content_range(response.headers()).ok_or_else(|| {
                    SourceError::Refused("the server does not say which range it answers".into())
                })?;
                if total != bytes {
                    return Err(another());
                }
                if first != range.start || last + 1 < range.end {
                    return Err(SourceError::Refused(
                        "the server answers another range than asked for".into(),
                    ));
                }
                Ok(Body { response, left: Bytes::new(), at: first, end: last + 1 })
            }
            StatusCode::OK => match response.content_length() {
                Some(total) if total != bytes => Err(another()),
                _ => Ok(Body { response, left: Bytes::new(), at: 0, end: bytes }),
            },
            status => Err(refused(status)),
        }
    }
}

impl Body {
    /// Whether reading on leads to `range` soon enough.
    fn reaches(&self, range: &Range<u64>) -> bool {
        self.at <= range.start && range.start - self.at <= MAX_SKIP && range.end <= self.end
    }

    /// Fills `into` from the next bytes.
    async fn read(&mut self, into: &mut [u8]) -> Result<(), SourceError> {
        let mut filled = 0;
        while filled < into.len() {
            self.more().await?;
            let part = self.left.len().min(into.len() - filled);
            self.left.copy_to_slice(&mut into[filled..filled + part]);
            self.at += part as u64;
            filled += part;
        }
        Ok(())
    }

    /// Reads past bytes up to `to`.
    async fn skip(&mut self, to: u64) -> Result<(), SourceError> {
        while self.at < to {
            self.more().await?;
            let part = self.left.len().min((to - self.at) as usize);
            self.left.advance(part);
            self.at += part as u64;
        }
        Ok(())
    }

    /// Makes sure that something has been received.
    async fn more(&mut self) -> Result<(), SourceError> {
        while self.left.is_empty() {
            let ended = || SourceError::Closed("the server ended in the middle of a group".into());
            self.left = self.response.chunk().await.map_err(broken)?.ok_or_else(ended)?;
        }
        Ok(())
    }
}

impl Source for HttpSource {
    fn name(&self) -> &str {
        self.url.as_str()
    }

    /// Five breaks in a row, with the puller's growing waits between them, outlast about 15 s without a network.
    fn retries(&self) -> u32 {
        5
    }

    fn describe(&mut self, _: ModelId) -> BoxFuture<'_, Result<Described, SourceError>> {
        async move { Ok(Described { bytes: self.probe().await?.0, have: None }) }.boxed()
    }

    fn tree(
        &mut self,
        id: Option<ModelId>,
        most: u64,
        patience: Duration,
    ) -> BoxFuture<'_, Result<Tree, SourceError>> {
        async move {
            let mut url = self.url.clone();
            url.set_path(&format!("{}.obao", self.url.path()));
            let request = self.client.get(url).header(ACCEPT_ENCODING, "identity").send();
            let response =
                timeout(patience, request).await.map_err(|_| SourceError::Slow)?.map_err(broken)?;
            if response.status() != StatusCode::OK {
                return Err(match refused(response.status()) {
                    SourceError::Refused(_) => {
                        SourceError::Refused("there is no .obao file beside it".into())
                    }
                    other => other,
                });
            }
            let bytes = response.bytes_stream().map_err(std::io::Error::other);
            let mut reader = BufReader::with_capacity(64 << 10, StreamReader::new(bytes));
            Ok(Outboard::read(&mut reader, id, most, patience).await?)
        }
        .boxed()
    }

    fn start<'a>(
        &'a mut self,
        tree: &'a Outboard,
        run: Range<u32>,
    ) -> BoxFuture<'a, Result<(), SourceError>> {
        async move {
            let end = u64::from(run.end) * GROUP_BYTES;
            let range = u64::from(run.start) * GROUP_BYTES..end.min(tree.bytes());
            let mut body = match self.body.take() {
                Some(body) if body.reaches(&range) => body,
                _ => self.open(range.clone(), tree.bytes()).await?,
            };
            if !body.reaches(&range) {
                return Err(SourceError::Refused("the server does not answer range requests".into()));
            }
            body.skip(range.start).await?;
            self.body = Some(body);
            Ok(())
        }
        .boxed()
    }

    fn next<'a>(&'a mut self, group: &'a mut [u8]) -> BoxFuture<'a, Result<(), SourceError>> {
        async move {
            let Some(body) = self.body.as_mut() else {
                return Err(SourceError::Closed("nothing has been asked for".into()));
            };
            let read = body.read(group).await;
            if read.is_err() || body.at == body.end {
                self.body = None;
            }
            read
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_hugging_face_pages_become_files() {
        let page = "https://huggingface.co/org/repo/blob/main/model-q4_0.gguf?download=true#x";
        let file = "https://huggingface.co/org/repo/resolve/main/model-q4_0.gguf?download=true";
        assert_eq!(address(page).unwrap().as_str(), file);
        assert_eq!(address(file).unwrap().as_str(), file);
        for wrong in ["model.gguf", "ftp://host/x", "file:///etc/passwd", "http://", "https:///x.gguf?"] {
            let parsed = address(wrong);
            assert!(parsed.is_err() || wrong == "https:///x.gguf?", "{wrong}");
        }
    }

    #[test]
    fn content_ranges_must_make_sense() {
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            content_range(&headers)
        };
        assert_eq!(parse("bytes 5-9/20"), Some((5, 9, 20)));
        for wrong in ["bytes 9-5/20", "bytes 5-20/20", "bytes */20", "bytes 5-9/*", "5-9/20", "bytes -9/20"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
