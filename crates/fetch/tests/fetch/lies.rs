//! Servers that say no, and servers that lie: every answer is an error by name, and nothing lies in the file's place.

use super::{Home, TAG, gguf};
use orind_testing::loopback::{Reply, Server};

/// An answer, given the bytes of a good file.
type Lie = Box<dyn Fn(Vec<u8>) -> Reply + Send>;

/// What is said of an answer, and what is left on the disk of it.
fn said(answer: impl Fn() -> Reply + Send + 'static) -> (String, Vec<String>) {
    let server = Server::start(move |_| answer());
    let mut home = Home::new();
    let said = home.fails(&server.url("/m.gguf"));
    (said, home.files())
}

#[test]
fn statuses_by_name() {
    for (status, expected) in [
        (404, "is not there (404)"),
        (410, "is not there"),
        (401, "is refused (401)"),
        (403, "HF_TOKEN"),
        (429, "answered by 429; try again later"),
        (500, "answered by 500"),
        (304, "answered by 304"),
    ] {
        let (said, left) = said(move || Reply::new(status).body(b"GGUF"));
        assert!(said.contains(expected), "{status}: {said}");
        assert!(left.iter().all(|file| file.ends_with(".part")), "{left:?}");
    }
}

#[test]
fn nobody_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let said = Home::new().fails(&format!("http://127.0.0.1:{port}/m.gguf"));
    assert!(said.contains("cannot be reached"), "{said}");
}

#[test]
fn what_is_no_gguf_file_is_not_kept() {
    for (body, begins) in
        [(&b"<!DOCTYPE html>"[..], "<!DO"), (b"GG", "GG"), (b"", ""), (b"GGML1234", "GGML")]
    {
        let (said, left) = said(move || Reply::new(200).header("ETag", TAG).body(body));
        assert!(said.contains("is no GGUF file") && said.contains(&format!("`{begins}")), "{said}");
        assert_eq!(left, [""; 0]);
    }
    // It is told from the beginning, not at the end of what may be long.
    let (said, _) = said(|| Reply::new(200).header("Content-Length", "1000000").raw(b"<html>"));
    assert!(said.contains("is no GGUF file"), "{said}");
}

#[test]
fn headers_that_make_no_sense() {
    let bytes = gguf(1, 1000);
    let whole = move || bytes.clone();
    let cases: Vec<(&str, Lie)> = vec![
        (
            "more are needed",
            Box::new(|b| Reply::new(200).header("Content-Length", "4611686018427387904").raw(&b)),
        ),
        ("cannot be reached", Box::new(|b| Reply::new(200).header("Content-Length", "-1").raw(&b))),
        (
            "cannot be reached",
            Box::new(|b| {
                Reply::new(200).header("Content-Length", "99999999999999999999999").raw(&b)
            }),
        ),
        ("how long it is", Box::new(|b| Reply::new(200).raw(&b))),
        (
            "which was not asked for",
            Box::new(|b| Reply::new(200).header("Content-Encoding", "gzip").body(&b)),
        ),
        (
            "a part of the file",
            Box::new(|b| Reply::new(206).header("Content-Range", "bytes 0-999/1000").body(&b)),
        ),
        ("cannot be reached", Box::new(|_| Reply::new(302).header("Location", "/again").body(b""))),
        (
            "cannot be reached",
            Box::new(|_| Reply::new(302).header("Location", "file:///etc/passwd").body(b"")),
        ),
        (
            "cannot be reached",
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
fn chunks_that_end_as_they_should_are_a_file() {
    let bytes = gguf(2, 1000);
    let served = bytes.clone();
    let server = Server::start(move |_| {
        let body = [b"3e8\r\n", &served[..], b"\r\n0\r\n\r\n"].concat();
        Reply::new(200).header("Transfer-Encoding", "chunked").raw(&body)
    });
    assert_eq!(Home::new().whole(&server.url("/m.gguf")).0, bytes);
}

#[test]
fn a_rest_that_is_another_part_of_the_file_is_refused() {
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
fn no_file_beside_or_above_its_folder() {
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
    // Names that headers give are no one's.
    let bytes = gguf(4, 100);
    let server = Server::start(move |_| {
        Reply::new(200)
            .header("Content-Disposition", "attachment; filename=\"../../x.gguf\"")
            .body(&bytes)
    });
    home.whole(&server.url("/m.gguf"));
    assert_eq!(home.files(), [format!("127.0.0.1:{}/m.gguf", server.port())]);
}
