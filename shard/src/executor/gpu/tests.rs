//! Every kernel has the bits of the processor's. Without a GPU or a software Vulkan device the tests say so and pass, unless
//! `SHOAL_GPU=required` is set.

use std::{
    fs,
    io::Cursor,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use half::f16;
use scheduler::{CacheType, SessionKind};

use super::{
    Access, Gpu, GpuShard,
    device::dispatch,
    ops::{self, MatrixJob},
    source::Kernel,
};
use crate::fma::Fma;
use crate::{
    executor::{
        self, Capacity, Class, Device, Ends, Executor, Input, Item, Options, Output, Pass, Workspace, argmax,
        cpu::Shard, whole_range,
    },
    gguf::{Gguf, Writer},
    golden,
    kernels::{Cpu, Isa, threads::Pool},
    models::Blueprint,
    quant::{self, QuantizedRow},
    round::Rounding,
    synthetic::Random,
};

mod states;

/// The device of the tests.
fn gpu() -> Option<&'static Arc<Gpu>> {
    static DEVICE: OnceLock<Option<Arc<Gpu>>> = OnceLock::new();
    let open = || match Gpu::open(Access::default()) {
        Ok(gpu) => {
            eprintln!("device of the tests: {:?}, {:?}, {:?}", gpu.info(), gpu.arithmetic(), gpu.class());
            Some(gpu)
        }
        Err(error) => {
            let required = std::env::var("SHOAL_GPU").is_ok_and(|value| value == "required");
            assert!(!required, "SHOAL_GPU=required: {error}");
            eprintln!("skipped: {error}; a software device is in the package mesa-vulkan-drivers");
            None
        }
    };
    DEVICE.get_or_init(open).as_ref()
}

/// Operands of every kind, three each: any bits, near one, whole numbers, and each next to a subnormal result.
fn operands(count: usize) -> Vec<u32> {
    let mut random = Random(7);
    (0..3 * count)
        .map(|i| match i / 3 % 5 {
            0 => random.next() as u32,
            1 => random.normal().to_bits(),
            2 => (random.below(4096) as f32 - 2048.0).to_bits(),
            // Exponents whose products are near or below the smallest normal number.
            3 => (random.next() as u32 & 0x807f_ffff) | (((50 + random.below(30)) as u32) << 23),
            _ => random.next() as u32 & 0x80ff_ffff,
        })
        .collect()
}

#[test]
fn arithmetic_in_integers_rounds_as_ieee_754_says() {
    let Some(gpu) = gpu() else { return };
    let operands = operands(60_000);
    let check = |operation: &'static str, expected: &dyn Fn([f32; 3]) -> f32| {
        let found = gpu.operate(operation, &operands).unwrap();
        for (bits, found) in operands.as_chunks::<3>().0.iter().zip(found) {
            let expected = expected(bits.map(f32::from_bits));
            let same = expected.to_bits() == found || expected.is_nan() && f32::from_bits(found).is_nan();
            assert!(same, "{operation} of {bits:x?}: {found:x}, not {:x}", expected.to_bits());
        }
    };
    let bits = "bitcast<f32>(fma_bits(operands[3u * i], operands[3u * i + 1u], operands[3u * i + 2u]))";
    check(bits, &|[a, b, c]| a.fma(b, c));
    check("bitcast<f32>(div_bits(operands[3u * i], operands[3u * i + 1u]))", &|[a, b, _]| a / b);
    check("bitcast<f32>(sqrt_bits(operands[3u * i]))", &|[a, ..]| a.sqrt());
    check("f_fma(a, b, c)", &|[a, b, c]| a.fma(b, c));
    check("f_mul(a, b)", &|[a, b, _]| a * b);
    check("f_add(a, b)", &|[a, b, _]| a + b);
    check("bitcast<f32>(half_bits(operands[3u * i] & 0xffffu))", &|[a, ..]| {
        f16::from_bits(a.to_bits() as u16).to_f32()
    });
    check("bitcast<f32>(half_bits(to_half_bits(operands[3u * i])))", &|[a, ..]| {
        let bounded = if a.is_nan() { a } else { a.clamp(-65_504.0, 65_504.0) };
        f16::from_f32(bounded).to_f32()
    });
}

