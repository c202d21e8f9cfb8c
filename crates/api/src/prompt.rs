//! The prompt of a completion in its four forms. Has a hand-written deserializer: an untagged enum
//! would need sixteen times the memory of a list of ids.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

const EXPECTED: &str =
    "a string, a list of strings, a list of token ids, or a list of lists of token ids";

/// A prompt: text or token ids, one or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    /// One list of token ids, used unchanged.
    Ids(Vec<u32>),
    Texts(Vec<String>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<u32>>),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// First element of a list.
enum First {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

struct AnyFirst;

impl<'de> Visitor<'de> for AnyFirst {
    type Value = First;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<First, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(id), &self);
        u32::try_from(id).map(First::Id).map_err(wrong)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<First, E> {
        Ok(First::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<First, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(First::Ids)
    }
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyFirst)
    }
}

/// Reads the rest of a list, whose elements have the type of the first.
fn rest<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(
    first: T,
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = list.next_element()? {
        all.push(next);
    }
    Ok(all)
}

struct AnyPrompt;

impl<'de> Visitor<'de> for AnyPrompt {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        match list.next_element()? {
            None => Ok(Prompt::Ids(Vec::new())),
            Some(First::Id(id)) => rest(id, list).map(Prompt::Ids),
            Some(First::Text(text)) => rest(text, list).map(Prompt::Texts),
            Some(First::Ids(ids)) => rest(ids, list).map(Prompt::IdLists),
        }
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyPrompt)
    }
}
