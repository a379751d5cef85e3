//! What others may hold or spend of a node: one table of limits and one set of books that every door asks.
//!
//! A door that lets something in (a handshake, a connection, a stream, the bytes of a frame, a lease, a dial to an address
//! that a stranger named, a request of a client of the API) [takes](Books::take) the amount of a [`Resource`] for the one that asks, and gives it back when it
//! is over. An amount counts three times: for the peer, for its address [`Prefix`] and for the whole node. Identities are
//! free, addresses are not: without the middle count one host with many keys takes everything.
//!
//! A resource is either held until it is given back, or spent and returns by itself with time ([`Measure`]). Time is an
//! argument. The table is [`TABLE`]; a node may run with other numbers ([`Limits::set`]).
//!
//! Not here: how long a single message may be, which its reader knows before it takes anything, and what this node does of
//! its own accord.
//!
//! Limits: the books have an entry for each peer and prefix that holds or has spent something, hence at most as many as
//! the node's own limit of each resource allows; an entry that is back at zero is forgotten.

mod prefix;
mod table;

use std::collections::BTreeMap;
use std::fmt;

pub use prefix::Prefix;
pub use table::TABLE;

use crate::{Millis, NodeId};

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Something of which a node has a bounded amount for others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resource {
    /// Connections that come in and have not proved who they are, over TCP or a relay.
    Handshakes,
    /// The same over QUIC, which have a budget of their own so that neither kind keeps the other out.
    QuicHandshakes,
    /// Connections that others opened.
    Connections,
    /// Streams of a plane that others opened.
    Streams,
    /// Asks being read or answered.
    Asks,
    /// Bytes of frames that came from others and are not computed yet.
    Bytes,
    /// Leases of others: a place for a session.
    Leases,
    /// Work that asks and announcements make before anything else decides on them, microseconds at fixed prices: what a clock
    /// measures on a busy machine would shut out the wrong ones.
    Cpu,
    /// Dials to addresses that another node named. The prefix is that of the address, the peer the one who named it.
    Dials,
    /// Positions of ended sessions that are remembered for the next of the same requester.
    Kept,
    /// Members of the swarm that are reached through this node.
    Reservations,
    /// Conversations that this node passes on. The peer is the one who dials.
    Circuits,
    /// Sessions of datagrams with neighbors.
    Links,
    /// Bytes that are sent back so that a neighbor can measure its links.
    Echoes,
    /// Streams over which others fetch models.
    Uploads,
    /// Bytes of states that are handed to other nodes or come from them, while they do.
    Pages,
    /// Bytes of frames kept for sessions that this node only stands by for.
    StandbyBytes,
    /// Connections to the API over HTTP.
    HttpConnections,
    /// Bytes of bodies that the API reads or parses.
    HttpBytes,
    /// Answers over HTTP, from the request to the last byte read. The peer is the holder of a key.
    Answers,
    /// Forms of answers that are tried, or wait for it.
    Forms,
    /// Commands of this machine that the node attends to.
    Callers,
}

impl Resource {
    /// Every resource, in the order of [`TABLE`].
    pub const ALL: [Self; 22] = [
        Self::Handshakes,
        Self::QuicHandshakes,
        Self::Connections,
        Self::Streams,
        Self::Asks,
        Self::Bytes,
        Self::Leases,
        Self::Cpu,
        Self::Dials,
        Self::Kept,
        Self::Reservations,
        Self::Circuits,
        Self::Links,
        Self::Echoes,
        Self::Uploads,
        Self::Pages,
        Self::StandbyBytes,
        Self::HttpConnections,
        Self::HttpBytes,
        Self::Answers,
        Self::Forms,
        Self::Callers,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::QuicHandshakes => "quic_handshakes",
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Asks => "asks",
            Self::Bytes => "bytes",
            Self::Leases => "leases",
            Self::Cpu => "cpu_us",
            Self::Dials => "dials",
            Self::Kept => "kept_positions",
            Self::Reservations => "reservations",
            Self::Circuits => "circuits",
            Self::Links => "links",
            Self::Echoes => "echo_bytes",
            Self::Uploads => "uploads",
            Self::Pages => "pages_bytes",
            Self::StandbyBytes => "standby_bytes",
            Self::HttpConnections => "http_connections",
            Self::HttpBytes => "http_body_bytes",
            Self::Answers => "answers",
            Self::Forms => "forms",
            Self::Callers => "callers",
        }
    }

    /// Whether it is clients of this machine that hold it, not other nodes.
    pub const fn is_of_clients(self) -> bool {
        matches!(self, Self::HttpConnections | Self::HttpBytes | Self::Answers | Self::Forms | Self::Callers)
    }
}

