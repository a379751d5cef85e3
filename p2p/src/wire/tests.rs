//! All formats at once: golden bytes, round trips, and what damaged or made-up bytes do.
//!
//! `golden.txt` holds a line per sample: its name and its bytes in hex. They are what nodes of this protocol version
//! say to each other: when a line changes, so must the protocol name.

mod leases;
mod pseudo_links;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use proptest::prelude::*;
use scheduler::layer_cost::{LayerCost, LayerCosts};
use scheduler::{Claim, Holding, LayerRange, ModelId, NodeId, OperatorId, SessionId, SessionKind};

use super::announce::{Announcement, Class, Draft, Link, Offer, own_operator};
use super::control::{Answer, Ask, Contact, Lease, Refusal, Reuse, Role, Settlement, Source};
use super::delegate::{Event, Form, Prefix, Request};
use super::frame::{Header, Hello, Kind};
use super::pages::Permit;
use super::prefix::{Beginning, Name};
use super::receipt::{Receipt, Work};
use super::{Malformed, announce, control, delegate, frame, renewal::Renewal};
use crate::codec::{Rounding, Wire};
use crate::identity::Identity;

fn ask(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    Ask::decode(bytes).map(|ask| ask.encode())
}

fn answer(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    Answer::decode(bytes).map(|answer| answer.encode())
}

fn header(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let bytes = bytes.try_into().map_err(|_| Malformed("length"))?;
    Header::read(bytes).map(|header| header.write().to_vec())
}

fn hello(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let bytes = bytes.try_into().map_err(|_| Malformed("length"))?;
    Hello::read(bytes).map(|hello| hello.write().to_vec())
}

/// Prefix and body of a delegate stream.
fn delegated(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (prefix, body) = bytes.split_first_chunk().ok_or(Malformed("length"))?;
    let prefix = Prefix::read(prefix)?;
    if prefix.len as usize != body.len() {
        return Err(Malformed("length"));
    }
    let (prefix, body) = match prefix.kind {
        kind @ (delegate::Kind::Request | delegate::Kind::Text) => Request::decode(kind, body)?.encode(),
        kind => Event::decode(kind, body)?.encode(),
    };
    Ok([prefix.as_slice(), &body].concat())
}

/// An announcement cannot be written again without its key, so what was read is compared with what was said.
fn announced(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    announce::open(bytes).map(|_| bytes.to_vec())
}

fn renewed(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    Renewal::open(bytes).map(|it| Renewal::seal(&signer(), it.sequence, it.of))
}

/// Reads bytes and writes them again.
type Again = fn(&[u8]) -> Result<Vec<u8>, Malformed>;

fn contact() -> Contact {
    let addresses = ["/ip4/192.0.2.7/udp/4001/quic-v1", "/dns4/a.example/tcp/4001"];
    Contact { node: NodeId::numbered(9), addresses: addresses.map(str::to_owned).to_vec() }
}

fn lease() -> Lease {
    Lease {
        session: SessionId::numbered(5),
        epoch: 3,
        model: ModelId::numbered(2),
        layers: LayerRange::new(4, 12).unwrap(),
        positions: 4_096,
        at: 17,
        rounding: Rounding::new(Wire::Q8, vec![4, 8, 12]),
        kind: SessionKind::DEFAULT,
        next: Some(contact()),
        previous: Some(NodeId::numbered(8)),
        log: true,
        ttl_ms: 120_000,
        role: Role::Stage,
        reuse: Reuse::default(),
    }
}

fn beginning(positions: u32) -> Beginning {
    Beginning { positions, name: Name([7; 32]) }
}

fn signer() -> Identity {
    Identity::from_seed([42; 32])
}

