//! Error reporting: an error with its causes on one line ([`one_line`], [`about`]), messages for
//! invalid values ([`invalid`]), and text for terminals and logs ([`printable`]).

pub mod invalid;
pub mod printable;

use std::error::Error;

/// Removes the numbers of the system's errors: their text says the same.
#[must_use]
pub fn without_codes(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, after)) if number.bytes().all(|b| b.is_ascii_digit()) => rest += after,
            _ => rest = rest + BEGIN + part,
        }
    }
    rest
}

/// Returns an error with its causes on one line, without the numbers of the system's errors. Omits
/// causes that the message already contains.
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
    without_codes(&text)
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
    fn numbers_of_system_errors_are_removed() {
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(about("a.gguf", &missing), "a.gguf: No such file or directory");
        let text = "a (os error 2), b (os error x) (os error 13)";
        assert_eq!(without_codes(text), "a, b (os error x)");
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
