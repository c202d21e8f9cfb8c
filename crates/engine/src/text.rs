//! Text side of a model: tokenizer, chat template, grammars and infill, as its file describes them.

use std::path::Path;
use std::sync::Arc;

use super::{Grammars, Infill, LoadError};
use errors::about;
use model::gguf::Gguf;
use model::tokenizer::{self, Calls, ChatTemplate, Origin, Specials, Tokenizer, Vocabulary};

#[derive(Debug)]
pub struct Text {
    pub tokenizer: Arc<Tokenizer>,
    pub chat: ChatTemplate,
    /// Control tokens that delimit the parts of an answer, with their names.
    pub marks: Vec<(&'static str, u32)>,
    pub grammars: Grammars,
    /// Infill tokens, if the model has some.
    pub infill: Option<Infill>,
}

impl Text {
    /// Id of a control token by name, if it delimits parts of an answer.
    pub fn mark(&self, name: &str) -> Option<u32> {
        self.marks.iter().find(|(mark, _)| *mark == name).map(|(_, id)| *id)
    }
}

/// True if the error is in the file, and not in this process.
const fn is_in_file(error: &tokenizer::Error) -> bool {
    !matches!(error, tokenizer::Error::TemplateThread(_))
}

pub(super) fn read(path: &Path, gguf: &Gguf) -> Result<Text, LoadError> {
    let said = |error: &dyn std::error::Error| about(&path.display().to_string(), error);
    let vocabulary = Vocabulary::from_metadata(gguf.metadata())
        .map_err(|error| LoadError::Invalid(said(&error)))?;
    let chat = ChatTemplate::new(&vocabulary).map_err(|error| match is_in_file(&error) {
        true => LoadError::Invalid(said(&error)),
        false => LoadError::OutOfMemory(said(&error)),
    })?;
    report(path, &chat);
    let tokenizer = Tokenizer::new(vocabulary).map_err(|error| LoadError::Invalid(said(&error)))?;
    let tokenizer = Arc::new(tokenizer);
    let mark = |name: &'static str| match *tokenizer.encode(name, Specials::Parse, false).ok()? {
        [id] => tokenizer.is_control(id).then_some((name, id)),
        _ => None,
    };
    let marks = chat.format().marks().filter_map(mark).collect();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    let infill = Infill::of(gguf, &tokenizer)
        .map_err(|why| LoadError::Invalid(format!("{}: {why}", path.display())))?;
    Ok(Text { tokenizer, chat, marks, grammars, infill })
}

/// Logs what the model's file does not determine about chats.
fn report(path: &Path, chat: &ChatTemplate) {
    let model = path.display();
    if let Err(error) = chat.usable() {
        tracing::warn!(%model, %error, "chats are refused");
        return;
    }
    if let Origin::Vocabulary(format) = chat.origin() {
        tracing::info!(%model, format, "no chat template; the tokens show the format");
    }
    if chat.format().calls == Some(Calls::Generic) {
        let format = Calls::Generic.name();
        tracing::info!(%model, format, "the chat template knows no tools; orind describes them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_threads_is_not_an_error_in_the_file() {
        let none = std::io::Error::from_raw_os_error(libc::EAGAIN);
        assert!(!is_in_file(&tokenizer::Error::TemplateThread(none)));
        assert!(is_in_file(&tokenizer::Error::TemplateLength { bytes: 2, limit: 1 }));
    }
}
