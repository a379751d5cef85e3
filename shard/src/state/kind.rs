//! Which state a layer has, and what it takes.

use scheduler::CacheType;

use super::{Back, Beside, LayerState, Nothing, Paged, Recurrent};
use crate::kernels::KvShape;

/// What kind of state a layer has, before there is a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values of every position, or of those that [`Back`] leaves.
    Paged(KvShape),
    /// One vector.
    Recurrent {
        /// Its values.
        width: usize,
    },
    /// The same, and one vector.
    Beside {
        /// The former.
        kv: KvShape,
        /// Values of the latter.
        width: usize,
    },
    /// Nothing of its own: the layer reads the keys and values of an earlier one.
    Nothing,
}

impl Kind {
    /// Bytes of a state that keeps all of `positions` positions: a constant part and one that grows with them.
    pub fn bytes(self, positions: usize) -> usize {
        self.bytes_behind(Back::ALL, positions)
    }

    /// The same where rows look no further than `back`, after passes of at most [`super::behind::REACH`] rows.
    pub fn bytes_behind(self, back: Back, positions: usize) -> usize {
        let kept = back.most(positions);
        match self {
            Self::Paged(shape) => Paged::bytes_for(shape, kept),
            Self::Recurrent { width } => Recurrent::bytes_for(width, positions),
            Self::Beside { kv, width } => Paged::bytes_for(kv, kept) + Recurrent::bytes_for(width, positions),
            Self::Nothing => 0,
        }
    }

    /// The same for a session whose keys and values are kept in the form `cache`: other states do not change.
    pub fn stored(self, cache: CacheType) -> Self {
        match self {
            Self::Paged(shape @ KvShape { latent: None, .. }) => Self::Paged(KvShape { cache, ..shape }),
            Self::Beside { kv, width } => Self::Beside { kv: KvShape { cache, ..kv }, width },
            other => other,
        }
    }

    /// Bytes that each further position costs, pages aside.
    pub fn position_bytes(self) -> usize {
        match self {
            Self::Paged(shape) | Self::Beside { kv: shape, .. } => Paged::position_bytes(shape),
            Self::Recurrent { .. } | Self::Nothing => 0,
        }
    }

    /// Bytes that each row reads of the state whatever its position.
    pub fn whole_bytes(self) -> usize {
        match self {
            Self::Recurrent { width } | Self::Beside { width, .. } => width * size_of::<f32>(),
            Self::Paged(_) | Self::Nothing => 0,
        }
    }

    /// Whether a state goes back to any position; where it does not, what follows a checkpoint is computed again.
    pub fn goes_back(self) -> bool {
        match self {
            Self::Paged(_) | Self::Nothing => true,
            Self::Recurrent { .. } | Self::Beside { .. } => false,
        }
    }

    /// The state of a layer of profile `d1` that has seen nothing and may see `limit` positions.
    pub fn empty(self, limit: usize) -> Box<dyn LayerState> {
        match self {
            Self::Paged(shape) => Box::new(Paged::new(shape, limit)),
            Self::Recurrent { width } => Box::new(Recurrent::new(width)),
            Self::Beside { kv, width } => Box::new(Beside::new(Paged::new(kv, limit), Recurrent::new(width))),
            Self::Nothing => Box::new(Nothing),
        }
    }
}
