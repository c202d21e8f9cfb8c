//! The engines that can be compared: one adapter each, from the workload to an outcome. An adapter starts
//! processes, one at a time, and knows what its engine's output means; it judges nothing.

mod llama_cpp;
mod openai;
mod orind;
mod python;

use std::path::PathBuf;

use super::outcome::{Answer, Outcome};
use super::process::Failure;
use super::workload::Workload;
use api::client;

/// How peers are found and set, where their names do not say it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of llama.cpp's programs; else they are looked for in `PATH`.
    pub llama_cpp: Option<PathBuf>,
    /// The user's Python.
    pub python: PathBuf,
    /// `torch.compile`, and half precision.
    pub compile: bool,
    pub half: bool,
}

/// A peer, chosen by its name.
pub struct Peer {
    /// As it was asked for: `llama.cpp`, `orind:PATH`.
    pub name: String,
    kind: Kind,
}

enum Kind {
    Orind(orind::Orind),
    LlamaCpp(llama_cpp::LlamaCpp),
    Python(python::Python),
    OpenAi(openai::OpenAi),
}

/// Why a peer gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{name}: no such peer; there are llama.cpp, tinygrad, pytorch, orind:PATH and openai:HOST:PORT"
    )]
    Unknown { name: String },
    /// Not on this machine.
    #[error("{what} is not there; {install}")]
    Missing {
        what: String,
        /// The command that brings it.
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

/// What a peer answers, and what it told of itself meanwhile.
#[derive(Debug, Default)]
pub struct Told {
    pub answers: Vec<Answer>,
    pub outcome: Outcome,
}

/// Finds a token by its text.
pub(super) type Vocabulary<'a> = &'a dyn Fn(&str) -> Option<u32>;

impl Peer {
    /// This very build.
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

    /// Whether it is there at all.
    pub async fn find(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.find(),
            Kind::LlamaCpp(peer) => peer.find(),
            Kind::Python(peer) => peer.find().await,
            Kind::OpenAi(peer) => peer.find().await,
        }
    }

    /// What it answers to the judged prompts.
    pub async fn answers(&self, work: &Workload, id: Vocabulary<'_>) -> Result<Told, Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.answers(work, id).await,
            Kind::LlamaCpp(peer) => peer.answers(work, id).await,
            Kind::Python(peer) => peer.answers(work).await,
            Kind::OpenAi(peer) => peer.answers(work, id).await,
        }
    }

    /// One round of all tests and times.
    pub async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        match &self.kind {
            Kind::Orind(peer) => peer.round(work, round).await,
            Kind::LlamaCpp(peer) => peer.round(work, round).await,
            Kind::Python(peer) => peer.round(work, round).await,
            Kind::OpenAi(peer) => peer.round(work, round).await,
        }
    }
}

/// Values of a list with commas between, as all these programs take them; without repetition.
fn list(values: impl Iterator<Item = u32>) -> String {
    let mut values: Vec<u32> = values.collect();
    values.sort_unstable();
    values.dedup();
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
