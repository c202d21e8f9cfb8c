//! Makes experiments, each in a process of its own, and keeps the profile on disk up to date: what
//! was found out before a crash of the whole machine is not lost, and the file says what was under
//! way.

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
use tegra_profile::{Experiment as Record, MOST_BYTES, Machine, Profile, Value, Verdict, facts};

use super::log::Log;
use super::{EXPERIMENTS, Error, Experiment, Risk, find, machine};
use telemetry::{Probe, Root};

/// How often a process is looked after.
const LOOK: Duration = Duration::from_millis(5);
/// How long a killed process may take to be gone: longer means that it is stuck in the kernel.
const GONE: Duration = Duration::from_secs(5);
/// Bytes of a process' last words that are kept.
const LAST_WORDS: usize = 2000;

/// The hidden command by which this program makes one experiment.
pub const CHILD_COMMAND: &str = "first-contact-experiment";

#[derive(Clone, Debug)]
pub struct Choice {
    pub experiment: &'static Experiment,
    /// Whether it was asked for by its name.
    pub named: bool,
    /// Why it is left out, if it is.
    pub left_out: Option<String>,
}

/// What is asked for, by names of experiments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// These alone, where there are any.
    pub only: &'a [String],
    /// These too, whatever their risk.
    pub also: &'a [String],
    /// Not these.
    pub skip: &'a [String],
}

impl Wanted<'_> {
    /// What to make of the table. What is dangerous is left out unless it is named.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a name that no experiment has.
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

/// What happens, for whoever watches.
#[derive(Debug)]
pub enum Progress<'a> {
    Begins(&'a Experiment),
    Ended(&'a Record),
}

#[derive(Debug)]
pub struct Run<'a> {
    /// What is made, and what is left out.
    pub choices: &'a [Choice],
    /// Where the profile is written to: the file of [`begin`] or [`resume`].
    pub file: &'a Path,
    /// A limit for every experiment instead of its own.
    pub limit: Option<Duration>,
    /// Ends the run early when set.
    pub stop: &'a AtomicBool,
}

/// Whether there is an Orin to be asked.
///
/// # Errors
/// [`Error::Gpu`] says what is missing.
pub fn look_for_orin() -> Result<(), Error> {
    Ok(Orin::open().map(drop)?)
}

/// What makes a profile: answers of two versions are not mixed in one.
const TOOL: &str = concat!("orinctl ", env!("CARGO_PKG_VERSION"));

/// An empty profile of this machine, in a file that was not there.
///
/// # Errors
/// [`Error::Profile`] where it was, or cannot be written.
pub fn begin(file: &Path) -> Result<Profile, Error> {
    let taken = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let profile = Profile::new(TOOL, taken.as_secs(), this_machine());
    profile.create(file)?;
    Ok(profile)
}

/// This machine, as the head of a profile tells it.
#[must_use]
pub fn this_machine() -> Machine {
    machine::look(&Probe::new(Root::system()))
}

