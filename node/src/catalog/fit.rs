//! What this machine does with a model before it has it: whether its memory holds it, and about how fast it answers.
//!
//! A decoded token reads every weight once, so that the speed is bounded by how fast memory is read; `shard::probe` measures
//! that. With peers each reads its share of the weights, as fast as it announces to compute layers of its own, and one after the
//! other: a token takes the sum of their times, and a round trip to each. So peers make a model faster that are faster themselves,
//! and one possible that no memory here holds.
//!
//! Limits: a mixture of experts reads only some of its weights a token and is faster than said here; drafts are not counted; peers
//! are taken to hold as many bytes of this model as they hold now of others; of the ways to share it between them only the nearest
//! and the largest few are tried.

use serde::{Deserialize, Serialize};
use shard::{
    kernels::{Cpu, Isa, threads::Pool},
    probe,
};

use crate::{Result, memory, output::human_bytes};

/// Memory beyond the weights: a session's cache, buffers and the program, as a share of the weights and in bytes.
const OVERHEAD: (f64, u64) = (0.1, 256 << 20);
/// What decoding makes of the bandwidth of plain reads: the rest are scales, attention, the head and waiting.
const EFFICIENCY: f64 = 0.6;

/// Peers that share a model in what is foretold, at most: each one more is another round trip.
const MAX_PEERS: usize = 8;
/// How many times what this machine reads a peer is believed to read: a claim beyond counts as this.
const MOST_GAIN: f64 = 128.0;
/// How many times as fast peers must make a model that runs here alone, to be told: what is foretold errs by as much.
const WORTH_TELLING: f64 = 1.25;

/// A peer that computes layers, by what it announces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Bytes of weights that it goes through per second when it decodes.
    pub read_bytes_per_s: f64,
    /// Bytes of weights that it may hold.
    pub room_bytes: u64,
    /// A round trip to it.
    pub rtt_ms: f64,
}

/// What peers make of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WithPeers {
    /// How many of them.
    pub peers: usize,
    /// Tokens per second.
    pub tok_s: f64,
}

/// What this machine can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Memory that can be had; `None` where the system does not say it.
    pub memory_bytes: Option<u64>,
    /// Bytes that all threads read together per second.
    pub read_bytes_per_s: f64,
}

/// What becomes of a model here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// It runs here alone, about so many tokens a second.
    Alone {
        /// Tokens per second.
        tok_s: f64,
        /// With peers, where they make it faster.
        with: Option<WithPeers>,
    },
    /// It needs more memory than there is: with others only.
    Swarm {
        /// Bytes it needs.
        needed_bytes: u64,
        /// Bytes there are.
        memory_bytes: u64,
        /// With peers, where those that are known can hold it.
        with: Option<WithPeers>,
    },
}

impl Machine {
    /// Measures this machine, in about a second.
    ///
    /// # Errors
    /// Those of [`probe::read_bandwidth`].
    pub fn measure() -> Result<Self> {
        let cpu = Cpu::new(Isa::detect(), Pool::new(Pool::physical_cores(), false));
        Ok(Self { memory_bytes: memory::available_bytes(), read_bytes_per_s: probe::read_bandwidth(&cpu)? })
    }

    /// What becomes of a model whose file has so many bytes, beside `peers`.
    pub fn fit(&self, file_bytes: u64, peers: &[Peer]) -> Fit {
        let needed_bytes =
            file_bytes.saturating_add((file_bytes as f64 * OVERHEAD.0) as u64).saturating_add(OVERHEAD.1);
        let with = self.with_peers(file_bytes, peers);
        match self.memory_bytes {
            Some(memory_bytes) if memory_bytes < needed_bytes => {
                Fit::Swarm { needed_bytes, memory_bytes, with }
            }
            _ => {
                let tok_s = self.read_bytes_per_s * EFFICIENCY / (file_bytes.max(1) as f64);
                Fit::Alone { tok_s, with: with.filter(|with| with.tok_s >= WORTH_TELLING * tok_s) }
            }
        }
    }

    /// The fastest way found in which this machine and one or more of `peers` hold the model, if together they can.
    fn with_peers(&self, file_bytes: u64, peers: &[Peer]) -> Option<WithPeers> {
        let room =
            |memory_bytes: u64| (memory_bytes.saturating_sub(OVERHEAD.1) as f64 / (1.0 + OVERHEAD.0)) as u64;
        let own = Peer {
            read_bytes_per_s: self.read_bytes_per_s * EFFICIENCY,
            room_bytes: self.memory_bytes.map_or(u64::MAX, room),
            rtt_ms: 0.0,
        };
        let computes = |peer: &&Peer| peer.read_bytes_per_s > 0.0 && peer.room_bytes > 0;
        let mut best: Option<WithPeers> = None;
        let believed = |peer: &Peer| {
            let read_bytes_per_s = peer.read_bytes_per_s.min(MOST_GAIN * own.read_bytes_per_s);
            Peer { read_bytes_per_s, ..*peer }
        };
        let mut near: Vec<Peer> = peers.iter().filter(computes).map(believed).collect();
        // Those first that hold most for the time they take.
        let time_ms = |peer: &Peer| {
            let share = peer.room_bytes.min(file_bytes).max(1) as f64;
            (peer.rtt_ms + 1e3 * share / peer.read_bytes_per_s) / share
        };
        near.sort_by(|a, b| time_ms(a).total_cmp(&time_ms(b)));
        // Those that hold most as well: few of them hold what many small ones do not.
        let mut large = near.clone();
        large.sort_by_key(|peer| std::cmp::Reverse(peer.room_bytes));
        let sets = [&near, &large]
            .into_iter()
            .flat_map(|all| (1..=all.len().min(MAX_PEERS)).map(|count| &all[..count]));
        for set in sets {
            let mut holders: Vec<Peer> = set.iter().chain([&own]).copied().collect();
            holders.sort_by(|a, b| b.read_bytes_per_s.total_cmp(&a.read_bytes_per_s));
            let (mut left, mut token_ms, mut helped) = (file_bytes, 0.0, 0);
            for holder in holders {
                let share = holder.room_bytes.min(left);
                if share > 0 {
                    token_ms += holder.rtt_ms + 1e3 * share as f64 / holder.read_bytes_per_s;
                    helped += usize::from(holder != own);
                    left -= share;
                }
            }
            let with = WithPeers { peers: helped, tok_s: 1e3 / token_ms };
            if left == 0 && helped > 0 && best.is_none_or(|best| with.tok_s > best.tok_s) {
                best = Some(with);
            }
        }
        best
    }
}

