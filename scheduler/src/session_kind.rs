//! What a session chooses about its attention, for all of its layers and stages: what its rows see, and in which form their
//! keys and values are kept.
//!
//! Both are terms of its leases and a part of the name of its state: sessions of different kinds share nothing.
//!
//! ```text
//!   f16    16 bits for each value
//!   q8     8 bits for each value, and one f16 scale for 32 of them
//!   q4     4 bits for each value, and one f16 scale for 32 of them; the first 64 positions as f16
//! ```
//!
//! Written, a kind is its attention, and behind a slash the form of its cache if that is not `f16`: `window:64/q8`.

use std::{fmt, str::FromStr};

use crate::attention::{AttentionKind, BadAttention};

/// In which form the keys and values of earlier positions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheType {
    /// Rounded to f16.
    #[default]
    F16,
    /// Rounded to 8 bits.
    Q8,
    /// Rounded to 4 bits.
    Q4,
}

/// Values that share a scale in the smaller forms.
pub const CACHE_BLOCK: usize = 32;

impl CacheType {
    /// All of them, the largest first.
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8, Self::Q4];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// Bytes of one block of [`CACHE_BLOCK`] values, its scale included.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F16 => 64,
            Self::Q8 => 34,
            Self::Q4 => 18,
        }
    }

    /// How many positions at the beginning of a session are kept as f16 whatever its form: every row looks at them.
    pub fn exact_positions(self) -> usize {
        match self {
            Self::F16 | Self::Q8 => 0,
            Self::Q4 => 64,
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = BadAttention;

    fn from_str(text: &str) -> Result<Self, BadAttention> {
        let found = Self::ALL.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| BadAttention::new("there is no such form of a cache: write f16, q8 or q4"))
    }
}

/// What the rows of a session see, and how what they leave is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKind {
    /// Which earlier positions a row sees.
    pub attention: AttentionKind,
    /// How keys and values are kept.
    pub cache: CacheType,
}

impl SessionKind {
    /// Rows see all positions, and keys and values are kept as f16.
    pub const DEFAULT: Self = Self { attention: AttentionKind::Dense, cache: CacheType::F16 };

    /// Whether nothing was chosen.
    pub fn is_default(self) -> bool {
        self == Self::DEFAULT
    }
}

impl From<AttentionKind> for SessionKind {
    fn from(attention: AttentionKind) -> Self {
        Self { attention, ..Self::DEFAULT }
    }
}

impl fmt::Display for SessionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cache {
            CacheType::F16 => self.attention.fmt(f),
            cache => write!(f, "{}/{cache}", self.attention),
        }
    }
}

impl FromStr for SessionKind {
    type Err = BadAttention;

    fn from_str(text: &str) -> Result<Self, BadAttention> {
        match text.rsplit_once('/') {
            None => Ok(Self::from(text.parse::<AttentionKind>()?)),
            Some((attention, cache)) => Ok(Self { attention: attention.parse()?, cache: cache.parse()? }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_they_are_read() {
        for attention in ["dense", "window:9", "sparse:window=16,sinks=9,stride=off,block=0", "h2o"] {
            for cache in CacheType::ALL {
                let kind = SessionKind { attention: attention.parse().unwrap(), cache };
                assert_eq!(kind.to_string().parse(), Ok(kind));
                assert_eq!(kind.is_default(), attention == "dense" && cache == CacheType::F16);
            }
        }
        assert_eq!("window:9/q4".parse::<SessionKind>().unwrap().to_string(), "window:9/q4");
        assert_eq!("dense/f16".parse(), Ok(SessionKind::DEFAULT));
        for text in ["", "/q8", "dense/", "dense/q5", "dense/q8/q8", "q8"] {
            let error = text.parse::<SessionKind>().expect_err(text).to_string();
            assert!(error.contains("write "), "{text}: {error}");
        }
    }
}
