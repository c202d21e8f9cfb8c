//! List of models that can be loaded by name: GGUF files of the models directory and synthetic
//! models. Reports files that cannot be loaded, as far as that is known without a device. Results
//! are cached until a file changes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use config::Config;
use model::synthetic;

/// Total size of a model's files, modification time of the first, and why it cannot be loaded.
type CachedFile = (u64, Option<SystemTime>, Option<String>);

#[derive(Default)]
pub(super) struct Available {
    known: Mutex<HashMap<PathBuf, CachedFile>>,
    /// Serialises reads of the directory.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Available {
    /// Lists all models. Reads the headers of new files. An unreadable directory counts as empty.
    pub(super) fn list(&self, config: &Config) -> Vec<api::Available> {
        let mut before = std::mem::take(&mut *self.known.lock());
        let mut known = HashMap::new();
        let mut list = Vec::new();
        for File { path, bytes, time } in files(&config.models_dir) {
            let (model, named) = name(config, &path);
            let unchanged = before.remove(&path).filter(|k| (k.0, k.1) == (bytes, time));
            let (.., why) = unchanged.unwrap_or_else(|| (bytes, time, load_problem(&path)));
            list.push(api::Available {
                model,
                bytes: Some(bytes),
                synthetic: false,
                why: named.err().or_else(|| why.clone()),
            });
            known.insert(path, (bytes, time, why));
        }
        *self.known.lock() = known;
        let synthetic = synthetic::names().into_iter();
        list.extend(synthetic.map(|model| api::Available {
            model,
            bytes: None,
            synthetic: true,
            why: None,
        }));
        list
    }
}

/// Returns the file's name for loading, or why it cannot be loaded by name.
fn name(config: &Config, path: &Path) -> (String, Result<(), String>) {
    let lossy =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, file) = (lossy(path.file_stem()), lossy(path.file_name()));
    let means = |name: &str| Path::new(&synthetic::resolve(name, &config.models_dir)) == path;
    if means(&stem) {
        (stem, Ok(()))
    } else if means(&file) {
        (file, Ok(()))
    } else if path.to_str().is_none() {
        (stem, Err("its name is not UTF-8; rename the file".into()))
    } else {
        (stem, Err("its name means something else to a load; rename the file".into()))
    }
}

/// Returns why a file cannot be loaded as a model.
fn load_problem(path: &Path) -> Option<String> {
    let why = engine::inspect(path).err()?.to_string();
    // The list already names the file.
    let prefix = format!("{}: ", path.display());
    Some(why.strip_prefix(&prefix).unwrap_or(&why).to_owned())
}

struct File {
    path: PathBuf,
    /// Total size of all parts.
    bytes: u64,
    /// Modification time of the first part.
    time: Option<SystemTime>,
}

/// Lists the GGUF files of a directory. A split model counts once, as its first part.
fn files(dir: &Path) -> Vec<File> {
    let mut found: BTreeMap<PathBuf, (bool, File)> = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        // Follows links: models are often symbolic links.
        let Ok(meta) = fs::metadata(&path) else { continue };
        if !meta.is_file() {
            continue;
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let (first, is_first) = match stem.and_then(split_part) {
            Some((base, part, of)) => {
                (dir.join(format!("{base}-00001-of-{of}.gguf")), part == "00001")
            }
            None => (path, true),
        };
        let file = File { path: first.clone(), bytes: 0, time: None };
        let (has_first, file) = found.entry(first).or_insert((false, file));
        file.bytes += meta.len();
        if is_first {
            *has_first = true;
            file.time = meta.modified().ok();
        }
    }
    found.into_values().filter(|(has_first, _)| *has_first).map(|(_, file)| file).collect()
}

/// Splits `NAME-00002-of-00003` into its three parts.
fn split_part(stem: &str) -> Option<(&str, &str, &str)> {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (base, part) = rest.rsplit_once('-')?;
    (digits(of) && digits(part)).then_some((base, part, of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn models_of_a_directory_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &OsStr, bytes: usize| fs::write(dir.path().join(name), vec![0; bytes]);
        for (name, bytes) in [
            ("b.gguf", 3),
            ("a-00001-of-00002.gguf", 10),
            ("a-00002-of-00002.gguf", 5),
            ("lost-00002-of-00002.gguf", 5),
            // Not a part: part numbers have five digits.
            ("part-1-of-2.gguf", 7),
            ("whole-final-of-seven.gguf", 7),
            ("notes.txt", 1),
            // Files with names that a load interprets differently.
            ("synthetic:b.gguf", 1),
            ("c.gguf", 1),
            ("c", 1),
            (".gguf", 1),
        ] {
            write(OsStr::new(name), bytes).unwrap();
        }
        write(OsStr::from_bytes(b"\xff.gguf"), 1).unwrap();
        fs::create_dir(dir.path().join("d.gguf")).unwrap();
        let model =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models/tiny-llama-Q8_0.gguf");
        symlink(model, dir.path().join("sound.gguf")).unwrap();

        let config = Config { models_dir: dir.path().to_owned(), ..Config::default() };
        let available = Available::default();
        let list = available.list(&config);
        let of = |name: &str| {
            let mut found = list.iter().filter(|model| model.model == name);
            let model = found.next().unwrap_or_else(|| panic!("{name} in {list:?}"));
            assert!(found.next().is_none(), "{name} twice");
            (model.bytes, model.why.clone().unwrap_or_default())
        };
        assert_eq!(of("sound"), (Some(fs::metadata(model).unwrap().len()), String::new()));
        assert_eq!(of("a-00001-of-00002").0, Some(15));
        assert_eq!((of("part-1-of-2").0, of("whole-final-of-seven").0), (Some(7), Some(7)));
        assert!(of("b").1.starts_with("byte 0: "), "{}", of("b").1);
        assert!(of("synthetic:b").1.contains("means something else"));
        assert!(of("c.gguf").1.starts_with("byte 0: "), "loaded by its whole name");
        assert!(of("\u{fffd}").1.contains("not UTF-8"));
        assert_eq!(list.iter().filter(|model| !model.synthetic).count(), 8);
        assert!(list.iter().all(|model| !model.synthetic || model.why.is_none()));

        // Lists again after a file has changed.
        assert_eq!(available.list(&config), list);
        fs::copy(model, dir.path().join("b.gguf")).unwrap();
        let list = available.list(&config);
        assert_eq!(list.iter().find(|model| model.model == "b").unwrap().why, None);
        let none = Config { models_dir: dir.path().join("missing"), ..Config::default() };
        assert!(available.list(&none).iter().all(|model| model.synthetic));
    }
}
