//! How a [`DraftHead`](super::DraftHead) is trained: to make of a state and the tokens behind it the distributions that the model had
//! there itself.
//!
//! A step takes pieces of answers, lets the network go on [`DEPTH`] tokens from every position with the tokens that were chosen, and
//! compares each guess of a state with the one that was: the cross-entropy of what the head reads out of both, and their
//! distance. Gradients are written out by hand, through the states that guesses begin with; all products are the F32 kernels'.
//! AdamW (Loshchilov and Hutter, 2019) moves the weights, its rate rises for a tenth of the steps, [`WARMUP`] at most, and falls along a
//! cosine.
//! Everything is drawn from a seed and computed by kernels of profile `d1`, so the same samples give the same head on every machine.

#[cfg(test)]
mod tests;

use super::{
    head::{Columns, HeadParts, head_of},
    samples::{Piece, Samples},
};
use crate::{
    Error, Result,
    executor::argmax,
    gguf::Gguf,
    kernels::{Activations, Cpu, Matrix, Target, math},
    quant::F32,
    synthetic::Random,
};

/// Tokens that the network learns to guess from one state.
pub const DEPTH: usize = 4;
/// Positions of a piece, and pieces of a step.
const PIECE: usize = 32;
const PIECES: usize = 32;
/// Most steps in which the rate rises.
const WARMUP: usize = 100;
const DECAYS: (f32, f32) = (0.9, 0.98);
/// A gradient that is longer is shortened to this.
const LONGEST: f32 = 0.5;
const WEIGHT_DECAY: f32 = 0.02;
/// Each guess counts this much of the one before it in what is made smaller: one that is wrong takes those behind it along.
const COUNTS: f32 = 0.6;
/// What the distance of states counts beside the cross-entropy.
const DISTANCE: f32 = 0.2;
/// Of the answers, those that are kept to judge: one in so many.
const JUDGES: usize = 20;

/// How a head is trained.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Width of the network.
    pub inner: usize,
    /// Tokens that may be guessed.
    pub tokens: usize,
    /// How often every answer is read.
    pub epochs: usize,
    /// The largest rate.
    pub rate: f32,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// How good a head is, on answers that it was not trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// Positions that were judged.
    pub positions: usize,
    /// At how many of them the first guess, the first two and so on were what the model found likeliest.
    pub right: [usize; DEPTH],
}

/// A matrix that is learned.
struct Learned {
    rows: usize,
    cols: usize,
    weights: Vec<f32>,
    gradient: Vec<f32>,
    moments: [Vec<f32>; 2],
}

impl Learned {
    fn new(rows: usize, cols: usize, size: f32, random: &mut Random) -> Self {
        let weights = (0..rows * cols).map(|_| random.normal() * size).collect();
        let zeros = || vec![0.0; rows * cols];
        Self { rows, cols, weights, gradient: zeros(), moments: [zeros(), zeros()] }
    }

    /// The square of the gradient's length.
    fn length_squared(&self) -> f64 {
        self.gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum()
    }

    /// One step of AdamW, number `step` from 1 on, along `share` of the gradient.
    fn step(&mut self, rate: f32, step: i32, share: f32) {
        let (first, second) = DECAYS;
        let scale = |decay: f32| 1.0 - math::pow(f64::from(decay), f64::from(step)) as f32;
        let scales = (scale(first), scale(second));
        let [m, v] = &mut self.moments;
        for (((weight, gradient), m), v) in self.weights.iter_mut().zip(&self.gradient).zip(m).zip(v) {
            let gradient = share * gradient;
            *m = first * *m + (1.0 - first) * gradient;
            *v = second * *v + (1.0 - second) * gradient * gradient;
            let moved = (*m / scales.0) / ((*v / scales.1).sqrt() + 1e-8);
            *weight -= rate * (moved + WEIGHT_DECAY * *weight);
        }
    }
}

/// Products with matrices that change from step to step.
struct Products<'a> {
    cpu: &'a Cpu,
    scratch: Activations,
}

