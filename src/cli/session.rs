//! Connection of a command to a daemon: the one on the socket, or a private one.

use std::path::Path;
use std::time::Duration;

use super::args::{Connection, ModelChoice};
use super::error::Error;
use super::names;
use super::pull::pulled;
use super::terminal::Terminal;
use api::client::private::{self, Private};
use api::client::{self, Client};
use api::{LoadRequest, Model, State};

/// Default model: small enough for any machine.
pub(super) const DEFAULT_MODEL: &str = "synthetic:qwen3-0.6b:q8_0";

/// Slots and context that a private daemon reserves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) slots: usize,
    /// Tokens per slot; `None` uses the daemon's default.
    pub(super) context: Option<usize>,
}

pub(super) struct Session {
    pub(super) client: Client,
    pub(super) private: Option<Private>,
    pub(super) model: Model,
    /// Time from the start of a private daemon until its model was ready.
    pub(super) loaded_after: Option<Duration>,
    /// True if the synthetic model's file was created first.
    pub(super) synthesised: bool,
    /// True if the model is an additional one, not the daemon's first.
    pub(super) beside: bool,
}

/// A daemon, independent of its loaded model.
pub(super) struct Daemon {
    pub(super) client: Client,
    /// Stops the private daemon on drop.
    pub(super) _private: Option<Private>,
}

