//! The stream of a response: OpenAI's named and numbered events.

use axum::response::sse;
use serde_json::{Value, json};

use super::answer::{Answer, Item, Kind};
use super::stored::Store;
use crate::dialogue::{Gathered, Part, Update};
use crate::error::Error;
use crate::events;

pub(super) struct Streaming {
    answer: Answer,
    store: Option<Store>,
    whole: Gathered,
    /// True while the last item is incomplete.
    open: bool,
    sequence: u64,
}

impl Streaming {
    pub(super) fn new(answer: Answer, store: Option<Store>) -> Self {
        Self { answer, store, whole: Gathered::default(), open: false, sequence: 0 }
    }

    /// Returns a numbered event of the given type.
    fn event(&mut self, kind: &str, mut fields: Value) -> sse::Event {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        events::named(kind, &fields)
    }

    pub(super) fn first(&mut self) -> Vec<sse::Event> {
        let body = self.answer.body(None);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": body})))
            .into()
    }

    /// Returns the events for an update.
    pub(super) fn parts(&mut self, update: Update) -> Vec<sse::Event> {
        self.whole.add(update.clone());
        let mut out = Vec::new();
        for part in update.parts {
            let (kind, text) = match part {
                Part::Reasoning(text) => (Kind::Reasoning, text),
                Part::Text(text) => (Kind::Message, text),
                Part::Call { id, name, .. } => {
                    let call = self.answer.call(id, name);
                    self.begin(call, &mut out);
                    continue;
                }
                Part::Arguments { text, .. } => (Kind::Call, text),
            };
            let goes_on =
                self.open && self.answer.items.last().is_some_and(|item| item.kind == kind);
            if !goes_on {
                self.begin(Item::new(kind), &mut out);
            }
            let name = match kind {
                Kind::Reasoning => "response.reasoning_text.delta",
                Kind::Message => "response.output_text.delta",
                Kind::Call => "response.function_call_arguments.delta",
            };
            let mut fields = self.place();
            fields["delta"] = text.as_str().into();
            if kind == Kind::Message {
                fields["logprobs"] = json!([]);
            }
            out.push(self.event(name, fields));
            if let Some(item) = self.answer.items.last_mut() {
                item.text.push_str(&text);
            }
        }
        let Some(end) = update.end else { return out };
        let status = Answer::status(Some(&end));
        self.close(status, &mut out);
        let body = self.answer.body(Some(&end));
        if let Some(store) = self.store.take() {
            store.put(&self.answer, &body, std::mem::take(&mut self.whole));
        }
        out.push(self.event(&format!("response.{status}"), json!({"response": body})));
        out
    }

    /// Returns the events that end the stream with an error.
    pub(super) fn failed(&mut self, error: &Error) -> Vec<sse::Event> {
        let detail = error.body().error;
        let mut body = self.answer.body(None);
        body["status"] = "failed".into();
        body["error"] = json!({"code": detail.code, "message": detail.message});
        let failed = self.event("response.failed", json!({"response": body}));
        // Clients recognise an error by the field `error`, or by the type and the fields next to it.
        let fields = json!({"code": detail.code, "message": detail.message, "param": detail.param,
            "error": detail});
        vec![failed, self.event(api::event::ERROR, fields)]
    }

    /// Returns the position of the last item.
    fn place(&self) -> Value {
        let Some(item) = self.answer.items.last() else {
            unreachable!("asked for behind the beginning of an item");
        };
        let mut place = json!({"item_id": item.id, "output_index": self.answer.items.len() - 1});
        if item.kind != Kind::Call {
            place["content_index"] = 0.into();
        }
        place
    }

    fn begin(&mut self, item: Item, out: &mut Vec<sse::Event>) {
        self.close("completed", out);
        let (index, value) = (self.answer.items.len(), item.value("in_progress"));
        let (kind, part) = (item.kind, item.part(""));
        self.answer.items.push(item);
        self.open = true;
        let added = json!({"output_index": index, "item": value});
        out.push(self.event("response.output_item.added", added));
        if kind != Kind::Call {
            let mut fields = self.place();
            fields["part"] = part;
            out.push(self.event("response.content_part.added", fields));
        }
    }

    /// Ends the last item if it is open.
    fn close(&mut self, status: &str, out: &mut Vec<sse::Event>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Some(item) = self.answer.items.last().cloned() else { return };
        let (name, key) = match item.kind {
            Kind::Reasoning => ("response.reasoning_text.done", "text"),
            Kind::Message => ("response.output_text.done", "text"),
            Kind::Call => ("response.function_call_arguments.done", "arguments"),
        };
        let mut fields = self.place();
        fields[key] = item.text.as_str().into();
        match item.kind {
            Kind::Message => fields["logprobs"] = json!([]),
            Kind::Call => fields["name"] = item.name.as_str().into(),
            Kind::Reasoning => {}
        }
        out.push(self.event(name, fields));
        if item.kind != Kind::Call {
            let mut fields = self.place();
            fields["part"] = item.part(&item.text);
            out.push(self.event("response.content_part.done", fields));
        }
        let index = self.answer.items.len() - 1;
        let done = json!({"output_index": index, "item": item.value(status)});
        out.push(self.event("response.output_item.done", done));
    }
}
