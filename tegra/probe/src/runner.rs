//! Runs experiments, each in its own process, and updates the profile on disk before and after each:
//! a crash of the whole machine loses no earlier result, and the file names the experiment that was
//! running.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use tegra::orin::Orin;
use tegra_profile::{Experiment as Record, MAX_BYTES, Machine, Profile, Value, Verdict, facts};

use super::log::Log;
use super::{EXPERIMENTS, Error, Experiment, Risk, find, machine};
use telemetry::{Probe, Root};

/// Interval between checks of a process.
const LOOK: Duration = Duration::from_millis(5);
/// Time limit for a killed process to exit: after that it is stuck in the kernel.
const GONE: Duration = Duration::from_secs(5);
/// Maximum number of bytes stored of a process' stderr.
const LAST_WORDS: usize = 2000;

/// The hidden command with which this program runs one experiment.
pub const CHILD_COMMAND: &str = "first-contact-experiment";

#[derive(Clone, Debug)]
pub struct Choice {
    pub experiment: &'static Experiment,
    /// True if the experiment was named on the command line.
    pub named: bool,
    /// Reason for leaving it out, if it is.
    pub left_out: Option<String>,
}

/// Requested experiments, by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Runs only these experiments, unless the list is empty.
    pub only: &'a [String],
    /// Additional experiments, regardless of their risk.
    pub also: &'a [String],
    /// Experiments to skip.
    pub skip: &'a [String],
}

impl Wanted<'_> {
    /// Chooses experiments from the table. Dangerous ones are left out unless named.
    ///
    /// # Errors
    /// [`Error::Unknown`] for an unknown name.
    pub fn choose(&self) -> Result<Vec<Choice>, Error> {
        let Self { only, also, skip } = *self;
        for name in only.iter().chain(also).chain(skip) {
            if find(name).is_none() {
                let names = EXPERIMENTS.iter().map(|experiment| experiment.name);
                let distance = |known: &&str| strsim::damerau_levenshtein(known, name);
                return Err(Error::Unknown {
                    name: name.clone(),
                    near: names.min_by_key(distance),
                });
            }
        }
        let choice = |experiment: &'static Experiment| {
            let is_in = |list: &[String]| list.iter().any(|name| name == experiment.name);
            let named = is_in(only) || is_in(also);
            let left_out = if is_in(skip) {
                Some("left out by --skip".into())
            } else if !only.is_empty() && !named {
                Some("left out by --only".into())
            } else if !named && matches!(experiment.risk, Risk::Dangerous(_)) {
                Some(format!("dangerous: only --risky {} makes it", experiment.name))
            } else {
                None
            };
            Choice { experiment, named, left_out }
        };
        Ok(EXPERIMENTS.iter().map(choice).collect())
    }
}

/// Progress events for the user interface.
#[derive(Debug)]
pub enum Progress<'a> {
    Begins(&'a Experiment),
    Ended(&'a Record),
}

#[derive(Debug)]
pub struct Run<'a> {
    /// Experiments to run, and those left out.
    pub choices: &'a [Choice],
    /// Path of the profile: the file of [`begin`] or [`resume`].
    pub file: &'a Path,
    /// A time limit for every experiment instead of its own.
    pub limit: Option<Duration>,
    /// Ends the run early when set.
    pub stop: &'a AtomicBool,
}

/// Checks that an Orin is present.
///
/// # Errors
/// [`Error::Gpu`] names the missing part.
pub fn look_for_orin() -> Result<(), Error> {
    Ok(Orin::open().map(drop)?)
}

/// Tool and version: answers of two versions are not mixed in one profile.
const TOOL: &str = concat!("orinctl ", env!("CARGO_PKG_VERSION"));

/// An empty profile of this machine, in a new file.
///
/// # Errors
/// [`Error::Profile`] if the file exists or cannot be written.
pub fn begin(file: &Path) -> Result<Profile, Error> {
    let taken = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let profile = Profile::new(TOOL, taken.as_secs(), this_machine());
    profile.create(file)?;
    Ok(profile)
}

/// This machine, as in the head of a profile.
#[must_use]
pub fn this_machine() -> Machine {
    machine::look(&Probe::new(Root::system()))
}

