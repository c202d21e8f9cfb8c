//! Checks the header `Host` (RFC 9112, 3.2): exactly one in an HTTP/1.1 request. Two programs could
//! interpret a request with two hosts differently.

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Error;

/// Passes on requests with a valid `Host`.
pub(super) async fn check(request: Request, next: Next) -> Response {
    match host_error(request.version(), request.headers()) {
        None => next.run(request).await,
        Some(host_error) => Error::new(StatusCode::BAD_REQUEST, "bad_host", host_error)
            .hint("send it once, such as Host: localhost")
            .into_response(),
    }
}

fn host_error(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if version < Version::HTTP_11 => None,
        (None, _) => Some("the header Host is missing"),
        (Some(_), Some(_)) => Some("there is more than one header Host"),
        (Some(host), None) => {
            let sound = host.is_empty()
                || Authority::try_from(host.as_bytes()).is_ok_and(|a| !a.as_str().contains('@'));
            (!sound).then_some("the header Host is not a valid host")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn requests_need_exactly_one_host() {
        let host_error = |version, hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (HOST, HeaderValue::from_str(host).unwrap()));
            let mut headers = HeaderMap::new();
            hosts.for_each(|(name, value)| _ = headers.append(name, value));
            host_error(version, &headers)
        };
        for host in ["localhost", "127.0.0.1:8080", "[::1]:80", "a_b.example", ""] {
            assert_eq!(host_error(Version::HTTP_11, &[host]), None, "{host}");
        }
        for host in ["a b", "me@localhost", "a/b", "a, b", "[::1"] {
            assert_eq!(
                host_error(Version::HTTP_11, &[host]),
                Some("the header Host is not a valid host")
            );
        }
        assert_eq!(host_error(Version::HTTP_10, &[]), None);
        assert_eq!(host_error(Version::HTTP_11, &[]), Some("the header Host is missing"));
        let two = Some("there is more than one header Host");
        assert_eq!(host_error(Version::HTTP_11, &["a", "a"]), two);
        assert_eq!(host_error(Version::HTTP_10, &["a", "b"]), two);
    }
}
