//! The tokens of a request: the truth from which everything else can be computed again.

/// Prompt and answer.
#[derive(Clone, Debug)]
pub(super) struct Text {
    prompt: u32,
    most: u32,
    tokens: Vec<u32>,
}

impl Text {
    /// A prompt of `prompt` tokens, to be answered with at most `most`.
    pub(super) fn new(prompt: u32, most: u32) -> Self {
        Self { prompt: prompt.max(1), most: most.max(1), tokens: Vec::new() }
    }

    /// Prompt and answer so far.
    pub(super) fn known(&self) -> u32 {
        self.prompt + self.tokens.len() as u32
    }

    /// Tokens that may still follow.
    pub(super) fn left(&self) -> u32 {
        self.most - self.tokens.len() as u32
    }

    /// The answer so far.
    pub(super) fn emitted(&self) -> &[u32] {
        &self.tokens
    }

    /// The token of the answer at a position, the prompt included.
    pub(super) fn at(&self, position: u32) -> Option<u32> {
        let at = position.checked_sub(self.prompt)?;
        self.tokens.get(at as usize).copied()
    }

    /// The next token.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Only `known` positions stay, the prompt in any case.
    pub(super) fn truncate(&mut self, known: u32) {
        self.tokens.truncate(known.saturating_sub(self.prompt) as usize);
    }
}
