//! What the layers of a model are said to cost follows from its shape: counts, no timings.

mod common;

use common::{bytes, fast, open};
use scheduler::{LayerRange, layer_cost::LayerCosts};
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    models::{Blueprint, FeedForward, layer_costs},
    quant,
    state::Kind,
    synthetic::{self, Family, Shape},
};

fn costs(shape: &Shape) -> LayerCosts {
    let gguf = bytes(shape.to_bytes(&quant::Q4_0, 3).unwrap());
    layer_costs(&Blueprint::from_gguf(&gguf).unwrap(), &gguf).unwrap()
}

fn known(name: &str) -> Shape {
    Shape { vocab: 64, ..synthetic::shape(name).unwrap().clone() }
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

/// Five layers with a window, then one without.
fn windowed() -> Shape {
    let family = Family::Gemma3 { window: 64, period: 6 };
    Shape { family, layers: 12, context: 4096, ..known("tiny") }
}

/// Two dense layers, then experts of which a token visits two of eight.
fn dense_first() -> Shape {
    let family = Family::Qwen3Moe { dense: 2, width: 1024 };
    Shape { family, layers: 5, feed_forward: 256, experts: Some((8, 2)), ..known("tiny") }
}

#[test]
fn equal_layers_weigh_the_same() {
    let costs = costs(&known("tiny"));
    assert_eq!(costs.runs().len(), 1);
    assert_eq!(costs.weights(0), [1.0; 4]);
    let deep = costs.weights(1_000);
    assert!(deep[0] > 1.0 && deep.iter().all(|weight| *weight == deep[0]));
    assert_eq!(costs.boundary_values(2), 256);
    assert!(costs.may_cut(0) && costs.may_cut(4) && !costs.may_cut(5));
}

#[test]
fn a_model_whose_layers_look_at_what_others_keep_stays_whole() {
    let costs = |name: &str| {
        let gguf = open(name);
        layer_costs(&Blueprint::from_gguf(&gguf).unwrap(), &gguf).unwrap()
    };
    for name in common::fixtures() {
        let blueprint = Blueprint::from_gguf(&open(&name)).unwrap();
        let costs = costs(&name);
        let cut = |at: usize| costs.may_cut(at as u32) == blueprint.may_cut(at);
        assert!((0..=blueprint.layers.len()).all(cut), "{name}: planner and engine disagree");
    }
    assert!(costs("gemma4_e").is_whole() && costs("gemma3n").is_whole());
    assert!(!costs("gemma4").is_whole() && !costs("lfm2").is_whole());
}

#[test]
fn a_window_bounds_what_a_layer_takes_behind_a_long_text() {
    let costs = costs(&windowed());
    assert_eq!(costs.runs().iter().map(|run| run.1).collect::<Vec<_>>(), [5, 1, 5, 1]);
    assert_eq!(costs.kinds().len(), 2);
    assert_eq!(costs.weights(64), [costs.weights(64)[0]; 12], "all see a text as long as the window alike");
    let (local, global) = (costs.weights(4_000)[0], costs.weights(4_000)[5]);
    assert_eq!(local, costs.weights(64)[0], "no more than its window");
    assert!(global > local && global > costs.weights(2_000)[5]);
    // Keys and values of 2 heads of 64 in f16, kept for all positions in both kinds today.
    assert_eq!(costs.state_bytes(range(0, 1), 1_000), 1_000 * 2 * 2 * 64 * 2);
    assert_eq!(costs.state_bytes(range(5, 6), 1_000), costs.state_bytes(range(0, 1), 1_000));
}

#[test]
fn experts_weigh_what_is_visited_and_take_what_is_there() {
    let shape = dense_first();
    let costs = costs(&shape);
    let (dense, experts) = (costs.layers()[0], costs.layers()[4]);
    assert_eq!(costs.runs(), [(dense, 2), (experts, 3)]);
    // A dense network of 1024 against two visited experts of 256, and eight of them in memory.
    assert!(dense.row_work > experts.row_work, "{dense:?} {experts:?}");
    assert!(dense.weight_bytes < experts.weight_bytes);
    let network = |width: u64| 3 * 256 * width;
    let bytes = |weights: u64| weights * 18 / 32;
    // Norms and the router are F32, and nearly nothing.
    let more = dense.row_work as f64 - experts.row_work as f64;
    let products = (network(1024) - network(512)) as f64;
    let wanted = products * 18.0 / 32.0 + products / 4.0;
    assert!((more / wanted - 1.0).abs() < 0.05, "{more} {wanted}");
    let heavier = experts.weight_bytes - dense.weight_bytes;
    assert!(heavier.abs_diff(bytes(network(8 * 256) - network(1024))) < 10_000, "{heavier}");
    let mean = costs.weight(range(0, 5), 0) / 5.0;
    assert!((mean - 1.0).abs() < 1e-12);
}

/// The new shapes are models: their layers run, whole and cut.
#[test]
fn windows_and_dense_first_experts_compute_cut_as_whole() {
    for (shape, dense) in [(windowed(), 12), (dense_first(), 2)] {
        let gguf = bytes(shape.to_bytes(&quant::Q4_0, 3).unwrap());
        let blueprint = Blueprint::from_gguf(&gguf).unwrap();
        let networks = blueprint.layers.iter().map(|layer| layer.feed_forward);
        assert_eq!(networks.filter(|network| matches!(network, FeedForward::Dense(_))).count(), dense);
        let layers = shape.layers as u32;
        let rows: Vec<f32> = (0..3 * shape.hidden).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let run = |ranges: &[LayerRange]| {
            ranges.iter().fold(rows.clone(), |rows, range| {
                let none = Ends { embedding: false, head: false };
                let options = Options { context: Some(16) };
                let shard = Shard::load(&gguf, fast(), *range, none, options).unwrap();
                let mut ws = Workspace::new(&shard, Capacity::one_session(3)).unwrap();
                let mut state = shard.new_state_of(*range).unwrap();
                let item = Item { state: &mut state, input: Input::Activations(&rows), output: Output::All };
                shard.run(&mut ws, *range, &shard::round::Rounding::NONE, &mut [item]).unwrap();
                ws.activations(0).to_vec()
            })
        };
        assert_eq!(run(&[range(0, layers)]), run(&[range(0, 1), range(1, 3), range(3, layers)]));
    }
}

/// What is leased and placed by these figures is what a worker then holds: the bytes of loaded layers and of the state of a
/// session, cut by cut. By the mean layer it would be wrong by a third where layers differ.
#[test]
fn what_cuts_are_said_to_take_is_what_they_take() {
    const QUARTER: u64 = 64;
    for (shape, uneven) in [(windowed(), false), (dense_first(), true)] {
        let gguf = bytes(shape.to_bytes(&quant::Q4_0, 3).unwrap());
        let (costs, layers) = (costs(&shape), shape.layers as u32);
        let mean = costs.weight_bytes(range(0, layers)) as f64 / f64::from(layers);
        let mut worst: f64 = 0.0;
        for cut in [range(0, 2), range(2, 4), range(4, layers), range(0, layers)] {
            let none = Ends { embedding: false, head: false };
            let shard = Shard::load(&gguf, fast(), cut, none, Options { context: Some(512) }).unwrap();
            let (said, held) = (costs.weight_bytes(cut) as f64, shard.resident_bytes() as f64);
            assert!((held / said - 1.0).abs() < 0.05, "{cut}: said {said}, holds {held}");
            worst = worst.max((mean * f64::from(cut.len()) / held - 1.0).abs());
            let rows = vec![0.5; 3 * shape.hidden];
            let mut ws = Workspace::new(&shard, Capacity::one_session(3)).unwrap();
            let mut state = shard.new_state_of(cut).unwrap();
            let item = Item { state: &mut state, input: Input::Activations(&rows), output: Output::All };
            shard.run(&mut ws, cut, &shard::round::Rounding::NONE, &mut [item]).unwrap();
            assert_eq!(costs.state_bytes(cut, QUARTER), state.bytes() as u64, "{cut}: a quarter of a page");
        }
        assert_eq!(worst > 0.3, uneven, "by the mean layer it is off by {worst}");
    }
}

#[test]
fn published_families_are_described() {
    for name in common::fixtures() {
        let gguf = open(&name);
        let blueprint = Blueprint::from_gguf(&gguf).unwrap();
        let costs = layer_costs(&blueprint, &gguf).unwrap();
        assert_eq!(costs.num_layers() as usize, blueprint.layers.len(), "{name}");
        let all = range(0, costs.num_layers());
        // What a delta net keeps does not grow with positions.
        let constant = |layer| match blueprint.state_kind(layer) {
            Kind::Paged(_) => 0,
            Kind::Beside { width, .. } => Kind::Recurrent { width }.bytes(blueprint.context),
            kind => kind.bytes(blueprint.context),
        };
        let constant: usize = (0..blueprint.layers.len()).map(constant).sum();
        assert_eq!(costs.state_bytes(all, 0), constant as u64, "{name}");
        let positions = costs.state_bytes(all, 1) - constant as u64;
        assert_eq!(positions, blueprint.kv_bytes_per_token() as u64, "{name}");
        let whole: u64 = gguf.tensors().iter().filter(|t| t.name.starts_with("blk.")).map(|t| t.len).sum();
        assert_eq!(costs.weight_bytes(range(0, costs.num_layers())), whole, "{name}");
    }
}
