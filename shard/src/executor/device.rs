//! Which device computes, by name, and the one place that chooses an executor.

use std::{fmt, path::Path, str::FromStr, sync::Arc, time::Duration};

use scheduler::{ExpertRange, LayerRange};

#[cfg(feature = "candle")]
use super::candle::{CandleShard, Keep};
use super::{
    Class, Ends, Executor, Options,
    cpu::Shard,
    reference::{Arithmetic, Reference},
};
#[cfg(feature = "gpu")]
use super::{
    gpu::{Access, Gpu, GpuShard},
    spare::Spare,
    split,
};
use crate::{Error, Result, gguf::Gguf, kernels::Cpu};

/// A device as a user names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU where this build and this machine have one, else the processor.
    #[default]
    Auto,
    /// The processor, with kernels of our own: profile `d1`.
    Cpu,
    /// The processor, with candle's: class `approx`.
    CandleCpu,
    /// An NVIDIA GPU by its number, with candle.
    Cuda(usize),
    /// The GPU of an Apple machine, with candle.
    Metal,
    /// A GPU of any vendor, with kernels of our own.
    Gpu(GpuName),
}

impl DeviceName {
    /// Whether a driver computes, which may fail and wants more of the system than a worker is left with otherwise.
    pub fn has_driver(self) -> bool {
        match self {
            // What `auto` chooses is known once it has been opened.
            Self::Auto | Self::Cpu | Self::CandleCpu => false,
            Self::Cuda(_) | Self::Metal | Self::Gpu(_) => true,
        }
    }
}

/// A GPU as a user names it: `gpu:0`, `gpu:0,cpu`, and with the memory and the share of its time that may be taken
/// `gpu:0:8000000000@50,cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuName {
    /// Its number among those of this machine, real ones first.
    pub number: usize,
    /// Bytes of its memory that may be taken; `None` for what it has.
    pub memory_bytes: Option<u64>,
    /// Percent of its time that may be taken, 1 to 100; `None` for all of it, and half while a battery feeds the machine or
    /// others use it.
    pub share_percent: Option<u8>,
    /// Whether the processor computes the layers that its memory does not hold.
    pub rest_on_cpu: bool,
}

impl GpuName {
    /// The GPU of this number, all of its memory and no processor.
    pub fn numbered(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    fn parse(name: &str) -> Option<Self> {
        let (gpu, rest_on_cpu) = match name.split_once(',') {
            Some((gpu, "cpu")) => (gpu, true),
            Some(_) => return None,
            None => (name, false),
        };
        let (gpu, share_percent) = match gpu.split_once('@') {
            Some((gpu, percent)) => {
                (gpu, Some(percent.parse().ok().filter(|percent| (1..=100).contains(percent))?))
            }
            None => (gpu, None),
        };
        let Some(numbers) = gpu.strip_prefix("gpu:") else {
            return (gpu == "gpu").then_some(Self { share_percent, rest_on_cpu, ..Self::default() });
        };
        let (number, memory_bytes) = match numbers.split_once(':') {
            Some((number, bytes)) => (number, Some(bytes.parse().ok()?)),
            None => (numbers, None),
        };
        Some(Self { number: number.parse().ok()?, memory_bytes, share_percent, rest_on_cpu })
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu:{}", self.number)?;
        if let Some(bytes) = self.memory_bytes {
            write!(f, ":{bytes}")?;
        }
        if let Some(percent) = self.share_percent {
            write!(f, "@{percent}")?;
        }
        f.write_str(if self.rest_on_cpu { ",cpu" } else { "" })
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "candle-cpu" => Ok(Self::CandleCpu),
            "cuda" => Ok(Self::Cuda(0)),
            "metal" => Ok(Self::Metal),
            _ => {
                let cuda = name.strip_prefix("cuda:").and_then(|number| number.parse().ok()).map(Self::Cuda);
                cuda.or_else(|| GpuName::parse(name).map(Self::Gpu)).ok_or_else(|| {
                    Error::invalid(format!(
                        "there is no device \"{name}\"; choose auto, cpu, candle-cpu, cuda:0, metal, gpu:0 or gpu:0,cpu"
                    ))
                })
            }
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::CandleCpu => f.write_str("candle-cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Metal => f.write_str("metal"),
            Self::Gpu(name) => name.fmt(f),
        }
    }
}

/// What computes.
#[derive(Clone)]
pub enum Device {
    /// Kernels of our own, with an instruction set and threads.
    Cpu(Arc<Cpu>),
    /// One of candle's devices.
    #[cfg(feature = "candle")]
    Candle(candle_core::Device),
    /// A GPU of any vendor; with the processor for the layers that it has no memory for.
    #[cfg(feature = "gpu")]
    Gpu(Arc<Gpu>, Option<Arc<Cpu>>),
    /// The readable oracle, rounding where it says.
    Reference(Arithmetic),
}

impl Device {
    /// Opens the device called `name`; `cpu` makes the processor's threads, if it comes to that. A GPU of our own kernels keeps
    /// them compiled in the folder `pipelines`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device that this build or this machine does not have, with what to do about it; those of
    /// `cpu`.
    pub fn open<E: From<Error>>(
        name: DeviceName,
        pipelines: Option<&Path>,
        cpu: impl FnOnce() -> Result<Arc<Cpu>, E>,
    ) -> Result<Self, E> {
        match name {
            DeviceName::Cpu => Ok(Self::Cpu(cpu()?)),
            DeviceName::Auto => match best_device() {
                Some(device) => Ok(device),
                None => Ok(Self::Cpu(cpu()?)),
            },
            DeviceName::CandleCpu | DeviceName::Cuda(_) | DeviceName::Metal => Ok(open_candle(name)?),
            DeviceName::Gpu(name) => open_gpu(name, pipelines, cpu),
        }
    }

