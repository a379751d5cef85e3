//! The screen of `shoal status --watch`: peers, pipeline, work, memory. Pure: a frame from what was seen.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Paragraph, Row, Sparkline, Table, Wrap},
};

use super::look::{Watched, ago, plain, words};
use crate::{
    control::Mode,
    output::human_bytes,
    reports::{PeerReport, StatusReport},
};

/// Below this width the two columns stand under each other.
const WIDE: u16 = 90;

/// How the screen is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Whether colors may be used; `NO_COLOR` says no.
    pub color: bool,
}

impl Look {
    fn tint(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, watched: &Watched, look: Look) {
    let empty = StatusReport::default();
    let status = watched.look.status.as_deref().unwrap_or(&empty);
    let area = frame.area();
    let [head, body, pipeline, work, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(status, watched, look), head);
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let [left, right] = if area.width >= WIDE {
        Layout::horizontal(halves).areas(body)
    } else {
        Layout::vertical(halves).areas(body)
    };
    frame.render_widget(node(status, watched), left);
    peers(frame, right, status.network.peers, &watched.look.peers, look);
    frame.render_widget(prompt(status, watched, look), pipeline);
    curve(frame, work, watched, look);
    let keys = "q leaves   p pauses or resumes serving others";
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn header(status: &StatusReport, watched: &Watched, look: Look) -> Paragraph<'static> {
    let name = plain(&status.network.node);
    let mut spans = vec![
        Span::styled(" shoal ", Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)),
        Span::raw(format!(" {}  up {}", name.get(..8).unwrap_or(&name), ago(status.process.uptime_s))),
    ];
    let mut mark = |text: &str, color| spans.push(Span::styled(format!("  {text}"), look.tint(color)));
    if status.work.paused {
        mark("paused", Color::Yellow);
    }
    if status.process.draining {
        mark("leaving", Color::Yellow);
    }
    match &watched.trouble {
        Some(why) => mark(why, Color::Red),
        None => mark(&format!("reached: {}", plain(&status.network.reached.class)), Color::Cyan),
    }
    Paragraph::new(Line::from(spans))
}

fn node(status: &StatusReport, watched: &Watched) -> Paragraph<'static> {
    let (work, model, rates) = (&status.work, &status.model, watched.rates);
    let lines = [
        ("model", format!("{}, {} layers", plain(&model.name), model.layers.num_layers)),
        ("serving", plain(&words(&model.layers.serving))),
        (
            "memory",
            format!(
                "{} ({} of them weights)",
                human_bytes(watched.memory()),
                human_bytes(model.memory.resident_bytes)
            ),
        ),
        ("sessions", format!("{} running, {} served", work.sessions.serving, work.sessions.served)),
        ("computed", format!("{} positions, {:.1} a second", work.served_positions, rates.positions)),
        (
            "traffic",
            format!(
                "{} in ({}/s), {} out ({}/s), for others",
                human_bytes(work.bytes_in),
                human_bytes(rates.bytes_in as u64),
                human_bytes(work.bytes_out),
                human_bytes(rates.bytes_out as u64)
            ),
        ),
    ];
    let lines: Vec<Line<'_>> =
        lines.into_iter().map(|(name, text)| Line::raw(format!("{name:9} {text}"))).collect();
    Paragraph::new(lines).wrap(Wrap { trim: false }).block(Block::bordered().title(" this node "))
}

