//! Time of the activation codec: `cargo bench -p shoal-p2p --bench codec`.
//!
//! A row of 2,048 values is what one token sends per hop of a 1-2 B model. Each figure is the best of many rounds, so
//! it says what the code costs and not what else ran.

use std::hint::black_box;
use std::time::Instant;

use p2p::codec::{self, Wire};

const WIDTH: usize = 2_048;
/// Rows of one call: a decoded token, and a chunk of a prompt.
const ROWS: [usize; 2] = [1, 256];
const ROUNDS: usize = 50;

fn main() {
    println!("{:<8}{:>8}{:>16}{:>16}", "wire", "rows", "encode ns/row", "decode ns/row");
    for wire in Wire::ALL {
        for rows in ROWS {
            let data: Vec<f32> =
                (0..rows * WIDTH).map(|i| ((i * 7_919) % 1_009) as f32 / 100.0 - 5.0).collect();
            let (mut bytes, mut values) = (Vec::new(), Vec::new());
            let encode = best(rows, || {
                bytes.clear();
                codec::encode(wire, WIDTH, black_box(&data), &mut bytes).expect("finite values");
            });
            let decode = best(rows, || {
                values.clear();
                codec::decode(wire, WIDTH, rows, black_box(&bytes), &mut values).expect("own bytes");
            });
            println!("{:<8}{rows:>8}{encode:>16.0}{decode:>16.0}", wire.name());
        }
    }
}

/// The shortest time of `call`, ns for each of `rows`.
fn best(rows: usize, mut call: impl FnMut()) -> f64 {
    let repeats = 1_024 / rows;
    let round = |_| {
        let start = Instant::now();
        (0..repeats).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / (repeats * rows) as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}
