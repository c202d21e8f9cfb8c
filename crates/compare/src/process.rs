//! Process of a peer, in its own process group, which is killed when its owner is dropped. Stores
//! the last lines of its output and samples its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
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

/// Number of output lines to store, and to print after a failure.
const LINES: usize = 2000;
const SHOWN: usize = 15;
/// Length in bytes beyond which a stored line is truncated.
const LINE: usize = 4000;
/// Maximum size of the result on standard output.
const RESULT: u64 = 256 << 20;
/// Interval of memory observations.
const LOOK: Duration = Duration::from_millis(20);
/// Number of first observations that also find model files, and interval of later ones.
const LOADING_LOOKS: u32 = 250;
const MODEL_LOOKS: u32 = 25;

/// Failure of a peer's process.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{program} cannot be started: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} {how}{}", lines(last))]
    Ended { program: String, how: String, last: Vec<String> },
    #[error("{program} did not finish within {} s{}", limit.as_secs(), lines(last))]
    Late { program: String, limit: Duration, last: Vec<String> },
    /// The answer is unusable.
    #[error("{program}: {what}{}", lines(last))]
    Answer { program: String, what: String, last: Vec<String> },
}

fn lines(last: &[String]) -> String {
    if last.is_empty() {
        return String::new();
    }
    format!("; its last lines:\n  {}", last.join("\n  "))
}

