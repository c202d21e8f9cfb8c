//! The LoRA example as a test: trains an adapter on one CPU thread to the loss stated here, and asks a daemon that has
//! loaded it.

#[expect(dead_code, reason = "an example's main")]
#[path = "../../examples/lora.rs"]
mod example;

use std::num::NonZeroUsize;
use std::path::Path;

use device::cpu::{Cpu, Isa};
use orind_testing::daemon::{Daemon, orind};
use orind_testing::tiny;
use serde_json::{Value, json};

const MODEL: &str = "tiny-llama-f16";

#[test]
#[ignore = "nightly"]
fn nightly_a_trained_adapter_changes_answers_and_the_model_does_not() {
    let model = tiny(MODEL);
    let llama = example::Llama::open(Path::new(&model)).unwrap();
    let device = Cpu::new(Isa::detect(), NonZeroUsize::MIN);
    let mut losses = Vec::new();
    let adapter = llama.teach(&device, example::STEPS, |_, loss| losses.push(loss)).unwrap();
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("loss {first} at first, {last} at the end");
    assert!(first > 5.0 && last < 0.001, "{first} at first, {last} at the end");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("taught.gguf");
    llama.write(&adapter, &path).unwrap();
    let mut command = orind();
    command.arg("--lora").arg(format!("{}=0", path.display()));
    let daemon =
        Daemon::launch_with(command, &format!("model = '{model}'\nthreads = 2\ncontext = 128"));
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    let said = |model: &str, asked: &str| -> (Value, Value) {
        let body = json!({"model": model, "prompt": asked, "max_tokens": 64, "temperature": 0});
        let choice = &daemon.post("/v1/completions", &body).json()["choices"][0];
        (choice["text"].clone(), choice["finish_reason"].clone())
    };
    for [asked, answer] in example::LESSONS {
        assert_eq!(said(&format!("{MODEL}:taught"), asked), (json!(answer), json!("stop")));
        assert_ne!(said(MODEL, asked).0, json!(answer));
    }
}
