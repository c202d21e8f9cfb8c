//! Models of a sweep in each weight type: a synthetic model by its name, a file quantised into the
//! cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::super::args;
use super::super::error::Error;
use super::super::session;
use super::super::terminal::Terminal;
use analysis::sweep::Weights;
use model::gguf::Gguf;
use model::mix::{self, Mix};
use model::quantise::{self, Conversion};
use model::synthetic;

/// Returns every model in every type, quantising those that are missing.
pub(super) async fn all(
    args: &args::Sweep,
    terminal: &Terminal,
    interrupted: &Notify,
) -> Result<Vec<Weights>, Error> {
    let mut all = Vec::new();
    for model in &args.models {
        if args.types.is_empty() {
            all.push(plain(model)?);
        }
        for &kind in &args.types {
            let weights = if synthetic::is_synthetic(model) {
                Weights { kind: Some(kind.name().into()), ..plain(&in_type(model, kind))? }
            } else {
                quantised(model, kind, terminal, interrupted).await?
            };
            all.push(Weights { model: model.clone(), ..weights });
        }
    }
    Ok(all)
}

/// Name of a synthetic model in another type.
fn in_type(model: &str, kind: Mix) -> String {
    let base = match model.match_indices(':').nth(1) {
        Some((at, _)) => &model[..at],
        None => model,
    };
    format!("{base}:{}", kind.name().to_lowercase())
}

/// Returns a model in its own type.
fn plain(model: &str) -> Result<Weights, Error> {
    let load = session::absolute(model)?;
    let named = |bytes, modified| Weights {
        model: model.to_owned(),
        kind: None,
        load: load.clone(),
        bytes,
        modified,
    };
    if synthetic::is_synthetic(model) {
        synthetic::Spec::parse(model)?;
        return Ok(named(None, None));
    }
    let (bytes, modified) = identity(model, Path::new(&load))?;
    Ok(named(Some(bytes), Some(modified)))
}

/// Returns size and modification time of a file.
fn identity(model: &str, path: &Path) -> Result<(u64, u64), Error> {
    let failed = |error: model::gguf::Error| quantising(model, error.into());
    // Reports errors of a file that is not a model.
    Gguf::open(path).map_err(failed)?;
    let meta = fs::metadata(path)?;
    let since = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((meta.len(), u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}

fn quantising(model: &str, error: quantise::Error) -> Error {
    match error {
        quantise::Error::Stopped => Error::Interrupted,
        error => Error::Quantise { model: model.to_owned(), error: Box::new(error) },
    }
}

/// Returns the file itself if it has the type already, else one in the cache.
async fn quantised(
    model: &str,
    kind: Mix,
    terminal: &Terminal,
    interrupted: &Notify,
) -> Result<Weights, Error> {
    let weights = Weights { kind: Some(kind.name().into()), ..plain(model)? };
    let failed = |error| quantising(model, error);
    let gguf = Gguf::open(Path::new(&weights.load)).map_err(|error| failed(error.into()))?;
    if mix::name_of(&gguf).eq_ignore_ascii_case(kind.name()) {
        return Ok(weights);
    }
    let conversion = Conversion::new(gguf, kind, false).map_err(failed)?;
    let output = cached(Path::new(&weights.load), kind, &weights)?;
    if !output.is_file() {
        if let Some(folder) = output.parent() {
            fs::create_dir_all(folder)
                .map_err(|source| Error::Write { file: folder.to_owned(), source })?;
        }
        terminal.print_line(&format!(
            "quantising {model} to {}: {}",
            kind.name(),
            output.display()
        ));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, to) = (Arc::clone(&stop), output.clone());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let work = move || conversion.write(&to, threads, &stopped, &mut |_| ());
        let mut work = tokio::task::spawn_blocking(work);
        let live = terminal.spinner();
        live.message("quantising");
        let done = tokio::select! {
            done = &mut work => done,
            () = interrupted.notified() => {
                stop.store(true, Ordering::Relaxed);
                work.await
            }
        };
        done.map_err(std::io::Error::from)?.map_err(failed)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
    }
    Ok(Weights { load: output.display().to_string(), ..weights })
}

/// Cache path of a quantised file, different for each input file.
fn cached(model: &Path, kind: Mix, input: &Weights) -> Result<PathBuf, Error> {
    let whole =
        format!("{} {:?} {:?}", model.canonicalize()?.display(), input.bytes, input.modified);
    let hash: String = Sha256::digest(whole).iter().take(6).map(|b| format!("{b:02x}")).collect();
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{}-{hash}.gguf", kind.name());
    Ok(synthetic::default_cache_dir().with_file_name("quantised").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_models_change_their_type() {
        assert_eq!(in_type("synthetic:tiny-llama", Mix::Q6_K), "synthetic:tiny-llama:q6_k");
        assert_eq!(in_type("synthetic:tiny-llama:q8_0", Mix::F16), "synthetic:tiny-llama:f16");
    }
}
