//! `shoal privacy audit`: how much of a text comes back from the activations that strangers see.

use serde_json::{Value, json};
use shard::{round::Rule, tokenizer::Encode};

use super::file_text;
use crate::{
    Result,
    cli::AuditArgs,
    model::Model,
    output::{self, say},
    privacy::{self, Attack, Subject},
};

/// Rounding wires that are attacked besides `raw`: what strangers usually get.
const SMALL: [Rule; 2] = [Rule::C8, Rule::Q8];

pub(super) fn audit(args: AuditArgs) -> Result<()> {
    let text = args.text.as_deref().map(file_text).transpose()?;
    let model = Model::load_confined(&args.engine)?;
    let text = text.as_deref().unwrap_or(privacy::TEXT);
    let known = model.tokenizer.encode("", Encode { bos: true, special: false })?;
    let known = known.get(..1).filter(|first| first.first().copied() == model.tokenizer.bos()).unwrap_or(&[]);
    let secret = model.tokenizer.encode(text, Encode { bos: false, special: false })?;
    let room = model.ctx - known.len().min(model.ctx);
    let secret = &secret[..secret.len().min(args.tokens as usize).min(room)];

    output::catch_interrupt()?;
    // A model whose rows are no whole groups has no sessions over that wire, and nothing to attack there.
    let hidden = model.executor.blueprint().hidden;
    let rules = Rule::ALL.into_iter().filter(|rule| hidden.is_multiple_of(rule.group()));
    let rules = rules.filter(|rule| SMALL.contains(rule)).map(|rule| (rule.name(), Some(rule)));
    let wires: Vec<(&str, Option<Rule>)> = [("raw", None)].into_iter().chain(rules).collect();
    let bar = output::progress((secret.len() * wires.len()) as u64, "reconstructing", false);
    let mut attacks = Vec::new();
    for &(name, rounded) in &wires {
        let subject = Subject { known, secret, head: args.head, rounded };
        let attack = privacy::audit(&*model.executor, subject, &mut || {
            bar.inc(1);
            if output::interrupted() { Err(crate::Error::Interrupted) } else { Ok(()) }
        })?;
        attacks.push((name, attack));
    }
    bar.finish_and_clear();

    if args.json {
        let mut line = json!({"model": model.name, "head": args.head, "tokens": secret.len()});
        for (name, attack) in &attacks {
            line[*name] = figures(attack, secret.len());
            line[*name]["text"] = json!(model.tokenizer.decode(&attack.found));
        }
        return output::json_line(&line);
    }
    for (name, attack) in &attacks {
        let share = 100.0 * attack.recovered as f64 / secret.len() as f64;
        let tried = attack.tried as f64 / secret.len() as f64;
        let (recovered, tokens, head) = (attack.recovered, secret.len(), args.head);
        say!(
            "head {head}, wire {name}: {recovered} of {tokens} tokens recovered ({share:.0} %), {tried:.0} candidates each"
        );
        say!("  {}", model.tokenizer.decode(&attack.found));
    }
    let worst = attacks.iter().map(|(_, attack)| attack.recovered).max().unwrap_or_default();
    say!("{}", sentence(worst, secret.len(), args.head));
    Ok(())
}

fn figures(attack: &Attack, tokens: usize) -> Value {
    json!({
        "recovered": attack.recovered,
        "share": attack.recovered as f64 / tokens as f64,
        "candidates_per_token": attack.tried as f64 / tokens as f64,
    })
}

/// What the figures mean. It promises nothing where the attack failed: better ones are published.
fn sentence(recovered: usize, tokens: usize, head: u32) -> String {
    let layers = if head == 1 { "layer" } else { "layers" };
    let who = format!("With {head} {layers} at home, a stranger who also has this model");
    if recovered == 0 {
        return format!(
            "{who} read nothing back this way, which proves nothing: stronger attacks are published."
        );
    }
    let much = if recovered == tokens {
        "all of the text".to_string()
    } else {
        format!("{recovered} of {tokens} tokens")
    };
    format!(
        "{who} reads {much} back from the activations, prompt and reply alike; only running alone or with peers you trust keeps it from strangers."
    )
}

#[cfg(test)]
mod tests {
    use super::sentence;

    #[test]
    fn the_sentence_says_no_more_than_was_measured() {
        assert!(sentence(40, 40, 1).contains("all of the text"));
        assert!(sentence(39, 40, 2).contains("39 of 40 tokens"));
        assert!(sentence(0, 40, 2).contains("proves nothing"));
    }
}
