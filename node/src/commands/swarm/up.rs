//! `shoal up --local N`: a real swarm on one machine.

use std::{net::SocketAddr, time::Duration};

use scheduler::{LayerSet, SessionKind};
use serde_json::json;

use super::{ask::asked, local, remote, runtime};
use crate::{
    Error, Result,
    cli::{
        EngineArgs,
        swarm::{Layers, LinkArgs, UpArgs},
    },
    control::Question,
    events::{Leeway, PromptEvent, PromptInput},
    header::Header,
    library,
    output::{self, Waiting, say},
    reports::{JoinLine, LinkReport, StatusReport},
};

pub(in crate::commands) fn up(args: UpArgs) -> Result<()> {
    output::catch_interrupt()?;
    args.links.check()?;
    let swarm = start(&args.engine, args.local, (args.api, &args.links), args.json)?;
    if let Some(api) = &swarm.nodes[0].api {
        match args.json {
            true => output::json_line(&JoinLine::Listening(api.clone()))?,
            false => say!(
                "\npage  {}\nAPI   {}/v1, token in {}",
                api.page,
                api.url,
                api.token_file.as_deref().unwrap_or("no file: none is needed")
            ),
        }
    }
    let Some(prompt) = &args.run else {
        if !args.json {
            say!(
                "\nAsk it: `shoal run --via swarm --home {} \"Hello\"`. Ctrl-C stops all nodes.",
                swarm.home().display()
            );
        }
        while !output::interrupted() {
            std::thread::sleep(Duration::from_millis(100));
        }
        return Ok(());
    };
    let messages = PromptInput::Messages(json!([{ "role": "user", "content": prompt }]));
    let ask = remote::question(
        messages,
        &args.route,
        (args.wire.choice(), SessionKind::DEFAULT),
        &args.sampling,
        Leeway::default(),
    )?;
    let me = swarm.nodes[0].name.clone();
    let last =
        runtime()?.block_on(remote::generate(swarm.home(), ask, &mut |event| show(event, &me, args.json)))?;
    if !args.json {
        eprintln!("\n{}", remote::summary_text(&last));
    }
    let status: StatusReport = asked(swarm.home(), &Question::Status)?;
    for LinkReport { node, link, .. } in &status.network.links {
        eprintln!("link to {}: {link}", remote::short(node));
    }
    Ok(())
}

/// The layers of a model that has a middle to share.
///
/// # Errors
/// [`Error::Usage`] for one without; those of a file that cannot be read.
pub(super) fn layers_to_share(engine: &EngineArgs) -> Result<u32> {
    let num_layers = Header::read(library::locate(engine.model())?.as_ref())?.num_layers();
    if num_layers < 3 {
        return Err(Error::usage("a model of fewer than 3 layers has no middle to share"));
    }
    Ok(num_layers)
}

/// Starts the nodes and says who holds what.
pub(super) fn start(
    engine: &EngineArgs,
    nodes: u16,
    (api, links): (Option<SocketAddr>, &LinkArgs),
    json: bool,
) -> Result<local::LocalSwarm> {
    let num_layers = layers_to_share(engine)?;
    let shares = local::shares(num_layers, usize::from(nodes));
    let waiting = Waiting::start("starting the nodes");
    let swarm = local::LocalSwarm::start(engine, &shares, (api, links))?;
    drop(waiting);
    for (index, node) in swarm.nodes.iter().enumerate() {
        if json {
            output::json_line(
                &json!({ "event": "node", "node": node.name, "home": node.home, "serving": node.layers }),
            )?;
        } else {
            let short = node.name.get(..8).unwrap_or(&node.name);
            match index {
                0 => say!(
                    "{short}  asks: keeps layers 0..1 and {}..{num_layers}, the text and the token ids",
                    num_layers - 1
                ),
                _ => say!("{short}  serves layers {}", merged(&node.layers)),
            }
        }
    }
    Ok(swarm)
}

/// Layers as a person reads them: `1..4,4..7` is `1..7`.
fn merged(layers: &str) -> String {
    let Ok(ranges) = layers.parse::<Layers>() else { return layers.to_owned() };
    let ranges = LayerSet::new(ranges.0);
    ranges.ranges().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Prints an event of the answer as it comes.
pub(super) fn show(event: &PromptEvent, me: &str, json: bool) -> Result<()> {
    if json {
        return output::json_line(event);
    }
    match event {
        PromptEvent::Route(route) => say!("route: {}\n", remote::route_text(route.stages(), me)),
        PromptEvent::Token(token) => output::text(&token.text)?,
        PromptEvent::Moved { failed, stages, .. } => {
            eprintln!(
                "\n[{} is gone; on {}]",
                remote::short(failed),
                remote::route_text(stages.iter().cloned(), me)
            );
        }
        PromptEvent::Done(report) => say!("{}", report.rest),
        _ => {}
    }
    Ok(())
}
