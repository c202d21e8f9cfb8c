//! The daemon as a program: flags, logging, signals, start and stop.
//!
//! `orind` is a thin door to [`main`], and `orinctl` becomes the daemon through the same door. What
//! is served is [`crate::control::server`]'s business.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nix::unistd::{Pid, getppid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::config::{self, Config, LogFormat};
use crate::control::server::{self, App, socket};
use crate::engine::{Handle, LoadSpec, Settings};
use crate::model::Model;
use crate::model::synthetic;

/// Threads that serve connections; the work is done on the engine's.
const IO_THREADS: usize = 2;

/// Time for answers to reach their clients once the engine has stopped.
const FLUSH: Duration = Duration::from_secs(2);

/// Runs GGUF language models and serves them over a unix socket.
#[derive(Debug, Parser)]
#[command(
    name = "orind",
    version,
    about,
    after_help = "\
Examples:
  orind --model llama.gguf
      Serve a model on the default socket.
  orind --model synthetic:tiny-llama:q8_0 --socket /tmp/o.sock
      Serve seeded random weights: no model file is needed.
  orind --config orind.toml --check
      Say what would be used, and whether it would work.

Then:
  orinctl status
  orinctl generate 'Once upon a time'
  curl --unix-socket /tmp/o.sock http://localhost/v1/models

Every key of the configuration is described in docs/configuration.md, every route in docs/api.md."
)]
struct Args {
    /// Read this TOML file; flags override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen on this unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Load this model at start: a GGUF file, a name in the models directory, or synthetic:NAME.
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Run on this device: auto, nv, cuda, cpu or reference.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Use this many worker threads; 0 takes the cores allowed.
    #[arg(long, short, value_name = "N")]
    threads: Option<usize>,
    /// Run the CPU device on this instruction set: auto, avx512, avx2, neon or scalar.
    #[arg(long, value_name = "NAME")]
    cpu_isa: Option<String>,
    /// Serve this many sequences at once.
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Give each sequence room for this many tokens; 0 takes the model's own, at most 4096.
    #[arg(long, short, value_name = "N")]
    context: Option<usize>,
    /// Check the configuration and the model, say what would be used, start nothing.
    #[arg(long)]
    check: bool,
    /// Stop when the parent, which has this process id, is gone.
    #[arg(long, value_name = "PID", hide = true)]
    exit_with_parent: Option<i32>,
}

impl Args {
    /// The configuration, with the flags on top.
    fn config(&self) -> Result<Config, config::Error> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        fn set<T: Clone>(key: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                *key = value.clone();
            }
        }
        set(&mut config.socket, self.socket.as_ref());
        set(&mut config.model, self.model.as_ref());
        set(&mut config.backend, self.backend.as_ref());
        set(&mut config.threads, self.threads.as_ref());
        set(&mut config.cpu_isa, self.cpu_isa.as_ref());
        set(&mut config.slots, self.slots.as_ref());
        set(&mut config.context, self.context.as_ref());
        config.check()?;
        Ok(config)
    }
}

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be taken.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// The whole program: `args` begins with the program's name. 0 after a clean stop, 1 when it cannot
/// start, 2 when the flags are wrong.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            // Nobody to tell when this fails.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let done = args.config().map_err(|e| e.to_string()).and_then(|config| {
        if args.check {
            return check(&config);
        }
        log_to_stderr(&config);
        run(config, args.exit_with_parent).map_err(|e| e.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "orind: {message}");
            ExitCode::FAILURE
        }
    }
}

fn log_to_stderr(config: &Config) {
    // Checked before; and whoever runs the daemon may have set up logging already.
    let filter = EnvFilter::builder().parse_lossy(&config.log);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let _ = match config.log_format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}

/// Says what would be used.
fn check(config: &Config) -> Result<(), String> {
    let mut text = toml::to_string(config).map_err(|e| e.to_string())?;
    let model = match config.model.as_str() {
        "" => "none at start".to_owned(),
        name if synthetic::is_synthetic(name) => {
            let spec = synthetic::Spec::parse(name).map_err(|e| e.to_string())?;
            format!("{spec}, seeded random weights")
        }
        name => {
            let path = config.resolve_model(name);
            let model =
                Model::open(Path::new(&path)).map_err(|e| format!("{path}: {}", chain(&e)))?;
            let (parameters, bytes) = (model.parameters(), model.weight_bytes());
            format!("{path}, {parameters} parameters, {bytes} bytes of weights")
        }
    };
    // Writing to a string cannot fail.
    let _ = write!(text, "\n# The configuration is valid. Model: {model}.\n");
    io::stdout().write_all(text.as_bytes()).map_err(|e| e.to_string())
}

