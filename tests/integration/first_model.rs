//! The way to a first model: signed catalogs, references to other registries, files of other programs.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{
    Shoal,
    node::{Node, PATIENCE},
    registry::Registry,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The model of the binary under another name, which makes it another model.
fn story() -> Vec<u8> {
    let mut bytes = node::library::embedded_bytes().to_vec();
    let key = b"general.name";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it has a name");
    // Key, u32 type, u64 length, text.
    bytes[at + key.len() + 12] ^= 0x20;
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The first tokens of the story that both models tell, which differ in their name only.
fn tokens(line: &Value) -> &Value {
    assert_eq!(line["event"], "done", "{line}");
    &line["ids"]
}

#[test]
fn a_reference_to_hugging_face_is_told_agreed_to_fetched_through_cuts_and_answers() {
    let model = story();
    let site = Registry::start(model.clone(), sha256(&model), 2, model.len() / 3);
    let (shoal, url) = (Shoal::new(), site.url());
    let endpoint = [("HF_ENDPOINT", url.as_str())];
    let name = "hf.co/me/mine-GGUF:Q8_0";
    let ask = ["run", name, "Tell me a story", "--max-tokens", "8", "--json"];

    // Nothing is fetched before size and license were agreed to.
    let refused = shoal.run_in(ask, "", &endpoint);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("apache-2.0") && said.contains("MiB") && said.contains("--yes"), "{said}");
    let agreed = [&ask[..], &["--yes"]].concat();
    let answer = shoal.json_in(&agreed, "", &endpoint);
    let own = shoal.json(["run", "Tell me a story", "--max-tokens", "8", "--json"], "");
    assert_eq!(tokens(&answer), tokens(&own));

    // The connection was cut twice, and what had come was not fetched again.
    let resumed = site.asked().iter().filter(|asked| asked.contains("store") && asked.ends_with('-')).count();
    assert_eq!(resumed, 2, "{:?}", site.asked());
    let probed = 2;
    assert!(site.sent() <= model.len() as u64 + probed, "{} of {}", site.sent(), model.len());
    let list = shoal.json(["model", "list", "--json"], "");
    assert_eq!((&list[1]["id"], &list[1]["name"]), (&Value::from(id_of(&model)), &"mine-GGUF:Q8_0".into()));

    // From now on it is here, and no registry is asked.
    let before = site.asked().len();
    let again = shoal.json_in(&agreed, "", &endpoint);
    assert_eq!((tokens(&again), site.asked().len()), (tokens(&own), before));
    let (_, missing) = shoal.fails(["model", "pull", "hf.co/me", "--yes"], "");
    assert!(missing.contains("hf.co/OWNER/NAME"), "{missing}");
}

#[test]
fn an_ollama_manifest_leads_to_a_blob_and_a_wrong_one_is_refused() {
    let model = story();
    let site = Registry::start(model.clone(), sha256(&model), 0, 0);
    let (shoal, url) = (Shoal::new(), site.url());
    let pull = ["model", "pull", "ollama://mine", "--ollama-registry", &url, "--yes", "--json"];
    let text = shoal.ok(pull, "");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["license"], "MIT License, Copyright (c) A Publisher");
    assert_eq!(lines.last().unwrap()["id"], id_of(&model));
    assert_eq!(lines.last().unwrap()["name"], "mine:latest");

    let mut other = model.clone();
    *other.last_mut().unwrap() ^= 1;
    let site = Registry::start(other, sha256(&model), 0, 0);
    let (shoal, url) = (Shoal::new(), site.url());
    let (code, why) = shoal.fails(["model", "pull", "ollama://mine", "--ollama-registry", &url, "--yes"], "");
    assert!(code == 1 && why.contains("SHA-256"), "{code}: {why}");
    assert_eq!(shoal.json(["model", "list", "--json"], "").as_array().unwrap().len(), 1);
    // Nothing of it stays.
    let left = fs::read_dir(shoal.home().join("models")).unwrap().count();
    assert_eq!(left, 0);
    let (_, unknown) =
        shoal.fails(["model", "pull", "ollama://other", "--ollama-registry", &url, "--yes"], "");
    assert!(unknown.contains("404"), "{unknown}");
}

