//! Engines that can be compared: one adapter each, from the workload to an outcome. An adapter
//! starts processes, one at a time, and parses its engine's output; it judges nothing.

mod llama_cpp;
mod openai;
mod orind;
mod python;

use std::path::PathBuf;

use super::outcome::{Answer, Outcome};
use super::process::Failure;
use super::workload::Workload;
use api::client;

/// Paths and settings of peers that their names do not contain.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of llama.cpp's programs; otherwise `PATH` is searched.
    pub llama_cpp: Option<PathBuf>,
    /// Python interpreter of the user.
    pub python: PathBuf,
    /// Use `torch.compile`, and half precision.
    pub compile: bool,
    pub half: bool,
}

/// A peer, chosen by its name.
pub struct Peer {
    /// Name on the command line: `llama.cpp`, `orind:PATH`.
    pub name: String,
    kind: Kind,
}

enum Kind {
    Orind(orind::Orind),
    LlamaCpp(llama_cpp::LlamaCpp),
    Python(python::Python),
    OpenAi(openai::OpenAi),
}

/// Reason why a peer has no results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{name}: unknown peer; expected llama.cpp, tinygrad, pytorch, orind:PATH or openai:HOST:PORT"
    )]
    Unknown { name: String },
    /// Not installed on this machine.
    #[error("{what} not found; {install}")]
    Missing {
        what: String,
        /// Command that installs it.
        install: String,
    },
    #[error(transparent)]
    Process(#[from] Failure),
    #[error(transparent)]
    Server(#[from] client::Error),
    #[error(transparent)]
    Private(#[from] client::private::Error),
    #[error("{peer}: {what}")]
    Answer { peer: &'static str, what: String },
}

/// Answers of a peer, and the facts that it reported meanwhile.
#[derive(Debug, Default)]
pub struct PeerAnswers {
    pub answers: Vec<Answer>,
    pub outcome: Outcome,
}

/// Function that finds a token by its text.
pub(super) type Vocabulary<'a> = &'a dyn Fn(&str) -> Option<u32>;

impl Peer {
    /// Returns this build as a peer.
    pub fn own() -> Self {
        let program = client::private::OWN.into();
        Self { name: "orind".into(), kind: Kind::Orind(orind::Orind { program }) }
    }

    pub fn parse(name: &str, settings: &Settings) -> Result<Self, Error> {
        let kind = match name.split_once(':') {
            None => match name {
                "llama.cpp" => {
                    Kind::LlamaCpp(llama_cpp::LlamaCpp { folder: settings.llama_cpp.clone() })
                }
                "tinygrad" => Kind::Python(python::Python::tinygrad(settings)),
                "pytorch" => Kind::Python(python::Python::pytorch(settings)),
                _ => return Err(Error::Unknown { name: name.into() }),
            },
            Some(("orind", path)) => Kind::Orind(orind::Orind { program: path.into() }),
            Some(("openai", address)) => Kind::OpenAi(openai::OpenAi::new(address)),
            Some(_) => return Err(Error::Unknown { name: name.into() }),
        };
        Ok(Self { name: name.into(), kind })
    }

    /// Checks that the peer is installed.
    pub async fn find(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.find(),
            Kind::LlamaCpp(peer) => peer.find(),
            Kind::Python(peer) => peer.find().await,
            Kind::OpenAi(peer) => peer.find().await,
        }
    }

    /// Requests the answers to the test prompts.
    pub async fn answers(&self, work: &Workload, id: Vocabulary<'_>) -> Result<PeerAnswers, Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.answers(work, id).await,
            Kind::LlamaCpp(peer) => peer.answers(work, id).await,
            Kind::Python(peer) => peer.answers(work).await,
            Kind::OpenAi(peer) => peer.answers(work, id).await,
        }
    }

    /// Runs one round of all tests and latencies.
    pub async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.round(work, round).await,
            Kind::LlamaCpp(peer) => peer.round(work, round).await,
            Kind::Python(peer) => peer.round(work, round).await,
            Kind::OpenAi(peer) => peer.round(work, round).await,
        }
    }
}

/// Formats a comma-separated list without repetitions, as all these programs accept it.
fn list(values: impl Iterator<Item = u32>) -> String {
    let mut values: Vec<u32> = values.collect();
    values.sort_unstable();
    values.dedup();
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
