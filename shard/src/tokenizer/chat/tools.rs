//! Tools for models whose template has no place for them.
//!
//! What: many templates print messages and ignore `tools`, so a model would never hear of what it was offered.
//! [`Template::render_offering`] notices that (the text is the same with and without tools) and describes the tools in the
//! system message instead: a preamble in the form that most models were taught, with calls between `<tool_call>` and
//! `</tool_call>`, which is also a form that the API reads back. Earlier calls and their results, which such templates do
//! not know either, are written out in the same form.
//!
//! Limits: a template that refuses or drops system messages leaves no place; then rendering fails and says so.

use serde_json::{Map, Value, json};

use super::{RenderInput, Template};
use crate::{Error, Result};

/// What is said where the tools cannot be described.
const NO_PLACE: &str = "the model's chat template has no place for tools, and none for a system message that would \
                        describe them; ask without `tools`, or choose a model whose template takes them";

impl Template {
    /// As [`Template::render`], but what is in `tools` is never left out: where the template ignores it, the system message
    /// describes it. Errors: as for [`Template::render`], and [`Error::Invalid`] where there is no system message either.
    pub fn render_offering(&self, input: &RenderInput) -> Result<String> {
        let Some(tools) =
            input.tools.as_ref().filter(|tools| tools.as_array().is_some_and(|t| !t.is_empty()))
        else {
            return self.render_calls(input);
        };
        let without = RenderInput { tools: None, ..input.clone() };
        let own = self.render(input);
        match (&own, self.render(&without)) {
            (Ok(with), Ok(without)) if *with == without => {}
            // It knows no tools, so it need not know their results.
            (Err(_), Err(_)) => {}
            _ => return own,
        }
        let preamble = preamble(tools);
        let messages = described(&input.messages, &preamble);
        match self.render(&RenderInput { messages, ..without }) {
            Ok(text) if text.contains(&preamble) => Ok(text),
            // What it refuses without a preamble, too, is its own matter.
            Err(_) if own.is_err() => own,
            _ => Err(Error::invalid(NO_PLACE)),
        }
    }

    /// As [`Template::render`], but earlier calls and their results are never left out, though no tool is offered any more:
    /// where the template does not print them, they are written out.
    fn render_calls(&self, input: &RenderInput) -> Result<String> {
        let calls = |message: &Value| message.get("tool_calls").is_some();
        let own = self.render(input);
        if !input.messages.as_array().is_some_and(|messages| messages.iter().any(calls)) {
            return own;
        }
        let mut silent = input.clone();
        for message in silent.messages.as_array_mut().into_iter().flatten() {
            message.as_object_mut().map(|message| message.remove("tool_calls"));
        }
        match (&own, self.render(&silent)) {
            (Ok(with), Ok(without)) if *with == without => {}
            (Err(_), Err(_)) => {}
            _ => return own,
        }
        self.render(&RenderInput { messages: in_words(&input.messages), ..input.clone() }).or(own)
    }
}

/// What can be called, and the form of a call.
pub fn preamble(tools: &Value) -> String {
    let mut text = String::from(
        "# Tools\n\nYou may call functions to help with the request. They are described here, one a line, as JSON with \
         the schema of their arguments:\n<tools>\n",
    );
    for tool in tools.as_array().into_iter().flatten() {
        text.push_str(&tool.to_string());
        text.push('\n');
    }
    text.push_str(
        "</tools>\n\nTo call a function, write a JSON object with its name and its arguments within <tool_call> and \
         </tool_call>:\n<tool_call>\n{\"name\": \"the name\", \"arguments\": {\"an argument\": \"its value\"}}\n\
         </tool_call>\nWhat it returns comes within <tool_response> and </tool_response>. Use only the names and arguments \
         that are described; answer in words where no function helps.",
    );
    text
}

/// `messages` with `preamble` at the end of the system message, which is made where there is none, and with calls and
/// results as text.
pub fn described(messages: &Value, preamble: &str) -> Value {
    let mut all = in_words(messages);
    let Some(list) = all.as_array_mut() else { return all };
    let system = list.first_mut().filter(|first| first["role"] == "system");
    match system {
        Some(system) => {
            let own = system["content"].as_str().unwrap_or_default();
            system["content"] = [own, preamble].join("\n\n").trim_start().into();
        }
        None => list.insert(0, json!({"role": "system", "content": preamble})),
    }
    all
}

/// `messages` with calls and results as text.
fn in_words(messages: &Value) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        let content = message["content"].as_str().unwrap_or_default();
        match message["role"].as_str().unwrap_or_default() {
            "tool" => answered(&mut all, &format!("<tool_response>\n{content}\n</tool_response>")),
            // Behind results, which are the user's turn already, a second one would follow.
            "user" if all.last().is_some_and(is_result) => answered(&mut all, content),
            _ => all.push(written_out(message, content)),
        }
    }
    all.into()
}

