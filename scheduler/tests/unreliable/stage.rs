//! What a stage computes: each layer's output depends on all earlier inputs of that layer.

use scheduler::rng::mix;
use scheduler::session::Attempts;
use scheduler::{LayerRange, NodeId};

use super::{LAYERS, PROMPT, WANTED};

/// The KV of some layers and what computing on it gives.
#[derive(Clone, Default)]
pub struct Kv {
    /// Per position, what entered each layer.
    pub inputs: Vec<Vec<u64>>,
}

impl Kv {
    pub fn truncate(&mut self, to: u32) {
        self.inputs.truncate(to as usize);
    }

    pub fn compute(&mut self, layers: LayerRange, mut hidden: u64) -> u64 {
        let mut entered = Vec::new();
        for layer in layers.start()..layers.end() {
            let at = (layer - layers.start()) as usize;
            let past = self.inputs.iter().fold(7, |hash, inputs| mix(hash ^ inputs[at]));
            entered.push(hidden);
            hidden = mix(hidden ^ past ^ u64::from(layer));
        }
        self.inputs.push(entered);
        hidden
    }
}

pub fn token_of(hidden: u64) -> u32 {
    (hidden % 50_000) as u32
}

pub fn prompt(position: u32) -> u32 {
    mix(u64::from(position)) as u32 % 50_000
}

/// What a machine that never fails would say.
pub fn reference() -> Vec<u32> {
    let mut kv = Kv::default();
    let all = LayerRange::new(0, LAYERS).unwrap();
    let mut tokens: Vec<u32> = (0..PROMPT).map(prompt).collect();
    let mut next = 0;
    while tokens.len() < (PROMPT + WANTED) as usize {
        let hidden = kv.compute(all, u64::from(tokens[next]));
        next += 1;
        if next == tokens.len() {
            tokens.push(token_of(hidden));
        }
    }
    tokens.split_off(PROMPT as usize)
}

/// What one node remembers of the session, by segment.
#[derive(Clone, Default)]
pub struct Served {
    pub epoch: u32,
    pub attempts: Attempts,
    pub stage: usize,
    pub next: Option<NodeId>,
    pub kv: Kv,
    /// It computes until then.
    pub busy_until: u64,
}
