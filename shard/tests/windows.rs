//! Layers that see a window, or their block: sessions longer than what they keep, of every family that has such layers, compute what
//! one pass over the whole prompt does, in bounded memory.

mod common;

use std::sync::Arc;

use common::{Copied, copy, empty, fast, feed, fixtures, kind, open, tokens, whole};
use scheduler::AttentionKind;
use shard::{
    executor::{Capacity, Executor, Workspace, cpu::Shard},
    gguf::{Gguf, Value},
    kernels::{KvShape, PAGE},
    state::{Back, LayerState, Paged, SessionState, behind::REACH},
};

/// A context in which all windows of the fixtures are left behind.
const LONG: usize = 1_900;

/// Fixture `name` for texts of [`LONG`] positions.
fn long(name: &str) -> Arc<Gguf> {
    let gguf = open(name);
    let key = format!("{}.context_length", gguf.metadata().str("general.architecture").unwrap());
    copy(&gguf, &[(&key, Some(Value::U32(LONG as u32)))], |tensor| [Copied::same(tensor)])
}

fn workspace(shard: &Shard, rows: usize) -> Workspace {
    Workspace::new(shard, Capacity { rows, items: 1, logit_rows: rows }).unwrap()
}

/// A session of `attention` in small passes against one that is computed in one pass, and so has freed nothing meanwhile.
fn check(name: &str, shard: &Shard, attention: &str) {
    let (ids, vocab) = (tokens(LONG, shard.blueprint().vocab, 3), shard.blueprint().vocab);
    let mut state = empty(shard, attention);
    let expected = feed(shard, &mut workspace(shard, LONG), &mut state, &ids, LONG);
    let digest = state.digest().unwrap();
    let mut ws = workspace(shard, 96);
    let mut state = empty(shard, attention);
    let mut kept = None;
    for start in (0..LONG).step_by(96) {
        let end = LONG.min(start + 96);
        let found = feed(shard, &mut ws, &mut state, &ids[start..end], 96);
        assert!(found == expected[start * vocab..end * vocab], "{name} {attention}: {start}..{end}");
        if end == 1_824 {
            kept = Some(state.snapshot().unwrap());
        }
    }
    assert_eq!(state.digest().unwrap(), digest, "{name} {attention}");
    // What admission counts is what a session takes at most.
    let (range, most) = (shard.range(), shard.session_bytes(shard.range(), LONG, kind(attention)));
    let all: usize = (range.start()..range.end())
        .map(|at| shard.blueprint().state_kind(at as usize).stored(kind(attention).cache).bytes(LONG))
        .sum();
    // Landmarks are not counted.
    if !attention.starts_with("sparse") {
        assert!(state.bytes() <= most, "{name} {attention}: {} of {most} bytes", state.bytes());
        assert!(most < all, "{name} {attention}: {most} of {all} bytes");
    }

    // Back within reach and on; then from the snapshot, a row at a time.
    let to = 1_600;
    if shard.blueprint().goes_back() {
        assert_eq!(state.rewind(to), to, "{name} {attention}");
        let found = feed(shard, &mut ws, &mut state, &ids[to..], 31);
        assert!(found == expected[to * vocab..], "{name} {attention}: after going back");
    }
    let mut restored = empty(shard, attention);
    restored.restore(&kept.unwrap()).unwrap();
    let found = feed(shard, &mut ws, &mut restored, &ids[1_824..], 1);
    assert!(found == expected[1_824 * vocab..], "{name} {attention}: from a snapshot");
    assert_eq!(restored.digest().unwrap(), digest, "{name} {attention}: from a snapshot");
    // Behind reach there is nothing to go back to.
    if state.rewind(100) == 0 {
        let found = feed(shard, &mut ws, &mut state, &ids[..200], 96);
        assert!(found == expected[..200 * vocab], "{name} {attention}: from the beginning");
    }
}

#[test]
fn every_family_with_windows_frees_what_lies_behind_them() {
    let mut found = Vec::new();
    for name in fixtures() {
        let windowed = |shard: &Shard| {
            let backs = (0..shard.blueprint().layers.len())
                .map(|at| shard.blueprint().back(at, AttentionKind::Dense));
            backs.filter(|back| back.most(LONG) < LONG).count()
        };
        let shard = whole(&long(&name), fast(), LONG);
        if windowed(&shard) > 0 {
            check(&name, &shard, "dense");
            found.push(name);
        }
    }
    println!("with windows: {found:?}");
    for name in ["cohere2", "exaone4", "gemma2", "gemma3", "gemma3n", "gemma4", "gpt_oss", "llama4", "olmo3"]
    {
        assert!(found.iter().any(|found| found == name), "{name} has layers with a window");
    }
}

#[test]
fn so_do_sessions_with_a_window_in_all_forms_of_the_cache() {
    for (name, kinds) in [
        ("gemma3", &["dense/q8", "dense/q4", "window:40/q4", "sparse:window=32,sinks=2,block=16"][..]),
        ("llama4", &["dense/q8", "window:40", "window:40/q8"]),
        ("llama", &["window:40", "window:300/q4"]),
        ("deepseek_v2", &["window:40"]),
        ("falcon_h1", &["window:40", "window:40/q4"]),
        ("qwen3next", &["window:40/q8"]),
    ] {
        let shard = whole(&long(name), fast(), LONG);
        kinds.iter().for_each(|kind| check(name, &shard, kind));
    }
}

/// The keys and values of Gemma 3 1B: 26 layers of one head of 256, every sixth of which sees everything, the others 512 positions.
#[test]
fn a_gemma_of_8192_positions_takes_a_third_of_the_memory() {
    const POSITIONS: usize = 8_192;
    let shape = KvShape::new(1, 256);
    let layer = |index: usize, windows: bool| -> Box<dyn LayerState> {
        let back = if windows && index % 6 != 5 { Back::new(Some(512), None) } else { Back::ALL };
        Box::new(Paged::new(shape, POSITIONS).looking(back))
    };
    let [before, after] = [false, true].map(|windows| {
        let layers = (0..26).map(|index| layer(index, windows)).collect();
        let mut state = SessionState::new(1, layers, POSITIONS);
        state.reserve(POSITIONS).unwrap();
        let mut most = state.bytes();
        for _ in 0..POSITIONS / 256 {
            state.prepare(256).unwrap();
            most = most.max(state.bytes());
            state.advance(256);
        }
        most
    });
    println!("{before} bytes, {after} behind windows");
    assert_eq!(before, Paged::bytes_for(shape, POSITIONS) * 26);
    let window = Paged::bytes_for(shape, 512 + REACH + PAGE);
    assert!(after <= Paged::bytes_for(shape, POSITIONS) * 4 + window * 22);
    assert!(after < before * 35 / 100, "{after} of {before} bytes");
}
