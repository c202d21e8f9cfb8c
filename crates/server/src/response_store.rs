//! Stored conversations that later requests continue with `previous_response_id`. Keeps the latest
//! ones in memory while the daemon runs.

use std::collections::VecDeque;

use model::tokenizer::Message;

/// Conversations by the id of their last answer, oldest first.
#[derive(Debug, Default)]
pub(super) struct ResponseStore {
    conversations: VecDeque<(String, Vec<Message>, usize)>,
    bytes: usize,
}

impl ResponseStore {
    pub(super) const ANSWERS: usize = 1024;
    pub(super) const BYTES: usize = 64 << 20;

    pub(super) fn get(&self, id: &str) -> Option<Vec<Message>> {
        self.conversations.iter().find(|(stored, ..)| stored == id).map(|(_, list, _)| list.clone())
    }

    pub(super) fn put(&mut self, id: String, conversation: Vec<Message>) {
        let bytes = conversation.iter().map(size).sum();
        self.bytes += bytes;
        self.conversations.push_back((id, conversation, bytes));
        while self.bytes > Self::BYTES || self.conversations.len() > Self::ANSWERS {
            let Some((.., bytes)) = self.conversations.pop_front() else { break };
            self.bytes -= bytes;
        }
    }
}

/// Approximate size of a message in bytes.
fn size(message: &Message) -> usize {
    let call = |call: &model::tokenizer::Call| call.name.len() + call.arguments.to_string().len();
    let calls: usize = message.calls.iter().map(call).sum();
    let reasoning = message.reasoning.as_ref().map_or(0, String::len);
    size_of::<Message>() + message.content.len() + reasoning + calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_conversations_are_evicted_first() {
        let mut store = ResponseStore::default();
        let conversation = |text: &str| vec![Message::new("user", text)];
        for at in 0..ResponseStore::ANSWERS + 1 {
            store.put(at.to_string(), conversation("x"));
        }
        assert_eq!((store.get("0"), store.get("1").is_some()), (None, true));
        store.put(
            "large".into(),
            conversation(&"x".repeat(ResponseStore::BYTES - 2 * size_of::<Message>())),
        );
        assert!(store.get("large").is_some() && store.get("2").is_none());
        store.put("too large".into(), conversation(&"x".repeat(ResponseStore::BYTES + 1)));
        assert!(store.get("too large").is_none() && store.bytes == 0);
    }
}
