//! Opening a GPU: what it is, how it rounds, its kernels, its memory.
//!
//! Errors of the device arrive late and elsewhere: they are noted when they happen and end the pass that meets them next
//! ([`Gpu::check`]), so a device that is lost, full or hangs is a failed pass and not the end of the process. A device that
//! was lost or did not finish in time stays lost ([`Gpu::lost`]); one whose memory was full goes on.

use std::{
    collections::HashMap,
    future::Future,
    path::Path,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    driver::{Call, locked},
    pipeline_cache::{PipelineCache, PipelineCounts},
    share::Share,
    source::{Arithmetic, Kernel},
};
use crate::fma::Fma;
use crate::{Error, Result, executor::Class, synthetic::Random};

/// A pass that takes longer has lost its device: drivers reset a GPU after a few seconds without progress.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same of a software device, which computes a chunk of a prompt in a minute.
const SOFTWARE_PATIENCE: Duration = Duration::from_secs(300);
/// What a driver gets beyond the deadline of a pass before it counts as hanging itself.
const SLACK: Duration = Duration::from_secs(30);
/// Looking for devices and opening one take no longer: a second or two, more where a GPU wakes up.
const OPENING: Duration = Duration::from_secs(60);
/// What to do about a device without memory.
const FULL: &str = "`--device gpu:0,cpu` leaves layers to the processor, `--gpu-memory` says how much may be taken, `--ctx` makes sessions \
                    shorter";
/// Operands of a probe.
const OPERANDS: usize = 8192;

/// A GPU as a user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// What the device is called.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Whether a processor computes what a GPU would: right, and slow.
    pub software: bool,
    /// Bytes of the largest matrix that one binding holds.
    pub binding_bytes: u64,
    /// Bytes of its own memory, where the system says (Linux, drivers with `mem_info_vram_total`).
    pub memory_bytes: Option<u64>,
}

/// Which GPU is opened, and what of it may be taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access<'a> {
    /// Its number in [`list`].
    pub number: usize,
    /// Bytes of its memory; without a word nine tenths, where the system says how much there is.
    pub memory_bytes: Option<u64>,
    /// Percent of its time; without a word all, and half while a battery feeds the machine or others use it.
    pub share_percent: Option<u8>,
    /// The folder in which its compiled kernels are kept.
    pub pipelines: Option<&'a Path>,
}

/// A GPU that is open.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: GpuInfo,
    arithmetic: Arithmetic,
    class: Class,
    demoted: AtomicBool,
    kernels: Mutex<HashMap<Kernel, Arc<Compiled>>>,
    pipelines: Option<PipelineCache>,
    trouble: Arc<Trouble>,
    memory: Memory,
    share: Share,
}

/// What went wrong on a device.
#[derive(Default)]
struct Trouble {
    /// It is lost, and why.
    lost: Mutex<Option<String>>,
    /// Memory that it did not have was asked for, which no pass has met yet.
    full: AtomicBool,
    /// Memory that it did not have, or may not be taken, was asked for.
    short: AtomicBool,
}

impl Trouble {
    fn lose(&self, why: String) {
        locked(&self.lost).get_or_insert(why);
    }
}

/// How much of the device's memory may be taken, and is.
struct Memory {
    most_bytes: Option<u64>,
    taken_bytes: Arc<AtomicU64>,
}

