//! What may be asked of sampling: one table for requests, their description and the command line.
//!
//! Values beyond these are typing errors: at a temperature of 9 every token is as good as any other. The engine itself
//! refuses what has no meaning at all.

/// Which numbers a parameter may have, both ends among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Its name in OpenAI's requests.
    pub name: &'static str,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// Divides the logits; OpenAI's own bound.
pub const TEMPERATURE: Range = range("temperature", 0.0, 2.0);
/// A probability.
pub const TOP_P: Range = range("top_p", 0.0, 1.0);
/// A share of the likeliest token's probability.
pub const MIN_P: Range = range("min_p", 0.0, 1.0);
/// A probability.
pub const TYPICAL_P: Range = range("typical_p", 0.0, 1.0);
/// A divisor, which cannot be 0.
pub const REPETITION_PENALTY: Range = range("repetition_penalty", 0.01, 100.0);
/// OpenAI's own bound.
pub const PRESENCE_PENALTY: Range = range("presence_penalty", -2.0, 2.0);
/// OpenAI's own bound.
pub const FREQUENCY_PENALTY: Range = range("frequency_penalty", -2.0, 2.0);
/// OpenAI's own bound on what is added to a logit.
pub const LOGIT_BIAS: Range = range("logit_bias", -100.0, 100.0);

/// All of them.
pub const ALL: [Range; 8] = [
    TEMPERATURE,
    TOP_P,
    MIN_P,
    TYPICAL_P,
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    LOGIT_BIAS,
];

const fn range(name: &'static str, low: f64, high: f64) -> Range {
    Range { name, low, high }
}

impl Range {
    /// `value` if it is within.
    ///
    /// # Errors
    /// What it must be.
    pub fn check(&self, value: f64) -> Result<f64, String> {
        if (self.low..=self.high).contains(&value) { Ok(value) } else { Err(self.must()) }
    }

    /// What a value must be, for refusals.
    pub fn must(&self) -> String {
        format!("must be a number between {} and {}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_within_and_what_is_no_number_is_not() {
        for range in ALL {
            assert!(range.check(range.low).is_ok() && range.check(range.high).is_ok(), "{range:?}");
            for wrong in [range.low - 0.01, range.high + 0.01, f64::NAN, f64::INFINITY] {
                assert_eq!(range.check(wrong), Err(range.must()), "{range:?} {wrong}");
            }
        }
        assert_eq!(TEMPERATURE.must(), "must be a number between 0 and 2");
    }
}
