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

mod message;

use std::io::{self, Read, Write};

use bincode::{Decode, Encode, config};
use scheduler::{
    LayerRange, SessionId,
    capability::MAX_LAYERS,
    layer_cost::{LayerCost, LayerCosts},
};
use shard::draft::DraftToken;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use super::ready::CostRun;
pub use message::*;

/// Longest meta part: 64 stop strings of 4 KiB and 1024 logit biases fit.
pub const MAX_META: usize = 512 << 10;
/// Longest frame without its 8-byte header: 256 rows of 8192 values in f32, twice.
pub const MAX_FRAME: usize = 16 << 20;
/// Payloads up to this travel in one write with their meta part: copying them costs less than another system call.
const ONE_WRITE: usize = 64 << 10;

/// A range as it travels.
pub fn pair(layers: LayerRange) -> (u32, u32) {
    (layers.start(), layers.end())
}

/// A range that traveled.
pub fn range((start, end): (u32, u32)) -> io::Result<LayerRange> {
    LayerRange::new(start, end).ok_or_else(|| malformed("a range without layers"))
}

/// Layers that cost the same, as they travel.
pub fn cost_run((cost, layers): (LayerCost, u32)) -> CostRun {
    let LayerCost { row_work, weight_bytes, seen_work, window, state_bytes, position_bytes } = cost;
    CostRun { layers, row_work, weight_bytes, seen_work, window, state_bytes, position_bytes }
}

/// The costs of `num_layers` layers that traveled.
///
/// # Errors
/// When they are of another number of layers, or cannot be.
pub fn costs(runs: &[CostRun], num_layers: u32, hidden: u32) -> io::Result<LayerCosts> {
    let total: u64 = runs.iter().map(|run| u64::from(run.layers)).sum();
    if total != u64::from(num_layers) || num_layers > MAX_LAYERS {
        return Err(malformed("costs of another number of layers"));
    }
    let layers = runs.iter().flat_map(|run| {
        let &CostRun { layers, row_work, weight_bytes, seen_work, window, state_bytes, position_bytes } = run;
        let cost = LayerCost { row_work, weight_bytes, seen_work, window, state_bytes, position_bytes };
        std::iter::repeat_n(cost, layers as usize)
    });
    LayerCosts::new(layers.collect(), hidden).map_err(|_| malformed("costs of layers that cannot be"))
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

/// What a draft model said, as a payload.
pub fn drafted_to_bytes(said: DraftToken) -> Vec<u8> {
    [said.token.to_le_bytes(), said.chance.to_le_bytes()].concat()
}

/// What a draft model said, out of a payload; nothing out of none.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when it is neither, or a chance that cannot be.
pub fn drafted_from_bytes(bytes: &[u8]) -> io::Result<Option<DraftToken>> {
    let odd = || malformed("a drafted token that is none");
    match bytes.as_chunks::<4>() {
        ([], []) => Ok(None),
        ([token, chance], []) => {
            let (token, chance) = (u32::from_le_bytes(*token), f32::from_le_bytes(*chance));
            if (0.0..=1.0).contains(&chance) { Ok(Some(DraftToken { token, chance })) } else { Err(odd()) }
        }
        _ => Err(odd()),
    }
}

/// Tokens of a prompt as a payload.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when they cannot be written.
pub fn prompt_to_bytes(tokens: &[PromptToken]) -> io::Result<Vec<u8>> {
    bincode::encode_to_vec(tokens, config::standard()).map_err(|error| malformed(&error.to_string()))
}

/// Tokens of a prompt out of a payload.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when they are none.
pub fn prompt_from_bytes(bytes: &[u8]) -> io::Result<Vec<PromptToken>> {
    let config = config::standard().with_limit::<MAX_FRAME>();
    let (tokens, read) =
        bincode::decode_from_slice(bytes, config).map_err(|error| malformed(&error.to_string()))?;
    if read == bytes.len() { Ok(tokens) } else { Err(malformed("bytes behind the tokens of a prompt")) }
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
    use shard::{sample::SamplingParams, synthetic::Random};

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
            attempt: 9,
            layer: 3,
            from: 1000,
            rows: 2,
            wire: Some(1),
            want: Want::Activations,
            draft: DraftIds(vec![7, 8]),
            foresee: 3,
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

    #[test]
    fn damaged_frames_are_refused_or_read_as_something_and_never_panic() {
        let conduct = Conduct {
            format: None,
            show_special: false,
            echo: None,
            pooling: Some(crate::worker::PoolingTask::Score),
            sampling: (&SamplingParams::default()).into(),
            seed: 1,
            stop: vec!["END".into()],
            prompt_tokens: 2,
            forgotten: 1,
            skipped: 3,
        };
        let open = Open {
            session: [3; 16],
            epoch: 1,
            layers: (0, 4),
            positions: 100,
            at: 0,
            wire: 0,
            rounding: vec![2],
            kind: "sparse".into(),
            kept: vec![([4; 16], 64)],
            conduct: Some(conduct),
        };
        let good = bytes(&Frame::new(&Ask::Open { id: 1, open }, ids_to_bytes(&[1, 2])).unwrap());
        let mut random = Random(11);
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut frame = good.clone();
            for _ in 0..=random.next() % 3 {
                let at = random.next() as usize % frame.len();
                frame[at] ^= 1 << (random.next() % 8);
            }
            refused += usize::from(read::<Ask>(&mut frame.as_slice()).is_err());
        }
        assert!(refused > 1000, "{refused}");
    }
}
