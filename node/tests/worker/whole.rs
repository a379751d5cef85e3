//! All layers in one worker: the same answers as without one.

use node::{
    encode,
    worker::{
        Conduct, DraftIds, Fault, Job, JobInput, Prompt, Rehearsed, Sampled, TextKind, Want, rehearse,
        spawn_rehearsed,
    },
};
use scheduler::SessionId;
use serde_json::json;
use shard::{sample::SamplingParams, tokenizer::Encode};

use super::*;

const SESSION: SessionId = SessionId::numbered(1);

/// Prefill in chunks of 5, then a step per token, until the text ends or `most` are there.
async fn decode(child: &mut Child, conduct: Conduct, most: usize) -> (Vec<(u32, String)>, String, bool) {
    let all = range(0, child.ready.num_layers);
    let ids = conduct.history.clone();
    let emitted = ids.len() - conduct.prompt_tokens as usize;
    let have = child.worker.open(open(SESSION, all, Some(conduct))).await.unwrap() as usize;
    let mut body = Body::Nothing;
    let mut at = have;
    for chunk in ids[have..].chunks(5) {
        let last = at + chunk.len() == ids.len();
        let want = if last { Want::Sample } else { Want::Nothing };
        body = child.run(job(SESSION, 0, at, chunk.len(), JobInput::Tokens(chunk.to_vec()), want)).await;
        at += chunk.len();
    }
    let (mut steps, mut text, mut stopped) = (Vec::new(), String::new(), false);
    for _ in emitted..most {
        let ends = matches!(&body, Body::Sampled(one) if one[0].ends_turn);
        let (id, piece, stop) = sampled(body);
        text.push_str(&piece);
        if !ends {
            steps.push((id, piece));
        }
        stopped = stop;
        if stop || emitted + steps.len() == most {
            break;
        }
        body = child.run(job(SESSION, 0, at, 1, JobInput::Tokens(vec![id]), Want::Sample)).await;
        at += 1;
    }
    text.push_str(&child.worker.finish(SESSION).await.unwrap());
    (steps, text, stopped)
}

#[tokio::test]
async fn a_worker_says_what_it_is_and_encodes_as_the_model_does() {
    let model = model();
    let child = Child::of(Spec { class: None, ..spec(&[]) }).await;
    let blueprint = model.executor.blueprint();
    assert_eq!(child.ready.num_layers as usize, blueprint.layers.len());
    assert_eq!(child.ready.layers, [range(0, child.ready.num_layers)]);
    assert_eq!(
        (child.ready.hidden, child.ready.vocabulary.tokens),
        (blueprint.hidden as u32, blueprint.vocab as u32)
    );
    assert_eq!(child.ready.memory.resident_bytes, model.executor.resident_bytes() as u64);
    assert_eq!(child.ready.model.to_string(), node::library::embedded().0[..8]);
    assert_eq!((child.ready.class, child.ready.context), (Class::D1, CONTEXT as u32));
    assert!(
        child.ready.times.decode_ms > 0.0
            && child.ready.times.prefill_ms > 0.0
            && child.ready.times.visit_ms > 0.0
    );

    let messages = json!([{"role": "user", "content": "Tell me a story about a fox"}]);
    let (ids, _) = child.worker.encode(Prompt::chat(messages.to_string())).await.unwrap();
    assert_eq!(ids, encode::encode_chat(&model, &messages).unwrap());
    let text = "Once upon a time <s> there";
    for (bos, special) in [(true, true), (true, false), (false, false)] {
        let kind = TextKind::Raw { bos, special };
        let (ids, _) = child.worker.encode(Prompt { text: text.into(), kind }).await.unwrap();
        assert_eq!(ids, model.tokenizer.encode(text, Encode { bos, special }).unwrap());
    }
    let broken = child.worker.encode(Prompt::chat("[{".into())).await;
    assert!(matches!(broken, Err(Fault::Refused(why)) if why.contains("JSON")));
    assert!(child.worker.is_alive());
}

