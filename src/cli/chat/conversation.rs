//! What has been said: kept as OpenAI's messages, in memory and in files.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use api::{ChatMessage, Content};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conversation {
    messages: Vec<Said>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
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
    /// What the model is told before all else; nothing, if `text` is empty.
    pub(super) fn instruct(&mut self, text: &str) {
        self.messages.retain(|said| said.role != Role::System);
        if !text.is_empty() {
            self.messages.insert(0, Said { role: Role::System, content: text.to_owned() });
        }
    }

    pub(super) fn instructions(&self) -> Option<&str> {
        let system = self.messages.iter().find(|said| said.role == Role::System);
        system.map(|said| said.content.as_str())
    }

    pub(super) fn ask(&mut self, text: String) {
        self.messages.push(Said { role: Role::User, content: text });
    }

    pub(super) fn answer(&mut self, text: String) {
        self.messages.push(Said { role: Role::Assistant, content: text });
    }

    /// Takes back the last question and its answer. What was asked, if anything was.
    pub(super) fn undo(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|said| said.role == Role::User)?;
        self.messages.drain(at..).next().map(|said| said.content)
    }

    /// Forgets all but the instructions.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|said| said.role == Role::System);
    }

    /// Questions that were asked.
    pub(super) fn turns(&self) -> usize {
        self.messages.iter().filter(|said| said.role == Role::User).count()
    }

    pub(super) fn messages(&self) -> Vec<ChatMessage> {
        let message = |said: &Said| ChatMessage {
            role: match said.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            }
            .into(),
            content: Some(Content::Text(said.content.clone())),
            ..ChatMessage::default()
        };
        self.messages.iter().map(message).collect()
    }

    /// Writes it to a file that is not there yet.
    pub(super) fn save(&self, file: &Path) -> Result<(), Error> {
        use std::io::Write as _;
        let failed = |error: std::io::Error| Error::Output {
            file: file.to_owned(),
            why: match error.kind() {
                std::io::ErrorKind::AlreadyExists => "is there already; name another file".into(),
                _ => format!("cannot be written: {error}"),
            },
        };
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        let mut out = std::fs::File::create_new(file).map_err(failed)?;
        out.write_all((text + "\n").as_bytes()).map_err(failed)
    }

    /// Reads what [`Self::save`] wrote.
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let refused = |why: String| Error::TextFile { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file)
            .map_err(|error| refused(format!("cannot be read: {error}")))?;
        serde_json::from_str(&text)
            .map_err(|error| refused(format!("is no conversation that /save wrote: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_comes_back_and_what_is_undone_is_gone() {
        let mut said = Conversation::default();
        said.ask("one".into());
        said.answer("1".into());
        said.instruct("be brief");
        said.ask("two".into());
        let roles: Vec<_> = said.messages().into_iter().map(|message| message.role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("said.json");
        said.save(&file).unwrap();
        assert_eq!(Conversation::read(&file).unwrap(), said);
        assert!(said.save(&file).unwrap_err().to_string().contains("is there already"));

        assert_eq!((said.undo(), said.turns()), (Some("two".into()), 1));
        assert_eq!((said.undo(), said.undo()), (Some("one".into()), None));
        assert_eq!(said.instructions(), Some("be brief"));
        said.instruct("");
        assert_eq!(said, Conversation::default());
    }

    #[test]
    fn a_file_that_is_no_conversation_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("no.json");
        for text in ["", "[]", r#"{"messages":[{"role":"robot","content":""}]}"#] {
            std::fs::write(&file, text).unwrap();
            let error = Conversation::read(&file).unwrap_err().to_string();
            assert!(error.contains("no.json") && error.contains("no conversation"), "{error}");
        }
    }
}
