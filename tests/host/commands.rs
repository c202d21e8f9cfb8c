//! Commands of a user's first minutes: names of other programs' commands, names of models, `ps`,
//! `show`, `run` and `launch`.

use std::fs;
use std::path::Path;
use std::process::Command;

use orind_testing::daemon::{Daemon, MODEL, orinctl, orind};
use orind_testing::program::{built, outcome, said};
use orind_testing::tiny;
use serde_json::Value;

const ROOM: &str = "slots = 1\ncontext = 512";

fn with(daemon: &Daemon, home: &Path, args: &[&str]) -> Command {
    let mut command = orinctl(home);
    command.arg(args[0]).arg("--socket").arg(daemon.socket()).args(&args[1..]);
    command
}

/// Commands and options of ollama and llama.cpp that are not ours.
#[test]
fn a_command_of_another_program_names_ours() {
    let home = tempfile::tempdir().unwrap();
    for (args, ours) in [
        (&["serve"][..], "`orind --model MODEL`"),
        (&["server", "-m", "x.gguf"], "`orind --model MODEL`"),
        (&["create", "x", "-f", "Modelfile"], "`orinctl load FILE`"),
        (&["cp", "a", "b"], "`orinctl load FILE --beside --name NAME`"),
        (&["push", "a"], "orind uploads no models"),
        (&["logs"], "`journalctl -u orind`"),
        (&["version"], "`orinctl --version`"),
        (&["-hf", "owner/repo:Q8_0"], "`orinctl pull NAME`"),
        (&["chat", "-hf", "owner/repo:Q8_0"], "`orinctl pull NAME`"),
        (&["--hf-repo=owner/repo"], "`orinctl pull NAME`"),
        (&["-m", "x.gguf", "-p", "Hello"], "`orinctl chat -m MODEL`"),
        (&["chatt"], "'chat'"),
    ] {
        let (code, out, error) = outcome(orinctl(home.path()).args(args));
        assert_eq!((code, &*out), (Some(2), ""), "{args:?}: {error}");
        assert!(error.contains(ours), "{args:?}: {error}");
        assert_eq!(error.matches("error:").count(), 1, "{args:?}: {error}");
    }
}

/// The daemon's command line, too; errors have no numbers of the system's.
#[test]
fn a_command_line_of_another_server_names_ours() {
    let home = tempfile::tempdir().unwrap();
    for (args, ours) in [
        (&["serve"][..], "`orind --model MODEL`"),
        (&["ps"], "`orinctl ps`"),
        (&["-hf", "owner/repo:Q8_0"], "`orinctl pull NAME`"),
        (&["-m", "x.gguf", "--port", "8080"], "`--listen ADDR:PORT`"),
        (&["-m", "x.gguf", "-ngl", "99"], "`--backend NAME`"),
    ] {
        let (code, out, error) = outcome(orind().args(args));
        assert_eq!((code, &*out), (Some(2), ""), "{args:?}: {error}");
        assert!(error.contains(ours), "{args:?}: {error}");
    }
    let socket = home.path().join("s");
    let (code, _, error) = outcome(orind().args(["--model", "/none.gguf", "--socket"]).arg(socket));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("No such file") && !error.contains("os error"), "{error}");
}

#[test]
fn commands_of_ollama_work() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(ROOM);
    let run = |args: &[&str]| said(&mut with(&daemon, home.path(), args));
    for list in ["list", "ls"] {
        assert_eq!(run(&[list]), run(&["models"]));
    }
    let loaded = run(&["ps"]);
    for word in ["NAME", MODEL, "Q8_0", "cpu", "1 x 512"] {
        assert!(loaded.contains(word), "{word} in {loaded}");
    }
    let json: Value = serde_json::from_str(&run(&["ps", "--json"])).unwrap();
    assert_eq!(json["loaded"]["id"], MODEL);
    assert!(run(&["show"]).contains("llama"));
    assert_eq!(run(&["show"]), run(&["show", MODEL]));
    assert_eq!(run(&["stop"]), "unloaded\n");
    assert!(run(&["ps"]).contains("no model is loaded"));
}

