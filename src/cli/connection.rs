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

    /// Returns the API key for `--tcp`, if there is one.
    pub(super) fn key(&self) -> Result<Option<String>, Error> {
        if !self.is_remote() {
            return Ok(None);
        }
        let (text, source) = match &self.token_file {
            Some(path) => (read(path)?, path.display().to_string()),
            None => match std::env::var_os(TOKEN).filter(|text| !text.is_empty()) {
                Some(text) => (text.to_string_lossy().into_owned(), format!("${TOKEN}")),
                None => return Ok(None),
            },
        };
        if Token::parse(&text).is_none() {
            return Err(Error::Usage(format!("{source} must contain the token on one line")));
        }
        Ok(Some(text.trim().to_owned()))
    }

    fn token(&self) -> Result<Option<Token>, Error> {
        Ok(self.key()?.and_then(|text| Token::parse(&text)))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::Usage(format!("--token-file {}: {error}", path.display())))
}
