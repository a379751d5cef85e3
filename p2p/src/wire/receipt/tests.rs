//! Liars are convicted, honest stages never, whatever is made up about them.

use data_encoding::HEXLOWER;
use proptest::prelude::*;
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};

use super::{
    Chain, Challenge, Commit, Docket, EVERY, Equivocation, Evidence, FraudProof, Grant, Leaf, MAX_AGE_S,
    MAX_CASES, Receipt, Reexecute, Row, Show, Terms, Unproven, Work,
};
use crate::codec::{self, Rounding, Wire};
use crate::identity::Identity;
use crate::wire::announce::Class;

const NOW: u32 = 1_800_000_000;
const WIDTH: usize = 32;

/// Layers whose output at a position depends on all inputs up to it, as attention does.
struct Layers;

/// A vector that stands for the hidden state of a token at the first layer of `terms`.
fn embedded(terms: &Terms, pos: usize, token: u32) -> Vec<f32> {
    let of = |i: usize| {
        ((token as usize + 3 * i + 7 * pos) % 61) as f32 / 8.0 - f32::from(terms.layers.start() as u8)
    };
    (0..WIDTH).map(of).collect()
}

fn bytes(wire: Wire, row: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode(wire, WIDTH, row, &mut out).unwrap();
    out
}

impl Reexecute for Layers {
    fn inputs(&mut self, terms: &Terms, tokens: &[u32], forms: &[Wire]) -> Option<Vec<Vec<u8>>> {
        let rows = tokens.iter().zip(forms).enumerate();
        Some(rows.map(|(pos, (&token, &form))| bytes(form, &embedded(terms, pos, token))).collect())
    }

    fn output(&mut self, terms: &Terms, inputs: &[(Wire, &[u8])], form: Wire) -> Option<Vec<u8>> {
        let mut state = vec![0.0; WIDTH];
        for &(wire, row) in inputs {
            let mut values = Vec::new();
            codec::decode(wire, WIDTH, 1, row, &mut values).ok()?;
            for (x, y) in state.iter_mut().zip(values) {
                *x = *x * 0.5 + y * (terms.layers.len() + terms.rounding.boundaries().len() as u32) as f32;
            }
        }
        Some(bytes(form, &state))
    }
}

/// A node that holds no layers.
struct WithoutLayers;

impl Reexecute for WithoutLayers {
    fn inputs(&mut self, _: &Terms, _: &[u32], _: &[Wire]) -> Option<Vec<Vec<u8>>> {
        None
    }

    fn output(&mut self, _: &Terms, _: &[(Wire, &[u8])], _: Wire) -> Option<Vec<u8>> {
        None
    }
}

fn stage() -> Identity {
    Identity::from_seed([3; 32])
}

fn requester() -> Identity {
    Identity::from_seed([4; 32])
}

fn terms(session: u64) -> Terms {
    Terms {
        session: SessionId::numbered(session),
        requester: requester().node(),
        model: ModelId::numbered(2),
        layers: LayerRange::new(4, 12).unwrap(),
        hidden: WIDTH as u32,
        class: Class::D1,
        rounding: Rounding::new(Wire::Q8, vec![4, 12]),
        kind: SessionKind::DEFAULT,
        inner: false,
    }
}

/// What a stage that lies at `lie` (or nowhere) leaves behind after `positions`, with `disputed` as the position that
/// a proof is about.
fn transcript(session: u64, positions: u32, lie: Option<u32>, disputed: u32) -> FraudProof {
    let terms = terms(session);
    let mut chain = Chain::new(&terms, Grant::new(NOW, session as u32), 1, positions);
    let wire = |pos: usize| if pos.is_multiple_of(3) { Wire::Q8 } else { Wire::Raw };
    let tokens: Vec<u32> = (0..positions).map(|pos| (pos * 17 + session as u32) % 1_000).collect();
    let rows: Vec<Vec<u8>> =
        (0..).zip(&tokens).map(|(pos, &token)| bytes(wire(pos), &embedded(&terms, pos, token))).collect();
    let inputs: Vec<(Wire, &[u8])> = (0..).map(wire).zip(rows.iter().map(Vec::as_slice)).collect();
    let mut leaves = Vec::new();
    for pos in 0..positions as usize {
        let mut output = Layers.output(&terms, &inputs[..=pos], Wire::Q8).unwrap();
        if lie == Some(pos as u32) {
            output[5] ^= 1;
        }
        let leaf = Leaf {
            input: Row::of(wire(pos), &rows[pos]),
            output: Row::of(Wire::Q8, &output),
            inner: [0; 32],
        };
        chain.push(&leaf).unwrap();
        leaves.push(leaf);
    }
    let commit = chain.conclude(&stage()).unwrap();
    let rows = rows[..=disputed as usize].concat();
    FraudProof {
        accused: stage().node(),
        terms,
        commit,
        leaves,
        at: disputed,
        evidence: Evidence::Rows(rows),
    }
}

