//! A model that is not cut (Gemma 4 E2B and E4B): beside another node that holds it, a node answers with all of its layers
//! itself, in every mode, and the tokens are those of one process.

use harness::{Shoal, data, node::Node, prompt::Prompt};
use tempfile::TempDir;

const ASK: [&str; 8] =
    ["-n", "12", "--raw", "--temperature", "0.9", "--seed", "3", "Once upon a time a little owl counted"];

#[test]
fn a_model_that_is_not_cut_stays_where_it_is_asked() {
    let folder = TempDir::new().unwrap();
    let path = data("families/gemma4_e.gguf");
    let path = path.to_str().unwrap();
    let expected =
        Shoal::new().json(["run", "--json", "--model", path].into_iter().chain(ASK), "")["ids"].clone();
    assert_eq!(expected.as_array().unwrap().len(), 12, "{expected}");
    let asks = Node::start(&folder.path().join("asks"), &["--model", path]);
    let other = Node::start(&folder.path().join("other"), &["--model", path, "--peer", asks.tcp()]);
    asks.meets(1);
    for mode in [&["--mode", "boomerang"][..], &["--mode", "trusted", "--trust", &other.name]] {
        let mut prompt = Prompt::run(&asks.home, mode.iter().chain(&ASK));
        let line = prompt.ends();
        assert_eq!(line["ids"], expected, "{mode:?}: {line}");
        assert_eq!(prompt.strangers(&asks.name), [""; 0], "{mode:?}: {}", prompt.route);
        assert_eq!(line["faults"].as_array().map(Vec::len), Some(0), "{mode:?}: {line}");
    }
}
