//! Headless Chromium, controlled by the DevTools protocol over two pipes.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::daemon::eventually;

/// Path of Chromium, if installed.
pub fn chromium() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    env::split_paths(&path).flat_map(|p| names.map(|n| p.join(n))).find(|file| file.is_file())
}

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    page: Option<String>,
    asked: u64,
    /// Errors in the page since it was opened: exceptions and content policy violations.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts a browser with its profile in `folder`.
    pub fn start(program: &Path, folder: &Path) -> Self {
        // The browser reads from file descriptor 3 and writes to 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"]);
        command.arg(program).args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let from = BufReader::new(from);
        Self { child, to, from, page: None, asked: 0, complaints: Vec::new() }
    }

    /// Sends a command and waits for its result.
    pub fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": params});
        if let Some(page) = &self.page {
            message["sessionId"] = page.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert!(bytes.pop() == Some(0), "the browser has ended; asked for {method}");
            let heard: Value = serde_json::from_slice(&bytes).unwrap();
            if heard["id"] == self.asked {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].clone();
            }
            self.hear(&heard);
        }
    }

    fn hear(&mut self, event: &Value) {
        let of = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(of["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if of["entry"]["source"] != "network" => {
                self.complaints.push(of["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// Opens a page with a viewport size and a colour scheme, `light` or `dark`.
    pub fn open(&mut self, url: &str, size: (u32, u32), scheme: &str) {
        self.page = None;
        let target = self.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.ask("Target.attachToTarget", &attach);
        self.page = session["sessionId"].as_str().map(str::to_owned);
        self.complaints.clear();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            self.ask(domain, &json!({}));
        }
        let (width, height) = size;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", &metrics);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", &scheme);
        self.ask("Page.navigate", &json!({"url": url}));
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Evaluates a JavaScript expression.
    pub fn evaluate(&mut self, script: &str) -> Value {
        let asked = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, script: &str) {
        eventually(script, || self.evaluate(script) == true);
    }

    /// Types a text into the focused element.
    pub fn write(&mut self, text: &str) {
        self.ask("Input.insertText", &json!({"text": text}));
    }

    /// Presses a key by its name: `Enter`, `Escape`, `Tab`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            other => panic!("the code of {other} is not known here"),
        };
        let mut event = json!({"key": key, "code": key, "windowsVirtualKeyCode": code});
        if key == "Enter" {
            event["text"] = "\r".into();
        }
        for kind in ["keyDown", "keyUp"] {
            event["type"] = kind.into();
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    /// Screenshot of the page as a base64 PNG; also saved in `$ORIND_TEST_PICTURES` if set.
    pub fn picture(&mut self, name: &str) -> String {
        let picture = self.ask("Page.captureScreenshot", &json!({"format": "png"}));
        let picture = picture["data"].as_str().unwrap().to_owned();
        if let Some(folder) = env::var_os("ORIND_TEST_PICTURES") {
            let file = Path::new(&folder).join(format!("{name}.png.base64"));
            fs::write(file, &picture).unwrap();
        }
        picture
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
