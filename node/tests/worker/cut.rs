//! A model cut over several workers: the same answers, and what a stage promises.

use node::worker::{Fault, JobInput, Want};
use scheduler::SessionId;
use shard::{round::Rule, sample::SamplingParams, tokenizer::Encode};

use super::*;

const SESSION: SessionId = SessionId::numbered(2);

/// Takes rows through the ranges of `stages` (worker index, range) and gives the last body.
async fn pass(
    children: &mut [Child],
    stages: &[(usize, LayerRange)],
    ids: &[u32],
    (from, epoch): (usize, u32),
    want: Want,
) -> Body {
    let mut input = JobInput::Tokens(ids.to_vec());
    for (index, &(child, layers)) in stages.iter().enumerate() {
        let last = index + 1 == stages.len();
        let want = if last { want } else { Want::Activations };
        let job = Job { epoch, ..job(SESSION, layers.start(), from, ids.len(), input, want) };
        let body = children[child].run(job).await;
        if last {
            return body;
        }
        input = activations(body);
    }
    unreachable!("there are stages");
}

async fn open_all(
    children: &[Child],
    stages: &[(usize, LayerRange)],
    rounding: &Rounding,
    mut conduct: Option<Conduct>,
) {
    let last = stages.last().unwrap().1;
    for &(child, layers) in stages {
        let conduct = if layers == last { conduct.take() } else { None };
        let open = OpenSession { rounding: rounding.clone(), ..open(SESSION, layers, conduct) };
        assert_eq!(children[child].worker.open(open).await, Ok(0));
    }
}

/// The ids of a greedy answer of `count` tokens.
async fn answer(
    children: &mut [Child],
    stages: &[(usize, LayerRange)],
    rounding: &Rounding,
    prompt: &[u32],
    count: usize,
) -> Vec<u32> {
    let sampling = SamplingParams::default();
    open_all(children, stages, rounding, Some(conduct(prompt, &[], &sampling, &[]))).await;
    let (first, rest) = prompt.split_at(prompt.len() / 2);
    pass(children, stages, first, (0, 1), Want::Nothing).await;
    let mut body = pass(children, stages, rest, (first.len(), 1), Want::Sample).await;
    let mut ids = Vec::new();
    while ids.len() < count {
        let (id, _, stop) = sampled(body);
        assert!(!stop, "a story of {count} tokens was expected");
        ids.push(id);
        let at = prompt.len() + ids.len() - 1;
        body = pass(children, stages, &[id], (at, 1), Want::Sample).await;
    }
    children.iter().for_each(|child| child.worker.close(SESSION));
    ids
}

#[tokio::test]
async fn cuts_over_two_workers_change_nothing_raw_or_rounded() {
    let model = model();
    let prompt = model.tokenizer.encode("Once upon a time there was a fox", Encode::TEXT).unwrap();
    let n = model.executor.blueprint().layers.len() as u32;
    let (a, b) = (n / 3, n - 1);
    // Home holds both ends, a stranger the middle.
    let home = Child::start(&[range(0, a), range(b, n)]).await;
    let stranger = Child::start(&[range(a, b)]).await;
    let whole = Child::start(&[]).await;
    let mut children = [home, stranger, whole];
    assert_eq!(children[0].ready.layers, [range(0, a), range(b, n)]);
    let boomerang = [(0, range(0, a)), (1, range(a, b)), (0, range(b, n))];
    let alone = [(2, range(0, n))];
    let pieces = [(2, range(0, a)), (2, range(a, b)), (2, range(b, n))];

    let count = 24;
    let sampling = SamplingParams::default();
    let reference: Vec<u32> =
        expected(&model, &prompt, &sampling, &[], count).steps.iter().map(|step| step.0).collect();
    let exact = Rounding::NONE;
    assert_eq!(answer(&mut children, &boomerang, &exact, &prompt, count).await, reference);
    assert_eq!(answer(&mut children, &pieces, &exact, &prompt, count).await, reference);

    // Cut there or not, and cut where nothing is rounded.
    let other = [(0, range(0, a)), (1, range(a, b)), (2, range(b, n))];
    for wire in [Wire::Q8, Wire::C8] {
        let rounding = Rounding::new(wire, vec![a, b]);
        let rounded = answer(&mut children, &boomerang, &rounding, &prompt, count).await;
        for stages in [&alone[..], &pieces[..], &other[..]] {
            let again = answer(&mut children, stages, &rounding, &prompt, count).await;
            assert_eq!(again, rounded, "{stages:?} over {wire}");
        }
        let elsewhere = Rounding::new(wire, vec![1]);
        let whole = answer(&mut children, &alone, &elsewhere, &prompt, count).await;
        assert_eq!(answer(&mut children, &pieces, &elsewhere, &prompt, count).await, whole, "{wire}");
    }
}

