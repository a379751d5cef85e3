use api::inference::Format;
use serde_json::{Value, json};
use shard::tokenizer::{Encode, Tokenizer};

use super::super::{Bound, Constraints};
use super::*;

pub(super) fn tool(name: &str, parameters: Value) -> CallForm {
    CallForm { name: name.into(), parameters }
}

fn tools() -> Vec<CallForm> {
    let city = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "additionalProperties": false,
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["next"]}}});
    vec![tool("weather", city), tool("tree", tree)]
}

/// A tokenizer whose tokens are bytes, and one that ends a turn.
pub(super) fn of_bytes() -> Tokenizer {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.push("</s>".into());
    let kinds: Vec<i32> = (0..257).map(|id| if id == 256 { 3 } else { 6 }).collect();
    let mut writer = shard::gguf::Writer::new();
    writer.add_str("tokenizer.ggml.model", "llama").add_strs("tokenizer.ggml.tokens", &tokens);
    writer.add_f32s("tokenizer.ggml.scores", &[0.0; 257]).add_i32s("tokenizer.ggml.token_type", &kinds);
    writer.add_u32("tokenizer.ggml.eos_token_id", 256);
    let file = writer.start(Vec::new()).unwrap().finish().unwrap();
    Tokenizer::from_gguf(shard::gguf::Gguf::from_bytes(file).unwrap().metadata()).unwrap()
}

/// Whether the bytes of `text` may come one after the other, and what may follow then.
fn follow(text: &str, tags: Tags, tools: Vec<CallForm>) -> Result<Vec<u8>, usize> {
    let (constraints, tokenizer) = (Constraints::of_bytes(tags).unwrap(), of_bytes());
    let mut constraint = constraints.constraint(&Format::Calls(tools)).unwrap().unwrap();
    for (at, byte) in text.bytes().enumerate() {
        let mut logits = vec![0.0; 257];
        constraint.mask(&tokenizer, &mut logits).unwrap();
        if logits[usize::from(byte)] == IMPOSSIBLE {
            return Err(at);
        }
        constraint.accept(&tokenizer, u32::from(byte)).unwrap();
    }
    let mut logits = vec![0.0; 257];
    constraint.mask(&tokenizer, &mut logits).unwrap();
    assert!(!constraint.is_complete());
    Ok((0..=255).filter(|byte| logits[usize::from(*byte)] != IMPOSSIBLE).collect())
}

#[test]
fn a_call_of_every_form_is_sound_and_what_is_around_it_is_free() {
    for text in [
        "I look {\"name\": 1} it up. ",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"type\": \"function\", \"name\": \"tree\", \
         \"parameters\": {\"next\": null}} and ",
        "[{\"name\":\"weather\",\"arguments\":{\"city\": \"Rome\"}}, {\"name\":\"weather\",\"arguments\":{\"city\": \"Paris\"}}]",
        "<think>{</think>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}",
        "{\"name\": \"weather\", \"is\": \"no call\", \"parameters\": {\"city\": \"Oslo\"}}",
        "So: {\"name\": \"weather\", \"parameters\": {\"town\": 1}}",
        "[weather(city=\"Rome\"), weather(city=\"Paris\")] and ",
        "[tree(next={\"next\": null})] is free",
        "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}}",
        "{\"function\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}",
        "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"name\": \"weather\", \
         \"parameters\": {\"city\": \"Paris\"}}",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>{\"name\": \"weather\", \
         \"arguments\": {\"town",
        "<|python_start|>[weather(city=\"Rome\")]<|python_end|>",
        "<|python_start|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}<|python_end|>",
        "[weather] (town)",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call> and ",
        "x<tool_call>{\"name\": \"tree\", \"arguments\": {\"next\": {\"next\": null}}}</tool_call>\n<tool_call>\
         {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>",
        "<function=weather>{\"city\": \"Rome\"}</function>!",
        "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}; ",
        "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}, \
         {\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}] ",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Rome\"}\n```\
         <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜>\
         <｜tool▁calls▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
         {\"city\": \"Rome\"}<|tool_call_end|><|tool_call_begin|>weather:1<|tool_call_argument_begin|>\
         {\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|>",
        "one writes <invoke name=\"x\"> or <|tool_call_begin|>, ",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}",
    ] {
        let next = follow(text, Tags::None, tools())
            .unwrap_or_else(|at| panic!("{text}: not at {at}: {}", &text[at..]));
        assert!(next.len() >= 256, "{text}: not free behind it: {}", next.len());
    }
}

/// A tool with a parameter of every kind.
fn of_every_kind() -> Vec<CallForm> {
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["path", "depth"],
        "properties": {"path": {"type": "string"}, "mode": {"enum": ["fast", "slow"]}, "depth": {"type": "integer"},
            "next": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "additionalProperties": false,
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["next"]}}});
    vec![tool("find", parameters), tool("stop", json!({"type": "object", "additionalProperties": false}))]
}

