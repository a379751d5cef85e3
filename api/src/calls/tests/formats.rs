//! The formats whose calls are not JSON as a whole.

use serde_json::{Value, json};

use super::*;

/// A parser that knows the types of what it is offered.
fn typed() -> Parser {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = [
        tool("get_weather", json!({"type": "object", "properties": {"city": {"type": "string"}}})),
        tool(
            "add",
            json!({
                "type": "object",
                "$defs": {"list": {"type": "array"}},
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "string"},
                    "list": {"$ref": "#/$defs/list"},
                    "yes": {"type": "boolean"},
                    "some": {"anyOf": [{"type": "string"}, {"type": "null"}]}
                }
            }),
        ),
    ];
    parser().typed(Arc::new(Types::new(&tools)))
}

/// What a parser says of `text` in steps of so many characters, adjacent pieces of one kind joined.
fn events(text: &str, step: usize) -> Vec<Parsed> {
    let mut parser = typed();
    let chars: Vec<char> = text.chars().collect();
    let mut parsed: Vec<Parsed> = Vec::new();
    let pieces = chars.chunks(step).map(|piece| piece.iter().collect::<String>());
    let mut all: Vec<Parsed> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    all.extend(parser.finish(false));
    for piece in all {
        match (parsed.last_mut(), piece) {
            (Some(Parsed::Text(before)), Parsed::Text(more))
            | (Some(Parsed::Arguments(before)), Parsed::Arguments(more)) => before.push_str(&more),
            (_, piece) => parsed.push(piece),
        }
    }
    parsed
}

