//! Gradients against differences, and a head that learns.

use std::sync::Arc;

use super::*;
use crate::{
    draft::{DraftHead, StateDrafter},
    kernels::{Isa, threads::Pool},
    quant,
    sample::SamplingParams,
    synthetic,
};

const HIDDEN: usize = 64;

fn model() -> Arc<Gguf> {
    let bytes = synthetic::shape("tiny").unwrap().to_bytes(quant::by_name("f16").unwrap(), 3).unwrap();
    Arc::new(Gguf::from_bytes(bytes).unwrap())
}

/// Answers in which each token follows from the one before, and states that say which token comes.
fn samples(gguf: &Gguf, answers: usize) -> Samples {
    let head = head_of(gguf).unwrap();
    let hidden = head.cols();
    let mut samples = Samples::new(hidden);
    let mut random = Random(5);
    for answer in 0..answers {
        let (mut token, mut states, mut tokens) = (answer as u32 % 16, Vec::new(), Vec::new());
        for _ in 0..80 {
            token = (token * 5 + 3) % 16;
            let mut row = vec![0.0; hidden];
            (head.format.dequantize)(head.row(token as usize), &mut row);
            let size = row.iter().map(|x| x * x).sum::<f32>().sqrt() / 8.0;
            states.extend(row.iter().map(|x| x / size + 0.1 * random.normal()));
            tokens.push(token);
        }
        samples.add(&states, &tokens).unwrap();
    }
    samples
}

fn training(inner: usize, epochs: usize) -> Training {
    Training { inner, tokens: 16, epochs, rate: 3e-3, seed: 2 }
}

/// What a step makes smaller.
fn objective(trainer: &mut Trainer<'_>, pieces: &[Piece]) -> f64 {
    let (hidden, vocab, cpu) = (trainer.samples.hidden(), trainer.tokens.len(), trainer.products.cpu);
    let (packed, real) = (trainer.packed().unwrap(), trainer.states(pieces));
    let mut wanted = trainer.logits(&real);
    each_row(cpu, &mut wanted, vocab, |_, row| cpu.softmax(row));
    let n = pieces.len() * PIECE;
    let mut states = begins(&real, n, hidden);
    let mut sum = 0.0;
    for depth in 1..=DEPTH {
        let input = trainer.input(pieces, &states, depth - 1);
        states = trainer.forward(&packed, &input).2;
        let mut found = trainer.logits(&states);
        each_row(cpu, &mut found, vocab, |_, row| cpu.softmax(row));
        for row in 0..n {
            let wanted = &wanted[place(row, depth) * vocab..][..vocab];
            let crossed: f64 = wanted
                .iter()
                .zip(&found[row * vocab..])
                .map(|(p, q)| -f64::from(*p) * math::ln(f64::from(*q).max(1e-30)))
                .sum();
            sum += f64::from(counts(depth)) * crossed / n as f64;
            let real = &real[place(row, depth) * hidden..][..hidden];
            let apart: f64 = real
                .iter()
                .zip(&states[row * hidden..])
                .map(|(a, b)| f64::from(a - b) * f64::from(a - b))
                .sum();
            sum += f64::from(counts(depth) * DISTANCE) * apart / (n * hidden) as f64;
        }
    }
    sum
}

/// Gradients are those of the objective: it changes as they say where a weight is moved a little.
#[test]
fn gradients_are_those_of_what_is_made_smaller() {
    let (gguf, cpu) = (model(), Cpu::new(Isa::detect(), Pool::new(2, false)));
    let samples = samples(&gguf, 40);
    let mut trainer = Trainer::new(&cpu, &gguf, &samples, training(HIDDEN, 1)).unwrap();
    let mut random = Random(9);
    trainer.down.weights.iter_mut().for_each(|w| *w = 0.05 * random.normal());
    let pieces: Vec<Piece> = trainer.pieces().into_iter().take(3).collect();
    let before = (trainer.gate_up.weights.clone(), trainer.down.weights.clone());
    trainer.step(&pieces, 10).unwrap();
    let gradients = [trainer.gate_up.gradient.clone(), trainer.down.gradient.clone()];
    (trainer.gate_up.weights, trainer.down.weights) = before;
    for (which, gradient) in gradients.iter().enumerate() {
        let largest = gradient.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        let mut seen = 0;
        for at in (0..gradient.len()).filter(|at| gradient[*at].abs() > 0.3 * largest).take(12) {
            let mut moved = |by: f32| {
                let weights =
                    if which == 0 { &mut trainer.gate_up.weights } else { &mut trainer.down.weights };
                weights[at] += by;
                objective(&mut trainer, &pieces)
            };
            let (up, down) = (moved(2e-2), moved(-4e-2));
            moved(2e-2);
            let (slope, said) = ((up - down) / 4e-2, f64::from(gradient[at]));
            assert!((slope - said).abs() < 0.05 * said.abs() + 1e-5, "{which} {at}: {slope} and {said}");
            seen += 1;
        }
        assert!(seen > 3, "{seen} weights were looked at");
    }
}

/// It learns what follows from what, in its file too: the guesses of the file are the answers.
#[test]
fn a_head_learns_and_guesses() {
    let (gguf, cpu) = (model(), Arc::new(Cpu::new(Isa::detect(), Pool::new(2, false))));
    let samples = samples(&gguf, 80);
    let mut trainer = Trainer::new(&cpu, &gguf, &samples, training(HIDDEN, 60)).unwrap();
    let untrained = trainer.judge().unwrap();
    trainer.train(&mut |_, _, _| true).unwrap();
    let judged = trainer.judge().unwrap();
    let share = |judged: Judged| judged.right[DEPTH - 1] as f64 / judged.positions as f64;
    assert!(share(untrained) < 0.3 && share(judged) > 0.9, "{untrained:?}, then {judged:?}");
    let mut file = Vec::new();
    let vocabulary = blake3::hash(b"words");
    trainer.parts().write(&mut file, "tiny", vocabulary).unwrap();
    let file = Gguf::from_bytes(file).unwrap();
    let head = Arc::new(DraftHead::load(&file, &gguf, vocabulary, &cpu).unwrap());
    for params in [SamplingParams::default(), SamplingParams { temperature: 0.5, ..Default::default() }] {
        let mut draft = head.clone().session(&params, 3).unwrap();
        let state: Vec<f32> = samples.state(8).iter().map(|x| x.to_f32()).collect();
        let text: Vec<u32> = (0..9).map(|at| samples.token(at)).collect();
        assert!(draft.guess(&text, 1).unwrap().is_empty(), "no state was seen");
        draft.see(7, &state, &text).unwrap();
        let said = draft.guess(&text, DEPTH).unwrap();
        let tokens: Vec<u32> = said.iter().map(|said| said.token).collect();
        assert_eq!(tokens, (9..9 + DEPTH).map(|at| samples.token(at)).collect::<Vec<_>>());
        assert!(said.iter().all(|said| (0.5..=1.0).contains(&said.chance)), "{said:?}");
        assert!(draft.guess(&text[1..], 1).unwrap().is_empty(), "the state is that of another text");
        assert!(draft.see(7, &state[1..], &text).is_err());
        let beyond: Vec<u32> = text[..8].iter().copied().chain([u32::MAX]).collect();
        assert!(draft.guess(&beyond, 1).is_err());
    }
    let other = DraftHead::load(&file, &gguf, blake3::hash(b"others"), &cpu).map(|_| ()).unwrap_err();
    assert!(other.to_string().contains("another model"), "{other}");
    assert!(DraftHead::load(&gguf, &gguf, vocabulary, &cpu).is_err(), "a model is no draft head");
}
