//! A call of a tool, as far as it came.

use serde_json::{Value, json};

use super::json::Json;

/// A call of a tool, as far as it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, as the API's clients want it: in a string. Of a call that was cut, its beginning.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as an object, for clients that want one: of a call that was cut, the members that are complete.
    pub(crate) fn object(&self) -> Value {
        let read = serde_json::from_str(&self.arguments);
        match read.or_else(|_| serde_json::from_str(&mended(&self.arguments))) {
            Ok(value @ Value::Object(_)) => value,
            _ => json!({}),
        }
    }
}

/// The longest beginning of `text` that ends behind a member, closed. Text that is no JSON gives what is none either.
fn mended(text: &str) -> String {
    let (mut open, mut whole, mut json) = (Vec::new(), (0, Vec::new()), Json::default());
    for (at, c) in text.char_indices() {
        let inside = json.text;
        json.take(c);
        if inside || json.text {
            continue;
        }
        match c {
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => drop(open.pop()),
            ',' => {
                whole = (at, open.clone());
                continue;
            }
            _ => continue,
        }
        whole = (at + 1, open.clone());
    }
    let (end, closing) = whole;
    text[..end].chars().chain(closing.into_iter().rev()).collect()
}

/// Nine letters and digits, which is what Mistral's templates insist on; the same for the same seed and number.
pub(super) fn call_id(seed: u64, number: u64) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // SplitMix64: any mixing would do, it only has to look different each time.
    let mut x = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let digit = |i: u32| char::from(ALPHABET[(x / 36u64.pow(i) % 36) as usize]);
    (0..9).map(digit).collect()
}
