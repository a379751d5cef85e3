//! `shoal demo`: four nodes, one prompt, one of them dies in the middle of a sentence.

use std::process::{Command, Stdio};

use serde_json::json;

use super::{remote, runtime, up};
use crate::{
    Error, Result,
    cli::{
        EngineArgs, SamplingArgs,
        swarm::{DemoArgs, LinkArgs, RouteArgs},
    },
    control::{Mode, Shadow, Verify},
    events::{Leeway, PromptEvent, PromptInput},
    output::{self, Waiting, say},
    platform,
};

/// Nodes of the demonstration: one asks, three serve, any one of which may die.
const NODES: u16 = 4;
/// The node is killed after this share of the undisturbed answer.
const KILL_AT: f64 = 0.4;

pub(in crate::commands) fn demo(args: DemoArgs) -> Result<()> {
    output::catch_interrupt()?;
    let sampling = SamplingArgs::greedy(args.max_tokens);
    let engine = EngineArgs { model: args.model, ..EngineArgs::default_model() };
    up::layers_to_share(&engine)?;
    let undisturbed = alone(&engine, &args.prompt, args.max_tokens)?;
    let messages = json!([{ "role": "user", "content": args.prompt }]);
    if !args.json {
        say!("Starting {NODES} nodes on this machine, each with a part of the model:\n");
    }
    let mut swarm = up::start(&engine, NODES, (None, &LinkArgs::default()), args.json)?;
    let me = swarm.nodes[0].name.clone();
    let home = swarm.home().to_owned();
    let route = RouteArgs {
        mode: Some(Mode::Boomerang),
        head: 1,
        tail: 1,
        trust: Vec::new(),
        verify: Verify::default(),
        shadow: Shadow::default(),
    };
    let prompt = PromptInput::Messages(messages);
    let ask = remote::question(prompt, &route, Default::default(), &sampling, Leeway::default())?;
    let kill_at = (undisturbed.len() as f64 * KILL_AT) as usize;
    let mut seen = 0;
    let mut victim = None;
    let mut killed = None;
    let last = runtime()?.block_on(remote::generate(&home, ask, &mut |event| {
        match event {
            PromptEvent::Route(route) => {
                let strangers = route.stages().filter(|stage| stage.node != me);
                victim = strangers.last().map(|stage| stage.node);
            }
            PromptEvent::Token(_) => seen += 1,
            _ => {}
        }
        up::show(event, &me, args.json)?;
        if !args.no_kill
            && killed.is_none()
            && seen > kill_at
            && let Some(name) = &victim
        {
            swarm.kill(name);
            if !args.json {
                eprint!("\n[kill -9 {}]", name.get(..8).unwrap_or(name));
            }
            killed = Some(name.clone());
        }
        Ok(())
    }))?;
    let ids = &last.ids;
    let equal = *ids == undisturbed;
    let faults = last.timing.iter().flat_map(|timing| &timing.faults);
    let stall_ms = faults.map(|fault| fault.stall_ms).fold(0.0, f64::max);
    if args.json {
        output::json_line(
            &json!({ "killed": killed, "equal": equal, "stall_ms": stall_ms, "tokens": ids.len() }),
        )?;
    } else {
        say!("\n{}", remote::summary_text(&last));
        match &killed {
            Some(name) => say!(
                "{} was killed after {kill_at} tokens; the {} tokens are {} the undisturbed run's.",
                name.get(..8).unwrap_or(name),
                ids.len(),
                if equal { "exactly" } else { "NOT" }
            ),
            None => say!(
                "The {} tokens are {} those of this machine alone.",
                ids.len(),
                if equal { "exactly" } else { "NOT" }
            ),
        }
    }
    if equal {
        Ok(())
    } else {
        Err(Error::Failed("the answer differs from the undisturbed one; please report this".into()))
    }
}

/// The ids this machine gives alone: `shoal run` in a process of its own, which confines itself before it reads a model.
fn alone(engine: &EngineArgs, prompt: &str, max_tokens: usize) -> Result<Vec<u32>> {
    let waiting = Waiting::start("computing the answer alone");
    let output = Command::new(platform::program()?)
        .args(["run", "--via", "local", "--config", "none", "--json", "--temperature", "0"])
        .args(["-n", &max_tokens.to_string(), "--model", engine.model(), "--", prompt])
        .stdin(Stdio::null())
        .output()?;
    drop(waiting);
    if output::interrupted() {
        return Err(Error::Interrupted);
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Failed(said.trim().trim_start_matches("error: ").to_owned()));
    }
    let line = output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    let ids = line.and_then(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let ids = ids.and_then(|line| serde_json::from_value(line["ids"].clone()).ok());
    ids.ok_or_else(|| Error::Failed("the run on this machine alone said no ids".into()))
}