#[test]
fn a_model_is_shown_from_its_file() {
    let home = tempfile::tempdir().unwrap();
    let file = tiny("tiny-qwen3-Q8_0");
    let show = |more: &[&str]| said(orinctl(home.path()).args(["show", &*file]).args(more));
    let text = show(&[]);
    for words in ["architecture  qwen3", "weight types  Q8_0, F32", "vocabulary    1024", "chat"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let json: Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(json["layers"], 2);
    assert_eq!(
        show(&["--template"]).trim_end(),
        json["chat_template"].as_str().unwrap().trim_end()
    );
    let keys = show(&["--metadata"]);
    assert!(keys.contains("qwen3.block_count") && keys.contains("1024 values"), "{keys}");
}

/// Each command accepts the same names, and suggests the nearest.
#[test]
fn an_unknown_model_suggests_the_nearest() {
    let home = tempfile::tempdir().unwrap();
    fs::copy(tiny("tiny-llama-Q8_0"), home.path().join("tiny-llama-Q8_0.gguf")).unwrap();
    let commands = [
        &["plan"][..],
        &["show"],
        &["fingerprint"],
        &["run"],
        &["chat", "-m"],
        &["generate", "x", "-m"],
        &["bench", "-m"],
        &["rm"],
    ];
    for command in commands {
        let run = |name: &str| {
            let mut orinctl = orinctl(home.path());
            let (code, out, error) = outcome(orinctl.current_dir(&home).args(command).arg(name));
            assert_eq!((code, &*out), (Some(1), ""), "{command:?}: {error}");
            let line = error.lines().find(|line| line.starts_with("error:")).unwrap().to_owned();
            assert!(!line.contains("os error"), "{line}");
            assert!(line.len() < 120, "{line}");
            line
        };
        let error = run("tiny-lama-Q8_0.gguf");
        let wanted =
            "error: there is no model tiny-lama-Q8_0.gguf; did you mean tiny-llama-Q8_0.gguf?";
        assert_eq!(error, wanted, "{command:?}");
        let error = run("synthetic:tiny-lama:q8_0");
        assert!(error.ends_with(&format!("did you mean {MODEL}?")), "{command:?}: {error}");
        assert_eq!(run("utterly-different"), "error: there is no model utterly-different");
        let error = run("hf.co/owner/repo");
        assert!(error.contains("hf.co/owner/repo is not downloaded"), "{command:?}: {error}");
    }
}

#[test]
fn a_language_model_runs_like_a_network() {
    let home = tempfile::tempdir().unwrap();
    let file = tiny("tiny-llama-Q8_0");
    let daemon = Daemon::start(ROOM);
    let answer = said(&mut with(&daemon, home.path(), &["run", MODEL, "Name three primes."]));
    assert!(answer.len() > 10, "{answer}");
    // A chat in a private daemon; standard input is empty.
    let (code, out, error) = outcome(orinctl(home.path()).args(["run", &*file]));
    assert_eq!((code, &*out), (Some(0), ""), "{error}");
    assert!(error.contains("/help lists commands"), "{error}");
    let (code, _, error) = outcome(orinctl(home.path()).args(["run", &*file, "--json"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("--json applies to ONNX networks"), "{error}");
    let (code, _, error) = outcome(orinctl(home.path()).args(["run", "/nowhere/x.onnx"]));
    assert_eq!((code, error.matches("/nowhere/x.onnx").count()), (Some(1), 1), "{error}");
}

#[test]
fn a_client_reaches_the_daemon_through_a_port_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(ROOM);
    let status = format!(
        "{} status --json --tcp \"${{OLLAMA_HOST#http://}}\"",
        built().join("orinctl").display()
    );
    let script = format!(
        "test \"$OPENAI_BASE_URL\" = \"$OLLAMA_HOST/v1\" && echo $OPENAI_MODEL && {status}"
    );
    let out = said(&mut with(&daemon, home.path(), &["launch", "sh", "-c", &script]));
    let (model, status) = out.split_once('\n').unwrap();
    assert_eq!(model, MODEL);
    let status: Value = serde_json::from_str(status).unwrap();
    assert_eq!(status["pid"], daemon.pid());
    // Its exit code, and what it is.
    assert_eq!(
        outcome(&mut with(&daemon, home.path(), &["launch", "sh", "-c", "exit 7"])).0,
        Some(7)
    );
    let (code, _, error) = outcome(&mut with(&daemon, home.path(), &["launch", "no-such-program"]));
    assert_eq!(code, Some(1));
    assert!(
        error.contains("no-such-program cannot be started: No such file")
            && error.contains("docs/clients.md"),
        "{error}"
    );

    // With a private daemon.
    let model = ["launch", "-m", MODEL, "--context", "256", "sh", "-c", "echo $OPENAI_MODEL"];
    assert_eq!(said(orinctl(home.path()).args(model)), format!("{MODEL}\n"));
}

#[test]
fn the_settings_of_a_client_are_printed() {
    let home = tempfile::tempdir().unwrap();
    let print = |program: &str| {
        let args = ["launch", "--print", "-m", "my model", "--tcp", "orin:80", program, "-x"];
        said(orinctl(home.path()).args(args))
    };
    for (program, words) in [
        ("claude", "export ANTHROPIC_BASE_URL=http://orin:80\n"),
        ("claude", "unset ANTHROPIC_API_KEY\n"),
        ("claude", "export ANTHROPIC_DEFAULT_HAIKU_MODEL='my model'\n"),
        ("codex", "\ncodex -c 'model_provider=\"orind\"' -c 'model_providers.orind={"),
        ("opencode", "export OPENCODE_CONFIG_CONTENT='{"),
        ("aider", "\naider --model 'openai/my model' -x\n"),
        ("python3", "export OPENAI_BASE_URL=http://orin:80/v1\n"),
    ] {
        let text = print(program);
        assert!(text.contains(words), "{words} in {text}");
        assert!(text.ends_with(" -x\n"), "{text}");
    }
}

#[test]
fn models_on_this_machine_come_first() {
    let (home, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::copy(tiny("tiny-qwen3-Q8_0"), dir.path().join("mine.gguf")).unwrap();
    let daemon = Daemon::start(&format!("{ROOM}\nmodels_dir = '{}'", dir.path().display()));
    let text = said(&mut with(&daemon, home.path(), &["models"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("loaded: "), "{text}");
    assert!(lines.iter().any(|line| line.trim_start().starts_with("mine ")), "{text}");
    assert!(!lines.iter().any(|line| line.starts_with("  synthetic:")), "{text}");
    assert!(lines.last().unwrap().contains("synthetic models need no file"), "{text}");
    let json = said(&mut with(&daemon, home.path(), &["models", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["available"][0]["model"], "mine");
    assert_eq!(json["available"].as_array().unwrap().last().unwrap()["synthetic"], true);
    // Every command accepts the names of the list.
    assert!(said(&mut with(&daemon, home.path(), &["show", "mine"])).contains("qwen3"));
    said(&mut with(&daemon, home.path(), &["load", "mine"]));
    assert!(said(&mut with(&daemon, home.path(), &["ps"])).contains("mine"));
    assert!(said(&mut with(&daemon, home.path(), &["show", "mine"])).contains("qwen3"));

    // Without a daemon, the models are there too.
    let text = said(orinctl(home.path()).arg("models"));
    assert!(text.starts_with("loaded: nothing, no daemon runs\n"), "{text}");
    assert!(text.contains("synthetic models need no file"), "{text}");
}

/// The properties of a synthetic model are shown without writing its file.
#[test]
fn a_synthetic_model_is_shown_without_its_file() {
    let home = tempfile::tempdir().unwrap();
    let mut command = orinctl(home.path());
    let shown = said(
        command.args(["show", "synthetic:qwen3-30b-a3b:f16"]).env("XDG_CACHE_HOME", home.path()),
    );
    assert!(shown.contains("qwen3moe") || shown.contains("qwen3"), "{shown}");
    assert!(!home.path().join("orind/synthetic").exists());
}
