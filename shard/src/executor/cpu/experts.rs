//! Mixtures of experts: which rows each expert sees, and how its outputs come together.

use super::{
    buffers::{CpuBuffers, Routing},
    network::{Hidden, run_network},
    weights::ExpertWeights,
};
use crate::{
    kernels::{Cpu, Target},
    models::{Activation, Experts},
};

/// Runs the experts over `ws.h` into `ws.y`.
///
/// Every row chooses its experts by its own probabilities, ties to the lower index. Each expert then computes the rows
/// that chose it at once, and a row adds its experts' outputs in ascending expert order, the shared expert last: an
/// order that does not depend on the other rows.
pub(super) fn mix(cpu: &Cpu, weights: &ExpertWeights, spec: &Experts, ws: &mut CpuBuffers, rows: usize) {
    let hidden = ws.hidden;
    let size = rows * hidden;
    let (h, y) = (&ws.h[..size], &mut ws.y[..size]);
    let routing = &mut ws.routing;
    let scores = &mut routing.scores[..rows * spec.count];
    cpu.matmul(h, rows, &mut ws.scratch, &mut [Target { matrix: &weights.router, out: scores }]);
    choose(cpu, spec, routing, rows);
    group(spec, routing, rows);
    y.fill(0.0);
    for (index, network) in weights.experts.iter().enumerate() {
        let members = &routing.members[routing.starts[index]..routing.starts[index + 1]];
        if members.is_empty() {
            continue;
        }
        let x = if members.len() == rows {
            h
        } else {
            for (&(row, _), to) in members.iter().zip(routing.gathered.chunks_exact_mut(hidden)) {
                to.copy_from_slice(&h[row as usize * hidden..][..hidden]);
            }
            &routing.gathered[..members.len() * hidden]
        };
        let buffers = Hidden { gate: &mut ws.gate, up: &mut ws.up, scratch: &mut ws.scratch };
        let out = &mut routing.output[..members.len() * hidden];
        run_network(cpu, network, Activation::GatedSilu, (x, members.len()), buffers, out);
        for (&(row, weight), out) in members.iter().zip(out.chunks_exact(hidden)) {
            cpu.add_scaled(&mut y[row as usize * hidden..][..hidden], out, weight);
        }
    }
    if let Some((gate, network)) = &weights.shared {
        let gates = &mut routing.shared[..rows];
        cpu.matmul(h, rows, &mut ws.scratch, &mut [Target { matrix: gate, out: gates }]);
        let gates = &mut routing.shared[..rows];
        cpu.sigmoid(gates);
        let buffers = Hidden { gate: &mut ws.gate, up: &mut ws.up, scratch: &mut ws.scratch };
        let out = &mut routing.output[..size];
        run_network(cpu, network, Activation::GatedSilu, (h, rows), buffers, out);
        for ((y, out), &gate) in y.chunks_exact_mut(hidden).zip(out.chunks_exact(hidden)).zip(gates.iter()) {
            cpu.add_scaled(y, out, gate);
        }
    }
}

/// The experts of every row with their weights, best first.
fn choose(cpu: &Cpu, spec: &Experts, routing: &mut Routing, rows: usize) {
    let scores = routing.scores[..rows * spec.count].chunks_exact_mut(spec.count);
    for (scores, chosen) in scores.zip(routing.chosen.chunks_exact_mut(spec.used)) {
        cpu.softmax(scores);
        let mut sum = 0.0;
        for place in 0..spec.used {
            let (taken, rest) = chosen.split_at_mut(place);
            let free = |expert: &usize| taken.iter().all(|&(t, _)| t as usize != *expert);
            let best = (0..spec.count)
                .filter(free)
                .reduce(|best, other| if scores[other] > scores[best] { other } else { best })
                .unwrap_or_default();
            rest[0] = (best as u32, scores[best]);
            sum += scores[best];
        }
        for (_, weight) in chosen.iter_mut() {
            let share = if spec.renormalize { *weight / sum } else { *weight };
            *weight = share * spec.scale;
        }
    }
}

/// Sorts the choices by expert, rows ascending.
fn group(spec: &Experts, routing: &mut Routing, rows: usize) {
    let Routing { chosen, members, starts, .. } = routing;
    let chosen = &chosen[..rows * spec.used];
    let starts = &mut starts[..=spec.count];
    starts.fill(0);
    chosen.iter().for_each(|&(expert, _)| starts[expert as usize + 1] += 1);
    for expert in 0..spec.count {
        starts[expert + 1] += starts[expert];
    }
    for (at, &(expert, weight)) in chosen.iter().enumerate() {
        members[starts[expert as usize]] = ((at / spec.used) as u32, weight);
        starts[expert as usize] += 1;
    }
    starts.copy_within(0..spec.count, 1);
    starts[0] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_grouped_by_expert_and_row() {
        let spec = Experts { count: 4, used: 2, width: 1, renormalize: true, scale: 1.0, shared: None };
        let mut routing = Routing {
            chosen: vec![(2, 0.1), (0, 0.2), (3, 0.3), (2, 0.4), (0, 0.5), (2, 0.6)],
            members: vec![(9, 0.0); 6],
            starts: vec![0; 5],
            ..Routing::default()
        };
        group(&spec, &mut routing, 3);
        assert_eq!(routing.starts, [0, 2, 2, 5, 6]);
        assert_eq!(routing.members, [(0, 0.2), (2, 0.5), (0, 0.1), (1, 0.4), (2, 0.6), (1, 0.3)]);
    }
}