/// Three dense layers before experts, every fifth of which sees more than a window.
fn costs() -> LayerCosts {
    let experts = LayerCost {
        row_work: 9_000_000,
        weight_bytes: 120_000_000,
        seen_work: 5_120,
        window: Some(1_024),
        state_bytes: 0,
        position_bytes: 1_024,
    };
    let layer = |index: u32| match index {
        0..3 => LayerCost { row_work: 30_000_000, weight_bytes: 30_000_000, ..experts },
        _ if index.is_multiple_of(5) => LayerCost { window: None, ..experts },
        _ => experts,
    };
    LayerCosts::new((0..28).map(layer).collect(), 2_048).unwrap()
}

fn draft() -> Draft {
    let node = signer().node();
    let offer = |number, name: &str| Offer {
        model: ModelId::numbered(number),
        name: name.to_owned(),
        num_layers: 28,
        hidden: 2_048,
        context: 32_768,
        file_bytes: 1_800_000_000,
        costs: (number == 2).then(costs),
    };
    let holding = |number, loaded: &[(u32, u32)]| Holding {
        model: ModelId::numbered(number),
        loaded: loaded.iter().map(|&(start, end)| LayerRange::new(start, end).unwrap()).collect(),
        on_disk: vec![LayerRange::new(0, 28).unwrap()],
        decode_ms: 0.9,
        prefill_ms: 0.2,
        visit_ms: 0.4,
        queue_ms: 0.0,
        load_ms: 80.0,
        active: 1,
        batch_knee: 4,
        kv_bytes: 200_000,
    };
    Draft {
        claim: Claim {
            node,
            operator: own_operator(node),
            sequence: 7,
            region: 3,
            access_ms: 4.5,
            up_bytes_per_ms: 1_250.0,
            down_bytes_per_ms: 12_500.0,
            draining: false,
            holdings: vec![holding(2, &[(0, 4), (24, 28)]), holding(3, &[])],
        },
        class: Class::D1,
        offers: vec![offer(2, "Tiny 1B"), offer(3, "")],
        links: vec![Link { to: NodeId::numbered(9), rtt_ms: 12.25 }],
        coordinate: None,
        rooms: Vec::new(),
        addresses: contact().addresses,
        ttl_ms: 60_000,
        agent: "shoal/0.1.0".to_owned(),
    }
}

fn request() -> Request {
    Request {
        model: Some(ModelId::numbered(2)),
        messages: r#"[{"role":"user","content":"é?"}]"#.to_owned(),
        form: Form::Conversation,
        sampling: br#"{"temperature":0.7}"#.to_vec(),
        seed: 11,
        max_tokens: 64,
        stop: vec!["\n\n".to_owned(), "END".to_owned()],
        emitted: vec![1, 2, 70_000],
        pooling: None,
    }
}

/// A document whose score is wanted.
fn document() -> Request {
    let pooling = delegate::Pooling { query: Some("é?".to_owned()), truncate: true };
    Request { form: Form::Marked, stop: Vec::new(), emitted: Vec::new(), pooling: Some(pooling), ..request() }
}

fn settlement() -> Settlement {
    Settlement {
        layers: LayerRange::new(4, 8).unwrap(),
        commit: [1; frame::COMMIT_LEN],
        offer: Box::new([2; Work::OFFER_LEN]),
    }
}

fn source() -> Source {
    let requester = Identity::from_seed([4; 32]);
    let permit =
        Permit::sign(&requester, contact().node, NodeId::numbered(6), beginning(1_024), 1_800_000_000);
    Source { contact: contact(), permit, outputs: beginning(16).name, worth_ms: 900 }
}

