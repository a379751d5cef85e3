//! Commands that ask the running node one question.

use api::swarm_records::StepKind;
use scheduler::{CacheType, SessionKind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    history,
    look::{self, words},
    plan_alone, remote, runtime, watch,
};
use crate::{
    Error, Result,
    cli::{
        SamplingArgs,
        operate::StatusArgs,
        swarm::{AskArgs, PauseArgs, PlanArgs, WhyArgs},
    },
    control::{self, Question},
    events::{Conducted, Leeway, PlanReport, PredictedScore, PromptEvent, PromptInput, Way},
    node_names,
    output::{self, human_bytes, say},
    reports::{
        ExpertsStatus, FetchReport, InviteReport, LimitReport, LinkReport, ModelReport, PeerModel,
        PeersReport, ReceiptsReport, SoleHolder, StatusReport, SwitchReport,
    },
};

/// Asks and returns the answer without its envelope.
pub(super) fn asked<T: DeserializeOwned>(home: &std::path::Path, question: &Question) -> Result<T> {
    let mut line: Value = runtime()?.block_on(control::one(home, question))?;
    line.as_object_mut().map(|line| line.remove("end"));
    Ok(serde_json::from_value(line)?)
}

/// A node of a pipeline: `home`, or the beginning of its name.
fn named<'a>(node: &'a str, me: &str) -> &'a str {
    if node == me { "home" } else { remote::short(node) }
}

pub(in crate::commands) fn status(args: StatusArgs) -> Result<()> {
    if args.watch {
        return watch::run(&args);
    }
    let home = args.home.path()?;
    if args.history {
        return history::show(&home, args.days, args.json);
    }
    let status: StatusReport = asked(&home, &Question::Status)?;
    if args.json {
        return output::json_line(&status);
    }
    let (network, work) = (&status.network, &status.work);
    let names = node_names::by_node(&home);
    let called = |node: &str| names.get(node).map_or_else(String::new, |name| format!(" \"{name}\""));
    say!("node      {}{}", network.node, called(&network.node));
    say!(
        "up        {:.0} s, {} peers connected, {} nodes known",
        status.process.uptime_s,
        network.peers,
        network.known_nodes
    );
    for model in &status.models {
        status_of(model, work.paused)?;
    }
    say!(
        "sessions  {} running, {} served; {} positions computed",
        work.sessions.serving,
        work.sessions.served,
        work.served_positions
    );
    say!("traffic   {} in, {} out, for others", human_bytes(work.bytes_in), human_bytes(work.bytes_out));
    content(&status)?;
    if let Some(kept) = &status.kept_state {
        let [bytes, most] = [kept.bytes, kept.most_bytes].map(human_bytes);
        say!("kept      {bytes} of {most} on disk of ended prompts (--keep-state)");
    }
    held("others ", &status.limits, false)?;
    held("clients", &status.limits, true)?;
    say!("reached   {}: {}", network.reached.class, network.reached.why);
    for LinkReport { node, link, .. } in &network.links {
        say!("link      to {}{}: {link}", remote::short(node), called(node));
    }
    for address in &network.addresses {
        say!("address   {address}");
    }
    Ok(())
}

/// A model of the node.
fn status_of(model: &ModelReport, paused: bool) -> Result<()> {
    let ModelReport { layers, memory, device, speed, .. } = model;
    let id = model.id.as_deref().unwrap_or_default();
    say!("model     {} ({} layers), id {id}", model.name, layers.num_layers);
    if layers.loaded.is_empty() {
        match &model.fetching {
            Some(FetchReport::Waiting { why, .. }) => say!("loaded    nothing yet: {why}"),
            None => say!("loaded    nothing here; peers that hold it can answer"),
            Some(_) => say!("loaded    nothing yet: it is on its way"),
        }
        return Ok(());
    }
    if memory.unloaded {
        let load_s = speed.load_ms / 1e3;
        say!(
            "unloaded  {}: nothing needs it; loading it again takes about {load_s:.1} s",
            words(&layers.loaded)
        );
    } else {
        say!("loaded    {} ({})", words(&layers.loaded), human_bytes(memory.resident_bytes));
    }
    say!("serving   {}{}", words(&layers.serving), if paused { " (paused)" } else { "" });
    if let Some(experts) = &model.experts {
        say!("experts   {}", experts_of(experts));
    }
    say!("device    {}, class {}", device.device, device.class);
    if let Some(trouble) = &device.device_trouble {
        say!("trouble   {trouble}");
    }
    say!(
        "speed     {:.3} ms a layer and token, {:.3} ms in prefill, {:.3} ms a visit; weights read at {}/s",
        speed.decode_ms_per_layer,
        speed.prefill_ms_per_layer,
        speed.visit_ms,
        human_bytes(speed.read_bytes_per_s.unwrap_or_default() as u64)
    );
    for line in model.bares.iter().map(sole) {
        say!("holders   {line}");
    }
    Ok(())
}

