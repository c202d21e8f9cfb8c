//! Runs the rounds of tests on an otherwise idle engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::conditions::{Conditions, Observer};
use super::machine::MachineWatch;
use super::meter::Meter;
use super::report::{Machine, Manifest, Memory, Model, Report, Roof, Row};
use super::schedule::{self, Schedule, Speed};
use super::spec::{Error, Kind, Progress, Spec, Test};
use super::statistics::Summary;
use engine::{BenchSession, ModelRunner};
use errors::one_line;
use plan::sample::philox;
use plan::{Bucket, Cost, Outputs};
use telemetry::{Probe, Recording, memory};

/// Prompt and generated tokens of the probe that estimates the duration of tests.
const PROBE: (u32, u32) = (64, 8);
/// Decode steps between checks for cancellation.
const STEPS: u32 = 16;
/// Minimum timed seconds for a meaningful energy value, at a few meter readings a second.
const METERED: Duration = Duration::from_secs(1);
/// Minimum time between progress reports within a test.
const QUIET: Duration = Duration::from_millis(250);

/// Runs a benchmark on the machine that `probe` reads. `progress` receives each phase and can
/// cancel the run.
pub fn run(
    core: &mut ModelRunner,
    probe: &Arc<Probe>,
    spec: &Spec,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, Error> {
    spec.check()?;
    spec.fits(core.slots(), core.context())?;
    let date = Timestamp::now().strftime("%FT%TZ").to_string();
    let observer = Observer::start(probe);
    let now = Instant::now();
    let mut runner = Runner {
        session: BenchSession::new(core),
        progress,
        seed: spec.seed,
        observer: Some(observer),
        last: (now, now),
    };
    runner.all(spec, date)
}

struct Runner<'a> {
    session: BenchSession<'a>,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    seed: u64,
    /// `None` after the report was written.
    observer: Option<Observer>,
    /// Start and end of the last timed interval.
    last: (Instant, Instant),
}

