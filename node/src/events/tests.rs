use api::swarm_records::{Span, Step, StepKind, Timeline};
use scheduler::SessionKind;
use serde_json::json;

use super::*;

/// What is written is what programs read, and it is read back as the same.
fn check<T: Serialize + serde::de::DeserializeOwned>(value: &T, line: Value) {
    assert_eq!(serde_json::to_value(value).unwrap(), line);
    let back: T = serde_json::from_str(&line.to_string()).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), line, "read back");
}

fn prediction() -> (Prediction, Value) {
    let terms = CostTerms { decode: 3.5, hop: 1.5, ..CostTerms::default() };
    let stages =
        vec![PlannedStage { node: "aa".into(), start: 0, end: 4, ms: 5.0, step_ms: Some(1.5), terms }];
    let predicted = Predicted {
        total_ms: 9.5,
        ttft_ms: 2.5,
        opened_ms: 0.5,
        prefill_ms: 1.5,
        step_ms: 1.75,
        tok_s: 571.5,
    };
    let plan = Prediction {
        prompt_tokens: 7,
        expected_tokens: 128,
        stages,
        home_ms: 0.25,
        shadows: vec![None, Some("bb".into())],
        predicted,
        as_asked: Way::Possible { total_ms: 9.5, tok_s: None },
        ends_abroad: Way::Possible { total_ms: 8.5, tok_s: Some(10.5) },
        local: Way::Impossible { impossible: "no".into() },
        local_wins: false,
        range: None,
        rounding_saves_ms: None,
    };
    let line = json!({
        "prompt_tokens": 7,
        "expected_tokens": 128,
        "stages": [{ "node": "aa", "start": 0, "end": 4, "ms": 5.0, "step_ms": 1.5,
            "terms": { "decode": 3.5, "hop": 1.5 } }],
        "home_ms": 0.25,
        "shadows": [null, "bb"],
        "predicted": { "total_ms": 9.5, "ttft_ms": 2.5, "opened_ms": 0.5, "prefill_ms": 1.5, "step_ms": 1.75,
            "tok_s": 571.5 },
        "as_asked": { "total_ms": 9.5, "tok_s": null },
        "ends_abroad": { "total_ms": 8.5, "tok_s": 10.5 },
        "local": { "impossible": "no" },
        "local_wins": false,
    });
    (plan, line)
}

fn merged(mut line: Value, more: Value) -> Value {
    line.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    line
}

#[test]
fn a_route_and_a_plan_are_the_lines_they_were() {
    let (plan, line) = prediction();
    let own = OwnRoute {
        session: "5e".into(),
        model: "minnow".into(),
        me: "cc".into(),
        verify: Verify::Strict,
        wire: Wire::Q8,
        cuts: vec![2, 6],
        kind: "window:64/q8".parse().unwrap(),
        reasoning: true,
        plan: plan.clone(),
    };
    let route = RouteEvent { mode: Mode::Boomerang, own: Some(own), elsewhere: None };
    assert_eq!(route.stages().count(), 1);
    let told = json!({ "event": "route", "model": "minnow", "me": "cc", "verify": "strict", "session": "5e",
        "mode": "boomerang", "wire": "q8", "cuts": [2, 6], "attention": "window:64", "kv_cache_type": "q8", "reasoning": true });
    check(&PromptEvent::Route(Box::new(route)), merged(line.clone(), told));
    let plan = PlanReport { plan, me: "cc".into(), end: true };
    check(&plan, merged(line, json!({ "me": "cc", "end": true })));
    let elsewhere = Elsewhere { conductor: "dd".into(), stages: Vec::new() };
    let route = RouteEvent { mode: Mode::Open, own: None, elsewhere: Some(elsewhere) };
    assert_eq!((route.session(), route.conductor()), (None, Some("dd")));
    let line = json!({ "event": "route", "mode": "open", "conductor": "dd", "stages": [] });
    check(&PromptEvent::Route(Box::new(route)), line);
}

