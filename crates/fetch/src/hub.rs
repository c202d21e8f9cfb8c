//! Repositories of the Hugging Face hub: listing of their files with sizes and checksums, and
//! selection of the files that a name means.
//!
//! One request, `GET /api/models/OWNER/REPO/revision/main?blobs=true`, like `HfApi.model_info` with
//! `files_metadata` in `huggingface_hub`: `sha` is the commit, `siblings` the files, `lfs.sha256`
//! the checksum of a Git LFS file. Files are then downloaded at that commit, so that the parts of a
//! model belong together.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::Error;
use crate::name::{Place, Split, Which, checked};

/// Default type if a repository has several.
const USUAL: &str = "Q4_K_M";

/// Most files of a repository in the cache.
const MOST_FILES: usize = 10_000;

/// Most models that an error names.
const NAMED: usize = 20;

/// The hub's description of a repository.
#[derive(Deserialize)]
pub(crate) struct Listing {
    sha: Option<String>,
    #[serde(default)]
    pub(crate) siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
pub(crate) struct Sibling {
    pub(crate) rfilename: String,
    pub(crate) size: Option<u64>,
    pub(crate) lfs: Option<Lfs>,
}

#[derive(Deserialize)]
pub(crate) struct Lfs {
    pub(crate) sha256: Option<String>,
}

impl Listing {
    /// The listed commit.
    pub(crate) fn revision(&self) -> &str {
        let commit = |sha: &&str| sha.len() == 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
        self.sha.as_deref().filter(commit).unwrap_or("main")
    }
}

/// Paths of the files below a folder, at most [`MOST_FILES`]. Links to folders are not followed, so
/// that a loop of them ends.
pub(crate) fn listed(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten().take(MOST_FILES) {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Some(file) = path.strip_prefix(folder).ok().and_then(Path::to_str) {
                found.insert(file.to_owned());
            }
        }
        if found.len() + folders.len() > MOST_FILES {
            break;
        }
    }
    found
}

/// Files of the model that `place` means, out of those in `there`; all parts, in order, for a split
/// model.
pub(crate) fn choose<S: Borrow<str> + Ord>(
    place: &Place,
    there: &BTreeSet<S>,
) -> Result<Vec<String>, Error> {
    let repository = place.at();
    if let Which::File(file) = &place.which {
        // If the file is missing altogether, the server reports it.
        return if there.contains(file.as_str()) {
            all_parts(&repository, file, there)
        } else {
            Ok(vec![file.clone()])
        };
    }
    // Each model by its name without part numbers, with one of its files.
    let mut models: BTreeMap<&str, &str> = BTreeMap::new();
    for file in there.iter().map(Borrow::borrow).filter(|file| is_model(file)) {
        let extension = if Split::of(file).is_some() { "-00001-of-00001.gguf" } else { ".gguf" };
        models.entry(&file[..file.len() - extension.len()]).or_insert(file);
    }
    let of = |kind: &str| -> Vec<&str> {
        models.iter().filter(|(stem, _)| ends_in(stem, kind)).map(|(_, file)| *file).collect()
    };
    let (wanted, found) = match &place.which {
        Which::Type(kind) => (kind.as_str(), of(kind)),
        _ if models.len() == 1 => (USUAL, models.values().copied().collect()),
        _ => (USUAL, of(USUAL)),
    };
    match found[..] {
        _ if models.is_empty() => Err(Error::NoModel { repository }),
        [] => Err(Error::NoType { repository, wanted: wanted.into(), there: named(&models) }),
        [file] => all_parts(&repository, file, there),
        _ => Err(Error::Several { repository, wanted: wanted.into(), there: named(&models) }),
    }
}

