//! What a request may choose about who computes it: who may read it, how their work is checked, who stands by.
//!
//! The words are those of the command line, of configuration files and of the socket of a running node.

use serde::{Deserialize, Serialize};

/// Who can read the prompt, from fewest to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Only this machine: everything is computed here.
    #[default]
    Local,
    /// Only nodes the user named; they can read what they compute on.
    Trusted,
    /// Strangers compute middle layers: they get neither text nor token ids, but can reconstruct much from activations.
    Boomerang,
    /// Any node may read the text itself.
    Open,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Local, Self::Trusted, Self::Boomerang, Self::Open];

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Trusted => "trusted",
            Self::Boomerang => "boomerang",
            Self::Open => "open",
        }
    }
}

/// How the work of strangers is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Not at all, or there is nothing to check.
    Off,
    /// Against the node that follows; where none does, newcomers always and others by lot.
    #[default]
    Sample,
    /// Everything, before a token is shown.
    Strict,
}

impl Verify {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Off, Self::Sample, Self::Strict];

    /// The word of the HTTP API, which also reads those of the command line (`off`, `strict`).
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "none",
            Self::Sample => "sample",
            Self::Strict => "all",
        }
    }
}

/// What another holder of each range of layers does, so that an answer survives the loss of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shadow {
    /// It computes along, takes over at once and checks the node it follows.
    #[default]
    All,
    /// It keeps the inputs and computes them only when it takes over.
    Lazy,
    /// No node stands by: a replacement is sent all inputs and computes them then.
    None,
}

impl Shadow {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::All, Self::Lazy, Self::None];

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Lazy => "lazy",
            Self::None => "none",
        }
    }
}
