//! Invites: a swarm in one word that can be spoken, pasted or scanned.
//!
//! ```text
//!  "shoal1" + base32( version 1 | swarm 16 | flags 1 | key 32? | contacts | checksum 4 )      lower case, no padding
//!  contact = node 32 | count 1 | ( length 1 | binary multiaddr )*
//! ```
//!
//! The checksum is the head of a BLAKE3 of what precedes it, so a typo is detected: one in four billion passes.
//! Upper case is read too, which makes a QR code a third smaller. An invite to a private swarm contains the swarm's
//! key: its reader can enter.
//!
//! Limits: [`MAX_CONTACTS`] contacts of 8 addresses, [`MAX_CODE`] characters.

use std::fmt;
use std::str::FromStr;

use data_encoding::{Encoding, Specification};
use libp2p::Multiaddr;
use scheduler::NodeId;

use crate::config::SwarmId;
use crate::error::{Error, Result};
use crate::wire::control::{Contact, MAX_ADDRESS, MAX_ADDRESSES};

/// Contacts in one invite: enough that one is up tomorrow, few enough to paste.
pub const MAX_CONTACTS: usize = 8;
/// Longest invite read, characters.
pub const MAX_CODE: usize = 16 << 10;

const PREFIX: &str = "shoal1";
const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const CHECKSUM: usize = 4;

/// What a newcomer needs to join a swarm.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// Which swarm.
    pub swarm: SwarmId,
    /// The key of a private one.
    pub psk: Option<[u8; 32]>,
    /// Whom to ask, at most [`MAX_CONTACTS`].
    pub contacts: Vec<Contact>,
}

impl fmt::Debug for Invite {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let private = self.psk.is_some();
        f.debug_struct("Invite")
            .field("swarm", &self.swarm)
            .field("private", &private)
            .field("contacts", &self.contacts)
            .finish()
    }
}

fn base32() -> Encoding {
    let mut alphabet = Specification::new();
    alphabet.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    alphabet.encoding().expect("32 distinct symbols")
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let hash = blake3::derive_key("shoal 1 invite checksum", bytes);
    std::array::from_fn(|i| hash[i])
}

impl Invite {
    /// The word. Contacts and addresses beyond the limits, and what is no address, are left out.
    pub fn code(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(self.swarm.as_bytes());
        bytes.push(if self.psk.is_some() { HAS_KEY } else { 0 });
        bytes.extend(self.psk.iter().flatten());
        let contacts = &self.contacts[..self.contacts.len().min(MAX_CONTACTS)];
        for contact in contacts {
            let addresses: Vec<Vec<u8>> = contact
                .addresses
                .iter()
                .filter(|text| text.len() <= MAX_ADDRESS)
                .filter_map(|text| text.parse::<Multiaddr>().ok())
                .map(|address| address.to_vec())
                .filter(|address| u8::try_from(address.len()).is_ok())
                .take(MAX_ADDRESSES)
                .collect();
            bytes.extend_from_slice(contact.node.as_bytes());
            bytes.push(addresses.len() as u8);
            for address in addresses {
                bytes.push(address.len() as u8);
                bytes.extend_from_slice(&address);
            }
        }
        bytes.extend_from_slice(&checksum(&bytes));
        format!("{PREFIX}{}", base32().encode(&bytes))
    }
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code())
    }
}

impl FromStr for Invite {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() > MAX_CODE {
            return Err(Error::Invite("it is too long"));
        }
        let text = text.to_ascii_lowercase();
        let code = text.strip_prefix(PREFIX).ok_or(Error::Invite("it does not begin with shoal1"))?;
        let bytes =
            base32().decode(code.as_bytes()).map_err(|_| Error::Invite("it has a typo, copy it again"))?;
        let at = bytes.len().checked_sub(CHECKSUM).ok_or(Error::Invite("it is cut off, copy it again"))?;
        let (bytes, sum) = bytes.split_at(at);
        if sum != checksum(bytes) {
            return Err(Error::Invite("it has a typo or is cut off, copy it again"));
        }
        parse(bytes).ok_or(Error::Invite("it is of another version, update shoal"))
    }
}

