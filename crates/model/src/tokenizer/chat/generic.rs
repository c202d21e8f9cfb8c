//! Tools for templates that do not render them: their description in the system message, and earlier calls and
//! results as text.

use serde_json::{Value as Json, json};

use super::answer::Calls;
use super::message::{Call, Message, RenderOptions, dumps};

/// Parts of a conversation that a template does not render.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    /// The tools of a request.
    pub(super) tools: bool,
    /// Calls of earlier answers.
    pub(super) calls: bool,
    /// Results of calls.
    pub(super) results: bool,
}

impl Gaps {
    pub(super) const ALL: Self = Self { tools: true, calls: true, results: true };

    /// True if a conversation needs what the template does not render.
    pub(super) fn concern(self, messages: &[Message], options: &RenderOptions) -> bool {
        self.tools && !options.tools.is_empty()
            || messages.iter().any(|message| {
                self.results && message.role == "tool" || self.calls && !message.calls.is_empty()
            })
    }
}

/// The conversation without roles and keys that the template does not know.
pub(super) fn rewrite(
    messages: &[Message],
    options: &RenderOptions,
    gaps: Gaps,
    calls: Calls,
) -> (Vec<Message>, RenderOptions) {
    let mut rewritten: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut messages = messages.iter().peekable();
    let mut options = options.clone();
    if gaps.tools && !options.tools.is_empty() {
        let own = messages.next_if(|message| message.role == "system");
        let mut content = own.map(|message| message.content.clone()).unwrap_or_default();
        if !content.is_empty() {
            content.push_str("\n\n");
        }
        content.push_str(&describe(&options.tools, calls));
        rewritten.push(Message::new("system", content));
        options.tools.clear();
    }
    // True if the last message is a user turn with results; roles must alternate in many templates.
    let mut results = false;
    for message in messages {
        let is_result = gaps.results && message.role == "tool";
        let content = if is_result {
            format!("<tool_response>\n{}\n</tool_response>", message.content)
        } else if gaps.calls {
            with_calls(message, calls)
        } else {
            message.content.clone()
        };
        let role = if is_result { "user" } else { &*message.role };
        match rewritten.last_mut() {
            Some(last) if results && role == "user" => {
                last.content.push('\n');
                last.content.push_str(&content);
            }
            _ => {
                let calls = if gaps.calls { Vec::new() } else { message.calls.clone() };
                let role = role.to_owned();
                rewritten.push(Message { role, content, calls, ..message.clone() });
            }
        }
        results = is_result || results && role == "user";
    }
    (rewritten, options)
}

fn with_calls(message: &Message, family: Calls) -> String {
    let mut content = message.content.clone();
    if message.calls.is_empty() {
        return content;
    }
    if !content.is_empty() {
        content.push('\n');
    }
    content.push_str(&written(&message.calls, family));
    content
}

/// Calls as the model writes them.
fn written(calls: &[Call], family: Calls) -> String {
    let object = |call: &Call| dumps(&json!({"name": call.name, "arguments": call.arguments}));
    let join = |each: &dyn Fn(&Call) -> String, between: &str| {
        calls.iter().map(each).collect::<Vec<_>>().join(between)
    };
    let open = family.opens().first().copied().unwrap_or_default();
    let close = family.ends().first().copied().unwrap_or_default();
    match family {
        Calls::Lfm => format!("{open}[{}]{close}", join(&python, ", ")),
        Calls::DeepSeek => {
            let each = |call: &Call| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>",
                    call.name,
                    dumps(&call.arguments)
                )
            };
            format!("{open}{}{close}", join(&each, "\n"))
        }
        family if family.is_list() => format!("{open}[{}]{close}", join(&object, ", ")),
        _ => join(&|call| format!("<tool_call>\n{}\n</tool_call>", object(call)), "\n"),
    }
}

/// `name(key="value")`.
fn python(call: &Call) -> String {
    let literal = |value: &Json| match value {
        Json::Bool(on) => if *on { "True" } else { "False" }.to_owned(),
        Json::Null => "None".to_owned(),
        value => dumps(value),
    };
    let pairs = call.arguments.as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={}", literal(value))).collect();
    format!("{}({})", call.name, pairs.join(", "))
}

fn describe(tools: &[Json], family: Calls) -> String {
    let mut text = String::from("You can call these functions:\n<tools>\n");
    for tool in tools {
        text.push_str(&dumps(tool.get("function").unwrap_or(tool)));
        text.push('\n');
    }
    let (name, arguments) = ("function name".into(), json!({"argument name": "value"}));
    let example = written(&[Call { id: String::new(), name, arguments }], family);
    text.push_str(&format!(
        "</tools>\nTo call a function, answer only with its name and its arguments in this form:\n{example}\n\
         The results follow in <tool_response>. Answer with text if no function is needed."
    ));
    text
}
