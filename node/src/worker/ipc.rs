//! The frames between daemon and worker.
//!
//! ```text
//! meta_len u32 | payload_len u32 | meta: one message, bincode | payload: raw bytes
//! ```
//!
//! The meta part is small and typed; what is large (activations, token ids, text) is the payload, which is never copied
//! into a message: the writer sends it from where it lies, the reader reads it into the buffer that the receiver keeps.
//! Numbers are little endian.
//!
//! Bounds: [`MAX_META`] and [`MAX_FRAME`], checked before anything is allocated; bincode itself is limited to
//! [`MAX_META`] as well, since a length inside a message is as untrusted as the one in front of it. A frame beyond them,
//! one with bytes left over or one that does not decode ends the connection, and with it the worker; the daemon goes on.

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use bincode::{Decode, Encode, config};
use scheduler::{LayerRange, SessionId};
use shard::sample::SamplingParams;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest meta part: 64 stop strings of 4 KiB and 1024 logit biases fit.
pub const MAX_META: usize = 512 << 10;
/// Longest frame without its 8-byte header: 256 rows of 8192 values in f32, twice.
pub const MAX_FRAME: usize = 16 << 20;
/// Payloads up to this travel in one write with their meta part: copying them costs less than another system call.
const ONE_WRITE: usize = 64 << 10;

/// What the daemon says.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Ask {
    /// The first frame: which model, how.
    Load(Load),
    /// Answered by [`Tell::Pong`].
    Ping {
        /// Echoed.
        id: u64,
    },
    /// Text to ids; the payload is the text. Answered by [`Tell::Encoded`].
    Encode {
        /// Echoed.
        id: u64,
        /// What the text is.
        kind: TextKind,
    },
    /// Answered by [`Tell::Opened`]; the payload is the history of a conducting session, u32 ids.
    Open {
        /// Echoed.
        id: u64,
        /// For what.
        open: Open,
    },
    /// A job; the payload is its input. Answered by [`Tell::Output`] or [`Tell::Dropped`].
    Run(Run),
    /// Forget positions from `to` on, in every range of the session.
    Truncate {
        /// Whose.
        session: [u8; 16],
        /// Positions to keep.
        to: u32,
    },
    /// The text that is still held back, since nothing follows. Answered by [`Tell::Finished`].
    Finish {
        /// Echoed.
        id: u64,
        /// Whose.
        session: [u8; 16],
    },
    /// Forget the session.
    Close {
        /// Which.
        session: [u8; 16],
    },
}

/// What the worker says.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Tell {
    /// The model is loaded and measured.
    Ready(Ready),
    /// The model cannot be loaded; the worker ends.
    Failed {
        /// Why.
        why: String,
    },
    /// To [`Ask::Ping`].
    Pong {
        /// As asked.
        id: u64,
    },
    /// To [`Ask::Encode`]; the payload is u32 ids.
    Encoded {
        /// As asked.
        id: u64,
    },
    /// To [`Ask::Open`].
    Opened {
        /// As asked.
        id: u64,
        /// Positions still computed.
        have: u32,
    },
    /// To [`Ask::Finish`]; the payload is text.
    Finished {
        /// As asked.
        id: u64,
    },
    /// Instead of an answer to what had this id.
    Refused {
        /// As asked.
        id: u64,
        /// Why.
        fault: Fault,
    },
    /// To [`Ask::Run`]; the payload is activations, if any.
    Output(Output),
    /// To [`Ask::Run`] of an epoch that is over.
    Dropped {
        /// As asked.
        job: u64,
    },
    /// The session's range was idle for too long and is gone.
    Closed {
        /// Whose.
        session: [u8; 16],
        /// The first layer of the range.
        first: u32,
    },
}

/// See [`super::Spec`].
#[derive(Clone, Debug, Encode, Decode)]
pub struct Load {
    /// The file's path in the system's own bytes; `None` for the embedded model.
    pub path: Option<Vec<u8>>,
    /// The model's hash, if it is known; the worker computes it otherwise.
    pub model: Option<[u8; 32]>,
    /// Start and end of the layers to load; none for all.
    pub layers: Vec<(u32, u32)>,
    /// Most positions of a session.
    pub context: u64,
    /// Compute threads.
    pub threads: Option<u32>,
    /// Instruction set.
    pub isa: Option<String>,
    /// Room for caches.
    pub kv_bytes: u64,
    /// Whether threads stay on their processor.
    pub pin: bool,
    /// Whether others go first.
    pub nice: bool,
}