/// A sentence for a node that holds some experts of its layers.
pub(super) fn experts_of(experts: &ExpertsStatus) -> String {
    let ExpertsStatus { here, from, decode_ms_per_layer, missing } = experts;
    match (from.len(), decode_ms_per_layer) {
        (0, _) => {
            format!("{here} of these layers, computed for nodes that name this one with --experts-from")
        }
        (_, None) => {
            let missing = missing.as_deref().unwrap_or("not all others are found");
            format!("{here} are here, no layer is served yet: {missing}")
        }
        (nodes, Some(ms)) => format!(
            "{here} are here, the others at {nodes} of those named: {ms:.2} ms more a layer and token"
        ),
    }
}

/// A sentence for a node that is the only holder of some layers.
fn sole(holder: &SoleHolder) -> String {
    let node = if holder.own { "this node" } else { remote::short(&holder.node) };
    format!("if {node} leaves, layers {} have no holder", words(&holder.layers))
}

pub(in crate::commands) fn peers(args: AskArgs) -> Result<()> {
    let home = args.home.path()?;
    let mut known: PeersReport = asked(&home, &Question::Peers)?;
    node_names::fill(&home, &mut known);
    if args.json {
        return output::json_line(&known);
    }
    if known.peers.is_empty() {
        say!(
            "No peers yet. `shoal invite` prints a code for a friend; nodes on this network find each other by themselves."
        );
        return Ok(());
    }
    say!("{:10} {:9} {:>9}  {:8} layers", "node", "path", "rtt", "model");
    for peer in &known.peers {
        let path = peer.path.as_deref().unwrap_or("not here");
        let rtt = peer.rtt_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1} ms"));
        let layers = |model: &PeerModel| match &model.layers {
            Some(layers) if !layers.is_empty() => layers.join(", "),
            _ => "shared as a file, not computed".to_owned(),
        };
        let mut held = peer.models.iter().map(|model| (look::plain(&model.name), layers(model)));
        let (model, layers) = held.next().unwrap_or_else(|| ("-".to_owned(), "asks only".to_owned()));
        let standing = match peer.trust.standing.as_str() {
            "quarantined" => "  quarantined: it gave a wrong result",
            "must_prove" => "  out until it passes a challenge",
            "banned" => "  banned: it gave wrong results",
            _ => "",
        };
        let called = peer.called.as_ref().map_or_else(String::new, |name| format!("  \"{name}\""));
        say!("{:10} {path:9} {rtt:>9}  {model:8} {layers}{called}{standing}", remote::short(&peer.node));
        if !peer.device.is_empty() {
            say!("{:10} device: {}, class {}", "", look::plain(&peer.device), peer.class);
        }
        if let Some(link) = &peer.link {
            say!("{:10} link: {link}", "");
        }
        for (model, layers) in held {
            say!("{:10} {:9} {:>9}  {model:8} {layers}", "", "", "");
        }
    }
    Ok(())
}

pub(in crate::commands) fn invite(args: AskArgs) -> Result<()> {
    let invite: InviteReport = asked(&args.home.path()?, &Question::Invite)?;
    if args.json {
        return output::json_line(&invite);
    }
    let code = &invite.code;
    say!("On the other machine:\n\n  shoal join {code}\n");
    if let Some(qr) = output::qr(code) {
        say!("{}", qr.render::<qrcode::render::unicode::Dense1x2>().build());
    }
    Ok(())
}