    /// Which bits it computes, as far as is known of it.
    pub fn class(&self) -> Class {
        match self {
            Self::Cpu(_) => Class::D1,
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, _) => gpu.class(),
            _ => Class::Approx,
        }
    }

    /// Why nothing can be computed on it any more, if that is so.
    pub fn lost(&self) -> Option<String> {
        match self {
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, _) => gpu.lost(),
            _ => None,
        }
    }

    /// Whether a processor computes there what a GPU would.
    pub fn is_software(&self) -> bool {
        match self {
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, _) => gpu.info().software,
            _ => false,
        }
    }

    /// Takes a GPU from itself, as a driver that resets it does; nothing happens to processors.
    pub fn destroy(&self) {
        match self {
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, _) => gpu.destroy(),
            _ => {}
        }
    }

    /// From now on what computes is of class `approx`, whatever it found of itself: it gave other bits than profile `d1` once.
    pub fn demote(&self) {
        match self {
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, _) => gpu.demote(),
            _ => {}
        }
    }

    /// Bytes per second that it reads of its memory, as measured now; `None` for one that is not measured.
    ///
    /// # Errors
    /// What the device says when it fails.
    pub fn read_bandwidth(&self) -> Result<Option<f64>> {
        match self {
            Self::Cpu(cpu) => crate::probe::read_bandwidth(cpu).map(Some),
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu, None) => super::gpu::read_bandwidth(gpu).map(Some),
            _ => Ok(None),
        }
    }

    /// The processor's kernels, if those compute.
    pub fn cpu(&self) -> Option<&Arc<Cpu>> {
        match self {
            Self::Cpu(cpu) => Some(cpu),
            _ => None,
        }
    }
}

/// The GPU of this build and this machine, if both have one.
#[cfg(any(feature = "cuda", feature = "metal"))]
fn best_device() -> Option<Device> {
    let cuda = candle_core::utils::cuda_is_available().then(|| candle_core::Device::new_cuda(0).ok());
    let metal = || candle_core::utils::metal_is_available().then(|| candle_core::Device::new_metal(0).ok());
    cuda.flatten().or_else(|| metal().flatten()).map(Device::Candle)
}

#[cfg(not(any(feature = "cuda", feature = "metal")))]
fn best_device() -> Option<Device> {
    None
}