#[test]
fn what_happens_on_the_way_is_the_lines_it_was() {
    check(&PromptEvent::token(7, "A "), json!({ "event": "token", "id": 7, "text": "A " }));
    let logprobs = Logprobs {
        logprob: -0.5,
        bytes: vec![65],
        top_logprobs: vec![(7, -0.5, vec![65]), (8, -2.0, vec![])],
    };
    let token = Token { id: 7, text: "A".into(), logprobs: Some(logprobs) };
    let line = json!({ "event": "token", "id": 7, "text": "A", "logprob": -0.5, "bytes": [65],
        "top_logprobs": [[7, -0.5, [65]], [8, -2.0, []]] });
    check(&PromptEvent::Token(token), line);
    let values = vec![0.1, -1.0e-7, 16_777_217.0];
    check(&PromptEvent::Pooled { values: values.clone() }, json!({ "event": "pooled", "values": values }));
    check(
        &PromptEvent::Pace { stage_ms: vec![1.5, 0.0] },
        json!({ "event": "pace", "stage_ms": [1.5, 0.0] }),
    );
    let stages = vec![StageRange { node: "bb".into(), start: 1, end: 7 }];
    check(
        &PromptEvent::Moved { failed: "aa".into(), why: "closed".into(), stages },
        json!({ "event": "moved", "failed": "aa", "why": "closed",
            "stages": [{ "node": "bb", "start": 1, "end": 7 }] }),
    );
    check(
        &PromptEvent::Integrity { token: 3, node: "aa".into(), message: "why".into() },
        json!({ "event": "integrity", "token": 3, "node": "aa", "message": "why" }),
    );
    check(
        &PromptEvent::Resumed(Resumed { session: "5e".into(), ids: vec![7], text: "A".into() }),
        json!({ "event": "resumed", "session": "5e", "ids": [7], "text": "A" }),
    );
    check(&PromptEvent::Failed(Refusal::new("why")), json!({ "error": "why" }));
    let refusal = Refusal { tokens: Some(9), context: Some(8), ..Refusal::kind(RefusalKind::TooLong, "why") };
    check(
        &PromptEvent::Failed(refusal),
        json!({ "error": "why", "kind": "too_long", "tokens": 9, "context": 8 }),
    );
}

