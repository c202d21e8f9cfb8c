//! `orinctl fingerprint`: what is on record holds for every instruction set. `ORIND_PROGRAM` asks a build for
//! aarch64, as in `recorded`.

use std::env;
use std::num::NonZeroUsize;
use std::process::Command;

use device::NUMERICS;
use device::cpu::{Cpu, Isa};
use model::Model;
use orind::parity::fingerprint::Fingerprint;
use orind_testing::program::outcome;
use orind_testing::{data, repository, tiny};
use serde_json::Value;
use tempfile::TempDir;

/// The model in a file of `tests/data/models`, or a synthetic one.
fn model(name: &str) -> String {
    if name.starts_with("synthetic:") { name.to_owned() } else { tiny(name) }
}

fn command(home: &TempDir, name: &str, arguments: &[&str]) -> Command {
    let program = super::recorded::program().0;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(["fingerprint", &model(name)]).args(arguments);
    command.env("XDG_DATA_HOME", home.path()).env("XDG_STATE_HOME", home.path());
    command
}

#[test]
fn every_instruction_set_gives_the_fingerprints_on_record() {
    let file = std::fs::read(data("fingerprints.json")).unwrap();
    let record: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(record["numerics"], NUMERICS, "a new version is recorded anew");
    let sets: Vec<&str> = match env::var_os("ORIND_PROGRAM") {
        Some(_) => vec!["neon", "scalar"],
        None => Isa::available().map(Isa::name).collect(),
    };
    let (home, mut wrong) = (TempDir::new().unwrap(), String::new());
    for (name, hash) in record["models"].as_object().unwrap() {
        for set in sets.iter().copied() {
            // One thread, which waits for no other on a machine with much to do.
            let expect = ["--expect", hash.as_str().unwrap(), "--cpu-isa", set, "--threads", "1"];
            let (code, _, errors) = outcome(&mut command(&home, name, &expect));
            if code != Some(0) {
                wrong += &format!("{name} {set}: {errors}\n");
            }
        }
    }
    assert_eq!(wrong, "");
}

/// What `amx` computes, where no processor here has it: `orinctl` knows no such set.
#[test]
fn a_modelled_matrix_unit_gives_the_fingerprints_on_record() {
    let record: Value =
        serde_json::from_slice(&std::fs::read(data("fingerprints.json")).unwrap()).unwrap();
    let device = Cpu::new(Isa::modelled(), NonZeroUsize::MIN);
    for (name, hash) in record["models"].as_object().unwrap() {
        // A file: synthetic ones are made in a home of their own.
        if !name.starts_with("synthetic:") {
            let found = Fingerprint::of(&device, &Model::open(tiny(name)).unwrap(), 600, &|_| {});
            assert_eq!(found.unwrap().hash, hash.as_str().unwrap(), "{name}");
        }
    }
}

#[test]
fn another_hash_is_an_error_that_names_both_and_parts_say_where() {
    let home = TempDir::new().unwrap();
    let name = "tiny-qwen3-Q8_0";
    let expect = ["--longest", "40", "--json", "--expect", "0123456789abcdef0123456789ABCDEF"];
    let (code, said, errors) = outcome(&mut command(&home, name, &expect));
    let told: Value = serde_json::from_str(&said).unwrap();
    let hash = told["hash"].as_str().unwrap();
    assert_eq!((code, &told["as_expected"]), (Some(1), &Value::Bool(false)));
    assert!(errors.contains(hash) && errors.contains("0123456789abcdef"), "{errors}");
    assert_eq!((&told["numerics"], &told["longest"]), (&NUMERICS.into(), &40.into()));

    let parts = told["parts"].as_array().unwrap();
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
    assert_eq!(outcome(&mut command(&home, name, &longer)).0, Some(1), "another set");
    let none = outcome(&mut command(&home, name, &["--longest", "0"]));
    assert_eq!(none.0, Some(2), "{none:?}");
}

#[test]
fn the_page_is_of_this_version() {
    let page = std::fs::read_to_string(repository("docs/numerics.md")).unwrap();
    assert!(page.contains(&format!("This page is version {NUMERICS}")), "docs/numerics.md");
}
