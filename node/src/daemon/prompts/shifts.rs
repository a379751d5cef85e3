//! One report of an answer that went on beyond its context, each stretch of which was a session of its own.

use api::swarm_records::{Step, StepKind, Timeline};

use crate::events::{CheckReport, Conducted, DraftReport, PromptReport, Timing};

/// One report of an answer that went on after `before`.
pub(super) fn joined(before: Option<&PromptReport>, after: PromptReport) -> PromptReport {
    let Some(before) = before else { return after };
    let counts = [before.completion_tokens, after.completion_tokens].map(|count| count as f64);
    PromptReport {
        session: before.session.clone(),
        text: before.text.clone() + &after.text,
        ids: [&before.ids[..], &after.ids].concat(),
        completion_tokens: before.completion_tokens + after.completion_tokens,
        context_shifts: before.context_shifts + 1,
        timing: before.timing.clone().zip(after.timing).map(|(before, after)| timing(before, after, counts)),
        conducted: before
            .conducted
            .as_deref()
            .zip(after.conducted)
            .map(|(before, after)| Box::new(conducted(before, *after, counts))),
        ..after
    }
}

fn timing(before: Timing, after: Timing, counts: [f64; 2]) -> Timing {
    // Behind a full context the first token waits for what is computed again.
    let ms = |tokens: f64, tok_s: f64| if tok_s > 0.0 { 1e3 * tokens / tok_s } else { 0.0 };
    let [told, more] = counts.map(|count| (count - 1.0).max(0.0));
    let took_ms = ms(told, before.decode_tok_s) + after.ttft_ms + ms(more, after.decode_tok_s);
    Timing {
        decode_tok_s: 1e3 * (told + 1.0 + more) / took_ms.max(1e-9),
        stages: after.stages,
        faults: [before.faults, after.faults].concat(),
        ..before
    }
}

fn conducted(before: &Conducted, after: Conducted, counts: [f64; 2]) -> Conducted {
    let told = counts[0] as u32;
    Conducted {
        opened_ms: before.opened_ms,
        predicted: before.predicted.clone(),
        checks: checks(&before.checks, after.checks, counts),
        receipts: before.receipts + after.receipts,
        hedged: [&before.hedged[..], &after.hedged].concat(),
        drafts: drafts(before.drafts.as_ref(), after.drafts),
        bytes_out: before.bytes_out + after.bytes_out,
        bytes_in: before.bytes_in + after.bytes_in,
        timeline: timeline(&before.timeline, after.timeline, told),
        ..after
    }
}

fn checks(before: &CheckReport, after: CheckReport, [told, more]: [f64; 2]) -> CheckReport {
    let all = |a: &[String], b: Vec<String>| -> Vec<String> {
        let new = b.into_iter().filter(|node| !a.contains(node));
        a.iter().cloned().chain(new).collect()
    };
    CheckReport {
        verified: (before.verified * told + after.verified * more) / (told + more).max(1.0),
        settled_by_thirds: before.settled_by_thirds + after.settled_by_thirds,
        checked_by: all(&before.checked_by, after.checked_by),
        convicted: all(&before.convicted, after.convicted),
        integrity: before.integrity.or(after.integrity.map(|token| token + told as u32)),
        differing_answers: before.differing_answers + after.differing_answers,
    }
}

fn drafts(before: Option<&DraftReport>, after: Option<DraftReport>) -> Option<DraftReport> {
    let (Some(before), Some(after)) = (before, after.clone()) else { return after.or(before.cloned()) };
    let mut by = before.by.clone();
    for (name, proposed, right) in after.by {
        match by.iter_mut().find(|known| known.0 == name) {
            Some(known) => (known.1, known.2) = (known.1 + proposed, known.2 + right),
            None => by.push((name, proposed, right)),
        }
    }
    Some(DraftReport {
        proposed: before.proposed + after.proposed,
        right: before.right + after.right,
        passes: before.passes + after.passes,
        tokens: before.tokens + after.tokens,
        by,
    })
}

fn timeline(before: &Timeline, after: Timeline, told: u32) -> Timeline {
    let mut all = before.clone();
    all.steps.retain(|step| step.what != StepKind::Ended);
    let since_ms = after.began_ms.saturating_sub(before.began_ms) as f64;
    for Step { at_ms, token, what } in after.steps {
        if what != StepKind::FirstToken {
            all.add(Step { at_ms: at_ms + since_ms, token: token + told, what });
        }
    }
    all.left_out = all.left_out.saturating_add(after.left_out);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tokens: u32, tok_s: f64, ttft_ms: f64, began_ms: u64) -> PromptReport {
        let step = |at_ms: f64, token: u32, what: StepKind| Step { at_ms, token, what };
        let steps = vec![step(1.0, 0, StepKind::FirstToken), step(5.0, 2, StepKind::Ended)];
        let drafts =
            DraftReport { proposed: 4, right: 3, passes: 2, tokens: 5, by: vec![("lookup".into(), 4, 3)] };
        let checks = CheckReport {
            verified: 1.0 / f64::from(tokens),
            checked_by: vec!["a".into(), tokens.to_string()],
            integrity: Some(2),
            ..CheckReport::default()
        };
        PromptReport {
            session: Some(format!("{tokens}")),
            text: format!("<{tokens}>"),
            ids: vec![7; tokens as usize],
            completion_tokens: tokens as usize,
            timing: Some(Timing { prompt_tokens: 3, ttft_ms, decode_tok_s: tok_s, ..Timing::default() }),
            conducted: Some(Box::new(Conducted {
                checks,
                bytes_in: 10,
                drafts: Some(drafts),
                timeline: Timeline { began_ms, steps, left_out: 0 },
                ..Conducted::default()
            })),
            ..PromptReport::default()
        }
    }

    #[test]
    fn stretches_are_one_answer() {
        let alone = joined(None, report(5, 10.0, 40.0, 0));
        assert_eq!((alone.context_shifts, alone.completion_tokens), (0, 5));
        let both = joined(Some(&report(11, 100.0, 40.0, 1_000)), report(6, 50.0, 300.0, 1_500));
        assert_eq!((both.session.as_deref(), &both.text[..]), (Some("11"), "<11><6>"));
        assert_eq!((both.ids.len(), both.completion_tokens, both.context_shifts), (17, 17, 1));
        let timing = both.timing.unwrap();
        assert_eq!((timing.prompt_tokens, timing.ttft_ms), (3, 40.0));
        // 10 further tokens in 100 ms, one after 300 ms, 5 more in 100 ms.
        assert_eq!(timing.decode_tok_s, 1e3 * 16.0 / 500.0);
        let conducted = both.conducted.unwrap();
        assert_eq!(conducted.checks.verified, 2.0 / 17.0);
        assert_eq!(
            (conducted.checks.checked_by, conducted.checks.integrity),
            (vec!["a".into(), "11".into(), "6".into()], Some(2))
        );
        assert_eq!((conducted.bytes_in, conducted.drafts.unwrap().by), (20, vec![("lookup".into(), 8, 6)]));
        let steps: Vec<(f64, u32)> =
            conducted.timeline.steps.iter().map(|step| (step.at_ms, step.token)).collect();
        assert_eq!(steps, [(1.0, 0), (505.0, 13)], "it begins once and ends once");
    }
}