#[test]
fn the_end_of_an_answer_is_the_line_it_was() {
    let (plan, planned) = prediction();
    let stall = Stall { node: "bb".into(), stall_ms: 12.5 };
    let stage = StageReport {
        range: StageRange { node: "bb".into(), start: 1, end: 7 },
        ms: Some(1.5),
        predicted_ms: None,
        checked_by: Some(vec!["dd".into()]),
        checked_positions: Some(9),
        near: Some(Near { positions: 4, distance: 0.5 }),
    };
    let timing = Timing {
        prompt_tokens: 7,
        cached_tokens: 0,
        ttft_ms: 2.5,
        decode_tok_s: 10.5,
        stages: vec![stage],
        faults: vec![stall.clone()],
    };
    let conducted = Conducted {
        model: "minnow".into(),
        me: "cc".into(),
        wire: Wire::Raw,
        cuts: Vec::new(),
        kind: SessionKind::DEFAULT,
        ending: Ending { ended_turn: true, ..Ending::default() },
        opened_ms: None,
        predicted: plan.predicted,
        checks: CheckReport {
            verified: 1.0,
            settled_by_thirds: 0,
            checked_by: vec!["dd".into()],
            convicted: Vec::new(),
            integrity: None,
            differing_answers: 0,
        },
        receipts: 2,
        hedged: Vec::new(),
        drafts: None,
        bytes_out: 10,
        bytes_in: 20,
        timeline: Timeline {
            began_ms: 7,
            steps: vec![Step {
                at_ms: 1.5,
                token: 3,
                what: StepKind::TookOver {
                    span: Span { node: "cc".into(), start: 1, end: 7 },
                    from: "bb".into(),
                },
            }],
            left_out: 0,
        },
    };
    let report = PromptReport {
        session: Some("5e".into()),
        mode: Some(Mode::Trusted),
        text: "A".into(),
        ids: vec![7],
        completion_tokens: 1,
        timing: Some(timing),
        conducted: Some(Box::new(conducted)),
        end: true,
        ..PromptReport::default()
    };
    let line = json!({
        "event": "done",
        "session": "5e",
        "model": "minnow",
        "me": "cc",
        "mode": "trusted",
        "wire": "raw",
        "finish_reason": "stop",
        "gave_up": null,
        "text": "A",
        "rest": "",
        "stop": null,
        "ended_turn": true,
        "ids": [7],
        "prompt_tokens": 7,
        "completion_tokens": 1,
        "ttft_ms": 2.5,
        "opened_ms": null,
        "decode_tok_s": 10.5,
        "predicted": planned["predicted"],
        "stages": [{ "node": "bb", "start": 1, "end": 7, "ms": 1.5, "checked_by": ["dd"], "checked_positions": 9,
            "near": { "positions": 4, "distance": 0.5 } }],
        "verified": 1.0,
        "settled_by_thirds": 0,
        "checked_by": ["dd"],
        "convicted": [],
        "integrity": null,
        "receipts": 2,
        "faults": [{ "node": "bb", "stall_ms": 12.5 }],
        "hedged": [],
        "differing_answers": 0,
        "bytes_out": 10,
        "bytes_in": 20,
        "end": true,
    });
    let timeline = json!({ "timeline": { "began_ms": 7, "left_out": 0, "steps": [
        { "at_ms": 1.5, "token": 3, "step": "took_over", "node": "cc", "start": 1, "end": 7, "from": "bb" }] } });
    let line = merged(line, timeline);
    check(&PromptEvent::Done(Box::new(report.clone())), line.clone());
    let unchecked = PromptReport { checking: true, ..report.clone() };
    check(&PromptEvent::Done(Box::new(unchecked)), merged(line.clone(), json!({ "checking": true })));
    check(&PromptEvent::Checked(Box::new(report)), merged(line, json!({ "event": "checked" })));
    // Only its end was missing when the process before it died.
    let missing = PromptReport {
        session: Some("5e".into()),
        finish_reason: FinishReason::Length,
        ids: vec![7],
        completion_tokens: 1,
        resumed_tokens: Some(1),
        end: true,
        ..PromptReport::default()
    };
    check(
        &PromptEvent::Done(Box::new(missing)),
        json!({ "event": "done", "finish_reason": "length", "session": "5e", "text": "", "rest": "",
            "completion_tokens": 1, "resumed_tokens": 1, "ids": [7], "end": true }),
    );
    // Another node conducted it.
    let elsewhere = PromptReport {
        mode: Some(Mode::Open),
        conductor: Some("dd".into()),
        timing: Some(Timing { prompt_tokens: 7, ttft_ms: 2.5, faults: vec![stall], ..Timing::default() }),
        end: true,
        ..PromptReport::default()
    };
    check(
        &PromptEvent::Done(Box::new(elsewhere)),
        json!({ "event": "done", "mode": "open", "conductor": "dd", "finish_reason": "stop", "text": "", "rest": "",
            "ids": [], "prompt_tokens": 7, "completion_tokens": 0, "ttft_ms": 2.5, "decode_tok_s": 0.0, "stages": [],
            "faults": [{ "node": "bb", "stall_ms": 12.5 }], "end": true }),
    );
}

#[test]
fn a_request_is_read_with_what_it_leaves_out() {
    let read = |prompt: Value| {
        let line = json!({ "prompt": prompt, "mode": "open", "wire": "raw", "head": 1, "tail": 2,
            "sampling": { "temperature": 0.5, "logit_bias": [[7, -1]] }, "seed": 3, "max_tokens": 4 });
        serde_json::from_str::<PromptRequest>(&line.to_string()).unwrap()
    };
    let request = read(json!([{ "role": "user", "content": "Name a fish." }]));
    assert!(matches!(&request.prompt, PromptInput::Messages(_)));
    assert_eq!(request.prompt.excerpt(), "Name a fish.");
    assert_eq!((request.verify, request.shadow), (Verify::Sample, Shadow::All));
    let biased = Sampling { temperature: Some(0.5), logit_bias: vec![(7, -1.0)], ..Sampling::default() };
    assert!(request.sampling == biased);
    assert!(read(json!("A text")).prompt == PromptInput::Text("A text".into()));
    assert!(read(json!({ "ids": [1, 2] })).prompt == PromptInput::Tokens { ids: vec![1, 2] });
}

/// A vector is the same bits behind the socket.
#[test]
fn values_of_a_vector_travel_exactly() {
    let values: Vec<f32> = (0..20_000_u32)
        .map(|n| f32::from_bits(n.wrapping_mul(0x9e37_79b9)))
        .filter(|value| value.is_finite())
        .collect();
    let line = serde_json::to_string(&PromptEvent::Pooled { values: values.clone() }).unwrap();
    let Ok(PromptEvent::Pooled { values: back }) = serde_json::from_str(&line) else { panic!("{line}") };
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&back), bits(&values));
}
