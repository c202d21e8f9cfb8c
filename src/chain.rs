//! How an error is told: with its causes, on one line.

use std::error::Error;

/// An error and its causes. Some messages already end with their cause: it is not said twice.
pub(crate) fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
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
    }
}
