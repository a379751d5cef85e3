//! Whether others can open connections to a node, judged from what they did and not from what they say.
//!
//! A router lets in whom its host has talked to, so a peer that this node is connected to proves little by dialing it. What
//! counts depends on where an address comes from ([`Origin`]):
//!
//! | origin | confirmed by |
//! |---|---|
//! | [`Origin::Named`] | the user's word, until [`MISSES`] prefixes could not dial it and more of them than could |
//! | [`Origin::Own`] | one connection of a host that this node never sent anything to, or connections from [`WITNESSES`] prefixes: no router translates the address, but a wall that lets in whom its host has talked to may stand before it |
//! | [`Origin::Seen`] | [`STRANGERS`] connections of hosts that this node never sent anything to, from as many prefixes other than its own |
//!
//! A prefix has one voice, its last. A confirmation counts for [`VALID_MS`] and is sought again at half of that, so that one
//! which is no longer true lapses; while prefixes disagree they are asked more often.
//!
//! ```text
//! address 203.0.113.7, seen by others:  192.0.2 strange, 198.51.100 strange           -> 2 of 3: not confirmed
//!                                       + 100.64.9 strange                            -> confirmed
//!                                       192.0.2 and 198.51.100 cannot dial it now     -> 1 of 3: not confirmed
//! ```
//!
//! Pure: time is an argument. Limits: [`MAX_ADDRESSES`] addresses with the last words of [`MAX_VOICES`] prefixes each; beyond,
//! the oldest goes. A swarm of fewer prefixes than [`STRANGERS`] never confirms an address behind a router: its relays and hole
//! punching serve there.

use std::collections::BTreeMap;

use crate::Millis;
use crate::governor::Prefix;

/// Prefixes of strangers that must have reached an address behind a router: full-cone routers and forwarded ports let in all of
/// them, others none.
pub const STRANGERS: usize = 3;
/// Prefixes whose hosts must have reached an address of an interface, when this node has talked to all of them: one of them
/// may be let in because of that, or be the one that a liar named.
pub const WITNESSES: usize = 2;
/// Prefixes that could not dial a confirmed address after which it may be believed no more: one may lie, or be cut off itself.
pub const MISSES: usize = 2;
/// How long a prefix's word counts, ms: mappings of home routers live for hours or go with the router's restart.
pub const VALID_MS: u64 = 30 * 60_000;
/// Addresses that are judged: a node's interfaces, and those that routers gave it lately.
pub const MAX_ADDRESSES: usize = 16;
/// Prefixes whose last word on an address is remembered.
pub const MAX_VOICES: usize = 16;
/// The first wait between two questions about an address, ms, which doubles while the answers do not change the verdict.
const FIRST_WAIT_MS: u64 = 2_000;

/// Where an address comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// Others saw this node there: a router's address.
    Seen,
    /// An interface of this host has it, or the router forwards it by its own word.
    Own,
    /// The user said so.
    Named,
}

/// What is known of the way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing was tried.
    Unknown,
    /// An address is confirmed.
    Confirmed,
    /// Others tried, and no address is confirmed.
    Hidden,
}

/// The last word of a prefix on an address.
#[derive(Clone, Copy, Debug)]
struct Voice {
    at: Millis,
    reached: bool,
    /// Whether this node had never sent anything to the host that dialed it.
    strange: bool,
}

#[derive(Clone, Debug)]
struct Address {
    origin: Origin,
    /// That of the address itself: a neighbor is not outside.
    home: Prefix,
    voices: BTreeMap<Prefix, Voice>,
    /// When it is asked about next, and how long was waited for that.
    due: Millis,
    wait_ms: u64,
    heard: Millis,
}

impl Address {
    fn fresh(&self, now: Millis) -> impl Iterator<Item = (&Prefix, &Voice)> {
        self.voices.iter().filter(move |(_, voice)| now.since(voice.at) < VALID_MS)
    }

