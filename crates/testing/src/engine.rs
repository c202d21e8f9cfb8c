//! An engine with a model, driven through its handle.

use engine::{
    Event, Events, FinishReason, Finished, GenerateError, Handle, LoadError, LoadEvent, LoadSpec,
    LogitsProcessors, ModelInfo, Request, Scales, Settings, TokenLogprobs,
};
use plan::sample::Sampling;

/// A small load specification; the model is a path or `synthetic:`.
pub fn spec(model: impl Into<String>, backend: &str) -> LoadSpec {
    LoadSpec {
        model: model.into(),
        backend: backend.parse().unwrap(),
        context: 256,
        prefill_chunk: 8,
        ..LoadSpec::default()
    }
}

/// An engine without a model.
pub fn engine() -> Handle {
    Handle::start(Settings { queue_limit: 64 }).unwrap()
}

/// Loads a model and waits for it.
pub fn load(handle: &Handle, spec: LoadSpec) -> Result<ModelInfo, LoadError> {
    let mut events = handle.load(spec);
    let mut progress = 0;
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { done, total, .. } => {
                assert!(done <= total);
                progress += 1;
            }
            LoadEvent::Loaded(info) => {
                assert!(progress > 0, "a load reports progress");
                return Ok(*info);
            }
            LoadEvent::Unloading { .. } => {}
            LoadEvent::Failed(error) => return Err(error),
        }
    }
}

/// An engine with a model, on the requested backend.
pub fn start(spec: LoadSpec) -> Handle {
    let (handle, backend) = (engine(), spec.backend.to_string());
    let info = load(&handle, spec).unwrap();
    assert!(
        backend == "auto" || info.device.name == backend,
        "{} instead of {backend}",
        info.device.name
    );
    handle
}

/// A greedy request for `max_tokens` tokens that ignores end tokens.
pub fn request(prompt: impl IntoIterator<Item = u32>, max_tokens: u32) -> Request {
    Request {
        prompt: prompt.into_iter().collect(),
        max_tokens,
        sampling: Sampling::GREEDY,
        stop: vec![],
        ignore_end: true,
        processors: LogitsProcessors::NONE,
        constraint: None,
        shown: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        adapters: Scales::NONE,
        embed: false,
    }
}

#[derive(Debug, Default)]
pub struct Answer {
    pub prompt: Option<Vec<TokenLogprobs>>,
    pub embedding: Option<Vec<f32>>,
    pub ids: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub finished: Option<Finished>,
}

impl Answer {
    pub fn reason(&self) -> &FinishReason {
        &self.finished.as_ref().unwrap().reason
    }
}

/// Collects an answer to its end.
pub fn collect(mut events: Events) -> Result<Answer, GenerateError> {
    let mut answer = Answer::default();
    while let Some(event) = events.blocking_recv() {
        assert!(answer.finished.is_none(), "nothing follows the end");
        match event {
            Event::Prompt(all) => answer.prompt = Some(all),
            Event::Embedding(numbers) => answer.embedding = Some(numbers),
            Event::Token(token) => {
                answer.ids.push(token.id);
                answer.text.push_str(&token.text);
                answer.logprobs.extend(token.logprobs);
            }
            Event::Finished(finished) => {
                answer.text.push_str(&finished.text);
                answer.finished = Some(finished);
            }
            Event::Failed(error) => return Err(error),
        }
    }
    Ok(answer)
}

pub fn ask(handle: &Handle, request: Request) -> Answer {
    collect(handle.generate(request).unwrap()).unwrap()
}