const TWO: &[(&str, &str)] = &[("get_weather", r#"{"city":"Paris"}"#), ("add", r#"{"a":1,"b":"2 < 3"}"#)];

/// Two calls behind text, in every format.
const FORMATS: &[&str] = &[
    "I look.\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"2 < 3\"}}</tool_call>",
    "I look.\n<function=get_weather>{\"city\": \"Paris\"}</function><function=add>{\"a\": 1, \"b\": \"2 < 3\"}</function>",
    "I look.\n<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": \"2 < 3\"}}",
    "I look.\n[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"2 < 3\"}}]",
    "I look.\n[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]add[ARGS]{\"a\": 1, \"b\": \"2 < 3\"}",
    // DeepSeek V3 and R1, then V3.1.
    "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1, \"b\": \"2 < 3\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1, \"b\": \"2 < 3\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    // GLM.
    "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key><arg_value>2 < 3</arg_value></tool_call>",
    // Qwen3-Coder, with its mark, with one for both, and without.
    "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2 < 3\n</parameter>\n</function>\n</tool_call>",
    "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n<function=add>\n<parameter=a>1</parameter>\n<parameter=b>2 < 3</parameter>\n</function>\n</tool_call>",
    "I look.\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2 < 3\n</parameter>\n</function>",
    // Llama 4.
    "I look.\n<|python_start|>[get_weather(city=\"Paris\"), add(a=1, b='2 < 3')]<|python_end|>",
    "I look.\n<|python_tag|>[get_weather(city='Paris'), add(a=1, b=\"2 < 3\",)]",
    // MiniMax and Kimi.
    "I look.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">2 < 3</parameter>\n</invoke>\n</minimax:tool_call>",
    "I look.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{\"a\": 1, \"b\": \"2 < 3\"}<|tool_call_end|><|tool_calls_section_end|>",
];

#[test]
fn every_format_gives_the_same_events_however_it_is_cut() {
    for text in FORMATS {
        let whole = events(text, usize::MAX);
        for step in 1..20 {
            assert_eq!(events(text, step), whole, "{text} in steps of {step}");
        }
        let (texts, calls, cut) = parse_with(typed(), text, 1, false);
        let calls: Vec<_> = calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(calls, TWO, "{text}");
        assert_eq!((texts.trim_end(), cut), ("I look.", false), "{text}");
    }
}

#[test]
fn text_behind_a_call_is_text() {
    for text in FORMATS.iter().filter(|text| !text.contains("[TOOL_CALLS]") && !text.contains("python_tag")) {
        for step in [1, 7, 1000] {
            let (texts, calls, _) = parse_with(typed(), &format!("{text}\n\nDone [1]."), step, false);
            assert_eq!(texts, "I look.\n\n\nDone [1].", "{text}");
            assert_eq!(calls.len(), 2);
        }
    }
}

#[test]
fn values_between_tags_have_the_type_of_their_schema() {
    for (key, written, read) in [
        ("b", "1", json!("1")),
        ("b", "{\"x\": 1}", json!("{\"x\": 1}")),
        ("b", " two\n lines ", json!(" two\n lines ")),
        ("b", "", json!("")),
        ("a", " 12 ", json!(12)),
        ("a", "twelve", json!("twelve")),
        ("list", "[1, \"x y\", {\"k\": null}]", json!([1, "x y", {"k": null}])),
        ("list", "['x', True]", json!(["x", true])),
        ("yes", "true", json!(true)),
        ("yes", "False", json!(false)),
        ("some", "null", json!(null)),
        ("some", "12", json!("12")),
        ("some", "\"quoted\"", json!("\"quoted\"")),
        // Of what the schema says nothing.
        ("other", "12", json!(12)),
        ("other", "{\"a\": [1]}", json!({"a": [1]})),
        ("other", "\"quoted\"", json!("quoted")),
        ("other", "True", json!("True")),
        ("other", "no <json> \\ \"here\" ünï", json!("no <json> \\ \"here\" ünï")),
    ] {
        for text in [
            format!(
                "<tool_call>add\n<arg_key>{key}</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>"
            ),
            format!(
                "<tool_call>\n<function=add>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n</tool_call>"
            ),
            format!(
                "<minimax:tool_call><invoke name=\"add\"><parameter name=\"{key}\">{written}</parameter></invoke></minimax:tool_call>"
            ),
        ] {
            for step in [1, 3, 1000] {
                let (texts, calls, _) = parse_with(typed(), &text, step, false);
                assert_eq!((texts.as_str(), calls.len()), ("", 1), "{text}");
                let arguments: Value = serde_json::from_str(&calls[0].arguments).unwrap();
                assert_eq!(arguments, json!({key: read}), "{text}");
            }
        }
    }
}

#[test]
fn strings_between_tags_are_given_on_as_they_come() {
    let mut parser = typed();
    assert_eq!(parser.push("<tool_call>\n<function=add>\n<parameter"), []);
    let begin = Parsed::Begin { id: call_id(7, 0), name: "add".into() };
    let open = [begin, Parsed::Arguments("{".into()), Parsed::Arguments("\"b\":\"".into())];
    let first = [parser.push("=b>"), parser.push("\n")].concat();
    // The name is certain with the tag of the first parameter, whose own name comes later.
    assert_eq!(first, open);
    assert_eq!(parser.push("one \"two\""), [Parsed::Arguments("one \\\"two\\\"".into())]);
    assert_eq!(parser.push("\n</para"), []);
    assert_eq!(parser.push("graph>\n"), [Parsed::Arguments("\\n</paragraph>".into())]);
    assert_eq!(
        parser.push("</parameter>\n</function>"),
        [Parsed::Arguments("\"".into()), Parsed::Arguments("}".into()), Parsed::End]
    );
}

#[test]
fn calls_without_arguments_are_calls() {
    for text in [
        "<tool_call>add</tool_call>",
        "<tool_call>add\n</tool_call>",
        "<tool_call>\n<function=add>\n</function>\n</tool_call>",
        "<minimax:tool_call>\n<invoke name=\"add\">\n</invoke>\n</minimax:tool_call>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "<|python_start|>[add()]<|python_end|>",
        " [ add( ) ]",
    ] {
        for step in [1, 1000] {
            let (texts, calls, _) = parse_with(typed(), text, step, false);
            assert_eq!((texts.trim(), calls.len()), ("", 1), "{text}");
            assert_eq!(calls[0].arguments, "{}", "{text}");
        }
    }
}

#[test]
fn python_literals_are_json() {
    for (written, read) in [
        ("True", json!(true)),
        ("None", json!(null)),
        ("false", json!(false)),
        ("-12", json!(-12)),
        ("1_000", json!(1000)),
        (".5", json!(0.5)),
        ("1e3", json!(1000.0)),
        (r#""a\"b'c""#, json!("a\"b'c")),
        (r"'it\'s \x41\u00e9\U0001f600 \ud83d\ude00 \d\n'", json!("it's Aé😀 😀 \\d\n")),
        ("'[(]'", json!("[(]")),
        ("[1, 'x', [], ]", json!([1, "x", []])),
        ("{\"k\": True, 'n': {'m': None}, 3: 4}", json!({"k": true, "n": {"m": null}, "3": 4})),
    ] {
        let text = format!("[add(a = {written}, b='x'), get_weather()] and");
        for step in [1, 4, 1000] {
            let (texts, calls, _) = parse_with(typed(), &text, step, false);
            assert_eq!((texts.as_str(), calls.len()), (" and", 2), "{text}");
            let arguments: Value = serde_json::from_str(&calls[0].arguments).unwrap();
            assert_eq!(arguments, json!({"a": read, "b": "x"}));
        }
    }
}

#[test]
fn what_is_no_call_in_these_formats_stays_text() {
    let deep = format!("[add(a={}1{})]", "[".repeat(200), "]".repeat(200));
    for text in [
        "[unknown(a=1)]",
        "[add(a=1), unknown(b=2)] and more",
        "[add(1)]",
        "[add(a=x)]",
        "[add(a=1) + 2] is a list",
        "[add] is a list",
        "[addition(a=1)]",
        "[add(a=1",
        "I [add(a=1)] up",
        &deep,
        "<|python_start|>[unknown(a=1)]<|python_end|> and more",
        "<|python_start|>print(1)<|python_end|>",
        "<tool_call>unknown\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call> and more",
        "<tool_call>add\nsays</tool_call>",
        "<tool_call>add\n<b>",
        "<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\nno parameter\n</function>\n</tool_call>",
        "<function=add> no parameter</function>",
        "<minimax:tool_call><invoke name=\"unknown\"><parameter name=\"a\">1</parameter></invoke></minimax:tool_call>",
        "<minimax:tool_call>nothing</minimax:tool_call> and more",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜> and more",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁cal",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.unknown:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ] {
        for step in [1, 5, 1000] {
            let (texts, calls, _) = parse_with(typed(), text, step, false);
            assert_eq!(texts, text, "in steps of {step}");
            assert_eq!(calls, [], "{text}");
        }
    }
}

#[test]
fn a_call_that_is_cut_is_its_beginning_and_one_without_its_end_is_whole() {
    let whole = r#"{"a":1,"b":"x y"}"#;
    for text in [
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key><arg_value>x y</arg_value></tool_call>",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx y\n</parameter>\n</function>\n</tool_call>",
        "<minimax:tool_call><invoke name=\"add\"><parameter name=\"a\">1</parameter><parameter name=\"b\">x y</parameter></invoke></minimax:tool_call>",
        "<|python_start|>[add(a=1, b=\"x y\")]<|python_end|>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1, \"b\": \"x y\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1, \"b\": \"x y\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 1, \"b\": \"x y\"}<|tool_call_end|><|tool_calls_section_end|>",
    ] {
        let mark = MARKS.iter().map(|mark| mark.text).find(|mark| text.starts_with(mark)).unwrap();
        for end in (mark.len()..text.len()).filter(|end| text.is_char_boundary(*end)) {
            for step in [1, 1000] {
                let (texts, calls, cut) = parse_with(typed(), &text[..end], step, true);
                assert_eq!(texts, "", "{}", &text[..end]);
                let Some(call) = calls.first() else { continue };
                assert_eq!((calls.len(), call.name.as_str()), (1, "add"));
                assert!(whole.starts_with(&call.arguments), "{}: {}", &text[..end], call.arguments);
                assert_eq!(cut, call.arguments != whole, "{}", &text[..end]);
            }
        }
    }
    // A model that ends its turn without the last tags has said everything.
    let unended = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx y\n</par";
    let (_, calls, cut) = parse_with(typed(), unended, 3, false);
    assert_eq!((calls[0].arguments.as_str(), cut), (whole, false));
    // A value ends with its call.
    let forgotten = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx y\n</function>\n</tool_call>.";
    let (texts, calls, _) = parse_with(typed(), forgotten, 3, false);
    assert_eq!((texts.as_str(), calls[0].arguments.as_str()), (".", whole));
    // Of several calls in Python those that are complete are so.
    let (_, calls, cut) = parse_with(typed(), "[get_weather(city='Rome'), add(a=1, b='x", 3, true);
    assert_eq!((calls[0].arguments.as_str(), cut), (r#"{"city":"Rome"}"#, true));
    assert_eq!(calls[1].arguments, r#"{"a":1"#);
}

#[test]
fn one_call_is_one_call_in_every_format() {
    for text in FORMATS {
        for step in [1, 1000] {
            let (texts, calls, _) = parse_with(typed().expecting(true, false), text, step, false);
            assert_eq!((texts.as_str(), calls.len()), ("I look.\n", 1), "{text}");
            assert_eq!(calls[0].arguments, r#"{"city":"Paris"}"#, "{text}");
        }
    }
}

#[test]
fn what_is_held_in_these_formats_is_bounded() {
    let long = "x".repeat(MAX_HELD_BYTES + 1);
    // A string is given on, whatever its length.
    let mut parser = typed();
    parser.push("<tool_call>\n<function=add>\n<parameter=b>\n");
    assert_eq!(parser.push(&long), [Parsed::Arguments(long.clone())]);
    assert!(parser.held.is_empty());
    // What should be something else is a string when it is too long, whether it came at once or not.
    let text = format!(
        "<tool_call>\n<function=add>\n<parameter=a>\n{long}\n</parameter>\n</function>\n</tool_call>"
    );
    for step in [1 << 12, usize::MAX] {
        let (texts, calls, _) = parse_with(typed(), &text, step, false);
        assert_eq!(texts, "");
        assert_eq!(calls[0].object()["a"], long.as_str());
    }
    for mark in ["[add(a='", "<|python_start|>[add(a='", "<｜tool▁calls▁begin｜>", "<minimax:tool_call>"]
    {
        let mut parser = typed();
        let mut parsed = parser.push(mark);
        parsed.extend(parser.push(&long));
        assert_eq!(parsed, [Parsed::Text(format!("{mark}{long}"))]);
    }
}

/// The same without the white space of texts, which is layout before a mark unless it came alone.
fn solid(text: &str, step: usize) -> Vec<Parsed> {
    let mut all = events(text, step);
    for piece in &mut all {
        if let Parsed::Text(text) = piece {
            text.retain(|c| !c.is_whitespace());
        }
    }
    all.retain(|piece| *piece != Parsed::Text(String::new()));
    all
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(1000))]

    /// Whatever tags and words a model strings together: how they are cut changes nothing, and no call holds text.
    #[test]
    fn any_mixture_gives_the_same_events_however_it_is_cut(
        parts in proptest::collection::vec(proptest::sample::select(PARTS), 1..14),
        step in 1usize..9,
    ) {
        let text = parts.concat();
        proptest::prop_assert_eq!(solid(&text, step), solid(&text, usize::MAX), "{}", text);
        parse_with(typed(), &text, step, true);
    }

    /// The same of an answer in a format in which something is wrong.
    #[test]
    fn a_damaged_answer_gives_the_same_events_however_it_is_cut(
        text in proptest::sample::select(FORMATS),
        (from, left_out) in (0usize..300, 0usize..40),
        part in proptest::sample::select(PARTS),
        step in 1usize..9,
    ) {
        let before: String = text.chars().take(from).collect();
        let behind: String = text.chars().skip(from + left_out).collect();
        let text = format!("{before}{part}{behind}");
        proptest::prop_assert_eq!(solid(&text, step), solid(&text, usize::MAX), "{}", text);
        parse_with(typed(), &text, step, true);
    }
}

const PARTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "add",
    ">",
    "</function>",
    "<parameter=",
    "b",
    "a",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"add\">",
    "<parameter name=\"a\">",
    "</invoke>",
    "<|python_start|>",
    "<|python_end|>",
    "[",
    "add(",
    "a=",
    "'x'",
    ")",
    "]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "```json\n",
    "\n```",
    "{",
    "}",
    "{\"a\": 1}",
    "\n",
    " ",
    ",",
    "ü",
    "\"",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.add:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "{\"name\": \"add\", \"arguments\": {}}",
    "[TOOL_CALLS]",
];