#[tokio::test]
async fn decoding_in_a_worker_is_generate() {
    let model = model();
    let mut child = Child::start(&[]).await;
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox and a lantern"}]);
    let (prompt, _) = child.worker.encode(Prompt::chat(messages.to_string())).await.unwrap();
    let greedy = SamplingParams::default();
    let free = expected(&model, &prompt, &greedy, &[], 60);
    // A stop string that the free answer has in its second half, so that it is met and held back before.
    let word = free.text.split_whitespace().nth(12).unwrap();
    for (sampling, stop, most) in [
        (greedy.clone(), vec![], 60),
        (creative(), vec![], 400),
        (greedy.clone(), vec!["no such text", word], 60),
    ] {
        let whole = expected(&model, &prompt, &sampling, &stop, most);
        let (steps, text, stopped) =
            decode(&mut child, conduct(&whole.prompt, &[], &sampling, &stop), most).await;
        assert_eq!((&steps, &text, stopped), (&whole.steps, &whole.text, whole.stopped), "{stop:?}");
        child.worker.close(SESSION);

        // Again, with the first part emitted by someone who is gone.
        let half = whole.steps.len() / 2;
        let emitted: Vec<u32> = whole.steps[..half].iter().map(|step| step.0).collect();
        let (steps, text, stopped) =
            decode(&mut child, conduct(&prompt, &emitted, &sampling, &stop), most).await;
        assert_eq!(steps, whole.steps[half..], "{stop:?}");
        let before: String = whole.steps[..half].iter().map(|step| step.1.as_str()).collect();
        assert_eq!((before + &text, stopped), (whole.text, whole.stopped));
        child.worker.close(SESSION);
    }
}