pub(in crate::commands) fn leave(args: AskArgs) -> Result<()> {
    let left: SwitchReport = asked(&args.home.path()?, &Question::Leave)?;
    if args.json {
        return output::json_line(&left);
    }
    say!("The node finished what it was serving, said good-bye and stopped.");
    Ok(())
}

pub(in crate::commands) fn pause(args: PauseArgs) -> Result<()> {
    let paused = !args.off;
    let answer: SwitchReport = asked(&args.home.path()?, &Question::Pause { paused })?;
    if args.json {
        return output::json_line(&answer);
    }
    match paused {
        true => say!(
            "Paused: what runs goes on, no new sessions are served, no model is sent. `shoal pause --off` ends it."
        ),
        false => say!("This node serves others again."),
    }
    Ok(())
}

/// What other nodes or clients of this machine hold of this one, where they hold something or were refused.
fn held(who: &str, limits: &[LimitReport], clients: bool) -> Result<()> {
    let theirs = limits.iter().filter(|limit| limit.clients == clients);
    let mut said = theirs.filter(|limit| limit.used > 0 || limit.refused > 0).map(|limit| {
        let number = |amount: u64| match limit.resource.ends_with("bytes") {
            true => human_bytes(amount),
            false => amount.to_string(),
        };
        let refused = match limit.refused {
            0 => String::new(),
            times => format!(" ({times} refused)"),
        };
        format!("{} of {} {}{refused}", number(limit.used), number(limit.node), limit.resource)
    });
    if let Some(first) = said.next() {
        say!("{who}   {}", said.fold(first, |all, one| format!("{all}, {one}")));
    }
    Ok(())
}

/// What is kept, sent and fetched of models, and what the node may take.
fn content(status: &StatusReport) -> Result<()> {
    let (content, caps) = (&status.content, &status.caps);
    let cap = |value: Option<u64>, unit: &str| {
        value.map_or_else(|| "any".to_owned(), |n| format!("{}{unit}", human_bytes(n)))
    };
    match &status.fetching {
        Some(FetchReport::Fetching { plan, progress: Some(progress) }) => say!(
            "fetching  {} of {}, {}/s, {} s left",
            human_bytes(progress.done_bytes),
            human_bytes(plan.total_bytes),
            human_bytes(progress.bytes_per_s),
            progress.eta_s
        ),
        Some(FetchReport::Fetching { plan, progress: None }) => {
            say!("fetching  {} of {}", human_bytes(plan.here_bytes()), human_bytes(plan.total_bytes))
        }
        Some(FetchReport::Fetched { plan, .. }) => {
            say!("fetching  all of {} is here, and is being loaded", human_bytes(plan.total_bytes))
        }
        Some(FetchReport::Looking { .. }) => say!("fetching  looking for who has the model"),
        Some(FetchReport::Found { .. }) => say!("fetching  the header, which says what there is"),
        Some(FetchReport::Waiting { why, .. } | FetchReport::Dropped { why, .. }) => {
            say!("fetching  waiting: {why}")
        }
        None => {}
    }
    let shared: Vec<&str> = content.shared.iter().map(|model| model.name.as_str()).collect();
    if !shared.is_empty() || content.uploaded_bytes != 0 || content.downloaded_bytes != 0 {
        say!(
            "models    shares {}; {} sent, {} fetched",
            if shared.is_empty() { "none".to_owned() } else { shared.join(", ") },
            human_bytes(content.uploaded_bytes),
            human_bytes(content.downloaded_bytes)
        );
    }
    say!(
        "caps      {} sessions of others in {}; weights {}, disk {}, upload {}, download {}",
        caps.sessions,
        human_bytes(caps.kv_bytes),
        cap(caps.weights_bytes, ""),
        cap(caps.disk_bytes, ""),
        cap(caps.upload_bytes_per_s, "/s"),
        cap(caps.download_bytes_per_s, "/s")
    );
    if let Some(after_s) = caps.unload_after_s {
        say!("idle      models that nothing needs are unloaded after {after_s} s");
    }
    Ok(())
}

