//! States in the device's memory against those of the processor: what recurs, and latents.

use super::{family, gpu, processor};
use crate::{
    executor::{
        Capacity, Class, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard, gpu::GpuShard,
        whole_range,
    },
    gguf::Gguf,
    kernels::PAGE,
    quant,
    state::behind::REACH,
    synthetic::{self, Family, Shape},
};

/// What a layer that recurs remembers moves, is shared and goes back as on the processor, whatever the passes; so do latents.
#[test]
fn states_that_are_no_history_are_those_of_the_processor() {
    let Some(gpu) = gpu().filter(|gpu| gpu.class() == Class::D1) else { return };
    let prompt: Vec<u32> = (0..520).map(|i| 3 + i * 7 % 90).collect();
    for name in ["qwen35", "kimi_linear", "granitehybrid", "falcon_h1", "lfm2", "deepseek_v3"] {
        let (gguf, options) = (family(name), Options { context: Some(700) });
        let range = whole_range(&gguf).unwrap();
        let cpu = Shard::load(&gguf, processor(), range, Ends::BOTH, options).unwrap();
        let shard = GpuShard::load(&gguf, gpu.clone(), range, Ends::BOTH, options).unwrap();
        let capacity = Capacity { rows: 300, items: 2, logit_rows: 8 };
        let (mut ours, mut theirs) =
            (Workspace::new(&shard, capacity).unwrap(), Workspace::new(&cpu, capacity).unwrap());
        let (mut here, mut there) = (shard.new_state(), cpu.new_state());
        assert_eq!(here.digest().unwrap(), there.digest().unwrap(), "{name}: nothing yet");
        for (rows, whole) in [(250, 250), (7, 257), (263, 520)] {
            shard.prefill(&mut ours, &mut here, &prompt[whole - rows..whole]).unwrap();
            cpu.prefill(&mut theirs, &mut there, &prompt[whole - rows..whole]).unwrap();
            assert_eq!(here.digest().unwrap(), there.digest().unwrap(), "{name} after {whole}");
            assert_eq!(ours.logits(0), theirs.logits(0), "{name} after {whole}");
        }
        assert_eq!(here.bytes() > 0, there.bytes() > 0);
        // Another session goes on from before a checkpoint, beside the first one and in one pass with it.
        let (mut other, mut alone) = (here.share(515).unwrap(), there.share(515).unwrap());
        assert_eq!((other.len(), other.digest().unwrap()), (alone.len(), alone.digest().unwrap()), "{name}");
        let rest = &prompt[other.len()..];
        let mut items = [
            Item { state: &mut here, input: Input::Tokens(&[7, 8, 9]), output: Output::All },
            Item { state: &mut other, input: Input::Tokens(rest), output: Output::Last },
        ];
        shard.forward(&mut ours, &mut items).unwrap();
        let mut items = [
            Item { state: &mut there, input: Input::Tokens(&[7, 8, 9]), output: Output::All },
            Item { state: &mut alone, input: Input::Tokens(rest), output: Output::Last },
        ];
        cpu.forward(&mut theirs, &mut items).unwrap();
        for (item, (ours_is, theirs_is)) in [(&here, &there), (&other, &alone)].into_iter().enumerate() {
            assert_eq!(ours.logits(item), theirs.logits(item), "{name} side by side");
            assert_eq!(ours_is.digest().unwrap(), theirs_is.digest().unwrap(), "{name} side by side");
        }
        // Back, and the same again; then a state that the processor made.
        for to in [518, 300, 255] {
            assert_eq!(here.rewind(to), there.rewind(to), "{name} back to {to}");
            assert_eq!(here.digest().unwrap(), there.digest().unwrap(), "{name} back to {to}");
        }
        let rest = &prompt[here.len()..];
        shard.prefill(&mut ours, &mut here, rest).unwrap();
        cpu.prefill(&mut theirs, &mut there, rest).unwrap();
        assert_eq!(ours.logits(0), theirs.logits(0), "{name} once more");
        for state in [&there, &alone] {
            let mut moved = shard.new_state();
            moved.restore(&state.snapshot().unwrap()).unwrap();
            assert_eq!(moved.digest().unwrap(), state.digest().unwrap(), "{name} moved");
            assert_eq!(moved.rewind(519), state.share(519).unwrap().len(), "{name} moved");
        }
        assert!(here.restore(&[0; 40]).is_err());
    }
}

