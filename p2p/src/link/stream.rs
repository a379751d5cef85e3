//! A stream to one peer.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{fmt, io};

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::task::AtomicWaker;
use libp2p::swarm::ConnectionId;
use scheduler::NodeId;
use tokio::sync::OwnedSemaphorePermit;

use super::linked::{self, Receiving, Sending};
use super::neighbor::Neighbor;
use crate::error::HopError;
use crate::governor::Permit;
use crate::path::Path;

/// Most bytes one [`Stream::send`] takes: the longest frame with room to spare. More is refused, nothing is sent.
pub const MAX_SEND: usize = 16 << 20;
/// What a payload buffer grows by at most before the bytes for it have arrived.
const STEP: usize = 64 << 10;

/// What a link gives a [`Stream`]: bytes in order, both ways, to one authenticated peer. A substream of a libp2p connection is
/// one; another kind of link implements this and hands itself to `Stream::new`.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug> Io for T {}

/// Bytes that crossed the streams to one peer.
#[derive(Default, Debug)]
pub(crate) struct Traffic {
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Frames of the data plane that were sent on plain streams.
    pub frames_out: AtomicU64,
}

/// What a stream occupies as long as one half of it lives.
#[derive(Debug)]
pub(crate) struct Guard {
    pub traffic: Arc<Traffic>,
    /// Over which it runs.
    pub connection: ConnectionId,
    /// Where the connection comes from or leads, directly.
    pub remote: Option<IpAddr>,
    /// Streams on the same connection; the connection is not closed while there are any.
    pub live: Arc<AtomicUsize>,
    /// What is sent on it are frames of the data plane.
    pub frames: bool,
    pub _seat: Seat,
}

/// Which room a stream has its place in: this node's own, or the one for others.
#[derive(Debug)]
pub(crate) enum Seat {
    /// This node opened it.
    Own { _permit: OwnedSemaphorePermit },
    /// Its peer did.
    Others { _permit: Permit },
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Wakes the tasks that wait on either half.
///
/// Reading a substream whose negotiation is still open flushes what was written, and a muxer remembers one waiter per
/// queue: a reader that polls with its own waker would be woken in the writer's place, and the writer never. So both
/// halves poll with this one.
#[derive(Default, Debug)]
struct Wakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}

/// What both halves share.
#[derive(Debug)]
struct Pipe {
    io: Mutex<Box<dyn Io>>,
    wakers: Arc<Wakers>,
    both: Waker,
}

impl Pipe {
    fn new(io: Box<dyn Io>) -> Self {
        let wakers = Arc::<Wakers>::default();
        Self { io: Mutex::new(io), both: wakers.clone().into(), wakers }
    }

    fn poll<T>(&self, poll: impl FnOnce(Pin<&mut dyn Io>, &mut Context<'_>) -> Poll<T>) -> Poll<T> {
        // A panic while polling leaves the substream in a state that it reports itself.
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        poll(Pin::new(&mut **io), &mut Context::from_waker(&self.both))
    }
}

/// A half's view of the pipe.
#[derive(Clone, Debug)]
pub(super) struct Half(Arc<Pipe>);

/// What a reader reads from: bytes as they are on the substream, or numbered frames that may come another way.
#[derive(Debug)]
enum Source {
    Plain(Half),
    Linked(Box<Receiving<Half>>),
}

impl AsyncRead for Source {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_read(cx, bytes),
            Self::Linked(receiving) => Pin::new(&mut **receiving).poll_read(cx, bytes),
        }
    }
}

impl AsyncRead for Half {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.wakers.reader.register(cx.waker());
        self.0.poll(|io, cx| io.poll_read(cx, bytes))
    }
}

impl AsyncWrite for Half {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.wakers.writer.register(cx.waker());
        self.0.poll(|io, cx| io.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.wakers.writer.register(cx.waker());
        self.0.poll(|io, cx| io.poll_flush(cx))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.wakers.writer.register(cx.waker());
        self.0.poll(|io, cx| io.poll_close(cx))
    }
}

