//! Servers that refuse, and servers with malformed answers: every answer is a named error, and no
//! file appears at the destination.

use super::{Home, TAG, gguf};
use orind_testing::loopback::{Reply, Server};

/// Makes an answer from the bytes of a good file.
type Lie = Box<dyn Fn(Vec<u8>) -> Reply + Send>;

/// The error for an answer, and the files it leaves behind.
fn said(answer: impl Fn() -> Reply + Send + 'static) -> (String, Vec<String>) {
    let server = Server::start(move |_| answer());
    let mut home = Home::new();
    let said = home.fails(&server.url("/m.gguf"));
    (said, home.files())
}

#[test]
fn error_statuses_are_named() {
    for (status, expected) in [
        (404, "does not exist (404)"),
        (410, "does not exist"),
        (401, "is not accessible (401)"),
        (403, "HF_TOKEN"),
        (429, "status 429; try again later"),
        (500, "status 500"),
        (304, "status 304"),
    ] {
        let (said, left) = said(move || Reply::new(status).body(b"GGUF"));
        assert!(said.contains(expected), "{status}: {said}");
        assert!(left.iter().all(|file| file.ends_with(".part")), "{left:?}");
    }
}

#[test]
fn an_unreachable_server_is_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let said = Home::new().fails(&format!("http://127.0.0.1:{port}/m.gguf"));
    assert!(said.contains("is unreachable"), "{said}");
}

#[test]
fn a_file_without_gguf_magic_is_discarded() {
    for (body, begins) in
        [(&b"<!DOCTYPE html>"[..], "<!DO"), (b"GG", "GG"), (b"", ""), (b"GGML1234", "GGML")]
    {
        let (said, left) = said(move || Reply::new(200).header("ETag", TAG).body(body));
        assert!(
            said.contains("is not a GGUF file") && said.contains(&format!("`{begins}")),
            "{said}"
        );
        assert_eq!(left, [""; 0]);
    }
    // Detected from the first bytes, not after a long transfer.
    let (said, _) = said(|| Reply::new(200).header("Content-Length", "1000000").raw(b"<html>"));
    assert!(said.contains("is not a GGUF file"), "{said}");
}

#[test]
fn invalid_headers_are_rejected() {
    let bytes = gguf(1, 1000);
    let whole = move || bytes.clone();
    let cases: Vec<(&str, Lie)> = vec![
        (
            "not enough disk space",
            Box::new(|b| Reply::new(200).header("Content-Length", "4611686018427387904").raw(&b)),
        ),
        ("is unreachable", Box::new(|b| Reply::new(200).header("Content-Length", "-1").raw(&b))),
        (
            "is unreachable",
            Box::new(|b| {
                Reply::new(200).header("Content-Length", "99999999999999999999999").raw(&b)
            }),
        ),
        ("no length", Box::new(|b| Reply::new(200).raw(&b))),
        (
            "unrequested encoding",
            Box::new(|b| Reply::new(200).header("Content-Encoding", "gzip").body(&b)),
        ),
        (
            "a range, although",
            Box::new(|b| Reply::new(206).header("Content-Range", "bytes 0-999/1000").body(&b)),
        ),
        ("is unreachable", Box::new(|_| Reply::new(302).header("Location", "/again").body(b""))),
        (
            "is unreachable",
            Box::new(|_| Reply::new(302).header("Location", "file:///etc/passwd").body(b"")),
        ),
        (
            "is unreachable",
            Box::new(|b| Reply::new(200).header("X", &"x".repeat(1 << 20)).body(&b)),
        ),
        (
            "",
            Box::new(|b| {
                Reply::new(200)
                    .header("Transfer-Encoding", "chunked")
                    .raw(&[b"fffffffffffffffff\r\n", &b[..]].concat())
            }),
        ),
        (
            "",
            Box::new(|b| {
                Reply::new(200)
                    .header("Transfer-Encoding", "chunked")
                    .raw(&[b"3e8\r\n", &b[..], b"\r\n"].concat())
            }),
        ),
        ("", Box::new(|b| Reply::new(200).raw(&b).cut(1010))),
    ];
    for (number, (expected, answer)) in cases.into_iter().enumerate() {
        let whole = whole.clone();
        let (said, left) = said(move || answer(whole()));
        assert!(said.contains(expected), "case {number}: {said}");
        assert!(said.len() < 1000, "case {number}: {} bytes", said.len());
        assert!(!left.iter().any(|file| file.ends_with("/m.gguf")), "case {number}: {left:?}");
    }
}

#[test]
fn a_complete_chunked_answer_is_a_file() {
    let bytes = gguf(2, 1000);
    let served = bytes.clone();
    let server = Server::start(move |_| {
        let body = [b"3e8\r\n", &served[..], b"\r\n0\r\n\r\n"].concat();
        Reply::new(200).header("Transfer-Encoding", "chunked").raw(&body)
    });
    assert_eq!(Home::new().whole(&server.url("/m.gguf")).0, bytes);
}

#[test]
fn a_range_other_than_the_requested_one_is_rejected() {
    for range in [
        "bytes 0-999/1000",
        "bytes 501-999/1000",
        "bytes 500-998/1000",
        "bytes 500-499/1000",
        "bytes 500-18446744073709551615/*",
        "bytes 500-18446744073709551616/18446744073709551617",
        "bytes -1-999/1000",
        "chapters 500-999/1000",
        "",
    ] {
        let bytes = gguf(3, 1000);
        let server = Server::start(move |request| match request.header("Range") {
            None => Reply::file(request, &bytes, TAG).cut(500),
            Some(_) => Reply::new(206)
                .header("ETag", TAG)
                .header("Content-Range", range)
                .body(&bytes[500..]),
        });
        let mut home = Home::new();
        let said = home.fails(&server.url("/m.gguf"));
        assert!(said.contains("Content-Range is"), "{range}: {said}");
        assert!(!home.holds("/m.gguf"));
    }
}

#[test]
fn file_names_cannot_escape_the_folder() {
    let mut home = Home::new();
    for name in [
        "http://127.0.0.1:9/../../m.gguf",
        "http://127.0.0.1:9/%2e%2e/m.gguf",
        "http://127.0.0.1:9/a%2f..%2fm.gguf",
        "http://127.0.0.1:9/.m.gguf.part",
        "o/../m.gguf",
        "hf.co/o/r/../../m.gguf",
    ] {
        let said = home.fails(name);
        assert!(said.contains("has the part"), "{said}");
    }
    // File names in headers are ignored.
    let bytes = gguf(4, 100);
    let server = Server::start(move |_| {
        Reply::new(200)
            .header("Content-Disposition", "attachment; filename=\"../../x.gguf\"")
            .body(&bytes)
    });
    home.whole(&server.url("/m.gguf"));
    assert_eq!(home.files(), [format!("127.0.0.1:{}/m.gguf", server.port())]);
}
