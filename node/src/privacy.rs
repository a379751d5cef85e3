//! What a stranger in a boomerang session could read: the text back from the activations it is sent.
//!
//! In boomerang mode the first and the last layers run at home, and strangers see only the rows between. That keeps text
//! and token ids off their machines, but not secret: the rows determine the tokens, and who has the model can search
//! for them. [`audit`] is that search, on the user's own model and text.
//!
//! The attacker holds the model (anyone may download it), sees the rows that enter layer `head` (over wire `raw` exact,
//! over `q8` rounded) and finds one token after the other:
//!
//! ```text
//! prefix found so far -> every candidate token through layers 0..head -> the row nearest to the one seen -> next token
//! ```
//!
//! Candidates are tried in the order in which the model itself expects them after the prefix, and the search for a token
//! ends with the batch that contains a row equal to the one seen: layers compute the same bits everywhere, so with the
//! right prefix there is one. Without one all candidates are tried and the nearest wins (Euclidean distance).
//!
//! This is a simple attack. Published ones need no model of their own, or survive noise and permutations; so what is
//! recovered here is a lower bound of what can be.
//!
//! Bounds: [`BATCH`] caches of `head` layers and the prefix in memory; effort is at most tokens times vocabulary times
//! `head` layers.

use scheduler::LayerRange;
use shard::{
    executor::{Capacity, Executor, Input, Item, Output, Workspace},
    round::{Rounding, Rule},
    state::SessionState,
};

use crate::{Error, Result};

/// Candidates computed at once, each with a cache of its own: enough to amortize reading the weights.
const BATCH: usize = 64;

/// A text of our own for those who give none: everyday words, a name, a number, so that a reader sees what is at stake.
pub const TEXT: &str = "Dear Anna, the doctor called today about the results. Please do not tell anyone before Friday. \
I put 250 coins into the old blue box by the river, where the fox told stories to the owl.";

/// What one attack found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attack {
    /// The tokens it takes the text to have.
    pub found: Vec<u32>,
    /// How many of them are right.
    pub recovered: usize,
    /// Candidates it computed, over all tokens.
    pub tried: u64,
}

/// What the attacker is given, and against what its answer is checked.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Tokens that everyone knows stand first, such as the one that begins every sequence.
    pub known: &'a [u32],
    /// The tokens to find.
    pub secret: &'a [u32],
    /// Layers that run at home.
    pub head: u32,
    /// How the rows are rounded, if they are.
    pub rounded: Option<Rule>,
}

/// Runs the attack on a whole model; `on_token` is called after each token found and may end it early.
///
/// # Errors
/// A head that leaves no layer to strangers, no token to find, more tokens than the context holds.
pub fn audit(
    executor: &dyn Executor,
    subject: Subject<'_>,
    on_token: &mut dyn FnMut() -> Result<()>,
) -> Result<Attack> {
    let layers = executor.range().end();
    let Some(range) = LayerRange::new(0, subject.head).filter(|range| range.end() < layers) else {
        let most = layers.saturating_sub(1);
        return Err(Error::usage(format!(
            "--head {} leaves nothing to look at; this model has {layers} layers, so 1 to {most}",
            subject.head
        )));
    };
    let rows = subject.known.len() + subject.secret.len();
    if subject.secret.is_empty() || rows > executor.context() {
        let most = executor.context();
        return Err(Error::usage(format!("{rows} tokens to look at; at least 1 and at most {most} can be")));
    }
    let rounding = match subject.rounded {
        Some(rule) => Rounding { rule, boundaries: vec![subject.head] },
        None => Rounding::NONE,
    };
    let mut home = Home { executor, range, rounding: &rounding };
    let seen = home.send(subject)?;
    let mut attacker = Attacker::new(home, subject.known)?;
    let mut attack = Attack::default();
    let hidden = executor.blueprint().hidden;
    for (row, &secret) in seen.chunks_exact(hidden).zip(subject.secret) {
        let (found, tried) = attacker.search(row)?;
        attack.recovered += usize::from(found == secret);
        attack.tried += tried;
        attack.found.push(found);
        if attack.found.len() < subject.secret.len() {
            attacker.accept(found)?;
        }
        on_token()?;
    }
    Ok(attack)
}