pub(in crate::commands) fn plan(args: PlanArgs) -> Result<()> {
    let home = args.home.path()?;
    let asked = if control::is_running(&home) {
        planned(&args, &home)?
    } else {
        let report = plan_alone::plan(&args)?;
        eprintln!("No node runs here: this is what was measured on this machine alone.");
        report
    };
    if args.json {
        return output::json_line(&asked);
    }
    show_plan(&asked)
}

/// What the running node predicts.
fn planned(args: &PlanArgs, home: &std::path::Path) -> Result<PlanReport> {
    let sampling = SamplingArgs::greedy(args.max_tokens as usize);
    let messages = json!([{ "role": "user", "content": &args.prompt }]);
    let prompt = PromptInput::Messages(messages);
    let mut ask = remote::question(
        prompt,
        &args.route,
        (args.wire.choice(), args.attention.session()),
        &sampling,
        Leeway::default(),
    )?;
    ask.model = args.model.clone().unwrap_or_default();
    asked(home, &Question::Plan(Box::new(ask)))
}

/// How activations travelled: the form, and where they were rounded.
fn rounded(own: &Conducted) -> String {
    let cuts: Vec<String> = own.cuts.iter().map(u32::to_string).collect();
    let at = if cuts.is_empty() { String::new() } else { format!(" --cuts {}", cuts.join(",")) };
    let SessionKind { attention, cache } = own.kind;
    let sees = if attention.is_dense() { String::new() } else { format!(" --attention {attention}") };
    let keeps = if cache == CacheType::F16 { String::new() } else { format!(" --kv-cache-type {cache}") };
    format!("--wire {}{at}{sees}{keeps}", own.wire.name())
}

fn show_plan(asked: &PlanReport) -> Result<()> {
    let plan = &asked.plan;
    let speed = |way: &Way| match way {
        Way::Possible { total_ms, tok_s } => {
            format!("{:.1} tok/s, {total_ms:.0} ms in all", tok_s.unwrap_or_default())
        }
        Way::Impossible { impossible } => impossible.clone(),
    };
    say!("{} prompt tokens and about {} to generate.", plan.prompt_tokens, plan.expected_tokens);
    for stage in &plan.stages {
        let terms: Vec<String> = stage.terms.named().map(|(name, ms)| format!("{name} {ms:.1}")).collect();
        say!(
            "  {} {}..{}  {:.2} ms a token; in all {:.1} ms = {}",
            named(&stage.node, &asked.me),
            stage.start,
            stage.end,
            stage.step_ms.unwrap_or_default(),
            stage.ms,
            terms.join(" + ")
        );
    }
    say!("  head, sampling and text here  {:.2} ms a token", plan.home_ms);
    say!("first token    after {:.0} ms", plan.predicted.ttft_ms);
    if let Some(range) = &plan.range {
        let (first, further) = (&range.ttft_ms, &range.step_ms);
        say!(
            "may range      {:.0} to {:.0} ms until it, then {:.1} to {:.1} ms a token",
            first.0,
            first.1,
            further.0,
            further.1
        );
        for (what, score) in [("first tokens", range.ttft_score), ("further tokens", range.step_score)] {
            if let Some(PredictedScore { answers, median_error, within }) = score {
                let (error, within) = (100.0 * median_error, 100.0 * within);
                say!(
                    "  {what} of the last {answers} answers: off by {error:.0} % in the middle, {within:.0} % within the range"
                );
            }
        }
    }
    say!("as asked       {}", speed(&plan.as_asked));
    say!("ends abroad    {}", speed(&plan.ends_abroad));
    say!("here alone     {}", speed(&plan.local));
    if let Some(ms) = plan.rounding_saves_ms {
        say!(
            "--allow-rounding would send 29 % of the bytes: {ms:.0} ms less in all, and other tokens here and there"
        );
    }
    say!("{}", if plan.local_wins { "Doing it here alone is faster." } else { "The swarm is faster." });
    Ok(())
}

