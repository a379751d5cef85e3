use super::*;

fn sampler(params: SamplingParams, seed: u64) -> Sampler {
    Sampler::new(params, seed, 5).unwrap()
}

fn ids(params: &SamplingParams, logits: [f32; 5], draws: u64) -> Vec<u32> {
    let mut sampler = sampler(params.clone(), 7);
    (0..draws).map(|t| sampler.sample(&mut logits.clone(), &[], t).unwrap().id).collect()
}

const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

#[test]
fn greedy_takes_the_first_of_the_largest() {
    assert_eq!(ids(&SamplingParams::default(), LOGITS, 3), [1, 1, 1]);
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    let mut a = sampler(params.clone(), 42);
    let forward: Vec<u32> = (0..64).map(|t| a.sample(&mut LOGITS.clone(), &[], t).unwrap().id).collect();
    let mut b = sampler(params, 42);
    let mut backward: Vec<u32> =
        (0..64).rev().map(|t| b.sample(&mut LOGITS.clone(), &[], t).unwrap().id).collect();
    backward.reverse();
    assert_eq!(forward, backward);
}

#[test]
fn frequencies_follow_the_softmax() {
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    let drawn = ids(&params, LOGITS, 40_000);
    let sum: f64 = LOGITS.iter().map(|&l| math::exp(f64::from(l))).sum();
    for (id, &logit) in LOGITS.iter().enumerate() {
        let expected = math::exp(f64::from(logit)) / sum;
        let share = drawn.iter().filter(|&&d| d as usize == id).count() as f64 / drawn.len() as f64;
        assert!((share - expected).abs() < 0.01, "token {id}: {share} drawn, {expected} expected");
    }
}

#[test]
fn the_filters_keep_what_they_say() {
    let base = SamplingParams { temperature: 1.0, ..Default::default() };
    let cases = [
        (SamplingParams { top_k: 1, ..base.clone() }, vec![1]),
        (SamplingParams { top_k: 3, ..base.clone() }, vec![1, 2, 3]),
        (SamplingParams { top_p: 0.5, ..base.clone() }, vec![1, 3]),
        (SamplingParams { min_p: 0.9, ..base.clone() }, vec![1, 3]),
        (SamplingParams { min_p: 0.3, ..base.clone() }, vec![1, 2, 3]),
        (SamplingParams { typical_p: 0.3, ..base }, vec![1]),
    ];
    for (params, expected) in cases {
        let mut kept = ids(&params, LOGITS, 2_000);
        kept.sort_unstable();
        kept.dedup();
        assert_eq!(kept, expected, "{params:?}");
    }
}