/// The profile of a run that was ended early, and what of `choices` is left to make: not what has an
/// answer; what was under way when the run ended, which it may have ended, and what stands on that only
/// if it is named.
///
/// # Errors
/// [`Error::Profile`] for a file that is none, [`Error::Resume`] for one of another machine or version.
pub fn resume(file: &Path, choices: &mut [Choice]) -> Result<Profile, Error> {
    let profile = Profile::read(file)?;
    let refuse = |why| Error::Resume { file: file.into(), why };
    if profile.tool != TOOL {
        return Err(refuse(format!("{} made it, not {TOOL}", profile.tool)));
    }
    // The driver's number of SMs, which the file has, is not known yet.
    let now = Machine { sms: None, ..this_machine() };
    if let Some(difference) = profile.machine.difference(&now) {
        return Err(refuse(format!("this machine is another: {difference}")));
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
    /// Makes all that is chosen and fills `profile`, whose file is written before and after every
    /// experiment.
    ///
    /// # Errors
    /// The file cannot be written. What experiments run into is in their records.
    pub fn make(
        &self,
        profile: &mut Profile,
        mut watch: impl FnMut(Progress<'_>),
    ) -> Result<(), Error> {
        // Whoever has the file in mid-run sees what was not come to yet.
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

    /// What the file says of an experiment before the run comes to it: what is left out keeps what the
    /// run before has of it.
    fn begun(Choice { experiment, left_out, .. }: &Choice, before: &[Record]) -> Record {
        let kept = before.iter().find(|record| record.name == experiment.name);
        match (kept.filter(|kept| kept.verdict != Verdict::Skipped), left_out) {
            (Some(kept), Some(_)) => kept.clone(),
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

/// Takes what the head of the profile says of the GPU from the first answer.
fn identify(profile: &mut Profile, record: &Record) {
    if record.name == facts::CHARACTERISTICS {
        let sms = record.facts.get("sms").and_then(Value::number);
        profile.machine.sms = sms.map(|sms| sms as u32).or(profile.machine.sms);
        let chip = record.facts.get("chip").and_then(Value::text);
        profile.machine.chip = chip.map(str::to_owned);
    }
}

enum How {
    Itself(ExitStatus),
    Killed,
    Stopped,
    /// Killed, but not gone.
    Stuck,
}

struct End {
    how: How,
    limit: Duration,
    said: Vec<u8>,
    last_words: String,
}

struct Process {
    child: Child,
    said: JoinHandle<Vec<u8>>,
    errors: JoinHandle<Vec<u8>>,
}

impl Process {
    fn start(name: &str) -> Result<Self, Error> {
        let failed = |source| Error::Process { what: "starting an experiment's process", source };
        let mut child = Command::new("/proc/self/exe")
            .arg0("orinctl")
            .args([CHILD_COMMAND, name])
            // It ends when this pipe does.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for us.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let said = listen(child.stdout.take(), |bytes, more| {
            bytes.extend_from_slice(&more[..more.len().min(MOST_BYTES - bytes.len())]);
        });
        let errors = listen(child.stderr.take(), |bytes, more| {
            bytes.extend_from_slice(more);
            let over = bytes.len().saturating_sub(LAST_WORDS);
            bytes.drain(..over);
        });
        Ok(Self { child, said, errors })
    }

    /// Waits for the end, and brings it about after `limit`.
    fn end(mut self, limit: Duration, stop: &AtomicBool) -> Result<End, Error> {
        let failed =
            |source| Error::Process { what: "waiting for an experiment's process", source };
        let started = Instant::now();
        let how = loop {
            if let Some(status) = self.child.try_wait().map_err(failed)? {
                break How::Itself(status);
            }
            let how = if stop.load(Ordering::Relaxed) {
                How::Stopped
            } else if started.elapsed() > limit {
                How::Killed
            } else {
                thread::sleep(LOOK);
                continue;
            };
            self.child.kill().map_err(failed)?;
            break if self.is_gone().map_err(failed)? { how } else { How::Stuck };
        };
        if matches!(how, How::Stuck) {
            // Its pipes are open as long as it is: nothing of it can be waited for.
            return Ok(End { how, limit, said: Vec::new(), last_words: String::new() });
        }
        let said = self.said.join().unwrap_or_default();
        let errors = self.errors.join().unwrap_or_default();
        let last_words = clean(String::from_utf8_lossy(&errors).trim());
        Ok(End { how, limit, said, last_words })
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

/// Reads a pipe to its end on a thread of its own, so that it never fills up.
fn listen(
    pipe: Option<impl Read + Send + 'static>,
    keep: impl Fn(&mut Vec<u8>, &[u8]) + Send + 'static,
) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0; 4096];
        if let Some(mut pipe) = pipe {
            while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
                keep(&mut kept, &buffer[..bytes]);
            }
        }
        kept
    })
}

impl End {
    /// What became of an experiment; `record` has its name and nothing else yet.
    fn into_record(self, record: &mut Record) {
        let seconds = self.limit.as_secs_f64();
        let (verdict, what) = match self.how {
            How::Itself(status) if status.success() => match answer(&self.said, &record.name) {
                Ok(answered) => {
                    *record = answered;
                    return;
                }
                Err(what) => (Verdict::Crashed, what),
            },
            How::Itself(status) => (Verdict::Crashed, died(status)),
            How::Killed => (Verdict::TimedOut, format!("no answer within {seconds} s: killed")),
            How::Stopped => (Verdict::Unfinished, "interrupted".into()),
            How::Stuck => (
                Verdict::TimedOut,
                format!("no answer within {seconds} s, and cannot be killed: stuck in the kernel"),
            ),
        };
        record.verdict = verdict;
        record.error = Some(match self.last_words.as_str() {
            "" => what,
            words => format!("{what}; it said:\n{words}"),
        });
    }
}

fn answer(said: &[u8], name: &str) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(said)
        .map_err(|error| format!("its answer is not understood: {error}"))?;
    if record.name != name {
        return Err(format!("it answered another question: {}", clean(&record.name)));
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
    alone.check().map_err(|error| format!("its answer cannot be kept: {error}"))?;
    alone.experiments.pop().ok_or_else(|| "no answer".into())
}

fn died(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
            format!("its process was killed by {name} ({number})")
        }
        (None, Some(code)) => format!("its process ended with exit code {code}"),
        (None, None) => "its process ended".into(),
    }
}

/// Text that a profile may hold.
fn clean(text: &str) -> String {
    let kept = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t'));
    let mut kept: String = kept.take(tegra_profile::MOST_TEXT / 4).collect();
    kept.truncate(kept.trim_end().len());
    kept
}

/// How many records there are of each verdict.
#[must_use]
pub fn tally(profile: &Profile) -> BTreeMap<&'static str, usize> {
    let mut tally = BTreeMap::new();
    for experiment in &profile.experiments {
        *tally.entry(experiment.verdict.name()).or_default() += 1;
    }
    tally
}
