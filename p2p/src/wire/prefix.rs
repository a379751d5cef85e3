//! What a beginning is called: the name of the state that a stage has after the first rows of a session.
//!
//! ```text
//! key      = blake3("shoal prefix 1" | requester, model, layers, width, class, rounding, form of the state)
//! head 0   = zeros        head p+1 = blake3 keyed (head p | wire | digest of input row p)
//! name     = head p, for every p that is a multiple of [`EVERY`]
//! ```
//!
//! Under profile `d1` a state is a function of what the key and the rows say, so equal names are equal states on every machine, whichever
//! session made them. A stage keeps the state of an ended session under its names; a requester that kept the rows computes the same
//! names and offers them with a lease ([`Beginning`]).
//!
//! The requester is part of the key: what one asked is never found by another, who would learn from the time an answer takes what
//! was asked. A stage therefore also looks at who asks before it looks at names.
//!
//! Limits: what a name covers is as good as the rows were; that is checked as rows are, since the stage signs for them again.

use super::Malformed;
use super::cursor::{Reader, Writer};
use super::fields::MAX_POSITIONS;
use super::receipt::{self, Row, Terms};

/// Positions between names.
pub const EVERY: u32 = receipt::EVERY;
/// Names of one lease: of one beginning at several lengths, the longest first.
pub const MAX_BEGINNINGS: usize = 32;
/// The form of states that names speak of; a change of what a state is raises it.
const STATE: u8 = 1;

/// The name of the state after so many positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(pub [u8; 32]);

/// The first positions of a session, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// How many; a multiple of [`EVERY`], at least one.
    pub positions: u32,
    /// What they are called.
    pub name: Name,
}

impl Beginning {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.positions).bytes(&self.name.0);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let beginning = Self { positions: from.u32()?, name: Name(from.array()?) };
        let positions = beginning.positions;
        if positions == 0 || positions > MAX_POSITIONS || !positions.is_multiple_of(EVERY) {
            return Err(Malformed("lease: beginning"));
        }
        Ok(beginning)
    }
}

/// Names the beginnings of one session for one range of layers, row by row.
#[derive(Clone, Debug)]
pub struct Namer {
    key: [u8; 32],
    head: [u8; 32],
    positions: u32,
}

impl Namer {
    /// Before the first row of what `terms` say; their session does not matter.
    pub fn new(terms: &Terms) -> Self {
        Self { key: terms.prefix_key(STATE), head: [0; 32], positions: 0 }
    }

    /// Takes in the next input row; a name where one is due.
    pub fn push(&mut self, input: &Row) -> Option<Beginning> {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.head).update(&[input.wire as u8]).update(&input.digest);
        self.head = *hasher.finalize().as_bytes();
        self.positions += 1;
        let due = self.positions.is_multiple_of(EVERY);
        due.then_some(Beginning { positions: self.positions, name: Name(self.head) })
    }
}

/// The names of all beginnings of `rows`, ascending.
pub fn names<'a>(terms: &Terms, rows: impl IntoIterator<Item = &'a Row>) -> Vec<Beginning> {
    let mut namer = Namer::new(terms);
    rows.into_iter().filter_map(|row| namer.push(row)).collect()
}

#[cfg(test)]
mod tests {
    use scheduler::{AttentionKind, LayerRange, ModelId, NodeId, SessionId, SessionKind};

    use super::{EVERY, Row, Terms, names};
    use crate::codec::{Rounding, Wire};
    use crate::wire::announce::Class;

    fn terms() -> Terms {
        Terms {
            session: SessionId::numbered(1),
            requester: NodeId::numbered(7),
            model: ModelId::numbered(3),
            layers: LayerRange::new(2, 4).unwrap(),
            hidden: 64,
            class: Class::D1,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            inner: false,
        }
    }

    fn rows(first: u8, count: u8) -> Vec<Row> {
        (0..count).map(|at| Row::of(Wire::Raw, &[first, at])).collect()
    }

    #[test]
    fn a_name_is_of_the_rows_and_of_all_that_the_state_depends_on() {
        let (all, short) = (names(&terms(), &rows(1, 100)), names(&terms(), &rows(1, 37)));
        assert_eq!((all.len(), short.len(), all[5].positions), (6, 2, 6 * EVERY));
        assert_eq!(all[..2], short[..], "a beginning of a beginning has the same name");
        let mut other = rows(1, 100);
        other[20] = Row::of(Wire::Raw, &[9]);
        let other = names(&terms(), &other);
        assert_eq!(other[0], all[0]);
        assert!((1..6).all(|at| other[at].name != all[at].name));
        let of = |terms: Terms| names(&terms, &rows(1, 16))[0].name;
        assert_eq!(of(Terms { session: SessionId::numbered(2), ..terms() }), all[0].name);
        let others = [
            Terms { requester: NodeId::numbered(8), ..terms() },
            Terms { model: ModelId::numbered(4), ..terms() },
            Terms { layers: LayerRange::new(2, 5).unwrap(), ..terms() },
            Terms { hidden: 32, ..terms() },
            Terms { class: Class::Approx, ..terms() },
            Terms { rounding: Rounding::new(Wire::Q8, vec![3]), ..terms() },
            Terms { rounding: Rounding::new(Wire::C8, vec![3]), ..terms() },
            Terms { kind: AttentionKind::Window(64).into(), ..terms() },
            Terms { kind: "sparse".parse().unwrap(), ..terms() },
            Terms { kind: "dense/q8".parse().unwrap(), ..terms() },
            Terms { kind: "dense/q4".parse().unwrap(), ..terms() },
        ];
        let mut all: Vec<_> = others.map(of).into_iter().chain([all[0].name]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 12);
    }
}