#[test]
fn parameters_between_tags_are_sound_where_the_template_teaches_them() {
    let (qwen, glm) = (Tags::Qwen, Tags::Glm);
    for (tags, text) in [
        (
            qwen,
            "<tool_call>\n<function=find>\n<parameter=path>\na <b> \"c\"\nd\n</parameter>\n<parameter=mode>\nslow\n\
             </parameter>\n<parameter=depth>\n12\n</parameter>\n<parameter=next>\n{\"next\": null}\n</parameter>\n\
             </function>\n</tool_call>",
        ),
        (qwen, "<function=find><parameter=path></parameter><parameter=depth>-1</parameter></function> and "),
        (qwen, "<tool_call>{\"name\": \"stop\", \"arguments\": {}}</tool_call>"),
        (qwen, "<tool_call>\n<function=stop>\n</function>\n</tool_call>"),
        (
            glm,
            "<tool_call>find\n<arg_key>path</arg_key>\n<arg_value>x < y</arg_value>\n<arg_key>depth</arg_key>\n\
             <arg_value>3</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>",
        ),
        (
            glm,
            "<tool_call>find<arg_key>path</arg_key><arg_value>x</arg_value><arg_key>mode</arg_key>\
              <arg_value>fast</arg_value><arg_key>depth</arg_key><arg_value>3</arg_value></tool_call>",
        ),
        (glm, "<tool_call>{\"name\": \"stop\", \"arguments\": {}}</tool_call>"),
        (Tags::None, "[find(path=\"x\", mode=\"fast\", depth=3, next={\"next\": null}), stop()]"),
        (Tags::None, "[stop(), find(path=\"(\", depth=-1)]"),
        (
            Tags::None,
            "<minimax:tool_call>\n<invoke name=\"find\">\n<parameter name=\"path\">x</parameter>\n\
             <parameter name=\"depth\">3</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
    ] {
        let next = follow(text, tags, of_every_kind())
            .unwrap_or_else(|at| panic!("{text}: not at {at}: {}", &text[at..]));
        assert!(next.len() >= 256, "{text}: not free behind it: {}", next.len());
    }
    for (tags, text, at) in [
        (Tags::None, "<tool_call>\n<function", 12),
        (Tags::None, "<tool_call>find", 11),
        (Tags::None, "[find(depth", 6),
        (Tags::None, "[find(path=\"x\")", 14),
        (Tags::None, "[find(path=\"x\", next={\"next\": null})", 16),
        (Tags::None, "[stop(x", 6),
        (glm, "<tool_call>find\n<arg_key>depth", 25),
        (glm, "<tool_call>find<arg_key>path</arg_key><arg_value>x</arg_value></tool_call>", 63),
        (qwen, "<function=find><parameter=path>x</parameter><parameter=mode>medium", 60),
        (qwen, "<function=find><parameter=path>x</parameter><parameter=depth>deep", 61),
        (qwen, "<function=find><parameter=path>x</parameter><parameter=depth>1</parameter><parameter=x", 85),
        (qwen, "<function=stop><parameter", 16),
    ] {
        assert_eq!(follow(text, tags, of_every_kind()), Err(at), "{text}");
    }
}

#[test]
fn values_that_are_listed_anywhere_are_held_and_end_where_they_are_read() {
    let color = json!({"$ref": "#/$defs/Color"});
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["a", "b"],
        "properties": {"a": color, "b": {"anyOf": [color, {"type": "null"}]}, "c/d": {"type": "array", "items": color}},
        "$defs": {"Color": {"enum": ["red", "blue"], "type": "string"}}});
    let paint = || vec![tool("paint", parameters.clone())];
    let (a, b) = ("<parameter=a>\nred\n</parameter>", "<parameter=b>null</parameter>");
    let c = "<parameter=c/d>[\"blue\", \"red\"]</parameter>";
    let whole = format!("<function=paint>{a}\n{b}\n{c}\n</function>");
    assert!(follow(&whole, Tags::Qwen, paint()).is_ok_and(|next| next.len() >= 256), "{whole}");
    assert_eq!(follow("<function=paint><parameter=a>green", Tags::Qwen, paint()), Err(29));
    let minimax = "<minimax:tool_call>\n<invoke name=\"paint\">\n<parameter name=\"a\">";
    assert_eq!(follow(&format!("{minimax}\n"), Tags::None, paint()), Err(minimax.len()));
    let words = || vec![tool("say", json!({"type": "object", "properties": {"text": {"type": "string"}}}))];
    let said = "<function=say><parameter=text>no </function";
    assert_eq!(follow(&format!("{said}>"), Tags::Qwen, words()), Err(said.len()));
    // What is not listed is called in JSON.
    let composed = || vec![tool("any", json!({"anyOf": [{"type": "object"}]}))];
    assert_eq!(follow("<function=any><", Tags::Qwen, composed()), Err(14));
    assert!(follow("<function=any>{}</function>", Tags::Qwen, composed()).is_ok());
}

