//! `shoal resume`: continue an answer that a crash interrupted.

use std::io::{self, IsTerminal};

use serde_json::json;

use super::remote;
use crate::{
    Result,
    cli::swarm::ResumeArgs,
    control::Question,
    events::PromptEvent,
    journal,
    output::{self, say},
};

/// Characters of a prompt in a list.
const EXCERPT: usize = 60;

pub(in crate::commands) fn resume(args: ResumeArgs) -> Result<()> {
    let home = args.home.path()?;
    if args.list {
        return list(&args, &journal::unfinished(&home));
    }
    if args.forget {
        let forgotten = journal::forget(&home, args.session.as_deref());
        return if args.json {
            output::json_line(&json!({ "forgotten": forgotten, "end": true }))
        } else {
            say!("Deleted {forgotten} interrupted answer{}.", if forgotten == 1 { "" } else { "s" });
            Ok(())
        };
    }
    output::catch_interrupt()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let question = Question::Resume { session: args.session };
    if args.json {
        return runtime.block_on(remote::follow_as_json(&home, &question)).map(drop);
    }
    let last = runtime.block_on(remote::follow(&home, &question, &mut |event| match event {
        PromptEvent::Resumed(resumed) => output::text(&resumed.text),
        PromptEvent::Token(token) => output::text(&token.text),
        PromptEvent::Done(report) => output::text(&format!("{}\n", report.rest)),
        _ => Ok(()),
    }))?;
    if io::stderr().is_terminal() {
        eprintln!("\n{}", remote::summary_text(&last));
    }
    Ok(())
}

fn list(args: &ResumeArgs, kept: &[journal::Kept]) -> Result<()> {
    if args.json {
        let answers: Vec<_> = kept
            .iter()
            .map(|kept| json!({ "session": kept.name, "tokens": kept.ids.len(), "began_s": kept.begun.at_s }))
            .collect();
        return output::json_line(&json!({ "answers": answers, "end": true }));
    }
    if kept.is_empty() {
        say!("No answer was interrupted.");
    }
    for kept in kept {
        let excerpt: String = kept.begun.ask.prompt.excerpt().chars().take(EXCERPT).collect();
        let name = kept.name.get(..8).unwrap_or(&kept.name);
        say!("{name}  {:>5} tokens  {}", kept.ids.len(), excerpt.replace('\n', " "));
    }
    Ok(())
}
