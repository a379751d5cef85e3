//! `shoal chat`: a conversation whose history stays computed, in this process or by the running node and its swarm.

mod mcp_client;
mod tools;

use std::{
    io::{self, BufRead, IsTerminal},
    ops::ControlFlow,
    path::PathBuf,
};

use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use tools::Agent;

use super::{
    consent, request,
    run::{
        asked_mode, node, obtain_model, question, reads_elsewhere, session, show_json, show_text,
        summary_json, summary_text,
    },
    swarm::remote,
    utf8,
};
use crate::{
    Error, Result,
    cli::ChatArgs,
    encode,
    events::{PromptEvent, PromptInput, PromptReport},
    inference::local::prompt::{self, Session},
    model::Model,
    output,
};

const HELP: &str = "\
/reset          forget the conversation
/system TEXT    set the system message and forget the conversation
/tools          the tools that the model may call (--mcp)
/tool NAME TEXT say TEXT, and let the answer begin with a call of that tool
/stats          how fast the last answer was and how much is kept
/help           this list
/quit           leave (also Ctrl-D)";

pub(super) fn run(mut args: ChatArgs) -> Result<()> {
    // The editor of lines opens what it needs of the terminal.
    let mut lines = Lines::new()?;
    let model;
    let answers = match node(&args.answer, args.json)? {
        home if !args.mcp.is_empty() => {
            output::catch_interrupt()?;
            match &home {
                Some(home) => {
                    consent::before_strangers(home, asked_mode(&args.answer, home), args.json)?;
                }
                None => obtain_model(&mut args.answer, args.json)?,
            }
            let agent = Agent::start(&args.mcp, &args.answer, home.as_deref())?;
            if lines.interactive() {
                eprintln!("{}\n/help lists the commands.", agent.listed());
            }
            Answers::Agent(Box::new(agent))
        }
        Some(home) => {
            consent::before_strangers(&home, asked_mode(&args.answer, &home), args.json)?;
            if lines.interactive() {
                eprintln!("The running node answers. /help lists the commands.");
            }
            Answers::Node(Asker::new(home)?)
        }
        None => {
            output::catch_interrupt()?;
            obtain_model(&mut args.answer, args.json)?;
            model = Model::load_drafted(&args.answer.engine, &args.answer.sampling.draft)?;
            if lines.interactive() {
                eprintln!(
                    "{} is ready, {} tokens of context. /help lists the commands.",
                    model.name, model.ctx
                );
            }
            Answers::Here(&model, Box::new(session(&model, &args.answer)?))
        }
    };
    output::catch_interrupt()?;
    let mut chat = Chat::new(answers, args);
    while let Some(line) = lines.next()? {
        if chat.turn(line.trim(), &mut lines)?.is_break() {
            break;
        }
    }
    let unnoticed = chat.failed && !lines.interactive();
    if unnoticed { Err(Error::Failed("not every message was answered".into())) } else { Ok(()) }
}

/// Who answers.
enum Answers<'a> {
    /// This process, which keeps what it computed.
    Here(&'a Model, Box<Session>),
    /// The running node and its swarm, which keep what they computed.
    Node(Asker),
    /// Either of them, with tools.
    Agent(Box<Agent>),
}

/// A way to the running node.
struct Asker {
    home: PathBuf,
    runtime: Runtime,
}

impl Asker {
    fn new(home: PathBuf) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { home, runtime })
    }

    /// The node's answer to the conversation, shown as it comes.
    fn answer(&self, args: &ChatArgs, messages: &[Value]) -> Result<PromptReport> {
        let prompt = PromptInput::Messages(json!(messages));
        let ask = question(prompt, &args.answer, &self.home)?;
        self.runtime.block_on(remote::generate(&self.home, ask, &mut |event| match event {
            _ if args.json => output::json_line(event),
            PromptEvent::Token(token) => output::text(&token.text),
            PromptEvent::Done(report) => output::text(&format!("{}\n", report.rest)),
            PromptEvent::Route(route) => {
                reads_elsewhere(&args.answer, route);
                Ok(())
            }
            _ => Ok(()),
        }))
    }
}

struct Chat<'a> {
    answers: Answers<'a>,
    args: ChatArgs,
    messages: Vec<Value>,
    stats: String,
    failed: bool,
}

impl<'a> Chat<'a> {
    fn new(answers: Answers<'a>, args: ChatArgs) -> Self {
        let stats = "no answer yet".into();
        let mut chat = Self { answers, args, messages: Vec::new(), stats, failed: false };
        chat.reset();
        chat
    }

    fn reset(&mut self) {
        let system = self.args.system.as_deref();
        self.messages = system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    }

