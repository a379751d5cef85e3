//! Any bytes as activations: accepted are only finite values, and only their one encoding. Any values, too: what is
//! encoded is accepted, and encoding it again changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use p2p::codec::{Wire, decode, encode, encoded_len};

fuzz_target!(|bytes: &[u8]| {
    let Some((&shape, bytes)) = bytes.split_first() else { return };
    let wire = Wire::ALL[usize::from(shape & 7) % Wire::ALL.len()];
    let width = 64 * (1 + usize::from(shape >> 3 & 3));
    let row = encoded_len(wire, 1, width).expect("a multiple of 64");
    let rows = bytes.len() / row;
    let mut values = Vec::new();
    assert!(decode(wire, width, rows + 1, bytes, &mut values).is_err() && values.is_empty());
    let bytes = &bytes[..rows * row];
    if decode(wire, width, rows, bytes, &mut values).is_ok() {
        assert!(values.len() == rows * width && values.iter().all(|x| x.is_finite()));
        let mut again = Vec::new();
        encode(wire, width, &values, &mut again).expect("finite values");
        assert_eq!(again, bytes);
    } else {
        assert!(values.is_empty());
    }
    let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let numbers: Vec<f32> = numbers.collect();
    let numbers = &numbers[..numbers.len() / width * width];
    let mut once = Vec::new();
    let finite = numbers.iter().all(|x| x.is_finite());
    assert_eq!(encode(Wire::Q8, width, numbers, &mut once).is_ok(), finite);
    if finite {
        let (mut values, mut twice) = (Vec::new(), Vec::new());
        decode(Wire::Q8, width, numbers.len() / width, &once, &mut values).expect("own bytes");
        encode(Wire::Q8, width, &values, &mut twice).expect("finite values");
        assert_eq!(once, twice);
    }
});