impl Products<'_> {
    fn pack(&self, weights: &[f32], rows: usize, cols: usize) -> Result<Matrix> {
        let bytes: Vec<[u8; 4]> = weights.iter().map(|x| x.to_le_bytes()).collect();
        Matrix::pack(self.cpu, &F32, rows, cols, bytes.as_flattened())
    }

    /// `[n][matrix.rows()]`.
    fn times(&mut self, x: &[f32], matrix: &Matrix) -> Vec<f32> {
        let n = x.len() / matrix.cols();
        let mut out = vec![0.0; n * matrix.rows()];
        self.cpu.matmul(x, n, &mut self.scratch, &mut [Target { matrix, out: &mut out }]);
        out
    }

    /// The gradient of a matrix, `[width of dy][width of x]`, from `n` rows that went in and the gradients of those that came out.
    fn gradient(&mut self, dy: &[f32], x: &[f32], n: usize) -> Result<Vec<f32>> {
        let (outs, ins) = (dy.len() / n, x.len() / n);
        let matrix = self.pack(&transposed(x, n, ins), ins, n)?;
        Ok(self.times(&transposed(dy, n, outs), &matrix))
    }
}

/// `[cols][rows]` of `[rows][cols]`.
fn transposed(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    const TILE: usize = 16;
    let mut out = vec![0.0; x.len()];
    for row in (0..rows).step_by(TILE) {
        for col in (0..cols).step_by(TILE) {
            for r in row..(row + TILE).min(rows) {
                for c in col..(col + TILE).min(cols) {
                    out[c * rows + r] = x[r * cols + c];
                }
            }
        }
    }
    out
}

/// Calls `work` for each row of `rows` wide rows, `work(index, row)`, on all threads of `cpu`.
fn each_row(cpu: &Cpu, rows: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let count = rows.len() / width;
    let share = count.div_ceil(cpu.pool().threads()).max(1);
    std::thread::scope(|scope| {
        for (at, part) in rows.chunks_mut(share * width).enumerate() {
            let work = &work;
            scope.spawn(move || {
                part.chunks_exact_mut(width).enumerate().for_each(|(row, x)| work(at * share + row, x));
            });
        }
    });
}

/// Where the state `depth` positions behind that of `row` is among those that [`Trainer::states`] gives.
fn place(row: usize, depth: usize) -> usize {
    row / PIECE * (PIECE + DEPTH) + row % PIECE + depth
}

/// The states that the `n` rows of some pieces begin with, `[n][hidden]`, of those that [`Trainer::states`] gives.
fn begins(real: &[f32], n: usize, hidden: usize) -> Vec<f32> {
    (0..n).flat_map(|row| &real[place(row, 0) * hidden..][..hidden]).copied().collect()
}

/// What the guess of token `depth`, from 1 on, counts; all of them together 1.
fn counts(depth: usize) -> f32 {
    let count = |depth: usize| (1..depth).map(|_| COUNTS).product::<f32>();
    count(depth) / (1..=DEPTH).map(count).sum::<f32>()
}

/// The matrices of one step as the kernels read them.
struct Packed {
    gate_up: Matrix,
    down: Matrix,
    gate_up_back: Matrix,
    down_back: Matrix,
}

/// What the network made of one token, for the way back.
struct Made {
    /// `[n][2 hidden]`, what went in.
    input: Vec<f32>,
    /// `[n][2 inner]`.
    gate_up: Vec<f32>,
    /// `[n][inner]`, what went into the last matrix.
    opened: Vec<f32>,
    /// `[n][hidden]`, the gradient of the state that came out, by itself.
    gradient: Vec<f32>,
}

/// Trains one head.
pub struct Trainer<'a> {
    samples: &'a Samples,
    products: Products<'a>,
    columns: [Columns; 2],
    tokens: Vec<u32>,
    /// Even embeddings of all tokens, `[vocab][hidden]`.
    embeddings: Vec<f32>,
    /// The head for even states: `[tokens][hidden]` packed, the same turned, and what is added.
    head: (Matrix, Matrix, Vec<f32>),
    gate_up: Learned,
    down: Learned,
    training: Training,
    random: Random,
    steps: usize,
}

/// Mean and size of the columns of `rows`.
fn columns<'r>(hidden: usize, rows: impl Iterator<Item = &'r [f32]> + Clone) -> Columns {
    let mut sums = vec![(0.0f64, 0.0f64); hidden];
    let mut count = 0.0;
    for row in rows {
        count += 1.0;
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum = (sum.0 + f64::from(*x), sum.1 + f64::from(*x) * f64::from(*x));
        }
    }
    let of = |(sum, squares): &(f64, f64)| {
        let mean = sum / count;
        (mean as f32, ((squares / count - mean * mean).max(0.0).sqrt() as f32).max(1e-4))
    };
    let (mean, size) = sums.iter().map(of).unzip();
    Columns { mean, size }
}

