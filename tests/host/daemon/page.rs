//! The web page at `/`, with and without a browser.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use orind_testing::browser::{Browser, chromium};
use orind_testing::daemon::{Answer, Daemon, head};
use serde_json::json;

use super::tcp::address;
use super::{CHAT, MODEL};

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

/// Forwards connections to a unix socket, as `ssh -L` does.
fn forward(socket: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(daemon) = UnixStream::connect(&socket) else { return };
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
const ANSWERED: &str =
    "!document.querySelector('[aria-busy]') && !!document.querySelector('article.assistant .took')";

#[test]
fn the_page_works_by_keyboard_alone() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut browser) = browser(folder.path()) else { return };
    let daemon = Daemon::start("slots = 1\ncontext = 2048");
    browser.open(&forward(&daemon.socket()), (1280, 800), "light");
    browser.until(READY);
    assert!(
        browser
            .evaluate("document.querySelector('#model').textContent")
            .to_string()
            .contains(MODEL)
    );

    // Tab reaches every control in visual order.
    browser.evaluate("document.activeElement.blur()");
    let mut seen = Vec::new();
    for _ in 0..12 {
        browser.press("Tab");
        let name = "document.activeElement.id || document.activeElement.className || document.activeElement.localName";
        seen.push(browser.evaluate(name).as_str().unwrap().to_owned());
    }
    for id in ["question", "send", "system", "temperature", "again", "summary"] {
        assert!(seen.contains(&id.to_owned()), "{id} in {seen:?}");
    }

    // The answer equals that of other clients.
    browser.evaluate("document.querySelector('#temperature').value = 0; document.querySelector('#system').value = 'Be brief.'; document.querySelector('#question').focus()");
    browser.evaluate("window.asked = fetch; window.bodies = []; window.fetch = (path, options) => { if (options?.body) { const body = {...JSON.parse(options.body), max_completion_tokens: 12}; bodies.push(body); options.body = JSON.stringify(body); } return asked(path, options) }; 0");
    browser.write("<img src=x onerror=alert(1)> **Hello**");
    browser.press("Enter");
    browser.until(ANSWERED);
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<img src=x onerror=alert(1)> **Hello**"}]);
    let body = browser.evaluate("bodies[0]");
    assert_eq!(body["messages"], messages);
    let alone = json!({"messages": messages, "temperature": 0, "max_completion_tokens": 12});
    let alone = daemon.post(CHAT, &alone).json();
    let alone = alone["choices"][0]["message"]["content"].clone();
    assert_eq!(browser.evaluate("conversation[1].content"), alone);
    assert_eq!(browser.evaluate("document.querySelectorAll('article img').length"), 0);
    assert!(
        browser
            .evaluate("document.querySelector('article.assistant .took').textContent")
            .to_string()
            .contains(" out, first after ")
    );

    // Escape ends an answer in the page and in the daemon.
    browser.evaluate("window.fetch = asked; 0");
    browser.evaluate("document.querySelector('#temperature').value = 2");
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
            "conversation.push({role: 'user', content: 'x'}); show('user').textContent = 'What is in it?'; \
             show('assistant').append(...blocks('# Parts\\n- *one*\\n- `two`\\n\\n```c\\nint a;\\n```\\nDone, **all** of it.'))",
        );
        let width = browser.evaluate("document.documentElement.scrollWidth");
        assert!(width.as_u64().unwrap() <= u64::from(size.0), "{size:?}: {width}");
        let height = browser.evaluate("document.documentElement.scrollHeight");
        assert!(height.as_u64().unwrap() <= u64::from(size.1), "{size:?}: {height}");
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