/// Both software devices that exist are: what they lack is computed in integers.
#[test]
fn a_software_device_is_of_class_d1() {
    let Some(gpu) = gpu() else { return };
    assert!(gpu.class() == Class::D1 || !gpu.info().software, "{:?} {:?}", gpu.info(), gpu.arithmetic());
}

#[test]
fn activations_are_rounded_as_the_specification_says() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(3);
    let cols = 96;
    let mut x: Vec<f32> = (0..5 * cols).map(|i| random.normal() * [1.0, 1e-30, 1e9][i / 32 % 3]).collect();
    x[32..64].fill(0.0);
    x[64..96].fill(1e-40);
    x[cols + 5] = f32::NAN;
    x[cols + 40] = f32::INFINITY;
    let (mut q, mut d, mut sums) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0; x.len() / 16]);
    quant::quantize_row(&x, &mut q, &mut d, &mut sums);
    let found = ops::round(gpu, &x, cols).unwrap();
    let codes: Vec<i8> = found.q.iter().flat_map(|word| word.to_le_bytes()).map(|byte| byte as i8).collect();
    assert_eq!(codes, q);
    let bits = |d: &[f32]| d.iter().map(|d| if d.is_nan() { 1 } else { d.to_bits() }).collect::<Vec<_>>();
    assert_eq!(bits(&found.d), bits(&d));
    assert_eq!(found.sums, sums.iter().map(|&sum| i32::from(sum)).collect::<Vec<_>>());
}

#[test]
fn products_are_those_of_the_scalar_specification() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(4);
    let (rows, cols) = (70, 512);
    let mut formats = 0;
    for &format in quant::ALL {
        let weights: Vec<f32> = (0..rows * cols).map(|_| random.normal()).collect();
        let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
        if format.quantize(&weights, None, &mut bytes).is_err() {
            continue;
        }
        let job = MatrixJob { format, rows, cols, bytes: &bytes };
        for n in [1, 6] {
            let x: Vec<f32> = (0..n * cols).map(|_| random.normal()).collect();
            let Ok(found) = ops::matmul(gpu, &job, &x) else { continue };
            formats += 1;
            for (row, x) in x.chunks_exact(cols).enumerate() {
                let (mut q, mut d, mut sums) = (vec![0; cols], vec![0.0; cols / 32], vec![0; cols / 16]);
                quant::quantize_row(x, &mut q, &mut d, &mut sums);
                let x = QuantizedRow { x, q: &q, d: &d, sums: &sums };
                for (output, weights) in bytes.chunks_exact(bytes.len() / rows).enumerate() {
                    let (found, expected) = (found[row * rows + output], (format.dot)(weights, &x));
                    assert_eq!(found.to_bits(), expected.to_bits(), "{} {row} {output}", format.name);
                }
            }
        }
    }
    assert_eq!(formats, 2 * 18, "formats that were compared");
}

#[test]
fn the_golden_hashes_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    let checks = golden::check_device(&Device::Gpu(gpu.clone(), None)).unwrap();
    assert!(checks.len() > 25, "{checks:?}");
    if gpu.class() == Class::D1 {
        let wrong: Vec<_> = checks.iter().filter(|check| !check.passed()).collect();
        assert!(wrong.is_empty(), "{:?}: {wrong:?}", gpu.info());
    }
}

/// Greedy tokens of a model on the processor and on the device, the digest of the state after them, and what a token cost.
fn follow(gpu: &Arc<Gpu>, gguf: &Arc<Gguf>, prompt: &[u32], steps: usize) {
    compare(&Device::Gpu(gpu.clone(), None), gguf, prompt, steps);
}