#[tokio::test]
async fn log_probabilities_come_with_the_bytes_of_their_tokens() {
    let model = model();
    let mut child = Child::start(&[]).await;
    let prompt = model.tokenizer.encode("Once upon", Encode::TEXT).unwrap();
    let all = range(0, child.ready.num_layers);
    let conduct = conduct(&prompt, &[], &creative(), &[]);
    child.worker.open(open(SESSION, all, Some(conduct))).await.unwrap();
    let input = JobInput::Tokens(prompt.clone());
    match child.run(job(SESSION, 0, 0, prompt.len(), input, Want::Sample)).await {
        Body::Sampled(mut one) => {
            let Sampled { position, id, bytes, logprob, top, .. } = one.remove(0);
            assert_eq!((position as usize, bytes), (prompt.len(), model.tokenizer.token_bytes(id)));
            assert!(logprob.unwrap() < 0.0 && top.len() == 2 && top[0].logprob >= top[1].logprob);
            assert_eq!(top[0].bytes, model.tokenizer.token_bytes(top[0].id));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_chosen_again_is_the_same_and_so_is_its_text() {
    let model = model();
    let mut child = Child::start(&[]).await;
    let prompt = model.tokenizer.encode("Once upon a time", Encode::TEXT).unwrap();
    let all = range(0, child.ready.num_layers);
    let whole = expected(&model, &prompt, &creative(), &[], 8);
    child.worker.open(open(SESSION, all, Some(conduct(&prompt, &[], &creative(), &[])))).await.unwrap();
    let ids: Vec<u32> = prompt.iter().copied().chain(whole.steps.iter().map(|step| step.0)).collect();
    let mut from = 0;
    // Forward, and twice back: one step, and several.
    for to in [0, 1, 2, 3, 3, 4, 5, 1, 2, 3, 4, 5, 6].map(|step| prompt.len() + step) {
        let from_here = from.min(to - 1);
        let input = JobInput::Tokens(ids[from_here..to].to_vec());
        let (id, text, _) =
            sampled(child.run(job(SESSION, 0, from_here, to - from_here, input, Want::Sample)).await);
        assert_eq!((id, text), whole.steps[to - prompt.len()]);
        from = to;
    }
    // What was truncated away is chosen again, too.
    child.worker.truncate(SESSION, prompt.len() as u32).unwrap();
    let last = prompt.len() - 1;
    let input = JobInput::Tokens(vec![prompt[last]]);
    assert_eq!(child.worker.open(again(&child, &prompt)).await, Ok(prompt.len() as u32));
    let (id, text, _) = sampled(child.run(job(SESSION, 0, last, 1, input, Want::Sample)).await);
    assert_eq!((id, text), whole.steps[0]);
}

/// Opens the session again, keeping all there is.
fn again(child: &Child, prompt: &[u32]) -> OpenSession {
    let all = range(0, child.ready.num_layers);
    OpenSession { at: CONTEXT as u32, ..open(SESSION, all, Some(conduct(prompt, &[], &creative(), &[]))) }
}

#[tokio::test]
async fn a_rehearsal_prices_visit_and_head_and_leaves_nothing_behind() {
    let (worker, ready, outputs) = spawn_rehearsed(spec(&[])).await.unwrap();
    let mut child = Child { worker, ready, outputs };
    let found = rehearse(&child.worker, &child.ready, &mut child.outputs).await.unwrap();
    assert!(found.visit_ms.is_some() && found.visit_and_head_ms.is_some(), "{found:?}");
    assert_eq!(child.worker.jobs(), 0);
    assert!(child.outputs.try_recv().is_err(), "what it said was taken");
    let layers = range(0, child.ready.num_layers);
    let session = SessionId::numbered(1);
    assert_eq!(child.worker.open(open(session, layers, None)).await, Ok(0));
    // Without room for a single position there is no rehearsal, and a worker all the same.
    let (poor, ready, mut outputs) = spawn_rehearsed(Spec { kv_bytes: 0, ..spec(&[]) }).await.unwrap();
    assert_eq!(rehearse(&poor, &ready, &mut outputs).await, Ok(Rehearsed::default()));
    assert!(poor.is_alive());
    // The last layer alone: layer and head are one price.
    let last = range(layers.end() - 1, layers.end());
    let (end, ready, mut outputs) = spawn_rehearsed(spec(&[last])).await.unwrap();
    let found = rehearse(&end, &ready, &mut outputs).await.unwrap();
    assert!(found.visit_ms.is_none() && found.visit_and_head_ms.is_some(), "{found:?}");
}

/// Drafts of which any prefix is right, beside the same answer token by token.
#[tokio::test]
async fn a_draft_gives_the_tokens_that_come_one_by_one() {
    let model = model();
    let mut child = Child::start(&[]).await;
    let prompt = model.tokenizer.encode("Once upon a time", Encode::TEXT).unwrap();
    let all = range(0, child.ready.num_layers);
    let most = 24;
    let (steps, text, _) = decode(&mut child, conduct(&prompt, &[], &creative(), &[]), most).await;
    let ids: Vec<u32> = steps.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), most);
    for (drafted, wrong) in [(1, 9), (4, 9), (4, 0), (4, 2), (7, 6), (16, 3)] {
        let session = SessionId::numbered(100 + drafted as u64 * 10 + wrong as u64);
        child.worker.open(open(session, all, Some(conduct(&prompt, &[], &creative(), &[])))).await.unwrap();
        let input = JobInput::Tokens(prompt.clone());
        let (first, piece, _) =
            sampled(child.run(job(session, 0, 0, prompt.len(), input, Want::Sample)).await);
        let (mut said, mut words, mut passes) = (vec![first], piece, 0);
        while said.len() < most {
            let mut draft: Vec<u32> = ids[said.len()..].iter().take(drafted).copied().collect();
            let right = draft.len().min(wrong);
            if let Some(id) = draft.get_mut(wrong) {
                *id = (*id + 1) % 100;
            }
            let rows: Vec<u32> = said.last().into_iter().chain(&draft).copied().collect();
            let at = prompt.len() + said.len() - 1;
            let asked = job(session, 0, at, rows.len(), JobInput::Tokens(rows), Want::Sample);
            let asked = Job { draft: DraftIds(draft), attempt: passes, ..asked };
            let Body::Sampled(tokens) = child.run(asked).await else { panic!("tokens are expected") };
            assert_eq!(tokens.len(), right + 1, "the right ones and one more");
            for token in tokens {
                assert_eq!(token.position as usize, prompt.len() + said.len());
                said.push(token.id);
                words.push_str(&token.text);
            }
            passes += 1;
        }
        // The last step may say one token more than is compared.
        assert_eq!(said[..most], ids, "{drafted} drafted, {wrong} right");
        assert!(
            words.starts_with(text.trim_end_matches('\u{fffd}')) || text.starts_with(&words),
            "{words} {text}"
        );
    }
}
