//! The 40 bytes in front of every datagram, and the checks that come before anything is written.
//!
//! ```text
//!  0..4   magic "SLAN"              16..20  message, serial numbers from 1
//!  4      version, 1                20..24  bytes of the sealed message
//!  5      kind                      24..26  chunks of the message
//!  6..8   chunk                     26..28  bytes behind this header
//!  8..16  session of the receiver   28..32  epoch of the keys
//!                                   32..40  tag
//! ```
//!
//! All integers are little-endian. The tag is SipHash-2-4 with 64 bits of output under the key of this direction: of a
//! data datagram over the bytes 0..32, because the message has a seal of its own; of all others over 0..32 and what follows.
//! Every chunk of a message but the last has the bytes that both ends agreed on.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// Length of a header, bytes.
pub(crate) const HEADER_LEN: usize = 40;
/// Bytes of a chunk where the network carries packets of 1,500 bytes: with all headers 1,496 over IPv6.
pub(crate) const CHUNK_BYTES: usize = 1_408;
/// Bytes of a chunk at least and at most, and what they are a multiple of. The least fits packets of every
/// network of IPv6, the most fits packets of 9,000 bytes.
pub(crate) const CHUNK_RANGE: std::ops::RangeInclusive<usize> = 512..=8_896;
pub(crate) const CHUNK_UNIT: usize = 64;
/// Bytes of a ping's payload at least.
pub(crate) const PING_LEN: usize = 8;
/// The longest sealed message that is taken, bytes.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// Sessions of a node: the low bits of a session's name are its place in the table.
pub(crate) const MAX_SESSIONS: usize = 64;

/// What a datagram begins with.
pub(crate) const MAGIC: [u8; 4] = *b"SLAN";
pub(crate) const VERSION: u8 = 1;
/// Where the tag begins.
const TAGGED: usize = 32;

/// What a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A chunk of a message.
    Data = 0,
    /// The message has arrived. Payload: free places for messages at the receiver, u16.
    Ack = 1,
    /// Chunks of the message that lack. Payload: first u16, count u16, a bit each.
    Nack = 2,
    /// Is the way open to datagrams of this length? Payload: 8 bytes or more that come back.
    Ping = 3,
    /// It is.
    Pong = 4,
    /// What lacks of this message?
    Probe = 5,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Data, Self::Ack, Self::Nack, Self::Ping, Self::Pong, Self::Probe];
}

/// The key of the tags of one direction.
#[derive(Clone)]
pub(crate) struct HeaderKey([u8; 16]);

impl HeaderKey {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// Its bytes, for who tags in this process's place.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        self.0
    }

    fn tag(&self, datagram: &[u8], kind: Kind) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        match kind {
            Kind::Data => hasher.write(&datagram[..TAGGED]),
            _ => {
                hasher.write(&datagram[..TAGGED]);
                hasher.write(&datagram[HEADER_LEN..]);
            }
        }
        hasher.finish()
    }
}

impl std::fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeaderKey")
    }
}

/// What the header of a datagram says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) chunk: u16,
    /// Chosen by the receiver.
    pub(crate) session: u64,
    pub(crate) message: u32,
    /// Of the sealed message.
    pub(crate) total_bytes: u32,
    pub(crate) chunks: u16,
    /// Bytes behind the header.
    pub(crate) len: u16,
    pub(crate) epoch: u32,
}

/// Chunks of a sealed message; `None` for one that no datagrams carry.
pub(crate) fn chunks_of(total_bytes: usize, chunk_bytes: usize) -> Option<u16> {
    let chunks = total_bytes.div_ceil(chunk_bytes);
    (total_bytes > 0 && total_bytes <= MAX_MESSAGE).then(|| u16::try_from(chunks).ok()).flatten()
}

/// The session that a datagram names, if it begins like one. Nothing of it is proved.
pub(crate) fn session_of(datagram: &[u8]) -> Option<u64> {
    let head = datagram.first_chunk::<HEADER_LEN>()?;
    (head[..4] == MAGIC && head[4] == VERSION).then(|| u64_at(head, 8))
}

