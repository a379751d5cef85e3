//! A client of the Model Context Protocol: starts a server's program and asks it over its standard streams.
//!
//! Protocol 2025-06-18: JSON-RPC 2.0, one message per line. Of what a server may ask back, only `ping` is answered.
//!
//! Limits: a message has at most [`MAX_LINE`] bytes; a server that writes a longer one, or none in time, has failed.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};

use api::mcp::{MAX_LINE, VERSION};
use serde_json::{Value, json};

use crate::{Error, Result, output};

/// By then a server has started and listed its tools.
const STARTING: Duration = Duration::from_secs(30);
/// By then a call is answered.
const CALLING: Duration = Duration::from_secs(300);
/// How often a wait looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// By then a server whose input was closed has ended.
const ENDING: Duration = Duration::from_secs(2);
/// Messages that were read and are not looked at yet.
const MAX_WAITING: usize = 16;
/// Pages of a list of tools.
const MAX_PAGES: usize = 16;
/// Bytes of a result that a conversation takes.
const MAX_RESULT_BYTES: usize = 64 << 10;

/// A server that runs.
#[derive(Debug)]
pub(super) struct Client {
    /// The command it was started by.
    pub command: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    asked: u64,
}

impl Client {
    /// Starts `command` by the shell, and agrees on the protocol with it.
    ///
    /// # Errors
    /// When it does not start, or does not speak the protocol.
    pub fn start(command: &str) -> Result<Self> {
        let failed = |why: String| Error::Failed(format!("the tools of `{command}`: {why}"));
        let mut child = shell(command).spawn().map_err(|error| failed(error.to_string()))?;
        let output = child.stdout.take().ok_or_else(|| failed("it has no output".into()))?;
        let (send, lines) = mpsc::sync_channel(MAX_WAITING);
        thread::spawn(move || read(BufReader::new(output), &send));
        let input = child.stdin.take();
        let mut client = Self { command: command.to_owned(), child, input, lines, asked: 0 };
        let about = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": {"name": "shoal", "version": env!("CARGO_PKG_VERSION")},
        });
        client.ask("initialize", about, STARTING).map_err(failed)?;
        client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).map_err(failed)?;
        Ok(client)
    }

    /// Its tools: objects with `name`, `description` and `inputSchema`.
    ///
    /// # Errors
    /// When it does not say.
    pub fn tools(&mut self) -> Result<Vec<Value>> {
        let listed = self.pages();
        listed.map_err(|why| Error::Failed(format!("the tools of `{}`: {why}", self.command)))
    }

    fn pages(&mut self) -> std::result::Result<Vec<Value>, String> {
        let (mut tools, mut params) = (Vec::new(), json!({}));
        for _ in 0..MAX_PAGES {
            let mut page = self.ask("tools/list", params, STARTING)?;
            match page["tools"].take() {
                Value::Array(more) => tools.extend(more),
                _ => return Err("it lists none".into()),
            }
            match page["nextCursor"].take() {
                cursor @ Value::String(_) => params = json!({"cursor": cursor}),
                _ => return Ok(tools),
            }
        }
        Err(format!("their list has more than {MAX_PAGES} pages"))
    }

    /// Calls a tool; what it said, or why there is nothing, as the model may read it. Ctrl-C ends the wait.
    pub fn call(&mut self, name: &str, arguments: &Value) -> String {
        match self.ask("tools/call", json!({"name": name, "arguments": arguments}), CALLING) {
            Ok(result) => said(&result),
            Err(why) => format!("Error: {why}"),
        }
    }

    /// Asks, and waits for the answer for at most `limit`.
    fn ask(&mut self, method: &str, params: Value, limit: Duration) -> std::result::Result<Value, String> {
        self.asked += 1;
        let id = self.asked;
        // A program that has ended may have said why before: that is read first.
        let unheard =
            self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).err();
        let asked = Instant::now();
        loop {
            let stopped = if output::interrupted() {
                Some("interrupted".to_owned())
            } else {
                (asked.elapsed() >= limit).then(|| format!("no answer within {} s", limit.as_secs()))
            };
            if let Some(why) = stopped {
                let params = json!({"requestId": id, "reason": why});
                self.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))?;
                return Err(why);
            }
            let line = match self.lines.recv_timeout(LOOK) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => match &unheard {
                    Some(why) if asked.elapsed() >= ENDING => return Err(why.clone()),
                    _ => continue,
                },
                Err(RecvTimeoutError::Disconnected) => return Err("its program has ended".into()),
            };
            let Ok(mut message) = serde_json::from_slice::<Value>(&line) else {
                return Err("it says what is no JSON".into());
            };
            match (message["method"].as_str(), message.get("id").cloned()) {
                (Some("ping"), Some(id)) => self.say(&json!({"jsonrpc": "2.0", "id": id, "result": {}}))?,
                (Some(_), Some(id)) => {
                    let error = json!({"code": -32601, "message": "this client answers ping only"});
                    self.say(&json!({"jsonrpc": "2.0", "id": id, "error": error}))?;
                }
                (None, Some(answered)) if answered == id => {
                    return match message.get("error") {
                        None => Ok(message["result"].take()),
                        Some(error) => Err(error["message"].as_str().unwrap_or("it refuses").to_owned()),
                    };
                }
                // Notifications, and answers that came too late.
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &Value) -> std::result::Result<(), String> {
        let ended = || "its program has ended".to_owned();
        let input = self.input.as_mut().ok_or_else(ended)?;
        let line = format!("{message}\n");
        let written = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => ended(),
            _ => format!("its program does not listen: {error}"),
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server ends with its input.
        self.input = None;
        let closed = Instant::now();
        while closed.elapsed() < ENDING && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `command` as the system's shell reads it. Ctrl-C is the conversation's: it does not reach the server.
fn shell(command: &str) -> Command {
    #[cfg(unix)]
    let mut shell = {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command}")]);
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        shell
    };
    #[cfg(not(unix))]
    let mut shell = {
        let mut shell = Command::new("cmd");
        shell.args(["/C", command]);
        shell
    };
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    shell
}

