//! Reading and writing the layouts: little-endian numbers, counted lists, counted text.
//!
//! A count is checked twice before anything is allocated: against its bound, and against the bytes that are left
//! (every item of a list has a smallest size). So `n` bytes make a reader allocate a small multiple of `n`.

use std::str;

use super::Malformed;

/// What is left of a message. Every call takes from the front or refuses and takes nothing.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Malformed("truncated"))?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed("truncated"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// When none is left.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes; any bits, so the caller bounds the value.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn f64(&mut self) -> Result<f64, Malformed> {
        self.array().map(f64::from_le_bytes)
    }

    /// One byte, 0 or 1.
    ///
    /// # Errors
    /// When it is another, or none is left.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("flag")),
        }
    }

    /// A two-byte count of items that take at least `smallest` bytes each.
    ///
    /// # Errors
    /// When it is above `most`, or the bytes left cannot hold so many.
    pub fn count(&mut self, most: usize, smallest: usize) -> Result<usize, Malformed> {
        let count = self.u16()?;
        self.checked(usize::from(count), most, smallest)
    }

    /// A four-byte count, otherwise as [`Reader::count`].
    ///
    /// # Errors
    /// When it is above `most`, or the bytes left cannot hold so many.
    pub fn long_count(&mut self, most: usize, smallest: usize) -> Result<usize, Malformed> {
        let count = self.u32()?;
        self.checked(usize::try_from(count).unwrap_or(usize::MAX), most, smallest)
    }

    fn checked(&self, count: usize, most: usize, smallest: usize) -> Result<usize, Malformed> {
        if count > most {
            return Err(Malformed("count"));
        }
        match count.checked_mul(smallest) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(Malformed("truncated")),
        }
    }

    /// A list with a two-byte count: at most `most` items of at least `smallest` bytes, each read by `item`.
    ///
    /// # Errors
    /// When there are more, the bytes left cannot hold so many, or an item is refused.
    pub fn list<T>(
        &mut self,
        most: usize,
        smallest: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(most, smallest)?;
        (0..count).map(|_| item(self)).collect()
    }

    /// UTF-8 text of at most `most` bytes, behind a two-byte length.
    ///
    /// # Errors
    /// When it is longer, cut short, or not UTF-8.
    pub fn text(&mut self, most: usize) -> Result<&'a str, Malformed> {
        let len = self.count(most, 1)?;
        str::from_utf8(self.bytes(len)?).map_err(|_| Malformed("text"))
    }

    /// Ends the message.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("trailing bytes")) }
    }
}

/// A message being written; the mirror of [`Reader`].
#[derive(Clone, Default, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    /// A two-byte count. One that does not fit becomes the largest, which no reader accepts.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u16(u16::try_from(count).unwrap_or(u16::MAX))
    }

    /// A four-byte count. One that does not fit becomes the largest, which no reader accepts.
    pub fn long_count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// A list with a two-byte count, each item written by `item`.
    pub fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.count(items.len());
        items.iter().for_each(|one| item(self, one));
        self
    }

    /// Text behind a two-byte length.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.count(text.len()).bytes(text.as_bytes())
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole message.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// `text` without what goes beyond `most` bytes; whole characters only.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::{Reader, Writer, cut};
    use crate::wire::Malformed;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.u8(1).u16(2).u32(3).u64(4).f64(-0.5).bool(true).text("é").list(&[7, 8], |w, &n| {
            w.u32(n);
        });
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u8(), reader.u16(), reader.u32(), reader.u64()), (Ok(1), Ok(2), Ok(3), Ok(4)));
        assert_eq!((reader.f64(), reader.bool(), reader.text(2)), (Ok(-0.5), Ok(true), Ok("é")));
        assert_eq!(reader.list(2, 4, Reader::u32), Ok(vec![7, 8]));
        assert_eq!((reader.remaining(), reader.finish()), (0, Ok(())));
    }

    #[test]
    fn counts_are_held_against_the_bytes_present() {
        let refused = |bytes: &[u8], most, smallest| Reader::new(bytes).count(most, smallest);
        assert_eq!(refused(&[3, 0, 1, 2, 3], 3, 1), Ok(3));
        assert_eq!(refused(&[3, 0, 1, 2, 3], 2, 1), Err(Malformed("count")));
        assert_eq!(refused(&[3, 0, 1, 2, 3], 3, 2), Err(Malformed("truncated")));
        assert_eq!(refused(&[255, 255], usize::MAX, usize::MAX), Err(Malformed("truncated")));
        assert_eq!(Reader::new(&[0xff; 4]).long_count(usize::MAX, 1), Err(Malformed("truncated")));
    }

    #[test]
    fn odd_values_are_refused() {
        assert_eq!(Reader::new(&[2]).bool(), Err(Malformed("flag")));
        assert_eq!(Reader::new(&[1, 0, 0xff]).text(9), Err(Malformed("text")));
        assert_eq!(Reader::new(&[1, 0]).text(9), Err(Malformed("truncated")));
        assert_eq!(Reader::new(&[0]).finish(), Err(Malformed("trailing bytes")));
        assert_eq!(Reader::new(&[0; 3]).u32(), Err(Malformed("truncated")));
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!((cut("aé", 2), cut("aé", 3), cut("aé", 9)), ("a", "aé", "aé"));
    }
}
