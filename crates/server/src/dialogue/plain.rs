//! Prompts without a chat template: a text to continue, or two texts to fill the gap between.

use std::sync::Arc;

use model::tokenizer::{AnswerParser, Format, Specials};

use super::{Ask, Dialogue, Encoded, Form};
use crate::error::Error;
use crate::{App, params, prompt};

#[derive(Debug)]
pub(crate) struct PlainPrompt {
    /// Text before the answer. Names of special tokens in it are parsed, unless there is a suffix.
    pub(crate) text: String,
    /// Text after the answer.
    pub(crate) suffix: Option<String>,
    /// Texts before the others, the least important one first.
    pub(crate) files: Vec<String>,
}

impl PlainPrompt {
    /// Starts the generations. The messages of `ask` are not used.
    pub(crate) async fn start(self, app: &Arc<App>, mut ask: Ask) -> Result<Dialogue, Error> {
        let admission = params::admit(app, ask.model.as_deref(), ask.answers).await?;
        let served = Arc::clone(&admission.served);
        let constraint = match std::mem::take(&mut ask.form) {
            Form::Text => None,
            Form::Grammar(grammar) => Some(prompt::constraint(app, &served, grammar).await?),
        };
        let ids = match self.suffix {
            Some(suffix) => {
                let answer = params::at_most(ask.max_tokens, served.model.context);
                let room = served.model.context.saturating_sub(answer.unwrap_or(1) as usize);
                prompt::infill(app, &served, self.text, suffix, self.files, room).await?
            }
            None => {
                let texts = vec![self.text];
                let all = prompt::encode(app, &served, ask.field, texts, Specials::Parse).await?;
                all.into_iter().flat_map(|(_, ids)| ids).collect()
            }
        };
        if ids.is_empty() {
            let message = format!("{}: has no tokens; at least one is needed", ask.field);
            return Err(Error::value(ask.field, message));
        }
        let parser = || AnswerParser::new(Format::PLAIN, &[], "");
        ask.begin(app, admission, Encoded { ids, constraint, shown: Vec::new(), parser })
    }
}
