//! Header with the format of tool calls that an answer uses: `x-orind-tool-format`.

use std::cell::Cell;
use std::future::Future;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use model::tokenizer::Calls;

const HEADER: HeaderName = HeaderName::from_static("x-orind-tool-format");

tokio::task_local! {
    static FORMAT: Cell<Option<&'static str>>;
}

/// Sets the format of the current request.
pub(super) fn report(format: Calls) {
    let name = format.name();
    tracing::debug!(format = name, "tools");
    // Outside of a request, as in tests, there is no header.
    let _ = FORMAT.try_with(|used| used.set(Some(name)));
}

/// Runs a request, and returns the format that it reported.
pub(super) async fn observe<T>(request: impl Future<Output = T>) -> (T, Option<&'static str>) {
    let run = async {
        let answer = request.await;
        (answer, FORMAT.with(Cell::get))
    };
    FORMAT.scope(Cell::new(None), run).await
}

pub(super) fn put(format: Option<&'static str>, headers: &mut HeaderMap) {
    if let Some(format) = format {
        headers.insert(HEADER, HeaderValue::from_static(format));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_has_the_format_that_it_reported() {
        let request = async {
            report(Calls::Generic);
            1
        };
        let (answer, format) = observe(request).await;
        assert_eq!((answer, format), (1, Some("generic")));
        let mut headers = HeaderMap::new();
        put(format, &mut headers);
        assert_eq!(headers[HEADER], "generic");
        let ((), format) = observe(async {}).await;
        assert_eq!(format, None);
        // Outside of a request.
        report(Calls::Hermes);
    }
}
