//! Invites: a swarm in one word that can be spoken, pasted or scanned.
//!
//! ```text
//!  "shoal1" + base32( version 1 | flags 1 | swarm 16, or length 1 and name | key 32? | model 32? | contacts | checksum 4 )
//!  contact = node 32 | count 1 | ( length 1 | binary multiaddr )*                          lower case, no padding
//! ```
//!
//! A code is to be pasted, spoken or scanned, so it is short: [`Invite::offer`] names this node and a few others that are
//! connected now, where strangers can reach them, and leaves out what does not fit into [`SHORT_CODE`]. Whom the newcomer reaches
//! tells it of all others. Each code is made when it is asked for, so no node that has gone is in it.
//!
//! The checksum is the head of a BLAKE3 of what precedes it, so a typo is detected: one in four billion passes.
//! Upper case is read too, which makes a QR code a third smaller. An invite to a private swarm contains the swarm's
//! key: its reader can enter.
//!
//! Codes of version 1, which carried the swarm's hash alone and no model, are read.
//!
//! Limits: [`MAX_CONTACTS`] contacts of 8 addresses, [`MAX_CODE`] characters; a name of a swarm beyond [`MAX_NAME`] bytes travels as
//! its hash.

use std::fmt;
use std::str::FromStr;

use data_encoding::{Encoding, Specification};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use scheduler::{ModelId, NodeId};

use crate::config::SwarmId;
use crate::error::{Error, Result};
use crate::path::{Path, named, path_of, unnamed};
use crate::wire::control::{Contact, MAX_ADDRESS, MAX_ADDRESSES};

/// Contacts in one invite: enough that one is up tomorrow, few enough to paste.
pub const MAX_CONTACTS: usize = 8;
/// Longest invite read, characters.
pub const MAX_CODE: usize = 16 << 10;
/// Longest invite that [`Invite::offer`] makes, characters: a QR code of it can be read from a screen, and two lines of a message
/// hold it.
pub const SHORT_CODE: usize = 320;
/// Longest name of a swarm in an invite, bytes.
pub const MAX_NAME: usize = 48;
/// Addresses of the inviting node beyond which others come first: two transports and two versions of IP.
const OWN_ADDRESSES: usize = 4;
/// Other nodes in an offer: one that is up tomorrow is likelier among them, and each has to be dialed.
const OTHERS: usize = 2;

const PREFIX: &str = "shoal1";
const VERSION: u8 = 2;
const OLD_VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const HAS_MODEL: u8 = 2;
const HAS_NAME: u8 = 4;
const CHECKSUM: usize = 4;

/// What a newcomer needs to join a swarm.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// Which swarm.
    pub swarm: SwarmId,
    /// What it is called, where that is known; its hash is `swarm`.
    pub name: Option<String>,
    /// The model that its inviter serves and others can fetch.
    pub model: Option<ModelId>,
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
            .field("name", &self.name)
            .field("model", &self.model)
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

/// Whether a node is reached through relays only.
fn is_hidden(contact: &Contact) -> bool {
    contact.addresses.iter().all(|address| path_of(address) == Path::Relayed)
}

/// Relays on the way to an address.
fn hops(address: &str) -> usize {
    let parsed = address.parse::<Multiaddr>().ok();
    parsed.map_or(0, |address| address.iter().filter(|part| *part == Protocol::P2pCircuit).count())
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let hash = blake3::derive_key("shoal 1 invite checksum", bytes);
    std::array::from_fn(|i| hash[i])
}

