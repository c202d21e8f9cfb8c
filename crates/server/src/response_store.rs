//! Stored responses, which later requests continue with `previous_response_id` and whose items they
//! name. Keeps the latest ones in memory while the daemon runs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use model::tokenizer::{Call, Message};

use super::json_memory;

/// A response with its request.
#[derive(Debug)]
pub(super) struct Stored {
    /// Conversation with the answer, without instructions.
    pub(super) conversation: Vec<Message>,
    /// The response as it was sent.
    pub(super) body: String,
    pub(super) input: Vec<Arc<api::Item>>,
    /// Items of the answer.
    pub(super) output: Vec<Arc<api::Item>>,
}

impl Stored {
    fn items(&self) -> impl Iterator<Item = &Arc<api::Item>> {
        self.input.iter().chain(&self.output)
    }

    /// Approximate size in memory, in bytes.
    fn size(&self) -> usize {
        let tree = |item: &Arc<api::Item>| {
            serde_json::to_string(&**item).map_or(0, |json| json_memory::tree(&json))
        };
        let items = self.items().map(|item| 2 * size_of::<api::Item>() + tree(item));
        self.conversation.iter().map(size).chain(items).sum::<usize>() + self.body.len()
    }
}

/// Responses by id, oldest first, and their items.
#[derive(Debug, Default)]
pub(super) struct ResponseStore {
    responses: VecDeque<(String, Arc<Stored>, usize)>,
    items: HashMap<String, Arc<api::Item>>,
    bytes: usize,
}

impl ResponseStore {
    pub(super) const ANSWERS: usize = 1024;
    pub(super) const BYTES: usize = 64 << 20;

    pub(super) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        let found = self.responses.iter().find(|(stored, ..)| stored == id);
        found.map(|(_, stored, _)| Arc::clone(stored))
    }

    /// Returns an item of a stored response, or of its request.
    pub(super) fn item(&self, id: &str) -> Option<Arc<api::Item>> {
        self.items.get(id).cloned()
    }

    pub(super) fn put(&mut self, id: String, stored: Stored) {
        let bytes = stored.size();
        self.bytes += bytes;
        for item in stored.items() {
            if let Some(id) = &item.id {
                self.items.insert(id.clone(), Arc::clone(item));
            }
        }
        self.responses.push_back((id, Arc::new(stored), bytes));
        while self.bytes > Self::BYTES || self.responses.len() > Self::ANSWERS {
            let Some(oldest) = self.responses.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    /// Returns true if the response was stored.
    pub(super) fn delete(&mut self, id: &str) -> bool {
        let at = self.responses.iter().position(|(stored, ..)| stored == id);
        let Some(removed) = at.and_then(|at| self.responses.remove(at)) else { return false };
        self.forget(&removed);
        true
    }

    fn forget(&mut self, (_, stored, bytes): &(String, Arc<Stored>, usize)) {
        self.bytes -= bytes;
        for item in stored.items() {
            let Some(id) = &item.id else { continue };
            // A later response may have an item of that id.
            if self.items.get(id).is_some_and(|kept| Arc::ptr_eq(kept, item)) {
                self.items.remove(id);
            }
        }
    }
}

/// Approximate size of a message in memory, in bytes.
fn size(message: &Message) -> usize {
    let call = |call: &Call| {
        size_of::<Call>() + call.name.len() + json_memory::tree(&call.arguments.to_string())
    };
    let calls: usize = message.calls.iter().map(call).sum();
    let reasoning = message.reasoning.as_ref().map_or(0, String::len);
    size_of::<Message>() + message.content.len() + reasoning + calls
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str, item: &str) -> Stored {
        let conversation = vec![Message::new("user", text)];
        let item = api::Item { id: Some(item.into()), ..api::Item::default() };
        Stored {
            conversation,
            body: String::new(),
            input: Vec::new(),
            output: vec![Arc::new(item)],
        }
    }

    #[test]
    fn oldest_responses_are_evicted_first_with_their_items() {
        let mut store = ResponseStore::default();
        for at in 0..ResponseStore::ANSWERS + 1 {
            store.put(at.to_string(), stored("x", &format!("item {at}")));
        }
        assert!(store.get("0").is_none() && store.get("1").is_some());
        assert!(store.item("item 0").is_none() && store.item("item 1").is_some());
        assert!(store.delete("1") && !store.delete("1") && store.item("item 1").is_none());
        store.put("large".into(), stored(&"x".repeat(ResponseStore::BYTES - 4096), "large"));
        assert!(store.get("large").is_some() && store.get("2").is_none());
        let mut tree = stored("x", "tree");
        tree.conversation[0].calls.push(Call {
            id: "a".into(),
            name: "f".into(),
            arguments: serde_json::json!(vec![[0; 0]; ResponseStore::BYTES / 64]),
        });
        store.put("tree".into(), tree);
        assert!(store.get("tree").is_none(), "a tree takes more than its text");
        store.put("too large".into(), stored(&"x".repeat(ResponseStore::BYTES + 1), "too large"));
        assert!(store.get("too large").is_none());
        assert!(store.bytes == 0 && store.items.is_empty());
    }

    #[test]
    fn an_item_of_two_responses_stays_with_the_later_one() {
        let mut store = ResponseStore::default();
        store.put("a".into(), stored("x", "item"));
        store.put("b".into(), stored("x", "item"));
        assert!(store.delete("a") && store.item("item").is_some());
        assert!(store.delete("b") && store.item("item").is_none());
    }
}
