//! The keys of a session: which seal, which open, and when others are due.
//!
//! Every epoch has an exchange of its own. Of what comes the newest epoch and the one before are taken, so that nothing is derived for
//! a datagram; of what leaves those of the epoch before stay, because messages of it are still sent again.

use super::seal::{Cipher, Direction, Keys, Secret};

/// After so many messages under the same keys the ends are to exchange others.
const WORN_MESSAGES: u32 = if cfg!(test) { 1 << 7 } else { 1 << 20 };
/// Beyond so many nothing is sealed with them: the frames take the stream. Far from 2^32, where a nonce would come again.
const MAX_MESSAGES: u32 = 1 << 24;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Keyring {
    direction: Direction,
    cipher: Cipher,
    /// The keys of what is sealed now, and those before them.
    pub(crate) outward: Keys,
    outward_before: Option<Keys>,
    /// Those of the next epoch, until the other end is known to have them.
    pub(crate) outward_next: Option<Keys>,
    /// The keys of what comes: of the newest epoch, and of the one before.
    pub(crate) inward: Keys,
    inward_before: Option<Keys>,
    /// The first message under the keys of now, and whether others were wanted for them.
    first: u32,
    wanted: bool,
}

impl Keyring {
    /// Those of the exchange that a session begins with, of the end that sends in `direction`.
    pub(crate) fn new(secret: &Secret, direction: Direction, cipher: Cipher) -> Self {
        Self {
            direction,
            cipher,
            outward: secret.keys(direction, 0, cipher),
            outward_before: None,
            outward_next: None,
            inward: secret.keys(direction.back(), 0, cipher),
            inward_before: None,
            first: 1,
            wanted: false,
        }
    }

    /// Of what comes the next epoch is taken from now on; what leaves has it from [`Keyring::advance`] on.
    pub(crate) fn renew(&mut self, secret: &Secret) {
        let epoch = self.inward.epoch.wrapping_add(1);
        let inward = secret.keys(self.direction.back(), epoch, self.cipher);
        self.inward_before = Some(std::mem::replace(&mut self.inward, inward));
        self.outward_next = Some(secret.keys(self.direction, epoch, self.cipher));
    }

    /// The next epoch seals, `message` first.
    pub(crate) fn advance(&mut self, message: u32) {
        if let Some(next) = self.outward_next.take() {
            self.outward_before = Some(std::mem::replace(&mut self.outward, next));
            (self.first, self.wanted) = (message, false);
        }
    }

    /// Whether others are due by `message`; said once for the same keys.
    pub(crate) fn are_worn(&mut self, message: u32) -> bool {
        let worn = message.wrapping_sub(self.first) >= WORN_MESSAGES && !self.wanted;
        self.wanted |= worn;
        worn
    }

    /// Whether nothing more is to be sealed with those of now.
    pub(crate) fn are_spent(&self, message: u32) -> bool {
        message.wrapping_sub(self.first) >= MAX_MESSAGES
    }

    /// The oldest of what comes that are taken.
    pub(crate) fn oldest_inward(&self) -> &Keys {
        self.inward_before.as_ref().unwrap_or(&self.inward)
    }

    /// The oldest of what leaves that messages may still have.
    pub(crate) fn oldest_outward(&self) -> &Keys {
        self.outward_before.as_ref().unwrap_or(&self.outward)
    }

    /// Those of an epoch of what comes.
    pub(crate) fn inward_of(&self, epoch: u32) -> Option<&Keys> {
        [Some(&self.inward), self.inward_before.as_ref()]
            .into_iter()
            .flatten()
            .find(|keys| keys.epoch == epoch)
    }

    /// Those of an epoch of what leaves.
    pub(crate) fn outward_of(&self, epoch: u32) -> Option<&Keys> {
        [Some(&self.outward), self.outward_before.as_ref()]
            .into_iter()
            .flatten()
            .find(|keys| keys.epoch == epoch)
    }
}
