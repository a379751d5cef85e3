//! What a request may choose about who computes it: who may read it, how their work is checked, who stands by, in which
//! form activations travel, and what drafts tokens for it.
//!
//! The words are those of the command line, of configuration files and of the socket of a running node.

use std::{fmt, str::FromStr};

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

/// How an answer is guarded against those who compute it; what a request leaves open is the node's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// How strangers' work is checked.
    pub verify: Option<Verify>,
    /// What those do who stand by.
    pub shadow: Option<Shadow>,
    /// Whether the client agrees for this request that strangers compute it, whatever the node's owner said.
    pub agreed: bool,
    /// Whether nodes that compute it may keep on disk what they computed; `None` for the node's default.
    pub let_keep: Option<bool>,
}

/// In which form activations travel between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Exact, unless rounding was allowed: then [`Self::ROUNDED`], whatever the line.
    #[default]
    Auto,
    /// f32: exact.
    Raw,
    /// A sixteenth of the value as f16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Ten companded bits: nearly exact.
    C10,
    /// Eight companded bits.
    C8,
    /// Eight bits under one scale per 32 values.
    Q8,
    /// Seven companded bits: the smallest.
    C7,
}

impl Wire {
    /// All forms, `auto` first.
    pub const ALL: [Self; 8] =
        [Self::Auto, Self::Raw, Self::F16, Self::Bf16, Self::C10, Self::C8, Self::Q8, Self::C7];
    /// What `auto` is where rounding was allowed. It is one form for every line, so that its speed chooses no tokens.
    pub const ROUNDED: Self = Self::C8;

    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::C10 => "c10",
            Self::C8 => "c8",
            Self::Q8 => "q8",
            Self::C7 => "c7",
        }
    }
}

/// What the tokens of a session see and how their keys and values are kept, in words that the node knows; `None` for the node's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionChoice {
    /// Which earlier positions a token sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// In which form keys and values are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_type: Option<String>,
    /// Whether the answer goes on where the context is full; what was said long before is forgotten then.
    #[serde(default)]
    pub context_shift: bool,
}

/// How activations travel, as a request says it; what it leaves open is the node's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireChoice {
    /// The form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Whether `auto` may round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_rounding: Option<bool>,
    /// Layers before which a form that rounds does so, ascending, whatever the route; empty for the route's own cuts.
    /// Those of an answer give that answer again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<u32>,
}

impl WireChoice {
    /// What is left open, as `default` says it.
    pub fn or(self, default: &Self) -> Self {
        Self {
            wire: self.wire.or(default.wire),
            allow_rounding: self.allow_rounding.or(default.allow_rounding),
            cuts: self.cuts,
        }
    }

    /// The form, `auto` decided.
    pub fn form(&self) -> Wire {
        match self.wire.unwrap_or_default() {
            Wire::Auto if self.allow_rounding == Some(true) => Wire::ROUNDED,
            Wire::Auto => Wire::Raw,
            form => form,
        }
    }
}

/// What drafts tokens, so that one pass over all layers may confirm several. The tokens are the same whatever is chosen.
///
/// A choice says what may be tried: drafts are sent only where they pay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Draft {
    /// Everything that there is: lookup, grammar, and the draft head and the draft model that the node was started with, if it
    /// was.
    #[default]
    Auto,
    /// Nothing: one token a pass.
    Off,
    /// These.
    By(DraftBy),
}

/// Drafters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftBy {
    /// What followed the last time that the text ended so.
    pub lookup: bool,
    /// What the form of the answer leaves no choice about.
    pub grammar: bool,
    /// What the model's draft head makes of its hidden states.
    pub head: bool,
    /// What a smaller model of the same vocabulary would say: its name.
    pub model: Option<String>,
}

/// Longest name of a draft model, bytes: a path of a file may stand for it.
const MAX_MODEL_NAME: usize = 4096;

impl Draft {
    /// What a refusal says behind the name of the field.
    pub const MUST: &'static str =
        "must be auto, off, or a list of lookup, grammar and head and the name of one model";

