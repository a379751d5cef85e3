//! Chat templates against transformers, and against templates that mean harm.
//!
//! The expected texts were rendered by transformers (data/template/make.py): in full for templates of our own, as
//! length and hash for published ones, which lie beside the repository, not in it.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};
use shard::tokenizer::chat::{DateTime, MAX_OUTPUT_BYTES, RenderInput, Template};

const OURS: &[(&str, &str)] = &[
    ("brackets.jinja", include_str!("data/template/brackets.jinja")),
    ("chatml.jinja", include_str!("data/template/chatml.jinja")),
    ("glm.jinja", include_str!("data/template/glm.jinja")),
    ("headers.jinja", include_str!("data/template/headers.jinja")),
    ("phi.jinja", include_str!("data/template/phi.jinja")),
    ("python.jinja", include_str!("data/template/python.jinja")),
    ("turns.jinja", include_str!("data/template/turns.jinja")),
];

const NOW: DateTime = DateTime { year: 2026, month: 3, day: 5, hour: 14, minute: 7, second: 9 };

/// The conversations by name.
fn conversations() -> BTreeMap<String, RenderInput> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/template/conversations.json")).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let input = |case: Value| {
        let input = RenderInput {
            messages: case["messages"].clone(),
            tools: case.get("tools").cloned(),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
            bos_token: text(&case["bos_token"]),
            eos_token: text(&case["eos_token"]),
            now: Some(NOW),
            extra: case["extra"].as_object().cloned().unwrap_or_default(),
        };
        (text(&case["name"]).unwrap(), input)
    };
    cases.into_iter().map(input).collect()
}