/// The same proof for a prompt that everybody knows.
fn with_tokens(mut proof: FraudProof) -> FraudProof {
    let session = u64::from_be_bytes(proof.terms.session.as_bytes()[..8].try_into().unwrap()) as u32;
    let tokens = (0..proof.commit.pos).map(|pos| (pos * 17 + session) % 1_000);
    proof.evidence = Evidence::Tokens(tokens.collect());
    proof
}

#[test]
fn a_lie_is_proven_offline_by_rows_or_tokens() {
    for (positions, lie) in [(1, 0), (16, 0), (16, 15), (40, 21)] {
        let proof = transcript(7, positions, Some(lie), lie);
        for proof in [proof.clone(), with_tokens(proof)] {
            let bytes = proof.encode().unwrap();
            let read = FraudProof::decode(&bytes).unwrap();
            assert_eq!(read, proof);
            assert_eq!(read.verify(NOW, &mut Layers), Ok(stage().node()));
            assert_eq!(read.verify(NOW, &mut WithoutLayers), Err(Unproven::Undecided));
            assert_eq!(read.is_publishable(&bytes), matches!(read.evidence, Evidence::Tokens(_)));
        }
    }
}

#[test]
fn the_truth_convicts_no_node() {
    for at in [0, 9, 31] {
        assert_eq!(transcript(7, 32, None, at).verify(NOW, &mut Layers), Err(Unproven::Honest));
        assert_eq!(with_tokens(transcript(7, 32, None, at)).verify(NOW, &mut Layers), Err(Unproven::Honest));
        // Later positions of a liar are right again, if computed from the right inputs.
        assert_eq!(transcript(7, 32, Some(8), at).verify(NOW, &mut Layers), Err(Unproven::Honest));
    }
}

#[test]
fn old_proofs_and_those_of_tomorrow_are_void() {
    let proof = transcript(7, 16, Some(3), 3);
    assert_eq!(proof.verify(NOW + MAX_AGE_S, &mut Layers), Ok(stage().node()));
    assert_eq!(proof.verify(NOW + MAX_AGE_S + 1, &mut Layers), Err(Unproven::Stale));
    assert_eq!(proof.verify(NOW - 301, &mut Layers), Err(Unproven::Stale));
    assert!(Grant::new(NOW, 1).is_fresh(NOW + 300) && !Grant::new(NOW - 301, 1).is_fresh(NOW));
    assert_eq!(Grant::new(NOW, 77).unix_s(), NOW);
}

/// A deterministic number below `below`, different for every (seed, use).
fn draw(seed: u64, what: u64, below: usize) -> usize {
    let hash = blake3::hash(&[seed.to_le_bytes(), what.to_le_bytes()].concat());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()) as usize % below
}

/// Forgeries that are costly to refuse.
const DEAR: usize = 7;

