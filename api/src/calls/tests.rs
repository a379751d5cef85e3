use serde_json::json;

use super::*;

mod formats;

fn parser() -> Parser {
    Parser::new(vec!["get_weather".into(), "add".into()], 7)
}

/// The text and the calls of an answer that comes in steps of so many characters, and whether it was cut in a call.
fn parse_with(mut parser: Parser, text: &str, step: usize, cut: bool) -> (String, Vec<ToolCall>, bool) {
    let chars: Vec<char> = text.chars().collect();
    let mut parsed = Vec::new();
    for piece in chars.chunks(step) {
        parsed.extend(parser.push(&piece.iter().collect::<String>()));
    }
    parsed.extend(parser.finish(cut));
    let mut texts = String::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    let mut open = false;
    for piece in parsed {
        match piece {
            Parsed::Text(text) => {
                assert!(!open, "text within a call");
                texts.push_str(&text);
            }
            Parsed::Begin { id, name } => {
                assert!(!std::mem::replace(&mut open, true), "a call within a call");
                calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Parsed::Arguments(more) => {
                assert!(open, "arguments outside of calls");
                calls.last_mut().unwrap().arguments.push_str(&more);
            }
            Parsed::End => assert!(std::mem::replace(&mut open, false), "an end without a call"),
        }
    }
    assert!(!open, "the last call ends");
    (texts, calls, parser.was_cut())
}

fn parse(text: &str, step: usize) -> (String, Vec<(String, String)>) {
    let (text, calls, cut) = parse_with(parser(), text, step, false);
    assert!(!cut);
    (text, calls.into_iter().map(|call| (call.name, call.arguments)).collect())
}

#[test]
fn every_family_is_understood_however_it_is_cut() {
    let paris = ("get_weather".to_owned(), r#"{"city":"Paris"}"#.to_owned());
    let sum = ("add".to_owned(), r#"{"a":1,"b":2}"#.to_owned());
    type Case<'a> = (&'a str, &'a str, &'a [&'a (String, String)]);
    let cases: &[Case<'_>] = &[
        (
            "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            "I look.\n",
            &[&paris],
        ),
        (
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":1,\"b\":2}}</tool_call>\n",
            "\n",
            &[&paris, &sum],
        ),
        // Several in one mark, and one whose last bracket the model forgot.
        (
            "<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"add\", \"arguments\": {\"a\":1, \"b\":2}}]</tool_call>",
            "",
            &[&paris, &sum],
        ),
        (
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":1,\"b\":2}</tool_call> done",
            " done",
            &[&sum],
        ),
        // Members in another order, further ones, and arguments in a string.
        (
            "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call>",
            "",
            &[&paris],
        ),
        (
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":1,\"b\":2}, \"id\": \"}<\"}</tool_call>",
            "",
            &[&sum],
        ),
        (
            "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\":1,\\\"b\\\":2}\"}</tool_call>",
            "",
            &[&sum],
        ),
        (r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#, "", &[&paris]),
        (
            r#"{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Paris"}}}"#,
            "",
            &[&paris],
        ),
        (
            r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "add", "parameters": {"a":1,"b":2}}"#,
            "",
            &[&paris, &sum],
        ),
        (r#"<function=get_weather>{"city": "Paris"}</function>"#, "", &[&paris]),
        (
            r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": "{\"a\":1,\"b\":2}"}]"#,
            "",
            &[&paris, &sum],
        ),
        (r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}"#, "", &[&paris]),
        (
            r#"[TOOL_CALLS]add[ARGS]{"a":1,"b":2}[TOOL_CALLS]get_weather{"city": "Paris"}"#,
            "",
            &[&sum, &paris],
        ),
        (r#" [{"name": "add", "arguments": {"a":1,"b":2}}]"#, "", &[&sum]),
    ];
    for (text, rest, calls) in cases {
        for step in [1, 2, 3, 7, 1000] {
            let (texts, found) = parse(text, step);
            assert_eq!(found.iter().collect::<Vec<_>>(), *calls, "{text} in steps of {step}");
            assert_eq!(texts, *rest, "{text} in steps of {step}");
        }
    }
}

#[test]
fn what_is_no_call_stays_the_text_it_is() {
    for text in [
        "plain",
        "a < b and [1, 2] and <tool",
        r#"{"name": "unknown", "parameters": {}}"#,
        r#"{"answer": 42}"#,
        r#"{"name": "add", "surname": {"#,
        r#"{"name": "add", "parameters": "#,
        "<tool_call>no json</tool_call> and more",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {\"a\": 1}}</tool_call> and more",
        "<tool_call></tool_call>",
        "[TOOL_CALLS] nothing",
        "  ",
    ] {
        for step in [1, 5, 1000] {
            let (texts, calls) = parse(text, step);
            assert_eq!(texts, text);
            assert_eq!(calls, []);
        }
    }
}

#[test]
fn arguments_are_given_on_as_they_come() {
    let mut parser = parser();
    assert_eq!(parser.push("<tool_call>{\"name\": \"add\", \"arg"), []);
    let id = call_id(7, 0);
    let begin = Parsed::Begin { id, name: "add".into() };
    assert_eq!(parser.push("uments\": {"), [begin, Parsed::Arguments("{".into())]);
    assert_eq!(parser.push("\"a\": \"x "), [Parsed::Arguments("\"a\":\"x ".into())]);
    assert_eq!(parser.push("\\\"}\", \"b\""), [Parsed::Arguments("\\\"}\",\"b\"".into())]);
    assert_eq!(parser.push(": [1, {}]"), [Parsed::Arguments(":[1,{}]".into())]);
    assert_eq!(parser.push(" }} </tool"), [Parsed::Arguments("}".into()), Parsed::End]);
    assert_eq!(parser.push("_call> bye"), [Parsed::Text(" bye".into())]);
}

/// However far a call came when the tokens were used up, none of it is text.
#[test]
fn an_answer_that_is_cut_in_a_call_is_that_call_so_far() {
    let marked = r#"<tool_call>{"name": "add", "arguments": {"a": 1, "b": "x"}}</tool_call>"#;
    let forms = [
        marked,
        r#"<function=add>{"a": 1, "b": "x"}</function>"#,
        r#"[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x"}"#,
        r#"<tool_call>{"arguments": {"a": 1, "b": "x"}, "name": "add"}"#,
    ];
    for whole in forms {
        let mark = MARKS.iter().map(|mark| mark.text).find(|mark| whole.starts_with(mark)).unwrap();
        for end in mark.len()..whole.len() {
            for step in [1, 1000] {
                let (text, calls, cut) = parse_with(parser(), &whole[..end], step, true);
                assert_eq!(text, "", "{}", &whole[..end]);
                assert!(calls.len() <= 1);
                let Some(call) = calls.first() else { continue };
                assert_eq!(call.name, "add");
                assert!(r#"{"a":1,"b":"x"}"#.starts_with(&call.arguments), "{}", call.arguments);
                let complete = call.arguments == r#"{"a":1,"b":"x"}"#;
                assert_eq!(cut, !complete, "{}", &whole[..end]);
            }
        }
    }
    let (text, calls, cut) = parse_with(parser(), &marked[..marked.find("1,").unwrap() + 1], 3, true);
    assert_eq!((text.as_str(), calls[0].arguments.as_str(), cut), ("", "{\"a\":1", true));
    // A demanded call is one, whatever is known of it; else a few words in braces may be an answer.
    let bare = r#"{"name": "ad"#;
    assert_eq!(parse_with(parser().expecting(false, true), bare, 1, true).0, "");
    assert_eq!(parse_with(parser(), bare, 1, true).0, bare);
}

#[test]
fn one_call_is_one_call() {
    for text in [
        r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>"#,
        r#"[TOOL_CALLS][{"arguments": {"a": 1}, "name": "add"}, {"name": "add", "arguments": {"a": 2}}]"#,
    ] {
        let (_, calls, _) = parse_with(parser().expecting(true, false), text, 4, false);
        assert_eq!(calls.len(), 1, "{text}");
        assert_eq!(calls[0].arguments, r#"{"a":1}"#);
    }
}

#[test]
fn what_a_cut_call_says_is_an_object_of_its_whole_members() {
    for (arguments, object) in [
        ("", json!({})),
        ("{", json!({})),
        (r#"{"a"#, json!({})),
        (r#"{"a":1"#, json!({})),
        (r#"{"a":1,"#, json!({"a": 1})),
        (r#"{"a":"x,{","b":[1,[2,3],{"c":4},"#, json!({"a": "x,{", "b": [1, [2, 3], {"c": 4}]})),
        (r#"{"a":1,"b":{"c":"\"},"#, json!({"a": 1, "b": {}})),
        (r#"{"a":1}"#, json!({"a": 1})),
        ("[1]", json!({})),
        ("nothing", json!({})),
    ] {
        let call = ToolCall { id: String::new(), name: String::new(), arguments: arguments.into() };
        assert_eq!(call.object(), object, "{arguments}");
    }
}

#[test]
fn text_is_not_held_longer_than_it_must_be() {
    let mut parser = parser();
    assert_eq!(parser.push("Hello <b"), [Parsed::Text("Hello <b".into())]);
    assert_eq!(parser.push(" <too"), [Parsed::Text(" ".into())]);
    assert_eq!(parser.push("ls>"), [Parsed::Text("<tools>".into())]);
}

#[test]
fn what_is_held_is_bounded() {
    let mut parser = parser();
    let long = "x".repeat(MAX_HELD_BYTES);
    assert_eq!(parser.push("<tool_call>"), []);
    assert!(matches!(&parser.push(&long)[..], [Parsed::Text(text)] if text.len() > MAX_HELD_BYTES));
    assert_eq!(parser.push("<tool_call>"), [Parsed::Text("<tool_call>".into())]);
}

#[test]
fn ids_are_nine_letters_or_digits_and_repeat_with_the_seed() {
    let ids: Vec<String> = (0..100).map(|n| call_id(1, n)).collect();
    assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())));
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 100);
    assert_eq!(call_id(1, 5), ids[5]);
}