    fn confirmed(&self, now: Millis) -> bool {
        let counts = |(prefix, voice): &(&Prefix, &Voice)| {
            voice.reached && (self.origin > Origin::Seen || voice.strange && **prefix != self.home)
        };
        let reached = self.fresh(now).filter(counts).count();
        let missed = self.fresh(now).filter(|(_, voice)| !voice.reached).count();
        let strange = || self.fresh(now).any(|(_, voice)| voice.reached && voice.strange);
        let enough = match self.origin {
            Origin::Named => true,
            Origin::Own => reached >= WITNESSES || strange(),
            Origin::Seen => reached >= STRANGERS,
        };
        enough && (missed < MISSES || missed <= reached)
    }

    /// Whether a fresh word contradicts the others.
    fn disputed(&self, now: Millis) -> bool {
        let mut words = self.fresh(now).map(|(_, voice)| voice.reached);
        let first = words.next();
        words.any(|word| Some(word) != first)
    }
}

/// The judge of a node's addresses, `A`; see the [module](self).
#[derive(Clone, Debug)]
pub struct Reach<A> {
    addresses: BTreeMap<A, Address>,
}

impl<A> Default for Reach<A> {
    fn default() -> Self {
        Self { addresses: BTreeMap::new() }
    }
}

impl<A: Ord + Clone> Reach<A> {
    /// An address to judge; `home` is its prefix. A better origin replaces a lesser one.
    pub fn learn(&mut self, address: A, origin: Origin, home: Prefix, now: Millis) {
        if let Some(known) = self.addresses.get_mut(&address) {
            known.origin = known.origin.max(origin);
            return;
        }
        if self.addresses.len() >= MAX_ADDRESSES {
            let oldest = self.addresses.iter().min_by_key(|(_, known)| (known.origin, known.heard));
            match oldest.filter(|(_, known)| known.origin <= origin).map(|(address, _)| address.clone()) {
                Some(oldest) => drop(self.addresses.remove(&oldest)),
                None => return,
            }
        }
        let due = now + FIRST_WAIT_MS;
        let known =
            Address { origin, home, voices: BTreeMap::new(), due, wait_ms: FIRST_WAIT_MS, heard: now };
        self.addresses.insert(address, known);
    }

    /// The address is this node's no more.
    pub fn forget(&mut self, address: &A) {
        self.addresses.remove(address);
    }

    /// The addresses that are judged, and where they come from.
    pub fn addresses(&self) -> impl Iterator<Item = (&A, Origin)> {
        self.addresses.iter().map(|(address, known)| (address, known.origin))
    }

    /// Where an address comes from; `None` for one that is not judged.
    pub fn origin(&self, address: &A) -> Option<Origin> {
        self.addresses.get(address).map(|known| known.origin)
    }

    /// A host of the prefix `by` opened a connection to the address; `strange`: this node had never sent it anything.
    pub fn reached(&mut self, address: &A, by: Prefix, strange: bool, now: Millis) {
        self.hear(address, by, Voice { at: now, reached: true, strange });
    }

    /// A host of the prefix `by` says that no connection to the address could be opened.
    pub fn missed(&mut self, address: &A, by: Prefix, now: Millis) {
        self.hear(address, by, Voice { at: now, reached: false, strange: false });
    }

    fn hear(&mut self, address: &A, by: Prefix, mut voice: Voice) {
        let Some(known) = self.addresses.get_mut(address) else { return };
        let now = voice.at;
        let before = known.confirmed(now);
        if let Some(last) = known.voices.get(&by).filter(|last| last.reached && voice.reached) {
            // Who was a stranger once has proved more than it can prove again.
            voice.strange |= last.strange && now.since(last.at) < VALID_MS;
        } else if known.voices.len() >= MAX_VOICES && !known.voices.contains_key(&by) {
            let oldest = known.voices.iter().min_by_key(|(_, voice)| voice.at).map(|(prefix, _)| *prefix);
            if let Some(oldest) = oldest {
                known.voices.remove(&oldest);
            }
        }
        known.voices.insert(by, voice);
        known.heard = now;
        if known.confirmed(now) != before || known.disputed(now) && known.wait_ms > VALID_MS / 8 {
            (known.due, known.wait_ms) = (now + FIRST_WAIT_MS, FIRST_WAIT_MS);
        }
    }