impl<'a> Trainer<'a> {
    /// One for the model in `model`, which chose `samples`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for too few samples.
    pub fn new(cpu: &'a Cpu, model: &Gguf, samples: &'a Samples, training: Training) -> Result<Self> {
        if samples.answers().filter(|answer| answer.len() > PIECE + DEPTH).count() < 2 * JUDGES {
            return Err(Error::invalid(format!(
                "{} tokens are too few to train with: at least {} answers of {} tokens are needed",
                samples.len(),
                2 * JUDGES,
                PIECE + DEPTH + 1
            )));
        }
        let (hidden, inner) = (samples.hidden(), training.inner);
        let mut random = Random(training.seed);
        let products = Products { cpu, scratch: Activations::new() };
        let table = model.require("token_embd.weight")?;
        let mut embeddings = table.to_f32();
        let some: Vec<f32> = (0..samples.len().min(20_000))
            .flat_map(|_| {
                samples.state(random.below(samples.len())).iter().map(|x| x.to_f32()).collect::<Vec<_>>()
            })
            .collect();
        let states = columns(hidden, some.chunks_exact(hidden));
        let tokens = samples.frequent(training.tokens);
        let chosen = tokens.iter().map(|id| &embeddings[*id as usize * hidden..][..hidden]);
        let columns = [states, columns(hidden, chosen)];
        each_row(cpu, &mut embeddings, hidden, |_, row| columns[1].even(row));
        let head = head_of(model)?;
        let mut weights = vec![0.0; tokens.len() * hidden];
        let mut added = Vec::with_capacity(tokens.len());
        for (id, row) in tokens.iter().zip(weights.chunks_exact_mut(hidden)) {
            (head.format.dequantize)(head.row(*id as usize), row);
            added.push(row.iter().zip(&columns[0].mean).map(|(w, mean)| w * mean).sum());
            row.iter_mut().zip(&columns[0].size).for_each(|(w, size)| *w *= size);
        }
        let back = products.pack(&transposed(&weights, tokens.len(), hidden), hidden, tokens.len())?;
        let head = (products.pack(&weights, tokens.len(), hidden)?, back, added);
        let size = (2.0 * hidden as f32).sqrt().recip();
        Ok(Self {
            gate_up: Learned::new(2 * inner, 2 * hidden, size, &mut random),
            down: Learned::new(hidden, inner, 0.0, &mut random),
            samples,
            products,
            columns,
            tokens,
            embeddings,
            head,
            training,
            random,
            steps: 0,
        })
    }

    /// Whether answer `index` is kept to judge.
    fn judges(index: usize) -> bool {
        index % JUDGES == JUDGES - 1
    }

    /// Steps of one epoch, about.
    pub fn steps(&self) -> usize {
        let answers = self.samples.answers().enumerate().filter(|(index, _)| !Self::judges(*index));
        let pieces =
            answers.map(|(_, answer)| answer.len().saturating_sub(DEPTH + PIECE / 2) / PIECE).sum::<usize>();
        (pieces / PIECES).max(1)
    }

    /// The pieces of one epoch in a drawn order.
    fn pieces(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (index, answer) in self.samples.answers().enumerate() {
            if Self::judges(index) {
                continue;
            }
            let mut at = answer.start + self.random.below(PIECE);
            while at + PIECE + DEPTH < answer.end {
                pieces.push(at..at + PIECE);
                at += PIECE;
            }
        }
        self.random.shuffle(&mut pieces);
        pieces
    }

