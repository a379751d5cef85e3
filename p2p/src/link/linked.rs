//! A stream whose frames may take another link: each has a number, and its reader puts them in order.
//!
//! On the substream there are records: a kind (1 byte), a number (4), a length (4) and so many bytes.
//!
//! | kind | what |
//! |---|---|
//! | 0 | the frame of this number; all before it have arrived |
//! | 1 | the frame of this number, which datagrams did not carry; others after it may have arrived |
//! | 2 | the first record of who opens: the number is the low half of the session's name at the other end; the lane's name, 8 bytes |
//!
//! A frame is written to the substream only when all that were handed to datagrams have arrived or are written: so a reader
//! never has to read past a frame that it cannot hand out yet, and holds no more than what datagrams brought early, within the
//! session's places, and what came back, taken from the governor.

use std::collections::BTreeMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use scheduler::governor::Resource;
use tokio::sync::{Mutex, mpsc};

use super::datagram::send::Place;
use super::datagram::session::{Delivered, MAX_FRAME, PLACE_LEN};
use super::lane::{Doors, Lane};
use super::neighbor::{Link, Neighbor, Offer};
use crate::governor::Permit;

const RECORD_LEN: usize = 9;
const FRAME: u8 = 0;
const RETURNED: u8 = 1;
const OPEN: u8 = 2;

fn record(kind: u8, number: u32, len: usize) -> [u8; RECORD_LEN] {
    let mut head = [0; RECORD_LEN];
    head[0] = kind;
    head[1..5].copy_from_slice(&number.to_le_bytes());
    head[5..].copy_from_slice(&(len as u32).to_le_bytes());
    head
}

fn number_at(head: &[u8; RECORD_LEN], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| head[at + i]))
}

/// The first record of a stream: the low half of what the other end calls the session, and what the opener calls the lane.
pub(crate) fn opening(session: u32, lane: u64) -> Vec<u8> {
    [&record(OPEN, session, 8)[..], &lane.to_le_bytes()].concat()
}

/// Length of [`opening`], bytes.
pub(crate) const OPENING_LEN: usize = RECORD_LEN + 8;

/// Reads what [`opening`] wrote, if it names the session that this end calls so.
pub(crate) fn read_opening(session: u32, bytes: &[u8; OPENING_LEN]) -> Option<u64> {
    let (head, lane) = bytes.split_first_chunk::<RECORD_LEN>()?;
    (*head == record(OPEN, session, 8)).then(|| lane.try_into().map(u64::from_le_bytes).ok()).flatten()
}

/// Forgets a lane when both halves of its stream are gone.
#[derive(Debug)]
struct Entry {
    neighbor: Arc<Neighbor>,
    name: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.neighbor.leave(self.name);
    }
}

/// The half that writes.
#[derive(Debug)]
pub(crate) struct Sending<W> {
    entry: Arc<Entry>,
    lane: Arc<Lane>,
    next: u32,
    substream: Arc<Mutex<W>>,
}

/// The half that reads.
#[derive(Debug)]
pub(crate) struct Receiving<R> {
    entry: Arc<Entry>,
    substream: R,
    inbox: mpsc::UnboundedReceiver<Delivered>,
    /// The frame that is being handed out, and how much of it was.
    current: Early,
    at: usize,
    /// Bytes of the substream that belong to the frame being handed out.
    passing: usize,
    /// Bytes of a record that is had already.
    skipping: usize,
    /// The number of the next frame.
    next: u32,
    early: BTreeMap<u32, Early>,
    head: [u8; RECORD_LEN],
    head_len: usize,
    /// A record that waits for the frames before it, or is being read.
    body: Option<Body>,
}

/// A frame that came before its turn.
#[derive(Debug)]
enum Early {
    None,
    Delivered(Delivered),
    Returned(Vec<u8>, #[expect(dead_code, reason = "counts the bytes while they are held")] Permit),
}

impl Early {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Delivered(delivered) => &delivered.message[PLACE_LEN..],
            Self::Returned(frame, _) => frame,
        }
    }
}