    /// Whether the address is confirmed.
    pub fn is_confirmed(&self, address: &A, now: Millis) -> bool {
        self.addresses.get(address).is_some_and(|known| known.confirmed(now))
    }

    /// The addresses that are confirmed.
    pub fn confirmed(&self, now: Millis) -> Vec<A> {
        let confirmed = self.addresses.iter().filter(|(_, known)| known.confirmed(now));
        confirmed.map(|(address, _)| address.clone()).collect()
    }

    /// What follows for the node.
    pub fn standing(&self, now: Millis) -> Standing {
        if self.addresses.values().any(|known| known.confirmed(now)) {
            return Standing::Confirmed;
        }
        match self.addresses.values().any(|known| !known.voices.is_empty()) {
            true => Standing::Hidden,
            false => Standing::Unknown,
        }
    }

    /// The address that others should be asked to dial now, if one is due; it is put off by that.
    pub fn due(&mut self, now: Millis) -> Option<A> {
        let due = self.addresses.iter_mut().filter(|(_, known)| known.due <= now);
        let (address, known) = due.min_by_key(|(_, known)| known.due)?;
        let most = if known.disputed(now) { VALID_MS / 8 } else { VALID_MS / 3 };
        known.wait_ms = (known.wait_ms * 2).min(most);
        known.due = now + known.wait_ms;
        Some(address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    /// Prefixes and their words, see [`after`].
    type Trace = &'static [(u8, char)];

    fn prefix(number: u8) -> Prefix {
        Prefix::V4([127, 0, number])
    }

    fn at(minutes: u64) -> Millis {
        Millis(minutes * MINUTE)
    }

    fn judge(origin: Origin) -> Reach<&'static str> {
        let mut reach = Reach::default();
        reach.learn("here", origin, prefix(0), at(0));
        reach
    }

    /// What a trace of `prefix +` (a stranger reached it), `~` (a known host did) and `-` (it could not), a word each minute, leads to.
    fn after(origin: Origin, trace: &[(u8, char)]) -> Reach<&'static str> {
        let mut reach = judge(origin);
        for (minute, (by, word)) in trace.iter().enumerate() {
            let now = at(minute as u64);
            match word {
                '-' => reach.missed(&"here", prefix(*by), now),
                word => reach.reached(&"here", prefix(*by), *word == '+', now),
            }
        }
        reach
    }

    #[test]
    fn what_confirms_an_address_depends_on_where_it_comes_from() {
        let cases: &[(Origin, Trace, bool)] = &[
            (Origin::Named, &[], true),
            (Origin::Named, &[(1, '-')], true),
            (Origin::Named, &[(1, '-'), (1, '-'), (1, '-')], true),
            (Origin::Named, &[(1, '-'), (2, '-')], false),
            (Origin::Own, &[], false),
            (Origin::Own, &[(1, '~')], false),
            (Origin::Own, &[(1, '~'), (1, '~')], false),
            (Origin::Own, &[(1, '~'), (2, '~')], true),
            (Origin::Own, &[(1, '~'), (2, '~'), (2, '-')], false),
            (Origin::Own, &[(1, '+')], true),
            (Origin::Own, &[(1, '+'), (1, '~')], true),
            (Origin::Own, &[(1, '+'), (1, '-')], false),
            (Origin::Own, &[(1, '+'), (2, '-')], true),
            (Origin::Own, &[(1, '+'), (2, '-'), (3, '-')], false),
            (Origin::Own, &[(1, '+'), (2, '-'), (3, '-'), (3, '+')], true),
            (Origin::Seen, &[(1, '+'), (2, '+')], false),
            (Origin::Seen, &[(1, '+'), (1, '+'), (1, '+')], false),
            (Origin::Seen, &[(1, '~'), (2, '~'), (3, '~'), (4, '~')], false),
            (Origin::Seen, &[(1, '+'), (2, '+'), (0, '+')], false),
            (Origin::Seen, &[(1, '+'), (2, '+'), (3, '+')], true),
            (Origin::Seen, &[(1, '+'), (2, '+'), (3, '+'), (1, '~')], true),
            (Origin::Seen, &[(1, '+'), (2, '+'), (3, '+'), (3, '-')], false),
            (Origin::Seen, &[(1, '+'), (2, '+'), (3, '+'), (4, '-'), (5, '-')], true),
            (Origin::Seen, &[(1, '+'), (2, '+'), (3, '+'), (4, '-'), (5, '-'), (6, '-'), (7, '-')], false),
        ];
        for (origin, trace, confirmed) in cases {
            let reach = after(*origin, trace);
            let now = at(trace.len() as u64);
            assert_eq!(reach.is_confirmed(&"here", now), *confirmed, "{origin:?} {trace:?}");
            let standing = match (confirmed, trace.is_empty()) {
                (true, _) => Standing::Confirmed,
                (false, true) => Standing::Unknown,
                (false, false) => Standing::Hidden,
            };
            assert_eq!(reach.standing(now), standing, "{origin:?} {trace:?}");
        }
    }

