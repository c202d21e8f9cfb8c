//! The web page at `/`: a chat and the machine's state, in one file. Its content security policy
//! allows only its own script and style (by hash) and this daemon's routes. The page contains no
//! secret, so a port serves it without the token; its requests must have the token.

use std::sync::LazyLock;

use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page.html");

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let [style, script] = ["style", "script"].map(|name| {
        let inside = inside(name);
        STANDARD.encode(Sha256::digest(inside))
    });
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'sha256-{style}'; \
         script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy)
        .unwrap_or_else(|error| unreachable!("letters, digits and signs: {error}"))
});

/// Returns the content of the only element with that name.
fn inside(name: &str) -> &'static str {
    let begins = PAGE.split_once(&format!("<{name}>"));
    let ends = begins.and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    ends.map_or_else(|| unreachable!("the page has a {name}"), |(inside, _)| inside)
}

pub(super) async fn page() -> impl IntoResponse {
    let fixed = HeaderValue::from_static;
    let headers = [
        (CONTENT_TYPE, fixed("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, POLICY.clone()),
        (CACHE_CONTROL, fixed("no-cache")),
        (REFERRER_POLICY, fixed("no-referrer")),
        (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
    ];
    (headers, PAGE)
}
