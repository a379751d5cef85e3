//! What node/docs/privacy.md says is what the code measures.

use std::fs;

use harness::{Shoal, root};

/// Its table has a row `| head | raw | q8 |` per head, in percent of the tokens of the built-in text.
#[test]
fn the_page_quotes_the_inversion_rate_that_the_audit_measures() {
    let shoal = Shoal::new();
    let page = fs::read_to_string(root().join("node/docs/privacy.md")).unwrap();
    for head in ["1", "2"] {
        let report = shoal.json(["privacy", "audit", "--head", head, "--json"], "");
        let percent = |wire: &str| format!("{:.0} %", 100.0 * report[wire]["share"].as_f64().unwrap());
        let row = format!("| {head} | {} | {} |", percent("raw"), percent("q8"));
        assert!(page.contains(&row), "the page lacks \"{row}\": {report}");
        assert!(report["tokens"].as_u64().unwrap() >= 40, "{report}");
    }
    for promise in ["cannot be read", "stays private", "anonymous"] {
        assert!(!page.contains(promise), "the page promises \"{promise}\"");
    }
}

#[test]
fn an_audit_reads_any_text_and_says_what_it_cannot_do() {
    let shoal = Shoal::new();
    let secret = "The code of the door is 4711.";
    let report = shoal.json(["privacy", "audit", "--head", "7", "--text", "-", "--json"], secret);
    for wire in ["raw", "q8"] {
        let found = report[wire]["text"].as_str().unwrap();
        assert_eq!(found == secret, report[wire]["recovered"] == report["tokens"], "{report}");
        assert_eq!(report[wire]["share"], 1.0, "{report}");
    }
    let short = shoal.json(["privacy", "audit", "--tokens", "3", "--json"], "");
    assert_eq!(short["tokens"], 3);
    let text = shoal.ok(["privacy", "audit", "--tokens", "3"], "");
    assert!(text.lines().last().unwrap().contains("all of the text"), "{text}");
    for head in ["0", "8"] {
        let (code, error) = shoal.fails(["privacy", "audit", "--head", head], "");
        assert_eq!(code, 2);
        assert!(error.contains("1 to 7"), "{error}");
    }
    assert!(shoal.fails(["privacy", "audit", "--text", "-"], "").1.contains("at least 1"));
}