fn parse(bytes: &[u8]) -> Option<Invite> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    if take(1)? != [VERSION] {
        return None;
    }
    let swarm = SwarmId::new(take(16)?.try_into().ok()?);
    let psk = match take(1)?[0] {
        0 => None,
        HAS_KEY => Some(take(32)?.try_into().ok()?),
        _ => return None,
    };
    let mut contacts = Vec::new();
    while let Some(node) = take(32) {
        let node = NodeId::new(node.try_into().ok()?);
        let count = usize::from(take(1)?[0]);
        if contacts.len() == MAX_CONTACTS || count > MAX_ADDRESSES {
            return None;
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let len = usize::from(take(1)?[0]);
            addresses.push(Multiaddr::try_from(take(len)?.to_vec()).ok()?.to_string());
        }
        contacts.push(Contact { node, addresses });
    }
    rest.is_empty().then_some(Invite { swarm, psk, contacts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, peer_id};

    fn invite(psk: Option<[u8; 32]>, contacts: u8) -> Invite {
        let contact = |seed| {
            let node = Identity::from_seed([seed; 32]).node();
            let peer = peer_id(node).unwrap();
            let addresses = ["/ip4/203.0.113.7/udp/4001/quic-v1", "/dns6/example.org/tcp/4001"];
            Contact { node, addresses: addresses.map(|a| format!("{a}/p2p/{peer}")).to_vec() }
        };
        Invite { swarm: SwarmId::named("reef"), psk, contacts: (0..contacts).map(contact).collect() }
    }

    #[test]
    fn a_word_is_read_back_in_either_case() {
        for (psk, contacts) in [(None, 0), (None, 1), (Some([9; 32]), 1), (Some([0; 32]), 8)] {
            let invite = invite(psk, contacts);
            assert_eq!(invite.code().parse::<Invite>().unwrap(), invite);
            assert_eq!(format!(" {}\n", invite.code().to_uppercase()).parse::<Invite>().unwrap(), invite);
        }
    }

    #[test]
    fn every_single_character_typo_is_told() {
        let code = invite(Some([7; 32]), 1).code();
        for at in 0..code.len() {
            for symbol in "abcdefghijklmnopqrstuvwxyz0123456789 -".chars() {
                let mut typo: Vec<char> = code.chars().collect();
                if typo[at] != symbol {
                    typo[at] = symbol;
                    let typo: String = typo.into_iter().collect();
                    assert!(typo.parse::<Invite>().is_err(), "{at} {symbol}");
                }
            }
            let mut missing = code.clone();
            missing.remove(at);
            assert!(missing.parse::<Invite>().is_err(), "{at} missing");
            assert!(code[..at].parse::<Invite>().is_err(), "cut at {at}");
        }
    }

    #[test]
    fn neighbors_swapped_are_told() {
        let code = invite(None, 1).code();
        for at in PREFIX.len()..code.len() - 1 {
            let mut typo: Vec<char> = code.chars().collect();
            typo.swap(at, at + 1);
            let typo: String = typo.into_iter().collect();
            assert!(typo == code || typo.parse::<Invite>().is_err(), "{at}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_left_out_and_lies_are_refused() {
        let mut long = invite(None, 8);
        long.contacts.push(long.contacts[0].clone());
        long.contacts[0].addresses.push("not an address".into());
        let read: Invite = long.code().parse().unwrap();
        assert_eq!(read.contacts.len(), MAX_CONTACTS);
        assert_eq!(read.contacts[0].addresses.len(), 2);
        let mut bytes = vec![VERSION];
        bytes.extend([0; 16]);
        for tail in [&[2][..], &[HAS_KEY, 1, 2], &[0, 1, 2, 3]] {
            let mut bad = bytes.clone();
            bad.extend(tail);
            bad.extend(checksum(&bad));
            assert!(format!("{PREFIX}{}", base32().encode(&bad)).parse::<Invite>().is_err());
        }
        assert!(!format!("{:?}", invite(Some([7; 32]), 1)).contains("7, 7"));
    }
}
