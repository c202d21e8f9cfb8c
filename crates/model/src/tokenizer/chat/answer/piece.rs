//! Pieces of an answer, and what all readers of tool calls share.

use serde_json::Value as Json;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    /// Start of a tool call.
    Call {
        name: String,
    },
    /// Part of the arguments of the latest call. Joined, they are a JSON object.
    Arguments(String),
}

/// Appends a piece, or joins it with the last one of the same kind.
pub(super) fn emit(out: &mut Vec<Piece>, piece: Piece) {
    match (out.last_mut(), piece) {
        (Some(Piece::Text(last)), Piece::Text(more))
        | (Some(Piece::Reasoning(last)), Piece::Reasoning(more))
        | (Some(Piece::Arguments(last)), Piece::Arguments(more)) => last.push_str(&more),
        (_, Piece::Text(text) | Piece::Reasoning(text) | Piece::Arguments(text))
            if text.is_empty() => {}
        (_, piece) => out.push(piece),
    }
}

/// Result of reading the next part of a call.
pub(super) enum Read {
    /// The call continues; this number of bytes has been consumed.
    More(usize),
    /// The call ends after this number of bytes.
    Done(usize),
    /// The text is not a call; this number of bytes could still have been one. Never follows an emitted
    /// [`Piece::Call`].
    Broken(usize),
}

/// The tools of a request: their names, which identify calls without marks, and the schemas of their arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(Vec<(String, Json)>);

impl Tools {
    /// Reads tools in the format of templates.
    pub(super) fn new(tools: &[Json]) -> Self {
        let tool = |tool: &Json| {
            let function = tool.get("function")?;
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or_default()))
        };
        Self(tools.iter().filter_map(tool).collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// The schema of an argument.
    pub(super) fn argument(&self, tool: &str, name: &str) -> Option<&Json> {
        let (_, parameters) = self.0.iter().find(|(known, _)| known == tool)?;
        parameters.get("properties")?.get(name)
    }
}

/// Number of bytes at the end of `text` that may be the start of one of the marks.
pub(super) fn partial_mark(text: &str, marks: &[&str]) -> usize {
    let longest = |mark: &&str| {
        let most = text.len().min(mark.len() - 1);
        (1..=most).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n]))
    };
    marks.iter().filter_map(longest).max().unwrap_or(0)
}
