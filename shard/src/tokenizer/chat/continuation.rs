//! Conversations that end in the middle of the assistant's message.
//!
//! What: a client writes the beginning of the answer itself, and the model goes on with it. Templates close every message,
//! so [`Template::render_continuing`] puts a mark behind the last one and cuts the text there: what the template writes
//! before a message (a header, an empty block of thought) stays, what it writes behind is left out.
//!
//! Limits: a template that leaves the last message out, or changes its end, leaves no place to go on from, and is refused.

use serde_json::Value;

use super::{RenderInput, Template};
use crate::{Error, Result};

impl Template {
    /// As [`Template::render_offering`], up to the end of the last message's text, whatever `add_generation_prompt` says.
    ///
    /// # Errors
    /// As there, and [`Error::Invalid`] where the last message has no text or the template does not print it to its end.
    pub fn render_continuing(&self, input: &RenderInput) -> Result<String> {
        let mark = unused_mark(&input.messages);
        let mut input = RenderInput { add_generation_prompt: false, ..input.clone() };
        let last = input.messages.as_array_mut().and_then(|messages| messages.last_mut());
        let Some(Value::String(content)) = last.and_then(|last| last.get_mut("content")) else {
            return Err(Error::invalid("the last message has no text that an answer could go on with"));
        };
        content.push_str(&mark);
        let mut text = self.render_offering(&input)?;
        let end = text.rfind(&mark).ok_or_else(|| {
            Error::invalid(
                "the model's chat template does not print the last message as it is: an answer cannot go on with it",
            )
        })?;
        text.truncate(end);
        Ok(text)
    }
}

/// A word that no message has: it ends with more of one sign than any of them has in a row.
fn unused_mark(messages: &Value) -> String {
    const SIGN: char = '‡';
    let said = messages.to_string();
    let longest = said.split(|c| c != SIGN).map(str::len).max().unwrap_or(0) / SIGN.len_utf8();
    format!("goes-on-here{}", SIGN.to_string().repeat(longest + 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn continued(template: &str, messages: Value) -> Result<String> {
        let input = RenderInput { messages, add_generation_prompt: true, ..RenderInput::default() };
        Template::new(template).unwrap().render_continuing(&input)
    }

    #[test]
    fn the_text_ends_with_what_the_answer_goes_on_with() {
        let turns = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";
        for said in ["{\"name\": ", "goes-on-here‡‡", "Once upon a time  "] {
            let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}]);
            assert_eq!(continued(turns, messages).unwrap(), format!("<user>hi</user><assistant>{said}"));
        }
    }

    #[test]
    fn what_cannot_be_continued_is_refused() {
        let none = json!([{"role": "assistant", "content": null}]);
        let fail = |template: &str, messages| continued(template, messages).unwrap_err().to_string();
        assert!(fail("{{ messages[0].content }}", none).contains("no text"));
        let said = json!([{"role": "assistant", "content": "so"}]);
        assert!(fail("{{ messages[0].content | upper }}", said.clone()).contains("does not print"));
        assert!(fail("nothing", said).contains("does not print"));
    }
}
