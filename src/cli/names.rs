//! Model names, as every command accepts them: `synthetic:NAME`, a file, the hub name or URL of a
//! downloaded model, the name of a file in the models directory, or a name in the service's
//! configuration.

use std::fs;
use std::path::{Path, PathBuf};

use api::Available;
use config::Config;
use model::synthetic;

use super::error::Error;
use super::install::CONFIG;
use super::pull::{cache, pulled};

/// Minimum Jaro-Winkler similarity of a suggestion.
const SIMILAR: f64 = 0.85;
/// Maximum number of folders that are searched for a suggestion.
const FOLDERS: usize = 256;

/// Returns a name that a daemon on this machine, or `model::open`, understands: a path, or
/// `synthetic:NAME`. Fails if no file has this name.
pub(super) fn resolve(name: &str) -> Result<String, Error> {
    if let Some(pulled) = pulled(name)? {
        return Ok(pulled.display().to_string());
    }
    if synthetic::is_synthetic(name) {
        synthetic::Spec::parse(name)?;
        return Ok(name.to_owned());
    }
    let own = synthetic::resolve(name, &Config::default().models_dir);
    if Path::new(&own).exists() {
        return Ok(own);
    }
    // A service that this user may not read has no names here.
    let service = Config::read(Path::new(CONFIG)).unwrap_or_default();
    let found = configured(name, &service);
    if synthetic::is_synthetic(&found) || Path::new(&found).exists() {
        return Ok(found);
    }
    Err(Error::NotFound { name: name.to_owned(), nearest: nearest(name) })
}

/// Returns what a configuration loads by this name: one of its models, else a file of its models
/// directory, else the name itself.
fn configured(name: &str, config: &Config) -> String {
    let folder = &config.models_dir;
    let first = Some(&config.model).filter(|model| synthetic::default_id(model, folder) == name);
    let mut others = config.resident.iter();
    let other = || others.find(|one| one.id(folder) == name).map(|one| &one.model);
    let model = first.or_else(other).map_or(name, String::as_str);
    synthetic::resolve(model, folder)
}

/// Name and model of each model in a configuration.
pub(super) fn configured_models(config: &Config) -> Vec<(String, String)> {
    let folder = &config.models_dir;
    let first = (synthetic::default_id(&config.model, folder), config.model.clone());
    let others = config.resident.iter().map(|one| (one.id(folder), one.model.clone()));
    std::iter::once(first).chain(others).collect()
}

/// Downloaded models, by the name of the hub or the path that every command accepts.
pub(super) fn downloaded() -> Vec<Available> {
    let mut files = downloads();
    files.sort();
    let cache = cache();
    let name = |file: &PathBuf| {
        let hub = file.strip_prefix(&cache).ok().map(|name| name.display().to_string());
        let found = |name: &String| pulled(name).ok().flatten().as_ref() == Some(file);
        hub.filter(found).unwrap_or_else(|| file.display().to_string())
    };
    files.iter().filter_map(|file| available(file, name(file))).collect()
}

/// Models of a folder, by their names there.
pub(super) fn files_in(folder: &Path) -> Vec<Available> {
    let mut files: Vec<PathBuf> = entries(folder).filter(|file| is_gguf(file)).collect();
    files.sort();
    let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().filter_map(|file| available(file, stem(file))).collect()
}

/// A model by its file; `None` for a later part of a split one.
fn available(file: &Path, model: String) -> Option<Available> {
    let name = file.file_stem()?.to_string_lossy().into_owned();
    let bytes = match name.rsplit_once("-00001-of-") {
        None if is_later_part(&name) => return None,
        None => file.metadata().ok()?.len(),
        Some((base, _)) => {
            let parts = entries(file.parent()?).filter(|part| {
                let part = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
                part.strip_prefix(base).is_some_and(|rest| rest.starts_with('-'))
            });
            parts.filter_map(|part| Some(part.metadata().ok()?.len())).sum()
        }
    };
    Some(Available { model, bytes: Some(bytes), synthetic: false, why: None })
}

/// True for `NAME-00002-of-00003`.
fn is_later_part(name: &str) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.rsplit_once("-of-");
    let part = parts.and_then(|(rest, of)| Some((rest.rsplit_once('-')?.1, of)));
    part.is_some_and(|(part, of)| number(part) && number(of))
}

/// Files of downloaded models.
pub(super) fn downloads() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![cache()]);
    for _ in 0..FOLDERS {
        let Some(folder) = folders.pop() else { break };
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if is_gguf(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Returns the most similar name of a model on this machine.
fn nearest(name: &str) -> Option<String> {
    let path = Path::new(name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let models = Config::default().models_dir;
    let here = entries(folder.unwrap_or(Path::new("."))).filter(|file| is_gguf(file));
    let listed = entries(&models).filter(|file| is_gguf(file));
    let files = here.chain(listed).chain(downloads()).map(|file| {
        let file = file.strip_prefix("./").map(Path::to_owned).unwrap_or(file);
        (stem(&file), file.display().to_string())
    });
    let synthetic = synthetic::names()
        .into_iter()
        .map(|full| (full.trim_start_matches("synthetic:").to_owned(), full));
    let wanted = stem(path);
    let score = |written: &str| strsim::jaro_winkler(&wanted, &written.to_lowercase());
    files
        .chain(synthetic)
        .map(|(short, full)| (score(&short), full))
        .filter(|(score, _)| *score >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, full)| full)
}

/// Lower-case file name without `.gguf`.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.trim_end_matches(".gguf").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_s_names_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.gguf");
        fs::write(&file, "").unwrap();
        let text = format!(
            "models_dir = '{}'\nmodel = 'a'\n[[resident]]\nname = 'small'\nmodel = 'synthetic:tiny-llama:q8_0'",
            folder.path().display()
        );
        let config = Config::parse(&text, "test").unwrap();
        let path = file.display().to_string();
        for (name, found) in
            [("a", &*path), ("a.gguf", &path), ("small", "synthetic:tiny-llama:q8_0"), ("b", "b")]
        {
            assert_eq!(configured(name, &config), found, "{name}");
        }
    }
}