/// A speed as people say it.
fn about(tok_s: f64) -> String {
    if tok_s >= 10.0 { format!("{tok_s:.0}") } else { format!("{tok_s:.1}") }
}

impl std::fmt::Display for WithPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noun = if self.peers == 1 { "peer" } else { "peers" };
        write!(f, "with {} {noun} at about {}", self.peers, about(self.tok_s))
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone { tok_s, with } => {
                write!(f, "runs here alone at about {} tok/s", about(*tok_s))?;
                with.map_or(Ok(()), |with| write!(f, "; {with}"))
            }
            Self::Swarm { needed_bytes, memory_bytes, with } => {
                let [needed, free] = [needed_bytes, memory_bytes].map(|bytes| human_bytes(*bytes));
                write!(f, "needs about {needed} of memory and {free} are free here: ")?;
                match with {
                    Some(with) => write!(f, "{with} tok/s"),
                    None => f.write_str("with a swarm"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_decides_first_and_then_bandwidth() {
        let machine = Machine { memory_bytes: Some(2 << 30), read_bytes_per_s: 10e9 };
        assert_eq!(machine.fit(1_000_000_000, &[]), Fit::Alone { tok_s: 6.0, with: None });
        assert!(
            matches!(machine.fit(2 << 30, &[]), Fit::Swarm { memory_bytes, with: None, .. } if memory_bytes == 2 << 30)
        );
        assert!(matches!(machine.fit(u64::MAX, &[]), Fit::Swarm { .. }));
        let unknown = Machine { memory_bytes: None, ..machine };
        assert_eq!(unknown.fit(10_000_000_000, &[]).to_string(), "runs here alone at about 0.6 tok/s");
    }

    #[test]
    fn peers_are_told_where_they_help() {
        let machine = Machine { memory_bytes: Some(4 << 30), read_bytes_per_s: 10e9 };
        let peer =
            |rate: f64, room_bytes: u64, rtt_ms: f64| Peer { read_bytes_per_s: rate, room_bytes, rtt_ms };
        let said = |bytes: u64, peers: &[Peer]| machine.fit(bytes, peers).to_string();
        // One as slow as this machine only adds its round trips.
        assert_eq!(said(1_000_000_000, &[peer(6e9, 1 << 30, 1.0)]), "runs here alone at about 6.0 tok/s");
        // 1 GB at 60 GB/s and 9 ms.
        let fast = peer(60e9, 1 << 30, 9.0);
        let both = "runs here alone at about 6.0 tok/s; with 1 peer at about 39";
        assert_eq!(said(1_000_000_000, &[peer(3e9, 1 << 30, 1.0), fast]), both);
        // 6 GB: 2 at 60 GB/s, twice, and what is left in this machine's 3.4 GiB.
        let Fit::Swarm { with: Some(with), .. } =
            machine.fit(6_000_000_000, &[peer(60e9, 2_000_000_000, 10.0); 2])
        else {
            panic!("two peers hold it")
        };
        let token_ms = 2.0 * (10.0 + 2e3 / 60.0) + 2e3 / 6.0;
        assert_eq!(with.peers, 2);
        assert!((with.tok_s - 1e3 / token_ms).abs() < 1e-6, "{with:?}");
        assert!(said(6_000_000_000, &[peer(60e9, 1_000_000_000, 10.0)]).ends_with("here: with a swarm"));
        // One that holds it all is found behind eight that do not.
        let small = [peer(60e9, 2_000_000_000, 1.0); 9];
        let all = [&small[..], &[peer(20e9, 100_000_000_000, 5.0)]].concat();
        assert!(said(60_000_000_000, &all).contains("with "), "{}", said(60_000_000_000, &all));
        // A claim beyond what can be counts as less.
        let most = MOST_GAIN * EFFICIENCY * machine.read_bytes_per_s;
        let with = machine.with_peers(1_000_000_000, &[peer(1e300, 2 << 30, 1.0)]).unwrap();
        assert!((with.tok_s - 1e3 / (1.0 + 1e12 / most)).abs() < 1e-6, "{with:?}");
        // What no swarm holds, and announcements that say nothing.
        assert_eq!(machine.with_peers(u64::MAX, &[fast; 20]), None);
        assert_eq!(machine.with_peers(1_000_000, &[peer(0.0, 1 << 30, 1.0), peer(1e9, 0, 1.0)]), None);
    }
}
