//! A peer's process: in a group of its own that ends with us, its last lines kept, its memory watched.

use std::collections::VecDeque;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, Command};
use tokio_util::task::AbortOnDropHandle;

/// Lines of what it said that are kept, and of these shown when it fails.
const LINES: usize = 2000;
const SHOWN: usize = 15;
/// Longest line that is kept whole, in bytes.
const LINE: usize = 4000;
/// Most that it may print as its result.
const RESULT: u64 = 256 << 20;
/// How often its memory is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What went wrong with a peer's process.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{program} cannot be started: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} {how}{}", lines(last))]
    Ended { program: String, how: String, last: Vec<String> },
    #[error("{program} was not done after {} s{}", limit.as_secs(), lines(last))]
    Late { program: String, limit: Duration, last: Vec<String> },
    /// It answered, and not as it should.
    #[error("{program}: {what}{}", lines(last))]
    Answer { program: String, what: String, last: Vec<String> },
}

fn lines(last: &[String]) -> String {
    if last.is_empty() {
        return String::new();
    }
    format!("; its last lines:\n  {}", last.join("\n  "))
}

/// A running process and all that it started.
pub(super) struct Process {
    program: String,
    child: Child,
    group: Pid,
    said: Arc<Mutex<VecDeque<String>>>,
    held: Arc<Mutex<Held>>,
    started: Instant,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Process {
    /// Starts it, with nothing to read unless `command` says so. Its standard error is listened to.
    pub(super) fn start(mut command: Command) -> Result<Self, Failure> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let mut child = command
            .stderr(Stdio::piped())
            // Ctrl-C is ours; the group is ended when this is dropped.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Failure::Start { program: program.clone(), source })?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(id.unwrap_or_else(|| unreachable!("it was just started")));
        let said = Arc::<Mutex<VecDeque<String>>>::default();
        let held = Arc::<Mutex<Held>>::default();
        let mut tasks = vec![spawn(watch(group, Arc::clone(&held)))];
        if let Some(stderr) = child.stderr.take() {
            tasks.push(spawn(listen(stderr, Arc::clone(&said))));
        }
        Ok(Self { program, child, group, said, held, started, _tasks: tasks })
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// What the process and its children held so far.
    pub(super) fn held(&self) -> Held {
        *self.held.lock()
    }

    /// What it said, all of it or the last lines.
    pub(super) fn said(&self) -> Vec<String> {
        self.said.lock().iter().cloned().collect()
    }

    fn last(&self) -> Vec<String> {
        let mut said = self.said();
        said.split_off(said.len().saturating_sub(SHOWN))
    }

    /// How it ended, if it has: a server should not.
    pub(super) fn ended(&mut self) -> Option<Failure> {
        let status = self.child.try_wait().ok()??;
        Some(self.failure(status))
    }

    /// Something that it answered cannot be used.
    pub(super) fn answer(&self, what: impl Into<String>) -> Failure {
        Failure::Answer { program: self.program.clone(), what: what.into(), last: self.last() }
    }

    fn failure(&self, status: ExitStatus) -> Failure {
        Failure::Ended { program: self.program.clone(), how: how(status), last: self.last() }
    }

    /// What it prints until it ends well, within `limit`; `input` is given to it first.
    async fn result(&mut self, input: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let mut stdin = self.child.stdin.take();
        let stdout = self.child.stdout.take();
        let talk = async {
            if let Some(stdin) = &mut stdin {
                // A process that does not read it says why, or ends, which is seen below.
                let _ = stdin.write_all(input).await;
            }
            drop(stdin);
            let mut printed = Vec::new();
            if let Some(stdout) = stdout {
                let _ = stdout.take(RESULT).read_to_end(&mut printed).await;
            }
            (printed, self.child.wait().await)
        };
        let talked = tokio::time::timeout(limit, talk).await;
        let Ok((printed, status)) = talked else {
            return Err(Failure::Late { program: self.program.clone(), limit, last: self.last() });
        };
        // The last words may still be on their way.
        tokio::time::sleep(LOOK).await;
        match status {
            Ok(status) if status.success() => Ok(printed),
            Ok(status) => Err(self.failure(status)),
            Err(source) => Err(Failure::Start { program: self.program.clone(), source }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its children too; there may be nobody left.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

/// What a process printed, and what it took.
pub(super) struct Finished {
    pub(super) printed: Vec<u8>,
    pub(super) held: Held,
}

/// Memory of a process and its children, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    /// Largest resident sets, added.
    pub(super) peak: u64,
    /// Executable mappings, added: of programs, libraries and what was compiled on the way.
    pub(super) code: u64,
}

/// Runs a process to its end and gives what it printed.
pub(super) async fn run(
    mut command: Command,
    input: &[u8],
    limit: Duration,
) -> Result<Finished, Failure> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(command)?;
    let printed = process.result(input, limit).await?;
    Ok(Finished { printed, held: process.held() })
}

fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(9)) => "was killed (SIGKILL; is memory short?)".into(),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or(0)),
    }
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Keeps what it says.
async fn listen(from: impl AsyncRead + Unpin, said: Arc<Mutex<VecDeque<String>>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
        line.truncate(LINE);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            let mut said = said.lock();
            if said.len() == LINES {
                said.pop_front();
            }
            said.push_back(text);
        }
    }
}

