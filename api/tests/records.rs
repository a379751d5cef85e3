//! Records of the swarm: names of nodes, history, steps of answers, invites.

mod fake;
mod http;

use std::sync::{Arc, Mutex};

use api::{
    inference::{Failure, SwarmRecords},
    swarm_records::{AnswerRecord, Color, History, Invite, NodeName, Sample, Span, Step, StepKind, Timeline},
};
use fake::Fake;
use futures::future::{BoxFuture, ready};
use serde_json::json;

#[derive(Default)]
struct Kept(Mutex<Vec<NodeName>>);

impl SwarmRecords for Kept {
    fn name(&self, name: NodeName) -> Result<(), Failure> {
        let mut kept = self.0.lock().unwrap();
        if kept.len() == 2 {
            return Err(Failure::invalid("name", "two nodes have one"));
        }
        kept.push(name);
        Ok(())
    }

    fn history(&self, days: u32) -> Result<History, Failure> {
        let sample = Sample { at_s: 300, seconds: 300, balance: -3, ..Sample::default() };
        Ok(History { now_s: 900, days, span_s: 300 * u64::from(days), samples: vec![sample] })
    }

    fn answers(&self) -> BoxFuture<'static, Result<Vec<AnswerRecord>, Failure>> {
        let mut timeline = Timeline { began_ms: 7, ..Timeline::default() };
        let span = Span { node: "cc".repeat(32), start: 4, end: 18 };
        let kinds = [
            StepKind::Leased { epoch: 0, stages: vec![span.clone()] },
            StepKind::Lost { node: "bb".repeat(32), why: "timeout".into() },
            StepKind::TookOver { span, from: "bb".repeat(32) },
        ];
        for (token, what) in (0u32..).zip(kinds) {
            timeline.add(Step { at_ms: 0.5, token, what });
        }
        let answer = AnswerRecord { model: "fake-7b".into(), faults: 1, timeline, ..AnswerRecord::default() };
        Box::pin(ready(Ok(vec![answer])))
    }

    fn invite(&self) -> BoxFuture<'static, Result<Invite, Failure>> {
        let qr = vec!["10".into(), "01".into()];
        Box::pin(ready(Ok(Invite { code: "shoal1x".into(), swarm: None, qr })))
    }
}

fn with_records() -> (Fake, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    let mut fake = Fake::quick();
    fake.records = Some(kept.clone());
    (fake, kept)
}

#[tokio::test]
async fn a_name_is_checked_before_it_is_kept() {
    let (fake, kept) = with_records();
    let api = http::start(fake).await;
    let node = "ab".repeat(32);
    let named = json!({"node": node, "name": " attic ", "color": "teal"});
    let reply = api.post("/swarm/names", &named).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json(), json!({"node": node, "name": "attic", "color": "teal"}));
    assert_eq!(api.post("/swarm/names", &json!({"node": node})).await.status, 200, "nothing forgets it");
    for (wrong, field) in [
        (json!({"name": "x"}), "node"),
        (json!({"node": "me", "name": "x"}), "node"),
        (json!({"node": node, "name": "x".repeat(33)}), "name"),
        (json!({"node": node, "name": "a\u{202e}b"}), "name"),
        (json!({"node": node, "name": "x", "color": "url(x)"}), "color"),
        (json!({"node": node, "name": "one too many"}), "name"),
    ] {
        let reply = api.post("/swarm/names", &wrong).await;
        assert_eq!(reply.status, 400, "{wrong}");
        assert_eq!(reply.json()["error"]["param"], field, "{wrong}");
    }
    let kept = kept.0.lock().unwrap();
    assert_eq!(kept.iter().map(|name| name.color).collect::<Vec<_>>(), [Color::Teal, Color::None]);
}

#[tokio::test]
async fn history_reaches_back_as_far_as_it_is_asked() {
    let api = http::start(with_records().0).await;
    for (path, days) in [("/swarm/history", 1), ("/swarm/history?days=30", 30)] {
        let told = api.get(path).await.json();
        assert_eq!((&told["days"], &told["span_s"]), (&json!(days), &json!(300 * days)), "{path}");
        assert_eq!(told["samples"][0]["tok_s"], json!(null), "idle has no rate");
        assert_eq!(told["samples"][0]["balance"], -3);
    }
    for path in ["/swarm/history?days=0", "/swarm/history?days=31", "/swarm/history?days=all"] {
        let reply = api.get(path).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("days")), "{path}");
    }
}

#[tokio::test]
async fn steps_of_an_answer_are_told_in_words_of_a_fixed_set() {
    let api = http::start(with_records().0).await;
    let told = api.get("/swarm/answers").await.json();
    let steps = told["answers"][0]["timeline"]["steps"].as_array().unwrap().clone();
    let words: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(words, ["leased", "lost", "took_over"]);
    assert_eq!((&steps[2]["start"], &steps[2]["node"]), (&json!(4), &json!("cc".repeat(32))));
}

#[tokio::test]
async fn invites_are_for_who_brings_the_token() {
    let api = http::start(with_records().0).await;
    assert_eq!(api.get("/swarm/invite").await.json()["code"], "shoal1x");
    let host = api.host();
    assert_eq!(api.send("GET", "/swarm/invite", &[("Host", &host)], b"").await.status, 401);
    let open = api::Config { token: None, ..api::Config::default() };
    let api = http::start_with(with_records().0, open).await;
    assert_eq!(api.get("/swarm/invite").await.status, 403, "every program here could ask");
    assert_eq!(http::start(Fake::quick()).await.get("/swarm/invite").await.status, 404, "there is no swarm");
}