#[tokio::test]
async fn any_part_of_the_model_can_be_held_and_is_measured() {
    let num_layers = Child::start(&[range(0, 1)]).await.ready.num_layers;
    let last = range(num_layers - 1, num_layers);
    for layers in [vec![last], vec![range(0, 1), last], vec![range(2, 4), last], vec![range(3, 4)]] {
        let ready = Child::start(&layers).await.ready;
        assert_eq!(ready.layers, layers);
        assert!(ready.times.decode_ms > 0.0 && ready.times.prefill_ms > 0.0, "{ready:?}");
    }
}

#[tokio::test]
async fn rounding_changes_the_rows_that_leave_and_only_by_the_rule() {
    let model = model();
    let prompt = model.tokenizer.encode("Once upon a time", Encode::TEXT).unwrap();
    let mut children = [Child::start(&[range(0, 2)]).await];
    let stages = [(0, range(0, 2))];
    let mut rows = Vec::new();
    for wire in Wire::ALL {
        open_all(&children, &stages, &Rounding::new(wire, vec![2]), None).await;
        let body = pass(&mut children, &stages, &prompt, (0, 1), Want::Activations).await;
        let Body::Activations(came, bytes) = body else { panic!("{body:?}") };
        assert_eq!(came, wire);
        let mut values = Vec::new();
        let width = children[0].ready.hidden as usize;
        p2p::codec::decode(wire, width, prompt.len(), &bytes, &mut values).unwrap();
        rows.push(values);
        children[0].worker.close(SESSION);
    }
    for (wire, rounded) in Wire::ALL.into_iter().zip(&rows).skip(1) {
        let rule = Rule::ALL.into_iter().find(|rule| rule.name() == wire.name()).unwrap();
        let mut expected = rows[0].clone();
        rule.apply(&mut expected);
        assert_eq!(*rounded, expected, "{wire}");
        assert_ne!(*rounded, rows[0], "{wire}");
    }
}

#[tokio::test]
async fn positions_and_epochs_are_kept_as_a_stage_promises() {
    let model = model();
    let prompt = model.tokenizer.encode("Once upon a time there was a fox", Encode::TEXT).unwrap();
    let mut children = [Child::start(&[range(0, 3)]).await];
    let stages = [(0, range(0, 3))];
    open_all(&children, &stages, &Rounding::NONE, None).await;
    let go = async |children: &mut [Child], at: std::ops::Range<usize>, epoch| {
        pass(children, &stages, &prompt[at.clone()], (at.start, epoch), Want::Activations).await
    };
    let first = go(&mut children, 0..4, 1).await;
    assert!(matches!(first, Body::Activations(..)));
    assert_eq!(go(&mut children, 5..6, 1).await, Body::NeedReplay { have: 4 });
    let second = go(&mut children, 4..7, 1).await;
    // Back to position 2 and forward again: the same rows.
    go(&mut children, 2..4, 2).await;
    assert_eq!(go(&mut children, 7..8, 2).await, Body::NeedReplay { have: 4 });
    assert_eq!(go(&mut children, 4..7, 2).await, second);

    // The lower epoch has no effect and no answer: the next output is the next epoch's.
    let stale = JobInput::Tokens(prompt[..2].to_vec());
    children[0].worker.run(job(SESSION, 0, 0, 2, stale, Want::Activations)).unwrap();
    let input = JobInput::Tokens(prompt[7..8].to_vec());
    let fresh = Job { epoch: 3, ..job(SESSION, 0, 7, 1, input, Want::Nothing) };
    children[0].worker.run(fresh).unwrap();
    let output = children[0].next().await;
    assert_eq!((output.epoch, output.from, output.body), (3, 7, Body::Nothing));
    assert_eq!(children[0].worker.jobs(), 0);

    // Opening again keeps what lies below `at`, and an epoch that is over is refused.
    let again = |epoch, at| OpenSession { epoch, at, ..open(SESSION, range(0, 3), None) };
    assert!(
        matches!(children[0].worker.open(again(2, 9)).await, Err(Fault::Refused(why)) if why.contains("epoch 2"))
    );
    assert_eq!(children[0].worker.open(again(3, 6)).await, Ok(6));
    children[0].worker.truncate(SESSION, 5).unwrap();
    assert_eq!(children[0].worker.open(again(4, 100)).await, Ok(5));
    // Another cut of the same layers starts from the beginning.
    let other = OpenSession { epoch: 5, at: 100, ..open(SESSION, range(1, 3), None) };
    assert_eq!(children[0].worker.open(other).await, Ok(0));
    let gone = go(&mut children, 5..6, 5).await;
    assert!(matches!(gone, Body::Failed(why) if why.contains("open it")));
}