impl Invite {
    /// An invite to the same swarm, of at most [`SHORT_CODE`] characters: this node where others can reach it, then `others`, the
    /// most useful first. Of their addresses only those are said that reach as far as this node's best one: strangers are not
    /// told how a home's network is numbered, and a swarm on one network or host, which has no others, still has its code. Circuits are
    /// of one hop.
    pub fn offer(&self, me: Contact, others: impl IntoIterator<Item = Contact>) -> Self {
        let reach = |address: &String| match path_of(address) {
            Path::Relayed => Path::Direct,
            near => near,
        };
        let widest = me.addresses.iter().filter(|address| hops(address) <= 1).map(reach).max();
        let said = |contact: Contact, most: usize| {
            let mut addresses = contact.addresses;
            addresses.retain(|address| Some(reach(address)) >= widest && hops(address) <= 1);
            // Short ones first: what is left out at the end is a circuit, whose relay's name is half of it.
            addresses.sort_by_key(|address| (path_of(address) == Path::Relayed, address.contains("/ip6/")));
            addresses.truncate(most);
            Contact { node: contact.node, addresses }
        };
        let mut invite = self.clone();
        invite.contacts = vec![said(me, OWN_ADDRESSES)];
        let reachable =
            others.into_iter().map(|other| said(other, 1)).filter(|other| !other.addresses.is_empty());
        invite.contacts.extend(reachable.take(OTHERS));
        while invite.code().len() > SHORT_CODE {
            // This node keeps two ways, each other one, as long as there is anything else to leave out.
            let least = |at: usize| if at == 0 { 2 } else { 1 };
            let fullest =
                (0..invite.contacts.len()).find(|at| invite.contacts[*at].addresses.len() > least(*at));
            match fullest {
                Some(at) => drop(invite.contacts[at].addresses.pop()),
                // A relay's name makes a circuit long: whom others lead to needs none.
                None if invite.contacts.len() > 2 && is_hidden(&invite.contacts[0]) => {
                    drop(invite.contacts.remove(0))
                }
                None if invite.contacts.len() > 1 => drop(invite.contacts.pop()),
                None if invite.contacts[0].addresses.len() > 1 => drop(invite.contacts[0].addresses.pop()),
                None => break,
            }
        }
        invite
    }

