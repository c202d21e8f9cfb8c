//! Embedding routes: OpenAI's `/v1/embeddings`, ollama's `/api/embed` and `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use model::tokenizer::Specials;
use plan::sample::Sampling;
use serde_json::{Value, json};

use super::body::JsonBody;
use super::error::Error;
use super::rejections::Checked;
use super::{App, generation, params, prompt};
use engine::{Event, GenerateError, LogitsProcessors, Request, Scales, Served};
use errors::invalid::excerpt;

/// Maximum number of texts in a request, the same as OpenAI's.
const INPUTS: usize = 2048;

const FIELD: &str = "input";

/// Embeddings of a request's texts.
struct Embedded {
    served: Arc<Served>,
    /// Normalised to length 1.
    embeddings: Vec<Vec<f32>>,
    tokens: u64,
}

pub(super) async fn openai(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::EmbeddingsRequest>,
) -> Result<Json<api::Embeddings>, Error> {
    let encoding = request.encoding_format.as_deref();
    if let Some(other) = encoding.filter(|name| !["float", "base64"].contains(name)) {
        let message =
            format!("encoding_format: is `{}`; float and base64 are possible", excerpt(other));
        return Err(Error::value("encoding_format", message));
    }
    let embedded = make(&app, request.model.as_deref(), request.input, request.dimensions).await?;
    let embedding = |(index, numbers): (usize, Vec<f32>)| api::Embedding {
        object: "embedding".into(),
        index,
        embedding: match encoding {
            Some("base64") => base64(&numbers).into(),
            _ => numbers.into(),
        },
    };
    Ok(Json(api::Embeddings {
        object: "list".into(),
        data: embedded.embeddings.into_iter().enumerate().map(embedding).collect(),
        model: embedded.served.model.id.clone(),
        usage: api::EmbeddingsUsage {
            prompt_tokens: embedded.tokens,
            total_tokens: embedded.tokens,
        },
    }))
}

pub(super) async fn ollama(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaEmbed>,
) -> Result<Json<Value>, Error> {
    let begin = Instant::now();
    let model = super::ollama::own_name(&app, request.model.as_deref());
    let embedded = make(&app, model.as_deref(), request.input, request.dimensions).await?;
    let total = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Json(json!({
        "model": embedded.served.model.id, "embeddings": embedded.embeddings, "total_duration": total,
        "load_duration": 0, "prompt_eval_count": embedded.tokens,
    })))
}

pub(super) async fn ollama_single(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::OllamaEmbeddings>,
) -> Result<Json<Value>, Error> {
    let model = super::ollama::own_name(&app, request.model.as_deref());
    let prompt = api::Prompt::Text(request.prompt);
    let mut embedded = make(&app, model.as_deref(), prompt, None).await?;
    Ok(Json(json!({"embedding": embedded.embeddings.pop().unwrap_or_default()})))
}

/// Encodes as little-endian `f32` in base64, the format that OpenAI's clients request.
pub(super) fn base64(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

async fn make(
    app: &Arc<App>,
    model: Option<&str>,
    input: api::Prompt,
    dimensions: Option<usize>,
) -> Result<Embedded, Error> {
    let served = Arc::clone(&params::admit(app, model, 0).await?.served);
    let Some(width) = served.model.embedding else {
        let message =
            format!("{} is not an embedding model: its file has no pooling type", served.model.id);
        return Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
            .param("model")
            .hint("load an embedding model with `orinctl load`, such as Qwen3-Embedding"));
    };
    if let Some(asked) = dimensions.filter(|asked| !(1..=width).contains(asked)) {
        let message = format!("dimensions: is {asked}, 1 to {width} are possible");
        return Err(Error::value("dimensions", message));
    }
    let adapters = params::adapters(&served.model, model, None)?;
    let prompts = tokens(app, &served, input).await?;
    let mut embeddings = Vec::with_capacity(prompts.len());
    // Submits at most one text per slot at a time, so that a long list does not fill the queue.
    for some in prompts.chunks(served.model.slots) {
        let mut admission = params::admit(app, Some(&served.model.id), some.len()).await?;
        let requests = some.iter().map(|prompt| request(prompt.clone(), adapters)).collect();
        let mut events = generation::start(app, &mut admission, requests)?;
        let first = embeddings.len();
        embeddings.resize(first + some.len(), Vec::new());
        while let Some((index, event)) = events.next().await {
            match event {
                Event::Embedding(numbers) => embeddings[first + index] = cut(numbers, dimensions),
                Event::Failed(error) => return Err(error.into()),
                Event::Prompt(_) | Event::Token(_) | Event::Finished(_) => {}
            }
        }
        if embeddings[first..].iter().any(Vec::is_empty) {
            // Cancelled: the client has disconnected, or the daemon stops.
            return Err(GenerateError::Stopping.into());
        }
    }
    let tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    Ok(Embedded { served, embeddings, tokens })
}

fn request(prompt: Vec<u32>, adapters: Scales) -> Request {
    Request {
        prompt,
        max_tokens: 0,
        sampling: Sampling::GREEDY,
        processors: LogitsProcessors::NONE,
        constraint: None,
        shown: Vec::new(),
        stop: Vec::new(),
        ignore_end: false,
        logprobs: None,
        prompt_logprobs: false,
        adapters,
        embed: true,
    }
}

/// Returns the token ids of each text.
async fn tokens(
    app: &App,
    served: &Arc<Served>,
    input: api::Prompt,
) -> Result<Vec<Vec<u32>>, Error> {
    let refused = |message: String| Error::value(FIELD, format!("{FIELD}: {message}"));
    let prompts = match input {
        api::Prompt::Ids(one) => vec![one],
        api::Prompt::IdLists(many) => many,
        api::Prompt::Text(text) => encode(app, served, vec![text]).await?,
        api::Prompt::Texts(texts) if texts.len() > INPUTS => {
            return Err(refused(format!(
                "has {} texts, at most {INPUTS} are allowed",
                texts.len()
            )));
        }
        api::Prompt::Texts(texts) => encode(app, served, texts).await?,
    };
    if prompts.len() > INPUTS {
        return Err(refused(format!("has {} texts, at most {INPUTS} are allowed", prompts.len())));
    }
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(refused("has a text without tokens; at least one is needed".into()));
    }
    Ok(prompts)
}

/// Tokenizes a text without interpreting control tokens.
async fn encode(
    app: &App,
    served: &Arc<Served>,
    texts: Vec<String>,
) -> Result<Vec<Vec<u32>>, Error> {
    let embedded = prompt::encode(app, served, FIELD, texts, Specials::Plain).await?;
    Ok(embedded.into_iter().map(|(_, ids)| ids).collect())
}

/// Truncates an embedding and normalises it again.
fn cut(mut numbers: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    let Some(left) = dimensions.filter(|left| *left < numbers.len()) else { return numbers };
    numbers.truncate(left);
    let square = |number: &f32| f64::from(*number).powi(2);
    let length = numbers.iter().map(square).sum::<f64>().sqrt();
    if length > 0.0 {
        numbers.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_embeddings_are_normalised_and_little_endian() {
        assert_eq!(cut(vec![3.0, 4.0, 12.0], Some(2)), [0.6, 0.8]);
        assert_eq!(cut(vec![0.6, 0.8], Some(2)), [0.6, 0.8]);
        assert_eq!(cut(vec![0.0, 1.0], Some(1)), [0.0]);
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