#[test]
fn a_tool_without_a_list_takes_parameters_of_any_name() {
    let any = || vec![tool("any", json!({"type": "object"}))];
    let text = "<function=any><parameter=a>1</parameter>\n<parameter=b c>x</parameter></function>";
    assert!(follow(text, Tags::Qwen, any()).is_ok_and(|next| next.len() >= 256));
    let text = "<tool_call>any\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>";
    assert!(follow(text, Tags::Glm, any()).is_ok_and(|next| next.len() >= 256));
}

#[test]
fn arguments_in_python_may_be_left_out_where_their_schema_says_so_and_have_its_words() {
    let parameters = json!({"type": "object", "properties": {
        "deep": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "name": {"type": ["string", "null"]},
        "size": {"$ref": "#/$defs/size"}}, "$defs": {"size": {"type": "number"}}});
    let some = || vec![tool("look", parameters.clone())];
    for arguments in [
        "",
        "deep=True",
        "deep=None",
        "deep=false",
        "name=None",
        "deep=False, name=\"a\", size=1.5",
        "deep=True, size=1",
        "size=0",
    ] {
        let text = format!("[look({arguments})]");
        let next = follow(&text, Tags::None, some()).unwrap_or_else(|at| panic!("{text}: not at {at}"));
        assert!(next.len() >= 256, "{text}: not free behind it");
    }
    for (text, at) in [
        ("[look(deep=1", 11),
        ("[look(size=1, deep", 12),
        ("[look(deep=True,)", 16),
        ("[look(size=None", 11),
        ("[look(name=True", 11),
    ] {
        assert_eq!(follow(text, Tags::None, some()), Err(at), "{text}");
    }
}

#[test]
fn tools_that_python_cannot_call_stay_free_in_lists() {
    let of = |properties: Value, more: Value| {
        let mut parameters = json!({"type": "object", "properties": properties});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vec![tool("send", parameters)]
    };
    let text = json!({"type": "string"});
    for tools in [
        of(json!({"user-id": text}), json!({"required": ["user-id"]})),
        of(json!({"": text}), json!({})),
        of(json!({"a": text}), json!({"required": ["b"]})),
        of(json!({"a": text}), json!({"required": ["a"], "minProperties": 1})),
        of(json!({}), json!({"additionalProperties": {"type": "integer"}})),
        // What JSON leaves out has no grammar of its own.
        of(json!({"a": text, "old": false}), json!({})),
    ] {
        let said = "[send(x=1)]";
        assert!(follow(said, Tags::None, tools.clone()).is_ok_and(|next| next.len() >= 256), "{tools:?}");
        // In JSON they are held.
        let name = "{\"name\": \"send\", \"parameters\": 5";
        assert_eq!(follow(name, Tags::None, tools), Err(name.len() - 1));
    }
}

