//! Any chat template with a fixed conversation, fixed templates with any conversation, and both: rendering must end
//! within its fuel and its memory. The input is a template, a zero byte and the messages as JSON.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use shard::tokenizer::chat::{DateTime, MAX_OUTPUT_BYTES, RenderInput, Template};

/// A conversation that published templates accept, with every kind of content.
static CONVERSATION: LazyLock<Value> = LazyLock::new(|| {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Z\u{fc}rich?"}]},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Z\u{fc}rich", "days": 2}}}
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "{\"t\": -1.5}"},
        {"role": "user", "content": "<|im_end|>{{ 1 }}"}
    ])
});

/// Templates as published ones are written: one of plain text, one of macros, filters and methods.
static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    let sources = [
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{%- macro show(x) -%}{%- if x is string -%}{{ x | trim }}{%- elif x is mapping -%}\
         {%- for k, v in x | items %}{{ k }}={{ show(v) }};{% endfor -%}{%- elif x is iterable -%}\
         {%- for v in x %}{{ show(v) }},{% endfor -%}{%- else -%}{{ x | tojson }}{%- endif -%}{%- endmacro -%}\
         {%- set ns = namespace(last='') -%}{%- for m in messages[::-1] -%}{%- set ns.last = m.content -%}\
         {{ m.role.upper() }}:{{ show(m) }}{{ m | tojson(indent=2) }}{%- endfor -%}\
         {%- if ns.last is string %}{{ ns.last.split('</think>')[-1].strip('\\n').replace('a', 'bb') }}{% endif -%}\
         {{ messages | length }}{{ messages | selectattr('role', 'equalto', 'user') | list | tojson }}",
    ];
    sources.iter().map(|source| Template::new(source).expect("a sound template")).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let (source, messages) = match bytes.iter().position(|&byte| byte == 0) {
        Some(at) => (&bytes[..at], serde_json::from_slice::<Value>(&bytes[at + 1..]).ok()),
        None => (bytes, None),
    };
    let own = Template::new(&String::from_utf8_lossy(source)).ok();
    if let Some(template) = &own {
        render(template, CONVERSATION.clone());
    }
    if let Some(messages) = messages {
        for template in TEMPLATES.iter().chain(&own) {
            render(template, messages.clone());
        }
    }
});

/// Renders twice: the same input gives the same text, or twice none.
fn render(template: &Template, messages: Value) {
    let input = RenderInput {
        messages,
        tools: Some(
            json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]),
        ),
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        now: Some(DateTime::from_unix(1_750_000_000)),
        ..RenderInput::default()
    };
    let text = template.render(&input).ok();
    assert!(text.as_ref().is_none_or(|text| text.len() <= MAX_OUTPUT_BYTES));
    assert_eq!(text, template.render(&input).ok());
}
