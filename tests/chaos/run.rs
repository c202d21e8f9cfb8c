//! One trial: executes a plan on a daemon, then checks that the daemon is back in its initial state.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use orind_testing::daemon::{head, post};
use orind_testing::data;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answer::{Answer, End};
use crate::census::{Census, SETTLING};
use crate::clients::{self, REQUEST_TIMEOUT};
use crate::hostile;
use crate::judge::Judge;
use crate::loops;
use crate::plan::{Action, Device, File, Plan, Settings};
use crate::pulls;
use crate::reference::Reference;
use crate::request::{CONTEXT, catalogue};
use crate::subject::Subject;

const MODELS: &str = "/orin/v1/models";
const TUNE: &str = "/orin/v1/tune";
const BENCH: &str = "/orin/v1/bench";

/// Private part of the resident set. Pages of the program's file change with the executed code and do not count.
const TAKEN: &str = "RssAnon";

/// Allowed growth of the resident set, in bytes. Noise of an allocator with several threads; a load and a search on the
/// simulated Orin cause 10 MB of it.
const NOISE: u64 = 24 << 20;

/// Time beyond its deadline that the daemon may take to stop, for answers in transit and for a busy machine.
const STOPPING: Duration = Duration::from_secs(10);

/// Time after which an impatient client of a benchmark disconnects.
const SHORT: Duration = Duration::from_millis(30);

/// State shared by all trials.
pub(crate) struct World {
    reference: Arc<Reference>,
    /// Print each step as it is executed.
    tell: bool,
}

impl World {
    pub(crate) fn new(tell: bool) -> Self {
        Self { reference: Arc::default(), tell }
    }
}

/// Directory of a daemon, with its writable files and its models.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new(settings: &Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "state", "tune", "models", "models/directory.gguf"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let place = Self { dir };
        place.models();
        if settings.known && settings.device.is_simulated() {
            fs::write(place.path("state/first-light.json"), known()).unwrap();
        }
        place.configure(settings, "");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn models(&self) {
        let place = |name: &str| self.path(&format!("models/{name}.gguf"));
        for (name, of) in [("llama", "tiny-llama-Q8_0"), ("qwen", "tiny-qwen3-Q8_0")] {
            let model = data(&format!("models/{of}.gguf"));
            std::os::unix::fs::symlink(model, place(name)).unwrap();
        }
        let mut bytes = fs::read(place("llama")).unwrap();
        fs::write(place("truncated"), &bytes[..bytes.len() / 2]).unwrap();
        // Overwrites the number of tensors.
        bytes.truncate(40_000);
        bytes[8..16].copy_from_slice(&(u64::MAX / 3).to_le_bytes());
        fs::write(place("corrupt"), &bytes).unwrap();
        fs::write(place("empty"), "").unwrap();
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }

    /// Writes the configuration, with `more` lines.
    fn configure(&self, settings: &Settings, more: &str) {
        let Settings { device, slots, prefill_chunk, queue_limit, max_connections, .. } = settings;
        let Settings { shutdown_deadline_s, tune, .. } = settings;
        let [models, state, choices] = ["models", "state", "tune"].map(|name| self.path(name));
        let text = format!(
            "backend = '{device}'\nslots = {slots}\nprefill_chunk = {prefill_chunk}\n\
             queue_limit = {queue_limit}\nmax_connections = {max_connections}\n\
             shutdown_deadline_s = {shutdown_deadline_s}\ntune = '{tune}'\ncontext = {CONTEXT}\n\
             threads = 2\nrequest_timeout_s = {REQUEST_TIMEOUT}\nmax_body_bytes = 65536\n\
             memory_reserve_mib = 0\nmodel = 'llama'\nmodels_dir = {models:?}\n\
             state_dir = {state:?}\ntune_dir = {choices:?}\n{more}{}",
            loops::configuration()
        );
        self.replace_configuration(&text);
    }

    /// Replaces the configuration atomically.
    fn replace_configuration(&self, text: &str) {
        fs::write(self.path("new.toml"), text).unwrap();
        fs::rename(self.path("new.toml"), self.path("orind.toml")).unwrap();
    }

    pub(crate) fn start(&self, settings: &Settings, faults: &[String]) -> Subject {
        let mut variables = vec![];
        if settings.device.is_simulated() {
            variables.push(("TEGRA_SIM_SEED", settings.seed.to_string()));
            variables.push(("TEGRA_SIM_MACHINE", settings.machine.to_owned()));
            variables.push(("TEGRA_SIM_CHECKS", "fast".to_owned()));
            variables.push(("TEGRA_SIM_FAULTS", faults.join(",")));
        }
        Subject::start(self.dir.path(), &variables)
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).unwrap_or_default()).into_owned()
    }
}