/// An error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}

/// Serves until a signal, or until the process `parent` (if given) is gone. `config` has been
/// checked.
///
/// # Errors
/// [`Error`] when it cannot start.
pub fn run(config: Config, parent: Option<i32>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(Error::system("start the I/O threads"))?;
    let result = runtime.block_on(serve(config, parent));
    runtime.shutdown_background();
    result
}

async fn serve(config: Config, parent: Option<i32>) -> Result<(), Error> {
    // Before the socket exists, so that no signal finds it unguarded.
    let mut signals = Signals::new().map_err(Error::system("listen to signals"))?;
    let parent =
        parent.map(Parent::watch).transpose().map_err(Error::system("watch the parent"))?;
    let (listener, claim) = socket::claim(&config.socket, config.socket_mode)?;
    let listener = tokio::net::UnixListener::from_std(listener)
        .map_err(Error::system("listen on the socket"))?;
    let engine = Handle::start(Settings { queue_limit: config.queue_limit })
        .map_err(Error::system("start the engine thread"))?;

    let deadline = config.shutdown_deadline();
    let first = (!config.model.is_empty()).then(|| load_spec(&config));
    tracing::info!(socket = %config.socket.display(), version = env!("CARGO_PKG_VERSION"), "listening");
    let app = App::new(engine.clone(), config);
    if let Some(spec) = first {
        // Status and log tell how it goes.
        drop(app.load(spec));
    }
    let stop = CancellationToken::new();
    let server = tokio::spawn(server::serve(listener, app, stop.clone()));

    tokio::select! {
        name = signals.next() => tracing::info!(signal = name, ?deadline, "stopping"),
        () = gone(parent) => tracing::info!("stopping: the parent is gone"),
    }
    stop.cancel();
    let drained = async {
        let connections = server.await;
        // A panic there must not keep the daemon alive.
        let _ = tokio::task::spawn_blocking(move || engine.stop(deadline)).await;
        if let Ok(connections) = connections {
            connections.drain(FLUSH).await;
        }
    };
    tokio::select! {
        () = drained => {}
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: exiting at once");
            drop(claim);
            std::process::exit(1);
        }
    }
    drop(claim);
    tracing::info!("stopped");
    Ok(())
}

/// What to load at start.
fn load_spec(config: &Config) -> LoadSpec {
    LoadSpec {
        model: config.resolve_model(&config.model),
        backend: config.backend.clone(),
        slots: config.slots,
        context: config.context,
        prefill_chunk: config.prefill_chunk,
        threads: config.threads,
        cpu_isa: config.cpu_isa.clone(),
    }
}

/// The signals that stop the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal went away; left alone when whoever started the daemon ignores it (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let hangup = !ignored(libc::SIGHUP);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }
}

/// Whether this process was started with a signal ignored.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The process that started a private daemon, watched through a pidfd. (`PR_SET_PDEATHSIG` would
/// fire when the starting thread ends, not the process.)
enum Parent {
    Alive(AsyncFd<OwnedFd>),
    Gone,
}

impl Parent {
    fn watch(pid: i32) -> io::Result<Self> {
        // SAFETY: takes two integers and returns a new descriptor or -1; touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) {
                Ok(Self::Gone)
            } else {
                Err(error)
            };
        }
        // SAFETY: the call succeeded, so this is a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // A parent that died before the call may have left its id to a stranger.
        if getppid() != Pid::from_raw(pid) {
            return Ok(Self::Gone);
        }
        // SAFETY: an `OwnedFd` keeps its descriptor open, and always returns the same one.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self::Alive(fd))
    }
}

/// Waits until the parent is gone; for ever when there is none to watch.
async fn gone(parent: Option<Parent>) {
    match parent {
        // A pidfd becomes readable when its process ends; an error would mean the same.
        Some(Parent::Alive(fd)) => drop(fd.readable().await),
        Some(Parent::Gone) => {}
        None => std::future::pending().await,
    }
}