#[test]
fn a_catalog_counts_once_its_author_is_trusted_and_its_names_run() {
    let (folder, model) = (TempDir::new().unwrap(), story());
    let (file, list, key) =
        (folder.path().join("story.gguf"), folder.path().join("catalog.txt"), folder.path().join("key"));
    fs::write(&file, &model).unwrap();
    let site = Registry::start(model.clone(), sha256(&model), 1, model.len() / 2);
    let mirror = format!("{}/me/mine-GGUF/resolve/main/mine-Q8_0.gguf", site.url());
    let author = Shoal::new();
    let add = ["model", "catalog", "add", path(&file), "--to", path(&list), "--key", path(&key)];
    let more = ["--license", "MIT", "--mirror", &mirror, "--json"];
    let added = author.json([&add[..], &more].concat(), "");
    assert_eq!((&added["sequence"], &added["model"]["name"]), (&1.into(), &"story".into()));
    assert_eq!(added["model"]["id"], id_of(&model));

    let user = Shoal::new();
    let ask = ["run", "story", "Tell me a story", "--max-tokens", "8", "--json", "--yes"];
    let (code, unknown) = user.fails(ask, "");
    assert!(code == 2 && unknown.contains("no model"), "{unknown}");
    let (_, untrusted) = user.fails(["model", "search", "--catalog", path(&list)], "");
    assert!(untrusted.contains("catalog trust"), "{untrusted}");
    // A catalog that the line names is read for the model before the prompt, and instead of it.
    for (words, typed) in [(&["story", "Hello"][..], ""), (&["story"][..], "Hello")] {
        let line = [&["run", "--catalog", path(&list), "-n", "1"], words].concat();
        let (code, untrusted) = user.fails(line, typed);
        assert!(code == 2 && untrusted.contains("catalog trust"), "{untrusted}");
    }
    user.json(["model", "catalog", "trust", path(&list), "--yes", "--json"], "");
    let found = user.json(["model", "search", "story", "--json"], "");
    let row = &found[0];
    assert_eq!(
        (&row["license"], &row["id"], &row["here"]),
        (&"MIT".into(), &id_of(&model).into(), &false.into())
    );
    assert!(row["alone_tok_s"].as_f64().is_some_and(|tok_s| tok_s > 0.0), "{row}");
    let answer = user.json(ask, "");
    assert_eq!(answer["model"], "story");
    assert_eq!(
        tokens(&answer),
        tokens(&user.json(["run", "Tell me a story", "--max-tokens", "8", "--json"], ""))
    );
    assert_eq!(user.json(["model", "search", "story", "--json"], "")[0]["here"], true);

    // A file of that id is called so, too, unless the name is taken.
    let copy = folder.path().join("copy.gguf");
    fs::copy(&file, &copy).unwrap();
    let other = Shoal::new();
    other.json(["model", "catalog", "trust", path(&list), "--yes", "--json"], "");
    assert_eq!(other.json(["model", "add", path(&copy), "--json"], "")["name"], "story");
    assert_eq!(user.json(["model", "add", path(&copy), "--json"], "")["name"], "copy");

    // A byte of it changed, it is no catalog any more; and the key of another changes nothing in it.
    let text = fs::read_to_string(&list).unwrap();
    fs::write(&list, text.replace("\"MIT\"", "\"ISC\"")).unwrap();
    let (_, damaged) = user.fails(["model", "catalog", "trust", path(&list), "--yes"], "");
    assert!(damaged.contains("signature"), "{damaged}");
    fs::write(&list, text).unwrap();
    let other = folder.path().join("other");
    let theirs = ["model", "catalog", "add", path(&file), "--to", path(&list), "--key", path(&other)];
    let (_, refused) = author.fails([&theirs[..], &["--license", "MIT"]].concat(), "");
    assert!(refused.contains("another key"), "{refused}");
    let digits =
        user.json(["model", "catalog", "list", "--json"], "")[1]["author"].as_str().unwrap().to_owned();
    user.ok(["model", "catalog", "forget", &digits[..8]], "");
    let (_, gone) = user.fails(["model", "search", "story"], "");
    assert!(gone.contains("no catalog"), "{gone}");
}

