//! What the operations of a decode step take, each one alone, and what the device's memory gives: many times in one command
//! buffer.

use std::time::Instant;

use super::{Gpu, GpuShard, buffers::GpuBuffers, device::dispatch, source::Kernel};
use crate::{
    Result,
    executor::{Capacity, Executor, Input, Item, OperationTime, Output, Pass, Workspace},
    round::Rounding,
};

/// How often an operation is repeated in one command buffer.
const TIMES: u32 = 64;
/// The same on a software device.
const SOFTWARE_TIMES: u32 = 2;

/// Threads that read.
const READERS: u32 = 1 << 16;
/// Bytes that are read, many times.
const READ_BYTES: u64 = 256 << 20;
/// The same on a software device.
const SOFTWARE_READ_BYTES: u64 = 4 << 20;

/// Bytes per second that a kernel reads of the device's memory.
///
/// # Errors
/// What the device says when it fails.
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64> {
    let most = if gpu.info().software { SOFTWARE_READ_BYTES } else { READ_BYTES };
    let bytes = most.min(gpu.info().binding_bytes) / 16 * 16;
    let _memory = gpu.reserve(bytes as usize)?;
    let (source, out) = (gpu.buffer("read", bytes as usize), gpu.buffer("read", 16 * READERS as usize));
    let params = gpu.upload("params", &[(bytes / 16) as u32, READERS]);
    let kernel = gpu.kernel(Kernel::Read);
    let bind = gpu.bind(&kernel, &[&gpu.upload("pass", &[1, 1, 1, 0]), &params, &source, &out]);
    let times = times_of(gpu);
    let us = |count: u32| {
        least_us(gpu, &|encoder| {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            (0..count).for_each(|_| dispatch(&mut pass, &kernel, &bind, [READERS / 64, 1]));
        })
    };
    let spent_us = us(times + 1)? - us(1)?;
    Ok((bytes * u64::from(times)) as f64 / spent_us.max(1.0) * 1e6)
}

/// Of the first layer held, and of what follows the last, at the position that comes behind a short prompt.
pub(super) fn operations(shard: &GpuShard) -> Result<Vec<OperationTime>> {
    let mut ws = Workspace::new(shard, Capacity::one_session(8))?;
    let mut state = shard.new_state();
    // What a pass leaves in the buffers is what the operations are timed on.
    let rows = vec![0.5; 8 * shard.blueprint.hidden];
    for rows in [&rows[..], &rows[..shard.blueprint.hidden]] {
        let items = &mut [Item { state: &mut state, input: Input::Activations(rows), output: Output::Last }];
        shard.pass(
            &mut ws,
            Pass { layers: shard.range, rounding: &Rounding::NONE, states: false, top: 0 },
            items,
        )?;
    }
    let buffers: &mut GpuBuffers = ws.buffers()?;
    let layer = buffers.layers.first().and_then(Option::as_ref).map(|(_, steps)| steps);
    let parts = layer.into_iter().map(|steps| ("layer", steps));
    let parts = parts.chain(buffers.tail.as_ref().map(|steps| ("end", steps)));
    let (count, empty_us) = (times_of(&shard.gpu), least_us(&shard.gpu, &|_| ())?);
    let mut times = Vec::new();
    for (part, steps) in parts {
        for index in 0..steps.len() {
            let (name, bytes) = steps.about(index);
            let spent_us = least_us(&shard.gpu, &|encoder| {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                (0..count).for_each(|_| steps.record_one(&mut pass, index, 1));
            })?;
            let us = (spent_us - empty_us).max(0.0) / f64::from(count);
            times.push(OperationTime { name: format!("{part}: {name}"), us, bytes });
        }
    }
    Ok(times)
}

fn times_of(gpu: &Gpu) -> u32 {
    if gpu.info().software { SOFTWARE_TIMES } else { TIMES }
}

/// Microseconds of a command buffer: the least of three.
fn least_us(gpu: &Gpu, record: &dyn Fn(&mut wgpu::CommandEncoder)) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        let started = Instant::now();
        let mut encoder = gpu.encoder();
        record(&mut encoder);
        gpu.finish(encoder, &[])?;
        least = least.min(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok(least)
}
