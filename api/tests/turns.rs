//! Responses that are stored: a conversation goes on from one by its name, for who asked for it, until it is deleted.

mod fake;
mod http;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use api::{
    inference::Prompt,
    keys::{Keys, Taken},
    stored_responses::{Broken, MAX_BYTES, StoredResponse, StoredResponses},
};
use fake::Fake;
use http::{Api, TOKEN};
use serde_json::{Value, json};

/// A store in memory, whose disk may be full.
#[derive(Debug, Default)]
struct Memory {
    turns: Mutex<BTreeMap<String, StoredResponse>>,
    full: AtomicBool,
}

impl StoredResponses for Memory {
    fn store(&self, id: &str, stored: &StoredResponse) -> Result<bool, Broken> {
        if self.full.load(Ordering::Relaxed) {
            return Err(Broken("the disk is full".into()));
        }
        self.turns.lock().unwrap().insert(id.to_owned(), stored.clone());
        Ok(true)
    }

    fn read(&self, _: Option<&str>, id: &str) -> Result<Option<StoredResponse>, Broken> {
        Ok(self.turns.lock().unwrap().get(id).cloned())
    }

    fn remove(&self, _: Option<&str>, id: &str) -> Result<bool, Broken> {
        Ok(self.turns.lock().unwrap().remove(id).is_some())
    }
}

/// One key, `guest`, whose secret is its name.
#[derive(Debug)]
struct Guest;

impl Keys for Guest {
    fn holder(&self, secret: &str) -> Option<String> {
        (secret == "guest").then(|| secret.to_owned())
    }

    fn admit(&self, _: &str) -> Result<(), u32> {
        Ok(())
    }

    fn took(&self, _: Option<&str>, _: &Taken) {}
}

async fn start() -> (Api, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    let config = api::Config {
        token: Some(TOKEN.into()),
        keys: Some(Arc::new(Guest)),
        responses: Some(memory.clone()),
        ..api::Config::default()
    };
    (http::start_with(Fake::quick(), config).await, memory)
}

async fn ask(api: &Api, more: Value) -> Value {
    let mut body = json!({"model": "fake-7b", "input": "and oil", "seed": 1, "max_output_tokens": 8});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = api.post("/v1/responses", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// The messages that the last request gave to the model.
fn given(api: &Api) -> Vec<(String, String)> {
    let last = api.fake.last.lock().unwrap();
    let Some(Prompt::Messages { messages, .. }) = last.as_ref().map(|last| &last.prompt) else {
        panic!("no messages")
    };
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    messages.as_array().unwrap().iter().map(|m| (word(&m["role"]), word(&m["content"]))).collect()
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn a_conversation_goes_on_from_a_response_by_its_name() {
    let (api, _) = start().await;
    let first = ask(&api, json!({"input": "bring a lantern", "instructions": "Be brief."})).await;
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let second = ask(&api, json!({"previous_response_id": first["id"]})).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    let say = |role: &str, content: &str| (role.to_owned(), content.to_owned());
    let so_far = [say("user", "bring a lantern"), say("assistant", text(&first)), say("user", "and oil")];
    assert_eq!(given(&api), so_far, "instructions are of one request");
    let third = ask(
        &api,
        json!({"previous_response_id": second["id"], "instructions": "Go.", "input": [
            {"type": "message", "role": "user", "content": "and a boat"},
        ]}),
    )
    .await;
    let mut all = vec![say("system", "Go.")];
    all.extend(so_far);
    all.extend([say("assistant", text(&second)), say("user", "and a boat")]);
    assert_eq!(given(&api), all);

    let path = format!("/v1/responses/{}", third["id"].as_str().unwrap());
    assert_eq!(api.get(&path).await.json(), third, "what is read is what was answered");
    let items = api.get(&format!("{path}/input_items?order=asc")).await.json();
    let data = items["data"].as_array().unwrap();
    assert_eq!((data.len(), &items["has_more"]), (5, &json!(false)));
    assert_eq!(data[0]["content"][0]["text"], "bring a lantern");
    assert_eq!(data[4]["content"], "and a boat");
    let last = api.get(&format!("{path}/input_items?limit=2")).await.json();
    assert_eq!((&last["data"][0], &last["has_more"]), (&data[4], &json!(true)));
    let after = last["last_id"].as_str().unwrap();
    let rest = api.get(&format!("{path}/input_items?after={after}")).await.json();
    assert_eq!((&rest["data"][0], rest["data"].as_array().unwrap().len()), (&data[2], 3));
    for (wrong, field) in [("?limit=0", "limit"), ("?order=up", "order"), ("?after=nowhere", "after")] {
        let reply = api.get(&format!("{path}/input_items{wrong}")).await;
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some(field)), "{wrong}");
    }
    assert_eq!(api.get(&format!("{path}?stream=true")).await.status, 400);
}

#[tokio::test]
async fn a_stream_is_stored_before_its_end_is_told() {
    let (api, memory) = start().await;
    let body = json!({"model": "fake-7b", "input": "bring a lantern", "stream": true, "seed": 1});
    let events = api.post("/v1/responses", &body).await.events();
    let response = &events.last().unwrap()["response"];
    assert_eq!((&response["store"], &events[0]["response"]["store"]), (&json!(true), &json!(true)));
    let stored = memory.turns.lock().unwrap()[response["id"].as_str().unwrap()].clone();
    assert_eq!(&stored.response, response);
    ask(&api, json!({"previous_response_id": response["id"]})).await;
    assert_eq!(given(&api).len(), 3);
}

#[tokio::test]
async fn a_result_alone_goes_on_from_the_call_that_is_stored() {
    let (api, _) = start().await;
    let tools = json!([{"type": "function", "name": "look", "parameters": {"type": "object"}}]);
    *api.fake.script.lock().unwrap() =
        Some("<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>".into());
    let first = ask(&api, json!({"tools": tools, "max_output_tokens": 200})).await;
    let call = &first["output"][0];
    assert_eq!(call["type"], "function_call", "{first}");
    let output =
        json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "a lighthouse"}]);
    ask(&api, json!({"tools": tools, "previous_response_id": first["id"], "input": output})).await;
    let last = api.fake.last.lock().unwrap();
    let Prompt::Messages { messages, .. } = &last.as_ref().unwrap().prompt else { panic!() };
    assert_eq!(messages[1]["tool_calls"][0]["id"], call["call_id"]);
    assert_eq!(messages[2]["tool_call_id"], call["call_id"]);
}

