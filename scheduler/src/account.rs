//! Who has worked for whom, as both signed: a balance with every peer, used for priority and for nothing else.
//!
//! Each receipt counts on two accounts, once as given and once as taken, so what all nodes gave is what all nodes
//! took: no node mints credit. A balance is between two nodes only. Ten keys of one cheat that sign for each other
//! gain nothing with other nodes, and there is no currency to inflate.
//!
//! From the balance follows a [`Tier`], and from the tier a share of the slots of [`crate::admit`]: a quarter,
//! half, all and twice the concurrency cap for bronze, silver, gold and platinum. Shares are borrowed, not owned:
//! what one tier does not use the others take. Newcomers are bronze, and bronze has always a slot.
//!
//! Work is counted in layer-positions of decoding, a layer by what it costs beside the others of its model: a dense layer
//! counts for more than one of experts. A position of a prompt costs a fifth of that.
//!
//! [`LayerCosts::weight`]: crate::layer_cost::LayerCosts::weight

use std::collections::{BTreeMap, BTreeSet};

use crate::admit;
use crate::{NodeId, SessionId};

/// Receipts older than this count no more, seconds: one day. So the ledger forgets which it counted.
pub const MAX_AGE_S: u32 = 86_400;
/// A receipt from further in the future is refused, seconds: how far two honest clocks may be apart.
pub const MAX_SKEW_S: u32 = 300;
/// Receipts remembered; beyond so many in one day no more are counted.
pub const MAX_RECEIPTS: usize = 1 << 16;
/// Peers with an account; beyond so many no new one is opened, and its owner stays bronze.
pub const MAX_PEERS: usize = 1 << 14;
/// Positions of decoding that one unit of prompt work is worth: prompts are computed many positions at once.
const PREFILL_PER_DECODE: u64 = 5;
/// Credit that makes a peer gold, units: about a thousand tokens through eight layers.
const GOLD_UNITS: u64 = 40_000;
/// Credit that makes a peer platinum, units.
const PLATINUM_UNITS: u64 = 16 * GOLD_UNITS;

/// Work that stage and requester signed for; the reader of the receipt has checked both signatures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Who worked.
    pub stage: NodeId,
    /// For whom.
    pub requester: NodeId,
    /// In which session.
    pub session: SessionId,
    /// Which of the stage's chains in it.
    pub grant: u64,
    /// What the layers run take, in thousandths of the model's mean layer
    /// ([`LayerCosts::weight`](crate::layer_cost::LayerCosts::weight)).
    pub milli_layers: u64,
    /// Positions of prompts.
    pub prefill_tokens: u32,
    /// Positions one by one.
    pub decode_tokens: u32,
    /// When it ended, seconds of Unix time.
    pub ended_unix_s: u32,
}

impl Work {
    /// What it is worth, units: a fifth of a layer-position of decoding each.
    pub fn units(&self) -> u64 {
        let tokens = u64::from(self.prefill_tokens) + PREFILL_PER_DECODE * u64::from(self.decode_tokens);
        self.milli_layers.saturating_mul(tokens) / 1_000
    }
}

/// What became of a receipt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It counts.
    Counted,
    /// It counted before.
    Known,
    /// It is between others, or with oneself.
    NotMine,
    /// It is too old, or from the future.
    Stale,
    /// There is no room for it; see [`MAX_RECEIPTS`] and [`MAX_PEERS`].
    Full,
}

/// How a peer stands, the lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// Gave little of what it took, or is new.
    Bronze,
    /// Gave at least a quarter of what it took.
    Silver,
    /// Gave what it took, and something to speak of.
    Gold,
    /// Gave twice what it took, and much.
    Platinum,
}

impl Tier {
    /// All tiers, the lowest first, as [`admit::Limits::tiers`] orders them.
    pub const ALL: [Self; 4] = [Self::Bronze, Self::Silver, Self::Gold, Self::Platinum];

