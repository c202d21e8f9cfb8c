//! Instructions at places that a template does not accept: they are merged where it does.

use super::message::Message;

fn instructs(message: &Message) -> bool {
    ["system", "developer"].contains(&&*message.role)
}

/// True if a conversation has instructions.
pub(super) fn exist(messages: &[Message]) -> bool {
    messages.iter().any(instructs)
}

/// True if a prompt contains all instructions.
pub(super) fn are_all_in(messages: &[Message], prompt: &str) -> bool {
    messages.iter().filter(|message| instructs(message)).all(|m| prompt.contains(m.content.trim()))
}

fn join(texts: &mut String, text: &str) {
    if !texts.is_empty() && !text.is_empty() {
        texts.push_str("\n\n");
    }
    texts.push_str(text);
}

/// All instructions in one message at the beginning.
pub(super) fn at_the_beginning(messages: &[Message]) -> Vec<Message> {
    let mut first = String::new();
    for message in messages.iter().filter(|message| instructs(message)) {
        join(&mut first, &message.content);
    }
    let others = messages.iter().filter(|message| !instructs(message)).cloned();
    std::iter::once(Message::new("system", first)).chain(others).collect()
}

/// The first instructions in one message at the beginning, later ones in the turns next to them: a new or changed
/// one leaves the prompt before it as it was, and with it the prefix cache.
pub(super) fn next_to_their_turns(messages: &[Message]) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| instructs(message)).count();
    let (leading, others) = messages.split_at(leading);
    let mut moved = in_turns(others);
    if !leading.is_empty() {
        let first = at_the_beginning(leading);
        moved.splice(..0, first);
    }
    moved
}

/// Each instruction at the end of the turn before it, if that is a user's or a tool's, else at the beginning of the
/// user turn after it, or in a user turn of its own.
pub(super) fn in_turns(messages: &[Message]) -> Vec<Message> {
    let mut moved: Vec<Message> = Vec::with_capacity(messages.len());
    let mut waiting = String::new();
    for message in messages {
        let before = moved.last_mut().filter(|last| ["user", "tool"].contains(&&*last.role));
        match (instructs(message), before) {
            (true, Some(before)) if waiting.is_empty() => {
                join(&mut before.content, &message.content);
            }
            (true, _) => join(&mut waiting, &message.content),
            (false, _) => {
                let mut message = message.clone();
                let mut content = std::mem::take(&mut waiting);
                if message.role == "user" {
                    join(&mut content, &message.content);
                    message.content = content;
                } else if !content.is_empty() {
                    moved.push(Message::new("user", content));
                }
                moved.push(message);
            }
        }
    }
    if !waiting.is_empty() {
        moved.push(Message::new("user", waiting));
    }
    moved
}
