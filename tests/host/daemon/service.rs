//! The daemon as a service; the test acts as the service manager.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

use orind_testing::daemon::{self, Daemon, MODEL, eventually};
use orind_testing::program::words;

/// The service manager's side of the notification socket.
struct Manager {
    dir: TempDir,
    socket: UnixDatagram,
    /// Unread lines of the last message.
    heard: RefCell<VecDeque<String>>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        Self { dir, socket, heard: RefCell::default() }
    }

    /// Starts a service with these settings and a watchdog.
    fn start(&self, settings: &str, watchdog: Duration) -> Daemon {
        let settings = format!("model = '{MODEL}'\nthreads = 2\n{settings}");
        let mut command = daemon::orind();
        command
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        // Under nohup SIGHUP is ignored, and the daemon would inherit that.
        let hear_hangups = || {
            // SAFETY: the default action is no handler of ours.
            unsafe { signal(Signal::SIGHUP, SigHandler::SigDfl) }.map(drop).map_err(Into::into)
        };
        // SAFETY: one system call between fork and exec, which touches nothing of the parent's.
        unsafe { command.pre_exec(hear_hangups) };
        Daemon::launch_with(command, &settings)
    }

    /// The next line, or none within `limit`.
    fn hear(&self, limit: Duration) -> Option<String> {
        let mut heard = self.heard.borrow_mut();
        if heard.is_empty() {
            self.socket.set_read_timeout(Some(limit)).unwrap();
            let mut bytes = [0; 4096];
            let n = self.socket.recv(&mut bytes).ok()?;
            let text = std::str::from_utf8(&bytes[..n]).unwrap();
            heard.extend(text.lines().map(str::to_owned));
        }
        heard.pop_front()
    }

    /// Waits for a line with this beginning; returns all lines before it.
    fn until(&self, wanted: &str) -> Vec<String> {
        let mut before = Vec::new();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            match self.hear(Duration::from_secs(60)) {
                Some(line) if line.starts_with(wanted) => return before,
                line => before.extend(line),
            }
        }
        panic!("waited for {wanted}; heard {before:?}");
    }
}

const CALM: Duration = Duration::from_secs(60);

#[test]
fn readiness_reload_and_stop_are_reported() {
    let manager = Manager::new();
    let mut daemon = manager.start("queue_limit = 7\nslots = 2\ncontext = 256", CALM);
    let before = manager.until("READY=1");
    // The daemon is ready when the model is loaded.
    assert_eq!(daemon.get("/health").status, 200, "{before:?}");
    manager.until(&format!("STATUS={MODEL} on cpu, 0 of 2 slots busy, 0 waiting"));

    daemon
        .configure("queue_limit = 3\nslots = 1\nsocket_mode = '0600'\nlog = 'debug'\nthreads = 2");
    daemon.signal(Signal::SIGHUP);
    manager.until("RELOADING=1");
    manager.until("MONOTONIC_USEC=");
    manager.until("READY=1");
    let status = daemon.get("/orin/v1/status").json();
    assert_eq!(status["requests"]["queue_limit"], 3);
    assert_eq!(status["model"]["slots"], 2);
    let log = daemon.log();
    assert!(log.contains("reloaded") && log.contains("needs a restart"), "{log}");
    assert!(log.contains("socket_mode"), "{log}");
    eventually("debug lines", || daemon.log().contains("DEBUG"));
    let loaded = daemon.stream("/orin/v1/models", &json!({ "model": MODEL })).last().unwrap();
    assert!(loaded.1.contains("\"slots\":1"), "{}", loaded.1);

    daemon.configure("queue_limt = 3");
    daemon.signal(Signal::SIGHUP);
    manager.until("RELOADING=1");
    manager.until("READY=1");
    let log = daemon.log();
    assert!(
        log.contains("the configuration is unchanged") && log.contains("`queue_limt`"),
        "{log}"
    );

    daemon.signal(Signal::SIGTERM);
    manager.until("STOPPING=1");
    manager.until("EXTEND_TIMEOUT_USEC=20000000");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
}

/// After a failed load another model can be loaded.
#[test]
fn a_service_without_its_model_is_ready() {
    let manager = Manager::new();
    let mut command = daemon::orind();
    command.env("NOTIFY_SOCKET", manager.dir.path().join("notify"));
    let daemon = Daemon::launch_with(command, "model = '/nowhere.gguf'");
    manager.until("READY=1");
    assert_eq!(daemon.get("/health").error(), (503, "load_failed".into()));
}

/// Without a service manager, only `--wait` keeps a daemon without a model running.
#[test]
fn without_a_model_and_a_service_manager_the_daemon_ends() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("orind.sock");
    let start = |options: &[&str]| {
        let mut command = daemon::orind();
        command.args(["--model", "/nowhere.gguf", "--socket", socket.to_str().unwrap()]);
        command.args(options).env_remove("NOTIFY_SOCKET").stderr(Stdio::piped()).spawn().unwrap()
    };
    let output = start(&[]).wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("cannot be loaded: cannot open /nowhere.gguf: ") && error.contains("--wait"),
        "{error}"
    );
    assert!(!socket.exists());

    let mut waiting = start(&["--wait"]);
    eventually("the load has failed", || {
        let mut status = daemon::orinctl(dir.path());
        let said = status.args(["status", "--json", "--socket"]).arg(&socket).output().unwrap();
        String::from_utf8_lossy(&said.stdout).contains("last_error")
    });
    assert!(waiting.try_wait().unwrap().is_none(), "it goes on");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
}

