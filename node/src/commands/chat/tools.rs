//! A conversation whose model may call the tools of servers of the Model Context Protocol; each call is confirmed.

use std::{collections::HashMap, path::Path, sync::Arc};

use api::{
    Inference,
    agent::{self, Call, Said, Toolbox, Turn},
    choice::{Draft, SessionChoice},
    inference::{Finish, GenerateRequest, Guard, Mode, Prompt, Sampling},
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::{Lines, mcp_client::Client};
use crate::{
    Error, Result,
    cli::{AnswerArgs, ChatArgs, swarm::Via},
    commands::{mcp, request, swarm::remote},
    inference::swarm::Preferences,
    output,
};

/// Answers to one message, each with calls: a model that calls on and on is stopped.
const MAX_ROUNDS: usize = 16;

/// A model with tools.
pub(super) struct Agent {
    inference: Arc<dyn Inference>,
    toolbox: Toolbox,
    /// The server of each tool.
    owners: HashMap<String, usize>,
    servers: Vec<Client>,
    answers: u64,
    /// Whether the node and its swarm answer.
    by_node: bool,
    // Last: what is above ends within it.
    runtime: Runtime,
}

impl Agent {
    /// Starts the servers of `commands` and what answers: the node of `home`, else a process of this command.
    ///
    /// # Errors
    /// For a server that does not start, tools that cannot be offered, and flags that mean nothing here.
    pub fn start(commands: &[String], args: &AnswerArgs, home: Option<&Path>) -> Result<Self> {
        let refused = [
            (args.sampling.logprobs.is_some(), "--logprobs"),
            ((args.route.head, args.route.tail) != (1, 1), "--head and --tail"),
        ];
        if let Some((_, flags)) = refused.iter().find(|(given, _)| *given) {
            return Err(Error::usage(format!("{flags} cannot be combined with --mcp")));
        }
        let mut servers: Vec<Client> = Vec::new();
        let (mut listed, mut owners) = (Vec::new(), HashMap::new());
        for command in commands {
            let mut server = Client::start(command)?;
            let tools = server.tools()?;
            for tool in &tools {
                let name = tool["name"].as_str().unwrap_or_default().to_owned();
                if let Some(other) = owners.insert(name.clone(), servers.len()) {
                    let other = servers.get(other).map_or(command, |server| &server.command);
                    return Err(Error::usage(format!(
                        "`{other}` and `{command}` both have a tool {name}; leave one out"
                    )));
                }
            }
            listed.extend(tools);
            servers.push(server);
        }
        let toolbox = Toolbox::of_mcp(&listed).map_err(|why| Error::Failed(format!("the tools: {why}")))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let preferences = home.map(|home| Preferences {
            trusted: args.route.trust.iter().cloned().collect(),
            mode: args.route.mode,
            draft: args.sampling.draft.clone(),
            wire: args.wire.choice(),
            home: home.to_path_buf(),
        });
        let inference = runtime.block_on(mcp::inference(&args.engine, &args.sampling.draft, preferences))?;
        Ok(Self { inference, toolbox, owners, servers, answers: 0, by_node: home.is_some(), runtime })
    }

    /// The tools, one per line, for people.
    pub fn listed(&self) -> String {
        let tools = self.toolbox.listed().unwrap_or_default();
        let line = |tool: &Value| {
            let function = &tool["function"];
            let about =
                function["description"].as_str().unwrap_or_default().lines().next().unwrap_or_default();
            format!("{:<24} {about}", function["name"].as_str().unwrap_or_default()).trim_end().to_owned()
        };
        tools
            .as_array()
            .map_or_else(String::new, |tools| tools.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    /// Answers the conversation, which grows by what is said, called and answered; gives how the last answer went. The first
    /// answer is a call of `demanded`, where a tool is named.
    pub fn answer(
        &mut self,
        args: &ChatArgs,
        messages: &mut Vec<Value>,
        demanded: Option<&str>,
        lines: &mut Lines,
    ) -> Result<String> {
        let mut toolbox = match demanded {
            None => self.toolbox.clone(),
            Some(name) => self.toolbox.demanding(name).map_err(Error::Usage)?,
        };
        for _ in 0..MAX_ROUNDS {
            let turn = self.turn(args, messages, &toolbox)?;
            toolbox = self.toolbox.clone();
            messages.push(turn.message());
            for call in &turn.calls {
                let result = self.called(call, args.json, lines)?;
                if args.json {
                    output::json_line(&json!({"event": "tool_result", "id": call.id, "content": result}))?;
                }
                messages.push(
                    json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}),
                );
            }
            if turn.calls.is_empty() {
                let (usage, report) = (&turn.done.usage, &turn.done.report);
                let tok_s = report.tok_s;
                return Ok(format!(
                    "{} prompt tokens, {} generated at {tok_s:.1} tok/s; {} positions were kept",
                    usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
                ));
            }
        }
        Err(Error::Failed(format!("the model called tools {MAX_ROUNDS} times without an answer")))
    }

    /// One answer, shown as it comes.
    fn turn(&mut self, args: &ChatArgs, messages: &[Value], toolbox: &Toolbox) -> Result<Turn> {
        self.answers += 1;
        let id = format!("chat-{}-{}", std::process::id(), self.answers);
        let mut request = question(id, &args.answer, self.by_node, json!(messages), toolbox.listed())?;
        // Names of calls follow from the seed, and a conversation wants each of its own.
        request.seed = request.seed.map(|seed| seed.wrapping_add(self.answers - 1));
        let mut failure = None;
        let mut ends = true;
        let mut show = |said: Said<'_>| {
            let shown = match (said, args.json) {
                (Said::Text(""), _) | (Said::Reasoning(_), false) => Ok(()),
                (Said::Text(text), true) => output::json_line(&json!({"event": "token", "text": text})),
                (Said::Reasoning(text), true) => {
                    output::json_line(&json!({"event": "reasoning", "text": text}))
                }
                (Said::Text(text), false) => {
                    ends = text.ends_with('\n');
                    output::text(text)
                }
            };
            failure = failure.take().or(shown.err());
        };
        let turn = self.runtime.block_on(async {
            tokio::select! {
                turn = agent::turn(&*self.inference, request, toolbox, &mut show) => {
                    turn.map_err(|failure| Error::Failed(failure.to_string()))
                }
                () = remote::interrupted() => Err(Error::Interrupted),
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        if !args.json && !ends {
            output::text("\n")?;
        }
        let turn = turn?;
        if args.json {
            let usage = &turn.done.usage;
            output::json_line(&json!({
                "event": "done",
                "text": turn.text,
                "finish_reason": if turn.calls.is_empty() { finish_name(turn.done.finish) } else { "tool_calls" },
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            }))?;
        }
        Ok(turn)
    }

    /// The result of a call, if the user lets it happen.
    fn called(&mut self, call: &Call, json: bool, lines: &mut Lines) -> Result<String> {
        let server = self.owners.get(&call.name).and_then(|owner| self.servers.get_mut(*owner));
        let Some(server) = server else { return Ok(format!("Error: there is no tool {}", call.name)) };
        if json {
            output::json_line(&json!({
                "event": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments, "server": server.command,
            }))?;
        }
        let question = format!("Call {} {} of `{}`? [y/N] ", call.name, call.arguments, server.command);
        if !lines.agrees(&question, json)? {
            return Ok("The user declined this call.".into());
        }
        output::clear_interrupt();
        let result = server.call(&call.name, &call.arguments);
        if !json {
            eprintln!("{}", first_line(&result));
        }
        Ok(result)
    }
}

/// What people see of a result: its beginning.
fn first_line(result: &str) -> String {
    const SHOWN: usize = 100;
    let line = result.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(SHOWN).collect();
    if cut.len() < result.len() {
        format!("  {cut} ... ({} bytes)", result.len())
    } else {
        format!("  {cut}")
    }
}

/// The request for the next answer of a conversation.
fn question(
    id: String,
    args: &AnswerArgs,
    by_node: bool,
    messages: Value,
    tools: Option<Value>,
) -> Result<GenerateRequest> {
    let asked = request(Vec::new(), &args.sampling)?;
    let by = asked.sampling;
    // A process of this command has one model, the one it was started with.
    let prompt = Prompt::Messages { messages, tools, extra: Map::new() };
    Ok(GenerateRequest {
        model: args.engine.model.clone().filter(|_| by_node),
        sampling: Sampling {
            temperature: Some(by.temperature),
            top_k: Some(by.top_k),
            top_p: Some(by.top_p),
            min_p: Some(by.min_p),
            typical_p: Some(by.typical_p),
            repetition_penalty: Some(by.repetition_penalty),
            presence_penalty: Some(by.presence_penalty),
            frequency_penalty: Some(by.frequency_penalty),
            logit_bias: by.logit_bias,
            draft: None::<Draft>,
        },
        seed: Some(asked.seed),
        max_tokens: Some(asked.max_tokens),
        stop: asked.stop,
        mode: args.route.mode.or((args.via == Via::Swarm).then_some(Mode::Boomerang)),
        guard: Guard { verify: Some(args.route.verify), shadow: Some(args.route.shadow), ..Guard::default() },
        wire: args.wire.choice(),
        session: SessionChoice {
            attention: Some(args.attention.kind.to_string()),
            kv_cache_type: Some(args.attention.kv_cache_type.name().to_owned()),
            context_shift: args.sampling.context_shift,
        },
        ..GenerateRequest::new(id, prompt)
    })
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