    /// The word. Contacts and addresses beyond the limits, and what is no address, are left out.
    pub fn code(&self) -> String {
        let name = self.name.as_ref().filter(|name| (1..=MAX_NAME).contains(&name.len()));
        let flag = |has: bool, flag: u8| if has { flag } else { 0 };
        let flags = flag(self.psk.is_some(), HAS_KEY)
            | flag(self.model.is_some(), HAS_MODEL)
            | flag(name.is_some(), HAS_NAME);
        let mut bytes = vec![VERSION, flags];
        match name {
            Some(name) => {
                bytes.push(name.len() as u8);
                bytes.extend_from_slice(name.as_bytes());
            }
            None => bytes.extend_from_slice(self.swarm.as_bytes()),
        }
        bytes.extend(self.psk.iter().flatten());
        bytes.extend(self.model.iter().flat_map(|model| model.as_bytes()));
        let contacts = &self.contacts[..self.contacts.len().min(MAX_CONTACTS)];
        for contact in contacts {
            let addresses: Vec<Vec<u8>> = contact
                .addresses
                .iter()
                .filter(|text| text.len() <= MAX_ADDRESS)
                // Whose it is, the contact says once.
                .filter_map(|text| unnamed(text, contact.node).parse::<Multiaddr>().ok())
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
        // As a link.
        let text = text.strip_prefix("shoal:").unwrap_or(&text);
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
    let (swarm, name, flags) = match take(1)?[0] {
        OLD_VERSION => {
            let swarm = SwarmId::new(take(16)?.try_into().ok()?);
            (swarm, None, Some(take(1)?[0]).filter(|flags| *flags <= HAS_KEY)?)
        }
        VERSION => {
            let flags = Some(take(1)?[0]).filter(|flags| *flags <= HAS_KEY | HAS_MODEL | HAS_NAME)?;
            if flags & HAS_NAME > 0 {
                let len = Some(usize::from(take(1)?[0])).filter(|len| (1..=MAX_NAME).contains(len))?;
                let name = std::str::from_utf8(take(len)?).ok()?;
                // It is shown on a screen.
                let name = Some(name).filter(|name| !name.chars().any(char::is_control))?;
                (SwarmId::named(name), Some(name.to_owned()), flags)
            } else {
                (SwarmId::new(take(16)?.try_into().ok()?), None, flags)
            }
        }
        _ => return None,
    };
    let mut hash = |flag: u8| match flags & flag {
        0 => Some(None),
        _ => Some(Some(<[u8; 32]>::try_from(take(32)?).ok()?)),
    };
    let psk = hash(HAS_KEY)?;
    let model = hash(HAS_MODEL)?.map(ModelId::new);
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
            addresses.push(named(&Multiaddr::try_from(take(len)?.to_vec()).ok()?.to_string(), node));
        }
        contacts.push(Contact { node, addresses });
    }
    rest.is_empty().then_some(Invite { swarm, name, model, psk, contacts })
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
        let contacts = (0..contacts).map(contact).collect();
        Invite { swarm: SwarmId::named("reef"), name: Some("reef".into()), model: None, psk, contacts }
    }

    #[test]
    fn a_model_and_a_swarm_without_a_name_are_read_back() {
        let invite = Invite { model: Some(ModelId::numbered(7)), ..invite(Some([9; 32]), 2) };
        assert_eq!(invite.code().parse::<Invite>().unwrap(), invite);
        assert_eq!(format!("shoal:{}", invite.code()).parse::<Invite>().unwrap(), invite);
        let nameless = Invite { name: None, ..invite };
        assert_eq!(nameless.code().parse::<Invite>().unwrap(), nameless);
        let long = Invite { name: Some("x".repeat(MAX_NAME + 1)), ..nameless.clone() };
        assert_eq!(long.code().parse::<Invite>().unwrap(), nameless, "a hash is as good to join by");
    }

    #[test]
    fn codes_of_version_one_are_read() {
        let mut bytes = vec![OLD_VERSION];
        bytes.extend(SwarmId::named("reef").as_bytes());
        bytes.push(HAS_KEY);
        bytes.extend([9; 32]);
        bytes.extend(checksum(&bytes));
        let read: Invite = format!("{PREFIX}{}", base32().encode(&bytes)).parse().unwrap();
        assert_eq!(read, Invite { name: None, ..invite(Some([9; 32]), 0) });
    }

    fn at(seed: u8, addresses: &[&str]) -> Contact {
        let node = Identity::from_seed([seed; 32]).node();
        Contact { node, addresses: addresses.iter().map(|address| named(address, node)).collect() }
    }

    #[test]
    fn an_offer_is_short_and_says_nothing_of_homes() {
        let relay = peer_id(Identity::from_seed([8; 32]).node()).unwrap();
        let circuit = format!("/ip4/203.0.113.9/udp/4001/quic-v1/p2p/{relay}/p2p-circuit");
        let double = format!("{circuit}/p2p/{relay}/p2p-circuit");
        let home = ["/ip4/192.168.1.7/tcp/4001", "/ip4/127.0.0.1/tcp/4001"];
        let hidden = at(1, &[&double, &circuit, home[0], home[1]]);
        let public = |seed| {
            at(
                seed,
                &["/ip4/203.0.113.7/udp/4001/quic-v1", "/ip6/2001:db8::7/tcp/4001", "/ip4/10.0.0.2/tcp/4001"],
            )
        };
        let full = Invite { model: Some(ModelId::numbered(7)), ..invite(Some([9; 32]), 0) };
        let others: Vec<Contact> = (2..9).map(public).collect();
        let offer = full.offer(hidden.clone(), others.clone());
        assert!(offer.code().len() <= SHORT_CODE, "{}", offer.code().len());
        assert_eq!(offer.code().parse::<Invite>().unwrap(), offer);
        assert_eq!(offer.contacts.len(), OTHERS, "two others say more than one circuit");
        let open = invite(None, 0).offer(hidden.clone(), others.clone());
        assert_eq!(open.contacts[0].addresses, [named(&circuit, hidden.node)], "one hop, no home");
        assert!(open.code().len() <= SHORT_CODE && open.contacts.len() > 1, "it outlives its inviter");
        let all: Vec<&String> = offer.contacts.iter().flat_map(|contact| &contact.addresses).collect();
        assert!(all.iter().all(|address| path_of(address) >= Path::Direct), "{all:?}");
        // A swarm that has nothing but one host, or one network, is found there.
        assert_eq!(full.offer(at(1, &home[1..]), [at(2, &home[1..])]).contacts.len(), 2);
        let lan = full.offer(at(1, &home), [at(2, &home[1..]), at(3, &home[..1])]);
        assert_eq!(lan.contacts, [at(1, &home[..1]), at(3, &home[..1])]);
        // A node that knows no way to itself names those who do.
        let lost = full.offer(at(1, &[]), others);
        assert!(
            lost.code().len() <= SHORT_CODE && lost.contacts.iter().any(|other| other.addresses.len() == 1)
        );
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
        let id = [0; 16];
        let bad: [&[&[u8]]; 8] = [
            &[&[OLD_VERSION], &id, &[2]],
            &[&[OLD_VERSION], &id, &[HAS_KEY, 1, 2]],
            &[&[OLD_VERSION], &id, &[0, 1, 2, 3]],
            &[&[VERSION, 8], &id],
            &[&[VERSION, HAS_MODEL], &id, &[1, 2]],
            &[&[VERSION, HAS_NAME, 0]],
            &[&[VERSION, HAS_NAME, 2, 0xff, 0xff]],
            &[&[VERSION, HAS_NAME, 1, b'\n']],
        ];
        for parts in bad {
            let mut bad = parts.concat();
            bad.extend(checksum(&bad));
            assert!(format!("{PREFIX}{}", base32().encode(&bad)).parse::<Invite>().is_err());
        }
        assert!(!format!("{:?}", invite(Some([7; 32]), 1)).contains("7, 7"));
    }
}