/// As [`follow`], on any device.
fn compare(device: &Device, gguf: &Arc<Gguf>, prompt: &[u32], steps: usize) {
    let cpu = Device::Cpu(processor());
    let range = whole_range(gguf).unwrap();
    let options = Options { context: Some(prompt.len() + steps + 8) };
    let load = |device: &Device| executor::load(device, gguf, range, Ends::BOTH, options).unwrap();
    let run = |executor: Box<dyn Executor>| {
        let mut ws = Workspace::new(&*executor, Capacity::one_session(7)).unwrap();
        let mut state = executor.new_state();
        executor.prefill(&mut ws, &mut state, prompt).unwrap();
        let mut bits = vec![];
        for _ in 0..steps {
            bits.push(blake3::hash(&ws.logits(0).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()));
            let token = argmax(ws.logits(0));
            executor.step(&mut ws, &mut state, token).unwrap();
        }
        (bits, state.digest().unwrap())
    };
    assert_eq!(run(load(device)), run(load(&cpu)), "{}", Blueprint::from_gguf(gguf).unwrap().architecture);
}

fn processor() -> Arc<Cpu> {
    Arc::new(Cpu::new(Isa::detect(), Pool::new(2, false)))
}

fn minnow() -> Arc<Gguf> {
    Arc::new(Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/minnow/minnow.gguf")).unwrap())
}

#[test]
fn minnow_and_a_family_of_every_kind_say_what_they_say_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    follow(gpu, &minnow(), &[1, 17, 300, 42, 5, 99, 260, 7, 8, 9, 10], 8);
    for name in ["qwen35moe", "kimi_linear", "falcon_h1", "lfm2", "gpt_oss", "gemma4_moe"] {
        follow(gpu, &family(name), &(5..25).collect::<Vec<_>>(), 3);
    }
}

/// A copy of a model whose matrices have factors, of experts each its own.
fn with_factors(gguf: &Gguf) -> Arc<Gguf> {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        writer.add_value(key, value);
    }
    let tensors: Vec<_> = gguf.tensors().iter().map(|info| gguf.require(&info.name).unwrap()).collect();
    let factored = |name: &str| {
        let part = name.strip_suffix(".weight")?.rsplit('.').next()?;
        let is = |suffix: &str| part.ends_with(suffix);
        let known = ["attn_q", "attn_v", "attn_qkv", "attn_output", "_exps", "_shexp", "ffn_up", "ffn_down"];
        (known.into_iter().any(is) && !is("inp_shexp")).then(|| name.replace(".weight", ".scale"))
    };
    let mut bytes = Vec::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let info = tensor.info;
        writer.add_tensor_info(&info.name, &info.dims, tensor.format);
        bytes.push(tensor.bytes.to_vec());
        if let Some(name) = factored(&info.name).filter(|name| gguf.info(name).is_none()) {
            let count = info.dims.get(2).copied().unwrap_or(1);
            writer.add_tensor_info(&name, &[count], &quant::F32);
            let factors = (0..count).map(|expert| 0.7 + 0.03 * (at as f32) + 0.11 * (expert as f32));
            bytes.push(factors.flat_map(|factor| factor.to_le_bytes()).collect());
        }
    }
    assert!(bytes.len() > tensors.len() + 4);
    let mut out = writer.start(Cursor::new(Vec::new())).unwrap();
    bytes.iter().for_each(|bytes| out.tensor(bytes).unwrap());
    Arc::new(Gguf::from_bytes(out.finish().unwrap().into_inner()).unwrap())
}

#[test]
fn factors_of_matrices_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    for name in ["phi3", "qwen2moe", "qwen35moe", "gpt_oss", "gemma4_moe"] {
        follow(gpu, &with_factors(&family(name)), &(5..25).collect::<Vec<_>>(), 3);
    }
}

/// Slow on SwiftShader, which compiles each kernel's emulated arithmetic for seconds.
#[test]
fn each_family_is_computed_or_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/families");
    let (mut computed, mut refused) = (Vec::new(), Vec::new());
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "gguf")) {
        let name = path.file_stem().unwrap().to_string_lossy();
        let gguf = family(&name);
        match GpuShard::load(&gguf, gpu.clone(), whole_range(&gguf).unwrap(), Ends::BOTH, Options::default())
        {
            Ok(_) => {
                follow(gpu, &gguf, &(5..25).collect::<Vec<_>>(), 3);
                computed.push(name);
            }
            Err(error) => {
                let why = error.to_string();
                assert!(why.contains("on this device"), "{name}: {why}");
                refused.push(format!("{name}: {why}"));
            }
        }
    }
    assert_eq!(refused.len(), 5, "computed: {computed:?}\nrefused: {refused:#?}");
    assert!(computed.len() >= 55, "{computed:?}");
}

