//! Headers of an answer about its tools: `x-orind-tool-format` has the format of calls,
//! `x-orind-relaxed-tools` the tools whose schemas are not enforced in full.

use std::cell::RefCell;
use std::future::Future;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use model::tokenizer::Calls;

use super::dialogue::Enforcement;

const FORMAT: HeaderName = HeaderName::from_static("x-orind-tool-format");
const RELAXED: HeaderName = HeaderName::from_static("x-orind-relaxed-tools");
/// Maximum number of relaxed tools that are named.
const NAMED: usize = 32;

/// Headers about the tools of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolHeaders {
    format: Option<&'static str>,
    relaxed: Option<String>,
}

tokio::task_local! {
    static HEADERS: RefCell<ToolHeaders>;
}

/// Sets the format of the current request.
pub(super) fn report(format: Calls) {
    let name = format.name();
    tracing::debug!(format = name, "tools");
    // Outside of a request, as in tests, there is no header.
    let _ = HEADERS.try_with(|headers| headers.borrow_mut().format = Some(name));
}

/// Names the tools whose schemas are not enforced in full, with their keywords, in the log and in
/// the header. Strict tools are `None`.
pub(super) fn report_relaxed(
    (enforcement, reason): &(Enforcement, Option<String>),
    tools: &[Option<(String, Vec<&'static str>)>],
) {
    let named: Vec<String> = match enforcement {
        Enforcement::Full => return,
        Enforcement::Relaxed => {
            let keywords = |(name, keywords): &(String, Vec<&str>)| {
                (!keywords.is_empty()).then(|| format!("{name} ({})", keywords.join(" ")))
            };
            tools.iter().flatten().filter_map(keywords).collect()
        }
        Enforcement::Objects => {
            tools.iter().flatten().map(|(name, _)| format!("{name} (all)")).collect()
        }
    };
    // The reason may be another one than a keyword.
    let named = match named.is_empty() {
        true => tools.iter().flatten().map(|(name, _)| format!("{name} (in part)")).collect(),
        false => named,
    };
    let names = named.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    let reason = reason.as_deref().unwrap_or_default();
    tracing::info!(tools = names, reason, "schemas of tools are not enforced in full");
    let _ = HEADERS.try_with(|headers| headers.borrow_mut().relaxed = Some(names));
}

/// Runs a request, and returns the headers that it reported.
pub(super) async fn observe<T>(request: impl Future<Output = T>) -> (T, ToolHeaders) {
    let run = async {
        let answer = request.await;
        (answer, HEADERS.with(RefCell::take))
    };
    HEADERS.scope(RefCell::default(), run).await
}

pub(super) fn put(tools: ToolHeaders, headers: &mut HeaderMap) {
    if let Some(format) = tools.format {
        headers.insert(FORMAT, HeaderValue::from_static(format));
    }
    if let Some(relaxed) = tools.relaxed.and_then(|names| HeaderValue::from_str(&names).ok()) {
        headers.insert(RELAXED, relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_has_the_headers_that_it_reported() {
        let request = async {
            report(Calls::Generic);
            let tools = [
                Some(("tag".to_owned(), vec!["if", "uniqueItems"])),
                Some(("plain".to_owned(), Vec::new())),
                None,
            ];
            report_relaxed(&(Enforcement::Relaxed, Some("why".into())), &tools);
            1
        };
        let (answer, tools) = observe(request).await;
        assert_eq!(answer, 1);
        let mut headers = HeaderMap::new();
        put(tools, &mut headers);
        assert_eq!(headers[FORMAT], "generic");
        assert_eq!(headers[RELAXED], "tag (if uniqueItems)");
        let ((), tools) = observe(async {}).await;
        assert_eq!(tools, ToolHeaders::default());
        // Outside of a request.
        report(Calls::Hermes);
    }
}