    /// The shares of all tiers in a node that runs `cap` sessions at once.
    pub fn shares(cap: u32) -> Vec<admit::Tier> {
        let share = |(weight, quarters): (f64, u32)| admit::Tier {
            weight,
            share: (u64::from(cap) * u64::from(quarters) / 4).clamp(1, u64::from(u32::MAX)) as u32,
        };
        [(1.0, 1), (2.0, 2), (4.0, 4), (8.0, 8)].map(share).to_vec()
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Account {
    /// Units it worked for us.
    given: u64,
    /// Units we worked for it.
    taken: u64,
}

/// One node's accounts.
#[derive(Clone, Debug)]
pub struct Ledger {
    me: NodeId,
    accounts: BTreeMap<NodeId, Account>,
    /// By time, so that the old ones leave from the front.
    counted: BTreeSet<(u32, NodeId, SessionId, u64)>,
    known: BTreeSet<(NodeId, SessionId, u64)>,
}

impl Ledger {
    /// The empty ledger of a node.
    pub fn new(me: NodeId) -> Self {
        Self { me, accounts: BTreeMap::new(), counted: BTreeSet::new(), known: BTreeSet::new() }
    }

    /// Enters a receipt, once.
    pub fn enter(&mut self, now_unix_s: u32, work: &Work) -> Entry {
        self.forget(now_unix_s);
        let i_worked = work.stage == self.me;
        if i_worked == (work.requester == self.me) {
            return Entry::NotMine;
        }
        let age = now_unix_s.saturating_sub(work.ended_unix_s);
        if age > MAX_AGE_S || work.ended_unix_s > now_unix_s.saturating_add(MAX_SKEW_S) {
            return Entry::Stale;
        }
        let key = (work.stage, work.session, work.grant);
        if self.known.contains(&key) {
            return Entry::Known;
        }
        let peer = if i_worked { work.requester } else { work.stage };
        let new = !self.accounts.contains_key(&peer);
        if self.known.len() >= MAX_RECEIPTS || (new && self.accounts.len() >= MAX_PEERS) {
            return Entry::Full;
        }
        self.known.insert(key);
        self.counted.insert((work.ended_unix_s, key.0, key.1, key.2));
        let account = self.accounts.entry(peer).or_default();
        let side = if i_worked { &mut account.taken } else { &mut account.given };
        *side = side.saturating_add(work.units());
        Entry::Counted
    }

    fn forget(&mut self, now_unix_s: u32) {
        while let Some(&oldest) = self.counted.first() {
            if now_unix_s.saturating_sub(oldest.0) <= MAX_AGE_S {
                break;
            }
            self.counted.remove(&oldest);
            self.known.remove(&(oldest.1, oldest.2, oldest.3));
        }
    }

    /// What `peer` gave me beyond what it took, units; the peer's own ledger says the negative.
    pub fn balance(&self, peer: NodeId) -> i128 {
        let account = self.accounts.get(&peer).copied().unwrap_or_default();
        i128::from(account.given) - i128::from(account.taken)
    }

    /// What I gave to all peers beyond what I took from them, in layer-positions of decoding.
    pub fn surplus(&self) -> i128 {
        let units: i128 = self.accounts.keys().map(|peer| -self.balance(*peer)).sum();
        units / i128::from(PREFILL_PER_DECODE)
    }

    /// Peers above the lowest tier.
    pub fn contributors(&self) -> usize {
        self.accounts.keys().filter(|peer| self.tier(**peer) > Tier::Bronze).count()
    }

    /// How `peer` stands with me.
    pub fn tier(&self, peer: NodeId) -> Tier {
        let Account { given, taken } = self.accounts.get(&peer).copied().unwrap_or_default();
        if given >= PLATINUM_UNITS && given / 2 >= taken {
            Tier::Platinum
        } else if given >= GOLD_UNITS && given >= taken {
            Tier::Gold
        } else if given > 0 && given >= taken / 4 {
            Tier::Silver
        } else {
            Tier::Bronze
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Ledger, MAX_AGE_S, Tier, Work};
    use crate::{NodeId, SessionId};
    use proptest::prelude::*;

    const NOW: u32 = 1_800_000_000;

    fn work(stage: u64, requester: u64, grant: u64, decode_tokens: u32) -> Work {
        Work {
            stage: NodeId::numbered(stage),
            requester: NodeId::numbered(requester),
            session: SessionId::numbered(1),
            grant,
            milli_layers: 8_000,
            prefill_tokens: 10,
            decode_tokens,
            ended_unix_s: NOW,
        }
    }

    #[test]
    fn a_heavy_layer_counts_for_more_than_a_light_one() {
        let mut me = Ledger::new(NodeId::numbered(1));
        // One layer of a model whose mean layer costs a third of it, and one that costs half of the mean.
        me.enter(NOW, &Work { milli_layers: 3_000, ..work(2, 1, 1, 100) });
        me.enter(NOW, &Work { milli_layers: 500, ..work(3, 1, 1, 100) });
        let balances = [2, 3].map(|node| me.balance(NodeId::numbered(node)));
        assert_eq!(balances, [3 * 510, 510 / 2]);
    }

    #[test]
    fn a_receipt_counts_once_and_only_for_its_parties() {
        let mut me = Ledger::new(NodeId::numbered(1));
        assert_eq!(me.enter(NOW, &work(2, 1, 7, 100)), Entry::Counted);
        assert_eq!(me.enter(NOW, &work(2, 1, 7, 100)), Entry::Known);
        assert_eq!(me.enter(NOW, &work(2, 1, 7, 900)), Entry::Known, "the same work with another figure");
        assert_eq!(me.enter(NOW, &work(2, 3, 8, 100)), Entry::NotMine);
        assert_eq!(me.enter(NOW, &work(1, 1, 9, 100)), Entry::NotMine);
        assert_eq!(me.balance(NodeId::numbered(2)), 8 * (10 + 500));
        assert_eq!(
            me.enter(NOW + MAX_AGE_S + 1, &work(2, 1, 7, 100)),
            Entry::Stale,
            "forgotten, and too old"
        );
        assert_eq!(me.enter(NOW - 301, &work(2, 1, 9, 100)), Entry::Stale);
    }

    #[test]
    fn tiers_follow_what_was_given() {
        let mut me = Ledger::new(NodeId::numbered(1));
        let peer = NodeId::numbered(2);
        let mut grant = 0;
        let mut step = |gives: bool, tokens: u32| {
            grant += 1;
            let work = if gives { work(2, 1, grant, tokens) } else { work(1, 2, grant, tokens) };
            assert_eq!(me.enter(NOW, &work), Entry::Counted);
            me.tier(peer)
        };
        assert_eq!(step(false, 1), Tier::Bronze);
        assert_eq!(step(true, 10), Tier::Silver);
        assert_eq!(step(true, 1_000), Tier::Gold);
        assert_eq!(step(true, 20_000), Tier::Platinum);
        assert_eq!(step(false, 15_000), Tier::Gold);
        assert_eq!(step(false, 15_000), Tier::Silver);
        assert_eq!(step(false, 1_000_000), Tier::Bronze);
        assert_eq!(Ledger::new(peer).tier(NodeId::numbered(9)), Tier::Bronze, "a newcomer");
    }

    #[test]
    fn every_tier_has_a_slot() {
        let shares = |cap| Tier::shares(cap).iter().map(|tier| tier.share).collect::<Vec<_>>();
        assert_eq!(shares(8), [2, 4, 8, 16]);
        assert_eq!(shares(1), [1, 1, 1, 2]);
        assert_eq!(shares(0), [1, 1, 1, 1]);
        assert_eq!(Tier::ALL.len(), shares(4).len());
    }

    proptest! {
        #[test]
        fn credit_is_conserved(
            receipts in prop::collection::vec((0..5_u64, 0..5_u64, 0..40_u64), 0..120),
            order in any::<u64>(),
        ) {
            let mut ledgers: Vec<Ledger> = (0..5).map(|node| Ledger::new(NodeId::numbered(node))).collect();
            // Both parties sign one text for one grant, so a grant has one figure.
            let works: Vec<Work> =
                receipts.iter().map(|&(a, b, grant)| work(a, b, grant * 25 + a * 5 + b, grant as u32 + 1)).collect();
            for (index, ledger) in ledgers.iter_mut().enumerate() {
                // Every node hears everything, some of it twice, in an order of its own.
                let mut heard: Vec<&Work> = works.iter().chain(&works).collect();
                let len = heard.len().max(1);
                heard.rotate_left((order as usize).wrapping_mul(index + 1) % len);
                heard.iter().for_each(|work| {
                    ledger.enter(NOW, work);
                });
            }
            let mut sum = 0;
            for a in 0..5_usize {
                for b in 0..5_usize {
                    let balance = |x: usize, y: usize| ledgers[x].balance(NodeId::numbered(y as u64));
                    prop_assert_eq!(balance(a, b), -balance(b, a));
                    sum += balance(a, b);
                }
            }
            prop_assert_eq!(sum, 0);
        }
    }
}
