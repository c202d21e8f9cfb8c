//! The response object and its items.

use serde_json::{Value, json};

use super::functions::Functions;
use crate::dialogue::{End, Gathered, Reason};
use crate::openai::seconds;
use crate::unique;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    Call,
}

/// An item of the answer.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) id: String,
    /// Reasoning, text or arguments.
    pub(super) text: String,
    call_id: String,
    pub(super) name: String,
    namespace: Option<String>,
}

impl Item {
    pub(super) fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call => "fc",
        };
        let id = format!("{prefix}_{:016x}", unique());
        let [text, call_id, name] = [(); 3].map(|()| String::new());
        Self { kind, id, text, call_id, name, namespace: None }
    }

    /// Returns the only part of its content.
    pub(super) fn part(&self, text: &str) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Kind::Message | Kind::Call => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            }
        }
    }

    pub(super) fn value(&self, status: &str) -> Value {
        let Self { id, text, call_id, name, namespace, .. } = self;
        let content: Vec<Value> =
            if status == "in_progress" { Vec::new() } else { vec![self.part(text)] };
        match self.kind {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": id, "summary": [], "content": content, "status": status,
            }),
            Kind::Message => json!({
                "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
            }),
            Kind::Call => {
                let mut call = json!({
                    "type": "function_call", "id": id, "call_id": call_id, "name": name,
                    "arguments": text, "status": status,
                });
                if let Some(namespace) = namespace {
                    call["namespace"] = namespace.as_str().into();
                }
                call
            }
        }
    }
}

/// The response object. Repeats the request's settings.
pub(super) struct Answer {
    pub(super) id: String,
    created: u64,
    pub(super) model: String,
    echo: Value,
    pub(super) items: Vec<Item>,
    functions: Functions,
}

impl Answer {
    pub(super) fn new(request: &api::ResponsesRequest, functions: Functions) -> Self {
        let format = request.text.as_ref().and_then(|text| text.format.as_ref());
        let mut shape = json!({"type": format.map_or("text", |format| &*format.kind)});
        if let Some(schema) = format.and_then(|format| format.schema.clone()) {
            shape["schema"] = schema;
            shape["name"] = "answer".into();
        }
        let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
        let offered = |tool: &&api::ResponseTool| ["function", "namespace"].contains(&&*tool.kind);
        let tools = request.tools.iter().flatten().filter(offered).collect::<Vec<_>>();
        let echo = json!({
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": effort, "summary": null},
            "store": request.store.unwrap_or(true),
            "temperature": request.temperature,
            "text": {"format": shape},
            "tool_choice": request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": tools,
            "top_p": request.top_p,
            "truncation": "disabled",
        });
        Self {
            id: format!("resp_{:016x}", unique()),
            created: seconds(std::time::SystemTime::now()),
            model: String::new(),
            echo,
            items: Vec::new(),
            functions,
        }
    }

    /// Creates an item for a call of a function, by the name that the model knows.
    pub(super) fn call(&self, call_id: String, name: String) -> Item {
        let (namespace, name) = self.functions.original(name);
        Item { call_id, name, namespace, ..Item::new(Kind::Call) }
    }

    /// Sets the items of a complete answer.
    pub(super) fn fill(&mut self, whole: &Gathered) {
        for (kind, text) in [(Kind::Reasoning, &whole.reasoning), (Kind::Message, &whole.text)] {
            if !text.is_empty() {
                self.items.push(Item { text: text.clone(), ..Item::new(kind) });
            }
        }
        for (call_id, name, arguments) in whole.calls.clone() {
            let call = self.call(call_id, name);
            self.items.push(Item { text: arguments, ..call });
        }
    }

    pub(super) fn status(end: Option<&End>) -> &'static str {
        match end.map(|end| &end.reason) {
            None => "in_progress",
            Some(Reason::Length) => "incomplete",
            Some(_) => "completed",
        }
    }

    pub(super) fn body(&self, end: Option<&End>) -> Value {
        let status = Self::status(end);
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let usage = end.map(|End { finished, .. }| {
            let (input, output) = (finished.prompt_tokens, finished.completion_tokens);
            let mut usage = json!({
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": finished.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": u64::from(input) + u64::from(output),
            });
            if let Some(at) = finished.diverged_at {
                usage["input_tokens_details"]["diverged_at"] = at.into();
            }
            usage
        });
        let items: Vec<Value> = match end {
            None => Vec::new(),
            Some(_) => self.items.iter().map(|item| item.value(status)).collect(),
        };
        let mut body = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "error": null, "incomplete_details": incomplete, "model": self.model,
            "output": items, "usage": usage,
        });
        if let (Value::Object(body), Value::Object(echo)) = (&mut body, self.echo.clone()) {
            body.extend(echo);
        }
        body
    }
}
