//! Requests of web pages. A page of another origin can make a browser send a request, so such
//! requests are refused unless their origin is configured. Programs send no header `Origin`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::error::Error;
use api::route;

/// Header in which browsers describe the relation of page and server. Scripts cannot set it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Chromium's question whether a page may reach a server in a private network.
const REQUEST_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-allow-private-network");

/// Headers of answers that pages of other origins may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "request-id, retry-after, x-orind-relaxed-tools, x-orind-skipped-tools, x-orind-tool-format, x-request-id",
);

/// Sender of a request.
#[derive(Debug, PartialEq, Eq)]
enum Sender {
    /// A program, or a page of this daemon.
    Own,
    /// A page of a configured origin.
    Allowed(HeaderValue),
    /// A page of another origin.
    Foreign,
}

impl Sender {
    fn of(headers: &HeaderMap, allowed: &[String], opens_page: bool) -> Self {
        let site = headers.get(&FETCH_SITE).map(HeaderValue::as_bytes);
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (Some(origin), None) => {
                let is_it = |one: &String| {
                    one == "*" || origin.as_bytes().eq_ignore_ascii_case(one.as_bytes())
                };
                if site == Some(b"same-origin") || is_host(origin, headers) {
                    Self::Own
                } else if allowed.iter().any(is_it) {
                    Self::Allowed(origin.clone())
                } else {
                    Self::Foreign
                }
            }
            (Some(_), Some(_)) => Self::Foreign,
            // A link on another page may lead to the daemon's own page.
            (None, _) if site == Some(b"cross-site") && !opens_page => Self::Foreign,
            (None, _) => Self::Own,
        }
    }
}

/// Returns true if an origin is that of the host to which the request is sent.
fn is_host(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let origin = origin.as_bytes();
    let schemes: [&[u8]; 2] = [b"http://", b"https://"];
    let host = schemes.iter().find_map(|scheme| origin.strip_prefix(*scheme));
    let sent_to = headers.get(HOST).map(HeaderValue::as_bytes);
    host.zip(sent_to).is_some_and(|(host, sent_to)| host.eq_ignore_ascii_case(sent_to))
}

/// Refuses requests of pages of other origins, and answers the preflights of configured ones.
pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let config = app.config();
    let headers = request.headers();
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    let opens_page = reads && request.uri().path() == route::PAGE;
    match Sender::of(headers, &config.allowed_origins, opens_page) {
        Sender::Own => next.run(request).await,
        Sender::Foreign => {
            let message = "the request comes from a web page of another origin";
            Error::new(StatusCode::FORBIDDEN, "foreign_origin", message)
                .hint("add the page's origin to allowed_origins in the configuration")
                .into_response()
        }
        Sender::Allowed(origin) => {
            let asks = *request.method() == Method::OPTIONS
                && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
            let mut response = if asks { preflight(headers) } else { next.run(request).await };
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
            headers.append(VARY, HeaderValue::from_static("origin"));
            response
        }
    }
}

/// Answers a browser's question which methods and headers a page may send.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    if asked.contains_key(REQUEST_PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_and_configured_pages_are_admitted() {
        let allowed = ["https://chat.example".to_owned()];
        let sender = |pairs: &[(&'static str, &'static str)], opens_page: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:8080"));
            for (name, value) in pairs {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            Sender::of(&headers, &allowed, opens_page)
        };
        for own in [
            &[][..],
            &[("sec-fetch-site", "none")],
            &[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
            &[("origin", "http://LOCALHOST:8080")],
        ] {
            assert_eq!(sender(own, false), Sender::Own, "{own:?}");
        }
        for foreign in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[("origin", "http://localhost:8080.evil.example")],
            &[("origin", "http://localhost:8080"), ("origin", "https://evil.example")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(sender(foreign, false), Sender::Foreign, "{foreign:?}");
        }
        let configured = sender(&[("origin", "https://chat.example")], false);
        assert_eq!(configured, Sender::Allowed(HeaderValue::from_static("https://chat.example")));
        assert_eq!(sender(&[("sec-fetch-site", "cross-site")], true), Sender::Own);
    }
}
