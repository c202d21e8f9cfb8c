//! A conversation as OpenAI messages, in memory and in files.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use api::{ChatMessage, Content};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conversation {
    messages: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: Role,
    content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

impl Conversation {
    /// Sets the system prompt; an empty `text` removes it.
    pub(super) fn instruct(&mut self, text: &str) {
        self.messages.retain(|conversation| conversation.role != Role::System);
        if !text.is_empty() {
            self.messages.insert(0, Turn { role: Role::System, content: text.to_owned() });
        }
    }

    pub(super) fn instructions(&self) -> Option<&str> {
        let system = self.messages.iter().find(|conversation| conversation.role == Role::System);
        system.map(|conversation| conversation.content.as_str())
    }

    pub(super) fn ask(&mut self, text: String) {
        self.messages.push(Turn { role: Role::User, content: text });
    }

    pub(super) fn answer(&mut self, text: String) {
        self.messages.push(Turn { role: Role::Assistant, content: text });
    }

    /// Removes the last question and its answer, and returns the question if there was one.
    pub(super) fn undo(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|conversation| conversation.role == Role::User)?;
        self.messages.drain(at..).next().map(|conversation| conversation.content)
    }

    /// Removes everything but the system prompt.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|conversation| conversation.role == Role::System);
    }

    /// Number of questions.
    pub(super) fn turns(&self) -> usize {
        self.messages.iter().filter(|conversation| conversation.role == Role::User).count()
    }

    pub(super) fn messages(&self) -> Vec<ChatMessage> {
        let message = |conversation: &Turn| ChatMessage {
            role: match conversation.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            }
            .into(),
            content: Some(Content::Text(conversation.content.clone())),
            ..ChatMessage::default()
        };
        self.messages.iter().map(message).collect()
    }

    /// Writes the conversation to a new file.
    pub(super) fn save(&self, file: &Path) -> Result<(), Error> {
        use std::io::Write as _;
        let failed = |error: std::io::Error| Error::Output {
            file: file.to_owned(),
            why: match error.kind() {
                std::io::ErrorKind::AlreadyExists => "exists already; choose another name".into(),
                _ => format!("cannot be written: {error}"),
            },
        };
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        let mut out = std::fs::File::create_new(file).map_err(failed)?;
        out.write_all((text + "\n").as_bytes()).map_err(failed)
    }

    /// Reads a file that [`Self::save`] wrote.
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let refused = |why: String| Error::TextFile { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file)
            .map_err(|error| refused(format!("cannot be read: {error}")))?;
        serde_json::from_str(&text)
            .map_err(|error| refused(format!("is not a conversation saved by /save: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saving_round_trips_and_undo_removes_a_turn() {
        let mut conversation = Conversation::default();
        conversation.ask("one".into());
        conversation.answer("1".into());
        conversation.instruct("be brief");
        conversation.ask("two".into());
        let roles: Vec<_> =
            conversation.messages().into_iter().map(|message| message.role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("conversation.json");
        conversation.save(&file).unwrap();
        assert_eq!(Conversation::read(&file).unwrap(), conversation);
        assert!(conversation.save(&file).unwrap_err().to_string().contains("exists already"));

        assert_eq!((conversation.undo(), conversation.turns()), (Some("two".into()), 1));
        assert_eq!((conversation.undo(), conversation.undo()), (Some("one".into()), None));
        assert_eq!(conversation.instructions(), Some("be brief"));
        conversation.instruct("");
        assert_eq!(conversation, Conversation::default());
    }

    #[test]
    fn invalid_files_are_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("no.json");
        for text in ["", "[]", r#"{"messages":[{"role":"robot","content":""}]}"#] {
            std::fs::write(&file, text).unwrap();
            let error = Conversation::read(&file).unwrap_err().to_string();
            assert!(error.contains("no.json") && error.contains("not a conversation"), "{error}");
        }
    }
}
