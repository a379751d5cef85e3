//! What a window leaves, and that a state which frees the rest computes and writes what one that keeps all does.

use std::ops::Range;

use scheduler::session_kind::CacheType;

use super::*;
use crate::{
    kernels::{
        AttentionJob, Cpu, Isa, KvShape, QUARTER,
        attention::{attend, store_kv},
        threads::Pool,
    },
    state::{LayerState, Paged, SessionState},
};

#[test]
fn the_numbers_of_the_page() {
    let back = Back::new(Some(512), None);
    assert_eq!((back.first(5000), back.first(5000 - REACH)), (4489, 3465));
    assert_eq!((back.kept(5000), back.stays(4999, 5000)), (4352, 3328));
}

/// Against what kernels read: `max(0, t + 1 - window) ..= t`, from where the block of `t` begins.
#[test]
fn no_row_sees_what_is_before_its_first_position() {
    for (window, block) in [
        (None, None),
        (Some(1), None),
        (Some(2), None),
        (Some(512), None),
        (None, Some(64)),
        (None, Some(8192)),
        (Some(100), Some(256)),
    ] {
        let back = Back::new(window, block);
        assert_eq!(back.is_all(), window.or(block).is_none());
        let mut before = 0;
        for t in 0..10_000 {
            let sees = |position: usize| {
                position <= t
                    && window.is_none_or(|window| t - position < window)
                    && block.is_none_or(|block| position / block == t / block)
            };
            let first = back.first(t);
            assert!(sees(first) && (first == 0 || !sees(first - 1)), "{back}: {t} sees from {first} on");
            let kept = back.kept(t);
            assert!(kept <= first && kept.is_multiple_of(PAGE) && kept >= before, "{back}: {kept} at {t}");
            assert!(kept < t || t == 0);
            assert!(t - back.stays(t.saturating_sub(1), t) <= back.most(t), "{back} at {t}");
            before = kept;
        }
    }
}

#[test]
fn rows_of_two_layers_find_what_they_see() {
    let all = [(None, None), (Some(3), None), (Some(300), None), (None, Some(64)), (Some(90), Some(128))];
    let all = all.map(|(window, block)| Back::new(window, block));
    for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other))) {
        let both = one.and(other);
        assert!((0..2_000).all(|t| both.first(t) <= one.first(t).min(other.first(t))), "{one}, {other}");
        assert!(one.is_all() || one.and(one) == one);
    }
}

const HEADS: usize = 4;
const WINDOW: usize = 100;
const LONG: usize = 5_000;

fn shapes() -> Vec<KvShape> {
    let small = |cache| KvShape { cache, ..KvShape::new(2, 40) };
    let latent = KvShape { latent: Some(24), ..KvShape::new(1, 40) };
    CacheType::ALL.into_iter().map(small).chain([latent]).collect()
}

fn rows(shape: KvShape, positions: Range<usize>, seed: usize) -> Vec<f32> {
    let width = shape.kv_heads * shape.head_dim;
    let value = |i: usize| ((i * (37 + seed) % 1009) as f32 - 500.0) / 300.0;
    (positions.start * width..positions.end * width).map(value).collect()
}

/// A pass over `positions` of a layer with a window; what its rows see.
fn pass(cpu: &Cpu, state: &mut Paged, positions: Range<usize>) -> Vec<u32> {
    let (shape, n) = (state.shape(), positions.len());
    let keys = rows(shape, positions.clone(), 0);
    let values = if shape.latent.is_some() { Vec::new() } else { rows(shape, positions.clone(), 1) };
    store_kv(cpu, state.pages_mut(), shape, &keys, &values, positions.start);
    let q = rows(KvShape { kv_heads: HEADS, ..shape }, positions.clone(), 2);
    let mut out = vec![0.0; n * HEADS * shape.value_dim()];
    let job = AttentionJob {
        q: &q,
        pages: state.pages(),
        shape,
        start: positions.start,
        n,
        heads: HEADS,
        scale: 0.3,
        softcap: None,
        window: Some(WINDOW),
        ahead: 0,
        far: None,
        sinks: None,
        out: &mut out,
    };
    attend(cpu, &mut [job]);
    out.iter().map(|x| x.to_bits()).collect()
}