/// How an amount comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Held until it is given back.
    Held,
    /// Spent; the whole limit comes back evenly within so many milliseconds.
    Spent {
        /// The time, ms, above zero.
        within_ms: u64,
    },
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Of what.
    pub resource: Resource,
    /// How an amount comes back.
    pub measure: Measure,
    /// For all others together.
    pub node: u64,
    /// For all peers of one address prefix.
    pub prefix: u64,
    /// For one peer.
    pub peer: u64,
    /// Why these numbers.
    pub why: &'static str,
}

/// The limits a node runs with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits([Limit; Resource::ALL.len()]);

impl Default for Limits {
    fn default() -> Self {
        Self(TABLE)
    }
}

impl Limits {
    /// The row of a resource.
    pub fn of(&self, resource: Resource) -> &Limit {
        &self.0[resource as usize]
    }

    /// The same table with other numbers for one resource: node, prefix, peer.
    #[must_use]
    pub fn set(mut self, resource: Resource, [node, prefix, peer]: [u64; 3]) -> Self {
        let row = &mut self.0[resource as usize];
        (row.node, row.prefix, row.peer) = (node, prefix, peer);
        self
    }
}

/// For whom an amount is taken; what is not known does not count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holder {
    /// Where it comes from.
    pub prefix: Option<Prefix>,
    /// Who it is, proved.
    pub peer: Option<NodeId>,
}

/// For whom a limit is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// All others together.
    Node,
    /// The peers of a prefix.
    Prefix(Prefix),
    /// A peer.
    Peer(NodeId),
}

/// A limit was reached; nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Of what.
    pub resource: Resource,
    /// Whose limit.
    pub scope: Scope,
    /// The limit.
    pub limit: u64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, scope, limit } = self;
        let name = resource.name();
        match scope {
            Scope::Node => write!(f, "this node has reached its limit of {limit} {name}"),
            Scope::Prefix(prefix) => {
                write!(f, "{prefix} has reached the limit of {limit} {name} for a prefix")
            }
            Scope::Peer(_) => write!(f, "this peer has reached its limit of {limit} {name}"),
        }?;
        f.write_str(": wait until some are given back")
    }
}

impl std::error::Error for Refused {}

/// What is used of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The limit.
    pub limit: Limit,
    /// What all others hold, or have spent and not got back.
    pub used: u64,
    /// The most that one prefix does.
    pub prefix_used: u64,
    /// The most that one peer does.
    pub peer_used: u64,
    /// How often something was refused since the start.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    amount: u64,
    /// Until when what was spent has been returned.
    at: Millis,
}

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub struct Books {
    limits: Limits,
    entries: BTreeMap<(Resource, Scope), Entry>,
    refused: [u64; Resource::ALL.len()],
}

impl Books {
    /// Empty books.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes `amount` of `resource` for `holder`, all of it or nothing.
    ///
    /// # Errors
    /// When a limit would be exceeded: that of the peer, of the prefix or of the node, the narrowest first.
    pub fn take(
        &mut self,
        now: Millis,
        holder: Holder,
        resource: Resource,
        amount: u64,
    ) -> Result<(), Refused> {
        if let Err(refused) = self.would_fit(now, holder, resource, amount) {
            self.refuse(resource);
            return Err(refused);
        }
        for scope in scopes(holder) {
            if amount > 0 {
                let entry = self.entries.entry((resource, scope)).or_insert(Entry { amount: 0, at: now });
                entry.amount += amount;
            }
        }
        Ok(())
    }

