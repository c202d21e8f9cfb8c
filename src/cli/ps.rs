//! `orinctl ps`: the loaded models, one line each.

use api::{Loading, Model, Models, Resident, State, Status};
use errors::printable;

use super::args::{self, Connection};
use super::error::Error;
use super::text;

pub(super) async fn run(connection: &Connection, args: &args::Json) -> Result<(), Error> {
    let client = connection.client()?;
    let mut models = client.models().await?;
    models.available.clear();
    let status = client.status().await?;
    text::show(&models, args.json, |models| {
        let loading = loading(&status);
        let nothing = models.loaded.is_none() && models.residents.is_empty();
        if nothing && !loading.is_empty() { loading } else { table(models) + &loading }
    })
}

/// A line about the model that is being loaded.
fn loading(status: &Status) -> String {
    let ((State::Loading { model, progress }, _) | (_, Some(Loading { model, progress }))) =
        (&status.state, &status.loading)
    else {
        return String::new();
    };
    format!("{} is being loaded, {:.0} % done\n", printable::line(model), 100.0 * progress)
}

fn table(models: &Models) -> String {
    let head = ["NAME", "TYPE", "SIZE", "MEMORY", "DEVICE", "CONTEXT", "REQUESTS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(models.loaded.iter().map(|model| row(&model.id, model, String::new())));
    let loaded = |one: &Resident| {
        let requests = format!("{} running, {} waiting", one.requests.active, one.requests.queued);
        one.model.as_ref().map(|model| row(&one.name, model, requests))
    };
    rows.extend(models.residents.iter().filter_map(loaded));
    if rows.len() == 1 {
        return "no model is loaded; `orinctl load MODEL` loads one\n".into();
    }
    text::table(&rows, &[2, 3])
}

fn row(name: &str, model: &Model, requests: String) -> Vec<String> {
    let memory = model.memory.weights + model.memory.kv + model.memory.activations;
    vec![
        name.to_owned(),
        model.file_type.clone(),
        text::bytes(model.bytes),
        text::bytes(memory),
        model.device.name.clone(),
        format!("{} x {}", model.slots, model.context),
        requests,
    ]
}
