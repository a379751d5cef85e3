//! Any bytes as a stream of the data plane: hello, headers, payloads. What is accepted is within its caps and is written
//! back as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use p2p::codec;
use p2p::wire::frame::{COMMIT_LEN, HEADER_LEN, Header, Hello, Kind, MAX_FRAME, MAX_ROWS, reason};
use p2p::wire::receipt::Commit;
use scheduler::NodeId;

/// Signatures checked of one input: a check costs as much as a thousand headers, and a second one tries nothing new.
const MOST_SIGNED: usize = 1;

fuzz_target!(|bytes: &[u8]| {
    let Some((hello, mut rest)) = bytes.split_first_chunk::<{ Hello::LEN }>() else { return };
    if let Ok(read) = Hello::read(hello) {
        assert_eq!(read.write(), *hello);
    }
    let mut signed = 0;
    while let Some((head, after)) = rest.split_first_chunk::<HEADER_LEN>() {
        let Ok(header) = Header::read(head) else { return };
        assert_eq!(header.write(), *head);
        assert!(header.len as usize <= MAX_FRAME && header.rows <= MAX_ROWS);
        let Some((payload, next)) = after.split_at_checked(header.len as usize) else { return };
        signed += usize::from(header.kind == Kind::Commit);
        if header.kind != Kind::Commit || signed <= MOST_SIGNED {
            payload_of(&header, payload);
        }
        rest = next;
    }
});

fn payload_of(header: &Header, payload: &[u8]) {
    match header.kind {
        Kind::Activations | Kind::Feed => {
            let rows = header.rows as usize;
            let width =
                codec::row_width(header.wire, payload.len() / rows).expect("a header that was accepted");
            assert!(header.fits(width));
            let mut values = Vec::new();
            if codec::decode(header.wire, width, rows, payload, &mut values).is_ok() {
                assert!(values.iter().all(|x| x.is_finite()));
            }
        }
        Kind::Failed => {
            let _ = reason(payload);
        }
        Kind::Commit => {
            let payload: &[u8; COMMIT_LEN] = payload.try_into().expect("the length of its kind");
            assert!(Commit::open(payload, NodeId::numbered(1)).is_err(), "no node holds this key");
        }
        Kind::NeedReplay | Kind::Beacon | Kind::Bye | Kind::Unreachable | Kind::Garbled | Kind::Waits => {
            assert!(payload.is_empty());
        }
    }
}