fn fnv(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{}:{:016x}", text.len(), text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Compares every conversation; `None` expected means that the template must refuse it.
fn check(
    name: &str,
    source: &str,
    expected: &Map<String, Value>,
    keep: impl Fn(&str) -> String,
) -> Vec<String> {
    let template = Template::new(source).unwrap_or_else(|error| panic!("{name}: {error}"));
    let conversations = conversations();
    assert_eq!(expected.len(), conversations.len(), "{name}");
    let mut wrong = Vec::new();
    for (case, input) in &conversations {
        let got = template.render(input);
        match (&got, expected[case].as_str()) {
            (Ok(text), Some(expected)) if keep(text) == expected => {}
            (Err(_), None) => {}
            (_, expected) => wrong.push(format!("--- {name}, {case}\n{got:?}\nexpected {expected:?}")),
        }
    }
    wrong
}

#[test]
fn our_templates_render_as_transformers_does() {
    let expected: Map<String, Value> =
        serde_json::from_str(include_str!("data/template/expected.json")).unwrap();
    let wrong: Vec<String> = OURS
        .iter()
        .flat_map(|(name, source)| check(name, source, expected[*name].as_object().unwrap(), str::to_owned))
        .collect();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn published_templates_render_as_transformers_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/templates");
    let expected: Map<String, Value> =
        serde_json::from_str(include_str!("data/template/published.json")).unwrap();
    let mut wrong = Vec::new();
    for (name, texts) in &expected {
        let Ok(source) = std::fs::read_to_string(folder.join(name)) else {
            println!("skipped: no {name} in {}", folder.display());
            continue;
        };
        wrong.extend(check(name, &source, texts.as_object().unwrap(), fnv));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn one_message() -> RenderInput {
    RenderInput {
        messages: serde_json::json!([{"role": "user", "content": "hi"}]),
        now: Some(NOW),
        ..RenderInput::default()
    }
}

fn render(source: &str) -> Result<String, String> {
    let text = |error: shard::Error| error.to_string();
    Template::new(source).map_err(text)?.render(&one_message()).map_err(text)
}

/// Each of these must end with an error, soon and in bounded memory: they loop, recurse, grow or reach outside.
fn hostile() -> Vec<String> {
    let doubling = |body: &str| format!("{{% set x = 'aaaaaaaaaaaaaaaa' %}}{}", body.repeat(64));
    let loop_of = |body: &str| {
        format!("{{% set ns = namespace(s='aaaa', l=[1]) %}}{{% for i in range(9999) %}}{body}{{% endfor %}}")
    };
    let huge_text = "x".repeat(200_000);
    let mut sources: Vec<String> = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{{ range(1000000000) | list }}",
        "{{ range(100000000000) | length }}",
        "{% for a in range(1000000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ n() }}{% endmacro %}{% macro n() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{% for a in [[1]] recursive %}{{ loop(a * 2 if a is sequence else [a]) }}{% endfor %}{% for a in range(99999) %}{{ 'x' * 99 }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 'a' * 99999999 }}",
        "{{ ('a' * 4000000) ~ ('a' * 4000000) }}",
        "{{ 'a' * 4000000 ~ 'a' * 4000000 ~ 'a' * 4000000 }}",
        "{{ 'a' * 3000000 + 'a' * 3000000 }}",
        "{{ ['a' * 3000000, 'b' * 3000000] | join('c' * 3000000) }}",
        "{{ ('a' * 3000) | replace('a', 'b' * 3000) }}",
        "{{ ('a' * 3000).replace('a', 'b' * 3000) }}",
        "{{ ('b' * 3000).join(['a'] * 3000) }}",
        "{{ [0] * 1000000000 }}",
        "{{ [0] * 99999999 }}",
        "{{ [[0] * 9999] * 9999 }}",
        "{{ ('a' * 9999).split('a') | length * 'x' * 9999 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '%.999999999f' | format(1.5) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' | format(999999999, 1) }}",
        "{{ '{:>999999999}'.format('x') }}",
        "{{ '{0:{1}}'.format('x', 999999999) ~ '{:99999999}'.format(1) }}",
        "{{ ('%s' * 9999) | format('a' * 99999) }}",
        "{{ ('{0}' * 9999).format('a' * 99999) }}",
        "{{ ('a\n' * 99999) | indent(99999) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ 2 ** 1000000000 }}",
        "{{ 10 ** 300 * 10 ** 300 }}",
        "{% include 'passwords' %}",
        "{% include 'passwords' ignore missing %}",
        "{% include ['a', '/etc/passwd'] ignore missing %}",
        "{% import 'passwords' as p %}",
        "{% from '/etc/passwd' import root %}",
        "{% extends 'base' %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ shoal_guard_limit('x') }}",
        "{% set shoal_guard_concat = 1 %}",
        "{{ lipsum(n=999999) }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ strftime_now('%c' * 999999) }}",
        "{{ raise_exception('no') }}",
        "{{ messages | pprint }}{{ messages | map('pprint') | list }}",
        "{% for x in none %}{% endfor %}",
        "{{ 1 // 0 }}{{ 1 % 0 }}",
        "{{ unknown_function() }}",
        "{{ nothing.at.all }}",
    ]
    .map(str::to_owned)
    .to_vec();
    sources.extend([
        doubling("{% set x = x ~ x %}"),
        doubling("{% set x = x + x %}"),
        doubling("{% set x = x * 2 %}"),
        doubling("{% set x = [x, x] %}") + "{{ x }}",
        doubling("{% set x = {'a': x, 'b': x} %}") + "{{ x | tojson }}",
        doubling("{% set x = (x, x) %}") + "{{ x ~ '' }}",
        doubling("{% set x = dict(a=x, b=x) %}") + "{{ x }}",
        doubling("{% set x = [x] + [x] %}") + "{{ x in 'abc' }}",
        doubling("{% set x = [x[0:], x[0:]] %}") + "{{ x }}",
        doubling("{% set x %}{{ x }}{{ x }}{% endset %}"),
        doubling("{% set x = '%s%s' | format(x, x) %}"),
        doubling("{% set x = x | replace('a', 'aa') %}"),
        doubling("{% set x = x | list | join('aa') %}"),
        doubling("{% set x = x | tojson | tojson %}"),
        loop_of("{% set ns.s = ns.s ~ ns.s %}"),
        loop_of("{% set ns.s = ns.s + ns.s %}"),
        loop_of("{% set ns.l = ns.l + ns.l %}"),
        loop_of("{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
        loop_of("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        loop_of(&huge_text),
        format!("{{% set c %}}{}{{% endset %}}", loop_of(&huge_text)),
        format!("{{% macro m() %}}{huge_text}{{% endmacro %}}{{% for i in range(9999) %}}{{{{ m() }}}}{{% endfor %}}"),
        format!("{}x{}", "{% if true %}".repeat(5000), "{% endif %}".repeat(5000)),
        format!("{}x{}", "{% for i in [1] %}".repeat(400), "{% endfor %}".repeat(400)),
        format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(50_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(50_000)),
        format!("{{{{ x{} }}}}", "|e".repeat(50_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(20_000)),
        format!("{{% if a %}}{}{{% endif %}}{{{{ nothing.at.all }}}}", "{% elif a %}".repeat(20_000)),
        format!("{{{{ {}nothing.at.all }}}}", "not ".repeat(1_900)),
        format!("{{{{ nothing.at.all{} }}}}", " - 1".repeat(990)),
        format!("{{% if a %}}{}{{% endif %}}{{{{ nothing.at.all }}}}", "{% elif a %}".repeat(500)),
        format!("{{{{ 1{} }}}}", " ~ 'aaaa'".repeat(9_000)) + &"{{ 'a' * 4000000 }}".repeat(2),
        "{{".repeat(50_000),
        "{%".repeat(50_000),
        "{#".repeat(50_000),
        "{{ '".repeat(20_000),
        "x".repeat(1 << 20),
    ]);
    sources
}

#[test]
fn hostile_templates_end_with_an_error() {
    let sources = hostile();
    assert!(sources.len() >= 80);
    for source in &sources {
        let head: String = source.chars().take(100).collect();
        let started = std::time::Instant::now();
        let result = render(source);
        let ms = started.elapsed().as_millis();
        match result {
            Ok(text) => panic!("{head}: rendered {} bytes", text.len()),
            Err(error) => {
                assert!(error.len() < 1000, "{head}: {} bytes of error", error.len());
                println!("{ms:5} ms  {head:.60}  {error:.100}");
            }
        }
    }
    if let Some(peak) = peak_kib() {
        println!("peak resident memory {} MiB", peak >> 10);
        assert!(peak < 1 << 20, "{peak} KiB");
    }
}

/// The most memory this process ever held, where the system tells.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn failures_name_the_line_and_what_the_template_says() {
    for (source, parts) in [
        ("a\nb\n{{ raise_exception('only users') }}", ["line 3", "only users"]),
        ("a\n{% if messages %}\n{{ messages[0].x.y }}{% endif %}", ["line 3", "undefined"]),
        ("a\n\n{% if %}", ["line 3", "chat_template"]),
        ("{% for m in messages %}", ["line 1", "chat_template"]),
        ("\n{{ 'x' | nothing_like_it }}", ["line 2", "nothing_like_it"]),
    ] {
        let error = render(source).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{source:?}: {error}");
    }
}

#[test]
fn long_conversations_have_fuel() {
    let message = |i: usize| serde_json::json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(100)});
    let messages = Value::from((0..2001).map(message).collect::<Vec<_>>());
    let input = RenderInput {
        messages,
        now: Some(NOW),
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        ..RenderInput::default()
    };
    for (name, source) in OURS.iter().filter(|(name, _)| *name != "python.jinja") {
        let text =
            Template::new(source).unwrap().render(&input).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.len() > 1_000_000 && text.len() < MAX_OUTPUT_BYTES, "{name}");
    }
}

#[test]
fn dates_follow_the_calendar() {
    for (seconds, expected) in [
        (0, "1970-01-01 00:00:00 Thursday 001"),
        (951_782_400, "2000-02-29 00:00:00 Tuesday 060"),
        (1_772_720_829, "2026-03-05 14:27:09 Thursday 064"),
        (4_107_542_399, "2100-02-28 23:59:59 Sunday 059"),
        (4_133_980_799, "2100-12-31 23:59:59 Friday 365"),
    ] {
        assert_eq!(DateTime::from_unix(seconds).strftime("%Y-%m-%d %H:%M:%S %A %j"), expected);
    }
    assert_eq!(NOW.strftime("%-d/%-m %e %I %p %q %"), "5/3  5 02 PM %q %");
}