/// An open stream. Dropping it resets it, and the peer sees [`HopError::Closed`]; [`Stream::finish`] ends it in order.
#[derive(Debug)]
pub struct Stream {
    node: NodeId,
    path: Path,
    reader: Reader,
    writer: Writer,
}

/// The half of a stream that reads.
#[derive(Debug)]
pub struct Reader {
    io: Source,
    guard: Arc<Guard>,
}

/// The half of a stream that writes.
#[derive(Debug)]
pub struct Writer {
    io: Half,
    /// Set where its frames are numbered.
    linked: Option<Sending<Half>>,
    /// The frame being sent; kept between frames, so the hot path does not allocate.
    frame: Vec<u8>,
    guard: Arc<Guard>,
}

impl Stream {
    /// A stream over `io`, which leads to `node` by `path`.
    pub(crate) fn new(node: NodeId, path: Path, io: impl Io + 'static, guard: Guard) -> Self {
        let guard = Arc::new(guard);
        let pipe = Arc::new(Pipe::new(Box::new(io)));
        let (read, write) = (Half(pipe.clone()), Half(pipe));
        let reader = Reader { io: Source::Plain(read), guard: guard.clone() };
        Self { node, path, reader, writer: Writer { io: write, linked: None, frame: Vec::new(), guard } }
    }

    /// This stream, fresh, as a lane that its opener has named: frames may take the datagrams of `neighbor`. `None` when there is
    /// a lane of that name. `opener`: this end opened it.
    pub(crate) async fn linked(mut self, neighbor: Arc<Neighbor>, opener: bool) -> Result<Self, HopError> {
        let half = self.writer.io.clone();
        let [there, here] = neighbor.names();
        let name = if opener {
            getrandom::u64().map_err(|_| HopError::Closed)?
        } else {
            linked::opened(here, &mut self.reader.io).await.map_err(gone)?
        };
        // Who opened hears of the other end when that is ready; the other end knows that this one is.
        let doors = neighbor.enter(name, !opener).ok_or(HopError::Corrupt)?;
        if opener {
            self.writer.io.write_all(&linked::opening(there, name)).await.map_err(gone)?;
            self.writer.io.flush().await.map_err(gone)?;
        } else {
            neighbor.say_ready(name);
        }
        let (receiving, sending) = linked::halves(neighbor, name, doors, (half.clone(), half));
        self.reader.io = Source::Linked(Box::new(receiving));
        self.writer.linked = Some(sending);
        Ok(self)
    }

    /// The address at the other end of its connection, where that is direct.
    pub(crate) fn remote(&self) -> Option<IpAddr> {
        self.writer.guard.remote
    }

    /// Whose stream it is; proved by the transport.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Over what it runs. A stream stays on its connection when a better one appears.
    pub fn path(&self) -> Path {
        self.path
    }

    /// The connection it runs on.
    pub(crate) fn connection(&self) -> ConnectionId {
        self.writer.guard.connection
    }

    /// See [`Writer::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, header: &[u8], payload: &[u8]) -> Result<(), HopError> {
        self.writer.send(header, payload).await
    }

    /// See [`Reader::recv_exact`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_exact(&mut self, bytes: &mut [u8]) -> Result<(), HopError> {
        self.reader.recv_exact(bytes).await
    }

    /// See [`Reader::recv_payload`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_payload(&mut self, len: usize, cap: usize, into: &mut Vec<u8>) -> Result<(), HopError> {
        self.reader.recv_payload(len, cap, into).await
    }

    /// See [`Reader::recv_exact_within`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_exact_within(&mut self, bytes: &mut [u8], limit: Duration) -> Result<(), HopError> {
        self.reader.recv_exact_within(bytes, limit).await
    }

    /// Both halves, for two tasks. The stream lives until both are dropped.
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    /// Ends the stream after all that was sent.
    ///
    /// # Errors
    /// [`HopError::Closed`] when the connection is gone.
    pub async fn finish(self) -> Result<(), HopError> {
        self.writer.finish().await
    }
}

