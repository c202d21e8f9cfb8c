//! `orinctl run` as a program: inputs and outputs of ONNX networks, tuning, and refused models.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nn::files::{Array, read_npy, write_npy};
use orind_kernels::nvrtc::Compiler;
use orind_testing::daemon::{Answer, Daemon, orinctl};
use orind_testing::external;
use orind_testing::nodes::cases;
use orind_testing::program::{outcome, said, tegra_sim};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes a model and its first input as files.
fn files(dir: &TempDir, name: &str) -> [PathBuf; 2] {
    let case = cases().into_iter().find(|case| case.name == name).unwrap();
    let (model, input) = (dir.path().join("model.onnx"), dir.path().join("input.pb"));
    std::fs::write(&model, case.model).unwrap();
    std::fs::write(&input, &case.inputs[0]).unwrap();
    [model, input]
}

fn run(model: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    outcome(orinctl(model.parent().unwrap()).arg("run").arg(model).args(arguments))
}

#[test]
fn a_network_computes_the_expected_outputs() {
    let dir = TempDir::new().unwrap();
    let [model, input] = files(&dir, "test_softmax_axis_1");
    let about = said(orinctl(model.parent().unwrap()).arg("run").arg(&model));
    for word in ["opset 13", "input", "x", "float", "3 x 4 x 5", "Softmax 1", "--input"] {
        assert!(about.contains(word), "{word} is not in {about}");
    }
    let answers = dir.path().join("answers");
    let input = format!("x={}", input.display());
    let out = answers.to_str().unwrap();
    let json = said(
        orinctl(model.parent().unwrap())
            .arg("run")
            .arg(&model)
            .args(["--input", &input, "--output", out, "--json"]),
    );
    let document: Value = serde_json::from_str(&json).unwrap();
    let values = document["outputs"]["y"]["values"].as_array().unwrap();
    let Array { shape, values: written } = read_npy(&answers.join("y.npy")).unwrap();
    assert_eq!((shape, values.len()), (vec![3, 4, 5], 60));
    assert!(values.iter().zip(&written).all(|(a, b)| a.as_f64().unwrap() as f32 == *b));
    let sum: f32 = (0..4).map(|i| written[5 * i]).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    // The same numbers in NumPy's format give the same outputs.
    let npy = dir.path().join("x.npy");
    let x: Vec<f32> = written.iter().map(|value| value.ln()).collect();
    write_npy(&npy, &Array { shape: vec![3, 4, 5], values: x }).unwrap();
    let table = said(orinctl(model.parent().unwrap()).arg("run").arg(&model).args([
        "--input",
        &format!("x={}", npy.display()),
        "--repeat",
        "3",
    ]));
    assert!(
        table.contains("median of 3 runs") && table.contains(&format!("{:.4}", written[0])),
        "{table}"
    );
}

/// On the simulated Orin. Without a compiler, a prebuilt kernel interprets every group.
#[test]
fn groups_are_compiled_once_if_there_is_a_compiler() {
    let dir = TempDir::new().unwrap();
    let [model, input] = files(&dir, "test_softmax_axis_1");
    let kept = dir.path().join("data/orind/tune/compiled");
    let answer = |compiler: Option<&str>| {
        let own = orinctl(dir.path());
        let mut command = tegra_sim();
        command.args(["run", "--", env!("CARGO_BIN_EXE_orinctl"), "run"]).arg(&model);
        command.args(["--backend", "nv", "--input", &format!("x={}", input.display())]);
        command.arg("--output").arg(dir.path());
        for (name, value) in own.get_envs() {
            value.map(|value| command.env(name, value));
        }
        compiler.map(|path| command.env("ORIND_NVRTC", path));
        said(&mut command);
        std::fs::read(dir.path().join("y.npy")).unwrap()
    };
    let stepwise = answer(Some("none"));
    assert!(!kept.exists());
    if let Err(why) = Compiler::load() {
        return println!("skipped: {why}");
    }
    let files = || -> Vec<(PathBuf, SystemTime)> {
        let files = std::fs::read_dir(&kept).unwrap().map(|file| file.unwrap());
        files.map(|file| (file.path(), file.metadata().unwrap().modified().unwrap())).collect()
    };
    assert!(answer(None) == stepwise);
    let first = files();
    assert!(!first.is_empty());
    assert!(answer(None) == stepwise);
    assert_eq!(files(), first, "compiled again");
    let damaged = &first[0].0;
    let whole = std::fs::read(damaged).unwrap();
    std::fs::write(damaged, &whole[1..]).unwrap();
    assert!(answer(None) == stepwise);
    assert!(std::fs::read(damaged).unwrap() == whole, "the damaged one is not made anew");
}

/// From the command line through a private daemon. Costs are counts, not times.
#[test]
fn groups_of_a_network_are_tuned() {
    let dir = TempDir::new().unwrap();
    let [model, _] = files(&dir, "test_softmax_axis_1");
    let own = orinctl(dir.path());
    let tune = |compiler: Option<&str>| {
        let mut command = tegra_sim();
        command.args(["run", "--trace"]).arg(dir.path().join("trace"));
        command.args(["--", env!("CARGO_BIN_EXE_orinctl"), "tune", "--network"]).arg(&model);
        command.args(["--private", "--backend", "nv", "--counted", "--beam", "1"]);
        for (name, value) in own.get_envs() {
            value.map(|value| command.env(name, value));
        }
        compiler.map(|path| command.env("ORIND_NVRTC", path));
        outcome(&mut command)
    };
    let (code, _, error) = tune(Some("none"));
    assert_eq!(code, Some(1), "{error}");
    for words in ["nothing of the network can be tuned on nv", "no NVRTC"] {
        assert!(error.contains(words), "{error}");
    }
    if let Err(why) = Compiler::load() {
        return println!("skipped: {why}");
    }
    let (code, table, error) = tune(None);
    assert_eq!(code, Some(0), "{error}");
    for words in ["model.onnx on ", "compiled here by nvrtc", "group_", "stored in"] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    let (_, table, _) = tune(None);
    assert!(table.contains("nothing to do") && table.contains("known before"), "{table}");
}