/// See [`super::Ready`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Ready {
    pub model: [u8; 32],
    pub name: String,
    pub num_layers: u32,
    pub layers: Vec<(u32, u32)>,
    pub hidden: u32,
    pub vocab: u32,
    pub context: u32,
    pub kv_bytes_per_layer_position: u64,
    pub resident_bytes: u64,
    pub decode_ms: f64,
    pub prefill_ms: f64,
    pub visit_ms: f64,
    pub head_ms: f64,
    pub load_ms: f64,
    pub exact: bool,
    pub sandboxed: bool,
}

/// What a text to encode is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum TextKind {
    /// A JSON array of messages for the chat template.
    Chat {
        /// A JSON array of tool descriptions.
        tools: Option<String>,
    },
    /// Text as it is.
    Raw {
        /// Whether BOS goes in front, where the model wants one.
        bos: bool,
        /// Whether names of special tokens become those tokens.
        special: bool,
    },
}

/// See [`super::OpenSession`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Open {
    pub session: [u8; 16],
    pub epoch: u32,
    pub layers: (u32, u32),
    pub positions: u32,
    pub at: u32,
    pub wire: u8,
    pub rounding: Vec<u32>,
    pub conduct: Option<Conduct>,
}

/// See [`super::Conduct`]; the history is the payload.
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Conduct {
    pub sampling: Sampling,
    pub seed: u64,
    pub stop: Vec<String>,
    pub prompt_tokens: u32,
}

/// [`SamplingParams`], field by field.
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Sampling {
    pub temperature: f32,
    pub top_k: u64,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub penalty_window: u64,
    pub logit_bias: Vec<(u32, f32)>,
    pub top_logprobs: u64,
    pub logprobs: bool,
}

/// See [`super::Job`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Run {
    pub job: u64,
    pub session: [u8; 16],
    pub epoch: u32,
    pub layer: u32,
    pub from: u32,
    pub rows: u32,
    /// `None` for token ids, else the form of the activations.
    pub wire: Option<u8>,
    pub want: Want,
}

/// What a job is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Want {
    /// Nothing: caches are filled.
    Nothing,
    /// The rows after the last layer of the range.
    Activations,
    /// The token after the last row.
    Sample,
}

/// See [`super::Output`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Output {
    pub job: u64,
    pub session: [u8; 16],
    pub epoch: u32,
    pub layers: (u32, u32),
    pub from: u32,
    pub rows: u32,
    pub body: Body,
    pub compute_us: u64,
    pub batched: u32,
}

/// See [`super::Body`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub enum Body {
    Nothing,
    Activations(u8),
    Sampled(Sampled),
    NeedReplay { have: u32 },
    Failed(String),
}

