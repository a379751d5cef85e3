//! A `q8` session on one machine: the bits are those of its rounding boundaries, however the model is cut.

use std::fs;

use harness::Shoal;
use serde_json::Value;

const STORY: &str = "Tell me a story about a fox and a lantern";

#[test]
fn a_local_run_over_q8_is_the_session_of_its_cuts() {
    let shoal = Shoal::new();
    let run = |extra: &[&str]| {
        let mut args = vec!["run", "--json", "-n", "60"];
        args.extend(extra);
        args.push(STORY);
        shoal.json(args, "")["ids"].clone()
    };
    let rounded = run(&["--wire", "q8", "--cuts", "2,4,6"]);
    assert_eq!(run(&["--wire", "q8", "--cuts", "2,4,6", "--threads", "1", "--isa", "scalar"]), rounded);
    assert_eq!(run(&["--wire", "raw"]), run(&[]));

    let logits = shoal.home().join("logits.npy");
    let eval = |extra: &[&str]| {
        let mut args = vec!["eval", "--tokens", "5 80 1200 33 7", "--greedy", "12", "--json", "--logits"];
        args.push(logits.to_str().unwrap());
        args.extend(extra);
        (shoal.json(args, "")["greedy"].clone(), fs::read(&logits).unwrap())
    };
    let q8 = ["--wire", "q8", "--cuts", "2,4,6"];
    let whole = eval(&q8);
    assert_ne!(whole.1, eval(&[]).1, "rounding must show");
    for layers in ["2..6", "3..5", "4..8"] {
        assert!(eval(&[&q8[..], &["--layers", layers, "--chunk", "2"]].concat()) == whole, "cut at {layers}");
    }
}

#[test]
fn a_text_is_scored_with_and_without_rounding() {
    let shoal = Shoal::new();
    let answer = shoal.ok(["run", "-n", "200", STORY], "");
    let file = shoal.home().join("story.txt");
    fs::write(&file, format!("<|im_start|>user\n{STORY}<|im_end|>\n<|im_start|>assistant\n{answer}"))
        .unwrap();
    let score = |extra: &[&str]| -> Value {
        let mut args = vec!["eval", "--text", file.to_str().unwrap(), "--json"];
        args.extend(extra);
        shoal.json(args, "")
    };
    let number =
        |report: &Value, name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
    let raw = score(&[]);
    assert!(raw["mean_kl_nats"].is_null());
    // The model's own story is not random to it: 2048 tokens to choose from, and few of them likely.
    assert!((1.0..8.0).contains(&number(&raw, "perplexity")), "{raw}");
    let q8 = score(&["--wire", "q8", "--cuts", "2,6"]);
    assert_eq!(q8["perplexity"], raw["perplexity"]);
    let divergence = number(&q8, "mean_kl_nats");
    assert!(0.0 < divergence && divergence < 0.01, "{q8}");
    assert!(number(&q8, "worst_kl_nats") >= divergence);
    assert!((0.9..=1.0).contains(&number(&q8, "top1_agreement")), "{q8}");
    assert!((number(&q8, "perplexity_rounded") / number(&raw, "perplexity") - 1.0).abs() < 0.05, "{q8}");
}

#[test]
fn mistakes_about_wires_and_encodings_say_what_to_do() {
    let shoal = Shoal::new();
    for (args, what) in [
        (&["run", "--wire", "q8", "x"][..], "--cuts 2,4"),
        (&["run", "--cuts", "2", "x"], "such as c8"),
        (&["run", "--wire", "q8", "--cuts", "8", "x"], "between 1 and 7"),
        (&["eval"], "--tokens"),
        (&["eval", "--text", "/nowhere.txt"], "nowhere.txt"),
    ] {
        let (_, error) = shoal.fails(args.iter().copied(), "");
        assert!(error.contains(what), "{args:?}: {error} should mention {what}");
    }
    let file = shoal.home().join("latin1.txt");
    fs::write(&file, b"caf\xe9").unwrap();
    let (code, error) = shoal.fails(["eval", "--text", file.to_str().unwrap()], "");
    assert_eq!(code, 2);
    assert!(error.contains("not UTF-8 text: byte 3"), "{error}");
}