#[test]
fn no_token_reaches_beyond_the_head_of_a_bare_call() {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["</s>", "\":\u{2581}{\"", "(\"", "er(\""].map(str::to_owned));
    let kinds: Vec<i32> = (0..260)
        .map(|id| {
            if id == 256 {
                3
            } else if id > 256 {
                1
            } else {
                6
            }
        })
        .collect();
    let mut writer = shard::gguf::Writer::new();
    writer.add_str("tokenizer.ggml.model", "llama").add_strs("tokenizer.ggml.tokens", &tokens);
    writer.add_f32s("tokenizer.ggml.scores", &[0.0; 260]).add_i32s("tokenizer.ggml.token_type", &kinds);
    writer.add_u32("tokenizer.ggml.eos_token_id", 256);
    let file = writer.start(Vec::new()).unwrap().finish().unwrap();
    let tokenizer = Tokenizer::from_gguf(shard::gguf::Gguf::from_bytes(file).unwrap().metadata()).unwrap();
    let constraints = Constraints::new(&tokenizer, 260, Tags::None).unwrap();
    for (said, token, may) in [
        ("{\"name\": \"weather\", \"parameters", 257, false),
        ("{\"name\": \"weather\", \"param", 257, true),
        ("{\"name", 257, true),
        ("[weather", 258, false),
        ("[weath", 259, false),
        ("[weath", 258, true),
        ("So weather", 258, true),
    ] {
        let mut constraint = constraints.constraint(&Format::Calls(tools())).unwrap().unwrap();
        for byte in said.bytes() {
            constraint.accept(&tokenizer, u32::from(byte)).unwrap();
        }
        let mut logits = vec![0.0; 260];
        constraint.mask(&tokenizer, &mut logits).unwrap();
        assert_eq!(logits[token] != IMPOSSIBLE, may, "{said} {}", tokens[token]);
    }
}