/// One submit a token; dispatches by kind of layer, the first as `operation_times` tells it.
#[test]
fn a_token_is_one_submit_and_few_dispatches_a_layer() {
    let Some(gpu) = gpu() else { return };
    let cases = [
        (minnow(), 10, 10),
        (family("mixtral"), 12, 12),
        (family("qwen35"), 10, 10),
        (family("qwen35moe"), 12, 12),
        (family("granitehybrid"), 10, 10),
        // Experts behind the first layer; of the one that all rows visit, one more among the others.
        (family("deepseek_v3"), 16, 18),
    ];
    for (gguf, first, most) in cases {
        let (range, options) = (whole_range(&gguf).unwrap(), Options { context: Some(64) });
        let shard = GpuShard::load(&gguf, gpu.clone(), range, Ends::BOTH, options).unwrap();
        let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
        let mut state = shard.new_state();
        shard.prefill(&mut ws, &mut state, &[1, 2, 3]).unwrap();
        let before = shard.counts().unwrap();
        shard.step(&mut ws, &mut state, 4).unwrap();
        let (after, layers) = (shard.counts().unwrap(), u64::from(range.len()));
        assert_eq!(after.submits - before.submits, 1);
        let (dispatches, times) = (after.dispatches - before.dispatches, shard.operation_times().unwrap());
        let family = &shard.blueprint().architecture;
        assert_eq!(times.len() - 2, first, "{family}: {times:?}");
        assert_eq!(dispatches - 2, first as u64 + most * (layers - 1), "{family}: {times:?}");
        let read: usize = times.iter().map(|time| time.bytes).sum();
        assert!(read > 0 && read <= shard.resident_bytes(), "{family}: {read} bytes, {times:?}");
    }
}

/// The largest logits are those that a sort of all of them gives, and no others come back.
#[test]
fn the_largest_logits_are_found_on_the_device() {
    let Some(gpu) = gpu() else { return };
    let (gguf, options) = (minnow(), Options { context: Some(64) });
    let shard = GpuShard::load(&gguf, gpu.clone(), whole_range(&gguf).unwrap(), Ends::BOTH, options).unwrap();
    let mut ws = Workspace::new(&shard, Capacity { rows: 8, items: 1, logit_rows: 8 }).unwrap();
    let mut state = shard.new_state();
    let tokens = [1, 2, 3];
    let mut pass = |ws: &mut Workspace, top: usize| {
        state.rewind(0);
        let item = Item { state: &mut state, input: Input::Tokens(&tokens), output: Output::All };
        let before = shard.counts().unwrap().bytes_back;
        let pass = Pass { layers: shard.range(), rounding: &Rounding::NONE, states: false, top };
        shard.pass(ws, pass, &mut [item]).unwrap();
        shard.counts().unwrap().bytes_back - before
    };
    pass(&mut ws, 0);
    let vocab = shard.blueprint().vocab;
    let rows: Vec<Vec<(u32, f32)>> = ws
        .logits(0)
        .chunks_exact(vocab)
        .map(|logits| {
            let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all
        })
        .collect();
    for (top, back) in [(1, 4 * 3), (40, 8 * 40 * 3), (64, 8 * 64 * 3)] {
        assert_eq!(pass(&mut ws, top), back, "bytes that came back");
        assert!(ws.logits(0).is_empty());
        for (found, sorted) in ws.top(0).chunks_exact(top).zip(&rows) {
            let expected = &sorted[..top];
            match top {
                1 => assert_eq!(found[0].0, expected[0].0),
                _ => assert_eq!(found, expected),
            }
        }
        assert_eq!(ws.top(0).len(), 3 * top);
        let mut spread = Vec::new();
        assert!(ws.spread_top(0, (top, vocab), &mut spread));
        for (row, sorted) in spread.chunks_exact(vocab).zip(&rows) {
            assert_eq!(argmax(row), sorted[0].0);
            assert_eq!(row.iter().filter(|logit| **logit > f32::MIN).count(), top);
        }
    }
    pass(&mut ws, 65);
    assert_eq!((ws.logits(0).len(), ws.top(0).len()), (3 * vocab, 0), "more than the device finds");
    assert!(!ws.spread_top(0, (0, vocab), &mut Vec::new()));
}

