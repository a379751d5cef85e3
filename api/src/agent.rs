//! A turn of a conversation with tools, for programs in this process: what the dialects do for clients over HTTP.

use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    Inference,
    answer::{self, Piece},
    calls::ToolCall,
    fields::Fields,
    inference::{Done, Failure, GenerateRequest, Plan},
    tools::{Choice, Offer},
};

/// Tools that a model may call.
#[derive(Clone, Debug)]
pub struct Toolbox {
    tools: Vec<Value>,
    offer: Offer,
}

/// A call that a model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its name in the conversation.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What the tool is given: a JSON object.
    pub arguments: Value,
}

/// What a model said and wants.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The text of the answer; reasoning is not part of it.
    pub text: String,
    /// The calls it asks for, in their order.
    pub calls: Vec<Call>,
    /// What was decided before the first token.
    pub plan: Plan,
    /// How it ended.
    pub done: Done,
}

/// What comes of an answer while it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// What the model thinks before it answers.
    Reasoning(&'a str),
}

impl Toolbox {
    /// Tools as the Model Context Protocol lists them: objects with `name`, `description` and `inputSchema`.
    ///
    /// # Errors
    /// What is wrong with a tool, or with all of them together, in a sentence that names it.
    pub fn of_mcp(listed: &[Value]) -> Result<Self, String> {
        let mut tools = Vec::with_capacity(listed.len());
        for (at, tool) in listed.iter().enumerate() {
            let fields = Fields::at(tool, format!("tools[{at}]")).map_err(|error| error.message)?;
            tools.push(Offer::function(&fields, "inputSchema").map_err(|error| error.message)?);
        }
        let offer = Offer::new(tools.clone(), Choice::Auto, "tools").map_err(|error| error.message)?;
        Ok(Self { tools, offer })
    }

    /// The same, of which the next answer is a call of `name`.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn demanding(&self, name: &str) -> Result<Self, String> {
        let offer = Offer::new(self.tools.clone(), Choice::Named(name.to_owned()), "tool");
        let offer = offer.map_err(|_| format!("there is no tool {name}"))?;
        Ok(Self { tools: self.tools.clone(), offer })
    }

    /// The tools as a chat template takes them.
    #[must_use]
    pub fn listed(&self) -> Option<Value> {
        self.offer.tools.clone()
    }
}

impl Turn {
    /// What the conversation keeps of it, as one of OpenAI's messages.
    #[must_use]
    pub fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.calls.is_empty() {
            let call = |call: &Call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments.to_string()},
                })
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Answers `request`, whose prompt has the tools of `toolbox`; `said` gets what comes of the answer. Dropping the future
/// cancels.
///
/// # Errors
/// Those of [`Inference::generate`], and the answer's own.
pub async fn turn(
    inference: &dyn Inference,
    mut request: GenerateRequest,
    toolbox: &Toolbox,
    said: &mut (dyn for<'a> FnMut(Said<'a>) + Send),
) -> Result<Turn, Failure> {
    inference.ready(request.model.as_deref())?;
    if let Some(forced) = &toolbox.offer.forced {
        request.format = forced.clone();
    }
    let (plan, mut pieces) = answer::read(inference, request, &toolbox.offer).await?;
    let (mut text, mut calls) = (String::new(), Vec::<ToolCall>::new());
    while let Some(piece) = pieces.next().await {
        match piece {
            Piece::Token { text: more, .. } => {
                text += &more;
                said(Said::Text(&more));
            }
            Piece::Reasoning { text: more, .. } => said(Said::Reasoning(&more)),
            Piece::Call { id, name } => {
                calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Piece::Arguments(more) => {
                calls.iter_mut().next_back().into_iter().for_each(|call| call.arguments += &more);
            }
            Piece::Prompt(_) | Piece::CallEnd | Piece::Failover { .. } => {}
            Piece::Done(ending) => {
                let whole = |call: ToolCall| {
                    let arguments = call.object();
                    Call { id: call.id, name: call.name, arguments }
                };
                let calls = calls.into_iter().map(whole).collect();
                return Ok(Turn { text, calls, plan, done: ending.done });
            }
            Piece::Failed(failure) => return Err(failure),
        }
    }
    Err(Failure::Internal { why: "the answer broke off before its end".to_owned() })
}
