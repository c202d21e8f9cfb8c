//! DeepSeek's calls: marks around a name and arguments, which may be in a block of Markdown.

use super::piece::{Piece, Read};
use super::repair::repaired;

const BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
pub(super) const END_ALL: &str = "<｜tool▁calls▁end｜>";

/// Reader of the calls after the mark that begins them all.
#[derive(Debug, Default)]
pub(super) struct DeepSeek {
    /// A call has been emitted.
    called: bool,
}

impl DeepSeek {
    pub(super) fn read(&mut self, text: &str, out: &mut Vec<Piece>) -> Read {
        let mut at = 0;
        loop {
            let rest = text[at..].trim_start();
            let begins = text.len() - rest.len();
            if rest.starts_with(END_ALL) {
                return Read::Done(begins + END_ALL.len());
            }
            let Some(call) = rest.strip_prefix(BEGIN) else {
                let undecided = BEGIN.starts_with(rest) || END_ALL.starts_with(rest);
                return match (undecided, self.called) {
                    (true, _) => Read::More(at),
                    (false, true) => Read::Done(at),
                    (false, false) => Read::Broken(at),
                };
            };
            let Some(length) = call.find(END) else { return Read::More(at) };
            let Some((name, arguments)) = parse(&call[..length]) else {
                return if self.called { Read::Done(at) } else { Read::Broken(at) };
            };
            self.called = true;
            out.push(Piece::Call { name });
            out.push(Piece::Arguments(arguments));
            at = begins + BEGIN.len() + length + END.len();
        }
    }

    /// Emits a call that the end of the answer cuts.
    pub(super) fn finish(text: &str, out: &mut Vec<Piece>) {
        let call = text.trim_start().strip_prefix(BEGIN).and_then(parse);
        if let Some((name, arguments)) = call {
            out.push(Piece::Call { name });
            out.push(Piece::Arguments(arguments));
        }
    }
}

fn parse(call: &str) -> Option<(String, String)> {
    let (before, after) = call.split_once(SEPARATOR)?;
    // Version 3.1 has the name before the separator, the others have the type there.
    let (name, arguments) = match after.split_once("```json") {
        Some((name, block)) => (name, block.trim_end().trim_end_matches('`')),
        None => (before, after),
    };
    let name = name.trim();
    let arguments = arguments.trim();
    let is_object = arguments.starts_with('{') || arguments.is_empty();
    let arguments = if arguments.is_empty() { "{}".into() } else { repaired(arguments) };
    (is_object && !name.is_empty() && !name.contains(char::is_whitespace))
        .then(|| (name.to_owned(), arguments))
}
