//! The daemon on TCP. Unlike a unix socket, a port has no owner and permissions. Off loopback every
//! request needs the token. On loopback any local client is served, but no web page of another
//! origin: a page can make a browser connect here under its own host name, but it cannot forge
//! `Host`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use nix::sys::socket::{setsockopt, sockopt};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};

use super::error::Error as Refusal;
use api::route;

/// Minimum length of a token in characters: 16 characters of base64 are 96 bits.
const SHORTEST: usize = 16;

/// TCP keepalive: seconds of silence before the first probe, and the number of probes, a third of
/// that time apart.
const SILENCE: u32 = 30;
const QUESTIONS: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot read the token in {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("every user can read the token in {}; restrict it with `chmod o= {}`", path.display(), path.display())]
    Open { path: PathBuf },
    #[error(
        "{} holds no token: {SHORTEST} or more letters, digits and signs on one line are needed; \
         `openssl rand -base64 24` makes one",
        path.display()
    )]
    Invalid { path: PathBuf },
}

#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Reads the token from a file that other users cannot read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let refuse = |source| Error::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(refuse)?.mode() & 0o007 != 0 {
            return Err(Error::Open { path: path.to_owned() });
        }
        let text = fs::read_to_string(path).map_err(refuse)?;
        let token = text.trim();
        if token.len() < SHORTEST || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Invalid { path: path.to_owned() });
        }
        Ok(Self(token.as_bytes().into()))
    }

    /// Returns true if a request contains the token. Compares in constant time for a given length.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let is_it = |sent: &[u8]| bool::from(self.0.ct_eq(sent.trim_ascii()));
        if let Some(key) = headers.get(API_KEY) {
            return is_it(key.as_bytes());
        }
        let Some(sent) = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes) else {
            return false;
        };
        let Some((scheme, sent)) = sent.split_at_checked(b"Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && is_it(sent)
    }
}

/// Header in which Anthropic's clients send the token.
const API_KEY: &str = "x-api-key";

pub struct Port {
    listener: TcpListener,
    token: Option<Token>,
}

impl Port {
    /// Listens on `address`. If there is a `token`, every request must contain it.
    pub async fn open(address: SocketAddr, token: Option<Token>) -> Result<Self, Error> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        Ok(Self { listener, token })
    }

    /// Address it listens on, with the actual port if the configured one is 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.token.clone()
    }

    /// Accepts the next connection. Keepalive detects clients whose machine has disappeared.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.listener.accept().await?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &SILENCE)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &(SILENCE / QUESTIONS))?;
        setsockopt(&stream, sockopt::TcpKeepCount, &QUESTIONS)?;
        setsockopt(&stream, sockopt::TcpUserTimeout, &(2 * 1000 * SILENCE))?;
        Ok((stream, peer))
    }
}

/// Passes on requests with the token and requests for the page, which prompts its user for the
/// token. Without a token, passes on requests that address this machine.
pub(super) async fn guard(
    State(token): State<Option<Token>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    match token {
        Some(token) if !token.is_in(headers) && request.uri().path() != route::PAGE => {
            let message = "this port needs the token of the daemon's token_file";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
                .hint("send the header Authorization: Bearer TOKEN");
            let mut response = refusal.into_response();
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        None if !is_local(headers) => {
            let message = "the header Host names another machine than this one";
            Refusal::new(StatusCode::FORBIDDEN, "foreign_host", message)
                .hint("address the daemon as localhost or 127.0.0.1, or set token_file")
                .into_response()
        }
        _ => next.run(request).await,
    }
}

/// Returns true if `Host` is a name that always means this machine.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn headers(name: axum::http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn names_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.1.2.3", "[::1]:1", "[::1]"]
        {
            assert!(is_local(&headers(HOST, host)), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:80", "10.0.0.1", "", "[::2]:1", "0.0.0.0"]
        {
            assert!(!is_local(&headers(HOST, host)), "{host}");
        }
        assert!(!is_local(&HeaderMap::new()));
    }

    #[test]
    fn tokens_must_match_completely() {
        let token = Token(Arc::from(&b"0123456789abcdef"[..]));
        for sent in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef "] {
            assert!(token.is_in(&headers(AUTHORIZATION, sent)), "{sent}");
        }
        for sent in [
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer ",
            "Bearer",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "",
        ] {
            assert!(!token.is_in(&headers(AUTHORIZATION, sent)), "{sent}");
        }
        let key = |sent| headers(axum::http::HeaderName::from_static(API_KEY), sent);
        assert!(token.is_in(&key("0123456789abcdef")) && !token.is_in(&key("0123456789abcdeg")));
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn short_or_readable_tokens_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map(|_| ()).map_err(|e| e.to_string())
        };
        read("0123456789abcdef\n", 0o640).unwrap();
        let open = read("0123456789abcdef\n", 0o644).unwrap_err();
        assert!(open.contains("every user") && open.contains("chmod o="), "{open}");
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            let invalid = read(text, 0o600).unwrap_err();
            assert!(invalid.contains("holds no token"), "{invalid}");
        }
        fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).map(|_| ()).unwrap_err().to_string().contains("cannot read"));
    }
}
