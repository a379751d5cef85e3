//! Any bytes as a fraud proof, an equivocation, a receipt and a challenge: bytes without a valid signature convict no
//! node, and a proof that reads is written back as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use p2p::codec::Wire;
use p2p::wire::receipt::{Challenge, Equivocation, FraudProof, Receipt, Reexecute, Terms, Work};

/// When the seeds of the corpus were signed, seconds of Unix time.
const NOW: u32 = 1_800_000_000;

/// Disagrees with every node, so that nothing but the signature protects the accused.
struct Disagrees;

impl Reexecute for Disagrees {
    fn inputs(&mut self, _: &Terms, _: &[u32], _: &[Wire]) -> Option<Vec<Vec<u8>>> {
        None
    }

    fn output(&mut self, terms: &Terms, _: &[(Wire, &[u8])], form: Wire) -> Option<Vec<u8>> {
        terms.row_len(form).map(|len| vec![0; len])
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(proof) = FraudProof::decode(bytes) {
        assert_eq!(proof.encode().expect("what was read"), bytes);
        assert!(proof.verify(NOW, &mut Disagrees).is_err(), "no node signed it");
    }
    if let Ok(proof) = Equivocation::open(bytes, NOW) {
        assert_eq!(proof.encode(), bytes);
    }
    let _ = (Work::open_offer(bytes), Receipt::open(bytes), Challenge::open(bytes));
});