pub(in crate::commands) fn receipts(args: AskArgs) -> Result<()> {
    let list: ReceiptsReport = asked(&args.home.path()?, &Question::Receipts)?;
    if args.json {
        return output::json_line(&list);
    }
    if list.receipts.is_empty() {
        say!("None yet. A node that computes for another one gets a receipt, signed by both.");
        return Ok(());
    }
    for receipt in &list.receipts {
        say!(
            "{}  {} computed {}..{} for {}: {} positions of prompts, {} one by one",
            remote::short(&receipt.session),
            remote::short(&receipt.stage),
            receipt.start,
            receipt.end,
            remote::short(&receipt.requester),
            receipt.prefill_tokens,
            receipt.decode_tokens
        );
    }
    for peer in &list.peers {
        say!("{}  balance {:+}, {}", remote::short(&peer.node), peer.balance, peer.tier);
    }
    Ok(())
}

pub(in crate::commands) fn why(args: WhyArgs) -> Result<()> {
    let (home, question) = (args.home.path()?, Question::Why { session: args.session });
    let event: PromptEvent = runtime()?.block_on(control::one(&home, &question))?;
    let PromptEvent::Done(report) = event else {
        return Err(Error::Failed("the node speaks another version".into()));
    };
    if args.json {
        let mut line = serde_json::to_value(PromptEvent::Done(report))?;
        line.as_object_mut().map(|line| line.remove("end"));
        return output::json_line(&line);
    }
    let own = report.conducted.as_deref();
    let me = own.map_or("", |own| own.me.as_str());
    let how =
        [own.map(|own| own.model.clone()), report.mode.map(|mode| mode.name().to_owned()), own.map(rounded)];
    let how: Vec<String> = how.into_iter().flatten().collect();
    match &report.conductor {
        // Its session is the other node's.
        Some(conductor) => say!("answered by {}", remote::short(conductor)),
        None => say!("session   {}", report.session.as_deref().unwrap_or_default()),
    }
    say!("          {}; ended by {}", how.join(", "), report.finish_reason.name());
    for stage in report.timing.iter().flat_map(|timing| &timing.stages) {
        let predicted = stage.predicted_ms.map_or_else(String::new, |ms| format!(" (predicted {ms:.2})"));
        let ms = stage
            .ms
            .map_or_else(String::new, |ms| format!("  {ms:.2} ms a token{predicted}, its hop included"));
        say!("  {} {}..{}{ms}", named(&stage.range.node, me), stage.range.start, stage.range.end);
    }
    for fault in report.timing.iter().flat_map(|timing| &timing.faults) {
        let lost = remote::short(&fault.node);
        say!("  survived the loss of {lost}: {:.0} ms until the next token", fault.stall_ms);
    }
    let steps = || own.iter().flat_map(|own| &own.timeline.steps);
    let faults = report.timing.as_ref().is_some_and(|timing| !timing.faults.is_empty());
    if faults || steps().any(|step| matches!(step.what, StepKind::Fetched { .. })) {
        for step in steps() {
            say!("  {:>9.0} ms  token {:<5} {}", step.at_ms, step.token, history::told(&step.what));
        }
    }
    for hedge in own.iter().flat_map(|own| &own.hedged) {
        say!(
            "  {} was late, its shadow answered first: {:.0} ms until the next token",
            remote::short(&hedge.node),
            hedge.stall_ms
        );
    }
    if let Some(drafts) = own.and_then(|own| own.drafts.as_ref()) {
        say!("drafts    {}", remote::drafts_text(drafts));
    }
    let so_far = if report.checking { "checks go on; so far " } else { "" };
    say!("checked   {so_far}{}", remote::checked_text(&report));
    let links: StatusReport = asked(&home, &Question::Status)?;
    for LinkReport { node, link, .. } in &links.network.links {
        if report.timing.iter().flat_map(|timing| &timing.stages).any(|stage| stage.range.node == *node) {
            say!("link      to {}, since it is there: {link}", remote::short(node));
        }
    }
    say!("{}", remote::summary_text(&report));
    Ok(())
}