/// Requests a load and waits for its end.
pub(crate) fn load(subject: &Subject, file: File, slots: usize) -> Answer {
    let name = match file {
        File::Llama | File::TooLarge => "llama",
        File::Qwen => "qwen",
        File::Missing => "missing",
        File::Truncated => "truncated",
        File::Corrupt => "corrupt",
        File::Empty => "empty",
        File::Directory => "directory",
        File::Pipe => "pipe",
    };
    let mut body = json!({"model": subject.model(name), "slots": slots});
    if file == File::TooLarge {
        body["slots"] = 256.into();
        body["context"] = 16_000_000.into();
    }
    clients::tell(subject, MODELS, &body)
}

/// Bring-up results of a start on a machine without faults.
fn known() -> &'static str {
    static KNOWN: OnceLock<String> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let settings = Settings::quiet(Device::Nv);
        let place = Place::new(&settings);
        let subject = place.start(&settings, &[]);
        subject.until("it serves", || subject.get("/health").status == 200);
        subject.stop();
        fs::read_to_string(place.path("state/first-light.json")).unwrap()
    })
}

fn short_bench() -> Value {
    json!({"prompts": [8], "generate": [4], "repetitions": 1, "warmup": 0, "budget_seconds": 1})
}

fn short_tune(beam: usize) -> Value {
    json!({"budget_seconds": 0.5, "samples": 200, "kernel": "project", "beam": beam, "cold_bytes": 0})
}

/// Executes the `kept` steps of a plan. An error contains the end of the log.
pub(crate) fn run(world: &World, plan: &Plan, kept: &[usize]) -> Result<(), String> {
    let place = Place::new(&plan.settings);
    let outcome = catch_unwind(AssertUnwindSafe(|| Trial::new(world, plan, kept, &place).run()));
    let error = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(panic) => said(&*panic),
    };
    let log = place.log();
    let last = log.lines().rev().take(25).collect::<Vec<_>>();
    let last: Vec<_> = last.into_iter().rev().collect();
    Err(format!("{error}\n  the end of its log:\n    {}", last.join("\n    ")))
}

fn hostile_client(subject: &Subject, judge: &Judge, kind: usize, seed: u64) {
    if kind + 1 == hostile::KINDS {
        let folder = tempfile::tempdir().unwrap();
        hostile::swapped_file(subject, folder.path());
    } else if let Some(answer) = clients::send(subject, &hostile::request(kind, seed)) {
        judge.hostile(subject, &answer);
    }
}

/// Message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

/// State of the daemon after warm-up of its last start.
struct Baseline {
    /// Device that served. A later fallback device has memory and handles of its own.
    device: Value,
    resident: u64,
    census: Census,
}

struct Trial<'a> {
    world: &'a World,
    plan: &'a Plan,
    kept: &'a [usize],
    place: &'a Place,
    subject: Arc<Subject>,
    baseline: Option<Baseline>,
    clients: Vec<JoinHandle<()>>,
    /// Faults to inject into the simulated Orin at the next start.
    faults: Vec<String>,
    /// Offset of the wall clock, in seconds.
    ahead: i64,
    /// True after an injected fault or a lack of memory or disk space: valid requests may then fail.
    disturbed: Arc<AtomicBool>,
}

