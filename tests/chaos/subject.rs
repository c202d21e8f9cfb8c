//! The daemon under test: another process of this program that runs the daemon. A thread in it reads commands from
//! standard input, one per line.
//!
//! | command | effect |
//! |---|---|
//! | `clock N` | sets the wall clock N seconds ahead of the machine's |
//! | `live` | prints the live objects of the simulated Orin |

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon;
use orind_testing::program::{again, built};
use parking_lot::Mutex;
use serde_json::Value;
use tegra_sim_preload as _;

/// Environment variable with the daemon's directory.
const DIRECTORY: &str = "ORIND_CHAOS_DIR";

/// Prefix of the answer to `live`.
const LIVE: &str = "alive ";

/// Time limit that is long enough for two busy processors; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Offset of `CLOCK_REALTIME` from the machine's, in seconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Runs the daemon if this process was started for it.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn daemon() {
    std::thread::spawn(obey);
    grammar::use_worker(env!("CARGO_BIN_EXE_orind").into());
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let place = |name: &str| dir.join(name).into_os_string();
    let words: [OsString; 5] =
        ["orind".into(), "--config".into(), place("orind.toml"), "--socket".into(), place("s")];
    let code = ::daemon::main(words);
    assert_eq!(code, std::process::ExitCode::SUCCESS);
}

fn obey() {
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        match order.split_once(' ') {
            Some(("clock", ahead)) => AHEAD.store(ahead.parse().unwrap(), Ordering::Relaxed),
            _ => {
                let orin = tegra_sim_preload::orin().unwrap();
                orin.gpu().drain();
                println!("{LIVE}{:?}", orin.live());
            }
        }
    }
}

/// Replaces libc's function in this program. libc's own waits use the monotonic clock, which is not affected.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, into: *mut libc::timespec) -> i32 {
    // SAFETY: the caller meets the contract of `clock_gettime`, which equals the system call's.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, into) };
    if failed == 0 && clock == libc::CLOCK_REALTIME {
        // SAFETY: the kernel has written `into`.
        unsafe { (*into).tv_sec += AHEAD.load(Ordering::Relaxed) };
    }
    failed as i32
}

/// Progress of a daemon's end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Fate {
    Serves,
    /// SIGTERM was sent.
    Stops,
    Killed,
}

/// A daemon process. Killed when dropped.
pub(crate) struct Subject {
    child: Mutex<Child>,
    pid: i32,
    orders: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    dir: PathBuf,
    /// Offset of its part of the log.
    log: usize,
    fate: AtomicU8,
}

impl Subject {
    /// Starts a daemon in `dir`, with these environment variables, and waits for its socket.
    pub(crate) fn start(dir: &Path, variables: &[(&str, String)]) -> Self {
        let mut command = again(module_path!(), "daemon");
        let log = fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let begins = log.metadata().unwrap().len() as usize;
        for name in ["TMPDIR", "HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
            command.env(name, dir.join("home"));
        }
        // All daemons share the model that first light makes.
        command.env("XDG_CACHE_HOME", built().with_file_name("tmp").join("cache"));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.env(DIRECTORY, dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let orders = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let subject = Self {
            pid: child.id().try_into().unwrap(),
            child: Mutex::new(child),
            orders: Mutex::new(orders),
            dir: dir.to_owned(),
            log: begins,
            fate: AtomicU8::new(Fate::Serves as u8),
        };
        subject.until("it listens", || {
            assert!(!subject.has_ended(), "it ended at its start");
            UnixStream::connect(subject.socket()).is_ok()
        });
        subject
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// Socket of the control loops.
    pub(crate) fn loops(&self) -> PathBuf {
        self.dir.join("s.lanes")
    }

    /// Path of a test model.
    pub(crate) fn model(&self, name: &str) -> PathBuf {
        self.dir.join(format!("models/{name}.gguf"))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Connects with a timeout; `None` once the daemon is about to end.
    pub(crate) fn connect(&self) -> Option<UnixStream> {
        let stream = match UnixStream::connect(self.socket()) {
            Ok(stream) => stream,
            Err(_) if self.fate() != Fate::Serves => return None,
            Err(error) => panic!("nobody listens: {error}"),
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    pub(crate) fn fate(&self) -> Fate {
        match self.fate.load(Ordering::SeqCst) {
            0 => Fate::Serves,
            1 => Fate::Stops,
            _ => Fate::Killed,
        }
    }

    fn order(&self, order: &str) {
        writeln!(self.orders.lock().0, "{order}").unwrap();
    }

    pub(crate) fn set_clock(&self, ahead: i64) {
        self.order(&format!("clock {ahead}"));
    }

    /// Live objects of its simulated Orin.
    pub(crate) fn live(&self) -> String {
        self.order("live");
        let (_, answers) = &mut *self.orders.lock();
        // Skips lines of the test harness.
        let mut lines = answers.lines().map(Result::unwrap);
        lines.find_map(|line| line.split_once(LIVE).map(|(_, rest)| rest.to_owned())).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap();
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&self) {
        self.fate.store(Fate::Killed as u8, Ordering::SeqCst);
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Sends SIGTERM and returns the time until the end. Panics if the daemon exits with an error.
    pub(crate) fn stop(&self) -> Duration {
        let start = Instant::now();
        self.fate.store(Fate::Stops as u8, Ordering::SeqCst);
        self.signal(Signal::SIGTERM);
        self.until("it stops", || self.has_ended());
        let status = self.child.lock().wait().unwrap();
        assert!(status.success(), "asked to stop it ended with {status}");
        start.elapsed()
    }

    /// True if it ended because memory was exhausted, which docs/reliability.md allows.
    pub(crate) fn ran_out(&self) -> bool {
        let log = || fs::read(self.dir.join("log")).unwrap();
        let said = || String::from_utf8_lossy(&log()[self.log..]).contains("memory allocation of ");
        self.has_ended() && said()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.child.lock().try_wait().unwrap().is_some()
    }

    /// Sends a request of the trial itself; retries while there are too many connections.
    pub(crate) fn raw(&self, request: &str) -> daemon::Answer {
        self.try_raw(request).unwrap_or_else(|| panic!("no answer to {request:?}: it ends"))
    }

    /// Like [`Self::raw`]; `None` once the daemon is about to end.
    pub(crate) fn try_raw(&self, request: &str) -> Option<daemon::Answer> {
        let start = Instant::now();
        loop {
            let answer = self.try_raw_once(request)?;
            if !answer.body.contains("too_many_connections") {
                return Some(answer);
            }
            assert!(start.elapsed() < PATIENCE, "there is never a connection");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Like [`Self::try_raw`], without retries.
    pub(crate) fn try_raw_once(&self, request: &str) -> Option<daemon::Answer> {
        let mut stream = self.connect()?;
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let read = std::io::Read::read_to_end(&mut stream, &mut bytes);
        if bytes.is_empty() && self.fate() != Fate::Serves {
            return None;
        }
        assert!(!bytes.is_empty(), "no answer to {request:?}: {read:?}");
        Some(daemon::Answer::parse(&bytes))
    }

    pub(crate) fn get(&self, path: &str) -> daemon::Answer {
        self.raw(&daemon::head("GET", path, "connection: close\r\n"))
    }

    pub(crate) fn status(&self) -> Value {
        self.get("/orin/v1/status").json()
    }

    /// Waits until a condition is true.
    pub(crate) fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let start = Instant::now();
        while !happened() {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.kill();
    }
}
