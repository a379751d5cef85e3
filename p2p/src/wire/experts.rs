//! Rows that experts of a layer on another node compute, for the node that leads the layer.
//!
//! ```text
//! leader ── hello ──▶ holder            which model
//!        ◀── offer ──                   which experts of which layers
//!        ── work ──▶, ◀── outputs ──    one after the other, as often as the leader likes
//!
//! message  kind u8 | 0 0 0 | body bytes u32 | body
//! hello    model 32
//! offer    layers, counted u16 x { start u32, end u32 } | experts start u32, end u32
//! work     layer u32 | width u32 | visits u32 x { expert u32, row u32 } | rows x width x f32
//! outputs  visits x width x f32
//! failed   why, text
//! ```
//!
//! One stream per leader and holder. Every expert's output travels by itself, never a sum: the leader adds them in ascending order,
//! so that a row has the bits of one machine. Values are f32 as they are; what they mean only the workers of both nodes know.
//! Nothing is signed: a leader answers for its stage, so it asks only nodes that its operator has named.

use scheduler::{ExpertRange, LayerRange, ModelId};

use super::{
    Malformed,
    cursor::{Reader, Writer, cut},
    fields,
};

pub use super::fields::PREFIX_LEN;

/// Most values of the rows of one work, and of its outputs: 8 MiB each way.
pub const MAX_VALUES: usize = 2 << 20;
/// Longest row, values.
pub const MAX_WIDTH: usize = 1 << 16;
/// Most visits of one work.
pub const MAX_VISITS: usize = 1 << 16;
/// Ranges of layers of one offer.
pub const MAX_RANGES: usize = 64;
/// Longest reason of a failure, bytes; what goes beyond is cut off.
pub const MAX_REASON: usize = 256;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Message {
    /// The model's id.
    Hello = 0,
    /// An [`Offer`].
    Offer = 1,
    /// A [`Work`].
    Work = 2,
    /// What came of it.
    Outputs = 3,
    /// Instead of an offer, or of outputs.
    Failed = 4,
}

impl Message {
    const ALL: [Self; 5] = [Self::Hello, Self::Offer, Self::Work, Self::Outputs, Self::Failed];

    /// Longest body, bytes. A longer one is refused unread.
    pub fn cap(self) -> usize {
        match self {
            Self::Hello => 32,
            Self::Offer => 2 + 8 * MAX_RANGES + 8,
            Self::Work => 12 + 8 * MAX_VISITS + 4 * MAX_VALUES,
            Self::Outputs => 4 * MAX_VALUES,
            Self::Failed => MAX_REASON,
        }
    }
}

/// What stands before every body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// What the body is.
    pub kind: Message,
    /// How long it is, bytes.
    pub len: u32,
}

impl Prefix {
    /// What stands before `body`.
    pub fn of(kind: Message, body: &[u8]) -> Self {
        Self { kind, len: u32::try_from(body.len()).unwrap_or(u32::MAX) }
    }

    /// The bytes.
    pub fn write(&self) -> [u8; PREFIX_LEN] {
        fields::write_prefix(self.kind as u8, self.len)
    }

    /// Reads what [`Prefix::write`] wrote. `len` is within the cap of its kind.
    ///
    /// # Errors
    /// When the bytes name no kind or a body that is too long.
    pub fn read(bytes: &[u8; PREFIX_LEN]) -> Result<Self, Malformed> {
        let odd = [Malformed("experts: kind"), Malformed("experts: length")];
        let (kind, len) = fields::read_prefix(bytes, (&Message::ALL, Message::cap), odd)?;
        Ok(Self { kind, len })
    }
}

/// Reads the body of [`Message::Hello`].
///
/// # Errors
/// When it is no id.
pub fn read_hello(body: &[u8]) -> Result<ModelId, Malformed> {
    let mut from = Reader::new(body);
    let model = ModelId::new(from.array()?);
    from.finish()?;
    Ok(model)
}

/// A reason as the body of [`Message::Failed`].
pub fn write_reason(why: &str) -> Vec<u8> {
    cut(why, MAX_REASON).as_bytes().to_vec()
}

/// Reads the body of [`Message::Failed`], without what no terminal should see.
pub fn read_reason(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).collect()
}

/// What a node computes for leaders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Of which layers, at most [`MAX_RANGES`].
    pub layers: Vec<LayerRange>,
    /// Which experts of each of them.
    pub experts: ExpertRange,
}

impl Offer {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.list(&self.layers, |to, layers| {
            to.u32(layers.start()).u32(layers.end());
        });
        to.u32(self.experts.start()).u32(self.experts.end());
        to.finish()
    }

    /// Reads what [`Offer::encode`] wrote.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let layers = from.list(MAX_RANGES, 8, |from| {
            LayerRange::new(from.u32()?, from.u32()?).ok_or(Malformed("experts: layers"))
        })?;
        let experts = ExpertRange::new(from.u32()?, from.u32()?).ok_or(Malformed("experts: range"))?;
        from.finish()?;
        Ok(Self { layers, experts })
    }
}

/// Rows, and which experts visit them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Of which layer.
    pub layer: u32,
    /// Values of a row.
    pub width: u32,
    /// Expert and row of every visit, experts ascending, at most [`MAX_VISITS`].
    pub visits: Vec<(u32, u32)>,
    /// The rows, f32.
    pub rows: Vec<u8>,
}