    /// Trains; `progress` gets the steps done, of how many, and the loss of the last one, and says whether to go on.
    ///
    /// # Errors
    /// [`Error::Invalid`] without memory.
    pub fn train(&mut self, progress: &mut dyn FnMut(usize, usize, f32) -> bool) -> Result<()> {
        let all = self.steps() * self.training.epochs;
        for _ in 0..self.training.epochs {
            for pieces in self.pieces().chunks_exact(PIECES) {
                let loss = self.step(pieces, all)?;
                if !progress(self.steps, all, loss) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn packed(&self) -> Result<Packed> {
        let (products, [up, down]) = (&self.products, [&self.gate_up, &self.down]);
        let back = |m: &Learned| products.pack(&transposed(&m.weights, m.rows, m.cols), m.cols, m.rows);
        Ok(Packed {
            gate_up: products.pack(&up.weights, up.rows, up.cols)?,
            down: products.pack(&down.weights, down.rows, down.cols)?,
            gate_up_back: back(up)?,
            down_back: back(down)?,
        })
    }

    /// Even states of `pieces` and of the [`DEPTH`] positions behind each.
    fn states(&self, pieces: &[Piece]) -> Vec<f32> {
        let hidden = self.samples.hidden();
        let mut states = vec![0.0; pieces.len() * (PIECE + DEPTH) * hidden];
        each_row(self.products.cpu, &mut states, hidden, |row, x| {
            let at = pieces[row / (PIECE + DEPTH)].start + row % (PIECE + DEPTH);
            x.iter_mut().zip(self.samples.state(at)).for_each(|(x, value)| *x = value.to_f32());
            self.columns[0].even(x);
        });
        states
    }

    /// Logits of even states.
    fn logits(&mut self, states: &[f32]) -> Vec<f32> {
        let (head, _, added) = &self.head;
        let mut logits = self.products.times(states, head);
        each_row(self.products.cpu, &mut logits, added.len(), |_, row| {
            row.iter_mut().zip(added).for_each(|(x, added)| *x += added);
        });
        logits
    }

    /// What goes into the network for token `depth` of `pieces`, from `states`, `[n][hidden]`.
    fn input(&self, pieces: &[Piece], states: &[f32], depth: usize) -> Vec<f32> {
        let hidden = self.samples.hidden();
        let mut input = vec![0.0; 2 * states.len()];
        each_row(self.products.cpu, &mut input, 2 * hidden, |row, x| {
            let at = pieces[row / PIECE].start + row % PIECE + depth;
            let token = self.samples.token(at) as usize;
            x[..hidden].copy_from_slice(&states[row * hidden..][..hidden]);
            x[hidden..].copy_from_slice(&self.embeddings[token * hidden..][..hidden]);
        });
        input
    }

    /// The network over `input`: what it opened, and the states that come out.
    fn forward(&mut self, packed: &Packed, input: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (hidden, inner) = (self.samples.hidden(), self.training.inner);
        let gate_up = self.products.times(input, &packed.gate_up);
        let n = input.len() / (2 * hidden);
        let mut opened = vec![0.0; n * inner];
        each_row(self.products.cpu, &mut opened, inner, |row, x| {
            let (gate, up) = gate_up[2 * row * inner..2 * (row + 1) * inner].split_at(inner);
            x.copy_from_slice(gate);
            self.products.cpu.silu_mul(x, up);
        });
        let mut states = self.products.times(&opened, &packed.down);
        each_row(self.products.cpu, &mut states, hidden, |row, x| {
            x.iter_mut().zip(&input[2 * row * hidden..]).for_each(|(x, before)| *x += before);
        });
        (gate_up, opened, states)
    }

    /// One step over `pieces`; its loss.
    fn step(&mut self, pieces: &[Piece], all: usize) -> Result<f32> {
        let (hidden, cpu) = (self.samples.hidden(), self.products.cpu);
        let n = pieces.len() * PIECE;
        let packed = self.packed()?;
        let real = self.states(pieces);
        let mut wanted = self.logits(&real);
        let vocab = self.tokens.len();
        each_row(cpu, &mut wanted, vocab, |_, row| cpu.softmax(row));
        let mut states = begins(&real, n, hidden);
        let (mut made, mut loss) = (Vec::with_capacity(DEPTH), 0.0);
        for depth in 1..=DEPTH {
            let share = counts(depth) / n as f32;
            let input = self.input(pieces, &states, depth - 1);
            let (gate_up, opened, next) = self.forward(&packed, &input);
            let mut found = self.logits(&next);
            let losses = std::sync::Mutex::new(0.0f32);
            each_row(cpu, &mut found, vocab, |row, x| {
                let wanted = &wanted[place(row, depth) * vocab..][..vocab];
                cpu.softmax(x);
                let best = argmax(wanted);
                let surprise = -math::ln(f64::from(x[best as usize]).max(1e-9)) as f32;
                x.iter_mut().zip(wanted).for_each(|(x, wanted)| *x = (*x - wanted) * share);
                *losses.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += surprise;
            });
            loss += losses.into_inner().unwrap_or(f32::NAN) * share;
            let mut gradient = self.products.times(&found, &self.head.1);
            each_row(cpu, &mut gradient, hidden, |row, x| {
                let (next, real) = (&next[row * hidden..], &real[place(row, depth) * hidden..]);
                let factor = 2.0 * DISTANCE * share / hidden as f32;
                x.iter_mut().zip(next).zip(real).for_each(|((x, next), real)| *x += factor * (next - real));
            });
            states = next;
            made.push(Made { input, gate_up, opened, gradient });
        }
        self.back(&packed, made)?;
        self.steps += 1;
        let rise = self.steps as f32 / (all / 10).clamp(1, WARMUP) as f32;
        let turned = std::f64::consts::PI * (self.steps as f64 / all as f64).min(1.0);
        let fall = 0.5 + 0.5 * math::sin_cos(turned).1;
        let rate = self.training.rate * rise.min(1.0) * fall.max(0.01) as f32;
        let step = self.steps as i32;
        let length = (self.gate_up.length_squared() + self.down.length_squared()).sqrt() as f32;
        let share = (LONGEST / length.max(1e-12)).min(1.0);
        std::thread::scope(|scope| {
            let (up, down) = (&mut self.gate_up, &mut self.down);
            scope.spawn(|| up.step(rate, step, share));
            down.step(rate, step, share);
        });
        Ok(loss)
    }

    /// The gradients of both matrices from what was made, the last token first.
    fn back(&mut self, packed: &Packed, made: Vec<Made>) -> Result<()> {
        let (hidden, inner, cpu) = (self.samples.hidden(), self.training.inner, self.products.cpu);
        let mut carried: Vec<f32> = Vec::new();
        let (mut outs, mut opens, mut gates, mut ins) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for Made { input, mut gate_up, opened, mut gradient } in made.into_iter().rev() {
            gradient.iter_mut().zip(&carried).for_each(|(x, carried)| *x += carried);
            let back = self.products.times(&gradient, &packed.down_back);
            each_row(cpu, &mut gate_up, 2 * inner, |row, x| {
                let (gate, up) = x.split_at_mut(inner);
                let mut open = gate.to_vec();
                cpu.sigmoid(&mut open);
                for (((g, u), d), open) in gate.iter_mut().zip(up).zip(&back[row * inner..]).zip(open) {
                    let (dg, du) = (d * *u * open * (1.0 + *g * (1.0 - open)), d * *g * open);
                    (*g, *u) = (dg, du);
                }
            });
            let before = self.products.times(&gate_up, &packed.gate_up_back);
            carried = gradient.clone();
            each_row(cpu, &mut carried, hidden, |row, x| {
                x.iter_mut().zip(&before[2 * row * hidden..]).for_each(|(x, before)| *x += before);
            });
            outs.extend(gradient);
            opens.extend(opened);
            gates.extend(gate_up);
            ins.extend(input);
        }
        let n = outs.len() / hidden;
        self.down.gradient = self.products.gradient(&outs, &opens, n)?;
        self.gate_up.gradient = self.products.gradient(&gates, &ins, n)?;
        Ok(())
    }

    /// How good the head is by now, on the answers that it does not see.
    ///
    /// # Errors
    /// [`Error::Invalid`] without memory.
    pub fn judge(&mut self) -> Result<Judged> {
        let answers = self.samples.answers().enumerate().filter(|(index, _)| Self::judges(*index));
        let pieces: Vec<Piece> = answers
            .flat_map(|(_, answer)| {
                let starts = answer.clone().step_by(PIECE);
                starts.filter(move |at| at + PIECE + DEPTH < answer.end).map(|at| at..at + PIECE)
            })
            .collect();
        let (hidden, packed, vocab) = (self.samples.hidden(), self.packed()?, self.tokens.len());
        let mut judged = Judged::default();
        for pieces in pieces.chunks(PIECES) {
            let real = self.states(pieces);
            let wanted = self.logits(&real);
            let n = pieces.len() * PIECE;
            let mut states = begins(&real, n, hidden);
            let mut right = vec![true; n];
            judged.positions += n;
            for depth in 1..=DEPTH {
                let input = self.input(pieces, &states, depth - 1);
                states = self.forward(&packed, &input).2;
                let found = self.logits(&states);
                for (row, right) in right.iter_mut().enumerate() {
                    let of = |logits: &[f32], row: usize| argmax(&logits[row * vocab..][..vocab]);
                    *right &= of(&found, row) == of(&wanted, place(row, depth));
                    judged.right[depth - 1] += usize::from(*right);
                }
            }
        }
        Ok(judged)
    }

    /// The head as it is by now.
    pub fn parts(self) -> HeadParts {
        HeadParts {
            columns: self.columns,
            tokens: self.tokens,
            gate_up: self.gate_up.weights,
            down: self.down.weights,
        }
    }
}
