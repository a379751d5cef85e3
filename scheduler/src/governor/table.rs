//! The limits of a node on what others may hold or spend of it, a row for each resource.

use super::{Limit, Measure, Resource, UNLIMITED};

const MIB: u64 = 1 << 20;

const fn row(resource: Resource, [node, prefix, peer]: [u64; 3], why: &'static str) -> Limit {
    Limit { resource, measure: Measure::Held, node, prefix, peer, why }
}

/// The limits of a node, a row for each resource.
pub const TABLE: [Limit; Resource::ALL.len()] = [
    row(
        Resource::Handshakes,
        [128, 48, UNLIMITED],
        "a handshake takes a tenth of a second: 128 let in a thousand nodes a second, and one prefix has less than half",
    ),
    row(
        Resource::QuicHandshakes,
        [64, 24, UNLIMITED],
        "as for TCP; a QUIC handshake has one round trip less",
    ),
    row(
        Resource::Connections,
        [128, 96, 4],
        "two transports, a relayed connection and its upgrade for a peer; one house with many nodes leaves a quarter",
    ),
    row(
        Resource::Streams,
        [1_024, 512, 128],
        "one for each session of a peer and as many that are being closed; 256 KiB of each may be unread",
    ),
    row(
        Resource::Asks,
        [256, 128, 64],
        "an ask is over in milliseconds; a peer that has 64 of them waits for answers",
    ),
    row(
        Resource::Bytes,
        [192 * MIB, 96 * MIB, 48 * MIB],
        "six of the longest frames for a peer; with a daemon's own memory less than 512 MiB",
    ),
    row(Resource::Leases, [64, 64, 64], "the places of a node; see the door of leases for who gets them"),
    Limit {
        resource: Resource::Cpu,
        measure: Measure::Spent { within_ms: 1_000 },
        node: 2_000_000,
        prefix: 1_000_000,
        peer: 500_000,
        why: "half a core for a peer, two for all: five hundred asks a second, or the news of some thousand nodes at once",
    },
    Limit {
        resource: Resource::Dials,
        measure: Measure::Spent { within_ms: 60_000 },
        node: 384,
        prefix: 96,
        peer: 96,
        why: "a node has four addresses: two dozen next stages a minute for a requester, too few to trouble any target",
    },
    row(
        Resource::Kept,
        [262_144, 131_072, 65_536],
        "70 bytes of digests a position, 18 MB; the state itself has memory that no open session needs",
    ),
    row(
        Resource::Reservations,
        [96, 48, 2],
        "one for each connection of a hidden member; each is looked for by a few others at most",
    ),
    row(
        Resource::Circuits,
        [64, 32, 8],
        "a circuit carries up to a conversation, 5 KiB a token: 64 of them fill a home's upload",
    ),
    row(
        Resource::Links,
        [48, 48, 2],
        "one for each neighbor of a local network and one that replaces it; the table of datagrams has 64 places",
    ),
    Limit {
        resource: Resource::Echoes,
        measure: Measure::Spent { within_ms: 60_000 },
        node: 256 * MIB,
        prefix: 256 * MIB,
        peer: 32 * MIB,
        why: "20 echoes of 4, 16 and 64 KiB over each of two links take 3.4 MB: a neighbor may measure ten times a minute",
    },
    row(
        Resource::Uploads,
        [32, 24, 4],
        "each has 64 KiB in memory and reads the disk; a puller has one for each model",
    ),
    row(
        Resource::Pages,
        [64 * MIB, 48 * MIB, 32 * MIB],
        "two pieces of a state, 8 MiB, on their way: three states at a time for a peer, seven for all, each for a minute at most",
    ),
    row(
        Resource::StandbyBytes,
        [256 * MIB, 192 * MIB, 144 * MIB],
        "two segments with contexts of 16 Ki tokens of 4,096 values for a requester; a quarter of the caches' memory where that is less",
    ),
    row(
        Resource::HttpConnections,
        [2_048, 2_048, UNLIMITED],
        "each costs a task and, while its headers come, a buffer; clients come from one machine, hence one prefix",
    ),
    row(
        Resource::HttpBytes,
        [128 * MIB, 128 * MIB, 96 * MIB],
        "four of the longest bodies, or thousands of ordinary ones; the holder of a key leaves room for the owner",
    ),
    row(
        Resource::Answers,
        [256, 256, 192],
        "one more is told when to come back (--answers sets it); the holder of a key leaves room for the owner",
    ),
    row(
        Resource::Forms,
        [66, 66, UNLIMITED],
        "two are tried at a time on a small machine's cores, the others wait for them",
    ),
    row(Resource::Callers, [64, 64, UNLIMITED], "commands end in milliseconds, prompts and watches stay"),
];
