//! States in the device's memory against those of the processor: what recurs, and latents.

use super::{family, gpu, processor};
use crate::executor::{
    Capacity, Class, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard, gpu::GpuShard,
    whole_range,
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
