//! The web page at `/`: a chat and the machine's state. The files of `page/` are joined to one, so
//! that a browser asks once. Its content security policy allows only its own script and style (by
//! hash) and this daemon's routes. The page contains no secret, so a port serves it without the
//! token; its requests must have the token.

use std::sync::LazyLock;

use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("page/style.css");

/// All scripts, each after those that it uses while the page starts.
const SCRIPT: &str = concat!(
    include_str!("page/dom.js"),
    include_str!("page/markdown.js"),
    include_str!("page/render.js"),
    include_str!("page/store.js"),
    include_str!("page/chat.js"),
    include_str!("page/compose.js"),
    include_str!("page/models.js"),
    include_str!("page/machine.js"),
    include_str!("page/main.js"),
);

static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/index.html")
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"))
});

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let [style, script] = [STYLE, SCRIPT].map(|text| STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'sha256-{style}'; \
         script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy)
        .unwrap_or_else(|error| unreachable!("letters, digits and signs: {error}"))
});

pub(super) async fn page() -> impl IntoResponse {
    let fixed = HeaderValue::from_static;
    let headers = [
        (CONTENT_TYPE, fixed("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, POLICY.clone()),
        (CACHE_CONTROL, fixed("no-cache")),
        (REFERRER_POLICY, fixed("no-referrer")),
        (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
    ];
    (headers, PAGE.as_str())
}