impl Work {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u32(self.layer).u32(self.width).long_count(self.visits.len());
        self.visits.iter().for_each(|(expert, row)| {
            to.u32(*expert).u32(*row);
        });
        to.bytes(&self.rows);
        to.finish()
    }

    /// Reads what [`Work::encode`] wrote.
    ///
    /// # Errors
    /// When it is malformed: no visit, visits out of order or of rows that are not there, more values than may travel.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let (layer, width) = (from.u32()?, from.u32()?);
        let count = from.long_count(MAX_VISITS, 8)?;
        let visits =
            (0..count).map(|_| Ok((from.u32()?, from.u32()?))).collect::<Result<Vec<_>, Malformed>>()?;
        let bytes = from.remaining();
        let row = 4 * width as usize;
        if width == 0 || width as usize > MAX_WIDTH || count * width as usize > MAX_VALUES {
            return Err(Malformed("experts: width"));
        }
        let rows = bytes / row;
        let fits = bytes.is_multiple_of(row) && rows <= count;
        if !fits || visits.iter().any(|(_, at)| *at as usize >= rows) {
            return Err(Malformed("experts: rows"));
        }
        if count == 0 || !visits.is_sorted_by_key(|(expert, _)| *expert) {
            return Err(Malformed("experts: visits"));
        }
        let rows = from.bytes(bytes)?.to_vec();
        Ok(Self { layer, width, visits, rows })
    }

    /// The visits whose expert `is_meant`, in their order, and the rows that they need.
    pub fn part(&self, is_meant: impl Fn(u32) -> bool) -> Self {
        let bytes = 4 * self.width as usize;
        let meant = || self.visits.iter().filter(|(expert, _)| is_meant(*expert));
        let mut places = vec![None; self.rows.len() / bytes.max(1)];
        meant().for_each(|(_, row)| places[*row as usize] = Some(0));
        let mut rows = Vec::new();
        for (place, row) in places.iter_mut().zip(self.rows.chunks_exact(bytes.max(1))) {
            if let Some(place) = place {
                *place = (rows.len() / bytes) as u32;
                rows.extend_from_slice(row);
            }
        }
        let visits = meant().filter_map(|(expert, row)| Some((*expert, places[*row as usize]?))).collect();
        Self { layer: self.layer, width: self.width, visits, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        let rows = (0..6u32).flat_map(|value| (value as f32).to_le_bytes()).collect();
        Work { layer: 3, width: 2, visits: vec![(1, 0), (1, 2), (4, 1), (4, 2)], rows }
    }

    #[test]
    fn what_is_written_is_read() {
        let work = work();
        assert_eq!(Work::decode(&work.encode()), Ok(work));
        let ranges = [(0, 1), (4, 9)].map(|(start, end)| LayerRange::new(start, end).unwrap());
        let offer = Offer { layers: ranges.to_vec(), experts: ExpertRange::new(32, 64).unwrap() };
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        assert_eq!(read_hello(&[7; 32]), Ok(ModelId::new([7; 32])));
        for kind in Message::ALL {
            let prefix = Prefix { kind, len: kind.cap() as u32 };
            assert_eq!(Prefix::read(&prefix.write()), Ok(prefix));
            assert!(Prefix::read(&Prefix { kind, len: prefix.len + 1 }.write()).is_err());
        }
        assert_eq!(read_reason(&write_reason("no\u{7} such layer")), "no such layer");
        assert_eq!(write_reason(&"é".repeat(MAX_REASON)).len(), MAX_REASON);
    }

    #[test]
    fn bytes_are_frozen() {
        let bytes = Work { visits: vec![(5, 0)], rows: vec![1, 2, 3, 4], width: 1, ..work() }.encode();
        assert_eq!(bytes, [3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn odd_works_are_refused() {
        let refused = |change: &dyn Fn(&mut Work), why| {
            let mut odd = work();
            change(&mut odd);
            assert_eq!(Work::decode(&odd.encode()), Err(Malformed(why)));
        };
        refused(&|work| work.visits.clear(), "experts: rows");
        refused(&|work| work.visits.swap(1, 2), "experts: visits");
        refused(&|work| work.visits[1].1 = 3, "experts: rows");
        refused(&|work| work.width = 0, "experts: width");
        refused(&|work| work.width = u32::MAX, "experts: width");
        refused(&|work| work.rows.truncate(3), "experts: rows");
        let bytes = work().encode();
        (0..bytes.len()).for_each(|len| assert!(Work::decode(&bytes[..len]).is_err(), "{len} bytes"));
    }

    #[test]
    fn a_part_has_its_visits_and_the_rows_that_they_need() {
        let mixed = Work { visits: vec![(1, 2), (4, 0), (4, 2)], ..work() }.part(|_| true);
        assert_eq!(mixed.visits, [(1, 1), (4, 0), (4, 1)], "rows keep their order");
        let part = work().part(|expert| expert == 4);
        assert_eq!((part.visits.clone(), part.rows.len()), (vec![(4, 0), (4, 1)], 16));
        assert_eq!(part.rows, work().rows[8..]);
        assert_eq!(Work::decode(&part.encode()), Ok(part));
        let whole = work().part(|_| true);
        assert_eq!(whole.rows.len(), work().rows.len());
        assert!(work().part(|_| false).visits.is_empty());
    }
}