    fn turn(&mut self, line: &str, lines: &mut Lines) -> Result<ControlFlow<()>> {
        if let Some(asked) = line.strip_prefix("/tool ") {
            let (tool, text) = asked.trim().split_once(' ').unwrap_or((asked.trim(), ""));
            match &self.answers {
                Answers::Agent(_) => self.answer(text.trim(), Some(tool), lines)?,
                _ => eprintln!("no tools are here; start with --mcp COMMAND"),
            }
        } else if let Some(command) = line.strip_prefix('/') {
            return Ok(self.command(command));
        } else if !line.is_empty() {
            self.answer(line, None, lines)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn command(&mut self, command: &str) -> ControlFlow<()> {
        let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
        match word {
            "quit" | "exit" | "bye" => return ControlFlow::Break(()),
            "reset" | "clear" => self.reset(),
            "system" => {
                self.args.system = (!rest.trim().is_empty()).then(|| rest.trim().to_string());
                self.reset();
            }
            "stats" => {
                let kept = match &self.answers {
                    Answers::Here(_, session) => {
                        let bytes = output::human_bytes(session.kv_bytes() as u64);
                        format!("; {} positions kept in {bytes}", session.len())
                    }
                    Answers::Node(_) | Answers::Agent(_) => String::new(),
                };
                eprintln!("{}{kept}", self.stats);
            }
            "tools" => match &self.answers {
                Answers::Agent(agent) => eprintln!("{}", agent.listed()),
                _ => eprintln!("no tools are here; start with --mcp COMMAND"),
            },
            "help" | "?" => eprintln!("{HELP}"),
            _ => eprintln!("no command /{word}; /help lists them"),
        }
        ControlFlow::Continue(())
    }

    /// A failed answer leaves the conversation as it was before the message.
    fn answer(&mut self, line: &str, demanded: Option<&str>, lines: &mut Lines) -> Result<()> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": line}));
        let result = self.generate(demanded, lines);
        if result.is_err() {
            self.messages.truncate(before);
        }
        match result {
            // The node has cancelled it; what it said is on the screen.
            Err(Error::Interrupted) => Ok(()),
            Err(Error::Usage(why) | Error::Failed(why)) => {
                self.failed = true;
                eprintln!("{why} (/reset starts over)");
                if self.args.json {
                    output::json_line(&json!({"event": "error", "message": why}))
                } else {
                    Ok(())
                }
            }
            other => other,
        }
    }

    fn generate(&mut self, demanded: Option<&str>, lines: &mut Lines) -> Result<()> {
        output::clear_interrupt();
        let (stats, text) = match &mut self.answers {
            Answers::Here(model, session) => here(model, session, &self.args, &self.messages)?,
            Answers::Agent(agent) => {
                self.stats = agent.answer(&self.args, &mut self.messages, demanded, lines)?;
                return Ok(());
            }
            Answers::Node(asker) => {
                let report = asker.answer(&self.args, &self.messages)?;
                let kept = report.timing.as_ref().map_or(0, |timing| timing.cached_tokens);
                (format!("{}; {kept} positions were kept", remote::summary_text(&report)), report.text)
            }
        };
        self.stats = stats;
        self.messages.push(json!({"role": "assistant", "content": text}));
        Ok(())
    }
}

/// The answer of this process to the conversation, shown as it comes: how it went, and the text.
fn here(
    model: &Model,
    session: &mut Session,
    args: &ChatArgs,
    messages: &[Value],
) -> Result<(String, String)> {
    let ids = encode::encode_chat(model, &json!(messages))?;
    let request = request(ids, &args.answer.sampling)?;
    let mut failure = None;
    let summary = prompt::generate(model, session, &request, &mut |event| {
        let shown = if args.json { show_json(model, &event) } else { show_text(&event) };
        if let Err(error) = shown {
            failure = Some(error);
        }
        if failure.is_some() || output::interrupted() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    if args.json {
        output::json_line(&summary_json(&summary))?;
    } else {
        output::text("\n")?;
    }
    Ok((summary_text(&summary), summary.text))
}

/// User messages: an editor with history at a terminal, plain lines otherwise.
enum Lines {
    Editor(Box<DefaultEditor>),
    Plain,
}

impl Lines {
    fn new() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Plain);
        }
        let editor = DefaultEditor::new().map_err(|e| Error::Io(io::Error::other(e)))?;
        Ok(Self::Editor(Box::new(editor)))
    }

    fn interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// Whether the user says yes to `question`, which a program that reads JSON has got as an event.
    fn agrees(&mut self, question: &str, json: bool) -> Result<bool> {
        let said = match self {
            Self::Editor(editor) => match editor.readline(question) {
                Ok(said) => said,
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(false),
                Err(e) => return Err(Error::Io(io::Error::other(e))),
            },
            Self::Plain => {
                if !json {
                    eprintln!("{question}");
                }
                self.next()?.unwrap_or_default()
            }
        };
        Ok(matches!(said.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Plain => {
                let mut line = Vec::new();
                let read = io::stdin().lock().read_until(b'\n', &mut line)?;
                if read == 0 { Ok(None) } else { utf8(line, "a line of standard input").map(Some) }
            }
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                Err(ReadlineError::Eof) => Ok(None),
                Err(e) => Err(Error::Io(io::Error::other(e))),
            },
        }
    }
}