/// Whether a message ends with what a tool returned.
fn is_result(message: &Value) -> bool {
    message["role"] == "user"
        && message["content"].as_str().is_some_and(|text| text.ends_with("</tool_response>"))
}

/// Adds to the user's turn that answers a call.
fn answered(all: &mut Vec<Value>, text: &str) {
    match all.last_mut().filter(|last| is_result(last)) {
        Some(last) => {
            let before = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{before}\n{text}").into();
        }
        None => all.push(json!({"role": "user", "content": text})),
    }
}

/// A message whose calls are part of its text.
fn written_out(message: &Value, content: &str) -> Value {
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    if calls.is_empty() {
        return message.clone();
    }
    let mut text = content.to_owned();
    for call in calls {
        let function = &call["function"];
        let call = json!({"name": function["name"], "arguments": function["arguments"]});
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
    }
    let mut plain: Map<String, Value> = message.as_object().cloned().unwrap_or_default();
    plain.remove("tool_calls");
    plain.insert("content".into(), text.into());
    Value::Object(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}";

    fn weather() -> Value {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        json!([{"type": "function", "function": {"name": "get_weather", "description": "", "parameters": schema}}])
    }

    fn render(template: &str, messages: Value, tools: Option<Value>) -> Result<String> {
        let input = RenderInput { messages, tools, ..RenderInput::default() };
        Template::new(template).unwrap().render_offering(&input)
    }

    fn user() -> Value {
        json!([{"role": "user", "content": "hi"}])
    }

    #[test]
    fn a_template_that_prints_tools_is_left_alone() {
        let own = format!("{{{{ tools | tojson }}}}{TURNS}");
        let text = render(&own, user(), Some(weather())).unwrap();
        assert!(text.contains("get_weather") && !text.contains("# Tools"), "{text}");
        assert_eq!(render(TURNS, user(), None).unwrap(), "<user>hi</user>");
        assert_eq!(render(TURNS, user(), Some(json!([]))).unwrap(), "<user>hi</user>");
    }

    #[test]
    fn one_that_ignores_them_says_it_in_the_system_message() {
        let text = render(TURNS, user(), Some(weather())).unwrap();
        assert_eq!(text, format!("<system>{}</system><user>hi</user>", preamble(&weather())));
        let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]);
        // The word alone is no use of it.
        let named = format!("{{# tools #}}{{% if tools %}}{{% endif %}}{TURNS}");
        let text = render(&named, messages, Some(weather())).unwrap();
        assert_eq!(text, format!("<system>Be brief.\n\n{}</system><user>hi</user>", preamble(&weather())));
    }

    #[test]
    fn earlier_calls_are_told_though_no_tool_is_offered() {
        let messages = json!([
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "2"},
        ]);
        let text = render(TURNS, messages.clone(), None).unwrap();
        let call = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>";
        let result = "<tool_response>\n2\n</tool_response>";
        assert_eq!(text, format!("<user>?</user><assistant>{call}</assistant><user>{result}</user>"));
        let own =
            "{% for m in messages %}{{ m.role }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
        assert!(!render(own, messages, None).unwrap().contains("<tool_call>"));
    }

    #[test]
    fn calls_and_results_are_written_out_and_turns_alternate() {
        let call = |city: &str| json!({"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}});
        let messages = json!([
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call("Paris"), call("Rome")]},
            {"role": "tool", "content": "sun"},
            {"role": "tool", "content": "rain"},
            {"role": "user", "content": "and?"},
        ]);
        // It knows two roles and wants them in turn.
        let strict = "{% for m in messages if m.role != 'system' %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
                      {{ raise_exception('turns') }}{% endif %}{% endfor %}";
        let text = render(&format!("{strict}{TURNS}"), messages, Some(weather())).unwrap();
        let (_, turns) = text.split_once("</system>").unwrap();
        assert_eq!(
            turns,
            "<user>?</user><assistant>I look.\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\"}}\n\
             </tool_call>\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Rome\"}}\n</tool_call></assistant>\
             <user><tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\nand?</user>"
        );
    }

    #[test]
    fn one_without_a_place_says_why() {
        let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}";
        let drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
        for template in [refuses, drops] {
            assert_eq!(render(template, user(), None).unwrap(), "hi");
            let error = render(template, user(), Some(weather())).unwrap_err().to_string();
            assert!(error.contains("no place for tools"), "{error}");
        }
        // What is wrong with the conversation itself keeps its own words.
        let error =
            render("{{ raise_exception('never') }}", user(), Some(weather())).unwrap_err().to_string();
        assert!(error.contains("never"), "{error}");
        let picky = format!("{{% if tools %}}{{{{ raise_exception('one tool only') }}}}{{% endif %}}{TURNS}");
        let error = render(&picky, user(), Some(weather())).unwrap_err().to_string();
        assert!(error.contains("one tool only"), "{error}");
    }
}
