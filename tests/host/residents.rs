//! Several models in one daemon: each request is answered by the model that it names. Models are loaded at start, on
//! request or by hand, and unloaded if another one needs their memory.

use std::thread;
use std::time::Duration;

use orind_testing::daemon::{self, Daemon, MODEL, orinctl};
use serde_json::{Value, json};

/// A model with another vocabulary.
const OTHER: &str = "synthetic:tiny-qwen3:q8_0";

fn ask(daemon: &Daemon, model: Option<&str>, prompt: &str, tokens: u32) -> daemon::Answer {
    let mut body = json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0 });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    daemon.post("/v1/completions", &body)
}

fn text(answer: &daemon::Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn resident<'a>(status: &'a Value, name: &str) -> &'a Value {
    let mut all = status["residents"].as_array().unwrap().iter();
    all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name} in {status}"))
}

fn is_there(daemon: &Daemon, name: &str) -> bool {
    resident(&daemon.get("/orin/v1/status").json(), name)["model"].is_object()
}

fn delete(daemon: &Daemon, name: &str) -> daemon::Answer {
    daemon.raw(&daemon::head("DELETE", &format!("/orin/v1/models/{name}"), "connection: close\r\n"))
}

#[test]
fn other_models_change_no_answer() {
    let lone = [MODEL, OTHER].map(|model| {
        let daemon = Daemon::launch(&format!("model = '{model}'\nthreads = 2\ncontext = 128\n"));
        daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
        daemon
    });
    let daemon = Daemon::start(&format!(
        "context = 128\n[[resident]]\nmodel = '{OTHER}'\nname = 'other'\nload = 'start'\nslots = 2\n\
         [[resident]]\nmodel = '{OTHER}'\nname = 'later'\nslots = 1\n"
    ));
    daemon::eventually("the daemon is ready", || daemon.get("/health").status == 200);
    assert!(is_there(&daemon, "other") && !is_there(&daemon, "later"));

    let prompts = ["once upon a time", "a b c d", "the quick brown fox", "1 2 3 4 5 6"];
    let want = |at: usize, prompt| text(&ask(&lone[at], None, prompt, 24));
    assert_ne!(want(0, prompts[0]), want(1, prompts[0]));
    thread::scope(|scope| {
        for (at, prompt) in prompts.into_iter().enumerate() {
            let (daemon, want) = (&daemon, &want);
            scope.spawn(move || {
                for round in 0..3 {
                    let first = if (at + round) % 2 == 0 { None } else { Some(MODEL) };
                    assert_eq!(text(&ask(daemon, first, prompt, 24)), want(0, prompt), "{prompt}");
                    // A model that is loaded on request is loaded once.
                    let name = if at % 2 == 0 { "other" } else { "later" };
                    assert_eq!(
                        text(&ask(daemon, Some(name), prompt, 24)),
                        want(1, prompt),
                        "{name}"
                    );
                }
            });
        }
    });
    assert_eq!(daemon.log().matches("model loaded").count(), 3, "{}", daemon.log());

    // Every dialect selects models.
    let chat = json!({ "model": "other", "max_tokens": 2, "messages": [{ "role": "user", "content": "a" }] });
    for route in ["/v1/chat/completions", "/v1/messages"] {
        let answer = daemon.post(route, &chat);
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("other")), "{route}");
    }
    let count = daemon.post("/v1/messages/count_tokens", &chat).json();
    assert!(count["input_tokens"].as_u64().unwrap() > 0, "{count}");
    let names = |list: Value, key: &str| -> Vec<String> {
        let all = list.as_array().unwrap().iter();
        all.map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
    };
    let listed = [MODEL, "other", "later"];
    assert_eq!(names(daemon.get("/v1/models").json()["data"].clone(), "id"), listed);
    assert_eq!(names(daemon.get("/api/tags").json()["models"].clone(), "name"), listed);
    let (status, code) = ask(&daemon, Some("nobody"), "a", 1).error();
    assert_eq!((status, &*code), (404, "model_not_found"));
    let told = ask(&daemon, Some("nobody"), "a", 1).message();
    assert!(told.contains(&format!("`{MODEL}`, `other`, `later`")), "{told}");

    let metrics = daemon.get("/metrics").body;
    for line in ["orind_model_ready{model=\"other\"} 1", "orind_slots 7"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let status = daemon.get("/orin/v1/status").json();
    assert_eq!(resident(&status, "other")["requests"]["failed"], 0);
    assert!(resident(&status, "later")["requests"]["finished"].as_u64().unwrap() >= 6);
}

#[test]
fn loading_and_unloading_a_model_keeps_the_others() {
    let daemon = Daemon::start("context = 128\n");
    let before = text(&ask(&daemon, None, "once upon a time", 12));
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = orinctl(home.path());
        let command = command.arg("--socket").arg(daemon.socket()).args(arguments);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    run(&["load", OTHER, "--beside", "--name", "more", "--slots", "2"]);
    assert!(run(&["status"]).contains("more: qwen3 Q8_0"));
    assert!(run(&["models"]).contains("also: more: qwen3 Q8_0"));
    let other = run(&["generate", "-m", "more", "-n", "8", "once upon a time"]);
    assert!(other.contains(&text(&ask(&daemon, Some("more"), "once upon a time", 8))), "{other}");
    assert_eq!(text(&ask(&daemon, None, "once upon a time", 12)), before);

    // A used name is refused; the default is the name of the file.
    let load = |body: Value| daemon.post("/orin/v1/models", &body);
    let (status, code) = load(json!({ "model": MODEL, "beside": true })).error();
    assert_eq!((status, &*code), (400, "invalid_value"));
    // Reloads a model with another number of slots.
    assert_eq!(load(json!({ "model": "more", "slots": 1 })).status, 200);
    let status = daemon.get("/orin/v1/status").json();
    assert_eq!(resident(&status, "more")["model"]["slots"], 1);

    let counted = |daemon: &Daemon| {
        let text = daemon.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with("orind_completion_tokens_total "));
        line.unwrap().rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    let tokens = counted(&daemon);
    run(&["unload", "more"]);
    assert_eq!(ask(&daemon, Some("more"), "a", 1).error(), (404, "model_not_found".into()));
    assert_eq!(delete(&daemon, "more").error(), (404, "model_not_found".into()));
    assert_eq!(counted(&daemon), tokens, "what it has done was done");
    // Watchdog and stop use the current engines.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(text(&ask(&daemon, None, "once upon a time", 12)), before);
    run(&["unload"]);
    assert_eq!(ask(&daemon, None, "a", 1).error(), (503, "no_model".into()));
}