impl Runner<'_> {
    fn all(&mut self, spec: &Spec, date: String) -> Result<Report, Error> {
        self.report(Progress::Probe)?;
        let mut peak = memory::peak_resident().unwrap_or(0);
        let watch = MachineWatch::start();
        let begin = Instant::now();
        let schedule = self.schedule(spec)?;
        self.report(Progress::Chosen {
            tests: schedule.tests.iter().map(ToString::to_string).collect(),
            repetitions: schedule.repetitions,
            estimated_seconds: schedule.estimate,
        })?;

        let mut meter = None;
        if spec.roof {
            self.report(Progress::Roof)?;
            meter.insert(Meter::new(self.session.model())?).measure();
        }
        let tests = schedule.tests.len();
        let total = count(tests) * (spec.warmup + schedule.repetitions);
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); tests];
        let mut intervals: Vec<Vec<(Instant, Instant)>> = vec![Vec::new(); tests];
        let mut done = 0;
        let mut longest_round = Duration::ZERO;
        let mut repetitions = 0;
        for round in 0..spec.warmup + schedule.repetitions {
            let round_begin = Instant::now();
            let timed = round >= spec.warmup;
            let results = samples.iter_mut().zip(&mut intervals);
            for (test, (samples, intervals)) in schedule.tests.iter().zip(results) {
                let at = Progress::Test {
                    test: test.to_string(),
                    repetition: if timed { round - spec.warmup + 1 } else { 0 },
                    repetitions: schedule.repetitions,
                    done,
                    total,
                    tokens_per_second: Summary::of(samples.clone()).map(|s| s.median),
                };
                self.report(at.clone())?;
                let length = if timed { *test } else { schedule::shortened(*test) };
                let speed = self.time(length, &at)?;
                if timed {
                    samples.push(speed);
                    intervals.push(self.last);
                }
                done += 1;
                let resident = memory::resident().unwrap_or(0);
                let buffer = meter.as_ref().map_or(0, Meter::resident);
                peak = peak.max(resident.saturating_sub(buffer));
            }
            if let Some(meter) = &mut meter {
                meter.measure();
            }
            if timed {
                repetitions += 1;
                longest_round = longest_round.max(round_begin.elapsed());
                let late = (begin.elapsed() + longest_round).as_secs_f64() > spec.budget_seconds;
                let enough = repetitions >= Spec::REPETITIONS[0];
                if spec.repetitions.is_none() && enough && late {
                    break;
                }
            }
        }

        let roof = meter.as_ref().map_or_else(Roof::not_asked_for, Meter::roof);
        let mut rows = schedule
            .tests
            .iter()
            .zip(samples)
            .map(|(test, samples)| self.row(*test, samples, roof.bytes_per_second))
            .collect::<Result<Vec<Row>, _>>()?;
        let observed =
            self.observer.take().map(|o| o.finish(&self.session.model().model().device.name));
        let (conditions, recording, invalid) = observed.unwrap_or_default();
        for (row, intervals) in rows.iter_mut().zip(&intervals) {
            row.joules_per_token = joules_per_token(row.test, intervals, &recording);
        }
        let provenance = Some(self.session.runner().provenance().clone());
        Ok(Report {
            invalid,
            manifest: Manifest {
                date,
                machine: watch.finish(),
                conditions,
                repetitions,
                provenance,
                seconds: begin.elapsed().as_secs_f64(),
                ..self.manifest(spec)
            },
            roof,
            rows,
            memory: self.memory(peak, meter.as_ref()),
            load_seconds: self.session.model().model().load_s,
            first_token: None,
            cold_start: None,
        })
    }

    /// Returns the facts that are known before the tests; the others are empty.
    fn manifest(&self, spec: &Spec) -> Manifest {
        let info = self.session.model().model();
        Manifest {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: None,
            debug_build: cfg!(debug_assertions),
            date: String::new(),
            model: Model {
                id: info.id.clone(),
                architecture: info.architecture.clone(),
                file_type: info.file_type.clone(),
                synthetic: info.synthetic,
                bytes: info.bytes,
                parameters: info.parameters,
            },
            device: info.device.name.clone(),
            device_description: info.device.description.clone(),
            threads: self.session.model().threads(),
            context: self.session.model().context(),
            machine: Machine::default(),
            conditions: Conditions::default(),
            spec: spec.clone(),
            repetitions: 0,
            provenance: None,
            seconds: 0.0,
        }
    }

    fn memory(&self, peak: u64, meter: Option<&Meter>) -> Memory {
        let device = self.session.model().model().memory;
        Memory {
            peak,
            weights: device.weights,
            kv: device.kv,
            activations: device.activations,
            code: device.code,
            gpu: meter.map_or(self.session.model().threads() == 0, Meter::is_gpu),
        }
    }

    /// Probes the machine, then chooses tests that fit the time limit and the model.
    fn schedule(&mut self, spec: &Spec) -> Result<Schedule, Error> {
        let (prompt, generate) = PROBE;
        let room =
            u32::try_from(self.session.model().context()).unwrap_or(u32::MAX).saturating_sub(1);
        let prefill = Test { kind: Kind::Prefill, tokens: prompt.min(room), depth: 0, batch: 1 };
        let decode = Test { kind: Kind::Decode, tokens: generate.min(room), ..prefill };
        let mut speed = Speed { prefill: 0.0, decode: 0.0 };
        // The first pass touches memory for the first time and is not representative.
        for _ in 0..2 {
            speed.prefill = self.time(prefill, &Progress::Probe)?;
            speed.decode = self.time(decode, &Progress::Probe)?;
        }
        Ok(schedule::choose(spec, speed, self.session.model().context()))
    }

    /// Runs a test once and returns tokens per second, summed over all sequences.
    fn time(&mut self, test: Test, at: &Progress) -> Result<f64, Error> {
        self.session.reset();
        let batch = test.batch as usize;
        for slot in 0..batch {
            let before = self.prompt(slot, 0, test.start());
            if !before.is_empty() {
                self.session.prefill(slot, &before).map_err(engine)?;
            }
        }
        let prompt = match test.kind {
            Kind::Prefill => self.prompt(0, test.start(), test.tokens),
            Kind::Decode => Vec::new(),
        };
        self.busy(true);
        let begin = Instant::now();
        match test.kind {
            Kind::Prefill => self.session.prefill(0, &prompt).map_err(engine)?,
            Kind::Decode => {
                let mut told = begin;
                let mut left = test.tokens;
                while left > 0 {
                    let steps = left.min(STEPS);
                    self.session.decode(batch, steps).map_err(engine)?;
                    left -= steps;
                    if told.elapsed() > QUIET {
                        self.report(at.clone())?;
                        told = Instant::now();
                    }
                }
            }
        }
        self.last = (begin, Instant::now());
        self.busy(false);
        // A clock that does not advance would yield an infinite speed.
        let seconds = (self.last.1 - begin).as_secs_f64().max(1e-9);
        Ok(test.total_tokens() as f64 / seconds)
    }

    fn busy(&self, busy: bool) {
        if let Some(observer) = &self.observer {
            observer.busy(busy);
        }
    }

    /// Random token ids, the same at the same position in every run.
    fn prompt(&self, slot: usize, from: u32, len: u32) -> Vec<u32> {
        let vocabulary = self.session.model().vocabulary().max(1) as u64;
        let id = |at: u32| {
            let word = philox([at, count(slot), 0x62_656e, 0], self.seed)[0];
            ((u64::from(word) * vocabulary) >> 32) as u32
        };
        (from..from + len).map(id).collect()
    }

    fn row(&self, test: Test, samples: Vec<f64>, roof: f64) -> Result<Row, Error> {
        let cost = self.cost(test)?;
        let tokens = test.total_tokens() as f64;
        let speed = Summary::of(samples)
            .ok_or_else(|| Error::Engine(format!("{test} gave no usable measurement")))?;
        let per_token = |amount: u64| amount as f64 / tokens;
        let row = Row {
            name: test.to_string(),
            test,
            weight_bytes_per_token: per_token(cost.weight_bytes),
            kv_bytes_per_token: per_token(cost.state_bytes),
            flops_per_token: per_token(cost.flops),
            tokens_per_second: speed.clone(),
            tokens_per_second_per_sequence: 0.0,
            bytes_per_second: 0.0,
            fraction_of_roof: 0.0,
            flops_per_second: 0.0,
            joules_per_token: None,
        };
        Ok(row.at(speed, roof))
    }

    /// Bytes and operations of one timed run of a test.
    fn cost(&self, test: Test) -> Result<Cost, Error> {
        let start = test.start() as usize;
        let tokens = test.tokens as usize;
        match test.kind {
            // Step i attends to start + i + 1 tokens; this is the mean over all steps.
            Kind::Decode => {
                let context = start + tokens.div_ceil(2);
                let step = self
                    .session
                    .model()
                    .cost(Bucket::decode(test.batch as usize, context))
                    .map_err(engine)?;
                let times = u64::from(test.tokens);
                Ok(Cost {
                    weight_bytes: step.weight_bytes * times,
                    state_bytes: step.state_bytes * times,
                    other_bytes: step.other_bytes * times,
                    flops: step.flops * times,
                })
            }
            Kind::Prefill => {
                let chunk = self.session.model().chunk().max(1);
                (0..tokens)
                    .step_by(chunk)
                    .map(|at| {
                        let rows = chunk.min(tokens - at);
                        let last = at + rows == tokens;
                        let outputs = if last { Outputs::Last } else { Outputs::None };
                        let bucket = Bucket::prefill(rows, start + at + rows, outputs);
                        self.session.model().cost(bucket).map_err(engine)
                    })
                    .sum()
            }
        }
    }

    fn report(&mut self, progress: Progress) -> Result<(), Error> {
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// Joules of all repetitions divided by their tokens.
fn joules_per_token(
    test: Test,
    intervals: &[(Instant, Instant)],
    recording: &Recording,
) -> Option<f64> {
    let time: Duration = intervals.iter().map(|(from, to)| *to - *from).sum();
    if time < METERED {
        return None;
    }
    let joules: Option<f64> = intervals.iter().map(|(from, to)| recording.joules(*from, *to)).sum();
    Some(joules? / (test.total_tokens() as f64 * intervals.len() as f64))
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn engine(error: impl std::error::Error) -> Error {
    Error::Engine(one_line(&error))
}