type Sample = (&'static str, Vec<u8>, Again);

/// One of everything, with how to read it.
static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(samples);

fn samples() -> Vec<Sample> {
    let (failed, why) = frame::Header::failed(3, 4, 17, "no memory");
    let begun = Reuse { beginnings: vec![beginning(1_024), beginning(16)], ..Reuse::default() };
    let sourced = Reuse { source: Some(Box::new(source())), ..begun.clone() };
    let filed = Reuse { on_disk: true, ..sourced.clone() };
    let with = |reuse| Ask::Lease(Box::new(Lease { reuse, ..lease() })).encode();
    let mut bare = lease();
    (bare.next, bare.rounding) = (None, Rounding::NONE);
    bare.previous = None;
    let one_address = Contact { addresses: contact().addresses[..1].to_vec(), ..contact() };
    let held = [LayerRange::new(0, 2).unwrap(), LayerRange::new(9, 12).unwrap()];
    let mut operated = draft();
    (operated.claim.operator, operated.class) = (OperatorId::numbered(8), Class::Approx);
    let framed = |(prefix, body): ([u8; 8], Vec<u8>)| [prefix.as_slice(), &body].concat();
    assert_eq!(frame::reason(why), Ok("no memory"));
    vec![
        ("hello", Hello { session: SessionId::numbered(5), epoch: 3 }.write().to_vec(), hello as Again),
        (
            "activations-q8",
            Header::activations(Wire::Q8, 3, 4, 17, 2, 2_048).unwrap().write().to_vec(),
            header,
        ),
        (
            "activations-raw",
            Header::activations(Wire::Raw, 3, 28, 0, 256, 8_192).unwrap().write().to_vec(),
            header,
        ),
        (
            "activations-draft",
            Header { drafted: 2, since: 5, ..Header::activations(Wire::Q8, 3, 4, 17, 3, 64).unwrap() }
                .under(0x0201)
                .write()
                .to_vec(),
            header,
        ),
        ("need-replay", Header::signal(Kind::NeedReplay, 3, 4, 16, 0).write().to_vec(), header),
        ("beacon", Header::signal(Kind::Beacon, 3, 4, 17, 0).write().to_vec(), header),
        ("waits", Header::signal(Kind::Waits, 3, 4, 16, 0).write().to_vec(), header),
        ("failed", failed.write().to_vec(), header),
        ("bye", Header::signal(Kind::Bye, 3, 0, 0, 0).write().to_vec(), header),
        ("commit", Header::signal(Kind::Commit, 3, 4, 16, frame::COMMIT_LEN).write().to_vec(), header),
        ("ask-lease", Ask::Lease(Box::new(lease())).encode(), ask),
        ("ask-lease-bare", Ask::Lease(Box::new(bare)).encode(), ask),
        ("ask-lease-beginnings", with(begun), ask),
        ("ask-lease-source", with(sourced), ask),
        ("ask-lease-on-disk", with(filed), ask),
        ("ask-release", Ask::Release { session: SessionId::numbered(5), epoch: 7 }.encode(), ask),
        ("ask-catch-up", Ask::CatchUp { have: 12 }.encode(), ask),
        ("ask-ping", Ask::Ping.encode(), ask),
        ("ask-probe", Ask::Probe(contact().addresses[0].clone()).encode(), ask),
        ("ask-dial-back", Ask::DialBack(one_address).encode(), ask),
        ("ask-catalog", Ask::Catalog { author: NodeId::new([9; 32]), sequence: 7 }.encode(), ask),
        ("answer-catalog", Answer::Catalog(b"{}".to_vec()).encode(), answer),
        ("answer-pong", Answer::Pong.encode(), answer),
        ("answer-accepted", Answer::Accepted { have: 16, sessions: 3, lanes: 4 }.encode(), answer),
        ("ask-settle", Ask::Settle { session: SessionId::numbered(5), upto: 40 }.encode(), ask),
        ("ask-receipt", Ask::Receipt(Box::new([7; Receipt::LEN])).encode(), ask),
        ("answer-refused", Answer::refused(Refusal::NoRoom, "8 GiB wanted").encode(), answer),
        ("answer-not-held", Answer::not_held(&held).encode(), answer),
        ("answer-released", Answer::Released.encode(), answer),
        ("answer-announcements", Answer::announcements([vec![1, 2], vec![], vec![3]]).encode(), answer),
        ("answer-settled", Answer::Settled(vec![settlement()]).encode(), answer),
        ("announcement", announce::seal(&draft(), &signer()).unwrap(), announced),
        ("announcement-operated", announce::seal(&operated, &signer()).unwrap(), announced),
        ("renewal", Renewal::seal(&signer(), 8, 5), renewed),
        ("delegate-request", framed(request().encode()), delegated),
        ("delegate-text", framed(document().encode()), delegated),
        ("delegate-pooled", framed(Event::Pooled { values: vec![0.5, -2.0] }.encode()), delegated),
        ("delegate-token", framed(Event::Token { id: 7, text: " é".to_owned() }.encode()), delegated),
        ("delegate-done", framed(Event::Done { finish: 1, report: "{}".to_owned() }.encode()), delegated),
        ("delegate-failed", framed(Event::Failed { reason: "busy".to_owned() }.encode()), delegated),
    ]
}

#[test]
fn golden_bytes_stay() {
    let frozen: BTreeMap<&str, &str> =
        include_str!("golden.txt").lines().filter_map(|line| line.split_once(' ')).collect();
    let samples = &*SAMPLES;
    let now: Vec<String> =
        samples.iter().map(|(name, bytes, _)| format!("{name} {}", HEXLOWER.encode(bytes))).collect();
    let same =
        now.iter().all(|line| line.split_once(' ').is_some_and(|(name, hex)| frozen.get(name) == Some(&hex)));
    assert!(same && frozen.len() == samples.len(), "the bytes are now\n{}\n", now.join("\n"));
}

#[test]
fn costs_of_layers_have_one_encoding_and_bounds() {
    let spoilt = |spoil: fn(&mut Draft)| {
        let mut draft = draft();
        spoil(&mut draft);
        announce::seal(&draft, &signer()).map(|bytes| bytes.len())
    };
    let layer = costs().layers()[0];
    let with = |costs| Draft {
        offers: vec![Offer { costs, ..draft().offers.remove(0) }, draft().offers.remove(1)],
        ..draft()
    };
    let len = |costs| announce::seal(&with(costs), &signer()).map(|bytes| bytes.len());
    let none = len(None).unwrap();
    assert_eq!(len(Some(costs())), Ok(none + 4 + 3 * 32 + 12 * 3), "{:?}", costs().runs().len());
    let many: Vec<_> = (0..28).map(|n| LayerCost { seen_work: n, ..layer }).collect();
    let refused = LayerCosts::new(many, 2_048).map(|many| len(Some(many)));
    assert_eq!(refused, Ok(Err(Malformed("announcement: kinds of layers"))));
    for (layers, values) in [(27, 2_048), (28, 2_047)] {
        let other = LayerCosts::new(vec![layer; layers], values).unwrap();
        assert_eq!(len(Some(other)), Err(Malformed("announcement: costs")));
    }
    assert_eq!(spoilt(|draft| draft.offers[0].hidden += 1), Err(Malformed("announcement: costs")));
}

#[test]
fn samples_read_back_the_same() {
    for (name, bytes, again) in SAMPLES.iter() {
        assert_eq!(again(bytes).as_ref(), Ok(bytes), "{name}");
    }
    assert_eq!(Ask::decode(&Ask::Lease(Box::new(lease())).encode()), Ok(Ask::Lease(Box::new(lease()))));
    for (kind, request) in [(delegate::Kind::Request, request()), (delegate::Kind::Text, document())] {
        assert_eq!(Request::decode(kind, &request.encode().1), Ok(request));
    }
    for values in [vec![], vec![f32::NAN], vec![1.0, f32::INFINITY]] {
        let (_, body) = Event::Pooled { values }.encode();
        assert_eq!(Event::decode(delegate::Kind::Pooled, &body), Err(Malformed("delegate: values")));
    }
    let opened = announce::open(&announce::seal(&draft(), &signer()).unwrap()).unwrap();
    assert_eq!(said(&opened), draft());
    let header = Header::activations(Wire::Q8, 3, 4, 17, 2, 2_048).unwrap();
    assert_eq!(Header::read(&header.write()), Ok(header));
    assert!(header.fits(2_048) && !header.fits(2_080) && header.to() == 19);
}

/// An announcement as the draft it came from.
fn said(it: &Announcement) -> Draft {
    Draft {
        claim: it.capability.claim().clone(),
        class: it.class,
        offers: it.offers.clone(),
        links: it.links.clone(),
        coordinate: it.coordinate,
        rooms: it.rooms.clone(),
        addresses: it.addresses.clone(),
        ttl_ms: it.ttl_ms,
        agent: it.agent.clone(),
    }
}

#[test]
fn truncated_and_trailing_bytes_are_refused() {
    for (name, bytes, again) in SAMPLES.iter() {
        for len in 0..bytes.len() {
            assert!(again(&bytes[..len]).is_err(), "{name}: {len} of {} bytes", bytes.len());
        }
        let long: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert!(again(&long).is_err(), "{name}: one byte more");
    }
}

/// A flipped bit is refused, or is another value with exactly these bytes; under a signature it is refused.
#[test]
fn flipped_bits_are_refused_or_mean_themselves() {
    for (name, bytes, again) in SAMPLES.iter() {
        // A signature takes its time, and under it one bit is as good as another.
        let step = if name.starts_with("announcement") { 31 } else { 1 };
        for bit in (0..bytes.len() * 8).step_by(step) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(written) = again(&bad) {
                assert!(!name.starts_with("announcement"), "{name}: bit {bit}");
                assert_eq!(written, bad, "{name}: bit {bit}");
            }
        }
    }
}

