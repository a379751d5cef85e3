//! In which form the activations of a session travel, and where they are rounded: from the words of a request to what
//! codec and executor take.

use api::choice::{Wire, WireChoice};
use p2p::codec;

use crate::{Error, Result, worker};

/// The field that cannot be meant, and a sentence that begins with its name.
pub type Refused = (&'static str, String);

/// The codec's name for a form that was chosen; `auto` is exact.
pub fn codec_form(wire: Wire) -> codec::Wire {
    codec::Wire::ALL.into_iter().find(|form| form.name() == wire.name()).unwrap_or_default()
}

/// The word for a form of the codec.
pub fn word(form: codec::Wire) -> Wire {
    Wire::ALL.into_iter().find(|wire| wire.name() == form.name()).unwrap_or(Wire::Raw)
}

/// The form of a session of a model with rows of `hidden` values, and the cuts at which it is rounded where the request
/// names them; the route's own cuts do otherwise.
///
/// # Errors
/// The field in question and why: cuts over an exact form, cuts that do not ascend or do not lie inside `layers` layers,
/// rows that do not divide into the form's groups.
pub fn session(
    choice: &WireChoice,
    layers: u32,
    hidden: usize,
) -> Result<(codec::Wire, Option<Vec<u32>>), Refused> {
    let mut form = codec_form(choice.form());
    if !hidden.is_multiple_of(form.group()) {
        let named = choice.wire.unwrap_or_default();
        if named != Wire::Auto {
            let group = form.group();
            let why = format!(
                "wire {form} needs rows of whole groups of {group} values; this model's have {hidden}; bf16 fits every model"
            );
            return Err(("wire", why));
        }
        form = codec::Wire::Bf16;
    }
    let cuts = &choice.cuts;
    if cuts.is_empty() {
        return Ok((form, None));
    }
    if form == codec::Wire::Raw {
        return Err((
            "cuts",
            "cuts change nothing over an exact wire; choose one that rounds, such as c8".into(),
        ));
    }
    let inside = cuts.iter().all(|cut| (1..layers).contains(cut));
    if !inside || !cuts.is_sorted_by(|a, b| a < b) {
        let last = layers.saturating_sub(1);
        return Err(("cuts", format!("cuts must be ascending layers between 1 and {last}, not {cuts:?}")));
    }
    Ok((form, Some(cuts.clone())))
}

/// How a process alone rounds as a session over that wire with those cuts does.
///
/// # Errors
/// What [`session`] refuses, and a form that rounds without cuts: nothing travels here that could say where.
pub fn alone(choice: &WireChoice, layers: u32, hidden: usize) -> Result<shard::round::Rounding> {
    let (form, cuts) =
        session(choice, layers, hidden).map_err(|(_, why)| Error::usage(format!("--{why}")))?;
    match cuts {
        None if form != codec::Wire::Raw && choice.wire.is_some_and(|wire| wire != Wire::Auto) => {
            let why = format!("--wire {form} rounds where a session is cut; say where with --cuts 2,4");
            Err(Error::usage(why))
        }
        cuts => Ok(worker::rounding(&codec::Rounding::new(form, cuts.unwrap_or_default()))),
    }
}

#[cfg(test)]
mod tests {
    use shard::round::{Rounding, Rule};

    use super::*;

    #[test]
    fn every_form_of_the_codec_has_one_word() {
        for form in codec::Wire::ALL {
            assert_eq!(codec_form(word(form)), form);
        }
        assert_eq!(Wire::ALL.len(), codec::Wire::ALL.len() + 1);
        assert_eq!(codec_form(Wire::Auto), codec::Wire::Raw);
    }

    #[test]
    fn cuts_are_checked_before_anything_is_computed() {
        let of = |wire: &str, cuts: &[u32], hidden| {
            let wire = Wire::ALL.into_iter().find(|form| form.name() == wire);
            let choice = WireChoice { wire, cuts: cuts.to_vec(), ..WireChoice::default() };
            alone(&choice, 8, hidden).map_err(|error| error.to_string())
        };
        assert_eq!(of("raw", &[], 80), Ok(Rounding::NONE));
        assert_eq!(of("auto", &[], 80), Ok(Rounding::NONE));
        assert_eq!(of("q8", &[1, 7], 64), Ok(Rounding { rule: Rule::Q8, boundaries: vec![1, 7] }));
        assert_eq!(of("f16", &[4], 80), Ok(Rounding { rule: Rule::F16, boundaries: vec![4] }));
        for (wire, cuts, hidden, what) in [
            ("raw", &[2][..], 64, "such as c8"),
            ("auto", &[2], 64, "such as c8"),
            ("q8", &[], 64, "say where"),
            ("q8", &[0, 2], 64, "between 1 and 7"),
            ("q8", &[8], 64, "between 1 and 7"),
            ("q8", &[2, 2], 64, "ascending"),
            ("q8", &[4, 2], 64, "ascending"),
            ("q8", &[4], 80, "groups of 32"),
            ("c10", &[4], 96, "groups of 64"),
        ] {
            let error = of(wire, cuts, hidden).expect_err(what);
            assert!(error.contains(what), "{error} should mention {what}");
        }
    }

    /// Where `auto` may round it finds a form for every width.
    #[test]
    fn auto_fits_every_model() {
        let allowed = WireChoice { allow_rounding: Some(true), ..WireChoice::default() };
        assert_eq!(session(&allowed, 8, 576), Ok((codec::Wire::C8, None)));
        assert_eq!(session(&allowed, 8, 80), Ok((codec::Wire::Bf16, None)));
    }
}
