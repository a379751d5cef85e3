//! Tools as OpenAI's clients offer them beside plain functions: `functions` of the older chat, and the kinds of Responses.
//!
//! | tool of Responses | what the model is told | what a call of it comes back as |
//! |---|---|---|
//! | `function` | the function | `function_call` |
//! | `custom` | a function with the text `input` | `custom_tool_call` |
//! | `local_shell` | a function with `command` | `local_shell_call` |
//! | `namespace` | its functions, named `NAMESPACE.NAME` | `function_call` with `namespace` |
//! | those of [`LEFT_OUT`] | nothing; the answer says so | |

use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
    left_out::LeftOut,
    tools::{Choice, DEMANDS_LEFT_OUT, MAX_TOOLS, Offer},
};

/// Kinds of tools that OpenAI's servers run, or whose calls have a form that no text model was taught here.
pub(crate) const LEFT_OUT: &[&str] = &[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer",
    "computer_use_preview",
    "shell",
    "apply_patch",
    "tool_search",
];

/// The function that stands for the tool `local_shell`.
pub(crate) const LOCAL_SHELL: &str = "local_shell";

/// What a call of a tool comes back as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Function,
    Custom,
    LocalShell,
    /// A function of a namespace, with both names.
    Member {
        namespace: String,
        name: String,
    },
}

/// The tools of a request that are no plain functions, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds(Vec<(String, Kind)>);

impl Kinds {
    pub(crate) fn of(&self, name: &str) -> Kind {
        self.0.iter().find(|(known, _)| known == name).map_or(Kind::Function, |(_, kind)| kind.clone())
    }

    fn add(&mut self, tool: &Value, kind: Kind) {
        self.0.push((tool["function"]["name"].as_str().unwrap_or_default().to_owned(), kind));
    }
}

/// Reads the tools of chat, and whether they came in the older form, in which calls are given back, too.
pub(crate) fn chat(fields: &Fields<'_>) -> Result<(Offer, bool), ApiError> {
    let functions = fields.list("functions", MAX_TOOLS)?.unwrap_or_default();
    let choice = match fields.any("function_call") {
        None => Choice::Auto,
        Some(Value::String(word)) if word == "auto" => Choice::Auto,
        Some(Value::String(word)) if word == "none" => Choice::None,
        Some(value @ Value::Object(_)) => {
            let choice = Fields::at(value, "function_call")?;
            Choice::Named(required(&choice, "name", choice.text("name")?)?.to_owned())
        }
        Some(_) => return Err(fields.refuse("function_call", "must be none, auto or a function")),
    };
    if functions.is_empty() {
        if matches!(choice, Choice::Named(_)) {
            return Err(fields.refuse("function_call", "demands a function that is not in `functions`"));
        }
        return Ok((Offer::openai(fields)?, false));
    }
    if fields.list("tools", MAX_TOOLS)?.is_some_and(|tools| !tools.is_empty()) {
        return Err(fields.refuse("functions", "is the older form of `tools`; send one of them"));
    }
    let read = |(i, function): (usize, &Value)| {
        Offer::function(&Fields::at(function, format!("functions[{i}]"))?, "parameters")
    };
    let tools = functions.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    let offer = Offer::new(tools, choice, "function_call")?;
    // The older form has room for one call in a message.
    Ok((Offer { single: true, ..offer }, true))
}