/// States move between processor and device, sessions share pages, and a batch gives each what it would get alone.
#[test]
fn sessions_move_share_and_stand_side_by_side() {
    let Some(gpu) = gpu() else { return };
    let (gguf, options) = (minnow(), Options { context: Some(600) });
    let range = whole_range(&gguf).unwrap();
    let cpu = Shard::load(&gguf, processor(), range, Ends::BOTH, options).unwrap();
    let shard = GpuShard::load(&gguf, gpu.clone(), range, Ends::BOTH, options).unwrap();
    let capacity = Capacity { rows: 300, items: 2, logit_rows: 8 };
    let (mut ours, mut theirs) =
        (Workspace::new(&shard, capacity).unwrap(), Workspace::new(&cpu, capacity).unwrap());
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();

    let prompt: Vec<u32> = (0..270).map(|i| 3 + i % 200).collect();
    let (mut there, mut here) = (cpu.new_state(), shard.new_state());
    cpu.prefill(&mut theirs, &mut there, &prompt).unwrap();
    if shard.class() == Class::Approx {
        return;
    }
    here.restore(&there.snapshot().unwrap()).unwrap();
    assert_eq!(here.digest().unwrap(), there.digest().unwrap());
    let mut other = here.share(260).unwrap();
    let (mut alone, before) = (there.share(260).unwrap(), here.digest().unwrap());

    let mut items = [
        Item { state: &mut here, input: Input::Tokens(&[7, 8, 9]), output: Output::All },
        Item { state: &mut other, input: Input::Tokens(&[100]), output: Output::Last },
    ];
    shard.forward(&mut ours, &mut items).unwrap();
    cpu.forward(
        &mut theirs,
        &mut [Item { state: &mut there, input: Input::Tokens(&[7, 8, 9]), output: Output::All }],
    )
    .unwrap();
    assert_eq!(bits(ours.logits(0)), bits(theirs.logits(0)));
    cpu.step(&mut theirs, &mut alone, 100).unwrap();
    assert_eq!(bits(ours.logits(1)), bits(theirs.logits(0)));
    assert_eq!(other.digest().unwrap(), alone.digest().unwrap(), "the shared page was copied first");

    assert_eq!(here.rewind(270), 270);
    assert_eq!(here.digest().unwrap(), before);
    there.restore(&here.snapshot().unwrap()).unwrap();
    assert!(here.restore(&[0; 40]).is_err());
}

fn family(name: &str) -> Arc<Gguf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/families");
    Arc::new(Gguf::open(folder.join(format!("{name}.gguf"))).unwrap())
}

#[test]
fn what_the_device_lacks_is_refused_with_what_to_do() {
    let count = super::list().len();
    let why = Gpu::open(Access { number: count + 7, ..Access::default() }).err().unwrap().to_string();
    assert!(why.contains(&format!("which has {count}")) && why.contains("--device cpu"), "{why}");
}

/// A device of its own, which a test may lose.
fn another(memory_bytes: Option<u64>) -> Option<Arc<Gpu>> {
    gpu().map(|_| Gpu::open(Access { memory_bytes, ..Access::default() }).unwrap())
}

#[test]
fn a_device_that_is_lost_fails_its_passes_and_says_so() {
    let Some(gpu) = another(None) else { return };
    let (gguf, options) = (minnow(), Options { context: Some(64) });
    let device = Device::Gpu(gpu.clone(), None);
    let shard = executor::load(&device, &gguf, whole_range(&gguf).unwrap(), Ends::BOTH, options).unwrap();
    let mut ws = Workspace::new(&*shard, Capacity::one_session(8)).unwrap();
    let mut state = shard.new_state();
    shard.prefill(&mut ws, &mut state, &[1, 2, 3]).unwrap();
    assert_eq!((shard.lost(), device.lost()), (None, None));
    device.destroy();
    let told = shard.step(&mut ws, &mut state, 4).unwrap_err().to_string();
    assert!(told.contains("is lost") && told.contains("--device cpu"), "{told}");
    assert_eq!(state.len(), 3, "a pass that failed has advanced the session");
    assert!(ws.logits(0).is_empty(), "and left results");
    assert!(shard.lost().is_some_and(|lost| lost.contains("is lost")), "{:?}", shard.lost());
    shard.step(&mut ws, &mut state, 4).unwrap_err();
}