#[cfg(feature = "candle")]
fn open_candle(name: DeviceName) -> Result<Device> {
    let missing = |feature: &str| {
        Error::unsupported(format!("device {name} in this build; build with `--features {feature}`"))
    };
    let refused = |error: candle_core::Error| {
        Error::unsupported(format!(
            "device {name} on this machine ({error}); `--device cpu` works everywhere"
        ))
    };
    let device = match name {
        DeviceName::Cuda(_) if !cfg!(feature = "cuda") => return Err(missing("cuda")),
        DeviceName::Metal if !cfg!(feature = "metal") => return Err(missing("metal")),
        DeviceName::Cuda(number) => candle_core::Device::new_cuda(number).map_err(refused)?,
        DeviceName::Metal => candle_core::Device::new_metal(0).map_err(refused)?,
        _ => candle_core::Device::Cpu,
    };
    Ok(Device::Candle(device))
}

#[cfg(not(feature = "candle"))]
fn open_candle(name: DeviceName) -> Result<Device> {
    let feature = match name {
        DeviceName::Cuda(_) => "cuda",
        DeviceName::Metal => "metal",
        _ => "candle",
    };
    Err(Error::unsupported(format!("device {name} in this build; build with `--features {feature}`")))
}

/// The GPUs of this machine that this build computes on, in words, with the class of their arithmetic; their places are their
/// numbers in [`DeviceName::Gpu`].
#[cfg(feature = "gpu")]
pub fn gpus() -> Vec<String> {
    let describe = |(number, info): (usize, super::gpu::GpuInfo)| {
        let memory = match (info.software, info.memory_bytes) {
            (true, _) => ", software".to_owned(),
            (false, Some(bytes)) => format!(", {:.1} GB", bytes as f64 / 1e9),
            (false, None) => String::new(),
        };
        let class = match Gpu::open(Access { number, ..Access::default() }).map(|gpu| gpu.class()) {
            Ok(Class::D1) => "class d1".to_owned(),
            Ok(Class::Approx) => "class approx".to_owned(),
            Err(error) => error.to_string(),
        };
        format!("{}{memory}, {class}", info.name)
    };
    super::gpu::list().into_iter().enumerate().map(describe).collect()
}

/// None: this build computes on no GPU by itself.
#[cfg(not(feature = "gpu"))]
pub fn gpus() -> Vec<String> {
    Vec::new()
}

/// How long a driver has not come back from a call that should have been over, which no thread of this process can interrupt.
pub fn overdue() -> Option<Duration> {
    #[cfg(feature = "gpu")]
    return super::gpu::overdue();
    #[cfg(not(feature = "gpu"))]
    None
}

#[cfg(feature = "gpu")]
fn open_gpu<E: From<Error>>(
    name: GpuName,
    pipelines: Option<&Path>,
    cpu: impl FnOnce() -> Result<Arc<Cpu>, E>,
) -> Result<Device, E> {
    let GpuName { number, memory_bytes, share_percent, .. } = name;
    let gpu = Gpu::open(Access { number, memory_bytes, share_percent, pipelines })?;
    Ok(Device::Gpu(gpu, name.rest_on_cpu.then(cpu).transpose()?))
}

#[cfg(not(feature = "gpu"))]
fn open_gpu<E: From<Error>>(
    name: GpuName,
    _: Option<&Path>,
    _: impl FnOnce() -> Result<Arc<Cpu>, E>,
) -> Result<Device, E> {
    let number = name.number;
    Err(Error::unsupported(format!("device gpu:{number} in this build; build with `--features gpu`")).into())
}

