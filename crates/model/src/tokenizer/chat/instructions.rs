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

/// Each instruction at the beginning of the next user turn; later ones at the end of the last user turn.
pub(super) fn in_user_turns(messages: &[Message]) -> Vec<Message> {
    let mut moved: Vec<Message> = Vec::with_capacity(messages.len());
    let mut waiting = String::new();
    for message in messages {
        if instructs(message) {
            join(&mut waiting, &message.content);
        } else if message.role == "user" && !waiting.is_empty() {
            let mut content = std::mem::take(&mut waiting);
            join(&mut content, &message.content);
            moved.push(Message { content, ..message.clone() });
        } else {
            moved.push(message.clone());
        }
    }
    if !waiting.is_empty() {
        match moved.iter_mut().rfind(|message| message.role == "user") {
            Some(user) => join(&mut user.content, &waiting),
            None => moved.push(Message::new("user", waiting)),
        }
    }
    moved
}
