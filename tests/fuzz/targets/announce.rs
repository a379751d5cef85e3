//! Any bytes as an announcement. Signatures cannot be guessed, so the body is also signed with the key of the target, as
//! a hostile node would sign it: what is accepted then can be said again. The same as a renewal.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use p2p::identity::Identity;
use p2p::wire::announce::{Draft, MAX_ANNOUNCEMENT, MAX_LINKS, MAX_TTL_MS, open, seal};
use p2p::wire::renewal::Renewal;

static HOSTILE: LazyLock<Identity> = LazyLock::new(|| Identity::from_seed([42; 32]));

fuzz_target!(|bytes: &[u8]| {
    let _ = open(bytes);
    let mut body = bytes.get(..bytes.len().saturating_sub(64)).unwrap_or_default().to_vec();
    if let Some(node) = body.get_mut(4..36) {
        node.copy_from_slice(HOSTILE.node().as_bytes());
    }
    let signed = |domain| [body.as_slice(), &HOSTILE.sign(domain, &body)].concat();
    let renewal = signed("shoal/renewal/1");
    if let Ok(it) = Renewal::open(&renewal) {
        assert_eq!(Renewal::seal(&HOSTILE, it.sequence, it.of), renewal);
    }
    let sealed = signed("shoal/announce/2");
    let Ok(it) = open(&sealed) else { return };
    assert!(sealed.len() <= MAX_ANNOUNCEMENT && it.links.len() <= MAX_LINKS && it.ttl_ms <= MAX_TTL_MS);
    assert_eq!(it.offers.len(), it.capability.claim().holdings.len());
    let draft = Draft {
        claim: it.capability.claim().clone(),
        class: it.class,
        offers: it.offers,
        links: it.links,
        coordinate: it.coordinate,
        rooms: it.rooms,
        addresses: it.addresses,
        ttl_ms: it.ttl_ms,
        agent: it.agent,
    };
    assert_eq!(seal(&draft, &HOSTILE).expect("what was accepted can be said"), sealed);
});