    #[test]
    fn confirmations_age_and_the_user_s_word_does_not() {
        let trace = [(1, '+'), (2, '+'), (3, '+')];
        for origin in [Origin::Own, Origin::Seen] {
            let reach = after(origin, &trace);
            assert!(reach.is_confirmed(&"here", Millis(VALID_MS - 1)));
            assert!(!reach.is_confirmed(&"here", at(3) + VALID_MS));
            assert_eq!(reach.standing(at(3) + VALID_MS), Standing::Hidden, "it once was");
        }
        let named = after(Origin::Named, &[(1, '-'), (2, '-')]);
        assert!(named.is_confirmed(&"here", at(2) + VALID_MS));
    }

    #[test]
    fn questions_come_soon_then_rarely_and_before_a_confirmation_lapses() {
        let mut reach = judge(Origin::Own);
        let asked: Vec<u64> = (0..8 * 3_600).filter(|s| reach.due(Millis(s * 1_000)).is_some()).collect();
        assert_eq!(asked[..4], [2, 6, 14, 30], "doubling");
        let gaps: Vec<u64> = asked.windows(2).map(|pair| (pair[1] - pair[0]) * 1_000).collect();
        assert!(gaps.iter().all(|gap| *gap <= VALID_MS / 3 + 1_000) && gaps.len() < 64, "{gaps:?}");
        // A change of the verdict is looked at again at once.
        let now = Millis(9 * 3_600_000);
        reach.reached(&"here", prefix(1), true, now);
        assert_eq!(reach.due(now + FIRST_WAIT_MS), Some("here"));
    }

    #[test]
    fn a_router_that_shuts_is_found_out_before_its_confirmations_lapse() {
        let mut reach = after(Origin::Seen, &[(1, '+'), (2, '+'), (3, '+')]);
        let mut left = None;
        for second in 180..3_600_u64 {
            let now = Millis(second * 1_000);
            if reach.due(now).is_some() {
                reach.missed(&"here", prefix(4 + (second % 4) as u8), now);
            }
            if !reach.is_confirmed(&"here", now) {
                left = Some(second);
                break;
            }
        }
        assert!(left.is_some_and(|second| second * 1_000 < VALID_MS), "{left:?}");
    }

    #[test]
    fn a_flood_of_addresses_and_voices_is_bounded_and_keeps_the_better_ones() {
        let mut reach = Reach::default();
        reach.learn(0, Origin::Own, prefix(0), at(0));
        for address in 1..1_000 {
            reach.learn(address, Origin::Seen, prefix(0), at(address));
            reach.reached(&address, prefix(1), false, at(address));
        }
        assert_eq!(reach.addresses.len(), MAX_ADDRESSES);
        assert_eq!((reach.origin(&0), reach.origin(&1)), (Some(Origin::Own), None));
        for by in 0..=255 {
            reach.reached(&0, prefix(by), false, at(u64::from(by)));
        }
        assert_eq!(reach.addresses[&0].voices.len(), MAX_VOICES);
        reach.forget(&0);
        assert_eq!(reach.origin(&0), None);
    }
}
