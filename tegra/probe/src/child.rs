//! The process of one experiment: runs it and writes its record to standard output.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use tegra_profile::{Experiment as Record, Verdict};

use super::{Answer, Experiment, find};

/// Runs the experiment `name` and writes its record, one line of JSON. `of_models` runs the
/// experiment that takes a model, or returns the reason why it cannot.
#[must_use]
pub fn main(name: &str, of_models: fn() -> Result<Answer, String>) -> ExitCode {
    let Some(experiment) = find(name) else { return ExitCode::from(2) };
    // Standard input ends with the parent process: then no process waits for the answer.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let record = make(experiment, of_models);
    let Ok(mut line) = serde_json::to_vec(&record) else { return ExitCode::FAILURE };
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    match out.write_all(&line).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn make(experiment: &Experiment, of_models: fn() -> Result<Answer, String>) -> Record {
    let Experiment { name, question, method, .. } = experiment;
    let started = Instant::now();
    let mut record = Record::new(name, question, method, Verdict::Failed);
    let answer = match experiment.run {
        Some(run) => run().map_err(|error| error.to_string()),
        None => of_models(),
    };
    match answer {
        Ok(answer) => {
            record.verdict = answer.verdict;
            record.answer = answer.text;
            record.facts = answer.facts;
            record.samples = answer.samples;
        }
        Err(why) => record.error = Some(why),
    }
    record.seconds = started.elapsed().as_secs_f64();
    record
}
