//! Embeddings: through the engine, compared with rows pooled here in `f64`, and through both dialects.

use std::path::Path;
use std::time::Duration;

use ::engine::{GenerateError, Request};
use device::reference::Reference;
use model::gguf::Value as Metadata;
use model::{KvLayout, Model, ports};
use orind_testing::daemon::Daemon;
use orind_testing::engine::{self, ask, load};
use orind_testing::model_variants::saying;
use orind_testing::session::Session;
use orind_testing::tiny;
use plan::{Bucket, Outputs};
use serde_json::{Value, json};

const MODEL: &str = "tiny-llama-Q8_0";
const NONE: u32 = 0;
const MEAN: u32 = 1;
const FIRST: u32 = 2;
const LAST: u32 = 3;

/// Writes an embedding model with this pooling; returns the path.
fn pooled(dir: &Path, pooling: u32) -> String {
    saying(&tiny(MODEL), dir, &[("llama.pooling_type", Metadata::U32(pooling))])
}

/// Rows of a text after the last norm, computed by the reference.
fn rows(tokens: &[u32]) -> Vec<Vec<f64>> {
    let model = Model::open(tiny(MODEL)).unwrap();
    let layout = KvLayout { slots: 1, context: 64, ring: None };
    let bucket = Bucket::prefill(tokens.len(), 64, Outputs::Hidden);
    let mut session = Session::new(&Reference, &model, layout, &[bucket]);
    let rows: Vec<_> = (0..).zip(tokens).map(|(at, &token)| (token as i32, at, 0)).collect();
    session.load(0, &rows);
    session.run(0, 1);
    let all = session.output(0, ports::HIDDEN);
    all.chunks(model.hyperparameters().width)
        .map(|row| row.iter().copied().map(f64::from).collect())
        .collect()
}

/// The cosine of two vectors, the second of length 1.
fn cosine(a: &[f64], b: &[f32]) -> f64 {
    let length = a.iter().map(|x| x * x).sum::<f64>().sqrt();
    a.iter().zip(b).map(|(x, &y)| x * f64::from(y)).sum::<f64>() / length
}

/// With chunks of 8 rows or one chunk, concurrently or alone.
#[test]
fn embeddings_are_pooled_as_the_file_specifies() {
    let tokens: Vec<u32> = (0..21).map(|i| (i * 37 + 11) % 1000).collect();
    let rows = rows(&tokens);
    let mean = (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at]).sum::<f64>()).collect();
    let dir = tempfile::tempdir().unwrap();
    for (pooling, expected) in [(MEAN, mean), (FIRST, rows[0].clone()), (LAST, rows[20].clone())] {
        let file = pooled(dir.path(), pooling);
        let mut bits = Vec::new();
        for chunk in [8, 32] {
            let spec = engine::spec(&file, "cpu");
            let handle =
                engine::start(::engine::LoadSpec { prefill_chunk: chunk, slots: 2, ..spec });
            let request = || Request { embed: true, ..engine::request(tokens.clone(), 0) };
            let beside = handle.generate(engine::request([5, 6, 7], 20)).unwrap();
            let answer = ask(&handle, request());
            let embedding = answer.embedding.unwrap();
            let length: f64 = embedding.iter().map(|x| f64::from(*x).powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            let cosine = cosine(&expected, &embedding);
            assert!(cosine > 0.9995, "pooling {pooling}, chunks of {chunk}: {cosine}");
            assert_eq!(engine::collect(beside).unwrap().ids.len(), 20);
            assert_eq!(ask(&handle, request()).embedding.as_ref(), Some(&embedding), "alone");
            bits.push(embedding);
            handle.stop(Duration::from_secs(5));
        }
        assert_eq!(bits[0], bits[1], "chunks change no bit");
    }
}

#[test]
fn a_model_without_embeddings_is_refused() {
    let handle = engine::engine();
    let dir = tempfile::tempdir().unwrap();
    let info = load(&handle, engine::spec(pooled(dir.path(), NONE), "cpu")).unwrap();
    assert_eq!(info.embedding, None);
    let request = Request { embed: true, ..engine::request([1, 2], 0) };
    let refused = handle.generate(request).unwrap_err();
    assert!(matches!(refused, GenerateError::Invalid { field: "model", .. }), "{refused}");
    for (key, value, said) in [
        ("llama.pooling_type", Metadata::U32(4), "pooling_type"),
        ("llama.attention.causal", Metadata::Bool(false), "attention.causal"),
    ] {
        let file = saying(&tiny(MODEL), dir.path(), &[(key, value)]);
        let error = load(&handle, engine::spec(file, "cpu")).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn both_dialects_return_the_same_embeddings() {
    let dir = tempfile::tempdir().unwrap();
    let file = pooled(dir.path(), MEAN);
    let daemon = Daemon::launch(&format!("model = '{file}'\nthreads = 1\nslots = 2\ncontext = 64"));
    daemon.until("it serves", |status| status["state"]["name"] == "ready");
    let texts = json!(["one", "another one", "the third of them"]);
    let openai = |changes: Value| {
        let mut request = json!({"input": texts});
        request.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        daemon.post("/v1/embeddings", &request)
    };
    let whole = openai(json!({})).json();
    let data = whole["data"].as_array().unwrap();
    assert_eq!((data.len(), &whole["object"], &data[2]["index"]), (3, &json!("list"), &json!(2)));
    assert_eq!(whole["usage"]["prompt_tokens"], whole["usage"]["total_tokens"]);
    let width = data[0]["embedding"].as_array().unwrap().len();
    assert_eq!(daemon.get("/orin/v1/status").json()["model"]["embedding"], width);

    let ollama = daemon.post("/api/embed", &json!({"model": "saying:latest", "input": texts}));
    for (at, numbers) in ollama.json()["embeddings"].as_array().unwrap().iter().enumerate() {
        assert_eq!(numbers, &data[at]["embedding"]);
    }
    let one = daemon.post("/v1/embeddings", &json!({"input": "another one"})).json();
    assert_eq!(one["data"][0]["embedding"], data[1]["embedding"]);
    let short = openai(json!({"dimensions": 16})).json();
    let short = short["data"][0]["embedding"].as_array().unwrap().clone();
    let length: f64 = short.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!(short.len() == 16 && (length - 1.0).abs() < 1e-5, "{length}");
    let coded = openai(json!({"encoding_format": "base64"})).json();
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), (width * 4).div_ceil(3) * 4);

    for (changes, param) in [
        (json!({"encoding_format": "int8"}), "encoding_format"),
        (json!({"dimensions": width + 1}), "dimensions"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"input": []}), "input"),
        (json!({"input": "word ".repeat(100)}), "input"),
        (json!({"model": "other"}), "model"),
    ] {
        let answer = openai(changes.clone());
        assert!([400, 404].contains(&answer.status), "{}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{changes}");
    }
    // The model still generates text.
    let answer = daemon.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let shown = daemon.post("/api/show", &json!({"model": "saying"})).json();
    assert!(shown["capabilities"].as_array().unwrap().contains(&"embedding".into()), "{shown}");

    let other = Daemon::start("slots = 1\ncontext = 64");
    let refused = other.post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(refused.error(), (400, "unsupported_parameter".into()));
}
