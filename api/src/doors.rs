//! What clients take of the server, and who decides how much: every door asks one object.
//!
//! A door takes an amount before it lets something in and holds the [`Pass`] for as long as it is inside. The program that
//! embeds the server may have limits of its own, on other things too, and hands in a [`Doors`] that keeps all of them in one
//! table; [`Alone`] has those of the server and nothing else.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::inference::Metric;

/// Something of which the server has a bounded amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// Connections.
    Connections,
    /// Bytes of bodies that are being read or parsed.
    BodyBytes,
    /// Answers, from before they are routed until their client has everything or has gone.
    Answers,
}

impl Door {
    /// Every door.
    pub const ALL: [Self; 3] = [Self::Connections, Self::BodyBytes, Self::Answers];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::BodyBytes => "body_bytes",
            Self::Answers => "answers",
        }
    }
}

/// A door is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// The limit that was reached: the server's, or that of the holder of a key.
    pub most: u64,
}

/// What was taken; dropping it gives it back.
#[must_use = "dropping a pass gives it back"]
pub struct Pass(#[expect(dead_code, reason = "held until it is dropped")] Box<dyn Any + Send + Sync>);

impl Pass {
    /// Gives back what `held` stands for when both are dropped.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self(Box::new(held))
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}

/// How a door stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Standing {
    /// The limit for all clients together.
    pub most: u64,
    /// What they hold now.
    pub used: u64,
    /// How often one of them was refused.
    pub refused: u64,
}

/// Who decides at every door.
pub trait Doors: fmt::Debug + Send + Sync + 'static {
    /// Takes `amount` at once, all of it or nothing. `holder` is the name of the key that was brought, `None` for the owner
    /// and where it is not known yet who asks.
    ///
    /// # Errors
    /// [`Full`] at a limit.
    fn take(&self, door: Door, holder: Option<&str>, amount: u64) -> Result<Pass, Full>;

    /// As [`Doors::take`], and at a limit waits until others gave back enough.
    fn wait(&self, door: Door, amount: u64) -> BoxFuture<'static, Pass>;

    /// How a door stands now.
    fn standing(&self, door: Door) -> Standing;
}

/// How all doors stand, for `/metrics`.
pub(crate) fn metrics(doors: &dyn Doors) -> [Metric; 3] {
    let all = |name, help, counter, value: fn(Standing) -> u64| {
        let row = |door: Door| (vec![("door", door.name())], value(doors.standing(door)) as f64);
        Metric { name, help, counter, values: Door::ALL.map(row).to_vec() }
    };
    [
        all("clients_limit", "What clients of this API may hold of it.", false, |door| door.most),
        all("clients_used", "What clients of this API hold of it now.", false, |door| door.used),
        all("clients_refused_total", "How often more was refused.", true, |door| door.refused),
    ]
}

/// The limits of a server that shares them with nothing else; every key counts as the owner.
#[derive(Debug)]
pub struct Alone([Place; Door::ALL.len()]);

#[derive(Debug)]
struct Place {
    most: u64,
    free: Arc<Semaphore>,
    refused: AtomicU64,
}

impl Alone {
    /// 2,048 connections, 128 MiB of bodies and 256 answers.
    pub const DEFAULT: [u64; Door::ALL.len()] = [2_048, 128 << 20, 256];

    /// So much of each of [`Door::ALL`].
    pub fn new(most: [u64; Door::ALL.len()]) -> Self {
        Self(most.map(|most| Place {
            most,
            free: Arc::new(Semaphore::new(most as usize)),
            refused: AtomicU64::new(0),
        }))
    }
}

impl Default for Alone {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

impl Doors for Alone {
    fn take(&self, door: Door, _: Option<&str>, amount: u64) -> Result<Pass, Full> {
        let place = &self.0[door as usize];
        let amount = u32::try_from(amount).unwrap_or(u32::MAX);
        place.free.clone().try_acquire_many_owned(amount).map(Pass::new).map_err(|_| {
            place.refused.fetch_add(1, Ordering::Relaxed);
            Full { most: place.most }
        })
    }

    fn wait(&self, door: Door, amount: u64) -> BoxFuture<'static, Pass> {
        let free = self.0[door as usize].free.clone();
        let amount = u32::try_from(amount).unwrap_or(u32::MAX);
        // It is never closed.
        Box::pin(async move { Pass::new(free.acquire_many_owned(amount).await) })
    }

    fn standing(&self, door: Door) -> Standing {
        let Place { most, free, refused } = &self.0[door as usize];
        let used = most.saturating_sub(free.available_permits() as u64);
        Standing { most: *most, used, refused: refused.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_taken_is_seen_and_what_is_dropped_comes_back() {
        let doors = Alone::new([1, 10, 2]);
        let most = doors.take(Door::BodyBytes, None, 10).unwrap();
        assert_eq!(doors.take(Door::BodyBytes, Some("a"), 1).unwrap_err(), Full { most: 10 });
        assert_eq!(doors.standing(Door::BodyBytes), Standing { most: 10, used: 10, refused: 1 });
        assert_eq!(doors.standing(Door::Answers), Standing { most: 2, ..Standing::default() });
        drop(most);
        assert!(doors.take(Door::BodyBytes, None, 10).is_ok());
        let first = doors.wait(Door::Connections, 1).await;
        let second = doors.wait(Door::Connections, 1);
        drop(first);
        let _second = second.await;
        assert_eq!(doors.standing(Door::Connections).used, 1);
        let values = metrics(&doors).map(|metric| metric.values.iter().map(|row| row.1).collect::<Vec<_>>());
        assert_eq!(values, [vec![1.0, 10.0, 2.0], vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0]]);
    }
}
