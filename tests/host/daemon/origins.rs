//! Web pages of other origins: refused on every route, unless their origin is configured.

use std::net::TcpStream;

use orind_testing::daemon::{Answer, Daemon};
use serde_json::json;

use super::tcp::address;

fn ask(address: &str, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer::parse(&Answer::bytes(&mut TcpStream::connect(address).unwrap(), &request))
}

const JSON: &str = "content-type: application/json\r\n";
const FOREIGN: &str =
    "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n";

#[test]
fn pages_of_other_origins_start_nothing() {
    let daemon = Daemon::start("slots = 1\ncontext = 256\nlisten = '127.0.0.1:0'");
    let address = address(&daemon);
    let body = json!({"prompt": "a", "stream": false, "options": {"num_predict": 1}}).to_string();
    for path in
        ["/api/generate", "/api/show", "/v1/chat/completions", "/tokenize", "/orin/v1/models"]
    {
        for headers in [
            FOREIGN.to_owned(),
            "sec-fetch-site: cross-site\r\n".to_owned(),
            "origin: null\r\n".to_owned(),
            "origin: http://localhost:3000\r\nsec-fetch-site: same-site\r\n".to_owned(),
            format!("{JSON}{FOREIGN}"),
            format!("content-type: text/plain\r\n{FOREIGN}"),
        ] {
            let answer = ask(&address, "POST", path, &headers, &body);
            assert_eq!(answer.status, 403, "{path} {headers}");
        }
    }
    let refused = ask(&address, "POST", "/v1/completions", FOREIGN, &body);
    assert_eq!(refused.error(), (403, "foreign_origin".into()));
    assert_eq!(ask(&address, "GET", "/v1/models", FOREIGN, "").status, 403);
    let preflight = "origin: https://evil.example\r\naccess-control-request-method: POST\r\n";
    let refused = ask(&address, "OPTIONS", "/v1/completions", preflight, "");
    assert!(refused.status == 403 && !refused.headers.contains("access-control-allow"));
    // The socket may be forwarded by ssh to where a browser is.
    let forwarded = format!(
        "POST /api/generate HTTP/1.1\r\nhost: localhost:8080\r\nconnection: close\r\n{FOREIGN}\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(daemon.raw(&forwarded).status, 403);
    assert_eq!(daemon.get("/orin/v1/status").json()["requests"]["finished"], 0);

    // Programs and the daemon's own page.
    let own = format!("{JSON}origin: http://{address}\r\nsec-fetch-site: same-origin\r\n");
    for headers in [JSON, own.as_str()] {
        assert_eq!(ask(&address, "POST", "/api/generate", headers, &body).status, 200, "{headers}");
    }
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n";
    assert_eq!(ask(&address, "GET", "/", link, "").status, 200);
    // Without a type a browser could send the body; a form is one.
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    assert_eq!(ask(&address, "POST", "/api/generate", form, &body).status, 415);
}

#[test]
fn configured_origins_are_answered_with_their_headers() {
    let settings = "slots = 1\ncontext = 256\nlisten = '127.0.0.1:0'\nallowed_origins = ['https://chat.example']";
    let daemon = Daemon::start(settings);
    let address = address(&daemon);
    let origin = "origin: https://chat.example\r\nsec-fetch-site: cross-site\r\n";
    let asked = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type\r\n";
    let preflight = ask(&address, "OPTIONS", "/v1/completions", &format!("{origin}{asked}"), "");
    assert_eq!(preflight.status, 204);
    for header in [
        "access-control-allow-origin: https://chat.example",
        "access-control-allow-headers: authorization,content-type",
        "access-control-allow-methods: get, post, delete",
        "vary: origin",
    ] {
        assert!(
            preflight.headers.to_lowercase().contains(header),
            "{header}: {}",
            preflight.headers
        );
    }
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let answer = ask(&address, "POST", "/v1/completions", &format!("{JSON}{origin}"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.contains("access-control-allow-origin: https://chat.example"));
    assert_eq!(
        ask(&address, "POST", "/v1/completions", &format!("{JSON}{FOREIGN}"), &body).status,
        403
    );
}