/// Pages behind a window are free on the device too, and what is left moves between it and the processor.
#[test]
fn layers_with_a_window_free_pages_as_on_the_processor() {
    let Some(gpu) = gpu().filter(|gpu| gpu.class() == Class::D1) else { return };
    const LONG: usize = 2_000;
    let shape = Shape {
        family: Family::Gemma3 { window: 40, period: 3 },
        layers: 3,
        hidden: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        feed_forward: 64,
        vocab: 288,
        context: LONG,
        ..synthetic::shape("tiny").unwrap().clone()
    };
    let gguf = Gguf::from_bytes(shape.to_bytes(quant::by_name("q8_0").unwrap(), 31).unwrap()).unwrap();
    let (gguf, options) = (std::sync::Arc::new(gguf), Options { context: Some(LONG) });
    let range = whole_range(&gguf).unwrap();
    let cpu = Shard::load(&gguf, processor(), range, Ends::BOTH, options).unwrap();
    let shard = GpuShard::load(&gguf, gpu.clone(), range, Ends::BOTH, options).unwrap();
    let capacity = Capacity { rows: 300, items: 2, logit_rows: 2 };
    let (mut ours, mut theirs) =
        (Workspace::new(&shard, capacity).unwrap(), Workspace::new(&cpu, capacity).unwrap());
    let prompt: Vec<u32> = (0..LONG as u32).map(|i| 3 + i * 7 % 280).collect();
    let (mut here, mut there) = (shard.new_state(), cpu.new_state());
    here.reserve(LONG).unwrap();
    for piece in prompt[..1_900].chunks(300) {
        shard.prefill(&mut ours, &mut here, piece).unwrap();
        cpu.prefill(&mut theirs, &mut there, piece).unwrap();
        assert_eq!(ours.logits(0), theirs.logits(0), "after {}", here.len());
        assert_eq!(here.digest().unwrap(), there.digest().unwrap(), "after {}", here.len());
    }
    // Two of three layers keep pages from 768 on.
    let page = PAGE * 2 * 32 * size_of::<u16>();
    assert_eq!(here.bytes(), page * (8 + 2 * 5));
    // Another session takes what was given back while the first goes on.
    let (mut other, mut alone) = (shard.new_state(), cpu.new_state());
    shard.prefill(&mut ours, &mut other, &prompt[500..900]).unwrap();
    cpu.prefill(&mut theirs, &mut alone, &prompt[500..900]).unwrap();
    assert_eq!(other.digest().unwrap(), alone.digest().unwrap());
    // Both ways, and on.
    let mut moved = shard.new_state();
    moved.restore(&there.snapshot().unwrap()).unwrap();
    let mut back = cpu.new_state();
    back.restore(&here.snapshot().unwrap()).unwrap();
    for state in [&mut here, &mut moved] {
        shard.prefill(&mut ours, state, &prompt[1_900..]).unwrap();
    }
    cpu.prefill(&mut theirs, &mut there, &prompt[1_900..]).unwrap();
    cpu.prefill(&mut theirs, &mut back, &prompt[1_900..]).unwrap();
    assert_eq!(ours.logits(0), theirs.logits(0));
    for state in [&here, &moved, &back] {
        assert_eq!(state.digest().unwrap(), there.digest().unwrap());
    }
    // As far as reach, and behind it from the beginning.
    for to in [LONG - REACH, 300] {
        assert_eq!(here.share(to).unwrap().len(), there.share(to).unwrap().len(), "shared to {to}");
        assert_eq!(here.rewind(to), there.rewind(to), "back to {to}");
        assert_eq!(here.digest().unwrap(), there.digest().unwrap(), "back to {to}");
    }
    assert_eq!(here.len(), 0);
    shard.prefill(&mut ours, &mut here, &prompt[..300]).unwrap();
    cpu.prefill(&mut theirs, &mut there, &prompt[..300]).unwrap();
    assert_eq!(ours.logits(0), theirs.logits(0), "from the beginning");
}