/// All tokens sorted and weighed, whatever the choice looks at.
fn chosen_among_all(params: &SamplingParams, logits: &[f32], uniform: f32) -> u32 {
    let max = largest(logits);
    let weight = |logit: f32| math::exp_f32((logit - max) / params.temperature);
    let mut all: Vec<(u32, f32, f32)> = (0..).zip(logits).map(|(id, &l)| (id, l, weight(l))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let sum = |all: &[(u32, f32, f32)]| all.iter().fold(0.0, |sum, it| sum + f64::from(it.2));
    let mut lanes = [0.0; 16];
    logits.iter().enumerate().for_each(|(i, &l)| lanes[i % 16] += f64::from(weight(l)));
    let mut mass: f64 = lanes.iter().sum();
    if params.min_p > 0.0 || (params.top_k > 0 && params.top_k < all.len()) {
        all.truncate(if params.top_k > 0 { params.top_k } else { all.len() });
        all.retain(|it| it.2 >= params.min_p);
        mass = sum(&all);
    }
    let front = |all: &mut Vec<(u32, f32, f32)>, wanted: f64| {
        let reached = (1..=all.len()).find(|&n| sum(&all[..n]) >= wanted);
        all.truncate(reached.unwrap_or(all.len()));
        sum(all)
    };
    if params.typical_p < 1.0 {
        let surprise = |l: f32| math::ln(mass) + f64::from((max - l) / params.temperature);
        let likely = all.iter().filter(|it| it.2 > 0.0);
        let entropy: f64 = likely.map(|it| f64::from(it.2) / mass * surprise(it.1)).sum();
        let odd = |l: f32| (surprise(l) - entropy).abs() as f32;
        all.sort_by(|a, b| odd(a.1).total_cmp(&odd(b.1)).then(a.0.cmp(&b.0)));
        mass = front(&mut all, f64::from(params.typical_p) * mass);
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    if params.top_p < 1.0 {
        mass = front(&mut all, f64::from(params.top_p) * mass);
    }
    let target = f64::from(uniform) * mass;
    let drawn = (1..all.len()).find(|&n| sum(&all[..n]) > target);
    all[drawn.unwrap_or(all.len()) - 1].0
}

#[test]
fn what_is_not_looked_at_changes_no_choice() {
    const VOCAB: usize = 1_237;
    let mut random = Random(9);
    let mut unit = || (random.next() >> 40) as f32 / (1u64 << 24) as f32;
    for round in 0..400u64 {
        let pick = |of: &[f32]| of[(uniform(round, of.len() as u64) * of.len() as f32) as usize];
        let params = SamplingParams {
            temperature: [0.05, 0.8, 1.0, 3.0, 40.0][round as usize % 5],
            top_k: [0, 1, 7, 300, VOCAB + 9][round as usize / 5 % 5],
            min_p: pick(&[0.0, 0.0, 0.02, 1e-9]),
            top_p: pick(&[1.0, 0.95, 0.3]),
            typical_p: pick(&[1.0, 1.0, 1.0, 1.0, 0.7]),
            ..Default::default()
        };
        // Some logits are equal, and some of no weight.
        let logits: Vec<f32> = (0..VOCAB).map(|_| (unit() * unit() * 800.0).round() / 16.0).collect();
        let mut sampler = Sampler::new(params.clone(), round, VOCAB).unwrap();
        for position in 0..8 {
            let expected = chosen_among_all(&params, &logits, uniform(round, position));
            let chosen = sampler.sample(&mut logits.clone(), &[], position).unwrap().id;
            assert_eq!(chosen, expected, "{params:?}");
        }
    }
}

#[test]
fn penalties_and_bias_change_the_choice_but_not_the_logprob() {
    let params = SamplingParams {
        frequency_penalty: 1.5,
        logit_bias: vec![(3, -10.0)],
        logprobs: true,
        top_logprobs: 2,
        ..Default::default()
    };
    let mut sampler = sampler(params, 0);
    let choice = sampler.sample(&mut LOGITS.clone(), &[1, 4, 1], 3).unwrap();
    assert_eq!(choice.id, 2);
    let normalizer = log_sum_exp(&LOGITS, &mut Vec::new());
    assert!((choice.logprob.unwrap() - (2.0 - normalizer)).abs() < 1e-5);
    assert_eq!(choice.top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn the_logprob_of_a_penalized_choice_is_the_model_s() {
    let params = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        logprobs: true,
        ..Default::default()
    };
    let mut sampler = sampler(params, 0);
    let choice = sampler.sample(&mut LOGITS.clone(), &[1], 1).unwrap();
    assert_eq!((choice.id, choice.top.len()), (3, 0));
    let choice = sampler.sample(&mut [0.0, 9.0, 0.0, 0.0, 0.0], &[1], 1).unwrap();
    let expected = 9.0 - log_sum_exp(&[0.0, 9.0, 0.0, 0.0, 0.0], &mut Vec::new());
    assert!((choice.logprob.unwrap() - expected).abs() < 1e-5);
}

#[test]
fn a_given_token_has_the_logprob_that_a_chosen_one_has() {
    let params = SamplingParams { logprobs: true, top_logprobs: 3, ..Default::default() };
    let mut sampler = sampler(params, 0);
    let choice = sampler.sample(&mut LOGITS.clone(), &[], 0).unwrap();
    let (given, top) = logprobs(&LOGITS, choice.id, 3).unwrap();
    assert_eq!((Some(given.logprob), top.as_slice()), (choice.logprob, choice.top));
    assert!(logprobs(&LOGITS, 5, 0).is_err() && logprobs(&LOGITS, 0, MAX_TOP_LOGPROBS + 1).is_err());
    assert!(logprobs(&[f32::NAN], 0, 0).is_err());
}

#[test]
fn nonsense_is_refused() {
    let refused = |params: SamplingParams| Sampler::new(params, 0, 5).is_err();
    assert!(refused(SamplingParams { temperature: -1.0, ..Default::default() }));
    assert!(refused(SamplingParams { top_p: f32::NAN, ..Default::default() }));
    assert!(refused(SamplingParams { logit_bias: vec![(5, 1.0)], ..Default::default() }));
    assert!(sampler(SamplingParams::default(), 0).sample(&mut [f32::NAN; 5], &[], 0).is_err());
}

#[test]
fn the_draws_are_frozen() {
    let draws: Vec<u32> = (0..4).map(|t| (uniform(1, t) * 16_777_216.0) as u32).collect();
    assert_eq!(draws, [6177195, 15830380, 759286, 13043227]);
}
