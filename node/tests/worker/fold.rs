//! Jobs that wait together share a pass; caches stay within their room.

use node::worker::{Fault, JobInput, MAX_JOBS, Room, Want};
use scheduler::SessionId;
use shard::{sample::SamplingParams, tokenizer::Encode};

use super::*;

#[tokio::test]
async fn waiting_sessions_share_passes_and_get_what_they_get_alone() {
    let model = model();
    let mut child = Child::start(&[]).await;
    let all = range(0, child.ready.num_layers);
    let texts = ["a cat sat", "there was a fox", "there was a little girl", "there lived an old man"]
        .map(|text| format!("Once upon a time {text}"));
    let steps = 12;
    let mut runs = Vec::new();
    for (number, text) in (10..).zip(texts) {
        let prompt = model.tokenizer.encode(&text, Encode::TEXT).unwrap();
        let whole = expected(&model, &prompt, &SamplingParams::default(), &[], steps);
        assert_eq!(whole.steps.len(), steps, "{text}");
        let session = SessionId::numbered(number);
        let conduct = conduct(&prompt, &[], &SamplingParams::default(), &[]);
        child.worker.open(open(session, all, Some(conduct))).await.unwrap();
        runs.push((session, prompt, whole, 0));
    }
    // A pass that takes a while, so that the others wait together.
    let busy = SessionId::numbered(99);
    child.worker.open(open(busy, all, None)).await.unwrap();
    let mut most = 0;
    for _ in 0..steps {
        let long = JobInput::Tokens(vec![5; 128]);
        child.worker.run(job(busy, 0, 0, 128, long, Want::Nothing)).unwrap();
        for (session, ids, ..) in &runs {
            let known = child_known(&runs, *session);
            let input = JobInput::Tokens(ids[known..].to_vec());
            child.worker.run(job(*session, 0, known, ids.len() - known, input, Want::Sample)).unwrap();
        }
        for _ in 0..=runs.len() {
            let output = child.next().await;
            most = most.max(output.batched);
            let Some(run) = runs.iter_mut().find(|run| run.0 == output.session) else {
                assert_eq!((output.session, output.body), (busy, Body::Nothing));
                continue;
            };
            let step = run.3;
            let (id, text, _) = sampled(output.body);
            assert_eq!((id, text), run.2.steps[step]);
            run.1.push(id);
            run.3 += 1;
        }
    }
    assert!(most >= 2, "no pass served two sessions");
}

/// Positions computed for a session: all but the last token chosen, once there is one.
fn child_known(runs: &[(SessionId, Vec<u32>, Expected, usize)], session: SessionId) -> usize {
    let run = runs.iter().find(|run| run.0 == session).unwrap();
    if run.3 == 0 { 0 } else { run.1.len() - 1 }
}

#[tokio::test]
async fn sessions_beyond_the_room_are_refused_with_what_is_missing() {
    let layers = range(0, 2);
    let probe = Child::start(&[layers]).await;
    let position = probe.ready.memory.kv_bytes_per_layer_position;
    // Room for one session of 256 positions in two layers, and half of another.
    let page = 2 * 256 * position;
    let child = Child::of(Spec { kv_bytes: page * 3 / 2, ..spec(&[layers]) }).await;
    let asked =
        |number, positions| OpenSession { positions, ..open(SessionId::numbered(number), layers, None) };
    child.worker.open(asked(1, 200)).await.unwrap();
    // State grows by quarters of a page.
    let missing = Fault::NoRoom { needed_bytes: page / 4 * 3, free_bytes: page / 2 };
    assert_eq!(child.worker.open(asked(2, 129)).await, Err(missing));
    // Growing the session counts only the difference, and does not fit either.
    let missing = Fault::NoRoom { needed_bytes: page / 4 * 7, free_bytes: page * 3 / 2 };
    assert_eq!(child.worker.open(asked(1, 385)).await, Err(missing));
    assert_eq!(child.worker.open(asked(1, 256)).await, Ok(0));
    child.worker.close(SessionId::numbered(1));
    child.worker.open(asked(2, 1)).await.unwrap();
}

#[tokio::test]
async fn workers_of_one_room_take_no_more_than_there_is() {
    let layers = range(0, 2);
    let probe = Child::start(&[layers]).await;
    let page = 2 * 256 * probe.ready.memory.kv_bytes_per_layer_position;
    // Each alone could have three sessions of a page, both together have room for three.
    let room = Room::new(3 * page);
    let shared = || Spec { kv_bytes: 3 * page, room: room.clone(), ..spec(&[layers]) };
    let (mut one, other) = (Child::of(shared()).await, Child::of(shared()).await);
    let asked =
        |number, positions| OpenSession { positions, ..open(SessionId::numbered(number), layers, None) };
    one.worker.open(asked(1, 200)).await.unwrap();
    other.worker.open(asked(2, 512)).await.unwrap();
    assert_eq!(room.taken_bytes(), 3 * page);
    let missing = |bytes| Fault::NoRoom { needed_bytes: bytes, free_bytes: 0 };
    assert_eq!(one.worker.open(asked(3, 1)).await, Err(missing(page)));
    // A session that is opened again takes its own place, a longer one the difference.
    one.worker.open(asked(1, 256)).await.unwrap();
    assert_eq!(one.worker.open(asked(1, 257)).await, Err(missing(page)));
    other.worker.open(asked(2, 1)).await.unwrap();
    assert_eq!(room.taken_bytes(), 2 * page, "what shrinks gives back");
    other.worker.close(SessionId::numbered(2));
    assert_eq!(room.taken_bytes(), page);
    // What dies gives back everything.
    one.worker.kill();
    while tokio::time::timeout(PATIENCE, one.outputs.recv()).await.unwrap().is_some() {}
    assert_eq!(room.taken_bytes(), 0);
}

#[tokio::test]
async fn more_jobs_than_allowed_are_refused_at_once() {
    let mut child = Child::start(&[range(0, 2)]).await;
    let session = SessionId::numbered(1);
    child.worker.open(open(session, range(0, 2), None)).await.unwrap();
    let step = |at: usize| job(session, 0, at, 1, JobInput::Tokens(vec![1]), Want::Nothing);
    // This task does not yield meanwhile, so nothing is read.
    for at in 0..MAX_JOBS {
        child.worker.run(step(at)).unwrap();
    }
    assert_eq!(child.worker.run(step(MAX_JOBS)), Err(Fault::Busy));
    for at in 0..MAX_JOBS {
        let output = child.next().await;
        assert_eq!((output.from as usize, output.body), (at, Body::Nothing));
    }
    child.worker.run(step(MAX_JOBS)).unwrap();
    assert_eq!(child.next().await.body, Body::Nothing);
}