    /// Whether [`Books::take`] would succeed; nothing is taken, and a refusal is not counted.
    ///
    /// # Errors
    /// As there.
    pub fn would_fit(
        &mut self,
        now: Millis,
        holder: Holder,
        resource: Resource,
        amount: u64,
    ) -> Result<(), Refused> {
        for scope in scopes(holder) {
            let limit = self.limit(resource, scope);
            let used = self.used(now, resource, scope);
            if used.checked_add(amount).is_none_or(|sum| sum > limit) {
                return Err(Refused { resource, scope, limit });
            }
        }
        Ok(())
    }

    /// Counts a refusal that a door decided by itself.
    pub fn refuse(&mut self, resource: Resource) {
        let refused = &mut self.refused[resource as usize];
        *refused = refused.saturating_add(1);
    }

    /// Gives back what [`Books::take`] took. What is spent comes back by itself: nothing happens then.
    pub fn give_back(&mut self, holder: Holder, resource: Resource, amount: u64) {
        if self.limits.of(resource).measure != Measure::Held {
            return;
        }
        for scope in scopes(holder) {
            if let Some(entry) = self.entries.get_mut(&(resource, scope)) {
                entry.amount = entry.amount.saturating_sub(amount);
                if entry.amount == 0 {
                    self.entries.remove(&(resource, scope));
                }
            }
        }
    }

    /// What is used of `resource` in `scope`.
    pub fn used(&mut self, now: Millis, resource: Resource, scope: Scope) -> u64 {
        let limit = self.limit(resource, scope);
        let measure = self.limits.of(resource).measure;
        let Some(entry) = self.entries.get_mut(&(resource, scope)) else { return 0 };
        if let Measure::Spent { within_ms } = measure {
            entry.settle(now, limit, within_ms);
        }
        let amount = entry.amount;
        if amount == 0 {
            self.entries.remove(&(resource, scope));
        }
        amount
    }

    /// The table with what is used of it.
    pub fn usage(&mut self, now: Millis) -> Vec<Usage> {
        // Settles what was spent, and forgets who has got everything back.
        let known: Vec<(Resource, Scope)> = self.entries.keys().copied().collect();
        for (resource, scope) in known {
            let _ = self.used(now, resource, scope);
        }
        let row = |resource: Resource| {
            let of = self.entries.iter().filter(|((known, _), _)| *known == resource);
            let most = |which: fn(&Scope) -> bool| {
                of.clone().filter(|((_, scope), _)| which(scope)).map(|(_, e)| e.amount).max().unwrap_or(0)
            };
            Usage {
                limit: *self.limits.of(resource),
                used: most(|scope| *scope == Scope::Node),
                prefix_used: most(|scope| matches!(scope, Scope::Prefix(_))),
                peer_used: most(|scope| matches!(scope, Scope::Peer(_))),
                refused: self.refused[resource as usize],
            }
        };
        Resource::ALL.into_iter().map(row).collect()
    }

    /// Entries in the books.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held and nothing that was spent is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn limit(&self, resource: Resource, scope: Scope) -> u64 {
        let row = self.limits.of(resource);
        match scope {
            Scope::Node => row.node,
            Scope::Prefix(_) => row.prefix,
            Scope::Peer(_) => row.peer,
        }
    }
}

impl Entry {
    /// Returns what came back since the last look. The rest of a unit stays for the next one: looking often loses nothing.
    fn settle(&mut self, now: Millis, limit: u64, within_ms: u64) {
        let (limit, within_ms) = (u128::from(limit.max(1)), u128::from(within_ms.max(1)));
        let back = limit * u128::from(now.since(self.at)) / within_ms;
        match u64::try_from(back) {
            Ok(back) if back < self.amount => {
                self.amount -= back;
                self.at = self.at + (u128::from(back) * within_ms / limit) as u64;
            }
            _ => (self.amount, self.at) = (0, now),
        }
    }
}

/// The narrowest first: its name says most.
fn scopes(holder: Holder) -> impl Iterator<Item = Scope> {
    let peer = holder.peer.map(Scope::Peer);
    let prefix = holder.prefix.map(Scope::Prefix);
    peer.into_iter().chain(prefix).chain([Scope::Node])
}

#[cfg(test)]
mod tests;