#[test]
fn marks_that_are_control_tokens_are_followed_by_control_tokens() {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let marks = [
        "</s>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ];
    tokens.extend(marks.map(str::to_owned));
    let kinds: Vec<i32> = (0..262).map(|id| if id >= 256 { 3 } else { 6 }).collect();
    let mut writer = shard::gguf::Writer::new();
    writer.add_str("tokenizer.ggml.model", "llama").add_strs("tokenizer.ggml.tokens", &tokens);
    writer.add_f32s("tokenizer.ggml.scores", &[0.0; 262]).add_i32s("tokenizer.ggml.token_type", &kinds);
    writer.add_u32("tokenizer.ggml.eos_token_id", 256);
    let file = writer.start(Vec::new()).unwrap().finish().unwrap();
    let gguf = shard::gguf::Gguf::from_bytes(file).unwrap();
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
    let constraints = Constraints::new(&tokenizer, 262, Tags::None).unwrap();
    let mut constraint = constraints.constraint(&Format::Calls(tools())).unwrap().unwrap();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let call = [
        &[257, 259][..],
        &bytes("functions.weather:0"),
        &[260],
        &bytes("{\"city\": \"Rome\"}"),
        &[261, 258],
        &bytes(" and"),
    ]
    .concat();
    for (at, id) in call.iter().enumerate() {
        let mut logits = vec![0.0; 262];
        constraint.mask(&tokenizer, &mut logits).unwrap();
        assert_ne!(logits[*id as usize], IMPOSSIBLE, "token {id} at {at}");
        constraint.accept(&tokenizer, *id).unwrap();
    }
}

#[test]
fn what_is_no_call_of_these_tools_cannot_come() {
    for (text, at) in [
        ("<tool_call>no", 11),
        ("<tool_call>{\"name\": \"rain", 21),
        ("<tool_call>{\"name\": \"weather\", \"arguments\": {\"town", 46),
        ("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo", 54),
        ("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}} done", 62),
        ("{\"name\": \"weather\", \"parameters\": {\"town", 36),
        ("\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo", 45),
        ("{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}, ", 50),
        (
            "{\"name\": \"tree\", \"parameters\": {\"next\": null}};{\"name\": \"weather\", \"arguments\": \"",
            80,
        ),
        ("{\"function\": {\"name\": \"weather\", \"parameters\": {\"town", 49),
        ("{\"name\": \"weather\", \"parameters\": 5", 34),
        ("<think>{</think>{\"name\": \"weather\", \"parameters\": {\"town", 52),
        ("[THINK] [/THINK] [weather(town", 26),
        ("<|python_start|>[weather(town", 25),
        ("<|python_start|>{\"name\": \"weather\", \"parameters\": {\"town", 52),
        (
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"name\": \"weather\", \
          \"parameters\": {\"town",
            103,
        ),
        ("[weather(town", 9),
        ("[weather(city=\"Oslo", 15),
        ("[weather()", 9),
        ("[weather(city=\"Rome\"), rain", 23),
        ("[weather(city=\"Rome\"); ", 21),
        ("<function=rain", 10),
        ("[TOOL_CALLS]rain", 12),
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.rain", 57),
        ("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"town", 73),
    ] {
        assert_eq!(follow(text, Tags::None, tools()), Err(at), "{text}");
    }
}

#[test]
fn a_schema_that_cannot_be_compiled_is_refused_with_the_tool_s_name() {
    let refused = |parameters: Value| {
        let tools = vec![tools().remove(0), tool("odd", parameters)];
        let constraints = Constraints::of_bytes(Tags::None).unwrap();
        constraints.constraint(&Format::Calls(tools)).err().unwrap().to_string()
    };
    let away = refused(json!({"type": "object", "$ref": "https://example.org/x"}));
    assert!(away.contains("`odd`"), "{away}");
    let deep = (0..80).fold(json!({"type": "integer"}), |inner, _| json!({"anyOf": [inner]}));
    let deep = refused(json!({"type": "object", "properties": {"x": deep}}));
    assert!(deep.contains("`odd`") && deep.contains("64 deep"), "{deep}");
    let many = json!({"type": "array", "items": {"type": "string"}, "maxItems": -1});
    let many = refused(json!({"type": "object", "properties": {"x": many}}));
    assert!(many.contains("`odd`"), "{many}");
}

/// A model that begins calls and otherwise writes anything: its tokens are drawn at random among those that may come.
#[test]
fn whatever_is_drawn_every_call_that_ends_is_sound() {
    let gguf = crate::library::parse(None).unwrap();
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
    let vocab = tokenizer.len();
    let constraints = Constraints::new(&tokenizer, vocab, Tags::None).unwrap();
    let plain = Encode { bos: false, special: false };
    let (mut random, mut ended) = (shard::synthetic::Random(7), 0);
    for round in 0..24 {
        let (mark, _) = MARKS[round % 4];
        let mut constraint = constraints.constraint(&Format::Calls(tools())).unwrap().unwrap();
        let mut bytes = Vec::new();
        for id in tokenizer.encode(mark, plain).unwrap() {
            let mut logits = vec![0.0; vocab];
            constraint.mask(&tokenizer, &mut logits).unwrap();
            assert_ne!(logits[id as usize], IMPOSSIBLE, "a mark may always be spelled");
            constraint.accept(&tokenizer, id).unwrap();
            bytes.extend(tokenizer.token_bytes(id));
        }
        let before = String::from_utf8_lossy(&bytes).into_owned();
        for _ in 0..200 {
            let Bound::Calls(calls) = &mut constraint.bound else { panic!("no calls") };
            if calls.within().is_none() {
                ended += 1;
                break;
            }
            let mut logits = vec![0.0; vocab];
            constraint.mask(&tokenizer, &mut logits).unwrap();
            let allowed: Vec<u32> =
                (0..vocab as u32).filter(|id| logits[*id as usize] != IMPOSSIBLE).collect();
            let id = allowed[random.below(allowed.len())];
            constraint.accept(&tokenizer, id).unwrap();
            bytes.extend(tokenizer.token_bytes(id));
        }
        let Bound::Calls(calls) = &mut constraint.bound else { panic!("no calls") };
        if calls.within().is_none() {
            sound(String::from_utf8(bytes).unwrap().trim_start().strip_prefix(before.trim_start()).unwrap());
        }
    }
    assert!(ended >= 12, "{ended} of 24 calls ended");
}

/// What stands behind a mark is a call of one of the tools.
fn sound(call: &str) {
    let body = call.trim_end_matches("</tool_call>").trim_end_matches("</function>").trim();
    let named = |name: &str, arguments: &Value| match name {
        "weather" => assert!(arguments["city"] == "Paris" || arguments["city"] == "Rome", "{call}"),
        "tree" => assert!(arguments.get("next").is_some(), "{call}"),
        _ => panic!("{call}"),
    };
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {call}"));
    if let Some(at) = body.find('{').filter(|_| !body.starts_with(['{', '['])) {
        return named(
            body[..at].trim_end().trim_end_matches('>').trim_end_matches("[ARGS]"),
            &value(&body[at..]),
        );
    }
    let calls = match value(body) {
        Value::Array(calls) => calls,
        one => vec![one],
    };
    for one in calls {
        let arguments = one.get("arguments").or(one.get("parameters")).unwrap();
        named(one["name"].as_str().unwrap(), arguments);
    }
}