/// For protocols that want a pipe of bytes, such as [`crate::blob::serve()`]: both halves of one task's stream.
impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let reader = &mut self.get_mut().reader;
        let read = match Pin::new(&mut reader.io).poll_read(cx, into.initialize_unfilled()) {
            Poll::Ready(read) => read?,
            Poll::Pending => return Poll::Pending,
        };
        into.advance(read);
        reader.guard.traffic.bytes_in.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let writer = &mut self.get_mut().writer;
        if writer.linked.is_some() {
            // Numbered frames are sent whole.
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        }
        let written = match Pin::new(&mut writer.io).poll_write(cx, bytes) {
            Poll::Ready(written) => written?,
            Poll::Pending => return Poll::Pending,
        };
        writer.guard.traffic.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer.io).poll_close(cx)
    }
}

impl Reader {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`HopError::Closed`] when the peer ends or resets the stream first.
    pub async fn recv_exact(&mut self, bytes: &mut [u8]) -> Result<(), HopError> {
        self.io.read_exact(bytes).await.map_err(gone)?;
        self.guard.traffic.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Fills `bytes` within `limit`: for what a peer must say promptly, such as the first words of a stream.
    ///
    /// # Errors
    /// [`HopError::Timeout`], or as [`Reader::recv_exact`].
    pub async fn recv_exact_within(&mut self, bytes: &mut [u8], limit: Duration) -> Result<(), HopError> {
        match tokio::time::timeout(limit, self.recv_exact(bytes)).await {
            Ok(filled) => filled,
            Err(_) => Err(HopError::Timeout),
        }
    }

    /// Reads the `len` bytes that a header announced into `into`, replacing what was there. The buffer grows as bytes
    /// arrive, at most doubling beyond them, so an announced length alone costs the announcer's peer nothing.
    ///
    /// # Errors
    /// [`HopError::Corrupt`] when `len` is beyond `cap`: nothing is read and the stream is of no further use.
    /// Otherwise as [`Reader::recv_exact`].
    pub async fn recv_payload(&mut self, len: usize, cap: usize, into: &mut Vec<u8>) -> Result<(), HopError> {
        into.clear();
        if len > cap {
            return Err(HopError::Corrupt);
        }
        while into.len() < len {
            let have = into.len();
            // What is allocated already is free to fill; beyond it, no more than what came so far or one step.
            let more = (into.capacity() - have).max(have).max(STEP).min(len - have);
            into.resize(have + more, 0);
            self.recv_exact(&mut into[have..]).await?;
        }
        Ok(())
    }
}

impl Writer {
    /// Sends a header and its payload as one write, and flushes.
    ///
    /// Waits while the peer does not read: that is the backpressure, and the caller's deadline bounds it. Must not be
    /// cancelled half-way unless the stream is given up.
    ///
    /// # Errors
    /// [`HopError::Closed`] when the stream is gone, [`HopError::Refused`] beyond [`MAX_SEND`].
    pub async fn send(&mut self, header: &[u8], payload: &[u8]) -> Result<(), HopError> {
        let len = header.len() + payload.len();
        if len > MAX_SEND {
            return Err(HopError::Refused(format!("a frame of {len} bytes is beyond {MAX_SEND}")));
        }
        if let Some(linked) = &mut self.linked {
            linked.send([header, payload], &mut self.frame).await.map_err(gone)?;
            self.guard.traffic.bytes_out.fetch_add(len as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.frame.clear();
        self.frame.extend_from_slice(header);
        self.frame.extend_from_slice(payload);
        self.io.write_all(&self.frame).await.map_err(gone)?;
        self.io.flush().await.map_err(gone)?;
        self.guard.traffic.bytes_out.fetch_add(len as u64, Ordering::Relaxed);
        self.guard.traffic.frames_out.fetch_add(self.guard.frames.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends this half after all that was sent; the peer reads to the end and then sees [`HopError::Closed`].
    ///
    /// # Errors
    /// [`HopError::Closed`] when the connection is gone.
    pub async fn finish(mut self) -> Result<(), HopError> {
        if let Some(linked) = self.linked {
            return linked.finish().await.map_err(gone);
        }
        self.io.close().await.map_err(gone)
    }
}

/// Every failure of a stream is its end: a peer without the protocol, a reset and a lost connection look alike.
fn gone(_: io::Error) -> HopError {
    HopError::Closed
}
