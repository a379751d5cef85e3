//! What entered each segment, as it crossed the wire, from position 0 without a gap.

use std::collections::BTreeMap;

use bytes::Bytes;
use p2p::codec::{self, Wire};
use scheduler::NodeId;

/// Bytes of inputs kept for replays, all segments together.
pub(super) const MAX_LOG_BYTES: usize = 1 << 28;

/// The logs of a session, by the layer the inputs enter.
#[derive(Clone)]
pub(super) struct Logs {
    hidden: usize,
    /// Rows from this position on follow from a draft and may be rejected; `u32::MAX` for none.
    tentative: u32,
    bytes: usize,
    logs: BTreeMap<u32, Log>,
}

#[derive(Clone)]
struct Log {
    wire: Wire,
    row_bytes: usize,
    bytes: Vec<u8>,
    /// Who gave the rows, and from which position on.
    authors: Vec<(u32, NodeId)>,
}

/// What is logged of the rows that enter a layer.
pub(super) struct LoggedRows<'a> {
    pub(super) layer: u32,
    pub(super) wire: Wire,
    pub(super) bytes: &'a [u8],
    /// Who gave the rows, and from which position on.
    pub(super) authors: &'a [(u32, NodeId)],
}

/// What became of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Added {
    /// Positions logged now; `None` when the rows could not be added: a gap, another form, no room.
    pub(super) reached: Option<u32>,
    /// The first position whose row was there already and was another.
    pub(super) differs: Option<u32>,
}

impl Logs {
    /// Empty logs of rows of `hidden` values.
    pub(super) fn new(hidden: usize) -> Self {
        Self { hidden, tentative: u32::MAX, bytes: 0, logs: BTreeMap::new() }
    }

    /// Rows from position `from` on follow from a draft; `None` when there is none.
    pub(super) fn set_tentative(&mut self, from: Option<u32>) {
        self.tentative = from.unwrap_or(u32::MAX);
    }

    /// Whether the row at `position` may still be rejected.
    pub(super) fn is_tentative(&self, position: u32) -> bool {
        position >= self.tentative
    }

    /// What is logged below position `to`.
    pub(super) fn beginning(&self, to: u32) -> Self {
        let cut = |(layer, log): (&u32, &Log)| {
            let bytes = log.bytes[..log.bytes.len().min(to as usize * log.row_bytes)].to_vec();
            let authors = log.authors.iter().filter(|(at, _)| *at < to).copied().collect();
            (*layer, Log { bytes, authors, ..*log })
        };
        let logs: BTreeMap<u32, Log> = self.logs.iter().map(cut).collect();
        let bytes = logs.values().map(|log| log.bytes.len()).sum();
        Self { hidden: self.hidden, tentative: u32::MAX, bytes, logs }
    }

    /// Values of a row.
    pub(super) fn hidden(&self) -> usize {
        self.hidden
    }

    /// All that is logged.
    pub(super) fn all(&self) -> impl Iterator<Item = LoggedRows<'_>> {
        self.logs.iter().map(|(layer, log)| LoggedRows {
            layer: *layer,
            wire: log.wire,
            bytes: &log.bytes,
            authors: &log.authors,
        })
    }

    /// Adds the log of a layer as [`Logs::all`] gave it; `None` for rows that no log holds.
    pub(super) fn restore(
        &mut self,
        layer: u32,
        wire: Wire,
        bytes: &[u8],
        authors: Vec<(u32, NodeId)>,
    ) -> Option<()> {
        let row_bytes = codec::encoded_len(wire, 1, self.hidden)?;
        codec::check(wire, self.hidden, bytes.len() / row_bytes, bytes).ok()?;
        self.bytes += bytes.len();
        self.logs.insert(layer, Log { wire, row_bytes, bytes: bytes.to_vec(), authors });
        (self.bytes <= MAX_LOG_BYTES).then_some(())
    }

    /// What is logged, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The layers that rows enter, and how many are logged of each.
    pub(super) fn all_reached(&self) -> Vec<(u32, u32)> {
        self.logs.keys().map(|layer| (*layer, self.reached(*layer))).collect()
    }

    /// Adds the rows from position `from` on that enter `layer`, as `by` gave them; `None` when `bytes` are not `rows` rows that
    /// [`codec::encode`] writes in the form `wire`. What is there already stays: it was used.
    pub(super) fn add(
        &mut self,
        layer: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: &[u8],
        by: NodeId,
    ) -> Option<Added> {
        let row_bytes = codec::encoded_len(wire, 1, self.hidden)?;
        codec::check(wire, self.hidden, rows as usize, bytes).ok()?;
        let room = self.bytes + bytes.len() <= MAX_LOG_BYTES;
        let log = self.logs.entry(layer).or_insert_with(|| Log {
            wire,
            row_bytes,
            bytes: Vec::new(),
            authors: Vec::new(),
        });
        let here = from as usize * row_bytes;
        let mut added = Added { reached: None, differs: None };
        if log.wire == wire && here <= log.bytes.len() {
            let overlap = (log.bytes.len() - here).min(bytes.len());
            let rows =
                log.bytes[here..here + overlap].chunks(row_bytes).zip(bytes[..overlap].chunks(row_bytes));
            added.differs =
                (from..).zip(rows).find(|(_, (old, new))| old != new).map(|(position, _)| position);
            if room {
                let at = (log.bytes.len() / row_bytes) as u32;
                if overlap < bytes.len() && log.authors.last().is_none_or(|(_, author)| *author != by) {
                    log.authors.push((at, by));
                }
                log.bytes.extend_from_slice(&bytes[overlap..]);
                self.bytes += bytes.len() - overlap;
                added.reached = Some((log.bytes.len() / row_bytes) as u32);
            }
        }
        Some(added)
    }

    /// `rows` rows that enter `layer`, from position `from` on.
    pub(super) fn get(&self, layer: u32, from: u32, rows: u32) -> Option<(Wire, Bytes)> {
        let log = self.logs.get(&layer)?;
        let bytes = log.bytes.get(from as usize * log.row_bytes..(from + rows) as usize * log.row_bytes)?;
        Some((log.wire, Bytes::copy_from_slice(bytes)))
    }

    /// One row that enters `layer`; nothing for one that may still be rejected.
    pub(super) fn row(&self, layer: u32, position: u32) -> Option<(Wire, &[u8])> {
        if self.is_tentative(position) {
            return None;
        }
        let log = self.logs.get(&layer)?;
        let at = position as usize * log.row_bytes;
        Some((log.wire, log.bytes.get(at..at + log.row_bytes)?))
    }

    /// Who gave the row that enters `layer` at a position.
    pub(super) fn author(&self, layer: u32, position: u32) -> Option<NodeId> {
        let authors = &self.logs.get(&layer)?.authors;
        authors.iter().rev().find(|(from, _)| *from <= position).map(|(_, author)| *author)
    }

    /// Forgets the rows from position `from` on that enter `layer` or a later one, and those from `known` on of the
    /// others.
    pub(super) fn forget(&mut self, layer: u32, from: u32, known: u32) {
        for (entered, log) in &mut self.logs {
            let to = if *entered >= layer { from } else { known };
            log.bytes.truncate(to as usize * log.row_bytes);
            log.authors.retain(|(at, _)| *at < to);
        }
        self.bytes = self.logs.values().map(|log| log.bytes.len()).sum();
    }

    /// Forgets the rows from position `to` on.
    pub(super) fn cut(&mut self, to: u32) {
        self.forget(u32::MAX, to, to);
    }

    /// Positions logged of what enters `layer`, without rows that may still be rejected.
    pub(super) fn settled(&self, layer: u32) -> u32 {
        self.reached(layer).min(self.tentative)
    }

    /// Positions logged of what enters `layer`.
    pub(super) fn reached(&self, layer: u32) -> u32 {
        self.logs.get(&layer).map_or(0, |log| (log.bytes.len() / log.row_bytes) as u32)
    }
}

