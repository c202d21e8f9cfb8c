//! `orinctl models`, `load`, `unload` and `socket`.

use std::fmt::Write as _;

use super::args::{self, Connection};
use super::error::Error;
use super::session;
use super::status::{describe, resident};
use super::terminal::Terminal;
use super::text;
use api::client::Address;
use api::{Available, LoadRequest};
use config::LoadOptions;
use errors::printable;

pub(super) async fn list(connection: &Connection, args: &args::Json) -> Result<(), Error> {
    let models = connection.client()?.models().await?;
    text::show(&models, args.json, |models| {
        let mut loaded = models.loaded.as_ref().map_or_else(|| "nothing".into(), describe);
        for one in &models.residents {
            let what = one.model.as_ref().map_or_else(|| resident(one), describe);
            let _ = write!(loaded, "\nalso: {what}");
        }
        let row = |model: &Available| {
            let size = model.bytes.map_or_else(|| "created on first load".into(), text::bytes);
            let why = model.why.as_ref().map(|why| format!("cannot be loaded: {why}"));
            vec![format!("  {}", printable::line(&model.model)), size, why.unwrap_or_default()]
        };
        let rows: Vec<Vec<String>> = models.available.iter().map(row).collect();
        format!(
            "loaded: {loaded}\navailable in {} and by name:\n{}",
            models.models_dir.display(),
            text::columns(&rows, &[1])
        )
    })
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
