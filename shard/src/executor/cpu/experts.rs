//! Mixtures of experts: which rows each expert sees, and how its outputs come together.

use super::{
    super::{ExpertWork, batch::refuse_non_finite},
    buffers::{CpuBuffers, Inner, Routing},
    network::{Hidden, first, product, run_networks},
    weights::ExpertWeights,
};
use crate::{
    Error, Result,
    kernels::{Activations, Cpu, Products, math},
    models::{Experts, Groups, Router},
};

/// Runs the experts over `ws.h` into `ws.y`.
///
/// Every row chooses its experts by its own probabilities, ties to the lower index. Each expert then computes the rows
/// that chose it at once, and a row adds its experts' outputs in ascending expert order, the shared expert last: an
/// order that does not depend on the other rows, nor on which experts are computed elsewhere or together.
///
/// # Errors
/// When experts that are not here cannot be computed elsewhere.
pub(super) fn mix(
    cpu: &Cpu,
    (weights, spec, eps): (&ExpertWeights, &Experts, f32),
    ws: &mut CpuBuffers,
    (layer, rows): (usize, usize),
) -> Result<()> {
    let hidden = ws.sizes.hidden;
    let size = rows * hidden;
    let (h, y) = (&ws.h[..size], &mut ws.y[..size]);
    let routing = &mut ws.routing;
    route(cpu, (weights, eps), &mut ws.scratch, (&ws.x[..size], h), routing, rows);
    choose(cpu, spec, weights, routing, rows);
    group(spec, routing, rows);
    let width = spec.latent.unwrap_or(hidden);
    let Routing { members, starts, gathered, output, narrow, mixed, elsewhere, .. } = routing;
    let (given, sums): (&[f32], &mut [f32]) = match &weights.latent {
        None => (h, &mut *y),
        Some([down, _]) => {
            let narrow = &mut narrow[..rows * width];
            product(cpu, &mut ws.scratch, h, rows, [(down, &mut *narrow)]);
            (narrow, &mut mixed[..rows * width])
        }
    };
    sums.fill(0.0);
    let network = |index: usize| weights.experts.get(index.wrapping_sub(weights.first));
    if weights.experts.len() < spec.count {
        elsewhere.begin(rows);
        for index in (0..spec.count).filter(|index| network(*index).is_none()) {
            for &(row, weight) in &members[starts[index]..starts[index + 1]] {
                let x = &given[row as usize * width..][..width];
                let weight = spec.weighs_input.then_some(weight);
                elsewhere.gather(cpu, (index as u32, row as usize), x, weight);
            }
        }
        elsewhere.ask(layer as u32)?;
    }
    let shared = weights.shared.as_ref().map(|(_, network)| network);
    let shared_size = if shared.is_some() { size } else { 0 };
    let gathers = rows > 1 || spec.weighs_input;
    let room = gathered.len() / hidden;
    let widest = hidden.max(spec.width).max(spec.shared.unwrap_or(0));
    ws.scratch.expect(spec.count.min(room) + 1, room.min(rows * spec.used) + rows, widest);
    let mut next = 0;
    while next < spec.count {
        let first = next;
        next = fitting(starts, first, room);
        let here = (first..next).filter_map(|index| {
            let members = &members[starts[index]..starts[index + 1]];
            Some((network(index).filter(|_| !members.is_empty())?, members))
        });
        if gathers {
            let members = here.clone().flat_map(|(_, members)| members);
            for (&(row, weight), to) in members.zip(gathered.chunks_exact_mut(width)) {
                to.copy_from_slice(&given[row as usize * width..][..width]);
                if spec.weighs_input {
                    cpu.scale(to, weight);
                }
            }
        }
        let visits = here.clone().scan(0, |at, (network, members)| {
            let from = std::mem::replace(at, *at + members.len() * width);
            Some((network, if gathers { &gathered[from..*at] } else { given }))
        });
        let size = here.clone().map(|(_, members)| members.len() * width).sum::<usize>();
        // The shared expert is computed beside the first of the others.
        let beside = shared.filter(|_| first == 0).map(|network| (network, h));
        let start = if first == 0 { 0 } else { shared_size };
        let out = &mut output[start..shared_size + size];
        let Inner { gate, up } = &mut ws.inner;
        let buffers = Hidden { gate, up, scratch: &mut ws.scratch, eps: 0.0 };
        run_networks(cpu, beside.into_iter().chain(visits), spec.activation, buffers, out);
        let mut out = &output[shared_size..][..size];
        for index in first..next {
            let members = &members[starts[index]..starts[index + 1]];
            let given = match network(index) {
                _ if members.is_empty() => continue,
                Some(_) => out.split_off(..members.len() * width).unwrap_or_default(),
                None => elsewhere.next(members.len(), width)?,
            };
            add(cpu, spec, (members, given), (sums, width));
        }
    }
    if let Some([_, up]) = &weights.latent {
        product(cpu, &mut ws.scratch, &mixed[..rows * width], rows, [(up, &mut *y)]);
    }
    if shared.is_some() {
        let rows = y.chunks_exact_mut(hidden).zip(output.chunks_exact(hidden));
        rows.zip(&routing.shared).for_each(|((y, out), &gate)| cpu.add_scaled(y, out, gate));
    }
    Ok(())
}