/// Hands on lines until the end, or the first one that is too long.
fn read(mut from: impl BufRead, to: &SyncSender<Vec<u8>>) {
    loop {
        let mut line = Vec::new();
        let read = from.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) || line.len() > MAX_LINE {
            return;
        }
        if !line.trim_ascii().is_empty() && to.send(line).is_err() {
            return;
        }
    }
}

/// The text of a result, cut where it is too long for a conversation.
fn said(result: &Value) -> String {
    let parts = result["content"].as_array().map_or(&[][..], Vec::as_slice);
    let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => text.to_owned(),
        (kind, _) => format!("[{}: not shown to the model]", kind.unwrap_or("unknown content")),
    };
    let mut text = parts.iter().map(part).collect::<Vec<_>>().join("\n");
    if text.is_empty() && !result["structuredContent"].is_null() {
        text = result["structuredContent"].to_string();
    }
    if text.len() > MAX_RESULT_BYTES {
        let end = (0..=MAX_RESULT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text += "\n[cut]";
    }
    if result["isError"] == true { format!("Error: {text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_and_asks_back() {
        // A server in a line of shell: it pings before it answers, lists on two pages and answers a call with two parts.
        let script = r#"read _; echo '{"jsonrpc":"2.0","id":"p","method":"ping"}'; read pong
            case $pong in *'"id":"p"'*) ;; *) exit 1 ;; esac
            echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}'; read _
            read _; echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"a"}],"nextCursor":"2"}}'
            read _; echo '{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
            echo '{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"b"}]}}'
            read _; echo '{"jsonrpc":"2.0","id":4,"result":{"isError":true,"content":[{"type":"text","text":"no"},{"type":"image"}]}}'
            read _; echo '{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"message":"there is no c"}}'"#;
        let mut server =
            Client::start(&format!("sh -c '{}'", script.replace('\'', r"'\''"))).expect("a server");
        let tools = server.tools().expect("two pages");
        assert_eq!(tools, [json!({"name": "a"}), json!({"name": "b"})]);
        assert_eq!(server.call("a", &json!({})), "Error: no\n[image: not shown to the model]");
        assert_eq!(server.call("c", &json!({})), "Error: there is no c");
        assert_eq!(server.call("a", &json!({})), "Error: its program has ended");
    }

    #[test]
    fn what_is_no_server_is_said() {
        let none = Client::start("true").expect_err("it says nothing").to_string();
        assert!(none.contains("`true`") && (none.contains("ended") || none.contains("listen")), "{none}");
        let other = Client::start("echo hello; cat").expect_err("no JSON").to_string();
        assert!(other.contains("no JSON"), "{other}");
    }

    #[test]
    fn long_lines_and_results_are_bounded() {
        let (send, lines) = mpsc::sync_channel(4);
        let long = [&b"short\n\n"[..], &vec![b'x'; MAX_LINE + 1], b"\nnever\n"].concat();
        read(&long[..], &send);
        drop(send);
        assert_eq!(lines.iter().collect::<Vec<_>>(), [b"short\n".to_vec()]);
        let result = json!({"content": [{"type": "text", "text": "é".repeat(MAX_RESULT_BYTES)}]});
        assert!(said(&result).len() <= MAX_RESULT_BYTES + 6 && said(&result).ends_with("[cut]"));
        assert_eq!(said(&json!({"structuredContent": {"a": 1}})), r#"{"a":1}"#);
    }
}
