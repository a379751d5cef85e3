//! Reads request fields one by one, so that every refusal names its field.
//!
//! Unknown fields are left alone: clients are newer than servers. `null` counts as absent. Numbers are checked as signed
//! numbers before they become anything else, so no negative count ever wraps around.

use serde_json::{Map, Value};

use crate::{
    error::{ApiError, Kind},
    inference::ranges::Range,
};

/// The members of one JSON object, and where it stands in the request.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The request itself.
    pub(crate) fn new(body: &'a Value) -> Result<Self, ApiError> {
        let map = body.as_object();
        let map = map.ok_or_else(|| ApiError::new(Kind::Invalid, "the body must be a JSON object"))?;
        Ok(Self { map, path: String::new() })
    }

    /// An object inside the request, `path` being its name in refusals.
    pub(crate) fn at(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        let map = value.as_object().ok_or_else(|| ApiError::field(&path, "must be an object"))?;
        Ok(Self { map, path })
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A refusal of `field`.
    pub(crate) fn refuse(&self, field: &str, why: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.name(field), why)
    }

    /// Whatever is there, if anything is.
    pub(crate) fn any(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// An integer of `low..=high`. A number such as `8.0` is one.
    pub(crate) fn integer(&self, field: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.any(field) else { return Ok(None) };
        let wrong = || self.refuse(field, format_args!("must be an integer between {low} and {high}"));
        let number = value.as_number().ok_or_else(wrong)?;
        let whole = |float: f64| (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64);
        let integer = number.as_i64().or_else(|| number.as_f64().and_then(whole)).ok_or_else(wrong)?;
        if (low..=high).contains(&integer) { Ok(Some(integer)) } else { Err(wrong()) }
    }

    /// As [`Fields::integer`], for counts.
    pub(crate) fn count(&self, field: &str, low: usize, high: usize) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(field, low as i64, high as i64)?.map(|n| n as usize))
    }

    /// A number of `low..=high`.
    pub(crate) fn number(&self, field: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.any(field) else { return Ok(None) };
        let wrong = || self.refuse(field, format_args!("must be a number between {low} and {high}"));
        let number = value.as_f64().ok_or_else(wrong)?;
        if (low..=high).contains(&number) { Ok(Some(number as f32)) } else { Err(wrong()) }
    }

    /// A number within a range, which has the field's name.
    pub(crate) fn ranged(&self, range: &Range) -> Result<Option<f32>, ApiError> {
        self.number(range.name, range.low, range.high)
    }

    /// True or false.
    pub(crate) fn bool(&self, field: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.any(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.refuse(field, "must be true or false"))
    }

    /// Text.
    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.any(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.refuse(field, "must be a string"))
    }

    /// A list of at most `most` values.
    pub(crate) fn list(&self, field: &str, most: usize) -> Result<Option<&'a [Value]>, ApiError> {
        let Some(value) = self.any(field) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.refuse(field, "must be a list"))?;
        if list.len() > most {
            return Err(self.refuse(field, format_args!("may have at most {most} entries")));
        }
        Ok(Some(list))
    }

    /// An object inside.
    pub(crate) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.any(field).map(|value| Fields::at(value, self.name(field))).transpose()
    }

    /// The members in their order.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// One of a list of words.
    pub(crate) fn one_of<T: Copy>(
        &self,
        field: &str,
        words: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        let found = words.iter().copied().find(|word| name(*word) == text);
        found.map(Some).ok_or_else(|| {
            let names: Vec<_> = words.iter().map(|word| name(*word)).collect();
            self.refuse(field, format_args!("must be one of: {}", names.join(", ")))
        })
    }
}

/// A field that has to be there.
pub(crate) fn required<T>(fields: &Fields<'_>, field: &str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| fields.refuse(field, "is required"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_checked_as_signed_numbers() {
        let body = json!({"a": -1, "b": 8.0, "c": 8.5, "d": 18446744073709551615u64, "e": "8", "f": null, "g": 1e300});
        let fields = Fields::new(&body).unwrap();
        assert_eq!(fields.integer("b", 1, 10).unwrap(), Some(8));
        assert_eq!(fields.integer("f", 1, 10).unwrap(), None);
        assert_eq!(fields.integer("absent", 1, 10).unwrap(), None);
        for field in ["a", "c", "d", "e", "g"] {
            let error = fields.integer(field, 0, 10).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field));
        }
        assert!(fields.number("g", 0.0, 2.0).is_err());
    }

    #[test]
    fn refusals_name_the_whole_path() {
        let body = json!({"options": {"deep": 1}});
        let fields = Fields::new(&body).unwrap();
        let inner = fields.object("options").unwrap().unwrap();
        assert_eq!(inner.text("deep").unwrap_err().param.as_deref(), Some("options.deep"));
    }
}
