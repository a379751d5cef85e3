//! The header of a good GGUF file, taken apart by code that shares nothing with the reader: for tests that change it where it
//! hurts. `tests/fuzz` reads this file too.

use std::ops::Range;

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// What a field of a header is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A count, length, dimension, offset or value.
    Number,
    /// The kind of a value or the format of a tensor.
    Type,
    /// Characters of a key, a name or a value.
    Text,
}

/// A good file, taken apart by code that shares nothing with the reader.
pub struct Parts {
    /// The file.
    pub bytes: Vec<u8>,
    /// What the header consists of, in order; of an array the first elements.
    pub fields: Vec<(Field, Range<usize>)>,
    /// Pairs and tensors, each whole.
    pub entries: Vec<Range<usize>>,
}

impl Parts {
    /// Of a file that is known to be good; panics on others.
    pub fn of(bytes: Vec<u8>) -> Self {
        let mut parts = Self { bytes, fields: Vec::new(), entries: Vec::new() };
        let mut at = 4;
        parts.number(&mut at, 4);
        let tensors = parts.number(&mut at, 8);
        let pairs = parts.number(&mut at, 8);
        for _ in 0..pairs {
            let start = at;
            parts.text(&mut at);
            let kind = parts.kind(&mut at);
            parts.value(&mut at, kind);
            parts.entries.push(start..at);
        }
        for _ in 0..tensors {
            let start = at;
            parts.text(&mut at);
            for _ in 0..parts.number(&mut at, 4) {
                parts.number(&mut at, 8);
            }
            parts.kind(&mut at);
            parts.number(&mut at, 8);
            parts.entries.push(start..at);
        }
        parts
    }

    fn number(&mut self, at: &mut usize, width: usize) -> u64 {
        let range = *at..*at + width;
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(&self.bytes[range.clone()]);
        self.fields.push((Field::Number, range));
        *at += width;
        u64::from_le_bytes(wide)
    }

    fn kind(&mut self, at: &mut usize) -> u32 {
        let kind = self.number(at, 4) as u32;
        self.fields.last_mut().unwrap().0 = Field::Type;
        kind
    }

    fn text(&mut self, at: &mut usize) {
        let len = self.number(at, 8) as usize;
        self.fields.push((Field::Text, *at..*at + len));
        *at += len;
    }

    fn value(&mut self, at: &mut usize, kind: u32) {
        match kind {
            STRING => self.text(at),
            ARRAY => {
                let element = self.kind(at);
                let len = self.number(at, 8);
                // The first elements stand for all: a vocabulary would outweigh everything else.
                let before = self.fields.len();
                for _ in 0..len {
                    self.value(at, element);
                }
                self.fields.truncate(before + 4);
            }
            0 | 1 | 7 => drop(self.number(at, 1)),
            2 | 3 => drop(self.number(at, 2)),
            4..=6 => drop(self.number(at, 4)),
            _ => drop(self.number(at, 8)),
        }
    }
}