/// A running process and all its children.
pub(super) struct Process {
    program: String,
    child: Child,
    group: Pid,
    output: Arc<Mutex<VecDeque<String>>>,
    held: Arc<Mutex<ProcessMemory>>,
    models: Arc<Mutex<ModelFiles>>,
    started: Instant,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Process {
    /// Starts a process with an empty standard input unless `command` sets one, and reads its
    /// standard error.
    pub(super) fn start(mut command: Command) -> Result<Self, Failure> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let mut child = command
            .stderr(Stdio::piped())
            // Ctrl-C reaches only us; the group is killed on drop.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Failure::Start { program: program.clone(), source })?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(id.unwrap_or_else(|| unreachable!("it was just started")));
        let output = Arc::<Mutex<VecDeque<String>>>::default();
        let held = Arc::<Mutex<ProcessMemory>>::default();
        let models = Arc::<Mutex<ModelFiles>>::default();
        let mut tasks = vec![spawn(watch(group, Arc::clone(&held), Arc::clone(&models)))];
        if let Some(stderr) = child.stderr.take() {
            tasks.push(spawn(listen(stderr, Arc::clone(&output))));
        }
        Ok(Self { program, child, group, output, held, models, started, _tasks: tasks })
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Memory of the process and its children so far.
    pub(super) fn memory(&self) -> ProcessMemory {
        *self.held.lock()
    }

    /// GGUF files that the process and its children have opened or mapped so far.
    pub(super) fn models(&self) -> BTreeSet<PathBuf> {
        self.models.lock().paths()
    }

    /// Returns the stored lines of the output.
    pub(super) fn output_lines(&self) -> Vec<String> {
        self.output.lock().iter().cloned().collect()
    }

    fn last(&self) -> Vec<String> {
        let mut output = self.output_lines();
        output.split_off(output.len().saturating_sub(SHOWN))
    }

    /// Returns the failure if a server process has ended.
    pub(super) fn ended(&mut self) -> Option<Failure> {
        let status = self.child.try_wait().ok()??;
        Some(self.failure(status))
    }

    /// Reports an unusable answer.
    pub(super) fn answer(&self, what: impl Into<String>) -> Failure {
        Failure::Answer { program: self.program.clone(), what: what.into(), last: self.last() }
    }

    fn failure(&self, status: ExitStatus) -> Failure {
        Failure::Ended { program: self.program.clone(), how: how(status), last: self.last() }
    }

    /// Sends `input` and returns the standard output after a successful end within `limit`.
    async fn result(&mut self, input: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let mut stdin = self.child.stdin.take();
        let stdout = self.child.stdout.take();
        let talk = async {
            if let Some(stdin) = &mut stdin {
                // A process that does not read its input reports an error or ends, which is
                // detected below.
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
        // The last lines may not have arrived yet.
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
        // Kill the children too; the group may be empty already.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

/// Output of a finished process, and its duration and memory.
pub(super) struct Finished {
    pub(super) printed: Vec<u8>,
    pub(super) held: ProcessMemory,
    /// GGUF files that the process and its children opened or mapped.
    pub(super) models: BTreeSet<PathBuf>,
}

/// Memory of a process and its children, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessMemory {
    /// Sum of the largest resident sets.
    pub(super) peak: u64,
    /// Sum of the executable mappings: programs, libraries and run-time compiled code.
    pub(super) code: u64,
}

/// Runs a process to its end and returns its output.
pub(super) async fn run(
    mut command: Command,
    input: &[u8],
    limit: Duration,
) -> Result<Finished, Failure> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(command)?;
    let printed = process.result(input, limit).await?;
    Ok(Finished { printed, held: process.memory(), models: process.models() })
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

/// Keeps the last lines of the output.
async fn listen(from: impl AsyncRead + Unpin, output: Arc<Mutex<VecDeque<String>>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
        line.truncate(LINE);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            let mut output = output.lock();
            if output.len() == LINES {
                output.pop_front();
            }
            output.push_back(text);
        }
    }
}

/// Samples the resident sets and the files of a process group until all of its processes have exited.
async fn watch(group: Pid, held: Arc<Mutex<ProcessMemory>>, models: Arc<Mutex<ModelFiles>>) {
    for looks in 0_u32.. {
        if looks < LOADING_LOOKS || looks.is_multiple_of(MODEL_LOOKS) {
            models.lock().look(group.as_raw());
        }
        let now = process_memory(group.as_raw());
        {
            let mut held = held.lock();
            *held = ProcessMemory { peak: now.peak.max(held.peak), code: now.code.max(held.code) };
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// GGUF files of a process and its children, from `/proc/PID/fd` and `/proc/PID/maps`.
#[derive(Default)]
struct ModelFiles {
    /// Path of each file, by device and inode; `None` for other files.
    files: BTreeMap<(u64, u64), Option<PathBuf>>,
}

impl ModelFiles {
    fn paths(&self) -> BTreeSet<PathBuf> {
        self.files.values().flatten().cloned().collect()
    }

    fn look(&mut self, pid: i32) {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let open = entries(&folder.join("fd"));
        for path in open.iter().filter_map(|fd| fs::read_link(fd).ok()) {
            self.add(&path);
        }
        let maps = fs::read_to_string(folder.join("maps")).unwrap_or_default();
        // The path follows address, permissions, offset, device and inode.
        let mapped: BTreeSet<&str> =
            maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).collect();
        for path in mapped {
            self.add(Path::new(path));
        }
        for thread in entries(&folder.join("task")) {
            let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                self.look(child);
            }
        }
    }

    fn add(&mut self, path: &Path) {
        let Ok(about) = fs::metadata(path) else { return };
        if !about.is_file() {
            return;
        }
        let file = self.files.entry((about.dev(), about.ino()));
        file.or_insert_with(|| {
            let mut magic = [0; 4];
            let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
            (read.is_ok() && &magic == b"GGUF").then(|| path.to_owned())
        });
    }
}

/// Paths in a folder; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Memory of a process and its children from `/proc/PID/status`: `VmHWM`, and `VmExe` plus `VmLib`,
/// which together are all executable mappings (Linux `fs/proc/task_mmu.c`).
pub(super) fn process_memory(pid: i32) -> ProcessMemory {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    let own = ProcessMemory { peak: of("VmHWM"), code: of("VmExe") + of("VmLib") };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children =
        children.split_whitespace().filter_map(|child| child.parse().ok()).map(process_memory);
    children.fold(own, |sum, child| ProcessMemory {
        peak: sum.peak + child.peak,
        code: sum.code + child.code,
    })
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
    async fn input_is_passed_and_output_returned() {
        let finished = run(shell("read x; echo \"$x!\""), b"given\n", Duration::from_secs(10));
        let finished = finished.await.unwrap();
        assert_eq!(finished.printed, b"given!\n");
    }

    #[tokio::test]
    async fn failures_and_timeouts_include_the_last_lines() {
        let failed = run(shell("echo why >&2; exit 4"), b"", Duration::from_secs(10)).await;
        let text = failed.err().unwrap().to_string();
        assert!(text.contains("status 4") && text.contains("why"), "{text}");
        let late = run(shell("echo slow >&2; sleep 60"), b"", Duration::from_millis(300)).await;
        let text = late.err().unwrap().to_string();
        assert!(text.contains("did not finish") && text.contains("slow"), "{text}");
    }

    #[test]
    fn a_process_has_code_and_other_memory() {
        let held = process_memory(std::process::id() as i32);
        // A test program has megabytes of code, some of which is resident.
        assert!(held.code > 1 << 20 && held.code < 1 << 32, "{}", held.code);
        assert!(held.peak > 1 << 20, "{}", held.peak);
        assert_eq!(process_memory(i32::MAX).code, 0);
    }

    #[tokio::test]
    async fn opened_and_mapped_models_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let [opened, other] = ["a model", "text"].map(|name| folder.path().join(name));
        fs::write(&opened, b"GGUF and more").unwrap();
        fs::write(&other, b"GGML and more").unwrap();
        let script = format!(
            "exec 8<'{}'; (exec 9<'{}'; sleep 0.3); sleep 0.1",
            other.display(),
            opened.display()
        );
        let finished = run(shell(&script), b"", Duration::from_secs(10)).await.unwrap();
        assert_eq!(finished.models, [opened].into());
    }

    #[tokio::test]
    async fn dropping_a_process_kills_its_children() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 1000 & echo $! > {}; wait", file.path().display());
        let process = Process::start(shell(&script)).unwrap();
        let child = loop {
            let text = fs::read_to_string(file.path()).unwrap();
            if let Ok(pid) = text.trim().parse::<i32>() {
                break pid;
            }
            tokio::time::sleep(LOOK).await;
        };
        drop(process);
        let gone = |pid: i32| match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        while !gone(child) {
            tokio::time::sleep(LOOK).await;
        }
    }
}