#[tokio::test]
async fn jobs_that_make_no_sense_fail_alone() {
    let mut child = Child::start(&[range(0, 2), range(2, 4)]).await;
    // Adjacent ranges are one.
    assert_eq!(child.ready.layers, [range(0, 4)]);
    let width = child.ready.hidden as usize;
    let tail = OpenSession { positions: 300, ..open(SESSION, range(2, 4), None) };
    child.worker.open(tail).await.unwrap();
    child.worker.open(open(SESSION, range(0, 2), None)).await.unwrap();
    let rows = |n: usize, value: f32| JobInput::Wire(Wire::Raw, value.to_le_bytes().repeat(n * width));
    let cases = [
        (job(SESSION, 2, 0, 1, rows(1, f32::NAN), Want::Nothing), "activation"),
        (job(SESSION, 2, 0, 2, rows(1, 1.0), Want::Nothing), "length"),
        (job(SESSION, 2, 0, 0, rows(0, 1.0), Want::Nothing), "rows"),
        (job(SESSION, 2, 0, 257, rows(257, 1.0), Want::Nothing), "rows"),
        (job(SESSION, 2, 299, 2, rows(2, 1.0), Want::Nothing), "opened for 300"),
        (job(SESSION, 2, 0, 1, rows(1, 1.0), Want::Sample), "before the last layer"),
        (job(SESSION, 2, 0, 1, JobInput::Wire(Wire::Q8, vec![0; width / 32 * 34]), Want::Nothing), "round"),
        (job(SESSION, 2, 0, 1, JobInput::Tokens(vec![1]), Want::Nothing), "layer 0"),
        (job(SESSION, 0, 0, 1, JobInput::Tokens(vec![u32::MAX]), Want::Nothing), "vocabulary"),
        (job(SESSION, 0, 0, 2, JobInput::Tokens(vec![1]), Want::Nothing), "token ids"),
        (job(SESSION, 0, 0, 1, rows(1, 1.0), Want::Nothing), "layer 0"),
        (job(SESSION, 1, 0, 1, rows(1, 1.0), Want::Nothing), "open it"),
    ];
    for (job, what) in cases {
        let body = child.run(job).await;
        assert!(matches!(&body, Body::Failed(why) if why.contains(what)), "{what}: {body:?}");
    }
    assert_eq!(child.run(job(SESSION, 2, 0, 1, rows(1, 1.0), Want::Nothing)).await, Body::Nothing);

    let refused = [
        (open(SESSION, range(3, 5), None), "not loaded"),
        (OpenSession { positions: 0, ..open(SESSION, range(0, 2), None) }, "positions"),
        (OpenSession { positions: CONTEXT as u32 + 1, ..open(SESSION, range(0, 2), None) }, "positions"),
        (open(SESSION, range(0, 2), Some(conduct(&[1], &[], &SamplingParams::default(), &[]))), "head"),
    ];
    for (open, what) in refused {
        let error = child.worker.open(open).await.unwrap_err();
        assert!(matches!(&error, Fault::Refused(why) if why.contains(what)), "{what}: {error}");
    }
}