#[test]
fn spoiled_values_are_refused() {
    fn q8(boundaries: Vec<u32>) -> Rounding {
        Rounding::new(Wire::Q8, boundaries)
    }
    type Spoil = (&'static str, fn(&mut Lease));
    let spoils: [Spoil; 9] = [
        ("positions", |lease| lease.positions = 0),
        ("positions", |lease| lease.positions = control::MAX_POSITIONS + 1),
        ("at", |lease| lease.at = 4_097),
        ("layers", |lease| lease.layers = LayerRange::new(0, 1_025).unwrap()),
        ("rounding order", |lease| lease.rounding = q8(vec![4, 4])),
        ("rounding end", |lease| lease.rounding = q8(vec![1_025])),
        ("rounding count", |lease| lease.rounding = q8((0..70_000).collect())),
        ("ttl", |lease| lease.ttl_ms = 0),
        ("ttl", |lease| lease.ttl_ms = control::MAX_LEASE_TTL_MS + 1),
    ];
    for (what, spoil) in spoils {
        let mut bad = lease();
        spoil(&mut bad);
        assert!(Ask::decode(&Ask::Lease(Box::new(bad)).encode()).is_err(), "{what}");
    }
    for addresses in [
        vec!["/ip4/1.2.3.4".to_owned(); 9],
        vec![String::new()],
        vec!["a b".to_owned()],
        vec!["x".repeat(control::MAX_ADDRESS + 1)],
    ] {
        let mut bad = lease();
        bad.next = Some(Contact { node: NodeId::numbered(1), addresses });
        assert!(Ask::decode(&Ask::Lease(Box::new(bad)).encode()).is_err());
    }
}

#[test]
fn what_cannot_be_announced_is_not_sealed() {
    type Spoil = (&'static str, fn(&mut Draft));
    let spoils: [Spoil; 17] = [
        ("node", |draft| draft.claim.node = NodeId::numbered(1)),
        ("claim", |draft| draft.claim.access_ms = f64::NAN),
        ("claim", |draft| draft.claim.up_bytes_per_ms = 0.0),
        ("offers", |draft| draft.offers.truncate(1)),
        ("offers", |draft| draft.offers.reverse()),
        ("layers", |draft| draft.offers[0].num_layers = 27),
        ("model", |draft| draft.offers[0].num_layers = 0),
        ("model", |draft| draft.offers[0].hidden = 0),
        ("model", |draft| draft.offers[0].file_bytes = u64::MAX),
        ("name", |draft| draft.offers[0].name = "n".repeat(65)),
        ("name", |draft| draft.offers[0].name = "\u{1b}[2J".to_owned()),
        ("name", |draft| draft.offers[0].name = "a\u{202e}b".to_owned()),
        ("links", |draft| draft.links.push(draft.links[0])),
        ("link", |draft| draft.links[0].to = draft.claim.node),
        ("link", |draft| draft.links[0].rtt_ms = -1.0),
        ("ttl", |draft| draft.ttl_ms = 120_001),
        ("length", |draft| {
            draft.links = (10..80).map(|n| Link { to: NodeId::numbered(n), rtt_ms: 1.0 }).collect()
        }),
    ];
    assert!(announce::seal(&draft(), &signer()).is_ok());
    for (what, spoil) in spoils {
        let mut bad = draft();
        spoil(&mut bad);
        assert!(announce::seal(&bad, &signer()).is_err(), "{what}");
    }
    assert!(announce::seal(&draft(), &Identity::from_seed([1; 32])).is_err(), "another's key");
}

#[test]
fn an_announcement_is_not_signed_by_another() {
    let sealed = announce::seal(&draft(), &signer()).unwrap();
    let (body, _) = sealed.split_at(sealed.len() - 64);
    let thief = Identity::from_seed([1; 32]);
    for (key, domain) in [(&thief, "shoal/announce/1"), (&signer(), "shoal/commit/1")] {
        let forged = [body, &key.sign(domain, body)].concat();
        assert_eq!(announce::open(&forged), Err(Malformed("announcement: signature")));
    }
}

#[test]
fn an_own_operator_is_written_one_way() {
    let me = signer();
    let sealed = announce::seal(&draft(), &me).unwrap();
    assert_eq!(sealed[36], 0, "no operator is named");
    let named = [&sealed[..36], &[1], me.node().as_bytes(), &sealed[37..sealed.len() - 64]].concat();
    let signed = [named.as_slice(), &me.sign("shoal/announce/1", &named)].concat();
    assert_eq!(announce::open(&signed), Err(Malformed("announcement: operator")));
}

#[test]
fn headers_state_only_what_a_payload_can_be() {
    let sound = Header::activations(Wire::Q8, 1, 4, 0, 2, 64).unwrap();
    type Spoil = (&'static str, fn(&mut Header));
    let spoils: [Spoil; 12] = [
        ("no rows", |h| h.rows = 0),
        ("rows", |h| h.rows = 257),
        ("length", |h| h.len = 0),
        ("half a block", |h| h.len -= 2),
        ("not whole rows", |h| h.rows = 3),
        ("too long", |h| (h.rows, h.len) = (256, 256 * 34 * 964)),
        ("past the last position", |h| h.from = u32::MAX),
        ("layer", |h| h.layer = 1_025),
        ("nothing but drafts", |h| h.drafted = 2),
        ("drafts for a follower", |h| (h.kind, h.drafted) = (Kind::Feed, 1)),
        ("rows of a beacon", |h| h.kind = Kind::Beacon),
        ("commit", |h| (h.kind, h.rows, h.wire) = (Kind::Commit, 0, Wire::Raw)),
    ];
    for (what, spoil) in spoils {
        let mut bad = sound;
        spoil(&mut bad);
        assert!(Header::read(&bad.write()).is_err(), "{what}");
    }
    assert!(Header::activations(Wire::Q8, 1, 4, 0, 2, 33).is_err());
    assert!(Header::activations(Wire::Raw, 1, 4, 0, 256, 8_193).is_err());
    let long = "é".repeat(300);
    let (header, reason) = Header::failed(1, 4, 0, &long);
    assert_eq!((header.len, frame::reason(reason).unwrap().len()), (256, 256));
    assert!(Header::read(&header.write()).is_ok() && frame::reason(&[0xff]).is_err());
}

#[test]
fn answers_hold_what_fits() {
    let all = Answer::announcements((0..100).map(|_| vec![7; announce::MAX_ANNOUNCEMENT]));
    let bytes = all.encode();
    assert!(
        bytes.len() <= control::MAX_ANSWER
            && bytes.len() > control::MAX_ANSWER - announce::MAX_ANNOUNCEMENT - 2
    );
    assert_eq!(Answer::decode(&bytes), Ok(all));
    let many = Answer::announcements((0..5_000).map(|_| vec![1]));
    assert!(matches!(Answer::decode(&many.encode()), Ok(Answer::Announcements(list)) if list.len() == 1_024));
    let text = Answer::refused(Refusal::Busy, &"x".repeat(999)).encode();
    assert_eq!(text.len(), 6 + control::MAX_TEXT);
    let held = vec![LayerRange::new(0, 1).unwrap()];
    let odd = Answer::Refused { reason: Refusal::Busy, text: String::new(), held };
    assert!(Answer::decode(&odd.encode()).is_err(), "only who does not hold them says what it holds");
    for (sessions, lanes) in [(0, 0), (u32::MAX, 1), (0, u32::MAX)] {
        assert!(Answer::decode(&Answer::Accepted { have: 0, sessions, lanes }.encode()).is_err());
    }
}

/// Lists are allocated after their count was held against the bytes present: no item may be much larger in memory
/// than on the wire.
#[test]
fn memory_follows_the_bytes_present() {
    let ratios = [
        (size_of::<(Offer, Holding)>(), 124),
        (size_of::<Link>(), 40),
        (size_of::<LayerRange>(), 8),
        (size_of::<u32>(), 4),
        (size_of::<String>(), 3),
        (size_of::<Vec<u8>>(), 2),
    ];
    for (memory, wire) in ratios {
        assert!(memory <= 12 * wire, "{memory} bytes for {wire}");
    }
    // A megabyte of claims behind a few bytes of message.
    for count in [1_u32, 1 << 10, 1 << 20, u32::MAX] {
        let body = [&[0][..], &count.to_le_bytes()].concat();
        assert!(Request::decode(delegate::Kind::Request, &body).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_request_reads_back(
        messages in ".{0,200}",
        sampling in prop::collection::vec(any::<u8>(), 0..50),
        stop in prop::collection::vec(".{0,60}", 0..=16),
        emitted in prop::collection::vec(any::<u32>(), 0..300),
        form in prop::sample::select(&Form::ALL[..]),
        (seed, max_tokens) in any::<(u64, u32)>(),
    ) {
        let request =
            Request { model: None, messages, form, sampling, seed, max_tokens, stop, emitted, pooling: None };
        let (prefix, body) = request.encode();
        prop_assert_eq!(Prefix::read(&prefix).map(|prefix| prefix.len as usize), Ok(body.len()));
        prop_assert_eq!(Request::decode(delegate::Kind::Request, &body), Ok(request));
    }

    #[test]
    fn any_header_that_reads_can_be_followed(mut bytes in any::<[u8; 32]>()) {
        bytes[..4].copy_from_slice(b"shf1");
        bytes[4] %= 7;
        bytes[5] %= 3;
        bytes[6..8].fill(0);
        bytes[13..16].fill(0);
        bytes[21..24].fill(0);
        bytes[28..].fill(0);
        if let Ok(header) = Header::read(&bytes) {
            prop_assert!(header.len as usize <= frame::MAX_FRAME && header.rows <= frame::MAX_ROWS);
            prop_assert_eq!(header.write(), bytes);
        }
    }

    #[test]
    fn made_up_bytes_never_panic(index in 0..25_usize, at in any::<prop::sample::Index>(), junk in prop::collection::vec(any::<u8>(), 0..64)) {
        let (name, mut bytes, again) = SAMPLES[index].clone();
        let at = at.index(bytes.len());
        bytes.truncate(at);
        bytes.extend(junk);
        if let Ok(written) = again(&bytes) {
            prop_assert_eq!(written, bytes, "{}", name);
        }
    }
}
