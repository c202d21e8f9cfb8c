//! `orinctl fingerprint`: every instruction set gives the recorded hashes, for models of a real width and for a small
//! one of every architecture. `ORIND_PROGRAM` names an aarch64 build, as in `recorded`, which runs short prompts.

use std::env;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;

use device::NUMERICS;
use device::cpu::{Cpu, Isa};
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{Model, synthetic};
use orind_testing::program::outcome;
use orind_testing::{data, repository, tiny};
use parity::fingerprint::Fingerprint;
use serde_json::Value;
use tempfile::TempDir;

/// Tokens of the longest prompt of an architecture's model: more than a span.
const LONGEST: usize = 40;

/// File of a model of `tests/data/models`, or name of a synthetic one.
fn model(name: &str) -> String {
    if name.starts_with("synthetic:") { name.to_owned() } else { tiny(name) }
}

/// Writes an architecture's model in Q8_0 to `dir`; returns the path.
fn quantised(architecture: &str, dir: &Path) -> String {
    let file = data(&format!("architectures/{architecture}.gguf"));
    let path = dir.join(format!("{architecture}.gguf"));
    let conversion = Conversion::new(Gguf::open(file).unwrap(), Mix::Q8_0, false).unwrap();
    conversion.write(&path, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Recorded hashes of models or architectures, by name.
fn record(of: &str) -> Vec<(String, String)> {
    let file = std::fs::read(data("fingerprints.json")).unwrap();
    let record: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(record["numerics"], NUMERICS, "a new version is recorded anew");
    let hash = |(name, hash): (&String, &Value)| (name.clone(), hash.as_str().unwrap().to_owned());
    record[of].as_object().unwrap().iter().map(hash).collect()
}

fn command(home: &TempDir, model: &str, arguments: &[&str]) -> Command {
    let program = super::recorded::program().0;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(["fingerprint", model]).args(arguments);
    command.env("XDG_DATA_HOME", home.path()).env("XDG_STATE_HOME", home.path());
    command
}

/// Errors of each instruction set whose hash differs.
fn wrong(home: &TempDir, model: &str, longest: usize, hash: &str) -> String {
    let sets: Vec<&str> = match env::var_os("ORIND_PROGRAM") {
        Some(_) => vec!["neon", "scalar"],
        None => Isa::available().map(Isa::name).collect(),
    };
    let longest = &longest.to_string();
    let of = |set| {
        // A single thread never waits for another one on a busy machine.
        let on = ["--longest", longest, "--expect", hash, "--cpu-isa", set, "--threads", "1"];
        let (code, _, errors) = outcome(&mut command(home, model, &on));
        if code == Some(0) { String::new() } else { format!("{model} {set}: {errors}\n") }
    };
    thread::scope(|scope| {
        let asked: Vec<_> = sets.into_iter().map(|set| scope.spawn(move || of(set))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// The hash of short prompts on a device.
fn short(device: &Cpu, model: &str) -> String {
    let model = Model::open(synthetic::locate(model, &mut |_, _| ()).unwrap()).unwrap();
    Fingerprint::of(device, &model, LONGEST, &|_| ()).unwrap().hash
}

#[test]
fn every_instruction_set_gives_the_recorded_fingerprints() {
    check_models(|name| ["tiny-llama-Q4_K_M", "tiny-qwen3-Q8_0", "tiny-llama-f16"].contains(&name));
}

#[test]
#[ignore = "nightly"]
fn nightly_every_instruction_set_gives_all_recorded_fingerprints() {
    check_models(|_| true);
}

/// Checks the models whose name is selected, or all if emulated. Long prompts take minutes under emulation: short ones
/// are compared with this machine's results instead, and `orind-simd`'s tests cover longer contexts.
fn check_models(selected: impl Fn(&str) -> bool) {
    let (home, emulated) = (TempDir::new().unwrap(), env::var_os("ORIND_PROGRAM").is_some());
    let of = |(name, hash): &(String, String)| match model(name) {
        model if emulated => wrong(&home, &model, LONGEST, &short(&Cpu::detect(), &model)),
        model => wrong(&home, &model, 600, hash),
    };
    let models = record("models");
    let selected = models.iter().filter(|(name, _)| emulated || selected(name));
    assert_eq!(selected.map(of).collect::<String>(), "");
}

#[test]
fn every_instruction_set_gives_the_recorded_fingerprint_of_every_architecture() {
    let home = TempDir::new().unwrap();
    let all = record("architectures");
    let made = std::fs::read_dir(data("architectures")).unwrap();
    let made =
        made.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "gguf"));
    assert_eq!(all.len(), made.count(), "one hash for each file");
    let of = |(name, hash): &(String, String)| {
        wrong(&home, &quantised(name, home.path()), LONGEST, hash)
    };
    assert_eq!(all.iter().map(of).collect::<String>(), "");
}

#[test]
fn the_modelled_matrix_unit_gives_recorded_fingerprints() {
    check_matrix_unit(|name| ["tiny-llama-Q4_K_M", "tiny-llama-f16", "llama"].contains(&name));
}

#[test]
#[ignore = "nightly"]
fn nightly_the_modelled_matrix_unit_gives_all_recorded_fingerprints() {
    check_matrix_unit(|_| true);
}

/// A model of `amx` for processors without it; `orinctl` does not offer it. Checks the models whose name is selected.
fn check_matrix_unit(selected: impl Fn(&str) -> bool) {
    let (home, device) = (TempDir::new().unwrap(), Cpu::new(Isa::modelled(), NonZeroUsize::MIN));
    let check = |file: &str, hash: &str| assert_eq!(short(&device, file), hash, "{file}");
    for (name, _) in record("models").into_iter().filter(|(name, _)| selected(name)) {
        let file = model(&name);
        check(&file, &short(&Cpu::detect(), &file));
    }
    for (name, hash) in record("architectures").into_iter().filter(|(name, _)| selected(name)) {
        check(&quantised(&name, home.path()), &hash);
    }
}

#[test]
fn a_different_hash_is_an_error_with_both_hashes() {
    let home = TempDir::new().unwrap();
    let name = &tiny("tiny-qwen3-Q8_0");
    let expect = ["--longest", "40", "--json", "--expect", "0123456789abcdef0123456789ABCDEF"];
    let (code, said, errors) = outcome(&mut command(&home, name, &expect));
    let report: Value = serde_json::from_str(&said).unwrap();
    let hash = report["hash"].as_str().unwrap();
    assert_eq!((code, &report["as_expected"]), (Some(1), &Value::Bool(false)));
    assert!(errors.contains(hash) && errors.contains("0123456789abcdef"), "{errors}");
    assert_eq!((&report["numerics"], &report["longest"]), (&NUMERICS.into(), &40.into()));

    let parts = report["parts"].as_array().unwrap();
    let of = |begin: &str| -> Vec<&Value> {
        let named = parts.iter().filter(|part| part["name"].as_str().unwrap().starts_with(begin));
        named.map(|part| &part["hash"]).collect()
    };
    assert_eq!(of("prompt of").len(), 6, "up to 33 tokens");
    let chunks = of("chunks of");
    assert!(chunks.len() == 4 && chunks.iter().all(|hash| *hash == chunks[0]), "{chunks:?}");

    let again = ["--longest", "40", "--threads", "2", "--expect", &hash.to_uppercase()];
    assert_eq!(outcome(&mut command(&home, name, &again)).0, Some(0));
    let longer = ["--longest", "41", "--expect", hash];
    assert_eq!(
        outcome(&mut command(&home, name, &longer)).0,
        Some(1),
        "a fingerprint of other prompts"
    );
    let none = outcome(&mut command(&home, name, &["--longest", "0"]));
    assert_eq!(none.0, Some(2), "{none:?}");
}

#[test]
fn docs_numerics_describes_this_version() {
    let page = std::fs::read_to_string(repository("docs/numerics.md")).unwrap();
    assert!(page.contains(&format!("This page is version {NUMERICS}")), "docs/numerics.md");
}
