//! `shoal chat`: a conversation whose history stays computed.

use std::{
    io::{self, BufRead, IsTerminal},
    ops::ControlFlow,
};

use api::choice::Draft;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};
use shard::round::Rounding;

use super::{
    request,
    run::{show_json, show_text, summary_json, summary_text},
    utf8,
};
use crate::{
    Error, Result,
    cli::ChatArgs,
    inference::local::prompt::{self, Session},
    model::Model,
    output,
};

const HELP: &str = "\
/reset          forget the conversation
/system TEXT    set the system message and forget the conversation
/stats          how fast the last answer was and how much is kept
/help           this list
/quit           leave (also Ctrl-D)";

pub(super) fn run(args: ChatArgs) -> Result<()> {
    // The editor of lines opens what it needs of the terminal.
    let mut lines = Lines::new()?;
    if let Draft::By(_) = args.sampling.draft {
        let why = "chat answers in this process, where nothing is drafted; `shoal run --via swarm --draft lookup` drafts";
        return Err(Error::usage(why));
    }
    let model = Model::load_confined(&args.engine)?;
    output::catch_interrupt()?;
    if lines.interactive() {
        eprintln!("{} is ready, {} tokens of context. /help lists the commands.", model.name, model.ctx);
    }
    let mut chat = Chat::new(&model, args)?;
    while let Some(line) = lines.next()? {
        if chat.turn(line.trim())?.is_break() {
            break;
        }
    }
    let unnoticed = chat.failed && !lines.interactive();
    if unnoticed { Err(Error::Failed("not every message was answered".into())) } else { Ok(()) }
}

struct Chat<'a> {
    model: &'a Model,
    args: ChatArgs,
    session: Session,
    messages: Vec<Value>,
    stats: String,
    failed: bool,
}

impl<'a> Chat<'a> {
    fn new(model: &'a Model, args: ChatArgs) -> Result<Self> {
        let session = Session::of(model, Rounding::NONE, args.attention)?;
        let mut chat =
            Self { model, args, session, messages: Vec::new(), stats: "no answer yet".into(), failed: false };
        chat.reset();
        Ok(chat)
    }

    fn reset(&mut self) {
        let system = self.args.system.as_deref();
        self.messages = system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    }

    fn turn(&mut self, line: &str) -> Result<ControlFlow<()>> {
        if let Some(command) = line.strip_prefix('/') {
            return Ok(self.command(command));
        }
        if !line.is_empty() {
            self.answer(line)?;
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
                let kept = output::human_bytes(self.session.kv_bytes() as u64);
                eprintln!("{}; {} positions kept in {kept}", self.stats, self.session.len());
            }
            "help" | "?" => eprintln!("{HELP}"),
            _ => eprintln!("no command /{word}; /help lists them"),
        }
        ControlFlow::Continue(())
    }

    /// A failed answer leaves the conversation as it was before the message.
    fn answer(&mut self, line: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": line}));
        let result = self.generate();
        if result.is_err() {
            self.messages.pop();
        }
        match result {
            Err(Error::Usage(why)) => {
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

    fn generate(&mut self) -> Result<()> {
        let ids = prompt::encode_chat(self.model, &json!(self.messages))?;
        let request = request(ids, &self.args.sampling)?;
        output::clear_interrupt();
        let (model, json) = (self.model, self.args.json);
        let mut failure = None;
        let summary = prompt::generate(model, &mut self.session, &request, &mut |event| {
            let shown = if json { show_json(model, &event) } else { show_text(&event) };
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
        if json {
            output::json_line(&summary_json(&summary))?;
        } else {
            output::text("\n")?;
        }
        self.stats = summary_text(&summary);
        self.messages.push(json!({"role": "assistant", "content": summary.text}));
        Ok(())
    }
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
