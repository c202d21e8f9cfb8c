//! Stored conversations that later requests continue with `previous_response_id`. Keeps the latest
//! ones in memory while the daemon runs.

use std::collections::VecDeque;

use model::tokenizer::Message;

/// Conversations by the id of their last answer, oldest first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    conversations: VecDeque<(String, Vec<Message>, usize)>,
    bytes: usize,
}

impl Kept {
    pub(super) const ANSWERS: usize = 1024;
    pub(super) const BYTES: usize = 64 << 20;

    pub(super) fn get(&self, id: &str) -> Option<Vec<Message>> {
        self.conversations.iter().find(|(kept, ..)| kept == id).map(|(_, list, _)| list.clone())
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
    fn the_oldest_go_first() {
        let mut kept = Kept::default();
        let conversation = |text: &str| vec![Message::new("user", text)];
        for at in 0..Kept::ANSWERS + 1 {
            kept.put(at.to_string(), conversation("x"));
        }
        assert_eq!((kept.get("0"), kept.get("1").is_some()), (None, true));
        kept.put("large".into(), conversation(&"x".repeat(Kept::BYTES - 2 * size_of::<Message>())));
        assert!(kept.get("large").is_some() && kept.get("2").is_none());
        kept.put("too large".into(), conversation(&"x".repeat(Kept::BYTES + 1)));
        assert!(kept.get("too large").is_none() && kept.bytes == 0);
    }
}