/// The layers that run at home, and how what leaves them is rounded.
#[derive(Clone, Copy)]
struct Home<'a> {
    executor: &'a dyn Executor,
    range: LayerRange,
    rounding: &'a Rounding,
}

impl Home<'_> {
    /// The rows of the secret tokens, as they leave.
    fn send(&mut self, subject: Subject<'_>) -> Result<Vec<f32>> {
        let ids: Vec<u32> = subject.known.iter().chain(subject.secret).copied().collect();
        let mut workspace = Workspace::new(self.executor, Capacity::one_session(BATCH))?;
        let mut state = self.executor.new_state_of(self.range)?;
        let mut rows = Vec::new();
        for part in ids.chunks(BATCH) {
            let item = Item { state: &mut state, input: Input::Tokens(part), output: Output::All };
            self.executor.run(&mut workspace, self.range, self.rounding, &mut [item])?;
            rows.extend_from_slice(workspace.activations(0));
        }
        Ok(rows.split_off(subject.known.len() * self.executor.blueprint().hidden))
    }
}

/// Someone with the model, who has found a prefix.
struct Attacker<'a> {
    home: Home<'a>,
    workspace: Workspace,
    /// One cache per candidate of a batch; all hold the prefix.
    caches: Vec<SessionState>,
    /// The whole model after the prefix, for the order of candidates.
    whole: SessionState,
    prefix: usize,
    /// All tokens, likeliest first.
    order: Vec<u32>,
}

impl<'a> Attacker<'a> {
    fn new(home: Home<'a>, known: &[u32]) -> Result<Self> {
        let executor = home.executor;
        let workspace = Workspace::new(executor, Capacity { rows: BATCH, items: BATCH, logit_rows: 1 })?;
        let caches = (0..BATCH).map(|_| executor.new_state_of(home.range)).collect::<shard::Result<_>>()?;
        let order = (0..executor.blueprint().vocab as u32).collect();
        let mut attacker = Self { home, workspace, caches, whole: executor.new_state(), prefix: 0, order };
        for &id in known {
            attacker.accept(id)?;
        }
        Ok(attacker)
    }

    /// The candidate whose row is nearest to `seen`, and how many were computed.
    fn search(&mut self, seen: &[f32]) -> Result<(u32, u64)> {
        let Home { executor, range, rounding } = self.home;
        let (mut best, mut tried) = ((f64::INFINITY, 0), 0);
        for candidates in self.order.chunks(BATCH) {
            let mut items: Vec<Item<'_>> = candidates
                .iter()
                .zip(&mut self.caches)
                .map(|(id, state)| Item {
                    state,
                    input: Input::Tokens(std::slice::from_ref(id)),
                    output: Output::Last,
                })
                .collect();
            executor.run(&mut self.workspace, range, rounding, &mut items)?;
            for (index, &id) in candidates.iter().enumerate() {
                let distance = squared_distance(self.workspace.activations(index), seen);
                if distance < best.0 {
                    best = (distance, id);
                }
                if self.caches[index].rewind(self.prefix) != self.prefix {
                    return Err(Error::usage(
                        "this model's states cannot take one token back, which the search needs",
                    ));
                }
            }
            tried += candidates.len() as u64;
            if best.0 == 0.0 {
                break;
            }
        }
        Ok((best.1, tried))
    }

    /// Takes `id` for the next token of the prefix.
    fn accept(&mut self, id: u32) -> Result<()> {
        let Home { executor, range, rounding } = self.home;
        let input = Input::Tokens(std::slice::from_ref(&id));
        let mut items: Vec<Item<'_>> =
            self.caches.iter_mut().map(|state| Item { state, input, output: Output::None }).collect();
        executor.run(&mut self.workspace, range, rounding, &mut items)?;
        self.prefix += 1;
        executor.step(&mut self.workspace, &mut self.whole, id)?;
        let logits = self.workspace.logits(0);
        self.order
            .sort_unstable_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        Ok(())
    }
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}