fn peers(frame: &mut Frame<'_>, area: Rect, connected: usize, known: &[PeerReport], look: Look) {
    let list_of = |peer: &PeerReport| match peer.models.first() {
        Some(model) => {
            let layers = model.layers.as_deref().unwrap_or_default();
            let layers: Vec<String> = layers.iter().map(|layers| plain(layers)).collect();
            let layers = if layers.is_empty() { "nothing".into() } else { layers.join(", ") };
            format!("{} {layers}", plain(&model.name))
        }
        None => "asks only".to_owned(),
    };
    let room = usize::from(area.height.saturating_sub(3)).max(1);
    let shown = if known.len() > room { room - 1 } else { known.len() };
    let mut rows: Vec<Row<'_>> = known[..shown]
        .iter()
        .map(|peer| {
            let name = plain(&peer.node);
            let rtt = peer.rtt_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1} ms"));
            let here = peer.connected;
            let path = if here { plain(peer.path.as_deref().unwrap_or_default()) } else { "not here".into() };
            let style = look.tint(if here { Color::Green } else { Color::DarkGray });
            let name = peer.called.as_deref().unwrap_or_else(|| name.get(..8).unwrap_or(&name));
            Row::new([name.to_owned(), path, rtt, list_of(peer)]).style(style)
        })
        .collect();
    if shown < known.len() {
        rows.push(Row::new([format!("and {}", known.len() - shown), "more".into()]));
    }
    let widths = [Constraint::Length(8), Constraint::Length(9), Constraint::Length(9), Constraint::Min(10)];
    let head = Row::new(["node", "path", "rtt", "holds"]).style(Style::new().add_modifier(Modifier::DIM));
    let title = format!(" peers: {connected} connected ");
    let table = Table::new(rows, widths).header(head).block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

/// The chain of the last prompt and how it went.
fn prompt(status: &StatusReport, watched: &Watched, look: Look) -> Paragraph<'static> {
    let (me, running) = (plain(&status.network.node), status.work.prompts);
    let title =
        if running == 0 { " pipeline ".to_owned() } else { format!(" pipeline: {running} running now ") };
    let block = Block::bordered().title(title);
    let Some(last) = &watched.look.last else {
        let text = "no prompt yet: shoal run --via swarm \"Hello\"";
        return Paragraph::new(text).style(Style::new().add_modifier(Modifier::DIM)).block(block);
    };
    let mut chain = Vec::new();
    let timing = last.timing.clone().unwrap_or_default();
    for (index, stage) in timing.stages.iter().enumerate() {
        let name = plain(&stage.range.node);
        let own = name == me;
        let name = if own { "home" } else { name.get(..8).unwrap_or(&name) };
        if index > 0 {
            chain.push(Span::raw(" → "));
        }
        let ms = stage.ms.map_or_else(String::new, |ms| format!(" {ms:.1} ms"));
        let (start, end) = (stage.range.start, stage.range.end);
        let style = if own { Style::new() } else { look.tint(Color::Cyan) };
        chain.push(Span::styled(format!("{name} {start}..{end}{ms}"), style));
    }
    let survived = match timing.faults.len() {
        0 => String::new(),
        1 => ", survived a failure".to_owned(),
        n => format!(", survived {n} failures"),
    };
    let how = format!(
        "{:.1} tok/s (predicted {:.1}), first token after {:.0} ms, {} tokens, {} mode{survived}",
        timing.decode_tok_s,
        last.conducted.as_ref().map_or(0.0, |own| own.predicted.tok_s),
        timing.ttft_ms,
        last.completion_tokens,
        last.mode.map_or("", Mode::name),
    );
    Paragraph::new(vec![Line::from(chain), Line::raw(how)]).wrap(Wrap { trim: false }).block(block)
}