/// Passes of `chunk` rows over `positions` as an executor makes them; what the rows see.
fn feed(cpu: &Cpu, state: &mut SessionState, positions: Range<usize>, chunk: usize) -> Vec<u32> {
    let mut out = Vec::new();
    for start in positions.clone().step_by(chunk) {
        let end = positions.end.min(start + chunk);
        state.prepare(end - start).unwrap();
        out.extend(pass(cpu, state.layer_mut(0).unwrap(), start..end));
        state.advance(end - start);
    }
    out
}

fn cpu() -> Cpu {
    Cpu::new(Isa::detect(), Pool::new(2, false))
}

fn back() -> Back {
    Back::new(Some(WINDOW), None)
}

fn empty(shape: KvShape, back: Back) -> SessionState {
    SessionState::new(7, vec![Box::new(Paged::new(shape, LONG).looking(back))], LONG)
}

fn most_bytes(shape: KvShape) -> usize {
    Paged::bytes_for(shape, WINDOW + REACH + 2 * PAGE)
}

#[test]
fn memory_is_bounded_and_bits_are_those_of_a_state_that_keeps_all() {
    let cpu = cpu();
    for shape in shapes() {
        let mut all = empty(shape, Back::ALL);
        let expected = feed(&cpu, &mut all, 0..LONG, 512);
        assert!(all.bytes() >= Paged::bytes_for(shape, LONG));
        let mut digest = None;
        for chunk in [1, 7, 96, 512] {
            let mut state = empty(shape, back());
            // What is reserved for the whole session is what it keeps.
            state.reserve(LONG).unwrap();
            assert!(state.bytes() <= most_bytes(shape), "{shape:?}");
            let mut most = 0;
            for start in (0..LONG).step_by(500) {
                let width = HEADS * shape.value_dim();
                let found = feed(&cpu, &mut state, start..start + 500, chunk);
                assert!(found == expected[start * width..(start + 500) * width], "{shape:?} by {chunk}");
                most = most.max(state.bytes());
            }
            assert!(most <= most_bytes(shape), "{shape:?} by {chunk}: {most} bytes");
            assert!(most < all.bytes() / 2);
            let found = state.digest().unwrap();
            assert_eq!(found, *digest.get_or_insert(found), "{shape:?}: equal states are equal bytes");
            let mut parts = 0;
            state.parts(&mut |_, bytes| parts += bytes);
            assert_eq!(parts, state.bytes());
        }
    }
}

#[test]
fn a_session_goes_back_within_reach_and_begins_again_behind_it() {
    let cpu = cpu();
    for shape in shapes() {
        let width = HEADS * shape.value_dim();
        let expected = feed(&cpu, &mut empty(shape, back()), 0..3_000, 500);
        for (to, kept) in [(2_999, 2_999), (2_900, 2_900), (3_000 - REACH, 3_000 - REACH), (1_000, 0), (0, 0)]
        {
            let mut state = empty(shape, back());
            feed(&cpu, &mut state, 0..3_000, 96);
            let shared = state.share(to).unwrap();
            assert_eq!(
                (state.checkpoint(to), shared.len(), state.rewind(to)),
                (kept, kept, kept),
                "{shape:?}"
            );
            assert_eq!(shared.digest().unwrap(), state.digest().unwrap());
            for mut state in [state, shared] {
                let found = feed(&cpu, &mut state, kept..3_000, 77);
                assert!(found == expected[kept * width..], "{shape:?} from {kept} on");
                assert!(state.bytes() <= most_bytes(shape));
            }
        }
    }
}

/// One that goes on sees nothing of what another one does behind what they share.
#[test]
fn what_is_shared_stays_while_the_other_goes_on() {
    let (cpu, shape) = (cpu(), KvShape::new(2, 40));
    let mut state = empty(shape, back());
    feed(&cpu, &mut state, 0..1_500, 100);
    let (mut shared, digest) = (state.share(1_400).unwrap(), state.digest().unwrap());
    feed(&cpu, &mut shared, 1_400..4_000, 100);
    assert_eq!(state.digest().unwrap(), digest);
    assert_eq!(state.rewind(1_400), 1_400);
    let width = HEADS * shape.value_dim();
    let expected = feed(&cpu, &mut empty(shape, Back::ALL), 0..4_000, 1_000);
    assert!(feed(&cpu, &mut state, 1_400..4_000, 300) == expected[1_400 * width..]);
}

