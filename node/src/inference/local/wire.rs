//! What `shoal serve` and the process that computes for it say to each other.
//!
//! ```text
//! length u32, little endian | one message as JSON
//! ```
//!
//! The first message, [`ToEngine::Start`], may be followed by the model's descriptor ([`crate::confine::descriptors`]). What
//! comes from the engine is no more trusted than the model it parses: it is decoded into types, under a cap, and goes to the
//! client whose request it names.
//!
//! Bounds: [`MAX_FRAME`], checked before anything is allocated; [`WINDOW`] events on the way to a reader that does not read.

use std::{
    io::{self, Read},
    path::PathBuf,
};

use api::inference::{EmbedRequest, Event, Failure, GenerateRequest, ModelInfo, Plan, RerankRequest};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::batch::Reading;

/// Longest message: a request's body is at most 32 MiB, and JSON within JSON may need more.
pub(super) const MAX_FRAME: usize = 96 << 20;
/// Events of one answer that are on the way; the answer is paused until some of them are read.
pub(super) const WINDOW: usize = 64;

/// Where a model is: its path, and the lengths of its files.
pub(super) type FilePlace = (PathBuf, Vec<u64>);

/// How the model is to be run, as on the command line.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct EngineSpec {
    /// What the user called the model.
    pub(super) model: String,
    /// What clients call it.
    pub(super) name: String,
    /// Where the file is, and the lengths of its parts, whose descriptors follow; `None` for the embedded model.
    pub(super) file: Option<FilePlace>,
    /// What packed weights may take in the data folder.
    pub(super) panel_cache: u64,
    /// Whether the file of those of the model follows the descriptors of its parts.
    pub(super) panels: bool,
    /// What the user called the model that drafts, if one does, and its file, whose descriptors follow those of the model; `None`
    /// for the embedded one.
    pub(super) drafter: Option<(String, Option<FilePlace>)>,
    /// The file of the model's draft head, if it has one, whose descriptor follows those.
    pub(super) draft_head: Option<FilePlace>,
    /// The processor of each thread, claimed by the parent; none to let the system place them.
    pub(super) processors: Vec<usize>,
    pub(super) threads: Option<u16>,
    pub(super) ctx: Option<usize>,
    /// What computes, by name, and where a GPU's compiled kernels are kept.
    pub(super) device: (String, Option<PathBuf>),
    pub(super) isa: Option<String>,
    pub(super) no_pin: bool,
    /// Memory for the caches of all answers.
    pub(super) kv_bytes: usize,
    /// What the file for states of ended answers is encrypted with, whose descriptor follows all others; `None` for no such file.
    pub(super) state_secret: Option<[u8; 32]>,
}

/// To the process that computes.
#[derive(Serialize, Deserialize)]
pub(super) enum ToEngine {
    /// The first message.
    Start(Box<EngineSpec>),
    /// An answer to compute.
    Generate { id: u64, request: Box<GenerateRequest> },
    /// A prompt whose tokens are to be counted.
    Count { id: u64, request: Box<GenerateRequest> },
    /// Texts whose vectors are wanted.
    Embed { id: u64, request: EmbedRequest },
    /// Documents whose scores are wanted, which come as one vector.
    Rerank { id: u64, request: RerankRequest },
    /// So many more events of an answer were read.
    Read { id: u64, events: u32 },
    /// The answer is not wanted any more.
    Cancel { id: u64 },
}

/// From it.
#[derive(Serialize, Deserialize)]
pub(super) enum FromEngine {
    /// The model is in memory, or cannot be.
    Loaded(Result<Box<ModelInfo>, String>),
    /// An answer has begun.
    Begun { id: u64, plan: Plan },
    /// It will not be answered.
    Refused { id: u64, failure: Failure },
    /// What happened in it.
    Event { id: u64, event: Event },
    /// So many tokens a prompt has.
    Counted { id: u64, tokens: usize },
    /// One of the vectors, in order.
    Vector { id: u64, values: Vec<f32> },
    /// They were all of them.
    Embedded { id: u64, model: String, prompt_tokens: usize },
    /// How much is under way.
    Gauges(Reading),
    /// The device computes nothing any more; the engine ends.
    Lost { why: String },
}

fn too_long(length: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes is beyond {MAX_FRAME}"))
}

/// A message as it travels.
pub(super) fn frame<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        return Err(too_long(length));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

fn length(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME { Err(too_long(length)) } else { Ok(length) }
}

/// The next message; no byte beyond it is taken.
pub(super) fn read<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<M> {
    let mut header = [0; 4];
    from.read_exact(&mut header)?;
    let mut bytes = vec![0; length(header)?];
    from.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// As [`read`].
pub(super) async fn receive<M: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<M> {
    let mut header = [0; 4];
    from.read_exact(&mut header).await?;
    let mut bytes = vec![0; length(header)?];
    from.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use api::inference::{Done, Finish, Report, TokenLogprob, TokenLogprobs, Usage};

    use super::*;

    #[test]
    fn events_come_out_as_they_went_in() {
        let chosen = TokenLogprob { id: 3, bytes: vec![0xff, 7], logprob: -0.1 };
        let events = [
            Event::Token {
                id: 3,
                text: "é".into(),
                logprobs: Some(TokenLogprobs { chosen: chosen.clone(), top: vec![chosen] }),
            },
            Event::Failed(Failure::Invalid { field: Some("response_format"), why: "no".into() }),
            Event::Failed(Failure::Invalid { field: None, why: "no".into() }),
            Event::Done(Done {
                finish: Finish::Stop,
                stop: Some("END".into()),
                usage: Usage::default(),
                report: Report { tok_s: 0.1 + 0.2, ..Report::default() },
            }),
        ];
        for event in events {
            let bytes = frame(&FromEngine::Event { id: 9, event: event.clone() }).unwrap();
            let Ok(FromEngine::Event { id: 9, event: same }) = read(&mut bytes.as_slice()) else {
                panic!("another message")
            };
            assert_eq!(format!("{event:?}"), format!("{same:?}"));
        }
    }

    #[test]
    fn what_is_too_long_or_no_message_is_refused() {
        let long = [(MAX_FRAME as u32 + 1).to_le_bytes().as_slice(), b"{}"].concat();
        let error = read::<ToEngine>(&mut long.as_slice()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let odd = [4_u32.to_le_bytes().as_slice(), b"null"].concat();
        assert!(read::<ToEngine>(&mut odd.as_slice()).is_err());
        // A field that no request has is none, and not a string for ever.
        let named = br#"{"Refused":{"id":1,"failure":{"Invalid":{"field":"made_up","why":"x"}}}}"#;
        let bytes = [(named.len() as u32).to_le_bytes().as_slice(), named].concat();
        let Ok(FromEngine::Refused { failure, .. }) = read(&mut bytes.as_slice()) else {
            panic!("no refusal")
        };
        assert_eq!(failure, Failure::Invalid { field: None, why: "x".into() });
    }
}