/// Names of models for a message, the first few.
fn named(models: &BTreeMap<&str, &str>) -> String {
    let names = models.keys().take(NAMED).map(|stem| stem.escape_debug().to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    match models.len().saturating_sub(NAMED) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// All parts of the model that a file belongs to. Fails if one is missing.
fn all_parts<S: Borrow<str> + Ord>(
    repository: &str,
    file: &str,
    there: &BTreeSet<S>,
) -> Result<Vec<String>, Error> {
    let Some(split) = Split::of(file) else { return Ok(vec![file.to_owned()]) };
    let part = |file: String| match there.contains(file.as_str()) {
        true => Ok(file),
        false => Err(Error::NoPart { repository: repository.into(), file }),
    };
    split.parts().map(part).collect()
}

/// True for GGUF files that can run: not for vision projectors (`mmproj`).
fn is_model(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    name.ends_with(".gguf")
        && !name.contains("mmproj")
        && file.split('/').all(|part| checked(part).is_ok())
}

/// True if a model's file name ends in a weight type: `model-Q4_K_M`, `model.q4_k_m`.
fn ends_in(stem: &str, kind: &str) -> bool {
    let (stem, kind) = (stem.to_ascii_lowercase(), kind.to_ascii_lowercase());
    stem.strip_suffix(&kind)
        .is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_', '/']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    fn chosen(name: &str, there: &[&str]) -> Result<Vec<String>, String> {
        let Ok(Name::Hub(place)) = name.parse() else { panic!("{name}") };
        let there: BTreeSet<&str> = there.iter().copied().collect();
        choose(&place, &there).map_err(|error| error.to_string())
    }

    #[test]
    fn a_weight_type_matches_the_end_of_a_file_name() {
        let there =
            ["m-Q8_0.gguf", "m-q4_k_m.gguf", "m-IQ4_K_M.gguf", "mmproj-Q8_0.gguf", "README.md"];
        assert_eq!(chosen("o/r:Q8_0", &there).unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("o/r:q4_k_m", &there).unwrap(), ["m-q4_k_m.gguf"]);
        assert_eq!(chosen("o/r", &there).unwrap(), ["m-q4_k_m.gguf"]);
        let error = chosen("o/r:Q6_K", &there).unwrap_err();
        assert_eq!(error, "hf.co/o/r has no Q6_K; it has m-IQ4_K_M, m-Q8_0, m-q4_k_m");
        let two = ["a-F16.gguf", "b-F16.gguf"];
        assert!(chosen("o/r:F16", &two).unwrap_err().contains("name one file"));
        assert!(chosen("o/r", &two).unwrap_err().contains("has no Q4_K_M"));
        assert_eq!(chosen("o/r", &["only.gguf"]).unwrap(), ["only.gguf"]);
        assert!(chosen("o/r", &["x.safetensors"]).unwrap_err().contains("no GGUF file"));
    }

    #[test]
    fn a_split_model_needs_all_its_parts() {
        let there =
            ["Q8/m-Q8_0-00002-of-00002.gguf", "Q8/m-Q8_0-00001-of-00002.gguf", "m-F16.gguf"];
        let both = [there[1], there[0]];
        assert_eq!(chosen("o/r:Q8_0", &there).unwrap(), both);
        assert_eq!(chosen(&format!("o/r/{}", there[0]), &there).unwrap(), both);
        for name in ["o/r:Q8_0", "o/r/Q8/m-Q8_0-00001-of-00002.gguf"] {
            let error = chosen(name, &there[1..]).unwrap_err();
            assert!(error.contains("lacks Q8/m-Q8_0-00002-of-00002.gguf"), "{error}");
        }
    }

    #[test]
    fn paths_outside_the_repository_are_not_models() {
        let there = [
            "../m-Q8_0.gguf",
            "/m-Q8_0.gguf",
            "a/../m-Q8_0.gguf",
            ".m-Q8_0.gguf",
            "m\u{1b}-Q8_0.gguf",
        ];
        assert!(chosen("o/r:Q8_0", &there).unwrap_err().contains("no GGUF file"));
    }
}
