//! The daemon as a program: flags, logging, start, reload and stop. Both `orind` and `orinctl` call
//! [`main`].

pub mod filter;
mod foreign;
mod heap_trim;
mod load_flags;
mod log;
mod service;
mod signals;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

use self::heap_trim::HeapTrimmer;
pub use self::load_flags::LoadFlags;
use self::log::Log;
use self::service::{EngineGone, Service};
pub use self::signals::ignore_file_size_limit;
use self::signals::{Parent, SignalEvent, Signals, parent_ended};
use api::LoadRequest;
use config::{Config, Effect, IoctlFilter};
use device::cpu::Isa;
use engine::{DeviceMemory, Handle, LoadError, LoadEvent, ModelInfo, Settings};
use errors::about;
use errors::{invalid, printable, without_codes};
use realtime::control_loops::{self, ControlLoopServer};
use server::tcp::{self, Port, Token};
use server::{App, Listeners, Stop, socket};

/// Commit of the sources, with `-dirty` if they differ from it.
pub const COMMIT: Option<&str> = option_env!("ORIND_COMMIT");

/// Threads that serve connections; inference runs on the engine's threads.
const IO_THREADS: usize = 2;

/// Time for answers to reach their clients after the engine has stopped.
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
      Serve seeded random weights; needs no model file.
  orind --config orind.toml --check
      Check the configuration and the model, and start nothing.

Then:
  orinctl status
  orinctl generate 'Once upon a time'
  curl --unix-socket \"$(orinctl socket)\" http://localhost/v1/models

docs/configuration.md describes the configuration keys, docs/api.md the HTTP routes."
)]
struct Args {
    /// Configuration file (TOML); flags override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// TCP address and port to listen on as well, such as 127.0.0.1:8080
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Model to load at start: a GGUF file, a name in the models directory, or synthetic:NAME.
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    load: LoadFlags,
    /// Filter of the daemon's own ioctls: auto, on or off.
    #[arg(long, value_name = "WHEN")]
    ioctl_filter: Option<IoctlFilter>,
    /// Keep running without a model if --model cannot be loaded, as under a service manager.
    #[arg(long)]
    wait: bool,
    /// Check the configuration and the model, print what would be used, start nothing.
    #[arg(long)]
    check: bool,
    /// Stop when the parent process with this id has ended.
    #[arg(long, value_name = "PID", hide = true)]
    exit_with_parent: Option<i32>,
}

impl Args {
    /// Returns whether the daemon is useless without the model of the command line: nothing else
    /// would load one.
    fn needs_model(&self, is_service: bool) -> bool {
        let is_private = self.exit_with_parent.is_some();
        self.model.is_some() && !self.wait && !is_service && !is_private
    }