/// Reads the tools of Responses.
pub(crate) fn responses(fields: &Fields<'_>, left: &mut LeftOut) -> Result<(Offer, Kinds), ApiError> {
    let (mut tools, mut kinds, mut absent) = (Vec::new(), Kinds::default(), Vec::new());
    for (i, tool) in fields.list("tools", MAX_TOOLS)?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::at(tool, format!("tools[{i}]"))?;
        match tool.text("type")?.unwrap_or("function") {
            "function" => {
                // The members of the function stand in the tool itself.
                let function = tool.object("function")?.unwrap_or(tool);
                tools.push(Offer::function(&function, "parameters")?);
            }
            "custom" => {
                let custom = custom(&tool, left)?;
                kinds.add(&custom, Kind::Custom);
                tools.push(custom);
            }
            "local_shell" => {
                let shell = local_shell();
                kinds.add(&shell, Kind::LocalShell);
                tools.push(shell);
            }
            "namespace" => {
                for (member, kind) in namespace(&tool)? {
                    kinds.add(&member, kind);
                    tools.push(member);
                }
            }
            kind if LEFT_OUT.contains(&kind) => {
                left.add(&format!("tools.{kind}"));
                absent.push(kind);
            }
            _ => return Err(tool.refuse("type", "must be function, custom, local_shell or namespace")),
        }
    }
    let choice = match fields.any("tool_choice").and_then(|choice| choice.get("type")?.as_str()) {
        Some("local_shell") => Choice::Named(LOCAL_SHELL.to_owned()),
        Some(kind) if LEFT_OUT.contains(&kind) => {
            return Err(fields.refuse("tool_choice", DEMANDS_LEFT_OUT));
        }
        _ => Choice::openai(fields)?,
    };
    choice.check(&tools, &absent, "tool_choice")?;
    Ok((Offer::new(tools, choice, "tool_choice")?.limited(fields)?, kinds))
}

/// The name that the model is told for a function of a namespace.
pub(crate) fn member_name(namespace: &str, name: &str) -> String {
    format!("{namespace}.{name}")
}

/// The functions of a namespace, whose description stands before that of each.
fn namespace(tool: &Fields<'_>) -> Result<Vec<(Value, Kind)>, ApiError> {
    let namespace = required(tool, "name", tool.text("name")?)?;
    let about = tool.text("description")?.unwrap_or_default();
    let mut members = Vec::new();
    for (i, member) in tool.list("tools", MAX_TOOLS)?.unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{i}]", tool.name("tools"));
        let function = Fields::at(member, path.as_str())?;
        if function.text("type")?.is_some_and(|kind| kind != "function") {
            return Err(function.refuse("type", "must be `function`"));
        }
        let name = required(&function, "name", function.text("name")?)?;
        let own = function.text("description")?.unwrap_or_default();
        let mut told = member.clone();
        told["name"] = member_name(namespace, name).into();
        told["description"] = format!("{about}\n\n{own}").trim().into();
        let kind = Kind::Member { namespace: namespace.to_owned(), name: name.to_owned() };
        members.push((Offer::function(&Fields::at(&told, path)?, "parameters")?, kind));
    }
    Ok(members)
}

/// A tool that takes text. A grammar of it is told to the model and not enforced: the text is a string within JSON.
fn custom(tool: &Fields<'_>, left: &mut LeftOut) -> Result<Value, ApiError> {
    let mut made = Offer::function(tool, "parameters")?;
    let mut description = tool.text("description")?.unwrap_or_default().to_owned();
    if let Some(format) = tool.object("format")? {
        match required(&format, "type", format.text("type")?)? {
            "text" => {}
            "grammar" => {
                let syntax = format.one_of("syntax", &["lark", "regex"], |word| word)?;
                let syntax = required(&format, "syntax", syntax)?;
                let definition = required(&format, "definition", format.text("definition")?)?;
                description.push_str(&format!("\n\n`input` follows this {syntax} grammar:\n{definition}"));
                left.add(&format!("tools.{}.format", made["function"]["name"].as_str().unwrap_or_default()));
            }
            _ => return Err(format.refuse("type", "must be text or grammar")),
        }
    }
    made["function"]["description"] = description.into();
    made["function"]["parameters"] = json!({
        "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
    });
    Ok(made)
}

fn local_shell() -> Value {
    let about = "Runs a command on the user's machine: a program and its arguments, such as [\"bash\", \"-lc\", \"ls\"].";
    let parameters = json!({
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    });
    json!({"type": "function", "function": {"name": LOCAL_SHELL, "description": about, "parameters": parameters}})
}