#[test]
fn a_snapshot_holds_what_the_next_row_sees_and_goes_on_with_the_same_bits() {
    let cpu = cpu();
    for shape in shapes() {
        let width = HEADS * shape.value_dim();
        let mut whole = empty(shape, back());
        let expected = feed(&cpu, &mut whole, 0..LONG, 512);
        for len in [1, 64, 100, 255, 256, 320, 356, 357, 358, 1_279, 1_280, 3_000, 3_008, 4_864, 4_963, 4_964]
        {
            let mut first = empty(shape, back());
            feed(&cpu, &mut first, 0..len, 96);
            let bytes = first.snapshot().unwrap();
            assert!(bytes.len() <= 64 + Paged::bytes_for(shape, WINDOW + 2 * PAGE), "{shape:?} at {len}");
            let mut second = empty(shape, back());
            second.restore(&bytes).unwrap();
            assert!(second.snapshot().unwrap() == bytes, "{shape:?} at {len}");
            assert!(second.bytes() <= first.bytes());
            for (state, chunk) in [(&mut first, 512), (&mut second, 31)] {
                let found = feed(&cpu, state, len..LONG, chunk);
                assert!(found == expected[len * width..], "{shape:?} from {len} on");
            }
            assert_eq!(first.digest().unwrap(), second.digest().unwrap(), "{shape:?} from {len} on");
            assert_eq!(second.digest().unwrap(), whole.digest().unwrap());
        }
        // It goes back within its first page, and begins again behind that.
        let mut restored = empty(shape, back());
        feed(&cpu, &mut restored, 0..3_000, 512);
        let bytes = restored.snapshot().unwrap();
        restored.restore(&bytes).unwrap();
        let within = back().kept(3_000) + WINDOW;
        assert_eq!((restored.checkpoint(within), restored.checkpoint(within - 2)), (within, 0));
        assert_eq!(restored.rewind(within), within);
        let found = feed(&cpu, &mut restored, within..3_000, 40);
        assert!(found == expected[within * width..3_000 * width]);
        assert_eq!(restored.rewind(within - 2), 0);
        let found = feed(&cpu, &mut restored, 0..3_000, 300);
        assert!(found == expected[..3_000 * width], "{shape:?} from the beginning");
        // A state that sees everything takes no snapshot of one that does not.
        assert!(empty(shape, Back::ALL).restore(&bytes).is_err());
        assert!(empty(shape, Back::new(Some(WINDOW + 1), None)).restore(&bytes).is_err());
    }
}

#[test]
fn what_the_first_quarter_is_relative_to_is_a_number() {
    let (cpu, shape) = (cpu(), KvShape { cache: CacheType::Q4, ..KvShape::new(2, 40) });
    let mut state = empty(shape, back());
    feed(&cpu, &mut state, 0..3_000, 512);
    let good = state.snapshot().unwrap();
    let header = good.len() - state.layer::<Paged>(0).unwrap().snapshot_len(3_000);
    for at in [header + 1, header + 2 * 80 - 1] {
        let mut bytes = good.clone();
        bytes[at] = 0x7c;
        let why = state.restore(&bytes).unwrap_err().to_string();
        assert!(why.contains("not finite"), "{why}");
        assert!(state.is_empty());
    }
    state.restore(&good).unwrap();
    assert!(state.snapshot().unwrap() == good);
}

/// A pass of more rows than [`REACH`] can be taken back as a whole, and one that fails leaves what was there.
#[test]
fn the_last_pass_is_taken_back_however_long_it_is() {
    let (cpu, shape) = (cpu(), KvShape::new(2, 40));
    let mut state = empty(shape, back());
    feed(&cpu, &mut state, 0..2_000, 200);
    let before = state.digest().unwrap();
    state.prepare(2_500).unwrap();
    assert_eq!((state.checkpoint(2_000), state.digest().unwrap()), (2_000, before));
    feed(&cpu, &mut state, 2_000..4_500, 2_500);
    assert_eq!((state.rewind(2_000), state.digest().unwrap()), (2_000, before));
    feed(&cpu, &mut state, 2_000..4_500, 2_500);
    feed(&cpu, &mut state, 4_500..4_501, 1);
    assert!(state.bytes() <= most_bytes(shape));
}

#[test]
fn quarters_are_only_freed_below_what_stays() {
    let mut paged = Paged::new(KvShape::new(1, 16), LONG).looking(back());
    paged.prepare(LONG);
    paged.advance(3_000);
    paged.advance(LONG);
    let stays = back().stays(3_000, LONG) / QUARTER;
    let gone: Vec<bool> = paged.pages().iter().map(|page| page.is_empty()).collect();
    assert!(gone[..stays].iter().all(|gone| *gone) && !gone[stays..].iter().any(|gone| *gone));
}