/// Decodes two tokens of minnow on a device that is opened with its kernels in `folder`.
fn decode_with(folder: &Path) -> executor::DeviceCounts {
    let gpu = Gpu::open(Access { pipelines: Some(folder), ..Access::default() }).unwrap();
    let (gguf, options) = (minnow(), Options { context: Some(64) });
    let range = whole_range(&gguf).unwrap();
    let shard = GpuShard::load(&gguf, gpu, range, Ends::BOTH, options).unwrap();
    let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
    let mut state = shard.new_state();
    shard.prefill(&mut ws, &mut state, &[1, 2, 3]).unwrap();
    shard.step(&mut ws, &mut state, 4).unwrap();
    shard.counts().unwrap()
}

#[test]
fn kernels_that_an_earlier_process_compiled_are_found_on_disk() {
    if gpu().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pipelines = folder.path().join("pipelines");
    let first = decode_with(&pipelines);
    if first.pipelines == 0 {
        eprintln!("skipped: this device keeps no compiled kernels");
        return;
    }
    assert_eq!(first.pipeline_hits, 0);
    let files: Vec<_> = fs::read_dir(&pipelines).unwrap().flatten().map(|entry| entry.path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let second = decode_with(&pipelines);
    assert_eq!((second.pipelines, second.pipeline_hits), (first.pipelines, first.pipelines), "all of them");
    // A file with a wrong bit is not handed to the driver.
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
    let third = decode_with(&pipelines);
    assert_eq!((third.pipelines, third.pipeline_hits), (first.pipelines, 0));
    assert_eq!(decode_with(&pipelines).pipeline_hits, first.pipelines, "it was written again");
}

#[test]
fn a_pass_that_does_not_finish_in_time_loses_the_device() {
    let Some(gpu) = another(None) else { return };
    // More work than any device does between two lines of this test.
    let (kernel, count) = (gpu.kernel(Kernel::Probe("f_add(a, c)")), 1 << 20);
    let (pass, params) = (gpu.upload("pass", &[1, 1, 1, 0]), gpu.upload("params", &[count as u32]));
    let (operands, out) = (gpu.buffer("operands", 12 * count), gpu.buffer("results", 4 * count));
    let bind = gpu.bind(&kernel, &[&pass, &params, &operands, &out]);
    let mut encoder = gpu.encoder();
    for _ in 0..100 {
        dispatch(
            &mut encoder.begin_compute_pass(&Default::default()),
            &kernel,
            &bind,
            [count as u32 / 64, 1],
        );
    }
    let told = gpu.finish_within(encoder, &[(&out, 0..4)], Duration::ZERO).unwrap_err().to_string();
    assert!(told.contains("did not finish a pass within"), "{told}");
    assert!(gpu.lost().is_some());
}

#[test]
fn layers_beyond_the_memory_are_refused_or_computed_by_the_processor() {
    let Some(gpu) = another(Some(1 << 20)) else { return };
    let (gguf, options) = (minnow(), Options { context: Some(300) });
    let range = whole_range(&gguf).unwrap();
    let load = |device: &Device| executor::load(device, &gguf, range, Ends::BOTH, options);
    let why = load(&Device::Gpu(gpu.clone(), None)).err().unwrap().to_string();
    assert!(why.contains("--gpu-memory") && why.contains("gpu:0,cpu"), "{why}");
    assert_eq!(gpu.free_bytes(), Some(1 << 20), "what was taken is given back");
    let why = load(&Device::Gpu(gpu, Some(processor()))).err().unwrap().to_string();
    assert!(why.contains("no memory for one layer"), "{why}");
    // From little memory to much: no layer, some of them, all of them on the GPU.
    let mut met = Vec::new();
    for mebibytes in [4, 8, 12, 16, 20, 24, 32, 256] {
        let gpu = another(Some(mebibytes << 20)).unwrap();
        let device = Device::Gpu(gpu.clone(), Some(processor()));
        let Ok(executor) = load(&device) else { continue };
        let name = executor.device();
        let layers: u32 = name.matches(" on ").count() as u32;
        if met.last() != Some(&layers) {
            met.push(layers);
            drop(executor);
            if gpu.class() == Class::D1 {
                compare(&device, &gguf, &[1, 17, 300, 42, 5, 99, 260, 7, 8, 9, 10], 4);
            }
        }
    }
    assert_eq!(met, [2, 0], "two devices, then one");
}

/// Sessions of kinds that the GPU does not compute are the processor's where there is one, in one pass with the others.
#[test]
fn what_a_gpu_does_not_compute_the_processor_beside_it_does() {
    let Some(gpu) = gpu().filter(|gpu| gpu.class() == Class::D1) else { return };
    let (gguf, options) = (minnow(), Options { context: Some(64) });
    let range = whole_range(&gguf).unwrap();
    let load = |device: &Device| executor::load(device, &gguf, range, Ends::BOTH, options).unwrap();
    let small = SessionKind { cache: CacheType::Q8, ..SessionKind::DEFAULT };
    let alone = load(&Device::Gpu(gpu.clone(), None));
    let why = alone.new_state_with(range, small).err().unwrap().to_string();
    assert!(why.contains("a cache of q8 on gpu (") && why.contains("choose f16"), "{why}");

    let (both, cpu) = (load(&Device::Gpu(gpu.clone(), Some(processor()))), load(&Device::Cpu(processor())));
    let run = |executor: &dyn Executor, tokens: [u32; 3]| {
        let mut ws = Workspace::new(executor, Capacity { rows: 8, items: 2, logit_rows: 8 }).unwrap();
        let mut states =
            [SessionKind::DEFAULT, small].map(|kind| executor.new_state_with(range, kind).unwrap());
        let mut items: Vec<_> = states
            .iter_mut()
            .map(|state| Item { state, input: Input::Tokens(&tokens), output: Output::Last })
            .collect();
        let outcome = executor.forward(&mut ws, &mut items).is_ok();
        let bits = [0, 1].map(|item| ws.logits(item).iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        (outcome, bits, states.map(|state| (state.len(), state.digest().unwrap())))
    };
    assert_eq!(run(&*both, [1, 17, 300]), run(&*cpu, [1, 17, 300]));
    let refused = run(&*both, [1, 17, u32::MAX]);
    assert!(!refused.0 && refused.1.concat().is_empty());
    assert_eq!(refused.2.map(|(len, _)| len), [0, 0], "a pass that failed has advanced a session");
    let whole = gpu.free_bytes();
    assert_eq!(both.state_room(), whole.map(|bytes| bytes / 2));
}

#[test]
fn a_device_is_demoted_and_stays_so() {
    let Some(gpu) = another(None) else { return };
    let gguf = minnow();
    let options = Options { context: Some(16) };
    let device = Device::Gpu(gpu.clone(), None);
    let tag = |device: &Device| {
        let shard = executor::load(device, &gguf, whole_range(&gguf).unwrap(), Ends::BOTH, options).unwrap();
        (shard.class(), shard.state_tag(shard.range()))
    };
    let before = tag(&device);
    device.demote();
    let after = tag(&device);
    assert_eq!(after.0, Class::Approx);
    assert!(before.0 == Class::Approx || before.1 != after.1, "states of two classes have one name");
}

/// `SHOAL_MODEL=model.gguf cargo test -p shoal-shard --features gpu --lib -- --ignored gpu`.
#[test]
#[ignore = "needs a model in SHOAL_MODEL"]
fn a_real_model_says_what_it_says_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let gguf = Arc::new(Gguf::open(std::env::var("SHOAL_MODEL").unwrap()).unwrap());
    follow(gpu, &gguf, &[1, 504, 1194, 282, 4649, 314, 253, 1789], 32);
}