fn curve(frame: &mut Frame<'_>, area: Rect, watched: &Watched, look: Look) {
    let most = watched.curve.iter().copied().max().unwrap_or(0);
    let title = format!(" work for others: {:.1} positions/s (most {most}) ", watched.rates.positions);
    let room = usize::from(area.width.saturating_sub(2));
    let skip = watched.curve.len().saturating_sub(room);
    let line = Sparkline::default()
        .data(watched.curve.iter().skip(skip).copied())
        .style(look.tint(Color::Green))
        .block(Block::bordered().title(title));
    frame.render_widget(line, area);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::super::look::Look as Seen;
    use super::*;
    use crate::{
        events::{Conducted, Predicted, PromptReport, StageRange, StageReport, Stall, Timing},
        reports::{PeerModel, SessionsStatus, WorkStatus},
    };

    fn seen() -> Watched {
        let me = "aa".repeat(32);
        let peer = |name: &str, connected: bool| {
            let models = vec![PeerModel {
                name: "minnow\u{1b}[31m".into(),
                layers: Some(vec!["1..4".into(), "6..7".into()]),
                ..PeerModel::default()
            }];
            PeerReport {
                node: name.repeat(32),
                connected,
                path: Some("direct".into()),
                rtt_ms: Some(12.34),
                models,
                ..PeerReport::default()
            }
        };
        let mut status = StatusReport::default();
        (status.network.node, status.network.peers) = (me.clone(), 2);
        status.network.reached.class = "direct".into();
        status.work = WorkStatus {
            sessions: SessionsStatus { serving: 3, served: 9 },
            prompts: 1,
            served_positions: 1234,
            bytes_in: 2048,
            bytes_out: 4096,
            paused: true,
            ..WorkStatus::default()
        };
        status.model.name = "minnow".into();
        (status.model.layers.num_layers, status.model.layers.serving) = (8, vec!["1..5".into()]);
        status.model.memory.resident_bytes = 5 << 20;
        status.process.uptime_s = 3_700.0;
        let stage = |node: &str, start, end, ms| StageReport {
            range: StageRange { node: node.to_owned(), start, end },
            ms,
            predicted_ms: None,
            checked_by: None,
            checked_positions: None,
            near: None,
        };
        let timing = Timing {
            ttft_ms: 81.0,
            decode_tok_s: 31.4,
            stages: vec![
                stage(&me, 0, 1, None),
                stage(&"bb".repeat(32), 1, 7, Some(3.25)),
                stage(&me, 7, 8, None),
            ],
            faults: vec![Stall { node: "cc".into(), stall_ms: 3.0 }],
            ..Timing::default()
        };
        let predicted = Predicted { tok_s: 30.0, ..Predicted::default() };
        let last = PromptReport {
            mode: Some(Mode::Boomerang),
            completion_tokens: 40,
            timing: Some(timing),
            conducted: Some(Box::new(Conducted { predicted, ..Conducted::default() })),
            ..PromptReport::default()
        };
        let look = Seen {
            at_ms: 0.0,
            status: Some(Box::new(status)),
            peers: vec![peer("bb", true), peer("cc", false)],
            last: Some(Box::new(last)),
            resident_bytes: [Some(30 << 20), Some(70 << 20)],
        };
        let mut watched = Watched { look, ..Watched::default() };
        watched.curve.extend([1, 5, 9]);
        watched
    }

    fn text(watched: &Watched, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, watched, Look { color: false })).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(width)).map(|row| row.concat() + "\n").collect()
    }

    #[test]
    fn everything_an_operator_asks_for_is_on_the_screen() {
        let screen = text(&seen(), 120, 30);
        for part in [
            "aaaaaaaa  up 1 h 1 min  paused",
            "reached: direct",
            "minnow, 8 layers",
            "serving   1..5",
            "100.00 MiB (5.00 MiB of them weights)",
            "3 running, 9 served",
            "1234 positions",
            "2.00 KiB in",
            "peers: 2 connected",
            "bbbbbbbb direct    12.3 ms",
            "minnow[31m 1..4, 6..7",
            "cccccccc not here",
            "pipeline: 1 running now",
            "home 0..1 → bbbbbbbb 1..7 3.2 ms → home 7..8",
            "31.4 tok/s (predicted 30.0), first token after 81 ms, 40 tokens, boomerang mode, survived a failure",
            "positions/s (most 9)",
            "q leaves",
        ] {
            assert!(screen.contains(part), "{part:?} is missing in\n{screen}");
        }
        assert!(!screen.contains('\u{1b}'));
    }

    #[test]
    fn no_size_and_no_state_breaks_it() {
        let mut watched = seen();
        watched.look.peers = vec![watched.look.peers[0].clone(); 500];
        watched.trouble = Some("the node does not answer".into());
        for (width, height) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 100)] {
            text(&watched, width, height);
            text(&Watched::default(), width, height);
        }
        let narrow = text(&watched, 80, 40);
        assert!(narrow.contains("the node does not answer") && narrow.contains("more"), "{narrow}");
    }
}
