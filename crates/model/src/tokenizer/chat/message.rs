//! Input of a template: messages with tool calls, tools, options, and their conversion to template values.

use std::io::{self, Write};

use jinja::Value;
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value as Json};

use super::Expectations;
use super::plain::Control;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    pub content: String,
    /// The assistant's reasoning before the content.
    pub reasoning: Option<String>,
    /// The assistant's tool calls.
    pub calls: Vec<Call>,
    /// Id of the call that a tool message answers.
    pub call_id: Option<String>,
    /// Name of the tool that answers.
    pub name: Option<String>,
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

/// A tool call by the assistant.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// Arguments: an object, as templates expect.
    pub arguments: Json,
}

/// Options for rendering a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End the prompt with the start of the assistant's next message.
    pub add_generation_prompt: bool,
    /// Available tools, each `{"type": "function", "function": {..}}`.
    pub tools: Vec<Json>,
    /// Other template variables, such as `enable_thinking` and `reasoning_effort`.
    pub variables: Map<String, Json>,
}

impl RenderOptions {
    /// Options for a prompt that the assistant answers.
    #[must_use]
    pub fn answer() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }
}

/// Number of text bytes and values in a conversation, for the limits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    /// Bytes of text.
    pub(super) text: usize,
    /// Values of tools, arguments and variables, each with its punctuation.
    pub(super) values: usize,
}

/// Calls `f` with each text of a conversation.
pub(super) fn texts(messages: &[Message], options: &RenderOptions, f: &mut impl FnMut(&str)) {
    for message in messages {
        f(&message.role);
        f(&message.content);
        let optional = [&message.reasoning, &message.call_id, &message.name];
        optional.into_iter().flatten().for_each(|text| f(text));
        for call in &message.calls {
            f(&call.id);
            f(&call.name);
            json_texts(&call.arguments, f);
        }
    }
    options.tools.iter().for_each(|tool| json_texts(tool, f));
    for (name, value) in &options.variables {
        f(name);
        json_texts(value, f);
    }
}

fn json_texts(value: &Json, f: &mut impl FnMut(&str)) {
    match value {
        Json::String(text) => f(text),
        Json::Array(list) => list.iter().for_each(|item| json_texts(item, f)),
        Json::Object(map) => {
            for (key, item) in map {
                f(key);
                json_texts(item, f);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Converts messages to template values in which no text can become a control token.
pub(super) struct Values<'a> {
    control: &'a Control,
    sentinel: char,
    expected: Expectations,
    pub(super) size: Size,
}

impl<'a> Values<'a> {
    pub(super) const fn new(control: &'a Control, sentinel: char, expected: Expectations) -> Self {
        Self { control, sentinel, expected, size: Size { text: 0, values: 0 } }
    }

    fn text(&mut self, text: &str) -> Value {
        self.marked(text, true)
    }

    fn marked(&mut self, text: &str, ends: bool) -> Value {
        let text = self.control.mark(text, self.sentinel, ends);
        self.size.text = self.size.text.saturating_add(text.len());
        Value::from(&*text)
    }

    /// A message; `tools` is the text of the tools, for templates that read them from it.
    pub(super) fn message(&mut self, message: &Message, tools: Option<&str>) -> Value {
        // Templates turn roles into control tokens, so the ends of a role are not marked.
        let role = self.marked(&message.role, false);
        let mut content = self.text(&message.content);
        if self.expected.content_parts {
            let part =
                vec![(Value::from("type"), Value::from("text")), (Value::from("text"), content)];
            content = Value::list(vec![Value::dict(part)]);
        }
        let mut fields = vec![("role", role), ("content", content)];
        if let Some(tools) = tools {
            fields.push(("tools", self.text(tools)));
        }
        if let Some(reasoning) = &message.reasoning {
            let reasoning = self.text(reasoning);
            // gpt-oss's template has another name for it, and rejects it together with content in a message with
            // calls.
            if message.calls.is_empty() || message.content.is_empty() {
                fields.push(("thinking", reasoning.clone()));
            }
            fields.push(("reasoning_content", reasoning));
        }
        // Set only with calls, because templates test for the key.
        if !message.calls.is_empty() {
            let calls: Vec<_> = message.calls.iter().map(|call| self.call(call)).collect();
            fields.push(("tool_calls", Value::list(calls)));
        }
        for (key, text) in [("tool_call_id", &message.call_id), ("name", &message.name)] {
            if let Some(text) = text {
                fields.push((key, self.text(text)));
            }
        }
        object(fields)
    }

    fn call(&mut self, call: &Call) -> Value {
        let arguments = match &call.arguments {
            Json::Object(_) if self.expected.argument_texts => self.text(&dumps(&call.arguments)),
            arguments => self.json(arguments),
        };
        let function = vec![("name", self.text(&call.name)), ("arguments", arguments)];
        object(vec![
            ("id", self.text(&call.id)),
            ("type", Value::from("function")),
            ("function", object(function)),
        ])
    }

    pub(super) fn json(&mut self, value: &Json) -> Value {
        self.size.values += 1;
        match value {
            Json::Null => Value::None,
            Json::Bool(on) => Value::Bool(*on),
            Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(number), ..) => Value::Int(number.into()),
                (None, Some(number), _) => Value::Int(number.into()),
                (None, None, number) => Value::Float(number.unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.text(text),
            Json::Array(list) => Value::list(list.iter().map(|item| self.json(item)).collect()),
            Json::Object(map) => {
                let pair = |(key, item): (&String, &Json)| (self.text(key), self.json(item));
                Value::dict(map.iter().map(pair).collect())
            }
        }
    }
}

fn object(fields: Vec<(&str, Value)>) -> Value {
    Value::dict(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
}

/// The functions of tools as one text.
pub(super) fn functions(tools: &[Json]) -> String {
    let function = |tool: &Json| tool.get("function").unwrap_or(tool).clone();
    dumps(&Json::Array(tools.iter().map(function).collect()))
}

/// JSON with the spaces of Python's `json.dumps`.
pub(super) fn dumps(value: &Json) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
    // Writing to memory does not fail.
    let _ = value.serialize(&mut serializer);
    String::from_utf8(out).unwrap_or_default()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
