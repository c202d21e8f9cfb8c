//! `orinctl launch`: runs a client of language models on the daemon. `programs` has what each
//! client needs, `forward` the port through which it reaches the daemon's socket.

mod forward;
mod programs;

use std::ffi::OsString;
use std::process::ExitCode;

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{self, Connection, ModelChoice};
use super::error::Error;
use super::pull::quoted;
use super::session::{Room, Session};
use super::terminal::Terminal;
use super::text;
use api::client::Address;
use forward::Forwarder;
use programs::Settings;

/// Slots of a private daemon: agents ask for a title or a summary while they work.
const SLOTS: usize = 2;
/// Address in the output of `--print`, unless `--tcp` names one.
const PRINTED: &str = "127.0.0.1:8080";
/// Key for a daemon that needs none; clients refuse an empty one.
const NO_KEY: &str = "none";

pub(super) async fn run(
    connection: &Connection,
    args: &args::Launch,
    terminal: &Terminal,
) -> Result<ExitCode, Error> {
    let [program, arguments @ ..] = &args.command[..] else {
        return Err(Error::Usage("name a program".into()));
    };
    let key = connection.key()?.unwrap_or_else(|| NO_KEY.to_owned());
    if args.print {
        let address = connection.tcp.as_deref().unwrap_or(PRINTED);
        let (model, context) = match &args.model.model {
            Some(model) => (model.clone(), args.context),
            None => first_model(connection).await?,
        };
        let url = format!("http://{address}");
        let settings = Settings::of(&name(program), &url, &key, &model, context);
        if connection.tcp.is_none() {
            terminal.print_line(&format!(
                "these need `listen = \"{PRINTED}\"` in orind.toml; --tcp prints another address"
            ));
        }
        text::print(&printed(&settings, program, arguments))?;
        return Ok(ExitCode::SUCCESS);
    }
    let session = open(connection, args, terminal).await?;
    warn_about_context(&session, &name(program), terminal);
    let forwarder = match &session.client.daemon {
        Address::Socket(socket) => {
            Some(Forwarder::bind(socket.clone()).await.map_err(|source| Error::Setup {
                what: "opening a port of this machine",
                source,
            })?)
        }
        Address::Port { .. } => None,
    };
    let url = match (&forwarder, &connection.tcp) {
        (Some(forwarder), _) => forwarder.url(),
        (None, address) => format!("http://{}", address.as_deref().unwrap_or(PRINTED)),
    };
    let settings =
        Settings::of(&name(program), &url, &key, &session.model.id, Some(session.model.context));
    let mut command = Command::new(program);
    command.args(&settings.arguments).args(arguments).envs(settings.variables);
    for name in &settings.removed {
        command.env_remove(name);
    }
    let child = command
        .spawn()
        .map_err(|source| Error::Program { program: program.display().to_string(), source })?;
    let forwarding = async {
        match &forwarder {
            Some(forwarder) => forwarder.serve().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = wait(child) => ended,
        () = forwarding => Err(Error::Usage("the port of this machine was closed".into())),
    }
}

/// Opens the daemon on the socket or a private one.
async fn open(
    connection: &Connection,
    args: &args::Launch,
    terminal: &Terminal,
) -> Result<Session, Error> {
    let room = Room { slots: SLOTS, context: args.context };
    Session::open(connection, &args.model, room, terminal).await
}

/// Returns id and context length of the daemon's first model.
async fn first_model(connection: &Connection) -> Result<(String, Option<usize>), Error> {
    let client = connection.client()?;
    let model = client.status().await?.model;
    let model = model.ok_or(Error::NoModel { daemon: client.daemon })?;
    Ok((model.id, Some(model.context)))
}

/// File name of a program without its folder.
fn name(program: &OsString) -> String {
    let path = std::path::Path::new(program);
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn warn_about_context(session: &Session, program: &str, terminal: &Terminal) {
    let (has, needs) = (session.model.context, programs::context(program));
    if has < needs {
        let id = &session.model.id;
        terminal.print_line(&format!(
            "warning: {program} needs a context of about {needs} tokens, a slot of {id} has {has}; \
             `orinctl load {id} --context {needs}` loads it with more"
        ));
    }
}

/// Formats variables and command for a shell.
fn printed(settings: &Settings, program: &OsString, arguments: &[OsString]) -> String {
    let mut lines: Vec<String> =
        settings.removed.iter().map(|name| format!("unset {name}")).collect();
    let export = |(name, value): &(&str, String)| format!("export {name}={}", quoted(value));
    lines.extend(settings.variables.iter().map(export));
    let words = std::iter::once(program.to_string_lossy().into_owned());
    let given = arguments.iter().map(|word| word.to_string_lossy().into_owned());
    let words = words.chain(settings.arguments.iter().cloned()).chain(given);
    lines.push(words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" "));
    lines.join("\n") + "\n"
}

/// Waits for the program. The terminal sends Ctrl-C to it too, so it decides; other signals are
/// passed on.
async fn wait(mut child: Child) -> Result<ExitCode, Error> {
    let handled =
        |kind| signal(kind).map_err(|source| Error::Setup { what: "handling signals", source });
    let mut interrupt = handled(SignalKind::interrupt())?;
    let mut terminate = handled(SignalKind::terminate())?;
    let mut hangup = handled(SignalKind::hangup())?;
    loop {
        let passed = tokio::select! {
            status = child.wait() => {
                let code = status?.code().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
            _ = interrupt.recv() => continue,
            _ = terminate.recv() => nix::sys::signal::Signal::SIGTERM,
            _ = hangup.recv() => nix::sys::signal::Signal::SIGHUP,
        };
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id {
            // It may have ended meanwhile.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), passed);
        }
    }
}

impl ModelChoice {
    /// Choice of a model by name alone.
    pub(super) fn named(model: Option<String>) -> Self {
        Self { model, private: false, backend: None, threads: None, cpu_isa: None }
    }
}
