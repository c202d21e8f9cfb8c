//! `orinctl models`, `load`, `unload` and `socket`.

use std::fmt::Write as _;
use std::path::Path;

use super::args::{self, Connection};
use super::error::Error;
use super::install::CONFIG;
use super::names;
use super::session;
use super::status::{describe, resident};
use super::terminal::Terminal;
use super::text;
use api::client::{self, Address};
use api::{Available, LoadRequest, Models};
use config::{Config, LoadOptions};
use errors::printable;
use model::synthetic;

/// Name of a synthetic model in the line about these.
const EXAMPLE: &str = "synthetic:llama-3.2-1b:q4_k_m";

pub(super) async fn list(connection: &Connection, args: &args::Json) -> Result<(), Error> {
    let client = connection.client()?;
    let here = matches!(client.daemon, Address::Socket(_));
    let (mut models, runs) = match client.models().await {
        Ok(models) => (models, true),
        Err(client::Error::NotRunning { .. }) if here => (without_daemon(), false),
        Err(error) => return Err(error.into()),
    };
    if here {
        let first_synthetic = models.available.iter().position(|one| one.synthetic);
        let at = first_synthetic.unwrap_or(models.available.len());
        models.available.splice(at..at, names::downloaded());
    }
    text::show(&models, args.json, |models| table(models, runs))
}

/// Models on this machine: those of the models directory, and of the service's configuration.
fn without_daemon() -> Models {
    let service = Config::read(Path::new(CONFIG)).unwrap_or_default();
    let models_dir = service.models_dir.clone();
    let mut available = names::files_in(&models_dir);
    for (name, model) in names::configured_models(&service) {
        let file = Path::new(&synthetic::resolve(&model, &models_dir)).to_owned();
        let listed = file.parent() == Some(&*models_dir);
        if let Ok(about) = file.metadata()
            && !listed
        {
            let bytes = Some(about.len());
            available.push(Available { model: name, bytes, synthetic: false, why: None });
        }
    }
    let synthetic = synthetic::names().into_iter();
    available.extend(synthetic.map(|model| Available {
        model,
        bytes: None,
        synthetic: true,
        why: None,
    }));
    Models { loaded: None, residents: Vec::new(), models_dir, available }
}

fn table(models: &Models, runs: bool) -> String {
    let nothing = if runs { "nothing" } else { "nothing, no daemon runs" };
    let mut out = models.loaded.as_ref().map_or_else(|| nothing.into(), describe);
    for one in &models.residents {
        let what = one.model.as_ref().map_or_else(|| resident(one), describe);
        let _ = write!(out, "\nalso: {what}");
    }
    let row = |model: &Available| {
        let why = model.why.as_ref().map(|why| format!("cannot be loaded: {why}"));
        let size = model.bytes.map(text::bytes).unwrap_or_default();
        vec![format!("  {}", printable::line(&model.model)), size, why.unwrap_or_default()]
    };
    let rows: Vec<Vec<String>> =
        models.available.iter().filter(|model| !model.synthetic).map(row).collect();
    let dir = models.models_dir.display();
    let _ = match rows.is_empty() {
        true => write!(
            out,
            "\non this machine: no model, in {dir} or downloaded; `orinctl pull NAME` downloads one\n"
        ),
        false => {
            write!(
                out,
                "\non this machine, in {dir} or downloaded:\n{}",
                text::columns(&rows, &[1])
            )
        }
    };
    let synthetic = models.available.iter().filter(|model| model.synthetic).count();
    let _ = writeln!(
        out,
        "{synthetic} synthetic models need no file, such as {EXAMPLE}; --json lists them"
    );
    format!("loaded: {out}")
}

/// Prints the path of the daemon's socket, for other programs to connect to.
pub(super) fn socket(connection: &Connection) -> Result<(), Error> {
    match connection.client()?.daemon {
        Address::Socket(path) => text::print(&format!("{}\n", path.display())),
        Address::Port { .. } => Err(Error::Usage("--tcp names a port, not a socket".into())),
    }
}

pub(super) async fn load(
    connection: &Connection,
    args: &args::Load,
    terminal: &Terminal,
) -> Result<(), Error> {
    let given = args.options.options();
    let lora = given.lora.as_ref().map(|all| all.iter().map(|one| connection.adapter(one)));
    let options = LoadOptions {
        draft_model: given
            .draft_model
            .as_deref()
            .map(|draft| connection.model(draft))
            .transpose()?,
        lora: lora.map(Iterator::collect::<Result<_, _>>).transpose()?,
        ..given
    };
    let request = LoadRequest {
        model: connection.model(&args.model)?,
        name: args.name.clone(),
        beside: args.beside,
        ..LoadRequest::default()
    }
    .with_options(options);
    let (model, _) = session::load(&connection.client()?, &request, terminal).await?;
    text::page(&format!(
        "{}\nloaded in {:.2} s on {}, {} slots of {} tokens\n",
        describe(&model),
        model.load_s,
        model.device.name,
        model.slots,
        model.context
    ))
}

pub(super) async fn unload(connection: &Connection, args: &args::Unload) -> Result<(), Error> {
    let unloaded = connection.client()?.unload(args.model.as_deref()).await?;
    text::print(if unloaded { "unloaded\n" } else { "nothing was loaded\n" })
}
