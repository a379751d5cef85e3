//! The commands as a newcomer types them, on the embedded model and on fixtures.

use std::fs;

use harness::{Shoal, data};
use serde_json::{Value, json};

fn fixture(name: &str) -> String {
    data("families").join(format!("{name}.gguf")).to_string_lossy().into_owned()
}

fn golden(name: &str) -> Value {
    let text = fs::read_to_string(data("families").join(format!("{name}.golden.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn tokens(ids: &Value) -> String {
    ids.as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_prompt_is_answered_without_any_setup_and_always_the_same() {
    let shoal = Shoal::new();
    let run = |threads: &str, extra: &[&str]| {
        let mut args = vec!["run", "--threads", threads, "--json", "-n", "40"];
        args.extend(extra);
        args.push("Tell me a story about a fox and a lantern");
        shoal.json(args, "")
    };
    let one = run("1", &[]);
    assert!(one["text"].as_str().unwrap().to_lowercase().contains("fox"), "{}", one["text"]);
    assert_eq!(one["ids"], run("2", &[])["ids"]);
    let seeded = ["--temperature", "1.0", "--seed", "7"];
    let varied = run("1", &seeded);
    assert_eq!(varied["ids"], run("2", &seeded)["ids"]);
    assert_ne!(varied["ids"], one["ids"]);
}

#[test]
fn the_prompt_may_come_from_standard_input_and_pieces_add_up_to_the_text() {
    let shoal = Shoal::new();
    let text = shoal.ok(["run", "--json", "-n", "30", "-"], "Tell me a story about an owl\n");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (done, pieces) = lines.split_last().unwrap();
    let joined: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert_eq!(done["text"], joined);
    assert_eq!(done["event"], "done");
}

#[test]
fn stop_strings_and_log_probabilities_are_honored() {
    let shoal = Shoal::new();
    let args =
        ["run", "--json", "--stop", ".", "--logprobs", "2", "Tell me a story about a fox and a lantern"];
    let text = shoal.ok(args, "");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (done, pieces) = lines.split_last().unwrap();
    assert_eq!(done["finish_reason"], "stop");
    assert!(!done["text"].as_str().unwrap().contains('.'));
    let first = &pieces[0];
    assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(first["top_logprobs"][0]["id"], first["id"]);
    assert!(first["logprob"].as_f64().unwrap() <= 0.0);
}

#[test]
fn a_conversation_keeps_what_it_has_computed() {
    let shoal = Shoal::new();
    let text =
        shoal.ok(["chat", "--json", "-n", "24"], "Tell me a story about a fox\nWhat color is the sky?\n");
    let done: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["event"] == "done")
        .collect();
    assert_eq!(done.len(), 2);
    assert_eq!(done[0]["reused_tokens"], 0);
    assert!(done[1]["reused_tokens"].as_u64() >= done[0]["prompt_tokens"].as_u64(), "{}", done[1]);
}

#[test]
fn eval_gives_the_reference_tokens_and_cuts_do_not_matter() {
    let shoal = Shoal::new();
    for family in ["llama3", "gemma2", "qwen3moe"] {
        let golden = golden(family);
        let prompt = &golden["prompts"]["medium"];
        let eval = |extra: &[&str]| {
            let (model, ids) = (fixture(family), tokens(&prompt["ids"]));
            let logits = shoal.home().join("logits.npy");
            let mut args =
                vec!["eval", "--model", &model, "--tokens", &ids, "--greedy", "32", "--json", "--logits"];
            args.push(logits.to_str().unwrap());
            args.extend(extra);
            let report = shoal.json(args, "");
            (report, fs::read(&logits).unwrap())
        };
        let (whole, logits) = eval(&[]);
        assert_eq!(whole["greedy"], prompt["greedy"], "{family}");
        assert_eq!(logits.len() % 64, golden["vocab_size"].as_u64().unwrap() as usize * 4 % 64);
        for extra in [&["--layers", "1..2"][..], &["--chunk", "7", "--threads", "2"], &["--isa", "scalar"]] {
            let (other, other_logits) = eval(extra);
            assert_eq!(other["greedy"], whole["greedy"], "{family} {extra:?}");
            assert_eq!(other_logits, logits, "{family} {extra:?}: logits differ");
        }
        assert_eq!(eval(&["--layers", "1..2"]).0["shards"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn tokenize_goes_both_ways() {
    let shoal = Shoal::new();
    let texts = json!(["Hello world", "", "naïve — 🦊\n\n", "<|im_end|>"]);
    let lists = shoal.json(["tokenize", "--plain", "--batch", "--json"], &texts.to_string());
    assert!(lists[3].as_array().unwrap().len() > 1, "special text stays text");
    let back = shoal.json(["tokenize", "--decode", "--batch", "--json"], &lists.to_string());
    assert_eq!(back, texts);
    let special = shoal.json(["tokenize", "--json", "<|im_end|>"], "");
    assert_eq!(special.as_array().unwrap().len(), 1);
    let words = shoal.ok(["tokenize", "Hello world"], "");
    assert_eq!(shoal.ok(["tokenize", "--decode", words.trim()], ""), "Hello world\n");
}

#[test]
fn template_renders_what_the_model_reads() {
    let shoal = Shoal::new();
    let input = json!({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true});
    let text = shoal.ok(["template", "--input", "-"], &input.to_string());
    assert!(text.contains("Hi") && text.trim_end().ends_with("assistant"), "{text:?}");
    let file = shoal.home().join("t.jinja");
    fs::write(&file, "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
        .unwrap();
    let input = json!({"messages": [{"role": "user", "content": "Hi"}], "bos_token": "<s>"});
    let args = ["template", "--template", file.to_str().unwrap(), "--input", "-", "--json"];
    assert_eq!(shoal.json(args, &input.to_string())["text"], "<s>[user] Hi");
    fs::write(&file, "{{ raise_exception('no system message') }}").unwrap();
    let (code, error) =
        shoal.fails(["template", "--template", file.to_str().unwrap(), "--input", "-"], &input.to_string());
    assert_eq!(code, 1);
    assert!(error.contains("no system message"), "{error}");
}

#[test]
fn models_are_added_listed_inspected_and_forgotten() {
    let shoal = Shoal::new();
    let added = shoal.json(["model", "add", &fixture("qwen2"), "--name", "tiny", "--json"], "");
    let names = |list: &Value| list.as_array().unwrap().iter().map(|m| m["name"].clone()).collect::<Vec<_>>();
    let list = shoal.json(["model", "list", "--json"], "");
    assert_eq!(names(&list), ["minnow", "tiny"]);
    assert_eq!(list[1]["id"], added["id"]);
    assert_eq!(added["id"], blake3_of(&fixture("qwen2")));
    assert_eq!(list[1]["missing"], false);
    let report = shoal.json(["model", "inspect", "tiny", "--json", "--tensors"], "");
    assert_eq!((&report["architecture"], &report["runs_here"]), (&json!("qwen2"), &json!(true)));
    assert_eq!(report["tensor_list"].as_array().unwrap().len() as u64, report["tensors"].as_u64().unwrap());
    shoal.ok(["model", "rm", "tiny"], "");
    let (code, error) = shoal.fails(["run", "--model", "tiny", "hello"], "");
    assert_eq!(code, 2);
    assert!(error.contains("minnow"), "{error}");
}

#[test]
fn a_named_file_that_changed_or_is_gone_is_not_taken_for_the_model() {
    let shoal = Shoal::new();
    let file = shoal.home().join("mine.gguf");
    let path = file.to_str().unwrap();
    fs::copy(fixture("qwen2"), &file).unwrap();
    shoal.ok(["model", "add", path], "");
    let eval = ["eval", "--model", "mine", "--tokens", "1 2 3", "--json"];
    let before = shoal.json(eval, "");
    // Written again with the same bytes: the same model.
    fs::write(&file, fs::read(fixture("qwen2")).unwrap()).unwrap();
    assert_eq!(shoal.json(eval, "")["logit"], before["logit"]);
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, error) = shoal.fails(eval, "");
    assert_eq!(code, 2);
    assert!(error.contains("has changed") && error.contains("model rm mine"), "{error}");
    fs::remove_file(&file).unwrap();
    assert_eq!(shoal.json(["model", "list", "--json"], "")[1]["missing"], true);
    assert!(shoal.fails(eval, "").1.contains("mine.gguf"));
}

fn blake3_of(path: &str) -> String {
    blake3::hash(&fs::read(path).unwrap()).to_hex().to_string()
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let shoal = Shoal::new();
    let damaged = shoal.home().join("damaged.gguf");
    let whole = fs::read(fixture("qwen2")).unwrap();
    fs::write(&damaged, &whole[..whole.len() / 2]).unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", ""], 2, "empty"),
        (&["run", "--model", "nowhere.gguf", "hi"], 2, "shoal model list"),
        (&["run", "--model", damaged.to_str().unwrap(), "hi"], 1, "malformed"),
        (&["run", "--temperature", "-1", "hi"], 2, "temperature"),
        (&["run", "--temperature", "9", "hi"], 2, "between 0 and 2"),
        (&["chat", "--presence-penalty", "3"], 2, "between -2 and 2"),
        (&["run", "--top-p", "7", "hi"], 2, "--top-p"),
        (&["serve", "--alias", "gpt-4o"], 2, "gpt-4o=minnow"),
        (&["serve", "--allow-origin", "*"], 2, "https://app.example"),
        (&["serve", "--allow-origin", "https://a.example", "--no-token"], 2, "--no-token"),
        (&["stauts"], 2, "status"),
        (&["model", "lst"], 2, "list"),
        (&["plan", "--mode", "open", "hi"], 2, "shoal join"),
        (&["run", "--isa", "mmx", "hi"], 2, "scalar"),
        (&["run", "--device", "tpu", "hi"], 2, "choose auto, cpu"),
        (&["run", "--device", "cuda:7", "hi"], 1, "build with `--features cuda`"),
        (&["bench", "--device", "metal"], 1, "build with `--features metal`"),
        (&["eval", "--tokens", "99999999"], 2, "vocabulary"),
        (&["eval", "--tokens", "1 x"], 2, "not a token id"),
        (&["eval", "--tokens", "1", "--layers", "3..1"], 2, "A..B"),
        (&["bench", "--shape", "llama-9000b"], 2, "llama-1b"),
        (&["bench", "--shape", "llama-1b", "--format", "q77"], 2, "q4_0"),
        (&["tokenize", "--batch", "--json", "[1"], 2, "JSON"),
    ];
    for (args, code, words) in cases {
        let (exit, error) = shoal.fails(*args, "");
        assert_eq!(exit, *code, "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

/// Whatever opens a model says the same of one that is not there, and ends with the same code.
#[test]
fn a_model_that_is_not_there_is_the_same_mistake_everywhere() {
    let shoal = Shoal::new();
    for args in [
        &["run", "--model", "nowhere.gguf", "hi"][..],
        &["chat", "--model", "nowhere.gguf"],
        &["plan", "--model", "nowhere.gguf", "hi"],
        &["serve", "--model", "nowhere.gguf", "--listen", "127.0.0.1:0"],
        &["join", "--model", "nowhere.gguf", "--yes"],
        &["up", "--local", "2", "--model", "nowhere.gguf", "--run", "hi"],
        &["bench", "--model", "nowhere.gguf"],
        &["eval", "--model", "nowhere.gguf", "--tokens", "1"],
        &["tokenize", "--model", "nowhere.gguf", "hi"],
        &["template", "--model", "nowhere.gguf", "--input", "nowhere.json"],
        &["model", "inspect", "nowhere.gguf"],
        &["model", "add", "nowhere.gguf"],
    ] {
        let (exit, error) = shoal.fails(args, "");
        assert_eq!(exit, 2, "{args:?}: {error}");
        assert!(error.contains("there is no file") && error.contains("nowhere.gguf"), "{args:?}: {error}");
    }
}

#[test]
fn a_plan_needs_no_node() {
    let shoal = Shoal::new();
    let plan = shoal.json(["plan", "--json", "-n", "10", "Tell me a story"], "");
    assert!(plan["local"]["tok_s"].as_f64().is_some_and(|speed| speed > 0.0), "{plan}");
    assert!(plan["as_asked"]["impossible"].as_str().is_some_and(|why| why.contains("shoal join")), "{plan}");
    assert_eq!((&plan["expected_tokens"], &plan["local_wins"]), (&json!(10), &json!(true)));
    assert!(plan["prompt_tokens"].as_u64() > Some(3) && plan["stages"][0]["start"] == 0, "{plan}");
    let text = shoal.ok(["plan", "Tell me a story"], "");
    assert!(text.contains("here alone") && text.contains("tok/s"), "{text}");
}

#[test]
fn selftest_passes_and_bench_reports_every_figure() {
    let shoal = Shoal::new();
    let report = shoal.json(["selftest", "--json"], "");
    assert_eq!((&report["class"], &report["passed"]), (&json!("d1"), &json!(true)), "{report}");
    let args = ["bench", "--prompt-tokens", "32", "--decode-tokens", "8", "--runs", "1", "--json"];
    let report = shoal.json(args, "");
    let numbers = [
        "prefill_tok_s",
        "decode_tok_s",
        "ttft_ms",
        "token_p50_ms",
        "token_p95_ms",
        "mb_per_token",
        "effective_gb_s",
        "read_gb_s",
        "read_share",
        "kv_hits",
        "kv_misses",
        "threads",
        "load_ms",
    ];
    for key in numbers {
        assert!(report[key].as_f64().is_some_and(|n| n > 0.0), "{key}: {}", report[key]);
    }
    assert!(report["isa"].is_string() && report["model"] == "minnow" && report["format"] == "q8_0");
}
