//! The daemon that the arguments mean.

use std::path::Path;

use super::args::Connection;
use super::error::Error;
use super::session;
use api::client::{Client, Token};

/// Holds the secret for `--tcp`, where no file is named.
const TOKEN: &str = "ORIND_TOKEN";

impl Connection {
    /// A client of that daemon. Does not connect.
    pub(super) fn client(&self) -> Result<Client, Error> {
        match &self.tcp {
            Some(authority) => Ok(Client::tcp(authority, self.token()?)),
            None => Ok(Client::new(self.socket.clone().unwrap_or_else(config::client_socket))),
        }
    }

    /// Whether it may be another machine's.
    pub(super) const fn is_remote(&self) -> bool {
        self.tcp.is_some()
    }

    /// A model's name or path as that daemon understands it: what may be another machine's path is not
    /// looked for on this one.
    pub(super) fn model(&self, model: &str) -> Result<String, Error> {
        if self.is_remote() { Ok(model.to_owned()) } else { session::absolute(model) }
    }

    /// An adapter for the daemon, with its scale where one was given.
    pub(super) fn adapter(&self, written: &str) -> Result<String, Error> {
        match written.rsplit_once('=') {
            Some((path, scale)) if scale.parse::<f32>().is_ok() => {
                Ok(format!("{}={scale}", self.model(path)?))
            }
            _ => self.model(written),
        }
    }

    fn token(&self) -> Result<Option<Token>, Error> {
        let refuse = |whose: &str| Error::Usage(format!("{whose} holds no token on one line"));
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
