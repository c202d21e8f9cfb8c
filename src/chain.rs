//! How an error is told: with its causes, on one line.

use std::error::Error;

/// An error and its causes. Some messages already have their cause in them: it is not said twice.
pub(crate) fn one_line(error: &dyn Error) -> String {
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

/// An error about a file or a name, which is named once: some messages do it themselves.
pub(crate) fn of(name: &str, error: &dyn Error) -> String {
    let text = one_line(error);
    if text.contains(name) { text } else { format!("{name}: {text}") }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Told {
        #[error("no answer")]
        Apart(#[source] io::Error),
        #[error("no answer: {0}")]
        Inside(#[source] io::Error),
        #[error("no answer: {0}; ask again")]
        Within(#[source] io::Error),
        #[error("the daemon")]
        Outer(#[source] Box<Told>),
    }

    #[test]
    fn every_cause_is_told_once() {
        let cause = || io::Error::other("the socket is gone");
        for inner in [Told::Apart(cause()), Told::Inside(cause())] {
            let error = Told::Outer(Box::new(inner));
            assert_eq!(one_line(&error), "the daemon: no answer: the socket is gone");
        }
        let within = Told::Within(cause());
        assert_eq!(one_line(&within), "no answer: the socket is gone; ask again");
        assert_eq!(of("the socket", &within), one_line(&within));
        assert_eq!(of("a.gguf", &cause()), "a.gguf: the socket is gone");
    }
}