/// The token after a position, as the session that conducts sees it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Sampled {
    /// Where it stands, the prompt included.
    pub position: u32,
    /// Its id.
    pub id: u32,
    /// Text that became certain with it, possibly empty.
    pub text: String,
    /// Whether it ends the text.
    pub stop: bool,
    /// Whether it is one of the model's own ends: then it is no part of the answer.
    pub ends_turn: bool,
    /// Its own bytes, when log-probabilities are asked for.
    pub bytes: Vec<u8>,
    /// Its log-probability, when asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens here, best first, when asked for.
    pub top: Vec<Top>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Top {
    /// Its id.
    pub id: u32,
    /// Its bytes, not always whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a worker did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Fault {
    /// It cannot be done as asked; another request may work.
    Refused(String),
    /// The caches of open sessions leave too little room: close some, or ask another node.
    NoRoom {
        /// Bytes the session would need.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// More is queued than the worker is allowed to have waiting: read outputs, then ask again.
    Busy,
    /// The session was being computed when two workers died: it fails instead of killing a third.
    Poison,
    /// The worker is gone, and everything it held: start another.
    Dead(String),
}

impl From<&SamplingParams> for Sampling {
    fn from(p: &SamplingParams) -> Self {
        Self {
            temperature: p.temperature,
            top_k: p.top_k as u64,
            top_p: p.top_p,
            min_p: p.min_p,
            typical_p: p.typical_p,
            repetition_penalty: p.repetition_penalty,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            penalty_window: p.penalty_window as u64,
            logit_bias: p.logit_bias.clone(),
            top_logprobs: p.top_logprobs as u64,
            logprobs: p.logprobs,
        }
    }
}

impl From<Sampling> for SamplingParams {
    /// Counts that do not fit become too large to pass validation.
    fn from(s: Sampling) -> Self {
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            temperature: s.temperature,
            top_k: count(s.top_k),
            top_p: s.top_p,
            min_p: s.min_p,
            typical_p: s.typical_p,
            repetition_penalty: s.repetition_penalty,
            presence_penalty: s.presence_penalty,
            frequency_penalty: s.frequency_penalty,
            penalty_window: count(s.penalty_window),
            logit_bias: s.logit_bias,
            top_logprobs: count(s.top_logprobs),
            logprobs: s.logprobs,
        }
    }
}

/// A range as it travels.
pub fn pair(layers: LayerRange) -> (u32, u32) {
    (layers.start(), layers.end())
}

/// A range that traveled.
pub fn range((start, end): (u32, u32)) -> io::Result<LayerRange> {
    LayerRange::new(start, end).ok_or_else(|| malformed("a range without layers"))
}

/// A session that traveled.
pub fn session(bytes: [u8; 16]) -> SessionId {
    SessionId::new(bytes)
}