type Forge = (&'static str, fn(&mut FraudProof, u64));

/// What an attacker that holds a true transcript of an honest stage can do to it; the first [`DEAR`] are refused only by
/// the signature, or after computing.
const FORGERIES: [Forge; 17] = [
    ("untouched", |_, _| {}),
    ("another position", |proof, seed| proof.at = draw(seed, 1, 40) as u32),
    ("another's name", |proof, seed| {
        proof.leaves[proof.at as usize].output.digest[draw(seed, 1, 32)] ^= 1;
        rehead(proof);
        proof.accused = Identity::from_seed([draw(seed, 2, 256) as u8; 32]).node();
    }),
    ("a bit of the commitment", |proof, seed| {
        let mut bytes = proof.commit.write();
        bytes[draw(seed, 1, 128)] ^= 1 << draw(seed, 2, 8);
        proof.commit = Commit::read(&bytes).unwrap();
    }),
    ("other tokens", |proof, seed| {
        let tokens = (0..=proof.at).map(|pos| draw(seed, u64::from(pos), 1_000) as u32);
        proof.evidence = Evidence::Tokens(tokens.collect());
    }),
    ("another output and head", |proof, seed| {
        proof.leaves[proof.at as usize].output.digest[draw(seed, 1, 32)] ^= 1;
        rehead(proof);
    }),
    ("signed by the accuser", |proof, seed| {
        proof.leaves[proof.at as usize].output.digest[draw(seed, 1, 32)] ^= 1;
        resign(proof, &requester());
    }),
    ("another output", |proof, seed| proof.leaves[proof.at as usize].output.digest[draw(seed, 1, 32)] ^= 1),
    ("other inputs", |proof, seed| {
        if let Evidence::Rows(rows) = &mut proof.evidence {
            let at = draw(seed, 1, rows.len());
            rows[at] ^= 1 << draw(seed, 2, 8);
        }
    }),
    ("inputs left out", |proof, seed| {
        if let Evidence::Rows(rows) = &mut proof.evidence {
            rows.truncate(draw(seed, 1, rows.len()));
        }
    }),
    ("inputs that say more", |proof, seed| {
        if let Evidence::Rows(rows) = &mut proof.evidence {
            rows.extend(vec![0; 1 + draw(seed, 1, 200)]);
        }
    }),
    ("other layers", |proof, seed| {
        let start = draw(seed, 1, 4) as u32;
        proof.terms.layers = LayerRange::new(start, start + 8).unwrap();
    }),
    ("other rounding", |proof, seed| {
        let boundaries = vec![4, 5 + draw(seed, 1, 7) as u32, 12];
        proof.terms.rounding = Rounding::new(Wire::Q8, boundaries);
    }),
    ("another form of rounding", |proof, _| {
        proof.terms.rounding = Rounding::new(Wire::C8, proof.terms.rounding.boundaries().to_vec());
    }),
    ("another session", |proof, seed| proof.terms.session = SessionId::numbered(1_000 + seed)),
    ("another session's commitment", |proof, seed| proof.commit = honest(1 + draw(seed, 1, 3) as u64).commit),
    ("leaves in another order", |proof, seed| {
        let (a, b) = (draw(seed, 1, 16), 16 + draw(seed, 2, 16));
        proof.leaves.swap(a, b);
    }),
];

/// Makes the commitment fit the leaves again, which needs no key.
fn rehead(proof: &mut FraudProof) {
    let mut head = proof.terms.genesis();
    for (pos, leaf) in (0..).zip(&proof.leaves) {
        head = leaf.link(pos, &head);
    }
    proof.commit.head = head;
}

fn resign(proof: &mut FraudProof, key: &Identity) {
    let mut chain = Chain::new(&proof.terms, proof.commit.grant, proof.commit.epoch, 1_000);
    proof.leaves.iter().for_each(|leaf| chain.push(leaf).unwrap());
    proof.commit = chain.conclude(key).unwrap();
}

/// A few true transcripts of an honest stage; making a fresh one each time would be most of the test's time.
fn honest(session: u64) -> FraudProof {
    static PROOFS: std::sync::OnceLock<Vec<FraudProof>> = std::sync::OnceLock::new();
    let proofs = PROOFS.get_or_init(|| (0..4).map(|session| transcript(session, 32, None, 20)).collect());
    proofs[session as usize].clone()
}

#[test]
fn ten_thousand_forged_proofs_convict_no_node() {
    let (mut forged, mut judged) = (0, 0);
    for seed in 0..10_000_u64 {
        // Unoptimized, checking a signature takes milliseconds: what gets as far as that is tried 2,000 times.
        let kinds = if seed < 2_000 { &FORGERIES[..] } else { &FORGERIES[DEAR..] };
        let (name, forge) = kinds[seed as usize % kinds.len()];
        let mut proof = honest(0);
        if seed < 2_000 && seed / 16 % 2 == 1 {
            proof = with_tokens(proof);
        }
        forge(&mut proof, seed);
        match proof.verify(NOW, &mut Layers) {
            Ok(node) => panic!("seed {seed}: {name} convicts {node}"),
            Err(Unproven::Forged(_) | Unproven::Stale) => forged += 1,
            Err(Unproven::Honest) => judged += 1,
            Err(Unproven::Undecided) => panic!("seed {seed}: {name} is undecided"),
        }
    }
    // Those that changed nothing of substance were computed again and found right.
    assert!(forged > 9_000 && judged > 200, "{forged} forged, {judged} found right");
}

#[test]
fn damaged_proofs_convict_no_other_node() {
    let bytes = transcript(7, 16, Some(3), 3).encode().unwrap();
    for bit in (0..bytes.len() * 8).step_by(3) {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let Ok(proof) = FraudProof::decode(&bad) else { continue };
        assert_eq!(proof.encode(), Ok(bad), "bit {bit}");
        // Every part is under the signature, but for which position is disputed.
        assert_eq!(proof.verify(NOW, &mut Layers).ok(), None, "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(FraudProof::decode(&bytes[..len]).is_err());
    }
}

#[test]
fn approximate_nodes_are_not_held_to_digests() {
    let mut proof = transcript(7, 16, Some(3), 3);
    proof.terms.class = Class::Approx;
    resign(&mut proof, &stage());
    assert!(matches!(proof.verify(NOW, &mut Layers), Err(Unproven::Forged(_))));
}

fn commits(grant: Grant, epoch: u32, salt: u8) -> Commit {
    let mut chain = Chain::new(&terms(7), grant, epoch, 16);
    let leaf = |pos: u8| Leaf {
        input: Row::of(Wire::Raw, &[pos]),
        output: Row::of(Wire::Raw, &[pos, salt]),
        inner: [0; 32],
    };
    (0..16).for_each(|pos| chain.push(&leaf(pos)).unwrap());
    chain.commit(16, &stage()).unwrap()
}

#[test]
fn two_words_in_one_place_are_a_proof() {
    let grant = Grant::new(NOW, 1);
    let (a, b) = (commits(grant, 1, 0), commits(grant, 1, 1));
    let proof = Equivocation::new(stage().node(), a, b).unwrap();
    assert_eq!(Equivocation::new(stage().node(), b, a), Ok(proof), "one form");
    let bytes = proof.encode();
    assert_eq!((bytes.len(), Equivocation::open(&bytes, NOW)), (Equivocation::LEN, Ok(proof)));
    assert_eq!(Equivocation::open(&bytes, NOW + MAX_AGE_S + 1), Err(Unproven::Stale));
    for bit in (0..bytes.len() * 8).step_by(7) {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Equivocation::open(&bad, NOW).is_err(), "bit {bit}");
    }
    let swapped = [&bytes[..36], &bytes[164..], &bytes[36..164]].concat();
    assert!(Equivocation::open(&swapped, NOW).is_err());
}

#[test]
fn words_that_can_both_be_true_are_no_proof() {
    let grant = Grant::new(NOW, 1);
    let a = commits(grant, 1, 0);
    let refuse = |accused: NodeId, b: Commit| assert!(Equivocation::new(accused, a, b).is_err());
    refuse(stage().node(), a);
    refuse(stage().node(), commits(grant, 2, 1));
    refuse(stage().node(), commits(Grant::new(NOW, 2), 1, 1));
    refuse(requester().node(), commits(grant, 1, 1));
    let mut forged = commits(grant, 1, 1);
    forged.head[0] ^= 1;
    refuse(stage().node(), forged);
}

#[test]
fn a_case_counts_once() {
    let mut docket = Docket::default();
    let proof = transcript(7, 16, Some(3), 3);
    assert!(docket.count(proof.case(), NOW));
    assert!(!docket.count(proof.case(), NOW + 5), "shown again");
    let other = transcript(7, 16, Some(4), 4);
    assert!(!docket.count(other.case(), NOW), "another lie of the same chain");
    assert!(docket.count(transcript(8, 16, Some(3), 3).case(), NOW));
    assert!(!docket.count(proof.case(), NOW + MAX_AGE_S + 1), "void");
    let many = (0..).map(|n| super::proof::Case { session: SessionId::numbered(1_000 + n), ..proof.case() });
    assert_eq!(many.take(2 * MAX_CASES).filter(|&case| docket.count(case, NOW)).count(), 2 * MAX_CASES);
}

fn leaf(pos: u32, salt: u8) -> Leaf {
    Leaf {
        input: Row::of(Wire::Q8, &pos.to_le_bytes()),
        output: Row::of(Wire::Q8, &[salt]),
        inner: Leaf::inner_of(&[[salt; 32], [1; 32]]),
    }
}

#[test]
fn a_commitment_is_due_every_sixteen_settled_positions() {
    let mut chain = Chain::new(&terms(7), Grant::new(NOW, 1), 1, 64);
    let mut due = Vec::new();
    for pos in 0..64 {
        chain.push(&leaf(pos, 0)).unwrap();
        due.extend(chain.commit(pos, &stage()).map(|commit| (pos, commit.pos)));
    }
    assert_eq!(due, [(16, 16), (32, 32), (48, 48)], "as frames move past them");
    assert_eq!(chain.push(&leaf(64, 0)).map_err(|e| e.0), Err("chain: full"));
    let last = chain.conclude(&stage()).unwrap();
    assert_eq!((last.pos, chain.conclude(&stage())), (64, None));
    assert_eq!(Commit::open(&last.write(), stage().node()), Ok(last));
    assert!(Commit::open(&last.write(), requester().node()).is_err());
    assert_eq!(chain.agrees(&last), Some(true));
}

#[test]
fn a_stage_never_contradicts_itself() {
    let mut chain = Chain::new(&terms(7), Grant::new(NOW, 1), 1, 64);
    (0..20).for_each(|pos| chain.push(&leaf(pos, 0)).unwrap());
    let first = chain.commit(20, &stage()).unwrap();
    // The requester goes back below a commitment and sends the same: nothing is lost.
    chain.truncate(3);
    (3..33).for_each(|pos| chain.push(&leaf(pos, 0)).unwrap());
    assert_eq!(chain.commit(33, &stage()).map(|commit| commit.pos), Some(32));
    assert_eq!(chain.agrees(&first), Some(true));
    // Now it sends something else.
    chain.truncate(3);
    (3..64).for_each(|pos| chain.push(&leaf(pos, 1)).unwrap());
    assert_eq!(chain.commit(64, &stage()), None);
    assert_eq!(chain.conclude(&stage()), None);
    assert_eq!(chain.agrees(&first), Some(false));
    // Under a new epoch that is its right.
    chain.adopt(2, 48);
    assert_eq!(chain.positions(), 48);
    let again = chain.commit(48, &stage()).unwrap();
    assert_eq!((again.epoch, again.pos), (2, 48));
    chain.adopt(2, 0);
    assert_eq!(chain.positions(), 48, "the same epoch changes nothing");
    assert!(Equivocation::new(stage().node(), first, again).is_err());
}

#[test]
fn shadows_share_the_head_whatever_the_frames() {
    let (one, other) = (Grant::new(NOW, 1), Grant::new(NOW + 9, 2));
    let mut primary = Chain::new(&terms(7), one, 1, 64);
    let mut shadow = Chain::new(&terms(7), other, 4, 64);
    (0..48).for_each(|pos| primary.push(&leaf(pos, 0)).unwrap());
    (0..16).for_each(|pos| shadow.push(&leaf(pos, 0)).unwrap());
    let commit = primary.commit(48, &stage()).unwrap();
    assert_eq!(shadow.agrees(&commit), None, "not there yet");
    (16..48).for_each(|pos| shadow.push(&leaf(pos, 0)).unwrap());
    assert_eq!(shadow.agrees(&commit), Some(true));
    let mut foreign = Chain::new(&terms(8), one, 1, 64);
    (0..48).for_each(|pos| foreign.push(&leaf(pos, 0)).unwrap());
    assert_eq!(foreign.agrees(&commit), None);
    assert_ne!(foreign.head(48), primary.head(48));
}

fn work() -> Work {
    Work {
        stage: stage().node(),
        requester: requester().node(),
        session: SessionId::numbered(7),
        grant: Grant::new(NOW, 1),
        model: ModelId::numbered(2),
        layers: LayerRange::new(4, 12).unwrap(),
        prefill_tokens: 100,
        decode_tokens: 28,
        head: [9; 32],
        ended_unix_s: NOW + 60,
    }
}

#[test]
fn a_receipt_takes_two() {
    let offer = work().offer(&stage()).unwrap();
    assert_eq!((offer.len(), Work::open_offer(&offer)), (Work::OFFER_LEN, Ok(work())));
    let bytes = Receipt::cosign(&offer, &requester()).unwrap();
    assert_eq!(bytes.len(), Receipt::LEN);
    assert_eq!(*Receipt::open(&bytes).unwrap().work(), work());
    assert!(work().offer(&requester()).is_err());
    assert!(Receipt::cosign(&offer, &stage()).is_err(), "to itself");
    assert!(Receipt::open(&offer).is_err());
    for bit in (0..bytes.len() * 8).step_by(13) {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Receipt::open(&bad).is_err(), "bit {bit}");
    }
    let forged = [offer.as_slice(), &stage().sign("shoal/receipt/requester/1", &offer)].concat();
    assert!(Receipt::open(&forged).is_err(), "co-signed by the stage");
}

