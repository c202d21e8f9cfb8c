//! orind itself, this build or another: `orinctl bench` for speeds, a private daemon for latencies
//! and answers.

use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;

use super::{Error, PeerAnswers, Vocabulary, list};
use crate::facts::{self, Facts};
use crate::outcome::{Memory, Outcome};
use crate::process;
use crate::server::{Dialect, Server};
use crate::workload::Workload;
use api::LoadRequest;
use api::client::private::Private;
use bench::{Kind, Report};

/// A round of the largest models takes minutes.
const LIMIT: Duration = Duration::from_secs(3600);

pub(super) struct Orind {
    /// Path of an `orinctl`.
    pub(super) program: PathBuf,
}

impl Orind {
    pub(super) fn find(&self) -> Result<(), Error> {
        if self.program.is_file() {
            return Ok(());
        }
        Err(Error::Missing {
            what: self.program.display().to_string(),
            install: "name the orinctl of another build, as `cargo build --release` creates it"
                .into(),
        })
    }

    /// Starts a private daemon with the model.
    async fn start(&self, work: &Workload) -> Result<(Private, Server, Outcome), Error> {
        // Other engines decode without drafts, and so do the speed tests.
        let private = Private::configured(&self.program, "draft_tokens = 0\n").await?;
        let request = LoadRequest {
            model: work.model.display().to_string(),
            // The command line has checked the name.
            backend: work.device.parse().ok(),
            slots: Some(1),
            context: Some((work.context() as usize).next_multiple_of(64)),
            threads: Some(work.threads),
            ..LoadRequest::default()
        };
        let model = private.client.load(&request, |_| {}).await?;
        let outcome =
            Outcome { load: Some(private.started.elapsed().as_secs_f64()), ..Outcome::default() };
        let server =
            Server { client: private.client.clone(), model: model.id, dialect: Dialect::Orind };
        Ok((private, server, outcome))
    }

    pub(super) async fn answers(
        &self,
        work: &Workload,
        id: Vocabulary<'_>,
    ) -> Result<PeerAnswers, Error> {
        let (_private, server, outcome) = self.start(work).await?;
        Ok(PeerAnswers { answers: server.answers(work, id).await?, outcome })
    }

    pub(super) async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let mut outcome = self.bench(work, round).await?;
        let (private, server, started) = self.start(work).await?;
        let times = server.times(work, round).await?;
        outcome.memory.code = private
            .id()
            .try_into()
            .ok()
            .map(|id| process::process_memory(id).code)
            .filter(|code| *code > 0);
        drop(private);
        outcome.load = started.load;
        outcome.first_token = times.first_token;
        outcome.between = times.between;
        outcome.cached = times.cached;
        Ok(outcome)
    }

    async fn bench(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let of = |kind| work.tests.iter().filter(move |test| test.kind == kind);
        let lengths = |kind| match list(of(kind).map(|test| test.tokens)) {
            none if none.is_empty() => "0".to_owned(),
            lengths => lengths,
        };
        let mut command = Command::new(&self.program);
        command
            .args(["bench", "--private", "--json", "-r", "1", "--warmup", "1"])
            .args(["--backend", &work.device, "-t", &work.threads.to_string()])
            .arg("-m")
            .arg(&work.model)
            .args(["-p", &lengths(Kind::Prefill), "-n", &lengths(Kind::Decode)])
            .args(["-d", &list(work.tests.iter().map(|test| test.depth))])
            .args(["-b", &list(work.tests.iter().map(|test| test.batch))])
            .args(["--seed", &(work.seed + u64::from(round)).to_string()]);
        let finished = process::run(command, b"", LIMIT).await;
        let printed = match finished {
            Ok(finished) => finished.printed,
            Err(failure) => return Err(failure.into()),
        };
        let report: Report = serde_json::from_slice(&printed).map_err(|error| Error::Answer {
            peer: "orind",
            what: format!("its report has an incompatible format: {error}"),
        })?;
        Ok(outcome(&report, work))
    }
}

fn outcome(report: &Report, work: &Workload) -> Outcome {
    let manifest = &report.manifest;
    let asked = |name: &str| work.tests.iter().any(|test| test.to_string() == name);
    let rows = || report.rows.iter().filter(|row| asked(&row.name));
    let memory = report.memory;
    let commit = manifest.commit.as_deref().unwrap_or("unknown commit");
    // Twelve digits identify a commit; the mark of modified sources stays.
    let (hash, mark) = commit.split_once('-').unwrap_or((commit, ""));
    let hash: String = hash.chars().take(12).collect();
    let commit = if mark.is_empty() { hash } else { format!("{hash}-{mark}") };
    let made = manifest.provenance.as_ref();
    Outcome {
        facts: Facts {
            version: format!("orind {} ({commit})", manifest.version),
            device: Some(manifest.device.clone()),
            file: made.and_then(|made| made.model_sha256.clone()),
            weights: Some(manifest.model.file_type.clone()),
            activations: made
                .map(|made| facts::activations(made.weight_types.keys().map(String::as_str))),
            kv: made.map(|made| made.kv_type.to_lowercase()),
            threads: (manifest.threads > 0).then_some(manifest.threads),
            warmup: Some(manifest.spec.warmup),
            clock: Some("engine".into()),
            ..Facts::default()
        },
        speeds: rows().map(|row| (row.name.clone(), row.tokens_per_second.median)).collect(),
        memory: Memory {
            peak: Some(memory.peak),
            weights: Some(memory.weights),
            kv: Some(memory.kv),
            activations: Some(memory.activations),
            code: None,
            gpu: memory.gpu.then(|| memory.reserved()),
            gpu_code: memory.code,
        },
        roof: (report.roof.bytes_per_second > 0.0).then_some(report.roof.bytes_per_second),
        bytes_per_token: rows()
            .find(|row| row.test.kind == Kind::Decode && row.test.batch == 1)
            .map(|row| row.weight_bytes_per_token + row.kv_bytes_per_token),
        joules: rows().filter_map(|row| Some((row.name.clone(), row.joules_per_token?))).collect(),
        invalid: report.invalid.clone(),
        ..Outcome::default()
    }
}