impl<'a> Trial<'a> {
    fn new(world: &'a World, plan: &'a Plan, kept: &'a [usize], place: &'a Place) -> Self {
        let steps = kept.iter().map(|at| &plan.steps[*at]);
        let faults: Vec<String> = steps
            .map_while(|step| match step {
                Action::Inject(fault) => Some(fault.clone()),
                _ => None,
            })
            .collect();
        let mut trial = Self {
            world,
            plan,
            kept,
            place,
            subject: Arc::new(place.start(&plan.settings, &faults)),
            baseline: None,
            clients: Vec::new(),
            disturbed: Arc::new(AtomicBool::new(!faults.is_empty())),
            faults: Vec::new(),
            ahead: 0,
        };
        trial.warm_up_for_good(0);
        trial
    }

    fn settings(&self) -> &'a Settings {
        &self.plan.settings
    }

    fn run(mut self) -> Result<(), String> {
        let begun = self.kept.iter().skip_while(|at| self.is_fault(**at)).copied();
        for at in begun.collect::<Vec<_>>() {
            if self.world.tell {
                println!("{at:4} {:?}", self.plan.steps[at]);
            }
            let step = self.plan.steps[at].clone();
            let taken = catch_unwind(AssertUnwindSafe(|| self.step(at, step)));
            // Restarts the daemon like a service manager.
            if self.subject.ran_out() && self.disturbed.load(Ordering::SeqCst) {
                self.start_again(at);
            } else if let Err(panic) = taken {
                return Err(self.fail(format!("step {at}: {}", said(&*panic))));
            }
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.end())) {
            return Err(self.fail(format!("at the end: {}", said(&*panic))));
        }
        Ok(())
    }

    /// Kills the daemon and adds the clients' errors to `error`.
    fn fail(&mut self, error: String) -> String {
        self.subject.kill();
        let others = self.join_all();
        [vec![error], others].concat().join("\n  ")
    }

    fn is_fault(&self, at: usize) -> bool {
        matches!(self.plan.steps[at], Action::Inject(_))
    }

    fn step(&mut self, at: usize, step: Action) {
        match step {
            Action::Inject(fault) => self.faults.push(fault),
            Action::Ask { request, stream, clients } => {
                for _ in 0..clients {
                    self.spawn(move |subject, judge| {
                        let answer = clients::ask(subject, &catalogue()[request], stream);
                        judge.answer(subject, request, answer.as_ref());
                    });
                }
            }
            Action::Converse { requests } => self.spawn(move |subject, judge| {
                let asked: Vec<_> = requests.iter().map(|request| &catalogue()[*request]).collect();
                let answers = clients::converse(subject, &asked).unwrap_or_default();
                for (request, answer) in requests.iter().zip(&answers) {
                    judge.answer(subject, *request, Some(answer));
                }
            }),
            Action::Cancel { request, stream, after_ms } => self.spawn(move |subject, _| {
                let bytes = catalogue()[request].bytes(stream, "close");
                clients::leave(subject, &bytes, Duration::from_millis(after_ms));
            }),
            Action::Drip { request, gap_ms } => self.spawn(move |subject, judge| {
                let gap = Duration::from_millis(gap_ms);
                let answer = clients::drip(subject, &catalogue()[request], gap);
                judge.slow(subject, request, answer.as_ref());
            }),
            Action::Deaf => self.spawn(|subject, _| clients::deaf(subject)),
            Action::Garbage { seed } => {
                self.spawn(move |subject, _| clients::garbage(subject, seed));
            }
            Action::Hostile { kind, seed } => {
                let undisturbed = !self.disturbed.load(Ordering::SeqCst);
                // Benchmarks, searches and stopped processes delay others.
                let delays = |at: &usize| {
                    matches!(
                        self.plan.steps[*at],
                        Action::Bench { .. } | Action::Tune { .. } | Action::Freeze { .. }
                    )
                };
                let frozen = self.kept.iter().any(delays);
                let generates = self.settings().device == Device::Cpu;
                if undisturbed && !frozen {
                    self.spawn(move |subject, judge| {
                        hostile::others_are_served(subject, judge, generates);
                    });
                }
                self.spawn(move |subject, judge| hostile_client(subject, judge, kind, seed));
            }
            Action::Loop { kind, seed } => {
                self.spawn(move |subject, _| loops::client(subject, kind, seed));
            }
            Action::Pull { kind } => {
                let models = self.place.path("models");
                self.spawn(move |_, _| pulls::pull(&models, kind));
            }
            Action::Head { bytes } => {
                self.spawn(move |subject, _| clients::long_head(subject, bytes));
            }
            Action::HalfOpen => self.spawn(|subject, _| clients::half_open(subject)),
            Action::Idle { connections } => {
                (0..connections).for_each(|_| self.spawn(|subject, _| clients::idle(subject)));
            }
            Action::Load { file, wait } => self.load(file, wait),
            Action::Unload => {
                self.subject.raw(&head("DELETE", MODELS, "connection: close\r\n"));
            }
            Action::Reload { valid } => self.reload(valid),
            Action::Tune { beam } => self.spawn(move |subject, judge| {
                judge.work(subject, &clients::tell(subject, TUNE, &short_tune(beam)));
            }),
            Action::StopTuning => {
                self.subject.raw(&head("DELETE", TUNE, "connection: close\r\n"));
            }
            Action::Bench { stay } => self.spawn(move |subject, judge| {
                let spec = short_bench();
                if stay {
                    judge.work(subject, &clients::tell(subject, BENCH, &spec));
                } else {
                    clients::leave(subject, post(BENCH, &spec.to_string()).as_bytes(), SHORT);
                }
            }),
            Action::Look => {
                for path in ["/health", "/metrics", "/orin/v1/status", MODELS, TUNE, "/v1/models"] {
                    let answer = self.subject.get(path);
                    assert!(answer.status == 200 || !answer.error().1.is_empty(), "{answer:?}");
                }
            }
            Action::Freeze { ms } => {
                self.subject.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(ms));
                self.subject.signal(Signal::SIGCONT);
            }
            Action::Clock { seconds } => {
                self.ahead += seconds;
                self.subject.set_clock(self.ahead);
            }
            Action::DiskFull => self.limit(libc::RLIMIT_FSIZE, Some(0)),
            Action::DiskFree => self.limit(libc::RLIMIT_FSIZE, None),
            Action::DirectoriesGone => self.directories_gone(),
            Action::DirectoriesBack => self.directories_back(),
            Action::Tight { mib } => {
                let now = Census::memory(self.subject.pid(), "VmSize");
                self.limit(libc::RLIMIT_AS, Some(now + (mib << 20)));
            }
            Action::Roomy => self.limit(libc::RLIMIT_AS, None),
            Action::Pause { ms } => std::thread::sleep(Duration::from_millis(ms)),
            Action::Join => self.join(),
            Action::Kill => {
                self.subject.kill();
                self.start_again(at);
            }
            Action::Restart => {
                self.stop();
                self.start_again(at);
            }
        }
    }

    fn spawn(&mut self, client: impl FnOnce(&Subject, &Judge) + Send + 'static) {
        let (subject, judge) = (Arc::clone(&self.subject), self.judge());
        self.clients.push(std::thread::spawn(move || client(&subject, &judge)));
    }

    fn judge(&self) -> Judge {
        Judge {
            reference: Arc::clone(&self.world.reference),
            device: self.settings().device,
            places: self.settings().slots + self.settings().queue_limit,
            disturbed: Arc::clone(&self.disturbed),
        }
    }

    /// Waits for all clients and returns their errors.
    fn join_all(&mut self) -> Vec<String> {
        let ended = self.clients.drain(..).map(JoinHandle::join);
        ended.filter_map(|ended| Some(said(&*ended.err()?))).collect()
    }

    fn join(&mut self) {
        let failed = self.join_all();
        assert!(failed.is_empty(), "{}", failed.join("\n  "));
    }

    fn load(&mut self, file: File, wait: bool) {
        let slots = self.settings().slots;
        let client = move |subject: &Subject, judge: &Judge| {
            judge.load(subject, file, &load(subject, file, slots));
        };
        match wait {
            true => client(&self.subject, &self.judge()),
            false => self.spawn(client),
        }
    }

    fn reload(&self, valid: bool) {
        match valid {
            true => self.place.configure(self.settings(), "log = 'debug'\n"),
            false => self.place.replace_configuration("modle = 1\n"),
        }
        self.subject.signal(Signal::SIGHUP);
        // A later restart must find a valid configuration.
        if !valid {
            std::thread::sleep(Duration::from_millis(20));
            self.place.configure(self.settings(), "");
        }
    }

    /// Sets a resource limit of the daemon, or removes it.
    fn limit(&mut self, what: libc::__rlimit_resource_t, to: Option<u64>) {
        self.disturbed.fetch_or(to.is_some(), Ordering::SeqCst);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let pid = self.subject.pid();
        // SAFETY: the pointers are null or point to `limit`.
        let failed = unsafe {
            libc::prlimit(pid, what, std::ptr::null(), &raw mut limit);
            limit.rlim_cur = to.unwrap_or(limit.rlim_max);
            libc::prlimit(pid, what, &raw const limit, std::ptr::null_mut())
        };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    }

    fn directories_gone(&mut self) {
        self.disturbed.store(true, Ordering::SeqCst);
        for name in ["state", "tune"] {
            let (path, away) = (self.place.path(name), self.place.path(&format!("{name}.away")));
            if !away.exists() {
                fs::rename(&path, away).unwrap();
                fs::write(path, "").unwrap();
            }
        }
    }

    fn directories_back(&self) {
        for name in ["state", "tune"] {
            let (path, away) = (self.place.path(name), self.place.path(&format!("{name}.away")));
            if away.exists() {
                fs::remove_file(&path).unwrap();
                fs::rename(away, path).unwrap();
            }
        }
    }

    /// Stops the daemon with SIGTERM and checks the deadline.
    fn stop(&mut self) {
        let took = self.subject.stop();
        let deadline = Duration::from_secs(self.settings().shutdown_deadline_s);
        assert!(took < deadline + STOPPING, "it took {took:?} to stop");
        assert!(!self.subject.socket().exists(), "the socket is left");
        assert!(!self.place.path("s.lock").exists(), "the lock is left");
    }

    fn start_again(&mut self, at: usize) {
        self.join();
        let faults = std::mem::take(&mut self.faults);
        self.disturbed.fetch_or(!faults.is_empty(), Ordering::SeqCst);
        self.subject = Arc::new(self.place.start(self.settings(), &faults));
        self.subject.set_clock(self.ahead);
        self.warm_up_for_good(at + 1);
    }

    /// Warms up if no step from `at` on restarts the daemon: all later checks are then about this process. Clients of
    /// other starts may find it loading.
    fn warm_up_for_good(&mut self, at: usize) {
        let starts = |at: &usize| matches!(self.plan.steps[*at], Action::Kill | Action::Restart);
        if !self.kept.iter().filter(|kept| **kept >= at).any(starts) {
            self.warm_up();
        }
    }

    /// Executes a sample of the coming steps, so that lazy allocations exist, and records the baseline.
    fn warm_up(&mut self) {
        if !self.serve() {
            return;
        }
        // Benchmarks and searches allocate buffers, and the simulator caches kernels; each takes a second.
        let comes = |of: fn(&Action) -> bool| self.kept.iter().any(|at| of(&self.plan.steps[*at]));
        if comes(|step| matches!(step, Action::Bench { .. })) {
            self.judge().work(&self.subject, &clients::tell(&self.subject, BENCH, &short_bench()));
        }
        if comes(|step| matches!(step, Action::Tune { .. })) {
            self.judge().work(&self.subject, &clients::tell(&self.subject, TUNE, &short_tune(1)));
        }
        let device = self.device();
        // After some loads the allocator's caches have their final size.
        for _ in 0..3 {
            self.subject.raw(&head("DELETE", MODELS, "connection: close\r\n"));
            load(&self.subject, File::Llama, self.settings().slots);
        }
        self.subject.raw(&head("DELETE", MODELS, "connection: close\r\n"));
        let resident = Census::memory(self.subject.pid(), TAKEN);
        let census = Census::take(&self.subject, self.settings().device);
        self.baseline = Some(Baseline { device, resident, census });
        load(&self.subject, File::Llama, self.settings().slots);
    }

    /// Loads a model and checks its answer. Returns false if an injected fault prevents that.
    fn serve(&self) -> bool {
        let loaded = load(&self.subject, File::Llama, self.settings().slots);
        self.judge().load(&self.subject, File::Llama, &loaded);
        for request in 0..3 {
            let answer = clients::ask(&self.subject, &catalogue()[request], request == 0);
            self.judge().answer(&self.subject, request, answer.as_ref());
        }
        loaded.end == End::Whole
    }

    /// Device of the loaded model.
    fn device(&self) -> Value {
        self.subject.status()["model"]["device"]["name"].take()
    }

    fn end(&mut self) {
        self.limit(libc::RLIMIT_FSIZE, None);
        self.limit(libc::RLIMIT_AS, None);
        self.directories_back();
        self.join();
        assert!(!self.subject.has_ended(), "it has ended");
        self.subject.raw(&head("DELETE", TUNE, "connection: close\r\n"));
        self.subject.until("it is at rest", || {
            let status = self.subject.status();
            let requests = &status["requests"];
            let settled = ["ready", "empty"].iter().any(|name| status["state"]["name"] == *name);
            settled
                && status["loading"].is_null()
                && requests["active"] == 0
                && requests["queued"] == 0
        });
        let served = self.serve();
        if !self.disturbed.load(Ordering::SeqCst) {
            loops::serves(&self.subject);
        }
        let device = self.device();
        let same = |baseline: &Baseline| served && baseline.device == device;
        let baseline = self.baseline.take().filter(same);
        // This also ends the search that begins after a load.
        self.subject.raw(&head("DELETE", MODELS, "connection: close\r\n"));
        if let Some(baseline) = baseline {
            self.settles(baseline.resident + NOISE);
            baseline.census.holds(&self.subject, self.settings().device);
        }
        self.stop();
        let log = self.place.log();
        for line in log.lines() {
            // The standard library panics at the start of a thread only if memory is exhausted.
            let bad = ["panicked", "this is a bug"].iter().any(|word| line.contains(word))
                && !line.contains("/std/src/sys/");
            // Findings of the simulator. Injected faults are marked, and the summary counts both. A note is no defect:
            // a driver that is opened with a higher end of its addresses is warned about it.
            let found = line.starts_with("tegra-sim: ")
                && !line.contains("made to happen")
                && !line.starts_with("tegra-sim: driver-range-beyond-host")
                && !line.starts_with("tegra-sim: findings of process");
            assert!(!bad && !found, "the log: {line}");
        }
        self.no_files();
        self.starts_as_new();
    }

    /// Waits until at most `limit` bytes are resident: freed memory returns with a delay.
    fn settles(&self, limit: u64) {
        let start = Instant::now();
        loop {
            let now = Census::memory(self.subject.pid(), TAKEN);
            if now <= limit {
                return;
            }
            assert!(start.elapsed() < SETTLING, "resident: {now} bytes, the limit is {limit}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that no temporary file is left.
    fn no_files(&self) {
        let mut left = Vec::new();
        walk(self.place.dir.path(), &mut |path| {
            let name = path.strip_prefix(self.place.dir.path()).unwrap().display().to_string();
            let known = name.starts_with("models/")
                || name == "log"
                || name == "orind.toml"
                || name.starts_with("state/first-light.")
                || name.starts_with("state/faults/fault-")
                || (name.starts_with("tune/") && !name.ends_with(".tmp"));
            if !known {
                left.push(name);
            }
        });
        assert!(left.is_empty(), "files are left: {left:?}");
    }

    /// Checks that the daemon serves after a restart with the files on the disk; on the CPU if the Orin is no longer
    /// trusted.
    fn starts_as_new(&mut self) {
        let mut settings = self.settings().clone();
        if settings.device == Device::Nv {
            settings.device = Device::Auto;
        }
        self.place.configure(&settings, "");
        self.subject = Arc::new(self.place.start(&settings, &[]));
        let judge = Judge { device: settings.device, disturbed: Arc::default(), ..self.judge() };
        let loaded = load(&self.subject, File::Llama, settings.slots);
        judge.load(&self.subject, File::Llama, &loaded);
        let answer = clients::ask(&self.subject, &catalogue()[0], false).unwrap();
        assert_eq!(answer.end, End::Whole, "after all of it");
        judge.answer(&self.subject, 0, Some(&answer));
        self.stop();
    }
}

fn walk(dir: &Path, found: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, found);
        } else {
            found(&path);
        }
    }
}