#[test]
fn receipts_of_nothing_are_not_signed() {
    type Spoil = (&'static str, fn(&mut Work));
    let spoils: [Spoil; 5] = [
        ("to itself", |work| work.requester = work.stage),
        ("no tokens", |work| (work.prefill_tokens, work.decode_tokens) = (0, 0)),
        ("too many tokens", |work| work.prefill_tokens = u32::MAX),
        ("layers", |work| work.layers = LayerRange::new(0, 1_025).unwrap()),
        ("ended before it began", |work| work.ended_unix_s = NOW - 1),
    ];
    for (what, spoil) in spoils {
        let mut bad = work();
        spoil(&mut bad);
        assert!(bad.offer(&stage()).is_err(), "{what}");
    }
}

fn challenge() -> Challenge {
    Challenge {
        requester: requester().node(),
        stage: stage().node(),
        session: SessionId::numbered(7),
        show: Show::Inner { layer: 6 },
        from: 16,
        rows: 16,
        deadline_ms: 10_000,
    }
}

#[test]
fn challenges_are_signed_and_bounded() {
    for show in [Show::Outputs, Show::Inner { layer: 6 }, Show::Golden { seed: u64::MAX }] {
        let golden = matches!(show, Show::Golden { .. });
        let sound = Challenge { show, rows: if golden { 0 } else { 16 }, ..challenge() };
        assert_eq!(Challenge::open(&sound.seal(&requester()).unwrap()), Ok(sound));
        for rows in [0, 1, 257] {
            let bad = Challenge { rows: if golden { rows.max(1) } else { rows / 2 * 2 * 128 }, ..sound };
            assert!(bad.seal(&requester()).is_err(), "{bad:?}");
        }
    }
    assert!(challenge().seal(&stage()).is_err());
    assert!(Challenge { deadline_ms: 0, ..challenge() }.seal(&requester()).is_err());
    assert!(Challenge { from: u32::MAX, ..challenge() }.seal(&requester()).is_err());
    let bytes = challenge().seal(&requester()).unwrap();
    for bit in (0..bytes.len() * 8).step_by(11) {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Challenge::open(&bad).is_err(), "bit {bit}");
    }
}