/// A record whose head was read.
#[derive(Debug)]
enum Body {
    /// It waits for its turn, unread.
    Waits { number: u32, len: usize },
    /// It came back and is early: it is read.
    Comes { number: u32, frame: Vec<u8>, have: usize, permit: Permit },
}

/// Both halves of a stream with a lane called `name`, over the halves of its substream. Called within a runtime: what comes back
/// is written by a task of its own.
pub(crate) fn halves<R, W>(
    neighbor: Arc<Neighbor>,
    name: u64,
    doors: Doors,
    (read, write): (R, W),
) -> (Receiving<R>, Sending<W>)
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let Doors { lane, inbox, mut returns } = doors;
    let entry = Arc::new(Entry { neighbor, name });
    let substream = Arc::new(Mutex::new(write));
    let (writes, settles) = (substream.clone(), lane.clone());
    tokio::spawn(async move {
        while let Some((number, frame)) = returns.recv().await {
            let mut writer = writes.lock().await;
            let bytes = [&record(RETURNED, number, frame.len())[..], &frame].concat();
            let written = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if written.await.is_err() {
                // The next frame finds the substream broken as well.
                tracing::debug!("a frame that came back cannot be written");
            }
            settles.settle();
        }
    });
    let receiving = Receiving {
        entry: entry.clone(),
        substream: read,
        inbox,
        current: Early::None,
        at: 0,
        passing: 0,
        skipping: 0,
        next: 0,
        early: BTreeMap::new(),
        head: [0; RECORD_LEN],
        head_len: 0,
        body: None,
    };
    (receiving, Sending { entry, lane, next: 0, substream })
}

impl<W: AsyncWrite + Unpin> Sending<W> {
    /// Sends a frame of two parts over the link in use. `buffer` is room for it.
    pub(crate) async fn send(&mut self, parts: [&[u8]; 2], buffer: &mut Vec<u8>) -> io::Result<()> {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let place = Place { lane: self.entry.name, number };
        self.entry.neighbor.on_frame();
        loop {
            let mut room = pin!(self.entry.neighbor.room.notified());
            room.as_mut().enable();
            match self.entry.neighbor.offer(place, parts) {
                Offer::Carried => return Ok(()),
                Offer::Wait => room.await,
                Offer::Decline => break,
            }
        }
        self.entry.neighbor.on_streamed();
        self.settled().await;
        buffer.clear();
        buffer.extend_from_slice(&record(FRAME, number, parts[0].len() + parts[1].len()));
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        let mut substream = self.substream.lock().await;
        substream.write_all(buffer).await?;
        substream.flush().await
    }

