//! Calls in a list of objects after one mark, as of Mistral, Granite and Nemotron, or for newer models of Mistral a
//! name and arguments.

use super::json::JsonCall;
use super::piece::{Piece, Read, Tools, emit};
use super::repair::Repair;

const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// Reader of the calls after `[TOOL_CALLS]`.
#[derive(Debug, Default)]
pub(super) enum Mistral {
    #[default]
    Begin,
    /// Between the objects of a list.
    List,
    Object(JsonCall),
    /// A name and optionally an id, before the arguments.
    Name,
    Arguments(Repair),
}

impl Mistral {
    pub(super) fn read(
        &mut self,
        text: &str,
        ends: &'static [&'static str],
        out: &mut Vec<Piece>,
    ) -> Read {
        let mut at = 0;
        loop {
            let rest = &text[at..];
            let next = rest.trim_start();
            let space = rest.len() - next.len();
            match self {
                Self::Object(call) => match call.read(rest, &Tools::default(), out) {
                    Read::Done(bytes) => {
                        at += bytes;
                        *self = Self::List;
                    }
                    Read::More(bytes) => return Read::More(at + bytes),
                    // An earlier object was a call.
                    Read::Broken(bytes) => return Read::Done(at + bytes),
                },
                Self::Arguments(repair) => {
                    let mut clean = String::new();
                    for (i, c) in rest.char_indices() {
                        repair.feed(c, &mut clean);
                        if repair.is_done() {
                            emit(out, Piece::Arguments(clean));
                            return Read::Done(at + i + c.len_utf8());
                        }
                    }
                    emit(out, Piece::Arguments(clean));
                    return Read::More(text.len());
                }
                Self::Begin | Self::List | Self::Name if next.is_empty() => return Read::More(at),
                Self::Begin => {
                    let is_list = next.starts_with('[');
                    at += space + usize::from(is_list);
                    *self = match next.as_bytes()[0] {
                        b'[' => Self::List,
                        b'{' => Self::Object(JsonCall::any(ends)),
                        _ => Self::Name,
                    };
                }
                Self::List => match next.as_bytes()[0] {
                    b',' => at += space + 1,
                    b'{' => {
                        at += space;
                        *self = Self::Object(JsonCall::any(ends));
                    }
                    b']' => return Read::Done(at + space + 1),
                    _ => return Read::Done(at),
                },
                Self::Name => {
                    let Some(open) = next.find('{') else { return Read::More(at) };
                    let head = next[..open].trim_end();
                    let head = head.strip_suffix(ARGS).unwrap_or(head);
                    let name = head.split(CALL_ID).next().unwrap_or(head).trim();
                    if name.is_empty() || name.contains(char::is_whitespace) {
                        return Read::Broken(at);
                    }
                    out.push(Piece::Call { name: name.to_owned() });
                    at += space + open;
                    *self = Self::Arguments(Repair::default());
                }
            }
        }
    }

    /// Completes a call that its writer did not.
    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        match self {
            Self::Object(call) => call.finish(&Tools::default(), out),
            Self::Arguments(repair) => {
                let mut clean = String::new();
                repair.finish(&mut clean);
                emit(out, Piece::Arguments(clean));
            }
            Self::Begin | Self::List | Self::Name => {}
        }
    }
}
