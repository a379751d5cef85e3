//! Parts of a request that are taken and have no effect, such as a tool that only its vendor's servers run.
//!
//! Agents send one request to every server and take a refusal for the end of their work. What a text model can do without is
//! therefore left out, and the answer lists it in the header `x-shoal-left-out`. What the answer cannot do without is refused.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header that lists what was left out.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-shoal-left-out");
/// Longer lists end with `more`: proxies refuse long headers.
const MAX_ENTRIES: usize = 32;
/// Names come from the client; those of tools have 64 bytes at most.
const MAX_ENTRY_BYTES: usize = 80;

/// The parts of one request that were left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut(Vec<String>);

impl LeftOut {
    /// Adds a part, once. Characters that a header may not carry become `_`.
    pub(crate) fn add(&mut self, part: &str) {
        let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let entry = part.chars().take(MAX_ENTRY_BYTES).map(|c| if safe(c) { c } else { '_' });
        let entry: String = entry.collect();
        if self.0.len() > MAX_ENTRIES || self.0.contains(&entry) {
            return;
        }
        let is_full = self.0.len() == MAX_ENTRIES;
        self.0.push(if is_full { "more".to_owned() } else { entry });
    }

    /// Adds the header, if anything was left out.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        // Entries hold safe characters only, so this is always a header value.
        if let (false, Ok(value)) = (self.0.is_empty(), HeaderValue::from_str(&self.0.join(", "))) {
            headers.insert(HEADER, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(parts: &[&str]) -> Option<String> {
        let (mut left, mut headers) = (LeftOut::default(), HeaderMap::new());
        parts.iter().for_each(|part| left.add(part));
        left.tell(&mut headers);
        headers.get(HEADER).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn each_part_is_listed_once_in_safe_characters() {
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["images", "tools.web_search", "images"]).unwrap(), "images, tools.web_search");
        assert_eq!(told(&["a\r\nb: c, é"]).unwrap(), "a__b__c___");
    }

    #[test]
    fn the_list_is_bounded() {
        let parts: Vec<String> = (0..200).map(|at| format!("{at}{}", "x".repeat(500))).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let list = told(&parts).unwrap();
        assert!(list.len() < (MAX_ENTRIES + 1) * (MAX_ENTRY_BYTES + 2) && list.ends_with(", more"), "{list}");
        assert_eq!(list.matches("more").count(), 1);
    }
}