/// Two models that each reserve most of the machine's memory, and a small one.
#[test]
fn the_least_recently_used_model_is_unloaded_to_make_room() {
    let daemon = Daemon::start("context = 128\n");
    let status = daemon.get("/orin/v1/status").json();
    let kv = status["model"]["memory"]["kv"].as_f64().unwrap() / (4.0 * 128.0);
    let available = status["memory"]["available"].as_f64().unwrap();
    // For 256 slots; the memory is reserved, not touched.
    let context = |part: f64| (part * available / kv / 256.0) as usize / 16 * 16;
    let large = |name: &str| {
        let context = context(0.55);
        format!(
            "[[resident]]\nmodel = '{MODEL}'\nname = '{name}'\nslots = 256\ncontext = {context}\n"
        )
    };
    drop(daemon);
    let huge = context(4.0).min(1 << 20);
    let daemon = Daemon::start(&format!(
        "context = 128\n{}{}[[resident]]\nmodel = '{MODEL}'\nname = 'small'\ncontext = 64\n\
         [[resident]]\nmodel = '{MODEL}'\nname = 'huge'\nslots = 256\ncontext = {huge}\n",
        large("one"),
        large("two")
    ));
    let want = text(&ask(&daemon, None, "once upon a time", 8));
    let there = || ["one", "two", "small"].map(|name| is_there(&daemon, name));
    for (name, expected) in [
        ("one", [true, false, false]),
        ("small", [true, false, true]),
        // The first model was used before the small one, so it is unloaded.
        ("two", [false, true, true]),
        ("one", [true, false, false]),
    ] {
        assert_eq!(text(&ask(&daemon, Some(name), "once upon a time", 8)), want, "{name}");
        assert_eq!(there(), expected, "after {name}: {}", daemon.log());
    }
    // A model that never fits is refused, and no model is unloaded.
    let (status, code) = ask(&daemon, Some("huge"), "a", 1).error();
    assert_eq!((status, &*code), (507, "out_of_memory"), "{}", daemon.log());
    let status = daemon.get("/orin/v1/status").json();
    let told = resident(&status, "huge")["state"]["last_error"]["code"].clone();
    assert_eq!(told, "out_of_memory");
    assert_eq!(text(&ask(&daemon, None, "once upon a time", 8)), want);
    assert_eq!(daemon.log().matches("model loaded").count(), 5, "{}", daemon.log());
}

#[test]
fn the_configuration_check_covers_each_model() {
    let dir = tempfile::tempdir().unwrap();
    let check = |resident: &str| {
        let file = dir.path().join("orind.toml");
        let state = dir.path().display();
        let text = format!(
            "socket = '/s'\ntune_dir = '{state}'\nstate_dir = '{state}'\nprefix_cache_dir = '{state}'\nmodel = '{MODEL}'\n\
             threads = 1\n[[resident]]\nname = 'more'\n{resident}\n"
        );
        std::fs::write(&file, text).unwrap();
        let output = daemon::orind().arg("--config").arg(file).arg("--check").output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };
    let (sound, said) = check(&format!("model = '{OTHER}'\nslots = 3"));
    assert!(
        sound && said.contains(&format!("# Additional model `more`. Model: {OTHER}")),
        "{said}"
    );
    assert!(said.contains("# 3 slots of"), "{said}");
    let (sound, said) = check("model = '/nowhere.gguf'");
    assert!(!sound && said.contains("resident `more`: cannot open /nowhere.gguf"), "{said}");
}

#[test]
fn a_model_that_cannot_be_loaded_affects_no_other() {
    let daemon = Daemon::start(
        "context = 128\n[[resident]]\nmodel = '/nowhere/a.gguf'\nname = 'absent'\nload = 'start'\n",
    );
    daemon::eventually("it is ready without it", || daemon.get("/health").status == 200);
    let status = daemon.get("/orin/v1/status").json();
    let state = &resident(&status, "absent")["state"];
    assert_eq!(state["last_error"]["code"], "model_not_found", "{status}");
    let (status, code) = ask(&daemon, Some("absent"), "a", 1).error();
    assert_eq!((status, &*code), (404, "model_not_found"));
    assert_eq!(ask(&daemon, None, "a", 1).status, 200);
}

#[test]
fn a_failed_additional_load_leaves_no_thread_and_no_entry() {
    let daemon = Daemon::start("context = 128");
    let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    let fail = |at: usize| {
        let request =
            json!({"model": "/nowhere/a.gguf", "name": format!("absent-{at}"), "beside": true});
        assert_eq!(daemon.post("/orin/v1/models", &request).error().0, 404);
    };
    fail(0);
    let before = threads();
    (1..30).for_each(fail);
    daemon::eventually("the engines' threads end", || threads() <= before);
    assert!(daemon.get("/orin/v1/status").json()["residents"].is_null());
    assert!(!daemon.get("/metrics").body.contains("absent-"));
}