/// What the router says of each row, and each row's gate of the shared expert.
fn route(
    cpu: &Cpu,
    (weights, eps): (&ExpertWeights, f32),
    scratch: &mut Activations,
    (x, h): (&[f32], &[f32]),
    routing: &mut Routing,
    rows: usize,
) {
    let Routing { scores, gathered, shared, .. } = routing;
    let scores = &mut scores[..rows * weights.router.matrix.rows()];
    let gates = &mut shared[..rows];
    let seen = match &weights.router_norm {
        None => h,
        Some(weight) => {
            let seen = &mut gathered[..x.len()];
            cpu.rms_norm(x, x.len() / rows, Some(weight), eps, seen);
            &*seen
        }
    };
    let gate = weights.shared.as_ref().and_then(|(gate, _)| gate.as_ref());
    let mut products = Products::new(scratch);
    products.add(seen, rows, &weights.router.matrix, scores);
    match gate {
        Some(gate) => products.add(h, rows, gate, gates),
        None => gates.fill(1.0),
    }
    products.compute(cpu);
    weights.router.add_bias(cpu, scores);
    if gate.is_some() {
        cpu.sigmoid(gates);
    }
}

/// The end of the experts from `first` on whose visits fit `room`: at least one, whose visits no more than the rows of a pass.
fn fitting(starts: &[usize], first: usize, room: usize) -> usize {
    let fit = starts[first + 1..].iter().take_while(|end| **end - starts[first] <= room).count();
    first + fit.max(1)
}

/// Adds what one expert gives to the rows that chose it.
fn add(
    cpu: &Cpu,
    spec: &Experts,
    (members, out): (&[(u32, f32)], &[f32]),
    (sums, width): (&mut [f32], usize),
) {
    for (&(row, weight), out) in members.iter().zip(out.chunks_exact(width)) {
        let weight = if spec.weighs_input { 1.0 } else { weight };
        cpu.add_scaled(&mut sums[row as usize * width..][..width], out, weight);
    }
}

/// What experts give for rows that another node routed, into `out`; see [`super::Executor::experts`].
pub(super) fn visit(
    cpu: &Cpu,
    (weights, spec): (&ExpertWeights, &Experts),
    ws: &mut CpuBuffers,
    work: ExpertWork<'_>,
    out: &mut Vec<f32>,
) -> Result<()> {
    let ExpertWork { visits, rows: given, .. } = work;
    let width = spec.latent.unwrap_or(ws.sizes.hidden);
    let rows = given.len() / width;
    if !given.len().is_multiple_of(width) || visits.iter().any(|&(_, row)| row as usize >= rows) {
        return Err(Error::invalid(format!(
            "rows of experts that are none of {rows} rows of {width} values"
        )));
    }
    refuse_non_finite(given, "the rows of experts")?;
    let network = |expert: u32| weights.experts.get((expert as usize).wrapping_sub(weights.first));
    let same = |a: &(u32, u32), b: &(u32, u32)| a.0 == b.0;
    for members in visits.chunk_by(same) {
        let expert = members[0].0;
        if network(expert).is_none() {
            return Err(Error::invalid(format!("expert {expert} is not here")));
        }
        if members.len() > ws.capacity.rows {
            return Err(Error::invalid(format!("visits of expert {expert}: more than a pass takes")));
        }
    }
    if !visits.is_sorted_by_key(|visit| visit.0) {
        return Err(Error::invalid("visits of experts out of order"));
    }
    out.clear();
    out.resize(visits.len() * width, 0.0);
    let room = ws.routing.gathered.len() / ws.sizes.hidden;
    let (mut left, mut outs) = (visits, &mut out[..]);
    while !left.is_empty() {
        let lens = left.chunk_by(same).map(<[_]>::len);
        let taken = lens.scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        let taken = taken.take_while(|end| *end <= room).last().unwrap_or(left.len());
        let (now, later) = left.split_at(taken);
        left = later;
        let gathered = &mut ws.routing.gathered[..taken * width];
        for (&(_, row), to) in now.iter().zip(gathered.chunks_exact_mut(width)) {
            to.copy_from_slice(&given[row as usize * width..][..width]);
        }
        let together = now.chunk_by(same).scan(&*gathered, |rest, members| {
            let (x, behind) = rest.split_at(members.len() * width);
            *rest = behind;
            Some((network(members[0].0)?, x))
        });
        let Inner { gate, up } = &mut ws.inner;
        let buffers = Hidden { gate, up, scratch: &mut ws.scratch, eps: 0.0 };
        run_networks(cpu, together, spec.activation, buffers, first(&mut outs, taken * width));
    }
    refuse_non_finite(out, "the outputs of experts")
}

