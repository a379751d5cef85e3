//! What a conductor signs of a prompt that it answered for a peer, and what that peer signs back.
//!
//! For the peer the conductor did all layers, by itself or with stages that it signed for on its own. So its bill is [`Work`] over the
//! whole model; in place of a chain's head stands a digest of the tokens that it said. The peer has these and counts them. The prompt it
//! cannot encode without the vocabulary: it takes the count that the conductor reports with the answer, up to what such a text may have
//! ([`most_prompt_tokens`]).
//!
//! Limits: what was broken off, has not a token or is known to be wrong is neither billed nor signed for.

use p2p::{
    Identity,
    wire::receipt::{Grant, Receipt, Work},
};
use scheduler::{LayerRange, ModelId, NodeId, SessionId};

/// Tokens that a chat template may add to a conversation: default system prompts have some hundreds.
const TEMPLATE_TOKENS: usize = 1_024;

/// An answer of one node to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered<'a> {
    /// Who answered.
    pub(super) conductor: NodeId,
    /// Whom.
    pub(super) requester: NodeId,
    /// By which model.
    pub(super) model: ModelId,
    /// Layers of that model.
    pub(super) num_layers: u32,
    /// Tokens of the answer that were known before, which the conductor computed as if they were prompt.
    pub(super) known: usize,
    /// Tokens that it said.
    pub(super) said: &'a [u32],
}

impl Answered<'_> {
    /// Digest of the tokens said.
    fn head(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"shoal/bill/1\0");
        self.said.iter().for_each(|id| {
            hasher.update(&id.to_le_bytes());
        });
        *hasher.finalize().as_bytes()
    }

    /// The conductor's bill: bytes for the peer to sign. `random` names it among those of this second `unix_s`.
    pub(super) fn bill(
        &self,
        prompt_tokens: u32,
        conductor: &Identity,
        (random, unix_s): ([u8; 16], u32),
    ) -> Option<Vec<u8>> {
        let [a, b, c, d, ..] = random;
        let work = Work {
            stage: self.conductor,
            requester: self.requester,
            session: SessionId::new(random),
            grant: Grant::new(unix_s, u32::from_le_bytes([a, b, c, d])),
            model: self.model,
            layers: LayerRange::new(0, self.num_layers)?,
            prefill_tokens: prompt_tokens.checked_add(u32::try_from(self.known).ok()?)?,
            decode_tokens: u32::try_from(self.said.len()).ok()?,
            head: self.head(),
            ended_unix_s: unix_s,
        };
        work.offer(conductor).ok()
    }

    /// The peer's receipt for `bill`, where that says what it got for a prompt that was reported to have `prompt_tokens`, and may have
    /// `most` of them.
    pub(super) fn receipt(
        &self,
        bill: &[u8],
        (prompt_tokens, most): (u32, usize),
        requester: &Identity,
        now_unix_s: u32,
    ) -> Option<Box<[u8; Receipt::LEN]>> {
        let work = Work::open_offer(bill).ok()?;
        let fits = work.stage == self.conductor
            && work.requester == self.requester
            && work.model == self.model
            && Some(work.layers) == LayerRange::new(0, self.num_layers)
            && work.prefill_tokens as usize == (prompt_tokens as usize).saturating_add(self.known)
            && prompt_tokens as usize <= most
            && work.decode_tokens as usize == self.said.len()
            && work.head == self.head()
            && work.grant.is_current(now_unix_s);
        if !fits {
            tracing::info!(conductor = %self.conductor, ?work, said = self.said.len(), "a bill that does not fit the answer is not signed");
            return None;
        }
        Receipt::cosign(bill, requester).ok()?.try_into().ok()
    }
}

/// Tokens that a prompt of `bytes` has at most, its template's included: a vocabulary has a token for each byte.
pub(super) fn most_prompt_tokens(bytes: usize) -> usize {
    bytes.saturating_add(TEMPLATE_TOKENS)
}

#[cfg(test)]
mod tests {
    use p2p::{Identity, wire::receipt::Receipt};
    use scheduler::ModelId;

    use super::{Answered, TEMPLATE_TOKENS, most_prompt_tokens};

    const NOW: u32 = 1_800_000_000;

    #[test]
    fn a_bill_is_signed_for_what_was_answered_and_no_more() {
        let [conductor, requester, other] = [1, 2, 3].map(|seed| Identity::from_seed([seed; 32]));
        let answered = Answered {
            conductor: conductor.node(),
            requester: requester.node(),
            model: ModelId::new([3; 32]),
            num_layers: 28,
            known: 2,
            said: &[5, 6, 7],
        };
        let bill = |answered: Answered<'_>, prompt| {
            answered.bill(prompt, &conductor, ([9; 16], NOW)).expect("within all bounds")
        };
        let sign = |bill: &[u8], prompt: u32, now| {
            answered.receipt(bill, (prompt, most_prompt_tokens(40)), &requester, now)
        };
        let receipt = sign(&bill(answered, 30), 30, NOW + 5).unwrap();
        let work = *Receipt::open(&*receipt).unwrap().work();
        assert_eq!((work.prefill_tokens, work.decode_tokens, work.layers.len()), (32, 3, 28));

        let most = most_prompt_tokens(40) as u32;
        assert_eq!(most as usize, 40 + TEMPLATE_TOKENS);
        assert!(sign(&bill(answered, most), most, NOW).is_some());
        assert!(sign(&bill(answered, most + 1), most + 1, NOW).is_none(), "no such text has so many");
        let wrong = [
            bill(answered, 31),
            bill(Answered { said: &[5, 6, 7, 8], ..answered }, 30),
            bill(Answered { said: &[5, 6, 8], ..answered }, 30),
            bill(Answered { num_layers: 29, ..answered }, 30),
            bill(Answered { model: ModelId::new([4; 32]), ..answered }, 30),
            bill(Answered { requester: other.node(), ..answered }, 30),
        ];
        for (which, bill) in wrong.iter().enumerate() {
            assert!(sign(bill, 30, NOW).is_none(), "bill {which}");
        }
        let mut changed = bill(answered, 30);
        changed[100] ^= 1;
        assert!(sign(&changed, 30, NOW).is_none());
        assert!(
            sign(&bill(answered, 30), 30, NOW + 2 * 86_400).is_none(),
            "a bill of the day before yesterday"
        );
        assert!(answered.bill(30, &other, ([9; 16], NOW)).is_none(), "it is its own work that a node bills");
    }
}
