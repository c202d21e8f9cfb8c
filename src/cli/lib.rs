//! `orinctl`: one file per subcommand. Commands use the daemon through [`api::client`], never the
//! engine directly. Results are written to standard output, everything else to standard error. Without a
//! daemon, `bench`, `generate` and `chat` start a private one and stop it at the end.

mod args;
mod bench;
mod chat;
mod compare;
mod connection;
mod device;
mod doctor;
mod error;
mod estimate;
mod fingerprint;
mod first_contact;
mod foreign;
mod gate;
mod generate;
mod health;
mod history;
mod install;
mod launch;
mod machine;
mod manual;
mod models;
mod names;
mod ops;
mod parity;
mod plan;
mod profile;
mod ps;
mod pull;
mod quality;
mod quantize;
mod rm;
mod run;
mod serve;
mod session;
mod show;
mod status;
mod sweep;
mod terminal;
mod text;
mod top;
mod tune;
mod usage;
mod verify;
mod wrap;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use args::{Args, Command, TuneCommand};
use error::Error;
use terminal::Terminal;

pub fn main() -> ExitCode {
    errors::printable::escape_panics();
    let args = match Args::read() {
        Ok(args) => args,
        Err(error) => return daemon::print_usage(&error),
    };
    let terminal = Terminal::new();
    ::device::enable_kernel_cache(config::default_tune_dir().join(config::COMPILED));
    let result = match args.command {
        Command::Daemon(arguments) => return become_daemon(arguments),
        Command::Install(install) => install::install(&install).map_err(Error::from),
        Command::Uninstall(uninstall) => install::uninstall(&uninstall).map_err(Error::from),
        Command::Doctor(doctor) => match interruptible(doctor::run(&args.connection, &doctor)) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Plan(plan) => plan::run(&plan, &terminal),
        Command::Profile(profile) => profile::run(&profile, &terminal),
        Command::Experiment(experiment) => {
            return tegra_probe::child(&experiment.name, fingerprint::experiment);
        }
        Command::FirstContact(contact) => first_contact::run(&contact, &terminal),
        Command::Parity(parity) => parity::run(&parity, &terminal),
        Command::Run(task) if task.is_language_model() => {
            let connection = &args.connection;
            match task.question() {
                Ok(Some(asked)) => interruptible(generate::run(connection, &asked, &terminal)),
                Ok(None) => on_runtime(chat::run(connection, &task.chat(), &terminal)),
                Err(error) => Err(error),
            }
        }
        Command::Run(task) => run::run(&args.connection, &task, &terminal),
        Command::Launch(task) => {
            match on_runtime(launch::run(&args.connection, &task, &terminal)) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Fingerprint(fingerprint) => fingerprint::run(&fingerprint, &terminal),
        Command::Perplexity(task) => stoppable(|s| quality::perplexity(&task, &terminal, s)),
        Command::Kld(task) => stoppable(|s| quality::divergence(&task, &terminal, s)),
        Command::Quantize(task) => stoppable(|s| quantize::run(&task, &terminal, s)),
        Command::Bench(bench) if bench.serve.serve => {
            started(|interrupted| serve::run(&args.connection, &bench, &terminal, interrupted))
        }
        Command::Pull(task) => started(|interrupted| pull::run(task, &terminal, interrupted)),
        Command::Compare(compare) => {
            started(|interrupted| compare::run(&compare, &terminal, interrupted))
        }
        Command::Sweep(sweep) => started(|interrupted| sweep::run(&sweep, &terminal, interrupted)),
        Command::Bench(bench) => {
            match interruptible(bench::run(&args.connection, &bench, &terminal)) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Verify(verify) => match verify::run(&verify) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::History(history) => history::run(&history, &terminal),
        Command::Generate(generate) => {
            interruptible(generate::run(&args.connection, &generate, &terminal))
        }
        Command::Chat(chat) => on_runtime(chat::run(&args.connection, &chat, &terminal)),
        Command::Completions(completions) => manual::completions(&completions),
        Command::Man(man) => manual::man(&man),
        Command::Status(status) => interruptible(status::run(&args.connection, &status)),
        Command::Health => interruptible(health::run(&args.connection)),
        Command::Top(top) => interruptible(top::run(&args.connection, &top)),
        Command::Models(models) => interruptible(models::list(&args.connection, &models)),
        Command::Load(load) => interruptible(models::load(&args.connection, &load, &terminal)),
        Command::Tune(tune) => match &tune.command {
            None => started(|interrupted| {
                tune::search::run(&args.connection, &tune.search, false, &terminal, interrupted)
            }),
            Some(TuneCommand::Verify(verify)) => started(|interrupted| {
                tune::search::run(&args.connection, verify, true, &terminal, interrupted)
            }),
            Some(TuneCommand::Sweep(sweep)) => {
                interruptible(tune::sweep::run(&args.connection, sweep, &terminal))
            }
            Some(TuneCommand::Show(show)) => tune::store::show(show),
            Some(TuneCommand::Export(export)) => tune::store::export(export, &terminal),
            Some(TuneCommand::Import(import)) => tune::store::import(import),
            Some(TuneCommand::Diff(diff)) => tune::store::diff(diff),
        },
        Command::Ps(ps) => interruptible(ps::run(&args.connection, &ps)),
        Command::Show(show) => interruptible(show::run(&args.connection, &show)),
        Command::Rm(rm) => interruptible(rm::run(&args.connection, &rm)),
        Command::Socket => models::socket(&args.connection),
        Command::Unload(unload) => interruptible(models::unload(&args.connection, &unload)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.error(&error);
            error.exit_code()
        }
    }
}

/// Turns this process into a private daemon.
fn become_daemon(arguments: args::Daemon) -> ExitCode {
    let name = std::ffi::OsString::from("orind");
    daemon::main(std::iter::once(name).chain(arguments.arguments))
}

/// Runs a command to its end or until Ctrl-C, SIGTERM or SIGHUP. Then its resources are dropped as
/// usual: a private daemon stops, a running request is cancelled.
fn interruptible<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    started(|interrupted| until(interrupted, work))
}

/// Runs a future unless it is interrupted.
async fn until<T>(
    interrupted: Arc<Notify>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::select! {
        result = work => result,
        () = interrupted.notified() => Err(Error::Interrupted),
    }
}

/// Runs blocking work unless it is interrupted; then the thread ends with the program.
async fn blocking<T: Send + 'static>(
    interrupted: &Arc<Notify>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    until(Arc::clone(interrupted), async {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(ended) => std::panic::resume_unwind(ended.into_panic()),
        }
    })
    .await
}

/// Runs a command that polls a flag set by Ctrl-C, SIGTERM and SIGHUP; the second signal ends the
/// program.
fn stoppable(work: impl FnOnce(&AtomicBool) -> Result<(), Error>) -> Result<(), Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    on_interrupt(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    work(&stop)
}

fn on_interrupt(handler: impl FnMut() + Send + 'static) -> Result<(), Error> {
    ctrlc::set_handler(handler)
        .map_err(|e| Error::Setup { what: "handling Ctrl-C", source: std::io::Error::other(e) })
}

/// Runs a command that is notified of Ctrl-C, SIGTERM and SIGHUP.
fn started<T, F: Future<Output = Result<T, Error>>>(
    work: impl FnOnce(Arc<Notify>) -> F,
) -> Result<T, Error> {
    let interrupted = Arc::new(Notify::new());
    let notify = Arc::clone(&interrupted);
    on_interrupt(move || notify.notify_one())?;
    on_runtime(work(interrupted))
}

/// Runs a command that talks to a daemon.
fn on_runtime<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    // A single thread: a private daemon is notified when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Setup { what: "starting the I/O runtime", source })?;
    let result = runtime.block_on(work);
    // Do not wait for blocking work such as reading from a terminal.
    runtime.shutdown_background();
    result
}