/// Loads `layers` and `ends` of the model in `gguf` on `device`; tensors of other layers are not touched, except by the oracle.
///
/// The only place that chooses an executor.
///
/// # Errors
/// Those of [`crate::models::Blueprint::from_gguf`]; [`Error::Invalid`] for layers the model does not have, ends that do not
/// belong to the layers, or a context of zero or beyond what the model was trained for.
pub fn load(
    device: &Device,
    gguf: &Arc<Gguf>,
    layers: LayerRange,
    ends: Ends,
    options: Options,
) -> Result<Box<dyn Executor>> {
    Ok(match device {
        Device::Cpu(cpu) => Box::new(Shard::load(gguf, cpu.clone(), layers, ends, options)?),
        #[cfg(feature = "candle")]
        Device::Candle(device) => {
            Box::new(CandleShard::load(gguf, device, layers, ends, options, Keep::Quantized)?)
        }
        #[cfg(feature = "gpu")]
        Device::Gpu(gpu, None) => Box::new(GpuShard::load(gguf, gpu.clone(), layers, ends, options)?),
        #[cfg(feature = "gpu")]
        Device::Gpu(gpu, Some(cpu)) => {
            let split = split::load(gguf, (gpu, cpu), layers, ends, options)?;
            match gpu.class() {
                Class::D1 => Box::new(Spare::new(split, gguf, cpu, options)),
                Class::Approx => split,
            }
        }
        Device::Reference(arithmetic) => Box::new(Reference::load(gguf, layers, ends, options, *arithmetic)?),
    })
}

/// As [`load`], with only `experts` of those layers that have any. Passes need a workspace that asks for the others
/// ([`Workspace::ask_of`](super::Workspace::ask_of)).
///
/// # Errors
/// Those of [`load`]; [`Error::Invalid`] for experts that a layer does not have; [`Error::Unsupported`] for other devices than the
/// processor.
pub fn load_experts(
    device: &Device,
    gguf: &Arc<Gguf>,
    layers: LayerRange,
    ends: Ends,
    options: Options,
    experts: ExpertRange,
) -> Result<Box<dyn Executor>> {
    match device {
        Device::Cpu(cpu) => {
            Ok(Box::new(Shard::load_experts(gguf, cpu.clone(), layers, ends, options, Some(experts))?))
        }
        _ => Err(Error::unsupported("some experts of a layer on this device: choose `--device cpu`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, device) in [
            ("auto", DeviceName::Auto),
            ("cpu", DeviceName::Cpu),
            ("candle-cpu", DeviceName::CandleCpu),
            ("cuda:3", DeviceName::Cuda(3)),
            ("metal", DeviceName::Metal),
            ("gpu:1", DeviceName::Gpu(GpuName::numbered(1))),
            ("gpu:1,cpu", DeviceName::Gpu(GpuName { rest_on_cpu: true, ..GpuName::numbered(1) })),
            ("gpu:1:77", DeviceName::Gpu(GpuName { memory_bytes: Some(77), ..GpuName::numbered(1) })),
            ("gpu:1@40", DeviceName::Gpu(GpuName { share_percent: Some(40), ..GpuName::numbered(1) })),
            (
                "gpu:0:77@100,cpu",
                DeviceName::Gpu(GpuName {
                    number: 0,
                    memory_bytes: Some(77),
                    share_percent: Some(100),
                    rest_on_cpu: true,
                }),
            ),
        ] {
            assert_eq!((name.parse::<DeviceName>().unwrap(), device.to_string().as_str()), (device, name));
        }
        assert!(DeviceName::Metal.has_driver() && !DeviceName::Auto.has_driver());
        assert_eq!("cuda".parse::<DeviceName>().unwrap(), DeviceName::Cuda(0));
        assert_eq!("gpu".parse::<DeviceName>().unwrap(), DeviceName::Gpu(GpuName::default()));
        for name in [
            "",
            "gpux",
            "gpu:",
            "gpu:0,gpu:1",
            "gpu:0:",
            "gpu:0:8GB",
            "gpu,",
            "gpu:0@0",
            "gpu:0@101",
            "cuda:",
            "cuda:-1",
            "CPU",
        ] {
            let error = name.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains("choose auto, cpu"), "{error}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn what_is_not_built_in_is_refused_with_what_to_do() {
        let open = Device::open::<Error>(DeviceName::Cuda(1), None, || Err(Error::invalid("not asked for")));
        let error = open.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("cuda:1") && error.contains("--features cuda"), "{error}");
    }
}
