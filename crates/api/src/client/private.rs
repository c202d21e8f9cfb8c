//! A private daemon: a child `orinctl` process that serves on a temporary socket until it is
//! dropped.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Client;

/// The running program: starts a daemon of the same build.
pub const OWN: &str = "/proc/self/exe";

/// Time limit from the start of the process until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Wait after SIGTERM. Short, because a user may have pressed Ctrl-C. The process exits by itself
/// and is not killed: an interrupted GPU bring-up would count as a failure of the GPU.
const STOP_LIMIT: Duration = Duration::from_millis(150);
/// Number of log lines in an error message.
const LOG_LINES: usize = 12;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the private daemon {what}{}", log_suffix(log))]
    Ended {
        what: String,
        /// Last lines of its log.
        log: String,
    },
    #[error("{what}: {source}")]
    Setup { what: &'static str, source: io::Error },
    #[error(transparent)]
    Client(#[from] super::Error),
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its log:\n{log}") }
}

/// A running private daemon. Dropping it stops the process and removes its files.
pub struct Private {
    child: Child,
    directory: PathBuf,
    /// Start time of the process.
    pub started: Instant,
    /// Time from the start until the socket answered.
    pub socket_after: Duration,
    pub client: Client,
}

impl Private {
    /// Starts `program`, an `orinctl` binary: [`OWN`], or another build.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        Self::configured(program, "").await
    }

    /// Starts `program` with further lines of its configuration file.
    pub async fn configured(program: &Path, more: &str) -> Result<Self, Error> {
        let setup = |what| move |source| Error::Setup { what, source };
        let directory = directory().map_err(setup("making a directory for the private daemon"))?;
        let socket = directory.join("orind.sock");
        let log = std::fs::File::create(directory.join("log"))
            .map_err(setup("making the private daemon's log"))?;
        let config = directory.join("orind.toml");
        // Any backend may be requested, and the ioctl filter does not allow CUDA.
        let settings = "shutdown_deadline_s = 0\nlog = \"warn\"\nioctl_filter = \"off\"\n";
        std::fs::write(&config, format!("{settings}{more}"))
            .map_err(setup("writing the private daemon's configuration"))?;
        let started = Instant::now();
        let child = Command::new(program)
            .arg0("orinctl")
            .args(["daemon", "--exit-with-parent", &std::process::id().to_string()])
            .arg("--config")
            .arg(&config)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C must not reach the child: `Drop` stops it.
            .process_group(0)
            .spawn()
            .map_err(setup("starting the private daemon"))?;
        let client = Client::new(&socket);
        let mut private = Self { child, directory, started, socket_after: Duration::ZERO, client };
        private.wait_until_up().await?;
        private.socket_after = started.elapsed();
        Ok(private)
    }

    async fn wait_until_up(&mut self) -> Result<(), Error> {
        loop {
            match self.client.wait_until_up(Duration::from_millis(50)).await {
                Ok(_) => return Ok(()),
                Err(super::Error::NotRunning { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(error) = self.ended() {
                return Err(error);
            }
            if self.started.elapsed() > START_LIMIT {
                let what = format!("did not answer within {} s", START_LIMIT.as_secs());
                return Err(Error::Ended { what, log: self.log() });
            }
        }
    }

    /// Process id, for measuring its memory.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if the process has exited.
    pub fn ended(&mut self) -> Option<Error> {
        let status = self.child.try_wait().ok()??;
        Some(Error::Ended { what: describe_exit(status), log: self.log() })
    }

    fn log(&self) -> String {
        let text = std::fs::read(self.directory.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
        if let Ok(pid) = pid
            && matches!(self.child.try_wait(), Ok(None))
            && kill(pid, Signal::SIGTERM).is_ok()
        {
            let asked = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < STOP_LIMIT {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(9)) => "was killed (SIGKILL; is memory short?)".into(),
        (None, signal) => format!("was killed by signal {}", signal.unwrap_or(0)),
    }
}

/// Creates a directory that only this user can enter, with a path short enough for a socket.
fn directory() -> io::Result<PathBuf> {
    // `sun_path` has 108 bytes.
    let fits = |base: &PathBuf| base.is_dir() && base.as_os_str().len() < 70;
    let base = [env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some(env::temp_dir())]
        .into_iter()
        .flatten()
        .find(fits)
        .unwrap_or_else(|| "/tmp".into());
    Ok(nix::unistd::mkdtemp(&base.join("orinctl-XXXXXX"))?)
}