/// The bytes that are signed and hashed, frozen: nodes of one protocol version agree on them.
#[test]
fn golden_digests_stay() {
    let proof = transcript(7, 16, Some(3), 3);
    let known = [
        ("genesis", terms(7).genesis()),
        ("head", proof.commit.head),
        ("inner", Leaf::inner_of(&[[1; 32], [2; 32]])),
        ("commit", *blake3::hash(&proof.commit.write()).as_bytes()),
        ("proof", *blake3::hash(&proof.encode().unwrap()).as_bytes()),
        ("offer", *blake3::hash(&work().offer(&stage()).unwrap()).as_bytes()),
        ("challenge", *blake3::hash(&challenge().seal(&requester()).unwrap()).as_bytes()),
    ];
    let now: Vec<String> =
        known.iter().map(|(name, digest)| format!("{name} {}", HEXLOWER.encode(digest))).collect();
    assert_eq!(include_str!("golden.txt").trim(), now.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn made_up_proofs_never_panic(at in any::<prop::sample::Index>(), junk in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = honest(0).encode().unwrap();
        bytes.truncate(at.index(bytes.len()));
        bytes.extend(junk);
        if let Ok(proof) = FraudProof::decode(&bytes) {
            prop_assert_eq!(proof.encode(), Ok(bytes));
            prop_assert!(proof.verify(NOW, &mut Layers).is_err());
        }
    }

    #[test]
    fn heads_tell_every_history_apart(
        a in prop::collection::vec(0..4_u8, 1..40),
        b in prop::collection::vec(0..4_u8, 1..40),
    ) {
        let head = |salts: &[u8]| {
            let mut chain = Chain::new(&terms(7), Grant::new(NOW, 1), 1, 64);
            (0..).zip(salts).for_each(|(pos, &salt)| chain.push(&leaf(pos, salt)).unwrap());
            *chain.head(chain.positions()).unwrap()
        };
        prop_assert_eq!(head(&a) == head(&b), a == b);
        prop_assert_eq!(EVERY, 16);
    }
}
