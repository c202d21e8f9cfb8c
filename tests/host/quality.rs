//! `orinctl perplexity`, `kld` and `quantize`: numbers compared with numpy's (`tests/data/quality/make.py`), and the
//! commands as programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use compare::quality::run::{self, Runner};
use compare::quality::score::{Divergence, Mean, Pairs};
use compare::quality::text::Text;
use device::Device;
use device::cpu::Cpu;
use device::reference::Reference;
use model::Model;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::orinctl;
use orind_testing::program::{said, stderr, stdout};
use orind_testing::{data, tiny};
use serde_json::Value;
use tempfile::TempDir;

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("quality/expected.json")).unwrap()).unwrap()
}

fn text(model: &Model, expected: &Value) -> Text {
    let ids = expected["ids"].as_array().unwrap();
    let ids = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let context = expected["context"].as_u64().unwrap() as usize;
    let bos = model.gguf().metadata().u32("tokenizer.ggml.bos_token_id").unwrap();
    Text::of(model, ids, Some(bos), context, None).unwrap()
}

fn divergence(device: &dyn Device, base: &str, model: &str, expected: &Value) -> Divergence {
    let (base, model) = (Model::open(tiny(base)).unwrap(), Model::open(tiny(model)).unwrap());
    let text = text(&base, expected);
    let stop = AtomicBool::new(false);
    let load = |model| Runner::open(model, device, text.context(), &stop, &|_| {}).unwrap();
    let (mut base, mut model) = (load(&base), load(&model));
    let mut pairs = Pairs::default();
    for chunk in 0..text.chunks() {
        run::divergence(&mut base, &mut model, &text, chunk, &mut pairs).unwrap();
    }
    assert_eq!(pairs.count(), expected["scored"].as_u64().unwrap());
    pairs.summarise()
}

fn near(what: &str, found: f64, expected: &Value, tolerance: f64) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= tolerance, "{what}: {found}, numpy has {expected}");
}

/// The reference is exact except for rounding and the F16 KV cache.
#[test]
fn numbers_of_the_reference_match_numpy() {
    check_reference(|name| name.ends_with("Q4_K_M"));
}

#[test]
#[ignore = "nightly"]
fn nightly_numbers_of_the_reference_match_numpy_for_more_types() {
    check_reference(|name| !name.ends_with("Q4_K_M"));
}

/// Compares the models whose name is selected with numpy's numbers.
fn check_reference(selected: impl Fn(&str) -> bool) {
    let expected = expected();
    let base = expected["base"].as_str().unwrap();
    let models = expected["models"].as_object().unwrap();
    for (name, numpy) in models.iter().filter(|(name, _)| selected(name)) {
        let found = divergence(&Reference, base, name, &expected);
        let part = |of: &str| numpy[of][0].as_f64().unwrap();
        near(&format!("{name} ln ppl"), found.perplexity.mean.ln(), &numpy["cost"][0], 2e-3);
        let relative = found.perplexity.error / found.perplexity.mean;
        near(&format!("{name} its error"), relative, &numpy["cost"][1], 1e-3);
        near(&format!("{name} ratio"), found.ratio.mean.ln(), &numpy["difference"][0], 4e-3);
        near(&format!("{name} KL"), found.kl.mean, &numpy["kl"][0], 0.02 * part("kl"));
        near(&format!("{name} its error"), found.kl.error, &numpy["kl"][1], 0.02 * part("kl"));
        near(&format!("{name} top-1"), found.top1_agreement.mean, &numpy["same"], 0.02);
        for (percent, value) in numpy["percentiles"].as_object().unwrap() {
            let part = percent.parse::<f64>().unwrap() / 100.0;
            let (_, found) = found.percentiles.iter().find(|(p, _)| *p == part).unwrap();
            let tolerance = 0.05 * value.as_f64().unwrap() + 1e-3;
            near(&format!("{name} {percent} %"), *found, value, tolerance);
        }
    }
}

/// The CPU uses 8-bit activations with quantised weights.
#[test]
fn numbers_of_the_cpu_are_near_numpys() {
    let expected = expected();
    let base = expected["base"].as_str().unwrap();
    let cpu = Cpu::detect();
    for (name, numpy) in expected["models"].as_object().unwrap() {
        let found = divergence(&cpu, base, name, &expected);
        near(
            &format!("{name} base"),
            found.base_perplexity.mean.ln(),
            &expected["base_cost"][0],
            5e-3,
        );
        near(&format!("{name} ln ppl"), found.perplexity.mean.ln(), &numpy["cost"][0], 0.05);
        let kl = numpy["kl"][0].as_f64().unwrap();
        near(&format!("{name} KL"), found.kl.mean, &numpy["kl"][0], 0.1 * kl + 8e-3);
    }
}

