//! Listens, bounds connections and their headers, and ends cleanly.
//!
//! Bounds: connections by the door of [`Door::Connections`], further ones wait in the system's backlog; headers of at most
//! [`MAX_HEADER_BYTES`] within [`HEADER_DEADLINE`], or the connection is closed, so clients that send a byte now and then
//! hold a connection for seconds, not forever. A client that is gone ends its answer: its request is dropped with it.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

use crate::{
    App, Inference, cors,
    doors::{Alone, Door, Doors, Pass},
    guard,
    guard::MAX_HEADER_BYTES,
    metrics, queue, router,
};

/// Headers of one request.
const MAX_HEADERS: usize = 100;
/// An honest client sends its headers at once.
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// How long answers under way may take to end when the server stops: a node that leaves lets them run for 10 s.
const GRACE: Duration = Duration::from_secs(12);
/// How long those that did not end may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long connections may take to send their last words.
const FLUSH: Duration = Duration::from_millis(100);
/// Pause after a failed accept: out of file descriptors, trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A name under which clients ask for a model that is called otherwise here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// What clients say.
    pub name: String,
    /// The model that answers.
    pub model: String,
}

/// What the operator decides.
#[derive(Clone, Debug)]
pub struct Config {
    /// The token every request must bring; `None` opens the API to every program that can reach it.
    pub token: Option<String>,
    /// More names under which the API may be addressed, for proxies.
    pub hosts: Vec<String>,
    /// Origins of other web pages that may ask, such as `https://app.example`; they still need the token.
    pub origins: Vec<String>,
    /// Further names of models.
    pub aliases: Vec<Alias>,
    /// Who decides how much clients may hold: connections, bodies and answers. One answer more is refused with 429.
    pub doors: Arc<dyn Doors>,
    /// Keys that it honors beside the token, and who hears what answers took.
    pub keys: Option<Arc<dyn crate::keys::Keys>>,
    /// Who keeps the conversations of the owner's page; needs a token.
    pub conversations: Option<Arc<dyn crate::conversations::Conversations>>,
    /// Who stores responses; without one none is, and every answer says so.
    pub responses: Option<Arc<dyn crate::stored_responses::StoredResponses>>,
    /// Who keeps the machine's models.
    pub library: Option<Arc<dyn crate::library::Library>>,
}

impl Default for Config {
    /// A fresh token, no further names, no other origins, limits of its own.
    fn default() -> Self {
        Self {
            token: Some(crate::names::random_hex(32)),
            hosts: Vec::new(),
            origins: Vec::new(),
            aliases: Vec::new(),
            doors: Arc::new(Alone::default()),
            keys: None,
            conversations: None,
            responses: None,
            library: None,
        }
    }
}

/// An API bound to a listener.
pub struct Server {
    app: Arc<App>,
    service: axum::Router,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Prepares to serve `inference` on `listener`.
    ///
    /// # Errors
    /// When the listener has no address, or other machines or pages of other origins may ask while the configuration has
    /// no token.
    pub fn new(inference: Arc<dyn Inference>, listener: TcpListener, config: Config) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if config.token.is_none() && !address.ip().is_loopback() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an API that other machines can reach needs a token",
            ));
        }
        if config.token.is_none() && !config.origins.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an API that other web pages may ask needs a token",
            ));
        }
        let app = App {
            inference,
            hosts: guard::Hosts::new(address, &config.hosts),
            access: guard::Access::new(config.token),
            origins: cors::Origins::new(config.origins),
            aliases: config.aliases,
            keys: config.keys,
            conversations: config.conversations,
            responses: config.responses,
            library: config.library,
            queue: queue::Queue::new(config.doors.clone()),
            doors: config.doors,
            counters: Arc::new(metrics::Counters::default()),
            closing: tokio::sync::watch::Sender::new(false),
        };
        let app = Arc::new(app);
        Ok(Self { service: router::router(app.clone()), app, listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A ticket for the fragment of the page's address; opens the page once.
    pub fn ticket(&self) -> String {
        self.app.access.ticket()
    }

    /// Serves one connection that came another way than over the listener, such as a pipe, until either side ends it. It
    /// counts among no connections.
    pub async fn connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        connection(stream, self.service.clone()).await;
    }

    /// Serves until `stop` completes; then takes no more connections and gives answers under way a few seconds.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let service = self.service;
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = accept(&self.listener, &*self.app.doors) => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let service = service.clone();
                    tokio::spawn(async move {
                        connection(stream, service).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        let answers = async || {
            while self.app.queue.in_use() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(GRACE, answers()).await.is_err() {
            self.app.closing.send_replace(true);
            let _ = tokio::time::timeout(FAREWELL, answers()).await;
            // What was said is on its way to the sockets.
            tokio::time::sleep(FLUSH).await;
        }
    }
}

async fn accept(listener: &TcpListener, doors: &dyn Doors) -> io::Result<(TcpStream, Pass)> {
    let place = doors.wait(Door::Connections, 1).await;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, service: axum::Router) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
    if let Err(error) = served {
        // Clients go away all the time: that is worth a debug line only.
        tracing::debug!(%error, "a connection broke");
    }
}
