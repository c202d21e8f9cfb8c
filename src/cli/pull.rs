//! `orinctl pull`: downloads a model from a URL or a hub into the cache, and finds a downloaded
//! model by its name. [`fetch`] resolves names and transfers files.

use std::path::PathBuf;
use std::sync::Arc;

use fetch::{Client, Fetched, File, Folder, Name, Progress};
use model::synthetic;
use serde::Serialize;
use tokio::sync::Notify;

use super::args;
use super::error::Error;
use super::terminal::{Live, Terminal};
use super::text;

/// Environment variables for another hub's address and for an access token, with the names that
/// other hub clients use.
const ENDPOINT: &str = "HF_ENDPOINT";
const TOKEN: &str = "HF_TOKEN";

pub(super) async fn run(
    args: args::Pull,
    terminal: &Terminal,
    interrupted: Arc<Notify>,
) -> Result<(), Error> {
    daemon::ignore_file_size_limit();
    let name: Name = args.name.parse()?;
    let (json, terminal) = (args.json, *terminal);
    let (named, cached) = (name.clone(), args.dir.is_none());
    let all = super::blocking(&interrupted, move || pull(&args, &name, &terminal)).await?;
    let [(first, _), ..] = &all[..] else { unreachable!("a name that is found has a file") };
    let path = first.path.display().to_string();
    let by = if cached { named.to_string() } else { path.clone() };
    let run = format!("orinctl chat -m {}", quoted(&by));
    let document = Document {
        name: named.to_string(),
        path,
        run,
        files: all.iter().map(Into::into).collect(),
    };
    if json {
        text::json(&document)?;
    } else {
        // Unwrapped, so that other programs can read the path.
        text::print(&format!("{}\n", document.path))?;
    }
    let bytes = all.iter().map(|(_, fetched)| fetched.bytes).sum();
    let came: u64 = all.iter().map(|(_, fetched)| fetched.received).sum();
    let checked = all.iter().all(|(file, _)| file.is_checked());
    let sum = if checked { ", SHA-256 verified" } else { "; no SHA-256 known" };
    let how = if came == 0 { "already downloaded" } else { "downloaded" };
    terminal.print_line(&format!(
        "{named} {how}, {}{sum}\nrun it: {}",
        text::bytes(bytes),
        document.run
    ));
    Ok(())
}

/// Downloads all files of a model, one after the other.
fn pull(
    args: &args::Pull,
    name: &Name,
    terminal: &Terminal,
) -> Result<Vec<(File, Fetched)>, Error> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let client = Client::new(variable(ENDPOINT).as_deref(), variable(TOKEN));
    let cache = cache();
    let folder = args.dir.as_deref().map_or(Folder::Cache(&cache), Folder::Flat);
    let files = client.files(name, folder, args.sha256)?;
    let count = files.len();
    let fetch = |(number, file): (usize, File)| {
        let live = terminal.bytes();
        let part = if count > 1 { format!(" {}/{count}", number + 1) } else { String::new() };
        let fetched = client.fetch(&file, args.force, &mut |progress| {
            show_progress(&progress, &part, &live, terminal);
        })?;
        Ok((file, fetched))
    };
    files.into_iter().enumerate().map(fetch).collect()
}

fn show_progress(progress: &Progress, part: &str, live: &Live, terminal: &Terminal) {
    match progress {
        Progress::Checking { done, total } => live.set(*done, *total, format!("checking{part}")),
        Progress::Receiving { done, total } => live.set(*done, *total, format!("pulling{part}")),
        Progress::Notice(notice) => live.print_line(terminal, notice),
    }
}

/// Cache directory of downloaded models, next to the synthetic ones.
pub(super) fn cache() -> PathBuf {
    synthetic::default_cache_dir().with_file_name("models")
}

/// Returns the path of the model downloaded by this name; `None` if the name is neither a URL nor a
/// hub name. Fails with [`Error::NotPulled`].
pub(super) fn pulled(name: &str) -> Result<Option<PathBuf>, Error> {
    if !Name::is_remote(name) {
        return Ok(None);
    }
    let found = fetch::find(&name.parse()?, &cache());
    found.map(Some).ok_or_else(|| Error::NotPulled(name.to_owned()))
}

/// Quotes a word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document {
    name: String,
    /// Path of the file to load; for a split model, the first part.
    path: String,
    /// Command that runs the model.
    run: String,
    files: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    path: String,
    url: String,
    bytes: u64,
    sha256: Option<String>,
    /// Number of bytes downloaded; 0 for a file that existed.
    received: u64,
}

impl From<&(File, Fetched)> for Part {
    fn from((file, fetched): &(File, Fetched)) -> Self {
        Self {
            path: file.path.display().to_string(),
            url: file.url.clone(),
            bytes: fetched.bytes,
            sha256: fetched.sum.map(|sum| sum.to_string()),
            received: fetched.received,
        }
    }
}
