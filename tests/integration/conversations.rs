//! What `shoal serve` keeps for the owner's page: encrypted on the disk, for the token alone, through a restart, and gone when
//! it is deleted.

use std::{fs, path::Path};

use harness::{Shoal, http};
use serde_json::{Value, json};

use crate::clients::serve;

const ID: &str = "00112233445566778899aabbccddeeff";

/// Everything in the files below a folder.
fn disk(folder: &Path) -> Vec<u8> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let bytes = |path: std::path::PathBuf| {
        if path.is_dir() { disk(&path) } else { fs::read(&path).unwrap_or_default() }
    };
    entries.flat_map(bytes).collect()
}

#[test]
fn conversations_are_the_owners_and_deleted_ones_leave_no_byte() {
    let shoal = Shoal::new();
    let token_file = shoal.home().join("api-token");
    let key = shoal.json(["key", "add", "ann", "--json"], "");
    let key = key["key"].as_str().unwrap().to_owned();
    let (serving, url) = serve(shoal.home(), &token_file, &[]);
    let token = fs::read_to_string(&token_file).unwrap();
    let ask = |url: &str, secret: &str, method: &str, path: &str, body: &Value| {
        let answer = http::request(url, secret, method, path, body);
        (answer.status, answer.body)
    };
    let path = format!("/conversations/{ID}");
    let message = json!({"id": "q", "parent": null, "role": "user", "content": "Where do otters sleep?"});
    let change = json!({"leaf": "q", "messages": [message]});
    let library = [("GET", "/library"), ("POST", "/library/pull"), ("DELETE", "/library/minnow")];
    let kept = [("GET", "/conversations"), ("POST", path.as_str()), ("GET", "/presets")];
    for (method, place) in kept.into_iter().chain(library) {
        assert_eq!(ask(&url, &key, method, place, &change).0, 403, "{method} {place} with another's key");
        assert_eq!(ask(&url, "wrong", method, place, &change).0, 401, "{method} {place} without a key");
    }
    let (status, kept) = ask(&url, &token, "POST", &path, &change);
    assert_eq!((status, &kept["title"]), (200, &json!("Where do otters sleep?")), "{kept}");
    let (status, refused) = ask(&url, &token, "POST", &path, &json!({"leaf": "nowhere"}));
    assert_eq!((status, refused["error"]["message"].is_string()), (400, true), "{refused}");
    let presets =
        json!({"presets": [{"name": "short", "system": "One word.", "sampling": {"temperature": 0}}]});
    assert_eq!(ask(&url, &token, "POST", "/presets", &presets).0, 200);

    let unknown = format!("/conversations/{}", ID.replace('0', "f"));
    assert_eq!(ask(&url, &token, "POST", &unknown, &json!({"title": "Lights"})).0, 404);

    // Another process finds it again.
    drop(serving);
    let (_serving, url) = serve(shoal.home(), &token_file, &[]);
    let (_, read) = ask(&url, &token, "GET", &path, &json!({}));
    assert_eq!(read["messages"][0]["content"], "Where do otters sleep?");
    let (_, found) = ask(&url, &token, "POST", "/conversations/search", &json!({"words": "SLEEP otters"}));
    assert_eq!(found["conversations"][0]["id"], ID, "{found}");
    assert_eq!(ask(&url, &token, "GET", "/presets", &json!({})).1, presets);
    let file = shoal.home().join("conversations").join(ID);
    let sealed = fs::read(&file).unwrap();
    let all = disk(shoal.home());
    let has = |all: &[u8], part: &[u8]| all.windows(part.len()).any(|window| window == part);
    assert!(has(&all, &sealed) && !has(&all, b"otters") && !has(&all, b"One word"), "it is encrypted");

    assert_eq!(ask(&url, &token, "DELETE", &path, &json!({})).0, 200);
    assert_eq!(ask(&url, &token, "GET", &path, &json!({})).0, 404);
    let all = disk(shoal.home());
    // The last line of the file holds the words.
    let words = sealed.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap();
    assert!(!file.exists() && !has(&all, &words[..64]) && !has(&all, ID.as_bytes()));
}

#[test]
fn an_api_without_a_token_changes_nothing_of_the_owners() {
    let shoal = Shoal::new();
    let (_serving, url) = serve(shoal.home(), &shoal.home().join("api-token"), &["--no-token"]);
    let ask = |method: &str, path: &str| {
        let answer = http::request(&url, "", method, path, &json!({"model": "smollm2"}));
        (answer.status, answer.body["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(ask("GET", "/library").0, 200);
    for (method, path) in
        [("POST", "/library/pull"), ("DELETE", "/library/minnow"), ("GET", "/conversations")]
    {
        let (status, why) = ask(method, path);
        assert!(status == 403 && why.contains("--no-token"), "{method} {path}: {status} {why}");
    }
}