#[test]
fn unusable_models_are_refused_in_one_line() {
    let dir = TempDir::new().unwrap();
    let [model, input] = files(&dir, "test_basic_deform_conv_with_padding");
    let (code, out, error) = run(&model, &[]);
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(
        error.contains("an operator is not supported: DeformConv (opset 22, node 0"),
        "{error}"
    );
    let [model, _] = files(&dir, "test_relu");
    let (_, _, error) = run(&model, &["--shape", "x=3,4"]);
    assert!(error.contains("input `x`: [3, 4] has 2 axes, the model says 3"), "{error}");
    let (_, _, error) = run(&model, &["--shape", "x=3,4,five"]);
    assert!(error.contains("expected dimensions such as 1,3,224,224"), "{error}");
    let (_, _, error) = run(&model, &["--shape", "z=3,4,5"]);
    assert!(error.contains("input `z`: the model has no such input; it has: x"), "{error}");
    let (_, _, error) =
        run(&model, &["--input", &format!("x={}", input.with_extension("npy").display())]);
    assert!(error.contains("input.npy"), "{error}");
    let (_, _, error) = run(&input, &[]);
    assert!(error.contains("input.pb: "), "{error}");
}

/// Inputs in every format, and invalid requests.
#[test]
fn the_daemon_runs_networks() {
    let dir = TempDir::new().unwrap();
    let [model, _] = files(&dir, "test_softmax_axis_1");
    // A network is prepared for the next request only if a change of its file would be seen.
    std::thread::sleep(std::time::Duration::from_millis(150));
    let daemon = Daemon::launch("threads = 1");
    let x: Vec<f32> = (0..60).map(|i| i as f32 / 60.0).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let npy = dir.path().join("x.npy");
    write_npy(&npy, &Array { shape: vec![3, 4, 5], values: x.clone() }).unwrap();
    let npy = STANDARD.encode(std::fs::read(&npy).unwrap());
    let ask = |input: Value| {
        let model = model.to_str().unwrap();
        daemon.post("/orin/v1/run", &json!({"model": model, "inputs": {"x": input}}))
    };
    let forms = [
        json!({"shape": [3, 4, 5], "values": x}),
        json!({"shape": [3, 4, 5], "data": STANDARD.encode(&bytes)}),
        json!({"npy": npy}),
    ];
    let answers: Vec<Value> = forms.map(&ask).iter().map(Answer::json).collect();
    let prepared: Vec<&Value> = answers.iter().map(|answer| &answer["prepared"]).collect();
    assert_eq!(prepared, [&json!(false), &json!(true), &json!(true)]);
    let y = &answers[0]["outputs"]["y"];
    assert_eq!((&y["shape"], &y["type"]), (&json!([3, 4, 5]), &json!("float")));
    assert!(answers.iter().all(|answer| answer["outputs"]["y"] == *y));
    let sum: f64 = (0..4).map(|i| y["values"][5 * i].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    for (input, param) in [
        (json!({"shape": [3, 4], "values": x}), "inputs.x"),
        (json!({"shape": [60], "values": x}), "inputs.x"),
        (json!({"shape": [3, 4, 5], "data": "AAA="}), "inputs.x.data"),
        (json!({"npy": "AAAA"}), "inputs.x.npy"),
        (json!({"values": [1.0]}), "inputs.x"),
    ] {
        let answer = ask(input.clone());
        assert_eq!(answer.error(), (400, "invalid_value".into()), "{input}");
        assert_eq!(answer.json()["error"]["param"], param, "{input}");
    }
    let missing = json!({"model": "nothing", "inputs": {}});
    let answer = daemon.post("/orin/v1/run", &missing);
    assert_eq!(answer.error(), (404, "model_not_found".into()));
    let none = dir.path().join("input.pb");
    let none = json!({"model": none, "inputs": {}});
    assert_eq!(daemon.post("/orin/v1/run", &none).error(), (400, "invalid_model".into()));
}

#[test]
fn a_network_is_read_again_after_a_change_of_its_external_data() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("model.onnx");
    let place = [("location", "data")];
    std::fs::write(&model, external::model(&place, &place)).unwrap();
    let weights = |value: f32| {
        let bytes: Vec<u8> = [value; 8].iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(dir.path().join("data"), bytes).unwrap();
    };
    let daemon = Daemon::launch("threads = 1");
    let ask = || {
        let x = json!({"shape": [2, 2], "values": [0.0, 0.0, 0.0, 0.0]});
        let answer =
            daemon.post("/orin/v1/run", &json!({"model": model, "inputs": {"x": x}})).json();
        (answer["outputs"]["y"]["values"][0].as_f64().unwrap(), answer["prepared"] == true)
    };
    // A network is prepared for the next request only if a change of its files would be seen.
    let settle = || std::thread::sleep(std::time::Duration::from_millis(150));
    weights(1.0);
    settle();
    assert_eq!([ask(), ask()], [(2.0, false), (2.0, true)]);
    weights(3.0);
    settle();
    assert_eq!([ask(), ask()], [(6.0, false), (6.0, true)]);
}
