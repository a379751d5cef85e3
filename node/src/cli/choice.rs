//! The words of `--mode`, `--verify`, `--shadow` and `--wire`, with what `--help` says of each.

use api::{
    choice::{Mode, Shadow, Verify, Wire},
    swarm_records::Color,
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value: its word, another word that is understood, and its line of help.
type Word<T> = (T, &'static str, Option<&'static str>, &'static str);

const MODES: [Word<Mode>; 4] = [
    (Mode::Local, "local", None, "This machine alone"),
    (Mode::Trusted, "trusted", None, "The named peers, who can read what they compute on"),
    (
        Mode::Boomerang,
        "boomerang",
        None,
        "Strangers compute the middle layers; text and token ids stay here, activations can be read back in part",
    ),
    (Mode::Open, "open", None, "A peer may get the text itself"),
];

const VERIFY: [Word<Verify>; 3] = [
    (Verify::Off, "off", Some("none"), "Not at all"),
    (
        Verify::Sample,
        "sample",
        Some("sampled"),
        "Against the node that follows them; where none does, newcomers always and others by lot",
    ),
    (Verify::Strict, "strict", Some("all"), "Everything, before a token is shown"),
];

const SHADOWS: [Word<Shadow>; 3] = [
    (Shadow::All, "all", None, "It computes along, takes over at once and checks the node it follows"),
    (Shadow::Lazy, "lazy", None, "It keeps what it would need and computes that only when it takes over"),
    (Shadow::None, "none", None, "No node stands by: a replacement is sent all of it, and then computes it"),
];

const WIRES: [Word<Wire>; 8] = [
    (Wire::Auto, "auto", None, "Exact; with --allow-rounding as c8"),
    (Wire::Raw, "raw", None, "As they are: exact"),
    (
        Wire::F16,
        "f16",
        None,
        "Half of the bytes, f16 of a sixteenth: nearly exact unless values are very large",
    ),
    (Wire::Bf16, "bf16", None, "Half of the bytes: nearly exact"),
    (Wire::C10, "c10", None, "A third of the bytes: nearly exact"),
    (Wire::C8, "c8", None, "29 % of the bytes: hardly any token changes"),
    (Wire::Q8, "q8", None, "27 % of the bytes: on real models it costs twenty times what c8 does"),
    (Wire::C7, "c7", None, "24 % of the bytes: the smallest"),
];

/// Reads `--color`.
pub(super) fn color() -> impl TypedValueParser<Value = Color> {
    let named = |word: String| Color::ALL.into_iter().find(|color| color.name() == word);
    PossibleValuesParser::new(Color::ALL.map(Color::name)).map(move |word| named(word).unwrap_or_default())
}

/// Reads `--mode`.
pub(super) fn mode() -> impl TypedValueParser<Value = Mode> {
    parser(&MODES)
}

/// Reads `--verify`.
pub(super) fn verify() -> impl TypedValueParser<Value = Verify> {
    parser(&VERIFY)
}

/// Reads `--shadow`.
pub(super) fn shadow() -> impl TypedValueParser<Value = Shadow> {
    parser(&SHADOWS)
}

/// Reads `--wire`.
pub(super) fn wire() -> impl TypedValueParser<Value = Wire> {
    parser(&WIRES)
}

fn parser<T: Copy + Send + Sync>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let values =
        words.iter().map(|(_, word, alias, help)| PossibleValue::new(*word).aliases(*alias).help(*help));
    PossibleValuesParser::new(values).try_map(|given| {
        let meant =
            words.iter().find(|(_, word, alias, _)| given == *word || alias.is_some_and(|a| given == a));
        meant.map(|meant| meant.0).ok_or_else(|| format!("\"{given}\" is not one of the words"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket and the journal write the word that the command line reads.
    #[test]
    fn the_words_are_those_of_the_socket() {
        fn check<T: serde::Serialize>(words: &[Word<T>]) {
            for (value, word, ..) in words {
                assert_eq!(serde_json::to_value(value).unwrap(), *word);
            }
        }
        check(&MODES);
        check(&VERIFY);
        check(&SHADOWS);
        check(&WIRES);
        assert_eq!(MODES.map(|mode| mode.0), Mode::ALL);
        assert_eq!(VERIFY.map(|verify| verify.0), Verify::ALL);
        assert_eq!(SHADOWS.map(|shadow| shadow.0), Shadow::ALL);
        assert_eq!(WIRES.map(|wire| wire.0), Wire::ALL);
    }

    #[test]
    fn words_and_aliases_are_read_and_others_are_refused() {
        let command = clap::Command::new("c").arg(clap::Arg::new("verify").value_parser(verify()));
        let read = |word: &str| {
            let matches = command.clone().try_get_matches_from(["c", word]).ok()?;
            matches.get_one::<Verify>("verify").copied()
        };
        assert_eq!(["off", "none"].map(read), [Some(Verify::Off); 2]);
        assert_eq!(["sample", "sampled"].map(read), [Some(Verify::Sample); 2]);
        assert_eq!(["strict", "all"].map(read), [Some(Verify::Strict); 2]);
        assert_eq!(read("some"), None);
    }
}
