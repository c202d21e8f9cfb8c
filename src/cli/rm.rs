//! `orinctl rm`: deletes downloaded and synthetic models. Refuses other files, and loaded models.

use std::fs;
use std::path::{Path, PathBuf};

use api::client;
use model::gguf::Gguf;
use model::synthetic::{self, Spec};

use super::args::{self, Connection};
use super::error::Error;
use super::names;
use super::pull::pulled;
use super::text;

pub(super) async fn run(connection: &Connection, args: &args::Rm) -> Result<(), Error> {
    let loaded = loaded(connection).await?;
    for name in &args.models {
        let file = file(name)?;
        // All parts of a split model; only the first if the header is damaged.
        let parts: Vec<PathBuf> = Gguf::open(&file)
            .map_or_else(|_| vec![file.clone()], |gguf| gguf.paths().map(Path::to_owned).collect());
        if loaded.contains(&file) {
            return Err(Error::InUse(name.clone()));
        }
        let mut bytes = 0;
        for part in parts {
            bytes += part.metadata().map_or(0, |about| about.len());
            fs::remove_file(&part).map_err(|source| Error::Delete { file: part, source })?;
        }
        text::print(&format!("{name} deleted, {}\n", text::bytes(bytes)))?;
    }
    Ok(())
}

/// Returns the file that `pull` or a load of a synthetic model wrote.
fn file(name: &str) -> Result<PathBuf, Error> {
    if let Some(pulled) = pulled(name)? {
        return Ok(pulled);
    }
    if synthetic::is_synthetic(name) {
        let file = synthetic::default_cache_dir().join(Spec::parse(name)?.file_name());
        return if file.is_file() { Ok(file) } else { Err(Error::NotPulled(name.to_owned())) };
    }
    let path = names::resolve(name)?;
    let path = fs::canonicalize(&path).unwrap_or_else(|_| path.into());
    let mine = |file: &PathBuf| fs::canonicalize(file).is_ok_and(|file| file == path);
    if names::downloads().iter().any(mine) { Ok(path) } else { Err(Error::NotOurs(path)) }
}

/// Files of the models in the daemon, if one runs on this machine.
async fn loaded(connection: &Connection) -> Result<Vec<PathBuf>, Error> {
    match connection.client()?.models().await {
        Ok(models) => {
            let additional = models.residents.into_iter().filter_map(|one| one.model);
            Ok(models.loaded.into_iter().chain(additional).map(|model| model.path).collect())
        }
        Err(client::Error::NotRunning { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