#[test]
fn chunks_begin_with_the_begin_token_and_score_their_second_half() {
    let model = Model::open(tiny("tiny-llama-Q8_0")).unwrap();
    let ids: Vec<u32> = (0..23).collect();
    let text = |context, chunks| Text::of(&model, ids.clone(), Some(1021), context, chunks);
    let whole = text(10, None).unwrap();
    assert_eq!((whole.chunks(), whole.first()), (2, 5));
    assert_eq!(whole.chunk(1), [1021, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    assert_eq!(text(10, Some(1)).unwrap().chunks(), 1);
    assert!(text(24, None).unwrap_err().to_string().contains("23 tokens, but a chunk needs 24"));
    assert!(text(3, None).is_err() && text(1 << 20, None).is_err());
    let none = Text::of(&model, ids.clone(), None, 10, None).unwrap();
    assert_eq!(none.chunk(0)[0], 0);
    assert!(Text::of(&model, vec![5000; 20], None, 10, None).is_err());
    // Tokens 6 to 9 of ten are predicted.
    let stop = AtomicBool::new(false);
    let mut runner = Runner::open(&model, &Cpu::detect(), 10, &stop, &|_| {}).unwrap();
    let mut cost = Mean::default();
    run::perplexity(&mut runner, &whole, 0, &mut cost).unwrap();
    assert_eq!(cost.count(), 4);
}

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn orinctl(&self, args: &[&str]) -> Command {
        let mut command = orinctl(self.0.path());
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.orinctl(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&said(&mut self.orinctl(args))).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

const WORDS: &str = "The cat sat on the mat and said that it was in the garden with the others. ";

#[test]
fn models_are_compared_in_one_call() {
    let home = Home::new();
    let file = home.file("text", WORDS.repeat(10));
    let (exact, q8, q4) =
        (tiny("tiny-llama-f16"), tiny("tiny-llama-Q8_0"), tiny("tiny-llama-Q4_K_M"));
    let common = [&*file, "--context", "64", "--chunks", "2", "--json"];
    let both = ["-m", &*exact, "-m", &*q8];
    let ppl = home.json(&[&["perplexity"], &common[..], &both].concat());
    let kld = ["--base", &*exact, "-m", &*exact, "-m", &*q8, "-m", &*q4, "--threads", "1"];
    let kld = home.json(&[&["kld"], &common[..], &kld, &["--speed"]].concat());
    let rows = kld["models"].as_array().unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    // A model compared with itself, with different numbers of threads.
    assert_eq!(
        (number(&rows[0]["kl"]["mean"]), number(&rows[0]["top1_agreement"]["mean"])),
        (0.0, 1.0)
    );
    for at in [0, 1] {
        let (one, other) = (&ppl["models"][at], &rows[at]);
        assert_eq!(one["perplexity"], other["perplexity"], "{one} {other}");
        assert_eq!((&one["scored"], &one["complete"]), (&62.into(), &true.into()));
    }
    let kl = |at: usize| number(&rows[at]["kl"]["mean"]);
    assert!(0.0 < kl(1) && kl(1) < kl(2), "{kld}");
    assert_eq!(rows[2]["type"], "Q4_K_M");
    assert_eq!(rows[2]["speeds"].as_array().unwrap().len(), 5);
    let table = home.run(&["kld", &file, "-c", "64", "--base", &exact, "-m", &q4]);
    let table = stdout(&table);
    for part in ["mean KL", "top-1 %", "99.9 %", "Q4_K_M", "tokens scored"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains("tok/s"), "{table}");
}

#[test]
fn unusable_texts_and_models_are_refused() {
    let home = Home::new();
    let text = home.file("text", WORDS.repeat(10));
    let (empty, short, bytes) =
        (home.file("empty", ""), home.file("short", "a"), home.file("bytes", b"abc\xff"));
    let bare = home.path("bare.gguf");
    strip(&tiny("tiny-llama-f16"), &bare);
    let (llama, qwen, bare) =
        (tiny("tiny-llama-Q8_0"), tiny("tiny-qwen3-Q8_0"), bare.to_str().unwrap());
    for (args, code, words) in [
        (&["perplexity", &empty, "-m", &llama][..], 1, "is empty"),
        (&["perplexity", &bytes, "-m", &llama], 1, "not UTF-8 at byte 3"),
        (&["perplexity", &short, "-m", &llama], 1, "a chunk needs 512"),
        (&["perplexity", "/nowhere", "-m", &llama], 1, "/nowhere cannot be read"),
        (&["perplexity", &text, "-m", bare], 1, "tokenizer.ggml.model"),
        (&["perplexity", &text, "-m", &llama, "-c", "100000"], 1, "4 to 2048"),
        (&["perplexity", &text], 2, "--model"),
        (&["perplexity", &text, "-m", &llama, "--chunks", "0"], 2, "--chunks"),
        (
            &["kld", &text, "-c", "64", "-m", &qwen, "--base", &llama],
            1,
            "a different vocabulary than",
        ),
    ] {
        let output = home.run(args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(words) && output.stdout.is_empty(), "{args:?}: {message}");
    }
}

/// Copies a model without its tokeniser.
fn strip(from: &str, to: &Path) {
    let from = model::gguf::Gguf::open(from).unwrap();
    let mut writer = model::gguf::Writer::new(to);
    for (key, value) in from.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer")) {
        writer.metadata(key, value.clone()).unwrap();
    }
    let tensors = from.tensors();
    let ids: Vec<_> =
        tensors.iter().map(|t| writer.tensor(&t.name, &t.shape, t.dtype).unwrap()).collect();
    let data = writer.begin().unwrap();
    for (tensor, id) in tensors.iter().zip(ids) {
        let mut bytes = vec![0; tensor.bytes as usize];
        from.read(tensor, 0, &mut bytes).unwrap();
        data.write(id, 0, &bytes).unwrap();
    }
    data.finish().unwrap();
}

#[test]
fn ctrl_c_prints_the_numbers_so_far() {
    let home = Home::new();
    let file = home.file("text", WORDS.repeat(20_000));
    let args = ["perplexity", &*file, "-m", &*tiny("tiny-llama-Q8_0"), "-c", "16", "--json"];
    let child = home.orinctl(&args).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    // On a busy machine there may be no numbers yet.
    if !output.stdout.is_empty() {
        let known: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &known["models"][0];
        assert_eq!(row["complete"], false, "{known}");
        assert_eq!(row["scored"].as_u64(), row["chunks"].as_u64().map(|chunks| 7 * chunks));
    }
}

#[test]
fn a_quantised_file_is_served_and_close_to_its_source() {
    let home = Home::new();
    let (from, made) = (tiny("tiny-llama-f16"), home.path("made.gguf"));
    let made = made.to_str().unwrap();
    let report = home.json(&["quantize", &from, made, "q4_k_m", "--dry-run", "--json"]);
    assert!(report["dry_run"] == true && home.files().is_empty(), "{report}");
    let message = said(&mut home.orinctl(&["quantize", &from, made, "Q6_K"]));
    assert!(message.contains("is Q6_K") && message.contains("bits a weight"), "{message}");
    let generated = home.run(&["generate", "-m", made, "The cat", "-n", "4", "--quiet"]);
    assert!(generated.status.success(), "{}", stderr(&generated));
    let text = home.file("text", WORDS.repeat(10));
    let args =
        ["kld", &text, "-c", "64", "--base", &from, "-m", made, "-m", &tiny("tiny-llama-Q6_K")];
    let kld = home.json(&[&args[..], &["--json"]].concat());
    let kl = |at: usize| kld["models"][at]["kl"]["mean"].as_f64().unwrap();
    // llama.cpp's own file of this type has about the same divergence from the source.
    assert!(kl(0) > 0.0 && kl(0) < 1.3 * kl(1) && kl(1) < 1.3 * kl(0), "{kld}");
}

#[test]
fn quantize_overwrites_no_file_without_force() {
    let home = Home::new();
    let mine = home.path("mine.gguf");
    std::fs::copy(tiny("tiny-llama-f16"), &mine).unwrap();
    let (mine, other) = (mine.to_str().unwrap().to_owned(), home.file("other.gguf", "kept"));
    let (folder, link) = (home.0.path().to_str().unwrap(), home.path("link.gguf"));
    std::fs::hard_link(&mine, &link).unwrap();
    let (link, new) = (link.to_str().unwrap(), home.path("new.gguf"));
    let (new, quantised) = (new.to_str().unwrap(), tiny("tiny-llama-Q8_0"));
    let before = (home.files(), std::fs::read(&mine).unwrap());
    for (args, code, words) in [
        (&[&*mine, &*mine, "q8_0", "--force"][..], 1, "is the input"),
        (&[&mine, link, "q8_0", "--force"], 1, "is the input"),
        (&[&mine, &other, "q8_0"], 1, "--force"),
        (&[&mine, folder, "q8_0"], 1, "is a directory"),
        (&[&mine, "/nowhere/x.gguf", "q8_0"], 1, "directory cannot be used"),
        (&[&mine, new, "q9_k_m"], 2, "there are: F32, F16"),
        (&[&quantised, new, "q4_0"], 1, "--requantize"),
        (&["/nowhere/x.gguf", new, "q4_0"], 1, "/nowhere/x.gguf"),
    ] {
        let output = home.run(&[&["quantize"], args].concat());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(words) && output.stdout.is_empty(), "{args:?}: {message}");
        assert_eq!((home.files(), std::fs::read(&mine).unwrap()), before, "{args:?}");
    }
    let forced = home.run(&["quantize", &mine, &other, "q8_0", "--force"]);
    assert!(forced.status.success(), "{}", stderr(&forced));
    assert!(Model::open(&other).is_ok() && home.files() == before.0);
}
