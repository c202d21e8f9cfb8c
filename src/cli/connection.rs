//! Client for the daemon that the connection arguments name.

use std::path::Path;

use super::args::Connection;
use super::error::Error;
use super::session;
use api::client::{Client, Token};

/// Environment variable with the API key for `--tcp`, unless a file is named.
const TOKEN: &str = "ORIND_TOKEN";

impl Connection {
    /// Returns a client of that daemon, without connecting.
    pub(super) fn client(&self) -> Result<Client, Error> {
        match &self.tcp {
            Some(authority) => Ok(Client::tcp(authority, self.token()?)),
            None => Ok(Client::new(self.socket.clone().unwrap_or_else(config::client_socket))),
        }
    }

    /// Returns whether the daemon may run on another machine.
    pub(super) const fn is_remote(&self) -> bool {
        self.tcp.is_some()
    }

    /// Resolves a model name or path for that daemon. For a remote daemon the path is passed on
    /// unchanged.
    pub(super) fn model(&self, model: &str) -> Result<String, Error> {
        if self.is_remote() { Ok(model.to_owned()) } else { session::absolute(model) }
    }

    /// Resolves an adapter for the daemon, with its optional scale.
    pub(super) fn adapter(&self, written: &str) -> Result<String, Error> {
        match written.rsplit_once('=') {
            Some((path, scale)) if scale.parse::<f32>().is_ok() => {
                Ok(format!("{}={scale}", self.model(path)?))
            }
            _ => self.model(written),
        }
    }

    fn token(&self) -> Result<Option<Token>, Error> {
        let refuse =
            |whose: &str| Error::Usage(format!("{whose} must contain the token on one line"));
        if let Some(path) = &self.token_file {
            let text = read(path)?;
            return Token::parse(&text)
                .map(Some)
                .ok_or_else(|| refuse(&path.display().to_string()));
        }
        let Some(text) = std::env::var_os(TOKEN).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let token = text.to_str().and_then(Token::parse);
        token.map(Some).ok_or_else(|| refuse(&format!("${TOKEN}")))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::Usage(format!("--token-file {}: {error}", path.display())))
}