/// The profile of a run that ended early; marks those of `choices` that must not run again. These
/// are experiments with an answer, the one that was running when the run ended and may have ended
/// it, and those that depend on that one, unless named.
///
/// # Errors
/// [`Error::Profile`] for an invalid file, [`Error::Resume`] for one of another machine or version.
pub fn resume(file: &Path, choices: &mut [Choice]) -> Result<Profile, Error> {
    let profile = Profile::read(file)?;
    let refuse = |why| Error::Resume { file: file.into(), why };
    if profile.tool != TOOL {
        return Err(refuse(format!("{} made it, not {TOOL}", profile.tool)));
    }
    // The file has the driver's number of SMs, which is not known yet here.
    let now = Machine { sms: None, ..this_machine() };
    if let Some(difference) = profile.machine.difference(&now) {
        return Err(refuse(format!("this is a different machine: {difference}")));
    }
    let mut went_down = None;
    for Choice { experiment, named, left_out } in choices {
        let verdict = profile.experiment(experiment.name).map(|record| record.verdict);
        let why = match verdict {
            Some(verdict) if verdict.is_answer() => "it has an answer".to_owned(),
            _ if *named => continue,
            Some(Verdict::Unfinished) => {
                went_down = went_down.or(experiment.basis.then_some(experiment.name));
                "it was under way when the last run ended".to_owned()
            }
            _ => match went_down {
                Some(basis) => {
                    format!("it stands on {basis}, which was under way when a run ended")
                }
                None => continue,
            },
        };
        left_out.get_or_insert(why);
    }
    Ok(profile)
}

impl Run<'_> {
    /// Runs all chosen experiments and fills `profile`, whose file is written before and after
    /// each.
    ///
    /// # Errors
    /// The file cannot be written. Failures of experiments are in their records.
    pub fn make(
        &self,
        profile: &mut Profile,
        mut watch: impl FnMut(Progress<'_>),
    ) -> Result<(), Error> {
        // A reader of the file in mid-run sees which experiments have not run yet.
        let before = std::mem::take(&mut profile.experiments);
        let begun = |choice| Self::begun(choice, &before);
        profile.experiments = self.choices.iter().map(begun).collect();
        let mut log = Log::open();
        profile.machine.driver_log = Some(log.state());
        profile.write(self.file)?;
        for (place, Choice { experiment, left_out, .. }) in self.choices.iter().enumerate() {
            if left_out.is_some() {
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let unfinished = Record {
                verdict: Verdict::Unfinished,
                error: Some("it was under way when the run ended".into()),
                ..Self::record(experiment)
            };
            profile.experiments[place] = unfinished;
            profile.write(self.file)?;
            watch(Progress::Begins(experiment));
            let mut record = self.one(experiment);
            record.driver_log = log.lines();
            identify(profile, &record);
            profile.experiments[place] = record;
            profile.write(self.file)?;
            watch(Progress::Ended(&profile.experiments[place]));
        }
        profile.machine.clocks_after = machine::clocks(&Probe::new(Root::system()));
        Ok(profile.write(self.file)?)
    }

    /// The record of an experiment before the run reaches it: a left-out one retains its record of
    /// the previous run.
    fn begun(Choice { experiment, left_out, .. }: &Choice, before: &[Record]) -> Record {
        let earlier = before.iter().find(|record| record.name == experiment.name);
        match (earlier.filter(|earlier| earlier.verdict != Verdict::Skipped), left_out) {
            (Some(earlier), Some(_)) => earlier.clone(),
            (_, left_out) => {
                let mut record = Self::record(experiment);
                record.verdict = Verdict::Skipped;
                let why = left_out.clone().unwrap_or_else(|| "the run ended before".into());
                record.error = Some(why);
                record
            }
        }
    }

    fn record(experiment: &Experiment) -> Record {
        let Experiment { name, question, method, .. } = experiment;
        Record::new(name, question, method, Verdict::Failed)
    }

    fn one(&self, experiment: &Experiment) -> Record {
        let limit = self.limit.unwrap_or(experiment.limit);
        let started = Instant::now();
        let mut record = Self::record(experiment);
        match Process::start(experiment.name).and_then(|process| process.end(limit, self.stop)) {
            Ok(end) => end.into_record(&mut record),
            Err(error) => record.error = Some(clean(&error.to_string())),
        }
        record.seconds = started.elapsed().as_secs_f64();
        record
    }
}

/// Copies the GPU's characteristics from the first answer into the profile's head.
fn identify(profile: &mut Profile, record: &Record) {
    if record.name == facts::CHARACTERISTICS {
        let sms = record.facts.get("sms").and_then(Value::number);
        profile.machine.sms = sms.map(|sms| sms as u32).or(profile.machine.sms);
        let chip = record.facts.get("chip").and_then(Value::text);
        profile.machine.chip = chip.map(str::to_owned);
    }
}

enum ExitKind {
    Itself(ExitStatus),
    Killed,
    Stopped,
    /// Killed, but did not exit.
    Stuck,
}

struct ProcessEnd {
    how: ExitKind,
    limit: Duration,
    output: Vec<u8>,
    last_words: String,
}

struct Process {
    child: Child,
    output: JoinHandle<Vec<u8>>,
    errors: JoinHandle<Vec<u8>>,
}

impl Process {
    fn start(name: &str) -> Result<Self, Error> {
        let failed = |source| Error::Process { what: "starting an experiment's process", source };
        let mut child = Command::new("/proc/self/exe")
            .arg0("orinctl")
            .args([CHILD_COMMAND, name])
            // The child exits when this pipe closes.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches only the parent.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = listen(child.stdout.take(), |bytes, more| {
            bytes.extend_from_slice(&more[..more.len().min(MAX_BYTES - bytes.len())]);
        });
        let errors = listen(child.stderr.take(), |bytes, more| {
            bytes.extend_from_slice(more);
            let over = bytes.len().saturating_sub(LAST_WORDS);
            bytes.drain(..over);
        });
        Ok(Self { child, output, errors })
    }

    /// Waits for the process to exit, and kills it after `limit`.
    fn end(mut self, limit: Duration, stop: &AtomicBool) -> Result<ProcessEnd, Error> {
        let failed =
            |source| Error::Process { what: "waiting for an experiment's process", source };
        let started = Instant::now();
        let how = loop {
            if let Some(status) = self.child.try_wait().map_err(failed)? {
                break ExitKind::Itself(status);
            }
            let how = if stop.load(Ordering::Relaxed) {
                ExitKind::Stopped
            } else if started.elapsed() > limit {
                ExitKind::Killed
            } else {
                thread::sleep(LOOK);
                continue;
            };
            self.child.kill().map_err(failed)?;
            break if self.is_gone().map_err(failed)? { how } else { ExitKind::Stuck };
        };
        if matches!(how, ExitKind::Stuck) {
            // Its pipes stay open as long as it lives: do not wait for them.
            return Ok(ProcessEnd { how, limit, output: Vec::new(), last_words: String::new() });
        }
        let output = self.output.join().unwrap_or_default();
        let errors = self.errors.join().unwrap_or_default();
        let last_words = clean(String::from_utf8_lossy(&errors).trim());
        Ok(ProcessEnd { how, limit, output, last_words })
    }

    fn is_gone(&mut self) -> io::Result<bool> {
        let since = Instant::now();
        while since.elapsed() < GONE {
            if self.child.try_wait()?.is_some() {
                return Ok(true);
            }
            thread::sleep(LOOK);
        }
        Ok(false)
    }
}

