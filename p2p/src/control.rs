//! Asking a peer for something: one substream per ask, a length and the bytes, one answer.
//!
//! Not libp2p's request-response: that spreads requests over all connections of a peer, half-dead and relayed ones
//! included, answers nothing about which of them failed, and would pass every ask through the event loop twice. Here
//! the asking task itself writes and reads, on the best connection, under the caller's deadline. With lazy negotiation
//! an ask costs one round trip.
//!
//! Limits: [`MAX_ASK`] and [`MAX_ANSWER`] bytes, checked before anything is allocated; an ask must arrive within
//! [`ASK_DEADLINE`] of its stream; the streams of a peer are bounded like all others.

use std::time::Duration;

use scheduler::NodeId;

use crate::error::HopError;
use crate::link::Stream;
use crate::wire::control::{Answer, Ask, MAX_ANSWER, MAX_ASK};

/// A slower ask is dropped unread; ten times what a bad line needs for 16 KiB.
pub(crate) const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// How long an answer may take to leave.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Where an answer goes. Dropping it tells the asker [`HopError::Closed`].
#[derive(Debug)]
pub struct ReplyTo {
    stream: Stream,
}

impl ReplyTo {
    /// Who asked.
    pub fn node(&self) -> NodeId {
        self.stream.node()
    }

    pub(crate) async fn send(mut self, answer: &Answer) -> Result<(), HopError> {
        let bytes = answer.encode();
        if bytes.len() > MAX_ANSWER {
            return Err(HopError::Refused(format!(
                "an answer of {} bytes is beyond {MAX_ANSWER}",
                bytes.len()
            )));
        }
        let sent = async {
            self.stream.send(&(bytes.len() as u32).to_le_bytes(), &bytes).await?;
            self.stream.finish().await
        };
        tokio::time::timeout(ANSWER_DEADLINE, sent).await.unwrap_or(Err(HopError::Timeout))
    }
}

/// Says `ask` on a fresh stream and waits for the answer.
pub(crate) async fn call(mut stream: Stream, ask: &Ask) -> Result<Answer, HopError> {
    let bytes = ask.encode();
    if bytes.len() > MAX_ASK {
        return Err(HopError::Refused(format!("an ask of {} bytes is beyond {MAX_ASK}", bytes.len())));
    }
    stream.send(&(bytes.len() as u32).to_le_bytes(), &bytes).await?;
    let bytes = message(&mut stream, MAX_ANSWER).await?;
    Answer::decode(&bytes).map_err(|_| HopError::Corrupt)
}

/// Reads what a peer asks on a stream that it opened.
pub(crate) async fn listen(mut stream: Stream) -> Result<(Ask, ReplyTo), HopError> {
    let bytes = tokio::time::timeout(ASK_DEADLINE, message(&mut stream, MAX_ASK));
    let bytes = bytes.await.unwrap_or(Err(HopError::Timeout))?;
    let ask = Ask::decode(&bytes).map_err(|_| HopError::Corrupt)?;
    Ok((ask, ReplyTo { stream }))
}

async fn message(stream: &mut Stream, cap: usize) -> Result<Vec<u8>, HopError> {
    let mut len = [0; 4];
    stream.recv_exact(&mut len).await?;
    let mut bytes = Vec::new();
    stream.recv_payload(u32::from_le_bytes(len) as usize, cap, &mut bytes).await?;
    Ok(bytes)
}
