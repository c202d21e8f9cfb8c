//! `orinctl show`: the properties of a model, from the header of its file.

use std::path::{Path, PathBuf};

use errors::printable;
use model::gguf::{Gguf, Value};
use model::synthetic::{self, Spec};
use serde::Serialize;

use super::args::{self, Connection};
use super::error::Error;
use super::names;
use super::text;

const TEMPLATE: &str = "tokenizer.chat_template";
/// Maximum number of characters of a value in the table.
const VALUE_LIMIT: usize = 60;

/// Output of `--json`.
#[derive(Serialize)]
struct Document {
    name: Option<String>,
    file: PathBuf,
    bytes: u64,
    architecture: Option<String>,
    parameters: u64,
    weight_types: Vec<String>,
    context: Option<u64>,
    layers: Option<u64>,
    embedding: Option<u64>,
    vocabulary: Option<u64>,
    license: Option<String>,
    chat_template: Option<String>,
    /// True if the chat template has tools, or reasoning.
    tools: bool,
    thinking: bool,
    pooling: Option<u64>,
}

pub(super) async fn run(connection: &Connection, args: &args::Show) -> Result<(), Error> {
    let name = file(connection, args.model.as_deref()).await?;
    let (path, opened) = if synthetic::is_synthetic(&name) {
        // The file of a synthetic model is written when it is loaded.
        let spec = Spec::parse(&name)?;
        let path = synthetic::default_cache_dir().join(spec.file_name());
        let missing = synthetic::is_missing(&name);
        let opened = if missing { Ok(spec.outline()?) } else { Gguf::open(&path) };
        (path, opened)
    } else {
        (PathBuf::from(&name), Gguf::open(&name))
    };
    let gguf = opened.map_err(|error| Error::Model {
        model: path.display().to_string(),
        error: Box::new(error.into()),
    })?;
    if args.metadata {
        return text::page(&metadata(&gguf));
    }
    let document = Document::of(&gguf, path);
    if args.template {
        let none = || Error::Usage(format!("{} has no chat template", document.file.display()));
        return text::print(&(document.chat_template.ok_or_else(none)? + "\n"));
    }
    text::show(&document, args.json, Document::table)
}

/// Returns the file of a model, or `synthetic:NAME`: by its name, or by its id in the daemon.
/// Without a name, the daemon's first model.
async fn file(connection: &Connection, name: Option<&str>) -> Result<String, Error> {
    if let Some(name) = name {
        match names::resolve(name) {
            Ok(found) => return Ok(found),
            Err(error @ Error::NotFound { .. }) => {
                return loaded(connection, Some(name)).await.unwrap_or(None).ok_or(error);
            }
            Err(error) => return Err(error),
        }
    }
    let daemon = connection.client()?.daemon;
    loaded(connection, None).await?.ok_or(Error::NoModel { daemon })
}

/// Returns the file of a loaded model, or of a file in the daemon's models directory.
async fn loaded(connection: &Connection, name: Option<&str>) -> Result<Option<String>, Error> {
    let models = connection.client()?.models().await?;
    let additional = models.residents.into_iter().filter_map(|one| Some((one.name, one.model?)));
    let folder = models.models_dir;
    let listed = name.map(|name| synthetic::resolve(name, &folder));
    let listed = listed.filter(|file| Path::new(file).is_file());
    let first = models.loaded.map(|model| (model.id.clone(), model));
    let mut all = first.into_iter().chain(additional);
    let found = all.find(|(id, _)| name.is_none_or(|name| name == id));
    Ok(found.map(|(_, model)| model.path.display().to_string()).or(listed))
}

impl Document {
    fn of(gguf: &Gguf, file: PathBuf) -> Self {
        let text = |key: &str| match gguf.metadata().get(key) {
            Some(Value::Str(text)) => Some(text.clone()),
            _ => None,
        };
        let architecture = text("general.architecture");
        let number = |key: &str| {
            let key = format!("{}.{key}", architecture.as_deref()?);
            gguf.metadata().get(&key).and_then(Value::as_u64)
        };
        let mut types: Vec<(String, u64)> = Vec::new();
        for tensor in gguf.tensors() {
            let name = tensor.dtype.to_string();
            match types.iter_mut().find(|(other, _)| *other == name) {
                Some((_, elements)) => *elements += tensor.elements(),
                None => types.push((name, tensor.elements())),
            }
        }
        types.sort_by_key(|(_, elements)| std::cmp::Reverse(*elements));
        let template = text(TEMPLATE);
        let has = |words: &[&str]| {
            template.as_ref().is_some_and(|text| words.iter().any(|word| text.contains(word)))
        };
        let vocabulary = match gguf.metadata().get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => Some(tokens.len() as u64),
            _ => number("vocab_size"),
        };
        Self {
            name: text("general.name"),
            file,
            bytes: gguf.file_bytes(),
            parameters: gguf.tensors().iter().map(model::gguf::TensorInfo::elements).sum(),
            weight_types: types.into_iter().map(|(name, _)| name).collect(),
            context: number("context_length"),
            layers: number("block_count"),
            embedding: number("embedding_length"),
            pooling: number("pooling_type"),
            vocabulary,
            license: text("general.license"),
            tools: has(&["tools"]),
            thinking: has(&["<think>", "enable_thinking", "reasoning_effort"]),
            chat_template: template,
            architecture,
        }
    }

    fn table(&self) -> String {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let words = |text: &Option<String>| text.as_deref().map(printable::line);
        let mut can = vec![if self.pooling.is_some() { "embeddings" } else { "completion" }];
        let chats = self.chat_template.is_some();
        for (has, word) in [(chats, "chat"), (self.tools, "tools"), (self.thinking, "thinking")] {
            can.extend(has.then_some(word));
        }
        let rows: Vec<Vec<String>> = [
            ("name", words(&self.name)),
            ("file", Some(self.file.display().to_string())),
            ("size", Some(text::bytes(self.bytes))),
            ("architecture", words(&self.architecture)),
            ("parameters", Some(text::count(self.parameters))),
            ("weight types", Some(self.weight_types.join(", "))),
            ("context", self.context.map(|tokens| format!("{tokens} tokens"))),
            ("layers", number(self.layers)),
            ("embedding", number(self.embedding)),
            ("vocabulary", number(self.vocabulary)),
            ("license", words(&self.license)),
            ("capabilities", Some(can.join(", "))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(vec![name.to_owned(), value?]))
        .collect();
        text::columns(&rows, &[])
    }
}

/// Formats all keys of the header; long values are cut.
fn metadata(gguf: &Gguf) -> String {
    let value = |value: &Value| match value {
        Value::Array(array) => format!("{} values", array.len()),
        Value::Str(text) => {
            let line: String = text.chars().take(VALUE_LIMIT + 1).collect();
            let cut = line.chars().count() > VALUE_LIMIT;
            let line: String = line.chars().take(VALUE_LIMIT).collect();
            format!("{}{}", printable::line(&line), if cut { "..." } else { "" })
        }
        other => other.as_u64().map_or_else(|| format!("{other:?}"), |number| number.to_string()),
    };
    let row = |(key, entry): (&str, &Value)| vec![printable::line(key), value(entry)];
    let rows: Vec<Vec<String>> = gguf.metadata().iter().map(row).collect();
    text::columns(&rows, &[])
}

/// Returns whether a file begins like GGUF.
pub(super) fn is_gguf(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"GGUF"
}
