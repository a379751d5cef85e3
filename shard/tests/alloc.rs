//! The token loop does not allocate: a counting allocator stands under prefill chunks and decode steps.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use common::{bytes, cpu, open, tokens, whole};
use shard::{
    executor::{Capacity, Executor, Input, Item, Output, Workspace, argmax},
    gguf::Gguf,
    kernels::Isa,
    quant,
    synthetic::{self, Shape},
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of any thread while `work` runs.
fn count(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(SeqCst);
    work();
    ALLOCATIONS.load(SeqCst) - before
}

/// Prefill in chunks, a batch of two sessions and decode steps over a page boundary, all counted after one warm-up.
fn check(name: &str, gguf: &Arc<Gguf>, threads: usize) {
    let shard = whole(gguf, cpu(Isa::detect(), threads), 512);
    let mut ws = Workspace::new(&shard, Capacity { rows: 64, items: 2, logit_rows: 2 }).unwrap();
    let prompt = tokens(250, shard.blueprint().vocab, 1);
    let (mut kv, mut other) = (shard.new_state(), shard.new_state());
    kv.reserve(400).unwrap();
    other.reserve(400).unwrap();
    shard.prefill(&mut ws, &mut other, &prompt[..100]).unwrap();
    shard.step(&mut ws, &mut other, prompt[100]).unwrap();
    let prefill = count(|| shard.prefill(&mut ws, &mut kv, &prompt).unwrap());
    let mut next = argmax(ws.logits(0));
    let decode = count(|| {
        for _ in 0..16 {
            shard.step(&mut ws, &mut kv, next).unwrap();
            next = argmax(ws.logits(0));
        }
    });
    let batch = count(|| {
        for _ in 0..4 {
            let input = Input::Tokens(std::slice::from_ref(&next));
            let mut items = [
                Item { state: &mut kv, input, output: Output::Last },
                Item { state: &mut other, input, output: Output::Last },
            ];
            shard.forward(&mut ws, &mut items).unwrap();
        }
    });
    assert_eq!((prefill, decode, batch), (0, 0, 0), "{name} with {threads} threads: prefill, decode, batch");
}

/// One test only: another one running beside it would be counted, too.
#[test]
fn the_token_loop_does_not_allocate() {
    assert_eq!(count(|| drop(std::hint::black_box(Box::new(1u8)))), 1, "the allocator counts");
    let shape = Shape { vocab: 288, layers: 2, ..synthetic::shape("tiny").unwrap().clone() };
    let experts = Shape { experts: Some((6, 2)), feed_forward: 256, ..shape.clone() };
    for threads in [1, 2] {
        check("q4_0", &bytes(shape.to_bytes(&quant::Q4_0, 1).unwrap()), threads);
        check("f16", &bytes(shape.to_bytes(&quant::F16, 1).unwrap()), threads);
        check("experts", &bytes(experts.to_bytes(&quant::Q8_0, 1).unwrap()), threads);
        for name in [
            "gemma3",
            "starcoder2",
            "qwen2moe",
            "qwen3next",
            "qwen35",
            "gemma3n",
            "gemma4_e",
            "kimi_linear",
            "lfm2",
            "llama4",
            "granitehybrid",
            "falcon_h1_norm",
            "nemotron_h_moe",
            "nemotron_h_latent",
        ] {
            check(name, &open(name), threads);
        }
    }
}