/// Ids as a payload.
pub fn ids_to_bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Ids out of a payload; `None` when it is no whole number of them.
pub fn ids_from_bytes(bytes: &[u8]) -> Option<Vec<u32>> {
    let (ids, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
}

/// A path in the system's own bytes.
pub fn path(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed frame: {what}"))
}

/// A message ready to be written.
pub struct Frame {
    /// Header and meta part, and the payload if that is short.
    head: Vec<u8>,
    /// A long payload.
    tail: Vec<u8>,
}

impl Frame {
    /// `message` with `payload`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when it is beyond [`MAX_META`] or [`MAX_FRAME`].
    pub fn new<M: Encode>(message: &M, payload: Vec<u8>) -> io::Result<Self> {
        let mut head = vec![0; 8];
        let meta = bincode::encode_into_std_write(message, &mut head, config::standard())
            .map_err(|error| malformed(&error.to_string()))?;
        check(meta, payload.len())?;
        head[..4].copy_from_slice(&(meta as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        if payload.len() > ONE_WRITE {
            return Ok(Self { head, tail: payload });
        }
        head.extend_from_slice(&payload);
        Ok(Self { head, tail: Vec::new() })
    }

    /// Bytes on the way.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Never: there is a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.head)?;
        to.write_all(&self.tail)
    }

    /// Writes it.
    pub async fn send(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.head).await?;
        if !self.tail.is_empty() {
            to.write_all(&self.tail).await?;
        }
        Ok(())
    }
}

fn check(meta: usize, payload: usize) -> io::Result<()> {
    if meta > MAX_META || payload > MAX_FRAME - meta {
        return Err(malformed("too long"));
    }
    Ok(())
}

fn lengths(header: [u8; 8]) -> io::Result<(usize, usize)> {
    let [a, b, c, d, e, f, g, h] = header;
    let meta = u32::from_le_bytes([a, b, c, d]) as usize;
    let payload = u32::from_le_bytes([e, f, g, h]) as usize;
    check(meta, payload)?;
    Ok((meta, payload))
}

fn parse<M: Decode<()>>(meta: &[u8]) -> io::Result<M> {
    let limited = config::standard().with_limit::<MAX_META>();
    match bincode::decode_from_slice::<M, _>(meta, limited) {
        Ok((message, used)) if used == meta.len() => Ok(message),
        Ok(_) => Err(malformed("bytes after the message")),
        Err(error) => Err(malformed(&error.to_string())),
    }
}

/// The next message and its payload; `None` at the end of the stream.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a malformed frame, [`io::ErrorKind::UnexpectedEof`] for one cut short.
pub fn read<M: Decode<()>>(from: &mut impl Read) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut header = [0; 8];
    let first = loop {
        match from.read(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[first..])?;
    let (meta_len, payload_len) = lengths(header)?;
    let mut meta = vec![0; meta_len];
    from.read_exact(&mut meta)?;
    let message = parse(&meta)?;
    let mut payload = vec![0; payload_len];
    from.read_exact(&mut payload)?;
    Ok(Some((message, payload)))
}

/// As [`read`].
pub async fn receive<M: Decode<()>>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut header = [0; 8];
    let first = from.read(&mut header).await?;
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[first..]).await?;
    let (meta_len, payload_len) = lengths(header)?;
    let mut meta = vec![0; meta_len];
    from.read_exact(&mut meta).await?;
    let message = parse(&meta)?;
    let mut payload = vec![0; payload_len];
    from.read_exact(&mut payload).await?;
    Ok(Some((message, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        assert_eq!(bytes.len(), frame.len());
        bytes
    }

    #[test]
    fn frames_come_out_as_they_went_in_short_and_long() {
        for length in [0, 1, ONE_WRITE, ONE_WRITE + 1, 1 << 20] {
            let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let sent = bytes(&Frame::new(&Tell::Pong { id: 7 }, payload.clone()).unwrap());
            let mut stream = [sent.as_slice(), sent.as_slice()].concat();
            let mut from = stream.as_slice();
            for _ in 0..2 {
                let (tell, got) = read::<Tell>(&mut from).unwrap().unwrap();
                assert!(matches!(tell, Tell::Pong { id: 7 }) && got == payload);
            }
            assert!(read::<Tell>(&mut from).unwrap().is_none());
            stream.truncate(sent.len() - 1);
            let error = read::<Tell>(&mut stream.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_allocated() {
        let lengths = |meta: u32, payload: u32| [meta.to_le_bytes(), payload.to_le_bytes()].concat();
        let long = MAX_META as u32 + 1;
        let large = MAX_FRAME as u32 + 1;
        for header in [lengths(long, 0), lengths(1, large - 1), lengths(u32::MAX, u32::MAX)] {
            let error = read::<Tell>(&mut header.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let why = "x".repeat(MAX_META);
        assert!(Frame::new(&Tell::Failed { why }, Vec::new()).is_err());
        assert!(Frame::new(&Tell::Pong { id: 1 }, vec![0; MAX_FRAME]).is_err());
    }

    #[test]
    fn lengths_inside_a_message_are_bounded_too() {
        // `Failed { why }` that announces an exabyte of text.
        let mut meta = vec![1, 253];
        meta.extend((1u64 << 60).to_le_bytes());
        let mut frame = [(meta.len() as u32).to_le_bytes(), [0; 4]].concat();
        frame.extend(meta);
        let error = read::<Tell>(&mut frame.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn every_shortened_or_lengthened_message_is_refused() {
        let ask = Ask::Run(Run {
            job: 300,
            session: [9; 16],
            epoch: 70_000,
            layer: 3,
            from: 1000,
            rows: 2,
            wire: Some(1),
            want: Want::Activations,
        });
        let good = bytes(&Frame::new(&ask, Vec::new()).unwrap());
        for len in 8..good.len() + 2 {
            let mut meta = good[8..].to_vec();
            meta.resize(len - 8, 0);
            let mut frame = [(meta.len() as u32).to_le_bytes(), [0; 4]].concat();
            frame.extend(meta);
            assert_eq!(read::<Ask>(&mut frame.as_slice()).is_ok(), len == good.len(), "{len} bytes");
        }
    }

    #[test]
    fn sampling_parameters_survive_the_way() {
        let params = SamplingParams {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            typical_p: 0.95,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.3,
            penalty_window: 128,
            logit_bias: vec![(5, -1.0)],
            top_logprobs: 3,
            logprobs: true,
        };
        assert_eq!(SamplingParams::from(Sampling::from(&params)), params);
    }
}