/// Looks at the resident sets of a group until it is gone.
async fn watch(group: Pid, held: Arc<Mutex<Held>>) {
    loop {
        let now = holds(group.as_raw());
        {
            let mut held = held.lock();
            *held = Held { peak: now.peak.max(held.peak), code: now.code.max(held.code) };
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What a process and its children hold now, by `/proc/PID/status`: `VmHWM`, and `VmExe` and `VmLib`, which together
/// are all executable mappings (Linux `fs/proc/task_mmu.c`).
pub(super) fn holds(pid: i32) -> Held {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    let own = Held { peak: of("VmHWM"), code: of("VmExe") + of("VmLib") };
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok()).map(holds);
    children
        .fold(own, |sum, child| Held { peak: sum.peak + child.peak, code: sum.code + child.code })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[tokio::test]
    async fn what_is_given_and_what_is_printed() {
        let finished = run(shell("read x; echo \"$x!\""), b"given\n", Duration::from_secs(10));
        let finished = finished.await.unwrap();
        assert_eq!(finished.printed, b"given!\n");
    }

    #[tokio::test]
    async fn a_process_that_fails_or_hangs_is_told_with_its_last_lines() {
        let failed = run(shell("echo why >&2; exit 4"), b"", Duration::from_secs(10)).await;
        let text = failed.err().unwrap().to_string();
        assert!(text.contains("status 4") && text.contains("why"), "{text}");
        let late = run(shell("echo slow >&2; sleep 60"), b"", Duration::from_millis(300)).await;
        let text = late.err().unwrap().to_string();
        assert!(text.contains("not done") && text.contains("slow"), "{text}");
    }

    #[test]
    fn a_process_holds_code_and_more_than_that() {
        let held = holds(std::process::id() as i32);
        // A test's program is megabytes of code; nothing is resident without some of it.
        assert!(held.code > 1 << 20 && held.code < 1 << 32, "{}", held.code);
        assert!(held.peak > 1 << 20, "{}", held.peak);
        assert_eq!(holds(i32::MAX).code, 0);
    }

    #[tokio::test]
    async fn dropping_it_ends_what_it_started_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 1000 & echo $! > {}; wait", file.path().display());
        let process = Process::start(shell(&script)).unwrap();
        let child = loop {
            let text = std::fs::read_to_string(file.path()).unwrap();
            if let Ok(pid) = text.trim().parse::<i32>() {
                break pid;
            }
            tokio::time::sleep(LOOK).await;
        };
        drop(process);
        let gone = |pid: i32| match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        while !gone(child) {
            tokio::time::sleep(LOOK).await;
        }
    }
}