    /// Reads the configuration and applies the flags.
    fn config(&self) -> Result<Config, config::Error> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        // A private daemon has the settings of the command that started it, and no others.
        if self.exit_with_parent.is_none() {
            config = config.with_environment(|variable| std::env::var(variable).ok())?;
        }
        fn set<T: Clone>(key: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                *key = value.clone();
            }
        }
        set(&mut config.socket, self.socket.as_ref());
        set(&mut config.listen, self.listen.as_ref());
        set(&mut config.model, self.model.as_ref());
        set(&mut config.ioctl_filter, self.ioctl_filter.as_ref());
        config.set_options(self.load.options());
        config.check()?;
        Ok(config)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Port(#[from] tcp::Error),
    #[error(transparent)]
    Filter(#[from] filter::Error),
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// A bug: the thread never ends by itself.
    #[error("the engine thread has ended; the log above has its last message")]
    EngineGone,
    #[error("the model cannot be loaded: {}; --wait continues without one", about(model, error))]
    NoModel { model: String, error: LoadError },
}

impl Error {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Definition of the command line, for its man page.
pub fn definition() -> clap::Command {
    Args::command()
}

/// Runs the program; `args` begins with the program's name. Exit code: 0 after a clean stop, 1 if
/// it cannot start, 2 if the flags are wrong.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    printable::escape_panics();
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(ours) = foreign::named(args.iter().skip(1).filter_map(|word| word.to_str())) {
        let _ = io::stderr().write_all(format!("error: {}\n", printable::page(&ours)).as_bytes());
        return ExitCode::from(2);
    }
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            let error = command_line(error, &Args::command());
            return print_usage(&error);
        }
    };
    let done = args.config().map_err(|e| e.to_string()).and_then(|config| {
        if args.check {
            return check(&config);
        }
        let log = Log::start(&config);
        run(&args, config, &log).map_err(|e| e.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let line = format!("orind: {}\n", printable::page(&without_codes(&message)));
            let _ = io::stderr().write_all(line.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Checks what a start would need, without listening or loading.
fn check(config: &Config) -> Result<(), String> {
    let mut text = toml::to_string(config).map_err(|e| e.to_string())?;
    if !config.token_file.as_os_str().is_empty() {
        Token::read(&config.token_file).map_err(|e| e.to_string())?;
    }
    text.push_str("\n# The configuration is valid. ");
    match config.model.as_str() {
        "" => text.push_str("Model: none at start.\n"),
        name => {
            let request = LoadRequest { model: name.to_owned(), ..LoadRequest::default() };
            text.push_str(&describe_load(name, config, request)?);
        }
    }
    for resident in &config.resident {
        let id = resident.id(&config.models_dir);
        let description = describe_load(&resident.model, config, server::load_request(resident))
            .map_err(|error| format!("resident `{id}`: {error}"))?;
        // Writing to a string cannot fail.
        let _ = write!(text, "# Additional model `{id}`. {description}");
    }
    io::stdout().write_all(printable::page(&text).as_bytes()).map_err(|e| e.to_string())
}

/// Describes the model that a load would use, and its memory.
fn describe_load(name: &str, config: &Config, request: LoadRequest) -> Result<String, String> {
    let model =
        engine::check(&server::load_spec(config, request)).map_err(|error| error.to_string())?;
    let ModelInfo { path, parameters, bytes, slots, context, .. } = &model;
    let DeviceMemory { weights, kv, activations, .. } = model.memory;
    let (file, random) = match model.synthetic {
        true => (name.to_owned(), ", seeded random weights"),
        false => (path.display().to_string(), ""),
    };
    Ok(format!(
        "Model: {file}, {parameters} parameters, {bytes} bytes of weights{random}.\n\
         # {slots} slots of {context} tokens on {}: {} ({}).\n\
         # Memory: {weights} bytes for weights, {kv} for the KV cache, {activations} for activations.\n",
        model.device.name, model.device.description, model.device.reason,
    ))
}

/// Serves until a signal arrives or the parent process ends.
fn run(args: &Args, config: Config, log: &Log) -> Result<(), Error> {
    if config.tune_dir.is_absolute() {
        device::enable_kernel_cache(config.tune_dir.join(config::COMPILED));
    }
    // Must run while this is the only thread and before the filter: the kernel grants AMX registers
    // per request.
    let isa = Isa::detect();
    tracing::debug!(%isa, "the CPU's instruction set");
    let inherited = service::inherited().map_err(Error::system("take the service's socket"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(Error::system("start the I/O threads"))?;
    let result = runtime.block_on(serve(args, config, inherited, log));
    runtime.shutdown_background();
    result
}

async fn serve(
    args: &Args,
    config: Config,
    inherited: Option<UnixListener>,
    log: &Log,
) -> Result<(), Error> {
    // Handle signals before the socket exists, so that no signal leaves it behind.
    let mut signals =
        Signals::new(args.config.is_some()).map_err(Error::system("listen to signals"))?;
    let parent = args
        .exit_with_parent
        .map(Parent::watch)
        .transpose()
        .map_err(Error::system("watch the parent"))?;
    let (listener, claim) = match inherited {
        // The creator of the socket removes it.
        Some(listener) => (listener, None),
        None => {
            let (listener, claim) = socket::claim(&config.socket, config.socket_mode)?;
            (listener, Some(claim))
        }
    };
    let unix = tokio::net::UnixListener::from_std(listener)
        .map_err(Error::system("listen on the socket"))?;
    let tcp = open_port(&config).await?;
    let engine = Handle::start(Settings { queue_limit: config.queue_limit })
        .map_err(Error::system("start the engine thread"))?;

    install_filter(&config, &engine)?;

    let request = LoadRequest { model: config.model.clone(), ..LoadRequest::default() };
    let first = (!config.model.is_empty()).then(|| server::load_spec(&config, request));
    let handed_over = claim.is_none();
    let needs_model = args.needs_model(handed_over || service::is_managed());
    let model = config.model.clone();
    tracing::info!(socket = %config.socket.display(), handed_over, version = env!("CARGO_PKG_VERSION"), "listening");
    let app =
        App::new(engine, config, COMMIT).map_err(Error::system("start the engines' threads"))?;
    let lanes = open_lanes(&app)?;
    // Status and log report the progress of the load.
    let first = first.map(|spec| app.load(spec));
    let stop = Stop::default();
    let server =
        tokio::spawn(server::serve(Listeners { unix, tcp }, Arc::clone(&app), stop.clone()));

    let mut service = Service::new(Arc::clone(&app), first.is_some());
    let until = Supervisor { args, app: Arc::clone(&app), log, signals: &mut signals, needs_model };
    let stopped = until.stop(&mut service, parent, first).await;
    let deadline = Duration::from_secs(app.config().shutdown_deadline_s);
    let result = match stopped {
        Ok(End::Requested(why)) => {
            // Write the log line after the engines are marked as stopping.
            app.engines().iter().for_each(Handle::stopping);
            tracing::info!(why, ?deadline, "stopping");
            Ok(())
        }
        Ok(End::NoModel(error)) => Err(Error::NoModel { model, error }),
        // Every request has failed already; only a new process can help.
        Err(EngineGone) => return Err(Error::EngineGone),
    };
    service.stopping(deadline);
    stop.drain();
    let drained = async {
        // A panic in this thread must not keep the daemon alive.
        let stop_all = move || {
            std::thread::scope(|scope| {
                for engine in app.engines() {
                    scope.spawn(move || engine.stop(deadline));
                }
            });
        };
        let _ = tokio::task::spawn_blocking(stop_all).await;
        stop.close();
        if let Ok(connections) = server.await {
            connections.drain(FLUSH).await;
        }
    };
    tokio::select! {
        () = drained => {}
        signal = signals.second_stop() => {
            tracing::warn!(signal, "second signal: exiting at once");
            drop((claim, lanes));
            std::process::exit(1);
        }
    }
    drop((claim, lanes));
    tracing::info!("stopped");
    result
}

/// Opens the socket of the control loops, if any are configured.
fn open_lanes(app: &App) -> Result<Option<socket::Claim>, Error> {
    let (lanes, config) = (app.control_loops(), app.config());
    if lanes.is_empty() {
        return Ok(None);
    }
    let path = control_loops::socket(&config.socket);
    let (listener, claim) = socket::claim(&path, config.socket_mode)?;
    ControlLoopServer::open(lanes, listener).map_err(Error::system("serve the lanes"))?;
    tracing::info!(socket = %path.display(), "listening for clients of lanes");
    Ok(Some(claim))
}

/// Reason for the end of the daemon.
enum End {
    Requested(&'static str),
    NoModel(LoadError),
}

async fn open_port(config: &Config) -> Result<Option<Port>, Error> {
    let Some(address) = config.port()? else { return Ok(None) };
    let token = match config.token_file.as_os_str().is_empty() {
        true => None,
        false => Some(Token::read(&config.token_file)?),
    };
    let with_token = token.is_some();
    let port = Port::open(address, token).await?;
    if let Ok(address) = port.address() {
        tracing::info!(%address, with_token, "listening on TCP");
    }
    Ok(Some(port))
}

/// Restricts the ioctls of this process before it reads any input from outside.
fn install_filter(config: &Config, engine: &Handle) -> Result<(), Error> {
    if !filter::wanted(config) {
        tracing::info!("ioctls are not filtered");
        return Ok(());
    }
    match filter::install() {
        Ok(()) => {
            tracing::debug!(requests = filter::requests().count(), "ioctls are filtered");
            engine.disable(
                "cuda",
                "the ioctl filter is on and does not allow the requests of the CUDA driver; see ioctl_filter",
            );
            Ok(())
        }
        Err(error) if config.ioctl_filter == IoctlFilter::Auto => {
            tracing::warn!(%error, "ioctls are not filtered");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

struct Supervisor<'a> {
    args: &'a Args,
    app: Arc<App>,
    log: &'a Log,
    signals: &'a mut Signals,
    /// Stop if the model at start cannot be loaded.
    needs_model: bool,
}

impl Supervisor<'_> {
    /// Waits until the daemon must stop, and returns the reason.
    async fn stop(
        self,
        service: &mut Service,
        parent: Option<Parent>,
        first: Option<UnboundedReceiver<LoadEvent>>,
    ) -> Result<End, EngineGone> {
        let mut orphaned = std::pin::pin!(parent_ended(parent));
        let mut loaded = std::pin::pin!(async {
            let failed = load_error(first).await;
            if failed.is_none() || !self.needs_model {
                self.app.load_additional_models().await;
            }
            failed
        });
        let mut starting = true;
        let mut trimmer = HeapTrimmer::new();
        let mut ticks = tokio::time::interval(service.interval());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = self.signals.next() => match event {
                    SignalEvent::Stop(signal) => return Ok(End::Requested(signal)),
                    SignalEvent::Reload => service.reload(|| reload(self.args, &self.app, self.log)),
                },
                () = &mut orphaned => return Ok(End::Requested("the parent is gone")),
                failed = &mut loaded, if starting => match failed {
                    Some(error) if self.needs_model => return Ok(End::NoModel(error)),
                    _ => {
                        starting = false;
                        service.started()?;
                    }
                },
                _ = ticks.tick() => {
                    trimmer.tick();
                    service.tick()?;
                }
            }
        }
    }
}

/// Waits for the end of a load, if there is one, and returns its error.
async fn load_error(load: Option<UnboundedReceiver<LoadEvent>>) -> Option<LoadError> {
    server::wait_for_load(&mut load?).await.err()
}

/// Applies configuration changes that need no restart. A configuration with an error changes
/// nothing.
fn reload(args: &Args, app: &App, log: &Log) {
    let new = match args.config() {
        Ok(new) => new,
        Err(error) => {
            tracing::error!(%error, "the configuration is unchanged");
            return;
        }
    };
    let old = app.config();
    let changes = old.changes(&new);
    for change in &changes {
        let config::Change { key, from, to, effect } = change;
        match effect {
            Effect::Now => tracing::info!(key, from, to, "reloaded"),
            Effect::NextLoad => tracing::info!(key, from, to, "reloaded, for the next load"),
            Effect::Restart => {
                tracing::warn!(key, from, to, "needs a restart; unchanged until then");
            }
        }
    }
    if changes.is_empty() {
        tracing::info!("the configuration was reloaded: no changes");
    }
    let new = old.reloaded(new);
    log.set(&new.log);
    app.reload(new);
}

/// Rewrites clap's error about an invalid value in plain words.
#[must_use]
pub fn command_line(error: clap::Error, command: &clap::Command) -> clap::Error {
    use clap::error::{ContextKind, ErrorKind};
    use std::error::Error as _;

    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let Some(why) = error.source().and_then(|source| invalid::number(&source.to_string())) else {
        return error;
    };
    let (value, flag) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg));
    let message = format!("{flag}: is '{}', {why}\n", invalid::excerpt(&value));
    clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
}

/// Prints clap's error, or the help text, and returns the exit code. If an argument has control
/// characters, prints without colours, and indents all lines but the first: an argument cannot pass for
/// a line of this program.
pub fn print_usage(error: &clap::Error) -> ExitCode {
    let has_control = |word: OsString| word.to_string_lossy().contains(printable::is_control);
    // The error cannot be reported either if printing it fails.
    let _ = if std::env::args_os().any(has_control) {
        let text = error.render().to_string().trim_end().replace('\n', "\n  ");
        io::stderr().write_all((printable::page(&text) + "\n").as_bytes())
    } else {
        error.print()
    };
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