/// The experts of every row with their weights, best first.
///
/// Ties go to the lower expert and the lower group. Sums run in the order of the choices.
fn choose(cpu: &Cpu, spec: &Experts, weights: &ExpertWeights, routing: &mut Routing, rows: usize) {
    let scores = routing.scores[..rows * spec.count].chunks_exact_mut(spec.count);
    let keys = &mut routing.keys[..spec.count];
    for (scores, chosen) in scores.zip(routing.chosen.chunks_exact_mut(spec.used)) {
        match spec.router {
            Router::Softmax => cpu.softmax(scores),
            Router::Sigmoid => cpu.sigmoid(scores),
            Router::SoftmaxOfChosen => {}
        }
        keys.copy_from_slice(scores);
        if let Some(bias) = &weights.selection {
            keys.iter_mut().zip(bias).for_each(|(key, bias)| *key += bias);
        }
        if let Some(groups) = spec.groups {
            close_groups(groups, keys);
        }
        for place in 0..spec.used {
            let (taken, rest) = chosen.split_at_mut(place);
            let free = |expert: &usize| taken.iter().all(|&(t, _)| t as usize != *expert);
            let best = (0..spec.count)
                .filter(free)
                .reduce(|best, other| if keys[other] > keys[best] { other } else { best })
                .unwrap_or_default();
            rest[0] = (best as u32, scores[best]);
        }
        if spec.router == Router::SoftmaxOfChosen {
            let largest = chosen[0].1;
            chosen.iter_mut().for_each(|(_, logit)| *logit = math::exp_f32(*logit - largest));
        }
        let share = spec.renormalize || spec.router == Router::SoftmaxOfChosen;
        let sum = if share { chosen.iter().fold(0.0, |sum, &(_, weight)| sum + weight) } else { 1.0 };
        for (_, weight) in chosen.iter_mut() {
            *weight = *weight / sum * spec.scale;
        }
        if let Some(factors) = &weights.factors {
            chosen.iter_mut().for_each(|(expert, weight)| *weight *= factors[*expert as usize]);
        }
    }
}

/// Puts the experts of all groups but the best out of reach; a group counts as much as its best expert or its two best.
fn close_groups(groups: Groups, keys: &mut [f32]) {
    let size = keys.len() / groups.count;
    let worth = |keys: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &key in keys {
            if key > first {
                (first, second) = (key, first);
            } else if key > second {
                second = key;
            }
        }
        if size > 1 && groups.best > 1 { first + second } else { first }
    };
    // The worst open group closes until as many are left as may be used; of equals the later one.
    for _ in groups.used..groups.count {
        let open = keys.chunks_exact(size).map(worth).enumerate().filter(|(_, w)| *w > f32::NEG_INFINITY);
        let worst = open.reduce(|worst, other| if other.1 <= worst.1 { other } else { worst });
        let Some((worst, _)) = worst else { return };
        keys[worst * size..][..size].fill(f32::NEG_INFINITY);
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
    fn the_best_groups_stay_open() {
        let groups = Groups { count: 3, used: 1, best: 2 };
        // Sums of the two best: 1.0, 1.1, 0.9.
        let mut keys = [0.9, 0.1, 0.0, 0.5, 0.6, 0.4, 0.8, 0.1, 0.1];
        close_groups(groups, &mut keys);
        let open: Vec<usize> = (0..9).filter(|&i| keys[i] > f32::NEG_INFINITY).collect();
        assert_eq!(open, [3, 4, 5]);
        let mut keys = [0.9, 0.1, 0.0, 0.5, 0.6, 0.4, 0.8, 0.1, 0.1];
        close_groups(Groups { best: 1, ..groups }, &mut keys);
        let open: Vec<usize> = (0..9).filter(|&i| keys[i] > f32::NEG_INFINITY).collect();
        assert_eq!(open, [0, 1, 2], "by the best alone");
    }

    #[test]
    fn choices_are_grouped_by_expert_and_row() {
        let spec = Experts::softmax(4, 2, 1);
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
