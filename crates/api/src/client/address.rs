//! Address of a daemon: a unix socket on this machine, or a TCP port on any machine.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderValue;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Time limit for a TCP connect.
const PATIENCE: Duration = Duration::from_secs(10);
/// TCP keepalive: seconds of silence before the first probe, and seconds between probes.
const SILENCE: u32 = 30;
const AGAIN: u32 = 10;

#[derive(Clone, Debug)]
pub enum Address {
    Socket(PathBuf),
    /// A port, as `HOST:PORT`.
    Port {
        authority: String,
        /// Bearer token that the daemon requires.
        token: Option<Token>,
    },
}

/// Bearer token of a daemon on a port. Never printed.
#[derive(Clone)]
pub struct Token(HeaderValue);

impl Token {
    /// Parses the contents of a file or variable. `None` unless it is one line of letters, digits
    /// and punctuation.
    pub fn parse(text: &str) -> Option<Self> {
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
        header.set_sensitive(true);
        Some(Self(header))
    }

    pub(super) const fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Port { authority, .. } => write!(f, "tcp://{authority}"),
        }
    }
}

/// A connection over either transport.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Address {
    /// `Host` header of requests. A daemon without a token accepts only names of its own machine.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Socket(_) => "localhost",
            Self::Port { authority, .. } => authority,
        }
    }

    pub(super) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Port { authority, .. } => {
                let late = |_| io::Error::from(io::ErrorKind::TimedOut);
                let stream =
                    timeout(PATIENCE, TcpStream::connect(authority)).await.map_err(late)??;
                stream.set_nodelay(true)?;
                setsockopt(&stream, sockopt::KeepAlive, &true)?;
                setsockopt(&stream, sockopt::TcpKeepIdle, &SILENCE)?;
                setsockopt(&stream, sockopt::TcpKeepInterval, &AGAIN)?;
                Ok(Box::new(stream))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_one_word_and_never_printed() {
        let token = Token::parse(" correct-horse\n").unwrap();
        assert_eq!(token.header(), "Bearer correct-horse");
        let address = Address::Port { authority: "orin:8080".into(), token: Some(token) };
        assert_eq!(address.to_string(), "tcp://orin:8080");
        assert!(!format!("{address:?}").contains("horse"));
        for text in ["", "\n", "two words", "two\nlines", "h\u{e9}"] {
            assert!(Token::parse(text).is_none(), "{text:?}");
        }
    }
}