#[tokio::test]
async fn what_is_deleted_or_never_stored_is_gone() {
    let (api, memory) = start().await;
    let first = ask(&api, json!({})).await;
    let second = ask(&api, json!({"previous_response_id": first["id"]})).await;
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let deleted = api.delete(&path).await.json();
    assert_eq!(deleted, json!({"id": first["id"], "object": "response", "deleted": true}));
    assert_eq!((api.get(&path).await.status, api.delete(&path).await.status), (404, 404));
    for gone in [&first["id"], &second["id"], &json!("resp_000000000000000000000000"), &json!("../x")] {
        let body = json!({"model": "fake-7b", "input": "x", "previous_response_id": gone});
        let reply = api.post("/v1/responses", &body).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (400, &json!("previous_response_not_found")), "{gone}");
        assert_eq!(error["param"], "previous_response_id");
    }
    let stored = memory.turns.lock().unwrap().len();
    assert_eq!(ask(&api, json!({"store": false})).await["store"], false);
    assert_eq!(ask(&api, json!({"input": "x".repeat(MAX_BYTES)})).await["store"], false, "it is too large");
    memory.full.store(true, Ordering::Relaxed);
    assert_eq!(ask(&api, json!({})).await["store"], false, "a full disk costs no answer");
    assert_eq!(memory.turns.lock().unwrap().len(), stored);
}

#[tokio::test]
async fn a_response_is_of_who_asked_for_it() {
    let (api, _) = start().await;
    let owners = ask(&api, json!({})).await;
    let body = json!({"model": "fake-7b", "input": "mine", "previous_response_id": owners["id"]});
    let guest =
        [("Host", &*api.host()), ("Authorization", "Bearer guest"), ("Content-Type", "application/json")]
            .map(|(name, value)| (name, value.to_owned()));
    let guest: Vec<(&str, &str)> = guest.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let post = |body: Value| {
        let (api, guest) = (&api, &guest);
        async move { api.send("POST", "/v1/responses", guest, body.to_string().as_bytes()).await }
    };
    assert_eq!(post(body).await.status, 400);
    let owners = format!("/v1/responses/{}", owners["id"].as_str().unwrap());
    assert_eq!(api.send("GET", &owners, &guest, b"").await.status, 404);
    assert_eq!(api.send("DELETE", &owners, &guest, b"").await.status, 404);
    assert_eq!(api.get(&owners).await.status, 200);
    let his = post(json!({"model": "fake-7b", "input": "mine"})).await.json();
    let his = format!("/v1/responses/{}", his["id"].as_str().unwrap());
    assert_eq!(api.get(&his).await.status, 404);
    assert_eq!(api.send("GET", &his, &guest, b"").await.status, 200);
}

#[tokio::test]
async fn without_a_store_nothing_is_and_it_is_said() {
    let api = http::start(Fake::quick()).await;
    let reply = api.post("/v1/responses", &json!({"model": "fake-7b", "input": "x", "store": true})).await;
    assert_eq!((reply.status, &reply.json()["store"]), (200, &json!(false)));
    let body =
        json!({"model": "fake-7b", "input": "x", "previous_response_id": "resp_000000000000000000000000"});
    let reply = api.post("/v1/responses", &body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("send the items again"), "{}", reply.text());
    let reply = api.get("/v1/responses/resp_000000000000000000000000").await;
    assert_eq!(reply.status, 404);
}

#[tokio::test]
async fn a_conversation_that_is_read_back_has_bounds() {
    let (api, _) = start().await;
    // The fake says it again.
    let long = "x".repeat(MAX_BYTES / 2 - (64 << 10));
    let mut last = ask(&api, json!({"input": long})).await;
    for _ in 0..2 {
        last = ask(&api, json!({"input": long, "previous_response_id": last["id"]})).await;
        assert_eq!(last["store"], true);
    }
    let body = json!({"model": "fake-7b", "input": "x", "previous_response_id": last["id"]});
    let reply = api.post("/v1/responses", &body).await;
    let error = &reply.json()["error"];
    assert_eq!((reply.status, error["param"].as_str()), (400, Some("previous_response_id")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("MiB"), "{error}");
}