#[test]
fn a_newer_catalog_of_a_trusted_author_comes_from_a_peer() {
    let (folder, model) = (TempDir::new().unwrap(), story());
    let at = |name: &str| folder.path().join(name);
    fs::write(at("story.gguf"), &model).unwrap();
    let author = Shoal::new();
    let sign = |name: &str, list: &Path, key: &str| {
        let (file, key) = (at("story.gguf"), at(key));
        let add = ["model", "catalog", "add", path(&file), "--to", path(list), "--key", path(&key)];
        author.json([&add[..], &["--license", "MIT", "--name", name, "--json"]].concat(), "");
    };
    sign("story", &at("first"), "key");
    fs::copy(at("first"), at("second")).unwrap();
    sign("tale", &at("second"), "key");
    sign("lie", &at("stranger"), "other");
    // One node has the newer catalog and one of an author whom the other does not trust.
    let (one, two) = (Shoal::new(), Shoal::new());
    for (home, list) in [(&one, "second"), (&one, "stranger"), (&two, "first")] {
        home.json(["model", "catalog", "trust", path(&at(list)), "--yes", "--json"], "");
    }
    let a = Node::start(one.home(), &["--layers", "1..7", "--private"]);
    let code = a.ask(&["invite"])["code"].as_str().unwrap().to_owned();
    let b = Node::start(two.home(), &[&code, "--ask-only"]);
    b.meets(1);
    let catalogs = || two.json(["model", "catalog", "list", "--json"], "");
    let began = Instant::now();
    while catalogs()[1]["sequence"] != 2 {
        assert!(began.elapsed() < PATIENCE, "{}", catalogs());
        thread::sleep(Duration::from_millis(200));
    }
    // The peer computes six layers of a model: by that it is told what it makes of others.
    let peers = node::model_shelf::peers(two.home());
    let whole = model.len() as u64;
    assert!(matches!(&peers[..], [one] if (whole / 2..whole).contains(&one.room_bytes)), "{peers:?}");
    assert!(peers[0].read_bytes_per_s > 0.0 && peers[0].rtt_ms < 1_000.0, "{peers:?}");
    assert_eq!(two.json(["model", "search", "tale", "--json"], "")[0]["name"], "tale");
    assert_eq!(catalogs().as_array().unwrap().len(), 2, "this release's and that author's: {}", catalogs());
}

#[test]
fn a_file_of_another_program_is_linked_and_answers() {
    let (other, model) = (TempDir::new().unwrap(), story());
    let digest = sha256(&model);
    let manifest = other.path().join(".ollama/models/manifests/registry.ollama.ai/library/tale/1b");
    let blob = other.path().join(format!(".ollama/models/blobs/sha256-{digest}"));
    for file in [&manifest, &blob] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    let layer = serde_json::json!({
        "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": model.len()
    });
    fs::write(&manifest, serde_json::json!({ "layers": [layer] }).to_string()).unwrap();
    fs::write(&blob, &model).unwrap();
    let shoal = Shoal::new();
    let variables = [("HOME", path(other.path())), ("OLLAMA_MODELS", ""), ("XDG_CACHE_HOME", "")];
    let found = shoal.json_in(["model", "find", "--json"], "", &variables);
    assert_eq!((&found[0]["name"], &found[0]["program"]), (&"tale:1b".into(), &"Ollama".into()));
    // Its reference means this file: no registry is asked, which could not be reached.
    let nowhere = ["--ollama-registry", "http://127.0.0.1:9"];
    let ask = ["run", "ollama://tale:1b", "Tell me a story", "--max-tokens", "8", "--json"];
    let answer = shoal.json_in([&ask[..], &nowhere].concat(), "", &variables);
    assert_eq!(answer["model"], "tale:1b");
    let list = shoal.json(["model", "list", "--json"], "");
    assert_eq!(list[1]["path"], path(&fs::canonicalize(&blob).unwrap()));
    let found = shoal.json_in(["model", "find", "--json"], "", &variables);
    assert_eq!(found[0]["linked"], "tale:1b");
    // Forgetting it leaves the other program what is its own.
    shoal.ok(["model", "rm", "tale:1b"], "");
    assert!(blob.is_file());
}
