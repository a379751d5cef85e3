//! Machines that compute other bits: near enough to tell them from cheats.

use std::sync::Arc;

use node::library;
use scheduler::LayerRange;
use shard::{
    executor::candle::{CandleShard, Keep},
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    quant,
    tolerance::{self, Verdict},
};

fn engine(gguf: &Arc<Gguf>, layers: LayerRange, input: Input<'_>, rows: usize) -> Vec<f32> {
    let cpu = Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false)));
    let ends = Ends { embedding: true, head: false };
    let shard =
        Shard::load(gguf, cpu, LayerRange::new(0, layers.end()).unwrap(), ends, Options::default()).unwrap();
    let mut ws = Workspace::new(&shard, Capacity::one_session(rows)).unwrap();
    let mut kv = shard.new_state_of(layers).unwrap();
    let item = Item { state: &mut kv, input, output: Output::All };
    shard.run(&mut ws, layers, &shard::round::Rounding::NONE, &mut [item]).unwrap();
    ws.activations(0).to_vec()
}

fn candle(gguf: &Gguf, layers: LayerRange, entered: &[f32], keep: Keep) -> Vec<f32> {
    let ends = Ends { embedding: false, head: false };
    let shard =
        CandleShard::load(gguf, &candle_core::Device::Cpu, layers, ends, Options::default(), keep).unwrap();
    let mut ws = Workspace::new(&shard, Capacity::one_session(entered.len())).unwrap();
    let (mut state, input) = (shard.new_state(), Input::Activations(entered));
    shard.forward(&mut ws, &mut [Item { state: &mut state, input, output: Output::All }]).unwrap();
    ws.activations(0).to_vec()
}

/// The default model with its eight-bit weights rounded to multiples of `step`: what fewer bits would do.
fn coarser(step: f64) -> Arc<Gguf> {
    let gguf = Gguf::from_bytes(library::embedded_bytes()).unwrap();
    let mut bytes = library::embedded_bytes().to_vec();
    let (mut touched, q8_0) = (0, quant::by_name("q8_0").unwrap());
    for info in gguf
        .tensors()
        .iter()
        .filter(|info| quant::by_type(info.ggml_type).is_some_and(|f| f.name == q8_0.name))
    {
        let data = &mut bytes[info.offset as usize..(info.offset + info.len) as usize];
        // A block: an f16 scale and 32 weights.
        for weight in data.chunks_exact_mut(34).flat_map(|block| &mut block[2..]) {
            let rounded = (f64::from(weight.cast_signed()) / step).round() * step;
            *weight = (rounded.clamp(-127.0, 127.0) as i8).cast_unsigned();
            touched += 1;
        }
    }
    assert!(touched > 100_000, "{touched}");
    Arc::new(Gguf::from_bytes(bytes).unwrap())
}

#[test]
fn an_approximate_machine_is_told_from_a_cheat() {
    let gguf = Arc::new(Gguf::from_bytes(library::embedded_bytes()).unwrap());
    let ids: Vec<u32> = (0..96).map(|i| 5 + (i * 37) % 300).collect();
    let rows = ids.len();
    let [four, five, six] = [16.0, 8.0, 4.0].map(coarser);
    for (start, end) in [(1, 2), (1, 4), (4, 7), (1, 7), (6, 7)] {
        let layers = LayerRange::new(start, end).unwrap();
        let entered = engine(&gguf, LayerRange::new(0, start).unwrap(), Input::Tokens(&ids), rows);
        let input = || Input::Activations(&entered);
        let own = engine(&gguf, layers, input(), rows);
        let verdict = |name: &str, said: &[f32]| {
            let found = tolerance::judge(&tolerance::distances(&entered, &own, said, own.len() / rows));
            println!("{layers}, {name}: {found:?}");
            found
        };
        for keep in [Keep::Dequantized, Keep::Quantized] {
            let honest = verdict(&format!("{keep:?}"), &candle(&gguf, layers, &entered, keep));
            assert!(matches!(honest, Verdict::Near { .. }), "{honest:?}");
        }
        let mut cheats = vec![
            ("gives back its inputs", entered.clone()),
            ("four bits", engine(&four, layers, input(), rows)),
        ];
        if layers.len() > 1 {
            let fewer = LayerRange::new(start, end - 1).unwrap();
            cheats.push(("leaves out a layer", engine(&gguf, fewer, input(), rows)));
        }
        // One token in the middle is another's.
        let mut other = own.clone();
        other.copy_within(0..own.len() / rows, own.len() / 2);
        cheats.push(("one row of another position", other));
        for (name, said) in cheats {
            let found = verdict(name, &said);
            assert!(matches!(found, Verdict::Far { .. }), "{name}: {found:?}");
        }
        // Documented, not promised.
        verdict("five bits", &engine(&five, layers, input(), rows));
        verdict("six bits", &engine(&six, layers, input(), rows));
    }
}