#[cfg(test)]
mod tests {
    use p2p::codec::Wire;
    use scheduler::NodeId;

    use super::{Added, Logs};

    #[test]
    fn rows_are_kept_without_a_gap_and_the_first_answer_stands() {
        let mut logs = Logs::new(2);
        let row = |byte: u8| vec![byte; 8];
        let (a, b) = (NodeId::numbered(1), NodeId::numbered(2));
        let two = [row(1), row(2)].concat();
        let ok = |reached| Some(Added { reached: Some(reached), differs: None });
        assert_eq!(logs.add(3, 0, 2, Wire::Raw, &two, a), ok(2));
        assert_eq!(logs.add(3, 3, 1, Wire::Raw, &row(4), a), Some(Added { reached: None, differs: None }));
        assert_eq!(logs.add(3, 1, 2, Wire::Raw, &[row(2), row(3)].concat(), b), ok(3));
        let other = logs.add(3, 1, 1, Wire::Raw, &row(9), b);
        assert_eq!(other, Some(Added { reached: Some(3), differs: Some(1) }));
        assert_eq!(logs.get(3, 1, 2).unwrap().1, [row(2), row(3)].concat());
        assert_eq!(logs.add(3, 3, 1, Wire::Raw, &[0; 7], b), None);
        assert_eq!((logs.reached(3), logs.reached(4)), (3, 0));
        assert_eq!([1, 2].map(|at| logs.author(3, at)), [Some(a), Some(b)]);
        assert_eq!((logs.row(3, 2), logs.row(3, 3)), (Some((Wire::Raw, row(3).as_slice())), None));
        assert!(logs.get(3, 2, 2).is_none() && logs.get(4, 0, 1).is_none());
        logs.forget(3, 2, 3);
        assert_eq!((logs.reached(3), logs.author(3, 2)), (2, Some(a)));
    }

    #[test]
    fn rows_of_a_draft_are_there_to_be_sent_and_not_to_be_judged() {
        let mut logs = Logs::new(2);
        let row = |byte: u8| vec![byte; 8];
        let (a, b) = (NodeId::numbered(1), NodeId::numbered(2));
        logs.add(3, 0, 4, Wire::Raw, &[row(1), row(2), row(3), row(4)].concat(), a).unwrap();
        logs.set_tentative(Some(2));
        assert_eq!((logs.reached(3), logs.settled(3), logs.is_tentative(1)), (4, 2, false));
        assert!(logs.row(3, 1).is_some() && logs.row(3, 2).is_none() && logs.get(3, 2, 2).is_some());
        // The draws reject the last one, and another row stands in its place.
        logs.cut(3);
        logs.set_tentative(None);
        assert_eq!((logs.reached(3), logs.settled(3)), (3, 3));
        let again = logs.add(3, 2, 2, Wire::Raw, &[row(3), row(9)].concat(), b).unwrap();
        assert_eq!(
            (again, logs.row(3, 3).unwrap().1),
            (Added { reached: Some(4), differs: None }, &row(9)[..])
        );
        assert_eq!([2, 3].map(|at| logs.author(3, at)), [Some(a), Some(b)]);
    }
}
