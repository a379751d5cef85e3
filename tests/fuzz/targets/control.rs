//! Any bytes as an ask, an answer, and a message of a stream of delegation, pages or experts: what is accepted is written back as the same
//! bytes. The first byte says which of the three.
#![no_main]

use libfuzzer_sys::fuzz_target;
use p2p::wire::control::{Answer, Ask, MAX_ADDRESSES, MAX_CATALOG, MAX_SAID, MAX_SETTLED, Refusal};
use p2p::wire::delegate::{Event, Kind, Prefix, Request};
use p2p::wire::experts::{self, MAX_VALUES, Offer, Work};
use p2p::wire::pages::{Head, MAX_PACKED, MAX_STATE, Permit, PieceHead, STEP_LEN, read_steps, write_steps};
use scheduler::capability::MAX_LAYERS;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 3 {
        0 => {
            let Ok(ask) = Ask::decode(bytes) else { return };
            assert_eq!(ask.encode(), bytes);
            if let Ask::Lease(lease) = &ask {
                assert!(lease.at <= lease.positions && lease.rounding.boundaries().is_sorted());
                assert!(lease.next.as_ref().is_none_or(|next| next.addresses.len() <= MAX_ADDRESSES));
            }
        }
        1 => {
            let Ok(answer) = Answer::decode(bytes) else { return };
            assert_eq!(answer.encode(), bytes);
            match answer {
                Answer::Accepted { sessions, lanes, .. } => {
                    assert!(lanes >= 1 && sessions <= MAX_SAID && lanes <= MAX_SAID);
                }
                Answer::Refused { reason, held, .. } => {
                    assert!(held.is_empty() || reason == Refusal::NotHeld);
                    assert!(held.iter().all(|range| range.end() <= MAX_LAYERS));
                }
                Answer::Settled(bill) => assert!(bill.len() <= MAX_SETTLED),
                Answer::Catalog(text) => assert!(text.len() <= MAX_CATALOG),
                Answer::Released | Answer::Pong | Answer::Announcements(_) => {}
            }
        }
        _ => {
            delegate(bytes);
            pages(bytes);
            expert_messages(bytes);
        }
    }
});

fn expert_messages(bytes: &[u8]) {
    if let Ok(work) = Work::decode(bytes) {
        assert_eq!(work.encode(), bytes);
        assert!(work.visits.len() * work.width as usize <= MAX_VALUES);
        let (some, others) = (work.part(|expert| expert % 2 == 0), work.part(|expert| expert % 2 == 1));
        assert_eq!(some.visits.len() + others.visits.len(), work.visits.len());
        for part in [some, others].iter().filter(|part| !part.visits.is_empty()) {
            assert_eq!(Work::decode(&part.encode()).as_ref(), Ok(part));
        }
    }
    if let Ok(offer) = Offer::decode(bytes) {
        assert_eq!(offer.encode(), bytes);
    }
    if let Some((prefix, _)) = bytes.split_first_chunk()
        && let Ok(read) = experts::Prefix::read(prefix)
    {
        assert_eq!(read.write(), *prefix);
    }
}

fn pages(bytes: &[u8]) {
    if let Some((request, _)) = bytes.split_first_chunk()
        && let Ok(permit) = Permit::requested(request)
    {
        assert_eq!(permit.request(), request);
    }
    let Some((head, steps)) = bytes.split_first_chunk() else { return };
    if let Ok(read) = Head::read(head) {
        assert_eq!(read.write(), head);
        assert!(read.raw_bytes as usize <= MAX_STATE);
        assert_eq!(read.pieces().map(|(_, bytes)| bytes).sum::<u32>(), read.raw_bytes);
    }
    if let Some((piece, _)) = bytes.split_first_chunk()
        && let Ok(read) = PieceHead::read(piece)
    {
        assert_eq!(read.write(), piece);
        assert!(read.packed_bytes as usize <= MAX_PACKED);
    }
    if let Ok(rows) = read_steps(steps, (steps.len() / STEP_LEN) as u32) {
        assert_eq!(write_steps(rows.iter().map(|[input, output]| [input, output])), steps);
    }
}

fn delegate(bytes: &[u8]) {
    let Some((prefix, body)) = bytes.split_first_chunk() else { return };
    let Ok(read) = Prefix::read(prefix) else { return };
    assert_eq!(read.write(), *prefix);
    assert!(read.len as usize <= read.kind.cap());
    let Some(body) = body.get(..read.len as usize) else { return };
    let written = match read.kind {
        kind @ (Kind::Request | Kind::Text) => Request::decode(kind, body).map(|request| request.encode()),
        kind => Event::decode(kind, body).map(|event| event.encode()),
    };
    if let Ok((again, written)) = written {
        assert_eq!((again, written.as_slice()), (*prefix, body));
    }
}
