//! A prompt through the running node, shown as it comes.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::{
    Error, Result,
    cli::{SamplingArgs, swarm::RouteArgs},
    control::{self, Ask, Caller, ForApi, Mode, Question},
    journal, output,
};

/// The question for the node.
pub fn question(
    prompt: Value,
    route: &RouteArgs,
    wire: &str,
    sampling: &SamplingArgs,
    may_stay_home: bool,
) -> Result<Ask> {
    let request = crate::commands::request(vec![0], sampling)?;
    let params = request.sampling;
    let bias: Vec<Value> = params.logit_bias.iter().map(|(id, by)| json!([id, by])).collect();
    Ok(Ask {
        model: String::new(),
        prompt,
        mode: route.mode.unwrap_or(Mode::Boomerang),
        may_stay_home,
        wire: wire.to_owned(),
        trusted: route.trust.clone(),
        head: route.head,
        tail: route.tail,
        sampling: json!({
            "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p,
            "typical_p": params.typical_p, "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
            "logit_bias": bias, "logprobs": params.logprobs, "top_logprobs": params.top_logprobs,
        }),
        seed: request.seed,
        max_tokens: request.max_tokens.min(u32::MAX as usize) as u32,
        stop: request.stop,
        api: ForApi::default(),
        verify: route.verify,
        shadow: route.shadow,
    })
}

/// A node that was told to cancel answers by then.
const CANCELLING: Duration = Duration::from_secs(2);

/// Asks the node and hands on every line of the answer; returns the last one. Ctrl-C cancels.
pub async fn generate(home: &Path, ask: Ask, on_line: &mut dyn FnMut(&Value) -> Result<()>) -> Result<Value> {
    follow(home, &Question::Generate(Box::new(ask)), on_line).await
}

/// Asks the node anything that is answered by tokens. See [`generate`].
pub async fn follow(
    home: &Path,
    question: &Question,
    on_line: &mut dyn FnMut(&Value) -> Result<()>,
) -> Result<Value> {
    let mut caller = Caller::ask(home, question).await?;
    let mut session = None;
    loop {
        let line = tokio::select! {
            line = caller.next() => line?,
            () = interrupted() => {
                cancel(home, &mut caller, session).await;
                return Err(Error::Interrupted);
            }
        };
        let Some(line) = line else {
            let why = "the node stopped in the middle of the answer; start it again with `shoal join`, and `shoal resume` \
                       continues where it stopped";
            return Err(Error::Failed(why.into()));
        };
        if line["event"] == "route" {
            session = line["session"].as_str().map(str::to_owned);
        }
        on_line(&line)?;
        if line["end"] == json!(true) {
            return match line["finish_reason"].as_str() {
                Some("failed") => Err(Error::Failed(format!(
                    "the prompt was given up ({}); `shoal why` shows what happened, `shoal peers` who is left{}",
                    line["gave_up"].as_str().unwrap_or("no reason"),
                    if line["kept"].is_string() {
                        ", `shoal resume` goes on when others are there"
                    } else {
                        ""
                    }
                ))),
                _ => Ok(line),
            };
        }
    }
}

/// The user does not want it any more: the node must not keep it either. The answer's end says that it does not.
async fn cancel(home: &Path, caller: &mut Caller, session: Option<String>) {
    let Some(session) = session else { return };
    let ended = async {
        let told = control::one(home, &Question::Cancel { session }).await;
        while told.is_ok() && matches!(caller.next().await, Ok(Some(line)) if line["end"] != json!(true)) {}
    };
    let _ = tokio::time::timeout(CANCELLING, ended).await;
}

/// Tells a person that an answer was interrupted and can be continued.
pub fn mention_unfinished(home: &Path) {
    if let Some(kept) = journal::unfinished(home).first() {
        eprintln!(
            "An answer was interrupted after {} tokens: `shoal resume` continues it, `shoal resume --forget` deletes it.",
            kept.ids.len()
        );
    }
}

/// Resolves when Ctrl-C was pressed; needs [`output::catch_interrupt`].
async fn interrupted() {
    while !output::interrupted() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// The route in one line: `home 0..1 → 1f2e3d4c 1..5 → home 7..8`.
pub fn route_text(line: &Value, me: &str) -> String {
    let stage = |stage: &Value| {
        let node = stage["node"].as_str().unwrap_or_default();
        let name = if node == me { "home" } else { node.get(..8).unwrap_or(node) };
        format!("{name} {}..{}", stage["start"], stage["end"])
    };
    line["stages"].as_array().into_iter().flatten().map(stage).collect::<Vec<_>>().join(" → ")
}

/// Who checked what strangers computed.
pub fn checked_text(line: &Value) -> String {
    let names = |value: &Value| -> Vec<String> {
        let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        names.map(|name| name.get(..8).unwrap_or(name).to_owned()).collect()
    };
    let by = names(&line["checked_by"]);
    let share = line["verified"].as_f64().unwrap_or_default() * 100.0;
    let mut text = match by.is_empty() {
        true if share >= 100.0 => "no other node computed".to_owned(),
        true => "by no node".to_owned(),
        false => format!("{share:.0} % of what others computed, by {}", by.join(", ")),
    };
    for stage in line["stages"].as_array().into_iter().flatten().filter(|stage| stage["near"].is_object()) {
        text.push_str(&format!(
            "; {} computes other bits, {:.1} % off over {} positions",
            names(&Value::Array(vec![stage["node"].clone()])).join(""),
            stage["near"]["distance"].as_f64().unwrap_or_default() * 100.0,
            stage["near"]["positions"],
        ));
    }
    let liars = names(&line["convicted"]);
    if !liars.is_empty() {
        text.push_str(&format!("; caught lying: {}", liars.join(", ")));
    }
    if let Some(token) = line["integrity"].as_u64() {
        text.push_str(&format!("; what was shown from token {token} on followed from a lie: run it again"));
    }
    text
}

/// One line about how it went.
pub fn summary_text(line: &Value) -> String {
    let number = |name: &str| line[name].as_f64().unwrap_or_default();
    // Who hands the prompt to another node predicts nothing.
    let predicted = |name: &str, digits: usize| {
        let known = line["predicted"][name].as_f64();
        known.map_or_else(String::new, |number| format!(" (predicted {number:.digits$})"))
    };
    let faults = line["faults"].as_array().map_or(0, Vec::len);
    let survived = match faults {
        0 => String::new(),
        n => {
            let worst =
                line["faults"].as_array().into_iter().flatten().filter_map(|f| f["stall_ms"].as_f64());
            format!(
                "; survived {n} failure{} (longest stall {:.0} ms)",
                if n == 1 { "" } else { "s" },
                worst.fold(0.0, f64::max)
            )
        }
    };
    format!(
        "{} prompt tokens, {} generated; first token after {:.0} ms{}, {:.1} tok/s{}; {} out, {} in{survived}",
        number("prompt_tokens"),
        number("completion_tokens"),
        number("ttft_ms"),
        predicted("ttft_ms", 0),
        number("decode_tok_s"),
        predicted("tok_s", 1),
        output::human_bytes(number("bytes_out") as u64),
        output::human_bytes(number("bytes_in") as u64),
    )
}