/// Memory of the device that is taken for as long as this is there.
pub(super) struct Reserved {
    taken_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.taken_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// A kernel ready to run.
pub(super) struct Compiled {
    pub kernel: Kernel,
    pub pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Waits for a future that needs no one to wake it: those of this library are ready at once outside of browsers.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

fn adapters() -> Vec<wgpu::Adapter> {
    let _call = Call::begin(OPENING);
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::PRIMARY;
    let instance = wgpu::Instance::new(descriptor);
    let mut all = wait(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    // Real devices first, in the order of the driver.
    all.sort_by_key(|adapter| adapter.get_info().device_type == wgpu::DeviceType::Cpu);
    all
}

fn describe(adapter: &wgpu::Adapter) -> GpuInfo {
    let info = adapter.get_info();
    GpuInfo {
        name: info.name,
        driver: format!("{:?} {} {}", info.backend, info.driver, info.driver_info),
        software: info.device_type == wgpu::DeviceType::Cpu,
        binding_bytes: adapter.limits().max_storage_buffer_binding_size,
        memory_bytes: video_memory_bytes(&info.device_pci_bus_id),
    }
}

/// Bytes of the memory of the device at `bus`, where the system says.
fn video_memory_bytes(bus: &str) -> Option<u64> {
    let is_address =
        !bus.is_empty() && bus.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b':' | b'.'));
    let path = format!("/sys/bus/pci/devices/{bus}/mem_info_vram_total");
    std::fs::read_to_string(path).ok().filter(|_| is_address)?.trim().parse().ok()
}

/// The GPUs of this machine, real ones first; their places are their numbers in [`Gpu::open`].
pub fn list() -> Vec<GpuInfo> {
    adapters().iter().map(describe).collect()
}

impl Gpu {
    /// Opens a GPU and probes how it rounds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when this machine has no such device or its driver refuses.
    pub fn open(access: Access<'_>) -> Result<Arc<Self>> {
        let Access { number, memory_bytes, share_percent, pipelines } = access;
        let mut all = adapters();
        let count = all.len();
        if number >= count {
            return Err(Error::unsupported(format!(
                "device gpu:{number} on this machine, which has {count}; `--device cpu` works everywhere"
            )));
        }
        let adapter = all.swap_remove(number);
        let info = describe(&adapter);
        let descriptor = wgpu::DeviceDescriptor {
            required_features: adapter.features() & wgpu::Features::PIPELINE_CACHE,
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let call = Call::begin(OPENING);
        let (device, queue) = wait(adapter.request_device(&descriptor)).map_err(|error| {
            Error::unsupported(format!("device gpu:{number} ({}) cannot be opened: {error}", info.name))
        })?;
        drop(call);
        let trouble = Arc::new(Trouble::default());
        let noted = trouble.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| match error {
            wgpu::Error::OutOfMemory { .. } => {
                noted.full.store(true, Relaxed);
                noted.short.store(true, Relaxed);
            }
            error => noted.lose(error.to_string()),
        }));
        let noted = trouble.clone();
        device.set_device_lost_callback(move |reason, why| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                noted.lose(format!("the device is lost: {why}"));
            }
        });
        let arithmetic = Arithmetic { fused: true, keeps_subnormals: true };
        let (class, kernels) = (Class::Approx, Mutex::default());
        let most_bytes = memory_bytes.or(info.memory_bytes.map(|bytes| bytes / 10 * 9));
        let memory = Memory { most_bytes, taken_bytes: Arc::default() };
        let demoted = AtomicBool::new(false);
        let about = adapter.get_info();
        let pipelines = pipelines.and_then(|folder| PipelineCache::open(&device, &about, folder));
        let share = Share::new(share_percent, Path::new("/sys"), &about.device_pci_bus_id);
        let mut gpu = Self {
            device,
            queue,
            info,
            arithmetic,
            class,
            demoted,
            kernels,
            pipelines,
            trouble,
            memory,
            share,
        };
        let (found, converts) = gpu.probe()?;
        let whole = found == arithmetic;
        if converts && (whole || gpu.info.software) {
            gpu.class = Class::D1;
        }
        // In integers a real device would be slower than the processor: it keeps its own operations and is `approx`.
        if gpu.info.software {
            gpu.arithmetic = found;
        }
        gpu.kernels = Mutex::default();
        Ok(Arc::new(gpu))
    }

    /// What the device is.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// How the device rounds.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The class of what it computes: `d1` where its own operations round once and keep subnormals, and on a software device,
    /// which computes in integers what it lacks. To be believed after `golden::check_device`.
    pub fn class(&self) -> Class {
        if self.demoted.load(Relaxed) { Class::Approx } else { self.class }
    }

    /// From now on its class is `approx`.
    pub fn demote(&self) {
        self.demoted.store(true, Relaxed);
    }

    /// A call into the driver begins.
    fn call(&self) -> Call {
        Call::begin(self.patience() + SLACK)
    }

    /// How long a pass may take before the device counts as hanging.
    fn patience(&self) -> Duration {
        if self.info.software { SOFTWARE_PATIENCE } else { PATIENCE }
    }

    /// Why the device computes nothing any more, if that is so.
    pub fn lost(&self) -> Option<String> {
        locked(&self.trouble.lost).clone()
    }

    /// Takes the device from itself, as a driver that resets it does: nothing is computed on it from now on.
    pub fn destroy(&self) {
        self.device.destroy();
        self.trouble.lose("the device is lost: it was taken away".into());
    }

    /// What became of its kernels; `None` where none are kept on disk.
    pub fn pipelines(&self) -> Option<PipelineCounts> {
        self.pipelines.as_ref().map(PipelineCache::counts)
    }

    /// Writes compiled kernels to disk if some are new; behind a pass.
    pub(super) fn keep_pipelines(&self) {
        if let Some(pipelines) = &self.pipelines {
            pipelines.save();
        }
    }

    /// When passes begin.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Bytes of its memory that may be taken; `None` where neither the system nor the user says.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory.most_bytes
    }

    /// Bytes of its memory that are still to be had; `None` where neither the system nor the user says how many there are.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.memory.most_bytes?.saturating_sub(self.memory.taken_bytes.load(Relaxed)))
    }

    /// Whether memory was asked for that was not to be had, since this was asked last.
    pub(in crate::executor) fn was_short(&self) -> bool {
        self.trouble.short.swap(false, Relaxed)
    }

    /// Counts `bytes` of its memory as taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond what may be taken.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reserved> {
        let Memory { most_bytes, taken_bytes } = &self.memory;
        let (bytes, most) = (bytes as u64, most_bytes.unwrap_or(u64::MAX));
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
        match taken_bytes.fetch_update(Relaxed, Relaxed, fits) {
            Ok(_) => Ok(Reserved { taken_bytes: taken_bytes.clone(), bytes }),
            Err(taken) => {
                self.trouble.short.store(true, Relaxed);
                Err(Error::invalid(format!(
                    "{bytes} bytes more of the GPU's memory, of which {taken} of {most} are taken; {FULL}"
                )))
            }
        }
    }

    /// How the device rounds, seen on operands of all kinds, and whether it converts between floats and integers exactly.
    fn probe(&self) -> Result<(Arithmetic, bool)> {
        let mut random = Random(1);
        let mut operands: Vec<u32> = (0..3 * OPERANDS)
            .map(|i| match i % 24 {
                // Any finite bits; numbers near one; whole numbers.
                0..9 => random.next() as u32 & 0xbfff_ffff,
                9..18 => random.normal().to_bits(),
                _ => (random.below(4096) as f32 - 2048.0).to_bits(),
            })
            .collect();
        // Subnormal operands, and products and sums that are.
        for (i, tiny) in [1u32, 0x1234, 0x0040_0000, 0x007f_ffff, 0x0080_0001].into_iter().enumerate() {
            operands[3 * i..3 * i + 3].copy_from_slice(&[tiny, 1.0f32.to_bits(), 0x8000_0003]);
            operands[3 * i + 30..3 * i + 33].copy_from_slice(&[tiny | 0x0080_0000, 0.37f32.to_bits(), tiny]);
        }
        let same = |operation: &'static str, expected: fn(f32, f32, f32) -> f32| -> Result<bool> {
            let found = self.operate(operation, &operands)?;
            let pairs = operands.as_chunks::<3>().0.iter().zip(found);
            Ok(pairs.into_iter().all(|(bits, found)| {
                let [a, b, c] = bits.map(f32::from_bits);
                let expected = expected(a, b, c);
                expected.to_bits() == found || expected.is_nan() && f32::from_bits(found).is_nan()
            }))
        };
        let exact = same("f_add(a, c)", |a, _, c| a + c)? && same("f_mul(a, b)", |a, b, _| a * b)?;
        let fused = same("f_fma(a, b, c)", f32::fma)?;
        // As whole numbers, and back by themselves: a driver may leave out a conversion there and back, and with it the sign of 0.
        let rounds =
            same("bitcast<f32>(8388608 + i32(round(clamp(a * 100.0, -99999.0, 99999.0))))", |a, _, _| {
                let whole = (a * 100.0).clamp(-99_999.0, 99_999.0).round_ties_even() as i32;
                f32::from_bits((8_388_608 + whole) as u32)
            })?;
        let widens =
            same("f32(bitcast<i32>(operands[3u * i]) >> 7u)", |a, _, _| (a.to_bits() as i32 >> 7) as f32)?;
        let converts = rounds && widens;
        Ok((Arithmetic { fused, keeps_subnormals: exact }, converts))
    }

    /// `operation` over a, b, c of each three of `operands`, all of them bits.
    pub(super) fn operate(&self, operation: &'static str, operands: &[u32]) -> Result<Vec<u32>> {
        let count = operands.len() / 3;
        let kernel = self.kernel(Kernel::Probe(operation));
        let (pass, params) = (self.upload("pass", &[1, 1, 1, 0]), self.upload("params", &[count as u32]));
        let input = self.upload("operands", operands);
        let out = self.buffer("results", 4 * count);
        let bind = self.bind(&kernel, &[&pass, &params, &input, &out]);
        let mut encoder = self.encoder();
        dispatch(
            &mut encoder.begin_compute_pass(&Default::default()),
            &kernel,
            &bind,
            [count.div_ceil(64) as u32, 1],
        );
        self.finish(encoder, &[(&out, 0..4 * count)]).map(|all| words(&all))
    }

    /// Kernel `kernel`, compiled at its first use.
    pub(super) fn kernel(&self, kernel: Kernel) -> Arc<Compiled> {
        let mut kernels = locked(&self.kernels);
        kernels.entry(kernel).or_insert_with(|| Arc::new(self.compile(kernel))).clone()
    }

    fn compile(&self, kernel: Kernel) -> Compiled {
        let _call = self.call();
        let label = format!("{kernel:?}");
        let source = kernel.source(self.arithmetic);
        if let Some(pipelines) = &self.pipelines {
            pipelines.note(&source);
        }
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let entries: Vec<_> = (0..)
            .zip(kernel.bindings().bytes())
            .map(|(binding, usage)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: usage == b'r' },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let whole = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            ..Default::default()
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&whole),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: self.pipelines.as_ref().map(PipelineCache::inner),
        });
        Compiled { kernel, pipeline, layout }
    }

    /// The buffers of one dispatch of `kernel`, in the order of its bindings.
    pub(super) fn bind(&self, kernel: &Compiled, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
        let entries: Vec<_> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let layout = &kernel.layout;
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    /// `bytes` of memory on the device, zeros.
    pub(super) fn buffer(&self, label: &str, bytes: usize) -> wgpu::Buffer {
        let _call = self.call();
        use wgpu::BufferUsages as Usage;
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(4).max(16) as u64,
            usage: Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// `values` on the device.
    pub(super) fn upload(&self, label: &str, values: &[u32]) -> wgpu::Buffer {
        let buffer = self.buffer(label, 4 * values.len());
        self.write(&buffer, 0, values);
        buffer
    }

    /// `values` as their bits on the device.
    pub(super) fn upload_floats(&self, label: &str, values: &[f32]) -> wgpu::Buffer {
        self.upload(label, &values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    }

    /// Writes `values` from byte `at` on.
    pub(super) fn write(&self, buffer: &wgpu::Buffer, at: usize, values: &[u32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let _call = self.call();
        if !bytes.is_empty() {
            self.queue.write_buffer(buffer, at as u64, &bytes);
        }
    }

    pub(super) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&Default::default())
    }

    /// Runs what was recorded and gives back the byte ranges of `wanted`, one after the other.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device is lost, out of memory, or does not finish.
    pub(super) fn finish(
        &self,
        encoder: wgpu::CommandEncoder,
        wanted: &[(&wgpu::Buffer, std::ops::Range<usize>)],
    ) -> Result<Vec<u8>> {
        self.finish_within(encoder, wanted, self.patience())
    }

    /// As [`Gpu::finish`], with another deadline.
    ///
    /// # Errors
    /// Those of [`Gpu::finish`].
    pub(super) fn finish_within(
        &self,
        mut encoder: wgpu::CommandEncoder,
        wanted: &[(&wgpu::Buffer, std::ops::Range<usize>)],
        patience: Duration,
    ) -> Result<Vec<u8>> {
        self.check()?;
        let _call = Call::begin(patience + SLACK);
        let size: usize = wanted.iter().map(|(_, range)| range.len()).sum();
        let back = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("back"),
            size: size.max(16) as u64,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut at = 0;
        for (buffer, range) in wanted {
            let (start, len) = (range.start as u64, range.len() as u64);
            if len > 0 {
                encoder.copy_buffer_to_buffer(buffer, start, &back, at, len);
            }
            at += len;
        }
        let submitted = self.queue.submit([encoder.finish()]);
        let (done, mapped) = mpsc::channel();
        back.map_async(wgpu::MapMode::Read, .., move |result| drop(done.send(result)));
        let waited = self
            .device
            .poll(wgpu::PollType::Wait { submission_index: Some(submitted), timeout: Some(patience) });
        self.check()?;
        // Another thread that waits for the device may be the one that brings the result.
        let why = match waited.map(|_| mapped.recv_timeout(patience)) {
            Err(_) => Some(format!("it did not finish a pass within {} s", patience.as_secs())),
            Ok(Err(_)) => Some("a result never came".into()),
            Ok(Ok(Err(error))) => Some(error.to_string()),
            Ok(Ok(Ok(()))) => None,
        };
        if let Some(why) = why {
            self.trouble.lose(why);
            self.check()?;
        }
        let all = back.get_mapped_range(..)[..size].to_vec();
        back.unmap();
        Ok(all)
    }

    /// Refuses what follows an error of the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what the device said first.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(why) = self.lost() {
            return Err(Error::invalid(format!(
                "the GPU failed: {why}; `--device cpu` computes the same without it"
            )));
        }
        match self.trouble.full.swap(false, Relaxed) {
            true => Err(Error::invalid(format!("the GPU's memory is full; {FULL}"))),
            false => Ok(()),
        }
    }
}

/// Little-endian words of `bytes`.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Records one dispatch.
pub(super) fn dispatch(
    pass: &mut wgpu::ComputePass<'_>,
    kernel: &Compiled,
    bind: &wgpu::BindGroup,
    [x, y]: [u32; 2],
) {
    pass.set_pipeline(&kernel.pipeline);
    pass.set_bind_group(0, bind, &[]);
    pass.dispatch_workgroups(x, y, 1);
}