    /// Waits until every frame has arrived or is on the substream.
    async fn settled(&self) {
        loop {
            let mut settled = pin!(self.lane.settled.notified());
            settled.as_mut().enable();
            if self.lane.outstanding.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Ends this half after all that was sent.
    pub(crate) async fn finish(self) -> io::Result<()> {
        self.settled().await;
        self.substream.lock().await.close().await
    }
}

impl<R: AsyncRead + Unpin> Receiving<R> {
    /// Takes what datagrams brought. Whether anything came.
    fn poll_inbox(&mut self, cx: &mut Context<'_>) -> bool {
        match self.inbox.poll_recv(cx) {
            Poll::Ready(Some(delivered)) => {
                let number = delivered.place.number;
                // What is behind came over the stream already; a session holds no more than its places.
                if number.wrapping_sub(self.next) as i32 >= 0 {
                    self.early.entry(number).or_insert(Early::Delivered(delivered));
                }
                true
            }
            _ => false,
        }
    }

    /// Reads a record's head and decides what its bytes are. `Ready(false)` at the end of the substream.
    fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.head_len < RECORD_LEN {
            let read = Pin::new(&mut self.substream).poll_read(cx, &mut self.head[self.head_len..]);
            match ready!(read)? {
                0 if self.head_len == 0 => return Poll::Ready(Ok(false)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                more => self.head_len += more,
            }
        }
        self.head_len = 0;
        let (number, len) = (number_at(&self.head, 1), number_at(&self.head, 5) as usize);
        let ahead = number.wrapping_sub(self.next) as i32;
        let had = ahead < 0 || self.early.contains_key(&number);
        match self.head[0] {
            FRAME | RETURNED if had => self.skipping = len,
            FRAME => self.body = Some(Body::Waits { number, len }),
            RETURNED if len > MAX_FRAME => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            RETURNED if ahead == 0 => self.body = Some(Body::Waits { number, len }),
            RETURNED => {
                let neighbor = &self.entry.neighbor;
                let taken = neighbor.governor().take_for(neighbor.peer, Resource::Bytes, len as u64);
                let permit = taken.map_err(io::Error::other)?;
                self.body = Some(Body::Comes { number, frame: vec![0; len], have: 0, permit });
            }
            _ => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
        Poll::Ready(Ok(true))
    }

    /// Goes on with a record. Whether it is over, or its turn has come.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.body.take() {
            Some(Body::Waits { number, len }) if number == self.next => {
                self.passing = len;
                self.next = self.next.wrapping_add(1);
            }
            // Its datagrams have come meanwhile.
            Some(Body::Waits { number, len }) if (number.wrapping_sub(self.next) as i32) < 0 => {
                self.skipping = len
            }
            Some(waits @ Body::Waits { .. }) => {
                self.body = Some(waits);
                return Poll::Pending;
            }
            Some(Body::Comes { number, mut frame, mut have, permit }) => {
                while have < frame.len() {
                    match Pin::new(&mut self.substream).poll_read(cx, &mut frame[have..]) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        Poll::Ready(Ok(more)) => have += more,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {
                            self.body = Some(Body::Comes { number, frame, have, permit });
                            return Poll::Pending;
                        }
                    }
                }
                // Its datagrams may have come meanwhile.
                if number.wrapping_sub(self.next) as i32 >= 0 {
                    self.early.entry(number).or_insert(Early::Returned(frame, permit));
                }
            }
            None => {}
        }
        Poll::Ready(Ok(()))
    }

    fn poll_some(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let rest = &self.current.bytes()[self.at..];
            if !rest.is_empty() {
                let len = rest.len().min(into.len());
                into[..len].copy_from_slice(&rest[..len]);
                self.at += len;
                return Poll::Ready(Ok(len));
            }
            self.current = Early::None;
            self.at = 0;
            if self.passing > 0 {
                let len = self.passing.min(into.len());
                let read = ready!(Pin::new(&mut self.substream).poll_read(cx, &mut into[..len]))?;
                if read == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                self.passing -= read;
                return Poll::Ready(Ok(read));
            }
            if let Some(early) = self.early.remove(&self.next) {
                self.current = early;
                self.next = self.next.wrapping_add(1);
                continue;
            }
            if self.poll_inbox(cx) {
                continue;
            }
            if self.skipping > 0 {
                let mut waste = [0; 4_096];
                let len = self.skipping.min(waste.len());
                match ready!(Pin::new(&mut self.substream).poll_read(cx, &mut waste[..len]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    read => self.skipping -= read,
                }
                continue;
            }
            if self.body.is_some() {
                ready!(self.poll_body(cx))?;
                continue;
            }
            if !ready!(self.poll_record(cx))? {
                // A frame that arrived was handed over before the end was sent.
                if self.poll_inbox(cx) {
                    continue;
                }
                // All frames before the end have been handed over, or the other end broke off.
                let broken = !self.early.is_empty();
                return Poll::Ready(if broken { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(0) });
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Receiving<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.get_mut().poll_some(cx, into)
    }
}

/// Reads the first record of a stream that a peer opened.
pub(crate) async fn opened(session: u32, substream: &mut (impl AsyncRead + Unpin)) -> io::Result<u64> {
    let mut bytes = [0; OPENING_LEN];
    substream.read_exact(&mut bytes).await?;
    read_opening(session, &bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