impl Daemon {
    /// Connects to the daemon on the socket; without one, or if `private` is set, starts a private
    /// daemon without a model.
    pub(super) async fn open(connection: &Connection, private: bool) -> Result<Self, Error> {
        if !private {
            let client = connection.client()?;
            match client.status().await {
                Ok(_) => return Ok(Self { client, _private: None }),
                Err(client::Error::NotRunning { .. }) if !connection.is_remote() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let private = Private::start(private::OWN.as_ref()).await?;
        Ok(Self { client: private.client.clone(), _private: Some(private) })
    }
}

impl Session {
    /// Connects to the daemon on the socket, or starts a private one with the model.
    pub(super) async fn open(
        connection: &Connection,
        choice: &ModelChoice,
        room: Room,
        terminal: &Terminal,
    ) -> Result<Self, Error> {
        if choice.private {
            return Self::private(choice, room, terminal).await;
        }
        let client = connection.client()?;
        let daemon = client.daemon.clone();
        let status = match client.status().await {
            Ok(status) => status,
            // With a remote address the user meant that machine.
            Err(client::Error::NotRunning { .. }) if !connection.is_remote() => {
                let model = choice.model.as_deref().unwrap_or(DEFAULT_MODEL);
                terminal.print_line(&format!(
                    "no daemon on {daemon}: starting a private one with {model}"
                ));
                return Self::private(choice, room, terminal).await;
            }
            Err(error) => return Err(error.into()),
        };
        if choice.backend.is_some() || choice.threads.is_some() || choice.cpu_isa.is_some() {
            return Err(Error::Usage(format!(
                "--backend, --threads and --cpu-isa apply to a private daemon, but one runs on {daemon}; add --private, or reload the model with `orinctl load`"
            )));
        }
        let wanted = choice.model.as_deref().map(|model| connection.model(model)).transpose()?;
        let mut beside = status.residents.iter();
        if let Some(one) = beside.find(|one| Some(&one.name) == choice.model.as_ref()) {
            let model = match one.model.clone() {
                Some(model) => model,
                None => {
                    let request = LoadRequest { model: one.name.clone(), ..LoadRequest::default() };
                    load(&client, &request, terminal).await?.0
                }
            };
            let (private, loaded_after) = (None, None);
            return Ok(Self {
                client,
                private,
                model,
                loaded_after,
                synthesised: false,
                beside: true,
            });
        }
        match (status.model, status.state) {
            (Some(model), State::Ready | State::Exclusive { .. }) => {
                if let Some(wanted) = wanted.filter(|wanted| !is(&model, wanted)) {
                    return Err(Error::OtherModel { loaded: model.id, wanted, daemon });
                }
                let (private, loaded_after) = (None, None);
                Ok(Self { client, private, model, loaded_after, synthesised: false, beside: false })
            }
            _ => Err(Error::NoModel { daemon }),
        }
    }

    /// Model name that requests must contain, if any, to reach this model.
    pub(super) fn named(&self) -> Option<String> {
        self.private.is_none().then(|| self.model.id.clone())
    }

    /// Starts a private daemon and loads the model in it.
    pub(super) async fn private(
        choice: &ModelChoice,
        room: Room,
        terminal: &Terminal,
    ) -> Result<Self, Error> {
        Self::of(private::OWN.as_ref(), choice, room, terminal).await
    }

    /// Starts a private daemon from another build of `orinctl`.
    pub(super) async fn of(
        program: &Path,
        choice: &ModelChoice,
        room: Room,
        terminal: &Terminal,
    ) -> Result<Self, Error> {
        // Before the daemon starts, because its error would come later and with its log.
        let named = choice.model.as_deref().unwrap_or(DEFAULT_MODEL);
        let model = absolute(&names::resolve(named)?)?;
        let mut private = Private::start(program).await?;
        let request = LoadRequest {
            model,
            backend: choice.backend,
            slots: Some(room.slots),
            context: room.context,
            prefill_chunk: None,
            threads: choice.threads,
            cpu_isa: choice.cpu_isa,
            ..LoadRequest::default()
        };
        let (model, synthesised) = load_in(&mut private, &request, terminal).await?;
        let loaded_after = Some(private.started.elapsed());
        let client = private.client.clone();
        let private = Some(private);
        Ok(Self { client, private, model, loaded_after, synthesised, beside: false })
    }
}

/// Loads a model in a private daemon. If the daemon ends meanwhile, returns its error instead of
/// the connection's.
pub(super) async fn load_in(
    private: &mut Private,
    request: &LoadRequest,
    terminal: &Terminal,
) -> Result<(Model, bool), Error> {
    match load(&private.client, request, terminal).await {
        Err(error @ Error::Client(client::Error::Transport(_))) => {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Err(private.ended().map_or(error, Error::from))
        }
        loaded => loaded,
    }
}

/// Loads a model and shows the progress; returns true if a synthetic model's file was created.
pub(super) async fn load(
    client: &Client,
    request: &LoadRequest,
    terminal: &Terminal,
) -> Result<(Model, bool), Error> {
    let live = terminal.bytes();
    let mut synthesised = false;
    let on_progress = |progress: api::LoadProgress| {
        synthesised |= progress.phase == "synthesise";
        let message = match progress.phase.as_str() {
            "synthesise" => "creating model",
            "load" => "loading",
            "unload" => "unloading the other model",
            other => other,
        };
        if let Some(why) = progress.why {
            live.print_line(terminal, &why);
        }
        live.set(progress.done, progress.total, message);
    };
    let model = client.load(request, on_progress).await?;
    Ok((model, synthesised))
}

/// Makes a path absolute, for a daemon with another working directory; also resolves the name of a
/// downloaded model. Other names are unchanged.
pub(super) fn absolute(model: &str) -> Result<String, Error> {
    if let Some(pulled) = pulled(model)? {
        return Ok(pulled.display().to_string());
    }
    let path = Path::new(model);
    if model.starts_with("synthetic:") || !(model.contains('/') || path.is_file()) {
        return Ok(model.to_owned());
    }
    let absolute = std::path::absolute(path);
    Ok(absolute.map_or_else(|_| model.to_owned(), |path| path.display().to_string()))
}

/// Returns whether the loaded model matches by id, file or file name.
fn is(model: &Model, wanted: &str) -> bool {
    let path = Path::new(wanted);
    let same_file =
        || matches!((path.canonicalize(), model.path.canonicalize()), (Ok(a), Ok(b)) if a == b);
    wanted.eq_ignore_ascii_case(&model.id) || path == model.path || same_file()
}