/// Reads a pipe to its end on a separate thread, so that it never fills up.
fn listen(
    pipe: Option<impl Read + Send + 'static>,
    append: impl Fn(&mut Vec<u8>, &[u8]) + Send + 'static,
) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes_read = Vec::new();
        let mut buffer = [0; 4096];
        if let Some(mut pipe) = pipe {
            while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
                append(&mut bytes_read, &buffer[..bytes]);
            }
        }
        bytes_read
    })
}

impl ProcessEnd {
    /// Completes `record`, which has only a name, with the result of the process.
    fn into_record(self, record: &mut Record) {
        let seconds = self.limit.as_secs_f64();
        let (verdict, what) = match self.how {
            ExitKind::Itself(status) if status.success() => {
                match answer(&self.output, &record.name) {
                    Ok(answered) => {
                        *record = answered;
                        return;
                    }
                    Err(what) => (Verdict::Crashed, what),
                }
            }
            ExitKind::Itself(status) => (Verdict::Crashed, died(status)),
            ExitKind::Killed => {
                (Verdict::TimedOut, format!("no answer within {seconds} s: killed"))
            }
            ExitKind::Stopped => (Verdict::Unfinished, "interrupted".into()),
            ExitKind::Stuck => (
                Verdict::TimedOut,
                format!("no answer within {seconds} s, and cannot be killed: stuck in the kernel"),
            ),
        };
        record.verdict = verdict;
        record.error = Some(match self.last_words.as_str() {
            "" => what,
            words => format!("{what}; its output:\n{words}"),
        });
    }
}

fn answer(output: &[u8], name: &str) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(output)
        .map_err(|error| format!("its answer cannot be parsed: {error}"))?;
    if record.name != name {
        return Err(format!("it answered for another experiment: {}", clean(&record.name)));
    }
    let mut alone = Profile::new("", 0, Machine::default());
    let mut record = record;
    let texts = record.facts.values_mut().filter_map(|value| match value {
        Value::Text(text) => Some(text),
        _ => None,
    });
    for text in texts.chain([&mut record.answer]).chain(&mut record.error) {
        *text = clean(text);
    }
    alone.experiments.push(record);
    alone.check().map_err(|error| format!("its answer is invalid: {error}"))?;
    alone.experiments.pop().ok_or_else(|| "no answer".into())
}

fn died(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
            format!("its process was killed by {name} ({number})")
        }
        (None, Some(code)) => format!("its process exited with code {code}"),
        (None, None) => "its process exited".into(),
    }
}

/// Removes control characters that a profile must not contain.
fn clean(text: &str) -> String {
    let clean = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t'));
    let mut clean: String = clean.take(tegra_profile::MAX_TEXT / 4).collect();
    clean.truncate(clean.trim_end().len());
    clean
}

/// Number of records of each verdict.
#[must_use]
pub fn tally(profile: &Profile) -> BTreeMap<&'static str, usize> {
    let mut tally = BTreeMap::new();
    for experiment in &profile.experiments {
        *tally.entry(experiment.verdict.name()).or_default() += 1;
    }
    tally
}