fn u16_at(head: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([head[at], head[at + 1]])
}

fn u32_at(head: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| head[at + i]))
}

fn u64_at(head: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| head[at + i]))
}

impl Header {
    /// Reads the header of a whole datagram and checks that it is consistent with itself and with its length. The tag is not
    /// checked: [`Header::proves`].
    pub(crate) fn read(datagram: &[u8], chunk_bytes: usize) -> Option<Self> {
        session_of(datagram)?;
        let head = datagram.first_chunk::<HEADER_LEN>()?;
        let header = Self {
            kind: *Kind::ALL.get(usize::from(head[5]))?,
            chunk: u16_at(head, 6),
            session: u64_at(head, 8),
            message: u32_at(head, 16),
            total_bytes: u32_at(head, 20),
            chunks: u16_at(head, 24),
            len: u16_at(head, 26),
            epoch: u32_at(head, 28),
        };
        header.is_consistent(datagram.len() - HEADER_LEN, chunk_bytes).then_some(header)
    }

    fn is_consistent(&self, payload: usize, chunk_bytes: usize) -> bool {
        let len = usize::from(self.len);
        if len != payload || len > chunk_bytes {
            return false;
        }
        match self.kind {
            Kind::Data => {
                let total = self.total_bytes as usize;
                chunks_of(total, chunk_bytes) == Some(self.chunks)
                    && self.chunk < self.chunks
                    && len == (total - usize::from(self.chunk) * chunk_bytes).min(chunk_bytes)
            }
            Kind::Ack => len == 2,
            Kind::Nack => len >= 5,
            Kind::Ping | Kind::Pong => len >= PING_LEN,
            Kind::Probe => len == 0,
        }
    }

    /// Whether the datagram that this header was read from was tagged with `key`.
    pub(crate) fn proves(&self, datagram: &[u8], key: &HeaderKey) -> bool {
        let Some(head) = datagram.first_chunk::<HEADER_LEN>() else { return false };
        // A sender without the key has one try in 2^64; what the comparison takes tells it nothing that it can use in time.
        key.tag(datagram, self.kind) == u64_at(head, TAGGED)
    }

    /// Appends the datagram: header, tag and payload.
    pub(crate) fn write(&self, payload: &[u8], key: &HeaderKey, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&MAGIC);
        into.extend_from_slice(&[VERSION, self.kind as u8]);
        into.extend_from_slice(&self.chunk.to_le_bytes());
        into.extend_from_slice(&self.session.to_le_bytes());
        into.extend_from_slice(&self.message.to_le_bytes());
        into.extend_from_slice(&self.total_bytes.to_le_bytes());
        into.extend_from_slice(&self.chunks.to_le_bytes());
        into.extend_from_slice(&self.len.to_le_bytes());
        into.extend_from_slice(&self.epoch.to_le_bytes());
        into.extend_from_slice(&[0; 8]);
        into.extend_from_slice(payload);
        let tag = key.tag(&into[start..], self.kind);
        into[start + TAGGED..start + HEADER_LEN].copy_from_slice(&tag.to_le_bytes());
    }
}

/// The last [`Window::SPAN`] message numbers: which of them are over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    newest: u32,
    /// Bit i: the message `newest - i` is over.
    over: u64,
}

impl Window {
    /// How far back a message may lie.
    pub(crate) const SPAN: u32 = 64;

    /// The newest message that is over.
    pub(crate) fn newest(&self) -> u32 {
        self.newest
    }

    /// Whether `message` is older than the window, or over.
    pub(crate) fn is_over(&self, message: u32) -> bool {
        let behind = self.newest.wrapping_sub(message);
        if behind as i32 >= 0 { behind >= Self::SPAN || self.over & (1 << behind) != 0 } else { false }
    }

