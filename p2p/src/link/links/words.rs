//! What two neighbors say about their links on a substream of its own.
//!
//! Both begin with a [`Hello`]. Then the dialer says words of a kind (1 byte) and a number (4), with what follows:
//!
//! | kind | word | number, and what follows |
//! |---|---|---|
//! | 1 | [`ECHO`] | so many bytes, which come back |
//! | 2 | [`USE`] | the link that both use from now on |
//! | 3 | [`KEYS`] | 0; a fresh public key, 32 bytes: the next epoch's exchange |
//! | 4 | [`KEYED`] | 0; the dialer has the next epoch's keys |
//!
//! The other end says a kind alone: [`ECHO`] and the bytes, [`KEYS`] and its public key, and unasked [`LEFT`] (5) when datagrams do
//! not arrive, or too many are lost, and it uses the stream, and [`WORN`] (6) when it wants other keys.

use crate::error::HopError;
use crate::link::Reader;
use crate::link::datagram::header::{CHUNK_RANGE, CHUNK_UNIT};

pub(super) const ECHO: u8 = 1;
pub(super) const USE: u8 = 2;
pub(super) const KEYS: u8 = 3;
pub(super) const KEYED: u8 = 4;
pub(super) const LEFT: u8 = 5;
pub(super) const WORN: u8 = 6;

/// Length of a public key.
pub(super) const PUBLIC_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"shl2";
pub(super) const HELLO_LEN: usize = 50;

/// A word of the dialer.
pub(super) fn word(kind: u8, number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, a, b, c, d]
}

/// What the other end said unasked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Unasked {
    pub(super) left: bool,
    pub(super) worn: bool,
}

impl Unasked {
    /// Takes note of a kind, if it is one that comes unasked.
    pub(super) fn hear(&mut self, kind: u8) -> Result<(), HopError> {
        match kind {
            LEFT => self.left = true,
            WORN => self.worn = true,
            _ => return Err(HopError::Corrupt),
        }
        Ok(())
    }

    /// Reads until an answer of this kind begins.
    pub(super) async fn answer(&mut self, reader: &mut Reader, kind: u8) -> Result<(), HopError> {
        loop {
            let mut said = [0];
            reader.recv_exact(&mut said).await?;
            if said[0] == kind {
                return Ok(());
            }
            self.hear(said[0])?;
        }
    }
}

/// One end's part of an agreement.
pub(super) struct Hello {
    /// Whether datagrams are to be used whatever is measured.
    pub(super) forced: bool,
    /// Whether its processor has instructions for AES.
    pub(super) aes: bool,
    /// 0 for yes, 1 when this end is dialing itself, 2 for no.
    pub(super) status: u8,
    pub(super) port: u16,
    /// The longest chunk that it takes; both use the shorter one.
    pub(super) chunk_bytes: u16,
    pub(super) session: u64,
    pub(super) public: [u8; PUBLIC_LEN],
}

impl Hello {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[u8::from(self.forced) | u8::from(self.aes) << 1, self.status]);
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.extend_from_slice(&self.chunk_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.public);
        bytes
    }

    pub(super) fn read(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let ([flags, status, p0, p1, c0, c1], rest) = rest.split_first_chunk::<6>()?;
        let (session, public) = rest.split_first_chunk::<8>()?;
        let (port, chunk_bytes) = (u16::from_le_bytes([*p0, *p1]), u16::from_le_bytes([*c0, *c1]));
        let chunk = usize::from(chunk_bytes);
        let sound = *magic == MAGIC
            && *flags <= 3
            && CHUNK_RANGE.contains(&chunk)
            && chunk.is_multiple_of(CHUNK_UNIT);
        let session = u64::from_le_bytes(*session);
        let (forced, aes, status) = (*flags & 1 == 1, *flags & 2 == 2, *status);
        sound.then_some(Self {
            forced,
            aes,
            status,
            port,
            chunk_bytes,
            session,
            public: public.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_back() {
        let hello = Hello {
            forced: false,
            aes: true,
            status: 2,
            port: 9,
            chunk_bytes: 1_408,
            session: 77,
            public: [3; 32],
        };
        let bytes: [u8; HELLO_LEN] = hello.write().try_into().unwrap();
        let read = Hello::read(&bytes).unwrap();
        assert_eq!(
            (read.forced, read.aes, read.status, read.port, read.session, read.public),
            (false, true, 2, 9, 77, [3; 32])
        );
        for (at, bit) in [(0, 0x40), (4, 0x40), (8, 0x20), (9, 0x40)] {
            let mut changed = bytes;
            changed[at] ^= bit;
            assert!(Hello::read(&changed).is_none());
        }
    }
}
