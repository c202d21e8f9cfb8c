//! Formats that an answer can be required to have, in the notations of requests.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gbnf;
use crate::schema::{self, Unenforced};

/// Largest source of a grammar, in bytes.
pub(crate) const SOURCE: usize = 256 << 10;

/// Format that an answer must have.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub enum Grammar {
    /// JSON that matches a schema.
    JsonSchema(Value),
    /// JSON that matches those keywords of a schema that can be enforced.
    RelaxedSchema(Value),
    Regex(String),
    /// Grammar in llguidance's dialect of Lark.
    Lark(String),
    /// Grammar in llama.cpp's notation.
    Gbnf(String),
    /// Lark grammar that refers to others by `@name`.
    Within {
        lark: String,
        parts: Vec<(String, Grammar)>,
    },
}

impl Grammar {
    /// Grammar from its source, in GBNF or Lark.
    #[must_use]
    pub fn written(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Size of the source in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::JsonSchema(schema) | Self::RelaxedSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Within { lark, parts } => {
                lark.len() + parts.iter().map(|(_, part)| part.size()).sum::<usize>()
            }
        }
    }

    fn without_parts(&self) -> Result<GrammarWithLexer, String> {
        Ok(match self {
            Self::JsonSchema(schema) => json(schema, Unenforced::Refuse)?,
            Self::RelaxedSchema(schema) => json(schema, Unenforced::Remove)?,
            Self::Regex(regex) => GrammarWithLexer::from_regex(regex),
            Self::Lark(lark) | Self::Within { lark, .. } => {
                GrammarWithLexer::from_lark(lark.clone())
            }
            Self::Gbnf(text) => GrammarWithLexer::from_lark(gbnf::to_lark(text)?),
        })
    }

    /// Grammar in llguidance's form, with those that it refers to.
    pub(crate) fn translated(&self) -> Result<TopLevelGrammar, String> {
        let mut top = TopLevelGrammar::from_grammar(self.without_parts()?);
        if let Self::Within { parts, .. } = self {
            for (name, part) in parts {
                top.grammars
                    .push(GrammarWithLexer { name: Some(name.clone()), ..part.without_parts()? });
            }
        }
        Ok(top)
    }
}

fn json(schema: &Value, unenforced: Unenforced) -> Result<GrammarWithLexer, String> {
    let schema = schema::prepare(schema.clone(), SOURCE, unenforced)?;
    Ok(GrammarWithLexer::from_json_schema(spaced(schema)))
}

/// Allows at most one space between the parts of JSON: a model could otherwise generate white space forever.
fn spaced(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        let options = serde_json::json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?",
        });
        map.entry("x-guidance").or_insert(options);
    }
    schema
}