    /// `message` is over: it is not taken again.
    pub(crate) fn close(&mut self, message: u32) {
        let ahead = message.wrapping_sub(self.newest);
        if ahead as i32 > 0 {
            self.over = if ahead >= Self::SPAN { 0 } else { self.over << ahead };
            self.newest = message;
            self.over |= 1;
        } else if self.newest.wrapping_sub(message) < Self::SPAN {
            self.over |= 1 << self.newest.wrapping_sub(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> HeaderKey {
        HeaderKey::new(std::array::from_fn(|i| i as u8))
    }

    fn data(total: usize, chunk: u16) -> (Header, Vec<u8>) {
        let chunks = chunks_of(total, CHUNK_BYTES).unwrap();
        let len = (total - usize::from(chunk) * CHUNK_BYTES).min(CHUNK_BYTES);
        let header = Header {
            kind: Kind::Data,
            chunk,
            session: 0x0102_0304_0506_0708,
            message: 9,
            total_bytes: total as u32,
            chunks,
            len: len as u16,
            epoch: 3,
        };
        let mut bytes = Vec::new();
        header.write(&vec![0xa5; len], &key(), &mut bytes);
        (header, bytes)
    }

    /// SipHash-2-4 written out, beside the crate's.
    fn siphash(key: &[u8; 16], bytes: &[u8]) -> u64 {
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
        let (k0, k1) = (word(&key[..8]), word(&key[8..]));
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let round = |v: &mut [u64; 4]| {
            v[0] = v[0].wrapping_add(v[1]);
            v[2] = v[2].wrapping_add(v[3]);
            v[1] = v[1].rotate_left(13) ^ v[0];
            v[3] = v[3].rotate_left(16) ^ v[2];
            v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
            v[2] = v[2].wrapping_add(v[1]);
            v[1] = v[1].rotate_left(17) ^ v[2];
            v[3] = v[3].rotate_left(21) ^ v[0];
            v[2] = v[2].rotate_left(32);
        };
        let mut padded = bytes.to_vec();
        padded.resize((bytes.len() / 8 + 1) * 8, 0);
        *padded.last_mut().unwrap() = bytes.len() as u8;
        for m in padded.chunks(8).map(word) {
            v[3] ^= m;
            round(&mut v);
            round(&mut v);
            v[0] ^= m;
        }
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    #[test]
    fn the_layout_is_the_one_that_is_written_down() {
        let (_, bytes) = data(5_000, 1);
        assert_eq!(&bytes[..4], b"SLAN");
        assert_eq!(bytes[4..8], [1, 0, 1, 0]);
        assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[16..20], 9_u32.to_le_bytes());
        assert_eq!(bytes[20..24], 5_000_u32.to_le_bytes());
        assert_eq!(bytes[24..26], 4_u16.to_le_bytes());
        assert_eq!(bytes[26..28], 1_408_u16.to_le_bytes());
        assert_eq!(bytes[28..32], 3_u32.to_le_bytes());
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(bytes[32..40], siphash(&key, &bytes[..32]).to_le_bytes());
        // The vector of the authors of SipHash: key 00..0f over 00..0e.
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(&key, &message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn control_is_tagged_with_its_payload() {
        let header = Header { kind: Kind::Ping, chunk: 0, chunks: 0, total_bytes: 0, len: 8, ..data(1, 0).0 };
        let mut bytes = Vec::new();
        header.write(&[7; 8], &key(), &mut bytes);
        let read = Header::read(&bytes, CHUNK_BYTES).unwrap();
        assert!(read == header && read.proves(&bytes, &key()));
        let plain: [u8; 16] = std::array::from_fn(|i| i as u8);
        let tagged = [&bytes[..32], &bytes[40..]].concat();
        assert_eq!(bytes[32..40], siphash(&plain, &tagged).to_le_bytes());
        *bytes.last_mut().unwrap() ^= 1;
        assert!(!Header::read(&bytes, CHUNK_BYTES).unwrap().proves(&bytes, &key()));
    }

    /// The vectors that the kernel module's core made.
    #[test]
    fn the_vectors_of_the_wire_are_kept() {
        let text = include_str!("../../../kmod/vectors.txt");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let bytes = |hex: &str| data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
        let vectors: Vec<(&str, Vec<u8>)> =
            lines.filter_map(|line| line.split_once(" = ")).map(|(name, hex)| (name, bytes(hex))).collect();
        let key = |name: &str| {
            let found = vectors.iter().find(|(known, _)| *known == name).unwrap();
            HeaderKey::new(found.1[..].try_into().unwrap())
        };
        let (hashes, headers) = (key("siphash.key"), key("header.key"));
        let mut seen = [0; 3];
        for (name, bytes) in &vectors {
            if let Some(len) = name.strip_prefix("siphash.").and_then(|len| len.parse::<u8>().ok()) {
                let mut hasher = SipHasher24::new_with_key(&hashes.0);
                hasher.write(&(0..len).collect::<Vec<u8>>());
                assert_eq!(hasher.finish().to_le_bytes(), bytes[..], "{name}");
                seen[0] += 1;
            } else if name.starts_with("header.") && *name != "header.key" {
                let mut datagram = bytes.clone();
                // Of data the header alone is written down: its tag covers no payload.
                let len = usize::from(u16::from_le_bytes([bytes[26], bytes[27]]));
                datagram.resize(HEADER_LEN + len, 0);
                let header = Header::read(&datagram, CHUNK_BYTES).unwrap_or_else(|| panic!("{name}"));
                assert!(header.proves(&datagram, &headers), "{name}");
                assert_eq!((header.session, header.epoch), (0xfedc_ba98_7654_32c5, 7), "{name}");
                seen[1] += 1;
            } else if name.starts_with("refused.") {
                let mut datagram = bytes.clone();
                let len = usize::from(u16::from_le_bytes([bytes[26], bytes[27]]));
                datagram.resize(HEADER_LEN + len, 0);
                assert_eq!(Header::read(&datagram, CHUNK_BYTES), None, "{name}");
                seen[2] += 1;
            }
        }
        assert!(seen[0] >= 64 && seen[1] >= 9 && seen[2] >= 12, "{seen:?}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_one_bit_is_noticed(
            total in 1_usize..200_000, pick in any::<u16>(), bit in any::<usize>(), cut in any::<usize>()
        ) {
            let chunk = pick % chunks_of(total, CHUNK_BYTES).unwrap();
            let (header, bytes) = data(total, chunk);
            let read = Header::read(&bytes, CHUNK_BYTES).unwrap();
            prop_assert_eq!(read, header);
            prop_assert!(read.proves(&bytes, &key()));
            prop_assert!(!read.proves(&bytes, &HeaderKey::new([9; 16])));
            prop_assert_eq!(Header::read(&bytes[..cut % bytes.len()], CHUNK_BYTES), None);
            let mut flipped = bytes.clone();
            let at = bit % (HEADER_LEN * 8);
            flipped[at / 8] ^= 1 << (at % 8);
            let accepted = Header::read(&flipped, CHUNK_BYTES).is_some_and(|h| h.proves(&flipped, &key()));
            prop_assert!(!accepted);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let mut named = bytes.clone();
            if named.len() > 6 {
                named[..5].copy_from_slice(b"SLAN\x01");
            }
            for bytes in [bytes, named] {
                if let Some(header) = Header::read(&bytes, CHUNK_BYTES) {
                    prop_assert!(!header.proves(&bytes, &key()));
                }
            }
        }

        /// Against the window written down as a list; the numbers wrap around.
        #[test]
        fn a_message_is_over_once(start in any::<u32>(), steps in proptest::collection::vec(-70_i32..64, 1..200)) {
            let mut window = Window { newest: start, over: 1 };
            let mut over = vec![start];
            let mut newest = start;
            for step in steps {
                let message = newest.wrapping_add_signed(step);
                let expected = over.contains(&message) || (step <= -64);
                prop_assert_eq!(window.is_over(message), expected);
                if !expected {
                    window.close(message);
                    over.push(message);
                    if step > 0 {
                        newest = message;
                    }
                }
                prop_assert!(window.is_over(message));
            }
        }
    }
}
