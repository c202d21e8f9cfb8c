//! Any OpenAI-compatible server, given by its port; everything is measured as its client sees it.

use serde_json::Value;

use super::{Error, PeerAnswers, Vocabulary};
use crate::facts::Facts;
use crate::outcome::Outcome;
use crate::server::{Dialect, Server};
use crate::workload::Workload;
use api::client::Client;

pub(super) struct OpenAi {
    client: Client,
    address: String,
}

impl OpenAi {
    /// Accepts `HOST:PORT`, with or without `http://`.
    pub(super) fn new(address: &str) -> Self {
        let address = address.trim_start_matches("http:").trim_matches('/').to_owned();
        Self { client: Client::tcp(address.clone(), None), address }
    }

    pub(super) async fn find(&self) -> Result<(), Error> {
        self.model().await.map(drop)
    }

    /// Returns the first of its models.
    async fn model(&self) -> Result<String, Error> {
        let models: Value =
            self.client.get("/v1/models").await.map_err(|error| Error::Missing {
                what: format!("OpenAI-compatible server on {} ({error})", self.address),
                install: "start it with the compared model, and name its port".into(),
            })?;
        let first = models["data"][0]["id"].as_str();
        first.map(str::to_owned).ok_or_else(|| Error::Answer {
            peer: "openai",
            what: format!("{} lists no model in /v1/models", self.address),
        })
    }

    async fn server(&self) -> Result<(Server, Outcome), Error> {
        let model = self.model().await?;
        let facts = Facts {
            version: format!("{model} on {}", self.address),
            clock: Some("http".into()),
            ..Facts::default()
        };
        let server = Server { client: self.client.clone(), model, dialect: Dialect::OpenAi };
        Ok((server, Outcome { facts, ..Outcome::default() }))
    }

    pub(super) async fn answers(
        &self,
        work: &Workload,
        id: Vocabulary<'_>,
    ) -> Result<PeerAnswers, Error> {
        let (server, outcome) = self.server().await?;
        Ok(PeerAnswers { answers: server.answers(work, id).await?, outcome })
    }

    pub(super) async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let (server, started) = self.server().await?;
        let mut outcome = server.times(work, round).await?;
        outcome.facts = started.facts;
        server.speeds(work, round, &mut outcome).await?;
        Ok(outcome)
    }
}