    /// What is said where `model` was named and is not what drafts.
    pub fn no_model(model: &str) -> String {
        format!(
            "{}; no model \"{model}\" drafts here: start `shoal join` or `shoal serve` with --draft {model}",
            Self::MUST
        )
    }

    /// The model that is to draft, by name.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::By(by) => by.model.as_deref(),
            Self::Auto | Self::Off => None,
        }
    }

    /// Whether text may be looked up.
    pub fn lookup(&self) -> bool {
        matches!(self, Self::Auto | Self::By(DraftBy { lookup: true, .. }))
    }

    /// Whether the form of the answer may draft.
    pub fn grammar(&self) -> bool {
        matches!(self, Self::Auto | Self::By(DraftBy { grammar: true, .. }))
    }

    /// Whether the model's draft head may draft.
    pub fn head(&self) -> bool {
        matches!(self, Self::Auto | Self::By(DraftBy { head: true, .. }))
    }
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" | "none" => return Ok(Self::Off),
            _ => {}
        }
        let mut by = DraftBy::default();
        for word in text.split(',') {
            let reserved = ["auto", "off", "none", "lookup", "grammar", "head"];
            let is_name = !word.trim().is_empty()
                && word.len() <= MAX_MODEL_NAME
                && !word.contains(char::is_control)
                && !reserved.iter().any(|known| known.eq_ignore_ascii_case(word));
            match word {
                "lookup" => by.lookup = true,
                "grammar" => by.grammar = true,
                "head" => by.head = true,
                name if is_name && by.model.is_none() => by.model = Some(name.to_owned()),
                _ => return Err(format!("{}, not \"{word}\"", Self::MUST)),
            }
        }
        Ok(Self::By(by))
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::By(by) => {
                let words = [(by.lookup, "lookup"), (by.grammar, "grammar"), (by.head, "head")];
                let words = words.into_iter().filter(|(chosen, _)| *chosen).map(|(_, word)| word);
                let words = words.chain(by.model.as_deref());
                f.write_str(&words.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl TryFrom<String> for Draft {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Draft> for String {
    fn from(draft: Draft) -> Self {
        draft.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_rounds_only_where_that_was_allowed_and_never_undoes_a_choice() {
        let of = |wire, allow_rounding| WireChoice { wire, allow_rounding, cuts: Vec::new() };
        let node = of(None, Some(true));
        assert_eq!(of(None, None).form(), Wire::Raw);
        assert_eq!(of(Some(Wire::Auto), Some(true)).form(), Wire::ROUNDED);
        assert_eq!(of(Some(Wire::Raw), Some(true)).form(), Wire::Raw);
        assert_eq!(of(Some(Wire::F16), None).form(), Wire::F16);
        assert_eq!(of(None, None).or(&node).form(), Wire::ROUNDED);
        assert_eq!(of(None, Some(false)).or(&node).form(), Wire::Raw);
        assert_eq!(of(None, None).or(&of(Some(Wire::C7), None)).form(), Wire::C7);
    }

    #[test]
    fn drafters_are_read_as_they_are_written() {
        for text in
            ["auto", "off", "lookup", "grammar", "lookup,grammar", "minnow", "lookup,grammar,./a b.gguf"]
        {
            let draft: Draft = text.parse().unwrap();
            assert_eq!(draft.to_string(), text);
            assert_eq!(serde_json::from_str::<Draft>(&format!("\"{text}\"")).unwrap(), draft);
        }
        assert_eq!("none".parse(), Ok(Draft::Off));
        assert_eq!("grammar,grammar".parse(), Ok(Draft::By(DraftBy { grammar: true, ..DraftBy::default() })));
        for text in ["", "lookup,", "auto,lookup", "Lookup", "minnow,eagle", "mi\nnow", " "] {
            let why = text.parse::<Draft>().unwrap_err();
            assert!(why.starts_with(Draft::MUST), "{why}");
        }
        assert!(
            Draft::Auto.lookup() && Draft::Auto.grammar() && !Draft::Off.lookup() && !Draft::Off.grammar()
        );
        let by: Draft = "grammar,minnow".parse().unwrap();
        assert!(
            by.grammar() && !by.lookup() && by.model() == Some("minnow") && Draft::Auto.model().is_none()
        );
    }
}
