//! The web page at `/`, with and without a browser.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use orind_testing::browser::{Browser, chromium};
use orind_testing::daemon::{Answer, Daemon, head};
use serde_json::json;

use super::tcp::address;
use super::{CHAT, MODEL, said};

const TOKEN: &str = "correct-horse-battery-staple";

#[test]
fn the_page_is_one_file_with_a_strict_policy() {
    let daemon = Daemon::launch("");
    let page = daemon.get("/");
    assert_eq!(page.status, 200);
    for header in [
        "content-type: text/html; charset=utf-8",
        "default-src 'none'",
        "script-src 'sha256-",
        "x-content-type-options: nosniff",
    ] {
        assert!(page.headers.contains(header), "{header} in {}", page.headers);
    }
    // The page loads nothing from other places.
    for word in ["http://", "https://", "src=", "@import", "url(", "innerHTML"] {
        let places = page.body.matches(word).count();
        let namespace = usize::from(word == "http://");
        assert_eq!(places, namespace, "{word}");
    }
    assert_eq!(daemon.post("/", &json!({})).error(), (405, "method_not_allowed".into()));
}

/// Markdown, the messages of a conversation, and the turns that are dropped from it.
#[test]
fn the_functions_of_the_page_work_without_a_browser() {
    if !Command::new("node").arg("--version").output().is_ok_and(|node| node.status.success()) {
        println!("skipped: no node on this machine");
        return;
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let mut run = Command::new("node");
    run.arg(format!("{root}/tests/host/daemon/node/page.mjs"));
    assert_eq!(said(run.arg(format!("{root}/crates/server/src/page"))), "ok\n");
}

/// Forwards connections to a unix socket, as `ssh -L` does.
fn forward(socket: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(daemon) = UnixStream::connect(&socket) else { continue };
            let (mut from, mut to) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let (mut from, mut to) = (daemon, client);
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    url
}

/// A browser, if there is one.
#[expect(clippy::print_stdout, reason = "a test says that it is skipped")]
fn browser(folder: &Path) -> Option<Browser> {
    let program = chromium();
    if program.is_none() {
        println!("skipped: no chromium on this machine");
    }
    program.map(|program| Browser::start(&program, folder))
}

const READY: &str = "document.querySelector('#state').textContent === 'ready'";
/// The last turn has ended with an answer.
const ANSWERED: &str = "!stop && conversation.turns.at(-1)?.note?.includes(' out')";

/// Limits the tokens of answers to `atMost`, and collects the bodies of requests in `bodies`.
fn watch(browser: &mut Browser) {
    browser.evaluate(
        "window.asked = fetch; window.bodies = []; window.atMost = 12; window.fetch = (path, options) => { \
           if (options?.body && path.includes('chat')) { \
             const body = JSON.parse(options.body); \
             bodies.push(structuredClone(body)); \
             if (atMost) body.max_completion_tokens = atMost; \
             body.ignore_eos = true; \
             options.body = JSON.stringify(body); \
           } \
           return asked(path, options); }; 0",
    );
}

/// Asks a question, and waits for its answer.
fn ask(browser: &mut Browser, question: &str) {
    browser.write(question);
    browser.press("Enter");
    browser.until(ANSWERED);
}

/// Presses the last button with this text, by keyboard.
fn push(browser: &mut Browser, text: &str) {
    let find = format!(
        "[...document.querySelectorAll('button')].filter(b => b.textContent.startsWith('{text}')).at(-1).focus()"
    );
    browser.evaluate(&find);
    browser.press("Enter");
}

fn number(browser: &mut Browser, script: &str) -> u64 {
    browser.evaluate(script).as_f64().unwrap_or_else(|| panic!("{script}")) as u64
}

#[test]
fn the_page_works_by_keyboard_alone() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let daemon = Daemon::start("slots = 1\ncontext = 2048");
    browser.open(&forward(&daemon.socket()), (1280, 800), "light");
    browser.until(READY);
    assert_eq!(browser.evaluate("document.querySelector('#model').textContent"), MODEL);

    // Tab reaches every control in visual order.
    browser
        .evaluate("document.querySelector('#options').open = true; document.activeElement.blur()");
    let mut seen = Vec::new();
    for _ in 0..16 {
        browser.press("Tab");
        let name = "document.activeElement.id || document.activeElement.className || document.activeElement.localName";
        seen.push(browser.evaluate(name).as_str().unwrap().to_owned());
    }
    let controls = [
        "chats",
        "model",
        "meters",
        "again",
        "log",
        "question",
        "send",
        "attach",
        "summary",
        "system",
        "temperature",
    ];
    for id in controls {
        assert!(seen.contains(&id.to_owned()), "{id} in {seen:?}");
    }

    // The answer equals that of other clients.
    browser.evaluate("document.querySelector('#temperature').value = 0; document.querySelector('#system').value = 'Be brief.'; document.querySelector('#question').focus()");
    watch(&mut browser);
    ask(&mut browser, "<img src=x onerror=alert(1)> **Hello**");
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<img src=x onerror=alert(1)> **Hello**"}]);
    assert_eq!(browser.evaluate("bodies[0]")["messages"], messages);
    let alone = json!({"messages": messages, "temperature": 0, "max_completion_tokens": 12, "ignore_eos": true});
    let alone = daemon.post(CHAT, &alone).json();
    let alone = alone["choices"][0]["message"]["content"].clone();
    assert_eq!(browser.evaluate("conversation.turns[0].answer"), alone);
    assert_eq!(browser.evaluate("document.querySelectorAll('article img').length"), 0);
    let took = browser.evaluate("document.querySelector('article.assistant .took').textContent");
    assert!(took.as_str().unwrap().contains(" out, first after "), "{took}");

    // Escape ends an answer in the page and in the daemon.
    browser.evaluate("atMost = 0; document.querySelector('#temperature').value = 2");
    browser.write("Tell me all.");
    browser.press("Enter");
    browser.until("document.querySelector('#send').textContent === 'Stop'");
    browser.press("Escape");
    browser.until("document.querySelector('#send').textContent === 'Send'");
    daemon.until("the slot is free", |status| status["requests"]["active"] == 0);
    // The page plots the machine's state.
    browser.until("!!document.querySelector('#numbers polyline')");
    let numbers = browser.evaluate("document.querySelector('#numbers').textContent");
    for word in ["Decode", "Prefill", "Requests", "of 1 slots", "KV cache"] {
        assert!(numbers.as_str().unwrap().contains(word), "{word} in {numbers}");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn the_page_follows_the_answer_until_its_reader_scrolls() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let daemon = Daemon::start("slots = 1\ncontext = 4096");
    browser.open(&forward(&daemon.socket()), (390, 400), "light");
    browser.until(READY);
    watch(&mut browser);
    browser.evaluate("atMost = 300; document.querySelector('#question').focus()");
    // A long question is at its end too when the answer begins.
    ask(&mut browser, &"A question of many words. ".repeat(40));
    assert!(number(&mut browser, "log.scrollHeight") > 800);
    assert_eq!(number(&mut browser, "distance()"), 0);
    browser.evaluate("atMost = 0");
    browser.write("And?");
    browser.press("Enter");
    browser.until("!!stop && conversation.turns[1].answer.length > 100");
    assert!(number(&mut browser, "distance()") < 40);
    browser.evaluate("log.scrollTop -= 200; 0");
    browser.until("!following && !document.querySelector('#down').hidden");
    let at = number(&mut browser, "log.scrollTop");
    let length = number(&mut browser, "conversation.turns[1].answer.length");
    browser.until(&format!("!stop || conversation.turns[1].answer.length > {length} + 100"));
    assert_eq!(number(&mut browser, "log.scrollTop"), at);
    push(&mut browser, "To the end");
    browser.until("following && distance() < 40");
    browser.press("Escape");
    browser.until("!stop");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn conversations_survive_a_reload_and_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let daemon = Daemon::start("slots = 1\ncontext = 512");
    let url = forward(&daemon.socket());
    browser.open(&url, (1280, 800), "light");
    browser.until(READY);
    watch(&mut browser);
    ask(&mut browser, "one");
    ask(&mut browser, "two");
    browser.evaluate("window.before = true; location.reload()");
    browser.until("!window.before && document.readyState === 'complete'");
    assert_eq!(browser.evaluate("conversation.turns.length"), 2);
    browser.until(READY);
    assert_eq!(browser.evaluate("document.querySelectorAll('article').length"), 4);
    watch(&mut browser);

    // An edited question replaces what follows.
    browser.evaluate("document.querySelector('.edit').focus()");
    browser.press("Enter");
    browser.until("document.activeElement.value === 'one'");
    ask(&mut browser, " and a half");
    assert_eq!(
        browser.evaluate("conversation.turns.map(t => t.question)"),
        json!(["one and a half"])
    );
    assert_eq!(browser.evaluate("bodies.at(-1).messages.length"), 1);
    // The answer is written anew.
    browser.evaluate("conversation.temperature = 2; conversation.turns[0].note = ''");
    push(&mut browser, "Regenerate");
    browser.until(ANSWERED);
    assert_eq!(browser.evaluate("bodies.at(-1).temperature"), 2);

    // A second conversation, and back to the first.
    push(&mut browser, "New conversation");
    ask(&mut browser, "another");
    assert_eq!(browser.evaluate("document.querySelectorAll('#conversations li').length"), 2);
    push(&mut browser, "one and a half");
    browser.until("conversation.turns[0].question === 'one and a half'");
    let attached =
        "attach([new File(['let a;\\n'], 'a.js'), new File([new Uint8Array([0, 255])], 'b')])";
    browser.evaluate(attached);
    browser.until("document.querySelector('#notice').textContent.includes('b is not a text file')");
    browser.evaluate("document.querySelector('#question').focus()");
    ask(&mut browser, "what is it?");
    let sent = browser.evaluate("bodies.at(-1).messages.at(-1).content");
    assert_eq!(sent, "a.js:\n```\nlet a;\n```\n\nwhat is it?");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn an_error_shows_its_hint_and_keeps_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let mut daemon = Daemon::start("slots = 1\ncontext = 384");
    browser.open(&forward(&daemon.socket()), (1280, 800), "dark");
    browser.until(READY);
    watch(&mut browser);
    ask(&mut browser, "short");
    ask(&mut browser, &"long ".repeat(60));
    browser.write(&"longer ".repeat(130));
    browser.press("Enter");
    browser.until("!stop && conversation.turns[2]?.error?.code === 'context_length_exceeded'");
    let shown = browser.evaluate("document.querySelector('article.failed').textContent");
    assert!(shown.as_str().unwrap().contains("Hint: "), "{shown}");
    assert!(
        browser.evaluate("conversation.turns[2].question").as_str().unwrap().starts_with("longer")
    );
    assert!(browser.picture("page-full").len() > 4000);
    // Without the oldest turns it fits.
    push(&mut browser, "Drop the oldest turns");
    browser.until(ANSWERED);
    assert_eq!(
        browser.evaluate("conversation.turns.map(t => !!t.dropped)"),
        json!([true, true, false])
    );
    assert_eq!(browser.evaluate("bodies.at(-1).messages.length"), 1);

    // A daemon that is gone, and then returns.
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    daemon.wait();
    browser.write("still there?");
    browser.press("Enter");
    browser.until("!stop && !!conversation.turns[3]?.error?.hint");
    browser.until("document.querySelector('#state').className === 'bad'");
    daemon.restart();
    browser.until(READY);
    push(&mut browser, "Try again");
    browser.until(ANSWERED);
    assert_eq!(browser.evaluate("conversation.turns[3].question"), "still there?");
}

#[test]
fn a_model_is_loaded_and_chosen_in_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let models = orind_testing::data("models");
    let daemon =
        Daemon::start(&format!("slots = 1\ncontext = 256\nmodels_dir = '{}'", models.display()));
    browser.open(&forward(&daemon.socket()), (390, 844), "light");
    browser.until(READY);
    push(&mut browser, MODEL);
    browser.until("document.querySelector('#models').textContent.includes('tiny-qwen3-Q8_0')");
    let load =
        |name: &str| format!("document.querySelector('[aria-label=\"Load {name}\"]').focus()");
    browser.evaluate(&load("tiny-qwen3-Q8_0"));
    browser.press("Enter");
    browser.until("document.querySelector('#loading').textContent === 'tiny-qwen3-Q8_0 is loaded'");
    browser.until("document.querySelector('#model').textContent === 'tiny-qwen3-Q8_0'");
    assert!(browser.picture("page-models").len() > 4000);
    // An additional one; then requests name it.
    browser.evaluate("document.querySelector('#beside').checked = true");
    browser.evaluate(&load("tiny-llama-Q8_0"));
    browser.press("Enter");
    browser.until("document.querySelector('#model').textContent === 'tiny-llama-Q8_0'");
    browser.press("Escape");
    watch(&mut browser);
    browser.evaluate("document.querySelector('#question').focus()");
    ask(&mut browser, "Hello");
    assert_eq!(browser.evaluate("bodies[0].model"), "tiny-llama-Q8_0");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn the_page_fits_phones_and_desktops_in_light_and_dark() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let daemon = Daemon::start("slots = 1\ncontext = 512\nlisten = '127.0.0.1:0'");
    let url = format!("http://{}/", address(&daemon));
    let mut grounds = Vec::new();
    for (size, scheme) in
        [((360, 740), "light"), ((390, 844), "dark"), ((1280, 800), "light"), ((1280, 800), "dark")]
    {
        browser.open(&url, size, scheme);
        browser.until(READY);
        browser.evaluate(
            "conversation.turns.push({question: 'What is in it?', thought: '', note: '9 tokens in, 12 out', answer: \
               '# Parts\\n- *one*\\n  1. `two`\\n\\n```c\\nint a; // a line that is too long for the screen of a phone, or nearly\\n```\\n\
               |a|b|\\n|-|-:|\\n|1|2|\\n\\n$x^2$ and [more](https://example.org/x)'}); show()",
        );
        for part in ["li li", "pre", "td.right", ".math", "a[rel~=noopener]"] {
            let found = format!("!!document.querySelector('article.assistant {part}')");
            assert_eq!(browser.evaluate(&found), true, "{part}");
        }
        let width = browser.evaluate("document.documentElement.scrollWidth");
        assert!(width.as_u64().unwrap() <= u64::from(size.0), "{size:?}: {width}");
        let height = browser.evaluate("document.documentElement.scrollHeight");
        assert!(height.as_u64().unwrap() <= u64::from(size.1), "{size:?}: {height}");
        // Header and form take a small part of a phone.
        let log = number(&mut browser, "log.clientHeight");
        assert!(log * 4 > u64::from(size.1) * 3, "{size:?}: {log}");
        let ground = browser.evaluate("getComputedStyle(document.body).backgroundColor");
        grounds.push(ground.as_str().unwrap().to_owned());
        assert!(browser.picture(&format!("page-{}-{scheme}", size.0)).len() > 4000);
        assert_eq!(browser.complaints, [""; 0]);
    }
    assert_eq!(grounds, [&*grounds[0], &*grounds[1], &*grounds[0], &*grounds[1]]);
    assert_ne!(grounds[0], grounds[1], "dark is not light");
}

#[test]
fn the_page_asks_for_the_token_of_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let settings = format!(
        "slots = 1\ncontext = 256\nlisten = '0.0.0.0:0'\ntoken_file = '{}'",
        token.display()
    );
    let daemon = Daemon::start(&settings);
    let address = address(&daemon).replace("0.0.0.0", "127.0.0.1");
    // Only the page itself needs no token.
    let get = |path: &str| {
        let request = head("GET", path, "connection: close\r\n");
        Answer::parse(&Answer::bytes(&mut TcpStream::connect(&address).unwrap(), &request))
    };
    assert_eq!(get("/").status, 200);
    for path in ["//", "/?", "/index.html", "/metrics", "/orin/v1/status"] {
        let status = get(path).status;
        assert_eq!(status, if path == "/?" { 200 } else { 401 }, "{path}");
    }

    let Some(mut browser) = browser(folder.path()) else { return };
    browser.open(&format!("http://{address}/"), (800, 600), "light");
    browser.until("document.querySelector('#asked').open");
    browser.write(TOKEN);
    browser.press("Enter");
    browser.until(READY);
    assert_eq!(browser.evaluate("document.querySelector('#asked').open"), false);
    assert_eq!(browser.complaints, [""; 0]);
}
