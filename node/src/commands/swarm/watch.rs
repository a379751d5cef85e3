//! `shoal status --watch`: looks at the node again and again, on a screen, or line by line where there is no terminal.
//!
//! It ends with what it writes to: when the terminal is closed or the reader of a pipe goes, the process ends at once, not
//! with its next line.

use std::{
    io::{self, IsTerminal},
    path::Path,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{
    look::{Look, Watched},
    runtime, screen,
};
use crate::{
    Result,
    cli::operate::StatusArgs,
    control::{self, Question},
    events::PromptEvent,
    memory, node_names,
    output::{self, human_bytes, say},
    platform,
    reports::{PeersReport, StatusReport, SwitchReport, Switched},
};

/// A node on this machine answers in milliseconds; one that needs longer hangs, and the screen says so.
const PATIENCE: Duration = Duration::from_secs(2);
/// Keys and signals are looked for this often.
const REACT: Duration = Duration::from_millis(100);

pub(super) fn run(args: &StatusArgs) -> Result<()> {
    let home = args.home.path()?;
    let runtime = runtime()?;
    output::catch_interrupt()?;
    platform::output::end_with_reader()?;
    let began = Instant::now();
    let mut watched = Watched::default();
    // A node that does not run is an error here; one that stops later is waited for.
    watched.take(runtime.block_on(look(&home, began))?);
    let every = Duration::from_secs_f64(args.every);
    let mut refresh = |watched: &mut Watched| match runtime.block_on(look(&home, began)) {
        Ok(look) => watched.take(look),
        Err(why) => watched.trouble = Some(why.to_string()),
    };
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if args.json || dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return lines(&mut watched, &mut refresh, every, args.json);
    }
    on_screen(&mut watched, &mut refresh, every, &|watched| pause(&runtime, &home, watched))
}

async fn look(home: &Path, began: Instant) -> Result<Look> {
    let status: Box<StatusReport> = patiently(home, Question::Status).await?;
    let status = Box::new(StatusReport { end: false, ..*status });
    let mut known: PeersReport = patiently(home, Question::Peers).await?;
    node_names::fill(home, &mut known);
    let PeersReport { peers, .. } = known;
    // An error here means that no prompt was run yet.
    let last = match patiently(home, Question::Why { session: None }).await {
        Ok(PromptEvent::Done(report)) => Some(report),
        _ => None,
    };
    let resident_bytes = [status.process.pid, status.process.worker_pid].map(memory::resident_bytes);
    Ok(Look { at_ms: began.elapsed().as_secs_f64() * 1e3, status: Some(status), peers, last, resident_bytes })
}

/// Asks, and gives up on a node that does not answer.
async fn patiently<T: DeserializeOwned>(home: &Path, question: Question) -> Result<T> {
    match tokio::time::timeout(PATIENCE, control::one(home, &question)).await {
        Ok(answer) => answer,
        Err(_) => Err(crate::Error::Failed("the node does not answer".into())),
    }
}

fn lines(
    watched: &mut Watched,
    refresh: &mut dyn FnMut(&mut Watched),
    every: Duration,
    json: bool,
) -> Result<()> {
    loop {
        match (&watched.trouble, json) {
            (Some(why), true) => output::json_line(&json!({ "event": "trouble", "why": why }))?,
            (Some(why), false) => say!("{why}"),
            (None, true) => output::json_line(&watched.line())?,
            (None, false) => say!(
                "{} peers  {} sessions  {:.1} positions/s  {}/s in  {}/s out  {}",
                watched.look.status.as_ref().map_or(0, |status| status.network.peers),
                watched.look.status.as_ref().map_or(0, |status| status.work.sessions.serving),
                watched.rates.positions,
                human_bytes(watched.rates.bytes_in as u64),
                human_bytes(watched.rates.bytes_out as u64),
                human_bytes(watched.memory())
            ),
        }
        let due = Instant::now() + every;
        while Instant::now() < due {
            if output::interrupted() {
                return Ok(());
            }
            std::thread::sleep(REACT.min(due.saturating_duration_since(Instant::now())));
        }
        refresh(watched);
    }
}

/// The terminal as it was comes back when this is dropped; a panic brings it back, too (ratatui's hook).
struct Screen(ratatui::DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn on_screen(
    watched: &mut Watched,
    refresh: &mut dyn FnMut(&mut Watched),
    every: Duration,
    pause: &dyn Fn(&mut Watched),
) -> Result<()> {
    let style = screen::Look { color: std::env::var_os("NO_COLOR").is_none_or(|said| said.is_empty()) };
    let mut terminal = Screen(ratatui::try_init()?);
    let mut due = Instant::now() + every;
    loop {
        terminal.0.draw(|frame| screen::draw(frame, watched, style))?;
        if event::poll(REACT.min(due.saturating_duration_since(Instant::now())))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                // A terminal in raw mode hands Ctrl-C over as a key.
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('p') => pause(watched),
                _ => {}
            }
        }
        if output::interrupted() {
            return Ok(());
        }
        if Instant::now() >= due {
            refresh(watched);
            due = Instant::now() + every;
        }
    }
}

/// Stops serving others, or begins again.
fn pause(runtime: &Runtime, home: &Path, watched: &mut Watched) {
    let Some(status) = &mut watched.look.status else { return };
    let paused = !status.work.paused;
    let asked = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, control::one::<SwitchReport>(home, &Question::Pause { paused })).await
    });
    match asked {
        Ok(Ok(answer)) => status.work.paused = answer.now == Switched::Paused(true),
        Ok(Err(why)) => watched.trouble = Some(why.to_string()),
        Err(_) => watched.trouble = Some("the node does not answer".into()),
    }
}
