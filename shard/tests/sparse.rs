//! A file of which only the header and some layers are there runs those layers with the bits of the whole file, so
//! nothing else is touched: what is missing is filled with bytes that no weight could survive.

mod common;

use std::{fs, ops::Range, os::unix::fs::FileExt, sync::Arc};

use common::{bits, fast, fixtures, folder, goldens, open};
use scheduler::LayerRange;
use shard::{
    Error,
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::{Gguf, byte_ranges, layer_count},
    models::Blueprint,
    state::SessionState,
};

/// One stage of a pipeline, with what a session needs there.
struct Stage {
    shard: Shard,
    ws: Workspace,
    kv: SessionState,
}

fn stage(gguf: &Arc<Gguf>, layers: LayerRange, ends: Ends, context: usize) -> Stage {
    let shard = Shard::load(gguf, fast(), layers, ends, Options { context: Some(context) }).unwrap();
    let ws = Workspace::new(&shard, Capacity { rows: 32, items: 1, logit_rows: 32 }).unwrap();
    let kv = shard.new_state();
    Stage { shard, ws, kv }
}

/// The tags and the logits of stages one after another: each file with the layers that it runs, which cover the model.
fn run(parts: &[(Arc<Gguf>, LayerRange)], context: usize, ids: &[u32]) -> (Vec<u64>, Vec<u32>) {
    let last = parts.len() - 1;
    let ends = |index| Ends { embedding: index == 0, head: index == last };
    let stages = parts.iter().enumerate();
    let mut stages: Vec<Stage> =
        stages.map(|(index, (file, layers))| stage(file, *layers, ends(index), context)).collect();
    let mut rows = Vec::new();
    for (index, stage) in stages.iter_mut().enumerate() {
        let input = if index == 0 { Input::Tokens(ids) } else { Input::Activations(&rows) };
        let item = Item { state: &mut stage.kv, input, output: Output::All };
        stage.shard.forward(&mut stage.ws, &mut [item]).unwrap();
        rows = if index < last { stage.ws.activations(0).to_vec() } else { stage.ws.logits(0).to_vec() };
    }
    (stages.iter().map(|stage| stage.shard.state_tag(stage.shard.range())).collect(), bits(&rows))
}

/// The bytes of `file` in `ranges`, all others hostile.
fn only(file: &[u8], ranges: &[Range<u64>]) -> Vec<u8> {
    let mut left = vec![0xff; file.len()];
    for range in ranges {
        let range = range.start as usize..range.end as usize;
        left[range.clone()].copy_from_slice(&file[range]);
    }
    left
}

#[test]
fn every_family_runs_from_just_the_bytes_of_its_layers() {
    for name in fixtures() {
        let whole = open(&name);
        let file = fs::read(folder().join(format!("{name}.gguf"))).unwrap();
        let count = layer_count(&whole).unwrap();
        let cut = count / 2;
        // A model that is not cut runs from the bytes of all its layers.
        let layers = match cut > 0 && Blueprint::from_gguf(&whole).unwrap().may_cut(cut as usize) {
            true => vec![LayerRange::new(0, cut).unwrap(), LayerRange::new(cut, count).unwrap()],
            false => vec![LayerRange::new(0, count).unwrap()],
        };
        let last = layers.len() - 1;
        let parts = layers.iter().enumerate().map(|(index, layers)| {
            let ends = Ends { embedding: index == 0, head: index == last };
            let ranges = byte_ranges(&whole, *layers, ends).unwrap();
            assert!(ranges[0].start == 0 && ranges[0].end >= whole.header_len(), "{name}: the header");
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{name}: {ranges:?}");
            let bytes = ranges.iter().map(|r| r.end - r.start).sum::<u64>();
            assert!(last == 0 || bytes < whole.file_len(), "{name}");
            (common::bytes(only(&file, &ranges)), *layers)
        });
        let parts: Vec<_> = parts.collect();
        let golden = &goldens(&name)[0];
        let ids = &golden.ids[..golden.ids.len().min(12)];
        let uncut: Vec<_> = layers.iter().map(|layers| (whole.clone(), *layers)).collect();
        assert!(
            run(&parts, golden.context, ids) == run(&uncut, golden.context, ids),
            "{name} gives other bits from its parts"
        );
    }
}

#[test]
fn a_file_with_holes_opens_and_runs_its_layers() {
    let whole = open("llama3");
    let file = fs::read(folder().join("llama3.gguf")).unwrap();
    let (layers, count) = (LayerRange::new(1, 2).unwrap(), layer_count(&whole).unwrap());
    let ranges = byte_ranges(&whole, layers, Ends::NONE).unwrap();
    let sparse = tempfile::NamedTempFile::new().unwrap();
    sparse.as_file().set_len(file.len() as u64).unwrap();
    for range in &ranges {
        let part = &file[range.start as usize..range.end as usize];
        sparse.as_file().write_all_at(part, range.start).unwrap();
    }
    let holes = Arc::new(Gguf::open(sparse.path()).unwrap());
    assert_eq!((holes.file_len(), layer_count(&holes).unwrap()), (file.len() as u64, count));
    let hidden = Blueprint::from_gguf(&whole).unwrap().hidden;
    let rows: Vec<f32> = (0..3 * hidden).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let run = |gguf: &Arc<Gguf>| {
        let mut stage = stage(gguf, layers, Ends::NONE, 64);
        let item = Item { state: &mut stage.kv, input: Input::Activations(&rows), output: Output::All };
        stage.shard.forward(&mut stage.ws, &mut [item]).unwrap();
        bits(stage.ws.activations(0))
    };
    assert!(run(&holes) == run(&whole));
}

#[test]
fn the_ends_cost_their_tensors_and_layers_beyond_the_model_are_refused() {
    let gguf = open("llama3");
    let count = layer_count(&gguf).unwrap();
    let all = LayerRange::new(0, count).unwrap();
    let holds = |ends: Ends, name: &str| {
        let tensor = gguf.info(name).unwrap();
        byte_ranges(&gguf, all, ends)
            .unwrap()
            .iter()
            .any(|range| range.start <= tensor.offset && tensor.offset + tensor.len <= range.end)
    };
    let tied = gguf.info("output.weight").is_none();
    let (embedding, head) = (Ends { embedding: true, head: false }, Ends { embedding: false, head: true });
    assert!(holds(embedding, "token_embd.weight") && !holds(embedding, "output_norm.weight"));
    assert!(holds(head, "output_norm.weight") && holds(head, "token_embd.weight") == tied);
    assert!(!holds(Ends::NONE, "token_embd.weight") && holds(Ends::NONE, "blk.0.attn_norm.weight"));
    let beyond = LayerRange::new(0, count + 1).unwrap();
    assert!(matches!(byte_ranges(&gguf, beyond, Ends::NONE), Err(Error::Invalid { .. })));
}
