//! Engines in Python: a runner script embedded in this program, executed by the user's Python.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use super::{Error, PeerAnswers, Settings};
use crate::facts;
use crate::outcome::{Answer, Outcome};
use crate::process::{self, Finished};
use crate::workload::{TOP, Workload};
use bench::Kind;

const RUNNER: &str = include_str!("runner.py");
const LIMIT: Duration = Duration::from_secs(3600);
/// Time limit for importing the runner's packages.
const FINDING: Duration = Duration::from_secs(120);
/// Number of prompts whose first token is timed.
const FIRST: u32 = 3;

pub(super) struct Python {
    python: PathBuf,
    name: &'static str,
    engine: &'static str,
    /// Statements that import the packages, and the packages to install.
    imports: &'static str,
    packages: &'static str,
    compile: bool,
    half: bool,
}

#[derive(Deserialize)]
struct Printed {
    outcome: Outcome,
    answers: Vec<Answer>,
}

impl Python {
    pub(super) fn pytorch(settings: &Settings) -> Self {
        Self {
            python: settings.python.clone(),
            name: "pytorch",
            engine: include_str!("pytorch.py"),
            imports: "import torch, transformers, gguf, accelerate",
            packages: "torch transformers gguf accelerate",
            compile: settings.compile,
            half: settings.half,
        }
    }

    pub(super) fn tinygrad(settings: &Settings) -> Self {
        Self {
            python: settings.python.clone(),
            name: "tinygrad",
            engine: include_str!("tinygrad.py"),
            imports: "import numpy, tinygrad\ntry: import tinygrad.llm.model\nexcept ImportError: import tinygrad.apps.llm",
            packages: "tinygrad numpy",
            compile: true,
            half: true,
        }
    }

    pub(super) async fn find(&self) -> Result<(), Error> {
        let mut command = Command::new(&self.python);
        command.args(["-c", self.imports]);
        let Err(failure) = process::run(command, b"", FINDING).await else { return Ok(()) };
        let python = self.python.display();
        Err(Error::Missing {
            what: format!("{} for {python} ({failure})", self.name),
            install: format!(
                "`{python} -m pip install {}`, or another Python with --python",
                self.packages
            ),
        })
    }

    pub(super) async fn answers(&self, work: &Workload) -> Result<PeerAnswers, Error> {
        let (printed, _) = self.run(work, "answers", 0).await?;
        Ok(PeerAnswers { answers: printed.answers, outcome: printed.outcome })
    }

    pub(super) async fn round(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let (printed, finished) = self.run(work, "round", round).await?;
        let mut outcome = printed.outcome;
        outcome.memory.seen(finished.held);
        Ok(outcome)
    }

    async fn run(
        &self,
        work: &Workload,
        what: &str,
        round: u32,
    ) -> Result<(Printed, Finished), Error> {
        let single = work.tests.iter().filter(|test| test.batch == 1);
        let tests = (0u32..).zip(single).map(|(i, test)| {
            let ids = match test.kind {
                Kind::Prefill => test.depth + test.tokens,
                Kind::Decode => test.start(),
            };
            json!({
                "name": test.to_string(), "kind": test.kind, "tokens": test.tokens, "depth": test.depth,
                "ids": work.prompt(ids, round * 1000 + 500 + i),
            })
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let asked = json!({
            "what": what, "model": work.model, "file_type": work.file_type,
            "device": work.device, "threads": work.threads, "context": work.context(),
            "compile": self.compile, "half": self.half, "started": now.as_secs_f64(),
            "judged": work.judged, "steps": work.steps, "top": TOP, "stream": work.stream,
            "prompts": (0..FIRST).map(|i| work.prompt(work.prompt, round * 1000 + i)).collect::<Vec<_>>(),
            "tests": tests.collect::<Vec<_>>(),
        });
        let mut command = Command::new(&self.python);
        command.arg("-c").arg(format!("{RUNNER}\n{}", self.engine));
        command.env("OMP_NUM_THREADS", work.threads.to_string()).env("PYTHONUNBUFFERED", "1");
        let finished = process::run(command, asked.to_string().as_bytes(), LIMIT).await?;
        let mut printed: Printed =
            serde_json::from_slice(&finished.printed).map_err(|error| Error::Answer {
                peer: self.name,
                what: format!("unexpected JSON from its runner: {error}"),
            })?;
        printed.outcome.facts.file = facts::file(&finished.models, work);
        Ok((printed, finished))
    }
}