/// A stopped thread, while the others run.
struct Frozen(Pid);

impl Frozen {
    fn thread(pid: i32, name: &str) -> Self {
        let tid = fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|task| fs::read_to_string(task.join("comm")).unwrap().trim() == name)
            .and_then(|task| task.file_name()?.to_str()?.parse().ok())
            .unwrap();
        let tid = Pid::from_raw(tid);
        ptrace::seize(tid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(tid).unwrap();
        waitpid(tid, Some(WaitPidFlag::__WALL)).unwrap();
        Self(tid)
    }

    fn thaw(self) {
        ptrace::detach(self.0, None).unwrap();
    }
}

#[test]
fn an_idle_engine_feeds_the_watchdog_and_a_hung_one_does_not() {
    let manager = Manager::new();
    let daemon = manager.start("slots = 1\ncontext = 256", Duration::from_millis(400));
    manager.until("READY=1");
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
    let engine = Frozen::thread(daemon.pid(), "engine");
    // After pending notifications there are none; the rest of the daemon still answers.
    while manager.hear(Duration::from_secs(1)).is_some() {}
    assert_eq!(daemon.get("/orin/v1/status").status, 200);
    assert_eq!(manager.hear(Duration::from_millis(500)), None);
    engine.thaw();
    manager.until("WATCHDOG=1");
}

#[test]
fn the_watchdog_is_fed_during_a_long_bench() {
    let manager = Manager::new();
    let daemon = manager.start("slots = 1\ncontext = 256", Duration::from_secs(2));
    manager.until("READY=1");
    let endless = json!({"prompts": [8], "generate": [64], "repetitions": 1000});
    let mut events = daemon.stream("/orin/v1/bench", &endless);
    events.next().unwrap();
    manager.until("STATUS=bench of ");
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
}

/// `Seccomp:` of every thread: 2 is a filter.
fn filtered(daemon: &Daemon) -> Vec<bool> {
    fs::read_dir(format!("/proc/{}/task", daemon.pid()))
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok())
        .map(|status| status.contains("Seccomp:\t2"))
        .collect()
}

#[test]
fn the_ioctl_filter_is_on_every_thread_and_disables_cuda() {
    let daemon = Daemon::start("slots = 1\ncontext = 256\nioctl_filter = 'on'");
    let threads = filtered(&daemon);
    assert!(threads.len() > 2 && threads.iter().all(|on| *on), "{threads:?}");
    let cuda = daemon.post("/orin/v1/models", &json!({"model": MODEL, "backend": "cuda"}));
    assert!(cuda.message().contains("the ioctl filter is on"), "{}", cuda.body);
    let auto = daemon.stream("/orin/v1/models", &json!({"model": MODEL, "backend": "auto"}));
    let model: serde_json::Value = serde_json::from_str(&auto.last().unwrap().1).unwrap();
    let reason = model["device"]["reason"].as_str().unwrap();
    assert!(reason.contains("not cuda (the ioctl filter is on"), "{reason}");
    let answer = daemon.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(answer.status, 200);

    let off = Daemon::launch("ioctl_filter = 'off'");
    assert!(filtered(&off).iter().all(|on| !*on));
    let both = daemon::orind().args(["--ioctl-filter", "on", "--backend", "cuda"]).output();
    let both = String::from_utf8(both.unwrap().stderr).unwrap();
    assert!(both.contains("the filter does not know the CUDA driver's requests"), "{both}");
}

/// Runs the following command with the shell's input as a socket of systemd.
const HANDED_OVER: &str = r#"exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;

/// Starts a daemon with `listener` as a socket of systemd.
fn activated(listener: &UnixListener, dir: &TempDir) -> Child {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", HANDED_OVER, "sh"])
        .args(words(env!("CARGO_BIN_EXE_orind")))
        .arg("--socket")
        .arg(dir.path().join("s"))
        .env("XDG_DATA_HOME", dir.path().join("data"))
        .stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())))
        .stderr(File::create(dir.path().join("log")).unwrap());
    command.spawn().unwrap()
}

#[test]
fn an_activation_socket_outlives_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    for how in [Signal::SIGKILL, Signal::SIGTERM] {
        // A client that connects before the daemon starts is answered.
        let answer = std::thread::scope(|scope| {
            let client = scope.spawn(|| daemon::get(&path, "/orin/v1/status"));
            let mut daemon = activated(&listener, &dir);
            let answer = client.join().unwrap();
            nix::sys::signal::kill(Pid::from_raw(daemon.id().cast_signed()), how).unwrap();
            daemon.wait().unwrap();
            answer
        });
        assert_eq!(answer.status, 200);
        assert!(path.exists(), "the socket is its maker's to remove");
    }
}

#[test]
fn other_activation_descriptors_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let datagrams = UnixDatagram::bind(dir.path().join("d")).unwrap();
    let run = std::process::Command::new("sh")
        .args(["-c", HANDED_OVER, "sh"])
        .args(words(env!("CARGO_BIN_EXE_orind")))
        .stdin(Stdio::from(OwnedFd::from(datagrams)))
        .output()
        .unwrap();
    let message = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(message.contains("a listening unix stream socket is needed"), "{message}");
}
