//! What people and programs around a node use: keys of other people, and its tools for another program's model.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use harness::{Shoal, binary};
use serde_json::{Value, json};

/// Says `messages` to `shoal mcp`, one after the other's answer, and gives the answers.
fn mcp(shoal: &Shoal, messages: &[Value]) -> Vec<Value> {
    let mut child = Command::new(binary())
        .arg("mcp")
        .env("SHOAL_HOME", shoal.home())
        .env("SHOAL_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("shoal starts");
    let mut to = child.stdin.take().expect("standard input is piped");
    let mut from = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let answers = messages
        .iter()
        .map(|message| {
            writeln!(to, "{message}").unwrap();
            serde_json::from_str(&from.next().expect("an answer").unwrap()).unwrap()
        })
        .collect();
    drop(to);
    assert!(child.wait().unwrap().success(), "it ends with its input");
    assert!(from.next().is_none(), "standard output has nothing but answers");
    answers
}

#[test]
fn tools_of_the_model_context_protocol_answer_as_the_command_does() {
    let shoal = Shoal::new();
    let ask = json!({"name": "ask", "arguments": {"prompt": "Tell me a story", "max_tokens": 8, "seed": 0}});
    let request = |id: u64, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let answers = mcp(
        &shoal,
        &[
            request(1, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}})),
            request(2, "tools/call", ask),
            request(3, "tools/call", json!({"name": "models"})),
        ],
    );
    assert_eq!(answers[0]["result"]["serverInfo"]["name"], "shoal");
    let said = answers[1]["result"]["content"][0]["text"].as_str().unwrap();
    let own = shoal.json(["run", "--json", "--max-tokens", "8", "Tell me a story"], "");
    assert_eq!(said.strip_suffix("\n[cut by max_tokens]").unwrap(), own["text"].as_str().unwrap());
    assert!(answers[2]["result"]["content"][0]["text"].as_str().unwrap().contains("minnow"));
}

/// A server of the Model Context Protocol in a few lines of shell: one tool, which says how often it was asked.
const LANTERN: &str = r#"
asked=0
while read -r line; do
    case $line in *'"id"'*) asked=$((asked + 1)) ;; esac
    case $line in
    *'"initialize"'*) said='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}' ;;
    *'"tools/list"'*) said='{"tools":[{"name":"light","description":"Lights the lantern","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) said='{"content":[{"type":"text","text":"lit, '$asked'"}]}' ;;
    *) continue ;;
    esac
    echo '{"jsonrpc":"2.0","id":'$asked',"result":'$said'}'
done
"#;

#[test]
fn a_conversation_calls_tools_that_the_user_confirms() {
    let shoal = Shoal::new();
    let file = shoal.home().join("lantern.sh");
    fs::write(&file, LANTERN).expect("a file");
    let server = format!("sh '{}'", file.display());
    let typed = "/tool light Is it dark?\ny\n/tool light Again\nno\n/tool knife Cut\n";
    let output = shoal.run_with(["chat", "--json", "--via", "auto", "-n", "40", "--mcp", &server], typed);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let (calls, results) = (of("tool_call"), of("tool_result"));
    assert!(calls.len() >= 2 && calls.len() == results.len(), "{said}");
    assert_eq!((&calls[0]["name"], &calls[0]["arguments"]), (&json!("light"), &json!({})), "{said}");
    assert_eq!(calls[0]["server"], server);
    assert_ne!(calls[0]["id"], calls[1]["id"], "{said}");
    assert_eq!(results[0]["content"], "lit, 3", "{said}");
    assert!(results[1..].iter().any(|result| result["content"] == "The user declined this call."), "{said}");
    // After a call the model answers; what names no tool of the server is no question.
    let ends: Vec<&Value> = of("done").iter().map(|event| &event["finish_reason"]).collect();
    assert_eq!(ends[0], "tool_calls");
    assert!(ends.iter().any(|end| *end != "tool_calls"), "{said}");
    assert!(of("error")[0]["message"].as_str().expect("why").contains("knife"), "{said}");
    assert!(!output.status.success() && errors.contains("not every message was answered"), "{errors}");
    let (_, errors) = shoal.fails(["chat", "--mcp", "true"], "Hello\n");
    assert!(errors.contains("the tools of `true`"), "{errors}");
    let twice = ["chat", "--mcp", &server, "--mcp", &server];
    let (_, errors) = shoal.fails(twice, "Hello\n");
    assert!(errors.contains("both have a tool"), "{errors}");
    shoal.fails(["chat", "--mcp", &server, "--logprobs", "1"], "Hello\n");
}

/// Keys as commands; what a server makes of them is tested where it is.
#[test]
fn a_key_is_shown_once_and_taken_back() {
    let shoal = Shoal::new();
    let key = shoal.json(["key", "add", "ann", "--tokens-per-day", "5", "--json"], "");
    let secret = key["key"].as_str().unwrap();
    assert!(secret.len() > 64, "{secret}");
    for file in fs::read_dir(shoal.home()).unwrap().flatten() {
        let text = fs::read(file.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&text).contains(secret), "{} has the key", file.path().display());
    }
    let list = shoal.json(["key", "list", "--json"], "");
    assert_eq!((&list[0]["name"], &list[0]["tokens_per_day"]), (&json!("ann"), &json!(5)));
    let (_, taken) = shoal.fails(["key", "add", "ann"], "");
    assert!(taken.contains("already"), "{taken}");
    shoal.ok(["key", "revoke", "ann"], "");
    assert_eq!(shoal.json(["key", "list", "--json"], "")[0]["revoked"], true);
    // Of another node on this machine, such as the service.
    let other = shoal.home().join("service");
    let home = other.to_str().unwrap();
    let key = shoal.json(["key", "add", "ben", "--home", home, "--json"], "");
    assert!(key["key"].is_string() && other.join("api-keys.json").exists());
    assert_eq!(shoal.json(["key", "list", "--home", home, "--json"], "")[0]["name"], "ben");
    assert_eq!(shoal.json(["key", "list", "--json"], "").as_array().unwrap().len(), 1);
}
