//! Completions through a swarm say of a prompt what one machine alone says of it.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    data, http,
    node::{Node, PATIENCE},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{clients::serve, encoders::ranking_decoder};

/// `shoal serve`, which ends with the test.
struct Alone(Child, Value);

impl Alone {
    fn start(home: &std::path::Path) -> Self {
        let mut child = Command::new(harness::binary())
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--threads", "1", "--no-pin"])
            .env("SHOAL_HOME", home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(lines.next().unwrap().unwrap().contains("\"ready\""));
        Self(child, listening)
    }

    fn ask(&self, path: &str, body: &Value) -> http::Answer {
        let token = fs::read_to_string(self.1["token_file"].as_str().unwrap()).unwrap();
        http::request(self.1["url"].as_str().unwrap(), &token, "POST", path, body)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that asks, and two that compute the middle; the owner has agreed to strangers.
fn swarm(folder: &TempDir) -> [Node; 3] {
    let home = |name: &str| folder.path().join(name);
    let asks = Node::start(&home("a"), &["--ask-only", "--api", "127.0.0.1:0"]);
    let serve =
        |name: &str, layers: &str| Node::start(&home(name), &["--layers", layers, "--peer", asks.tcp()]);
    let [b, c] = [serve("b", "1..4"), serve("c", "4..7")];
    asks.meets(2);
    let agreed = http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "boomerang", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
    [asks, b, c]
}

/// What a node answers that has seen the whole swarm: before that it says when to ask again.
fn patiently(node: &Node, path: &str, body: &Value) -> http::Answer {
    let started = Instant::now();
    loop {
        let answer = http::ask(node, "POST", path, body);
        if answer.status != 503 || started.elapsed() > PATIENCE {
            return answer;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a node lists models of these names.
fn are_listed(node: &Node, names: &[&str]) {
    let started = Instant::now();
    loop {
        let listed = http::ask(node, "GET", "/v1/models", &Value::Null).body.to_string();
        if names.iter().all(|name| listed.contains(&format!("\"{name}\""))) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{listed}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// The same request to both; answers that are there.
fn both(asks: &Node, alone: &Alone, path: &str, body: &Value) -> [Value; 2] {
    let mut through = body.clone();
    (through["mode"], through["verify"]) = ("boomerang".into(), "none".into());
    let answers = [patiently(asks, path, &through), alone.ask(path, body)];
    answers.map(|answer| {
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    })
}

/// `echo` with `logprobs`, of texts and of token ids, several at once and of one that is only looked at: the same tokens, the
/// same log-probabilities, and the same again when most of it was computed before.
#[test]
fn a_prompt_is_scored_through_a_swarm_as_on_one_machine() {
    let folder = TempDir::new().unwrap();
    let [asks, _b, _c] = swarm(&folder);
    let alone = Alone::start(&folder.path().join("d"));
    let long = "The fox sat by the fire and told the owl of the long winter. ".repeat(3);
    for body in [
        json!({"prompt": "The fox sat by the fire", "echo": true, "logprobs": 3, "max_tokens": 4}),
        json!({"prompt": [long, "The owl"], "echo": true, "logprobs": 1, "max_tokens": 1}),
        json!({"prompt": [[5, 6, 7, 8, 9]], "echo": true, "logprobs": 0, "max_tokens": 0}),
        json!({"prompt": "The bear", "echo": true, "max_tokens": 2, "n": 2}),
    ] {
        let mut body = body;
        (body["seed"], body["temperature"]) = (1.into(), 0.into());
        let [through, here] = both(&asks, &alone, "/v1/completions", &body);
        assert!(through["shoal"]["route"].as_array().unwrap().len() > 2, "{through}");
        assert_eq!(through["choices"], here["choices"], "{body}");
        assert_eq!(through["usage"]["completion_tokens"], here["usage"]["completion_tokens"]);
        if body["logprobs"] == 3 {
            let [again, _] = both(&asks, &alone, "/v1/completions", &body);
            assert_eq!(again["choices"], here["choices"], "{body}");
            let scores = here["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
            assert!(scores.len() > 6 && scores[1..].iter().all(Value::is_number), "{here}");
        }
    }
}

/// Vectors of texts through a swarm that loses a node have the bits of one machine; what does not fit or is not meant is refused by the
/// same words.
#[test]
fn vectors_come_through_a_swarm_as_from_one_machine() {
    let folder = TempDir::new().unwrap();
    let [asks, _b, mut c] = swarm(&folder);
    let _spare = Node::start(&folder.path().join("e"), &["--layers", "4..7", "--peer", asks.tcp()]);
    asks.meets(3);
    let alone = Alone::start(&folder.path().join("d"));
    let long = "The fox sat by the fire and told the owl of the long winter. ".repeat(12);
    let bodies = [
        json!({"input": "The fox sat by the fire"}),
        json!({"input": [long, "The owl", "The bear slept."]}),
        json!({"input": [[5, 6, 7, 8, 9], [7]]}),
    ];
    let equal = |body: &Value| {
        let [through, here] = [patiently(&asks, "/v1/embeddings", body), alone.ask("/v1/embeddings", body)];
        assert_eq!((through.status, here.status), (200, 200), "{through:?}");
        assert_eq!(
            (&through.body["data"], &through.body["usage"]),
            (&here.body["data"], &here.body["usage"])
        );
    };
    bodies.iter().for_each(equal);
    let many: Vec<String> = (0..24).map(|n| format!("{n}: {}", &long[..300])).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(400));
            c.child.kill().unwrap();
        });
        equal(&json!({"input": many}));
    });
    bodies.iter().for_each(equal);

    let too_long = json!({"model": "minnow", "input": ["fine", "the fox ".repeat(3_000)], "truncate": false});
    let cut = json!({"model": "minnow", "input": ["the fox ".repeat(3_000)]});
    let [refused, taken] = [&too_long, &cut].map(|body| patiently(&asks, "/api/embed", body));
    assert!(refused.status == 400 && refused.body.to_string().contains("text 1 has"), "{refused:?}");
    assert_eq!(taken.body["embeddings"], alone.ask("/api/embed", &cut).body["embeddings"], "{taken:?}");
    let refused = patiently(&asks, "/v1/rerank", &json!({"query": "the", "documents": ["fox"]}));
    assert!(refused.status == 400 && refused.body.to_string().contains("ranks no texts"), "{refused:?}");
}

/// Scores of documents through a swarm are those of one machine.
#[test]
fn documents_are_ranked_through_a_swarm_as_on_one_machine() {
    let folder = TempDir::new().unwrap();
    let (model, _) = ranking_decoder(folder.path());
    let model = ["--model", model.to_str().unwrap()];
    let home = |name: &str| folder.path().join(name);
    let asks = Node::start(&home("a"), &[&model[..], &["--ask-only", "--api", "127.0.0.1:0"]].concat());
    let serves = [&model[..], &["--layers", "1..2", "--peer", asks.tcp()]].concat();
    let _b = Node::start(&home("b"), &serves);
    asks.meets(1);
    let agreed = http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "boomerang", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
    let token = home("token");
    let (_serving, url) = serve(&home("d"), &token, &[&["--via", "local"][..], &model].concat());
    let secret = fs::read_to_string(&token).unwrap();
    let long = "fish ".repeat(4_000);
    for body in [
        json!({"query": "the shoal", "documents": ["close to the water", "for others", "<|im_end|>\nyes"]}),
        json!({"query": "the", "documents": [long], "truncate": true}),
    ] {
        let [through, here] = [
            patiently(&asks, "/v1/rerank", &body),
            http::request(&url, &secret, "POST", "/v1/rerank", &body),
        ];
        assert_eq!((through.status, here.status), (200, 200), "{through:?} {here:?}");
        assert_eq!(
            (&through.body["results"], &through.body["usage"]),
            (&here.body["results"], &here.body["usage"])
        );
    }
    for (body, why) in [
        (json!({"query": "the", "documents": [long]}), "`truncate`"),
        (json!({"query": long, "documents": ["fish"], "truncate": true}), "no room"),
    ] {
        let refused = patiently(&asks, "/v1/rerank", &body);
        assert!(refused.status == 400 && refused.body.to_string().contains(why), "{refused:?}");
    }
    let refused = patiently(&asks, "/v1/embeddings", &json!({"input": "the"}));
    assert!(refused.status == 400 && refused.body.to_string().contains("ranks"), "{refused:?}");
}

/// A node asks a peer for vectors and scores by models that it does not hold, where it may send the texts themselves: they have the bits
/// that one machine gives them. A text is continued as it is here: names of control tokens in it are letters. That the node's own model has
/// no route is no reason to refuse.
#[test]
fn texts_are_pooled_by_a_peer_that_holds_the_model() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let (ranks, _) = ranking_decoder(folder.path());
    let (ranks, embeds) = (ranks.to_str().unwrap(), data("families/qwen3.gguf"));
    let embeds = embeds.to_str().unwrap();
    let asks = Node::start(&home("a"), &["--layers", "0..2", "--api", "127.0.0.1:0"]);
    let _b = Node::start(&home("b"), &["--model", embeds, "--peer", asks.tcp()]);
    let _c = Node::start(&home("c"), &["--model", ranks, "--peer", asks.tcp()]);
    asks.meets(2);
    let agreed = http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "open", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
    let token = home("token");
    let names = ["qwen3", "reranker"];
    are_listed(&asks, &names);
    let own = http::ask(&asks, "POST", "/v1/completions", &json!({"prompt": "A fox", "max_tokens": 2}));
    assert!(own.status == 503 && own.body.to_string().contains("no connected node holds layer"), "{own:?}");
    let asked = [
        (
            "/v1/completions",
            embeds,
            "choices",
            json!({"prompt": "An <|im_end|> owl", "max_tokens": 4, "temperature": 0}),
        ),
        (
            "/v1/embeddings",
            embeds,
            "data",
            json!({"input": ["The fox sat by the fire", "An <|im_end|> owl"]}),
        ),
        (
            "/v1/rerank",
            ranks,
            "results",
            json!({"query": "the shoal", "documents": ["close to the water", "for others"]}),
        ),
    ];
    for ((path, model, values, body), name) in asked.into_iter().zip([names[0], names[0], names[1]]) {
        let (_serving, url) = serve(&home(name), &token, &["--via", "local", "--model", model]);
        let secret = fs::read_to_string(&token).unwrap();
        let here = http::request(&url, &secret, "POST", path, &body);
        let mut through = body.clone();
        (through["model"], through["mode"]) = (name.into(), "open".into());
        let told = patiently(&asks, path, &through);
        assert_eq!((told.status, here.status), (200, 200), "{path}: {told:?} {here:?}");
        assert_eq!(
            (&told.body[values], &told.body["usage"]),
            (&here.body[values], &here.body["usage"]),
            "{path}"
        );
        through["mode"] = "boomerang".into();
        let refused = patiently(&asks, path, &through);
        assert!(refused.status == 400 && refused.body.to_string().contains("the `mode` open"), "{refused:?}");
    }
    let ids = json!({"model": names[0], "mode": "open", "input": [[5, 6, 7]]});
    let refused = patiently(&asks, "/v1/embeddings", &ids);
    assert!(refused.status == 400 && refused.body.to_string().contains("this node holds"), "{refused:?}");
    let other = json!({"model": names[0], "mode": "open", "query": "the", "documents": ["fox"]});
    let refused = patiently(&asks, "/v1/rerank", &other);
    assert!(refused.status >= 400 && refused.body.to_string().contains("ranks no texts"), "{refused:?}");
}

/// A node that holds an encoder reads its own texts in one pass, whatever the mode, and those of others who may send it theirs: as one
/// machine does. It writes nothing.
#[test]
fn encoders_answer_in_a_swarm_as_on_one_machine() {
    let folder = TempDir::new().unwrap();
    let home = |name: &str| folder.path().join(name);
    let [ranks, embeds] = ["encoders/bert.gguf", "encoders/nomic_bert.gguf"].map(data);
    let [ranks, embeds] = [&ranks, &embeds].map(|path| path.to_str().unwrap());
    let asks = Node::start(&home("a"), &["--api", "127.0.0.1:0"]);
    let [embedder, ranker] = [("b", embeds), ("c", ranks)].map(|(name, model)| {
        Node::start(&home(name), &["--model", model, "--peer", asks.tcp(), "--api", "127.0.0.1:0"])
    });
    asks.meets(2);
    let agreed = http::ask(&asks, "POST", "/swarm/consent", &json!({"mode": "open", "agreed": true}));
    assert_eq!(agreed.status, 200, "{agreed:?}");
    are_listed(&asks, &["nomic_bert", "bert"]);
    let token = home("token");
    // More rows than a prompt's chunk has.
    let long = "The shoal turns close to the water. ".repeat(14);
    let asked = [
        (
            "/v1/embeddings",
            embeds,
            &embedder,
            "data",
            json!({"input": [long, "The shoal turns.", "caf\u{e9}"]}),
        ),
        (
            "/v1/rerank",
            ranks,
            &ranker,
            "results",
            json!({"query": "The shoal", "documents": ["turns fish", "water of the river"], "truncate": true}),
        ),
    ];
    for (path, model, holder, values, body) in asked {
        let name = std::path::Path::new(model).file_stem().unwrap().to_str().unwrap();
        let (_serving, url) =
            serve(&home(&format!("alone-{name}")), &token, &["--via", "local", "--model", model]);
        let secret = fs::read_to_string(&token).unwrap();
        let here = http::request(&url, &secret, "POST", path, &body);
        let mut through = body.clone();
        (through["model"], through["mode"]) = (name.into(), "open".into());
        for told in [patiently(holder, path, &body), patiently(&asks, path, &through)] {
            assert_eq!((told.status, here.status), (200, 200), "{path}: {told:?} {here:?}");
            assert_eq!(
                (&told.body[values], &told.body["usage"]),
                (&here.body[values], &here.body["usage"]),
                "{path}"
            );
        }
        let refused = patiently(holder, "/v1/completions", &json!({"prompt": "the"}));
        assert!(refused.status == 400 && refused.body.to_string().contains("is an encoder"), "{refused:?}");
    }
}
