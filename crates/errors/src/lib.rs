//! Error reporting: an error with its causes on one line ([`one_line`], [`about`]), messages for
//! invalid values ([`invalid`]), and text for terminals and logs ([`printable`]).

pub mod invalid;
pub mod printable;

use std::error::Error;

/// Returns an error with its causes on one line. Omits causes that the message already contains.
#[must_use]
pub fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Returns an error prefixed with `name` (such as a file), unless the message contains it.
#[must_use]
pub fn about(name: &str, error: &dyn Error) -> String {
    let text = one_line(error);
    if text.contains(name) { text } else { format!("{name}: {text}") }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("no answer")]
        Apart(#[source] io::Error),
        #[error("no answer: {0}")]
        Inside(#[source] io::Error),
        #[error("no answer: {0}; ask again")]
        Within(#[source] io::Error),
        #[error("the daemon")]
        Outer(#[source] Box<Failure>),
    }

    #[test]
    fn each_cause_is_printed_once() {
        let cause = || io::Error::other("the socket is gone");
        for inner in [Failure::Apart(cause()), Failure::Inside(cause())] {
            let error = Failure::Outer(Box::new(inner));
            assert_eq!(one_line(&error), "the daemon: no answer: the socket is gone");
        }
        let within = Failure::Within(cause());
        assert_eq!(one_line(&within), "no answer: the socket is gone; ask again");
        assert_eq!(about("the socket", &within), one_line(&within));
        assert_eq!(about("a.gguf", &cause()), "a.gguf: the socket is gone");
    }
}
