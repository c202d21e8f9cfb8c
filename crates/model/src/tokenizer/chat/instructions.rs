//! Conversations for templates that refuse instructions at their place, or turns that do not alternate.
//!
//! A message that is added at the end of a conversation changes nothing before it, so that cached prefixes are found.

use super::message::Message;

fn instructs(message: &Message) -> bool {
    ["system", "developer"].contains(&&*message.role)
}

/// True if a prompt contains all instructions.
pub(super) fn are_all_in(messages: &[Message], prompt: &str) -> bool {
    messages.iter().filter(|message| instructs(message)).all(|m| prompt.contains(m.content.trim()))
}

/// Other forms of a conversation with instructions, without repetitions: the closest to the original first. Agents
/// send several messages of a role beside their instructions. Without any, the template's refusal is the answer.
pub(super) fn forms(messages: &[Message]) -> Vec<Vec<Message>> {
    if !messages.iter().any(instructs) {
        return Vec::new();
    }
    let (first, none) = (in_user_turns(messages, true), in_user_turns(messages, false));
    let candidates = [
        first.clone(),
        joined(messages, false),
        joined(&first, false),
        none.clone(),
        joined(&none, false),
        joined(&first, true),
        joined(&none, true),
    ];
    let mut forms: Vec<Vec<Message>> = Vec::with_capacity(candidates.len());
    for form in candidates {
        if form != messages && !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

fn join(texts: &mut String, text: &str) {
    if !texts.is_empty() && !text.is_empty() {
        texts.push_str("\n\n");
    }
    texts.push_str(text);
}

/// Instructions in user turns: at the end of the turn before them, or else in a turn of their own. Those at the
/// beginning are one system message, or belong to the first user turn.
fn in_user_turns(messages: &[Message], system: bool) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| instructs(message)).count();
    let mut first = String::new();
    for message in &messages[..leading] {
        join(&mut first, &message.content);
    }
    let mut moved: Vec<Message> = Vec::with_capacity(messages.len());
    if leading > 0 {
        moved.push(Message::new(if system { "system" } else { "user" }, first));
    }
    // True if the last turn has instructions only.
    let mut alone = leading > 0 && !system;
    for message in &messages[leading..] {
        match moved.last_mut() {
            Some(last) if last.role == "user" && instructs(message) => {
                join(&mut last.content, &message.content);
            }
            Some(last) if alone && message.role == "user" => {
                join(&mut last.content, &message.content);
                alone = false;
            }
            _ => {
                alone = instructs(message);
                let role = if alone { "user" } else { &*message.role }.to_owned();
                moved.push(Message { role, ..message.clone() });
            }
        }
    }
    moved
}

/// Consecutive messages of a role as one. `tools` also joins a user turn with the result of a tool before it, for
/// templates that expect an answer in between.
fn joined(messages: &[Message], tools: bool) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let same = |last: &Message| last.role == message.role && message.role != "tool";
        let result = |last: &Message| tools && last.role == "tool" && message.role == "user";
        match turns.last_mut() {
            Some(last) if last.calls.is_empty() && (same(last) || result(last)) => {
                join(&mut last.content, &message.content);
                last.calls.clone_from(&message.calls);
                if let Some(reasoning) = &message.reasoning {
                    join(last.reasoning.get_or_insert_default(), reasoning);
                }
            }
            _ => turns.push(message.clone()),
        }
    }
    turns
}
