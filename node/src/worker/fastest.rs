//! A worker on the device that was asked for; where that fails, on the processor; where it was left open (`--device auto`), on the
//! faster of a GPU and the processor, each measured with the model's own layers.
//!
//! What is tried is the first GPU, if it is no software device, of class `d1`, and computes the model; layers that its memory does
//! not hold are the processor's. Counted is a request of [`PROMPT`] tokens that is answered with [`ANSWER`]. Machines without a
//! node of a graphics device (Linux) are not searched for drivers, and builds that compute on GPUs through candle measure nothing.
//! Drivers are loaded in the worker alone, which ends when one hangs (`watch`) or is not done after [`TRIAL`].
//!
//! Limits: measured when the model is loaded, with short contexts; both workers are in memory for that moment.

use std::{path::Path, time::Duration};

use p2p::wire::announce::Class;
use shard::executor::{DeviceName, GpuName};
use tokio::{sync::mpsc, time::timeout};

use super::{Fault, Manners, Measure, Output, Ready, Spec, Worker, spawn_rehearsed};

/// Tokens of the prompt that decides.
const PROMPT: f64 = 256.0;
/// Tokens of its answer.
const ANSWER: f64 = 64.0;
/// A GPU that has not loaded the model and computed a few rows after this is not waited for.
const TRIAL: Duration = Duration::from_secs(120);

/// A worker, what it said, and what it will say.
type Spawned = (Worker, Ready, mpsc::Receiver<Output>);

/// As [`spawn_rehearsed`], on the device that `spec` names from then on; and what became of a GPU that failed, for people.
///
/// # Errors
/// As [`spawn_rehearsed`], of the processor; [`Fault::Refused`] of a device that was named.
pub async fn spawn_fastest(spec: &mut Spec) -> Result<(Spawned, Option<String>), Fault> {
    if spec.device == DeviceName::Auto && may_have_gpu() {
        return measured(spec).await;
    }
    match spawn_rehearsed(spec.clone()).await {
        Err(Fault::Lost(why) | Fault::Dead(why)) if spec.is_on_gpu() => {
            let trouble = failed(spec.device, &why);
            tracing::warn!("{trouble}");
            (spec.device, spec.class) = (DeviceName::Cpu, None);
            Ok((spawn_rehearsed(spec.clone()).await?, Some(trouble)))
        }
        spawned => Ok((spawned?, None)),
    }
}

/// What people read of a device that is not used any more.
pub fn failed(device: DeviceName, why: &str) -> String {
    format!("{device} failed ({why}): the processor computes until this node is started again")
}

async fn measured(spec: &mut Spec) -> Result<(Spawned, Option<String>), Fault> {
    let gpu = DeviceName::Gpu(GpuName { rest_on_cpu: true, ..GpuName::numbered(0) });
    // The processor's threads are measured on cores of their own.
    let on_gpu = Spec {
        device: gpu,
        measure: Measure::Trial,
        class: None,
        manners: Manners { pin: false, ..spec.manners },
        ..spec.clone()
    };
    let (device, trouble) = match timeout(TRIAL, spawn_rehearsed(on_gpu)).await {
        Ok(Ok(spawned)) if spawned.1.class == Class::D1 => (Some(spawned), None),
        Ok(Ok((worker, ..))) => {
            worker.kill();
            tracing::info!(%gpu, "the device is of class approx: the processor computes");
            (None, None)
        }
        Ok(Err(fault @ (Fault::Lost(_) | Fault::Dead(_)))) => (None, Some(failed(gpu, &fault.to_string()))),
        Ok(Err(fault)) => {
            tracing::info!(%gpu, %fault, "the device does not compute this model: the processor does");
            (None, None)
        }
        Err(_) => (None, Some(failed(gpu, &format!("it was not ready after {} s", TRIAL.as_secs())))),
    };
    trouble.iter().for_each(|trouble| tracing::warn!("{trouble}"));
    let on_cpu = Spec { device: DeviceName::Cpu, ..spec.clone() };
    let (device, processor) = match (device, spawn_rehearsed(on_cpu).await) {
        (Some(device), Ok(processor)) => (device, processor),
        (Some(device), Err(fault)) => {
            tracing::info!(%gpu, %fault, "the processor does not compute this model: the device does");
            spec.device = gpu;
            return Ok((device, None));
        }
        (None, processor) => {
            spec.device = DeviceName::Cpu;
            return Ok((processor?, trouble));
        }
    };
    let [gpu_ms, cpu_ms] = [&device, &processor].map(|(_, ready, _)| request_ms(ready));
    let is_faster = gpu_ms < cpu_ms;
    let (faster, slower) = if is_faster { (device, processor) } else { (processor, device) };
    spec.device = if is_faster { gpu } else { DeviceName::Cpu };
    tracing::info!(%gpu, gpu_ms, cpu_ms, chosen = %spec.device, "a request was measured on both");
    slower.0.kill();
    Ok((faster, None))
}

/// What a request takes through the layers that are here, ms.
fn request_ms(ready: &Ready) -> f64 {
    let layers: f64 = ready.layers.iter().map(|range| ready.weight(*range)).sum();
    let token_ms = ready.times.visit_ms + ready.times.head_ms + layers * ready.times.decode_ms;
    PROMPT * layers * ready.times.prefill_ms + ANSWER * token_ms
}

/// Whether this machine may have a GPU that this build computes on with kernels of our own.
fn may_have_gpu() -> bool {
    let nodes = ["/dev/dri", "/dev/nvidia0", "/dev/dxg"];
    let is_there = || !cfg!(target_os = "linux") || nodes.iter().any(|node| Path::new(node).exists());
    #[cfg(debug_assertions)]
    let is_there = || super::fault::tries_software() || is_there();
    cfg!(feature = "gpu") && !cfg!(any(feature = "cuda", feature = "metal")) && is_there()
}

#[cfg(test)]
mod tests {
    use scheduler::LayerRange;

    use super::{super::Times, *};

    #[test]
    fn a_request_takes_prompt_and_tokens_through_the_layers() {
        let ready = Ready {
            layers: LayerRange::new(2, 6).into_iter().collect(),
            times: Times { visit_ms: 1.0, head_ms: 0.5, decode_ms: 2.0, prefill_ms: 0.25 },
            ..Ready::absent(Default::default(), String::new(), 1)
        };
        assert_eq!(request_ms(&ready), 256.0 * 4.0 * 0.25 + 64.0 * (1.5 + 4.0 * 2.0));
    }
}
