//! Downloads from a local server: complete, interrupted, changed in between, with wrong checksums.
//!
//! `tests/data/*.pem` is a self-signed certificate for `localhost`, valid for a hundred years, and
//! its key: made with `openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8
//! -nocrypt` and `openssl req -x509 -days 36500 -subj "/CN=orind test" -addext
//! subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod https;
mod hub;
mod lies;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fetch::{Client, Error, Fetched, Folder, Progress, Sum};
use orind_testing::loopback::{Reply, Request, Server};
use orind_testing::random::Random;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const TAG: &str = "\"first\"";

/// A file with the GGUF magic.
fn gguf(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(Random(seed).bytes(length - 4));
    bytes
}

fn sum(bytes: &[u8]) -> Sum {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest.map(|byte| format!("{byte:02x}")).concat().parse().unwrap()
}

/// Destination folder.
struct Home {
    dir: TempDir,
    client: Client,
    notices: Vec<String>,
}

impl Home {
    fn new() -> Self {
        Self::of(Client::new(None, None))
    }

    fn of(mut client: Client) -> Self {
        client.pause = Duration::ZERO;
        Self { dir: tempfile::tempdir().unwrap(), client, notices: Vec::new() }
    }

    fn fetch(&mut self, name: &str, sum: Option<Sum>) -> Result<Vec<(PathBuf, Fetched)>, Error> {
        let notices = &mut self.notices;
        let mut watch = |progress| {
            if let Progress::Notice(notice) = progress {
                notices.push(notice);
            }
        };
        let files = self.client.files(&name.parse()?, Folder::Cache(self.dir.path()), sum)?;
        let fetch = |file: fetch::File| {
            self.client.fetch(&file, false, &mut watch).map(|fetched| (file.path, fetched))
        };
        files.into_iter().map(fetch).collect()
    }

    /// Downloads one file, which must succeed; returns its bytes and the number of bytes received.
    fn whole(&mut self, name: &str) -> (Vec<u8>, u64) {
        let files = self.fetch(name, None).unwrap();
        let [(path, fetched)] = &files[..] else { panic!("{files:?}") };
        let bytes = fs::read(path).unwrap();
        assert_eq!(fetched.bytes, bytes.len() as u64);
        assert!(fetched.sum.is_none_or(|found| found == sum(&bytes)));
        (bytes, fetched.received)
    }

    fn fails(&mut self, name: &str) -> String {
        self.fetch(name, None).unwrap_err().to_string()
    }

    /// All files, with their paths relative to the folder.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let path = path.strip_prefix(self.dir.path()).unwrap();
                    found.push(path.to_str().unwrap().to_owned());
                }
            }
        }
        found.sort();
        found
    }

    fn holds(&self, what: &str) -> bool {
        self.files().iter().any(|file| file.ends_with(what))
    }
}

/// Answers in order; the last one repeats.
fn in_turn(answers: Vec<Answer>) -> impl FnMut(&Request) -> Reply + Send {
    let mut turn = 0;
    move |request| {
        let answer = &answers[turn.min(answers.len() - 1)];
        turn += 1;
        answer(request)
    }
}

type Answer = Box<dyn Fn(&Request) -> Reply + Send>;

/// A transfer that ends `missing` bytes early.
fn broken(bytes: &[u8], tag: &'static str, missing: usize) -> Answer {
    let bytes = bytes.to_vec();
    Box::new(move |request| Reply::file(request, &bytes, tag).cut(missing))
}

fn ranges(server: &Server) -> Vec<Option<String>> {
    let range = |request: &Request| request.header("Range").map(str::to_owned);
    server.requests().iter().map(range).collect()
}

#[test]
fn a_downloaded_file_is_found_by_its_name() {
    let bytes = gguf(1, 300_000);
    let served = bytes.clone();
    let server = Server::start(move |request| Reply::file(request, &served, TAG));
    let mut home = Home::of(Client::new(None, Some("secret".into())));
    let url = server.url("/folder/a%20model.gguf?download=true");
    assert_eq!(home.whole(&url), (bytes.clone(), 300_000));
    let place = format!("127.0.0.1:{}/folder/a model.gguf", server.port());
    assert_eq!(home.files(), [place.as_str()]);
    let [request] = &server.requests()[..] else { panic!() };
    assert_eq!(request.path, "/folder/a%20model.gguf?download=true");
    assert_eq!(request.header("Accept-Encoding"), Some("identity"));
    assert_eq!(request.header("Authorization"), None, "the token is the hub's");
    assert_eq!(
        fetch::find(&url.parse().unwrap(), home.dir.path()),
        Some(home.dir.path().join(place))
    );
    let other = server.url("/folder/b.gguf").parse().unwrap();
    assert_eq!(fetch::find(&other, home.dir.path()), None);
    // An existing file is not downloaded again.
    assert_eq!(home.whole(&url), (bytes.clone(), 0));
    home.fetch(&url, Some(sum(&bytes))).unwrap();
    assert_eq!(server.requests().len(), 1);
    // Into a flat folder, under its own name.
    let flat = Folder::Flat(Path::new("x"));
    assert_eq!(
        home.client.files(&url.parse().unwrap(), flat, None).unwrap()[0].path,
        Path::new("x/a model.gguf")
    );
}

#[test]
fn an_interrupted_transfer_resumes() {
    let bytes = gguf(2, 300_000);
    let server = Server::start(in_turn(vec![
        broken(&bytes, TAG, 200_000),
        broken(&bytes, TAG, 199_999),
        broken(&bytes, TAG, 50_000),
        broken(&bytes, TAG, 0),
    ]));
    let mut home = Home::new();
    assert_eq!(home.whole(&server.url("/m.gguf")), (bytes, 300_000));
    assert_eq!(home.files().len(), 1, "{:?}", home.files());
    let expected = [None, Some("bytes=100000-"), Some("bytes=100001-"), Some("bytes=250000-")];
    assert_eq!(ranges(&server), expected.map(|range| range.map(str::to_owned)));
    assert!(server.requests()[1..].iter().all(|request| request.header("If-Range") == Some(TAG)));
}

#[test]
fn the_next_command_resumes_the_transfer() {
    let bytes = gguf(3, 300_000);
    let gone = |_: &Request| Reply::new(200).header("Content-Length", "9").raw(&[]).cut(20);
    let server = Server::start(in_turn(vec![
        broken(&bytes, TAG, 100_000),
        Box::new(gone),
        Box::new(gone),
        Box::new(gone),
        Box::new(gone),
        broken(&bytes, TAG, 0),
    ]));
    let mut home = Home::new();
    let url = server.url("/m.gguf");
    home.fails(&url);
    assert_eq!(server.requests().len(), 5, "five tries");
    assert!(!home.files().iter().any(|file| file.ends_with("/m.gguf")), "{:?}", home.files());
    assert_eq!(home.whole(&url), (bytes, 100_000));
    assert_eq!(home.files().len(), 1, "{:?}", home.files());
}

#[test]
fn a_stalled_transfer_fails_and_reports_its_progress() {
    let bytes = gguf(4, 3 << 20);
    let server = Server::start(move |request| {
        let from = usize::from(request.header("Range").is_some()) << 20;
        Reply::file(request, &bytes, TAG).cut(bytes.len() - from.max(1 << 20))
    });
    let mut home = Home::new();
    let said = home.fails(&server.url("/m.gguf"));
    assert!(said.contains("interrupted 5 times") && said.contains("1.0 MiB of 3.0 MiB"), "{said}");
    assert!(home.holds(".m.gguf.part") && !home.holds("/m.gguf"), "{:?}", home.files());
}

#[test]
fn a_changed_file_restarts() {
    let (old, new) = (gguf(5, 200_000), gguf(6, 250_000));
    for modified in [false, true] {
        let (old, new) = (old.clone(), new.clone());
        // Recognised by its tag, or by its date if there is no strong tag.
        let served = new.clone();
        let answers: Vec<Answer> = if modified {
            let (first, then) = ("Thu, 01 Jan 2026 00:00:00 GMT", "Fri, 02 Jan 2026 00:00:00 GMT");
            let old = old.clone();
            vec![
                Box::new(move |_| {
                    Reply::new(200)
                        .header("ETag", "W/\"x\"")
                        .header("Last-Modified", first)
                        .body(&old)
                        .cut(9)
                }),
                Box::new(move |request| {
                    assert_eq!(request.header("If-Range"), Some(first));
                    Reply::new(200).header("Last-Modified", then).body(&served)
                }),
            ]
        } else {
            vec![broken(&old, TAG, 9), broken(&new, "\"second\"", 0)]
        };
        let server = Server::start(in_turn(answers));
        let mut home = Home::new();
        assert_eq!(home.whole(&server.url("/m.gguf")).0, new);
        assert_eq!(server.requests().len(), 2);
        assert!(
            home.notices.iter().any(|notice| notice.contains("has changed")),
            "{:?}",
            home.notices
        );
    }
}

#[test]
fn a_shortened_file_restarts() {
    let (old, new) = (gguf(7, 200_000), gguf(8, 1000));
    // The server reports it by the range only, with the old tag.
    let server = Server::start(in_turn(vec![broken(&old, TAG, 9), broken(&new, TAG, 0)]));
    assert_eq!(Home::new().whole(&server.url("/m.gguf")).0, new);
}

#[test]
fn a_server_without_ranges_is_named_and_the_next_try_restarts() {
    let bytes = gguf(9, 200_000);
    for tag in [Some(TAG), None] {
        let served = bytes.clone();
        let whole = move |_: &Request| {
            let reply = Reply::new(200);
            let reply = tag.map_or_else(|| Reply::new(200), |tag| reply.header("ETag", tag));
            reply.body(&served)
        };
        let cut = whole.clone();
        let server = Server::start(in_turn(vec![
            Box::new(move |r| cut(r).cut(5)),
            Box::new(whole.clone()),
            Box::new(whole),
        ]));
        let mut home = Home::new();
        let said = home.fails(&server.url("/m.gguf"));
        assert!(said.contains("no ranges") && said.contains("0.2 MiB"), "{said}");
        assert!(!home.holds("/m.gguf"));
        assert_eq!(home.whole(&server.url("/m.gguf")), (bytes.clone(), 200_000));
    }
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let (good, bad) = (gguf(10, 5000), gguf(11, 5000));
    let served = bad.clone();
    let server = Server::start(move |request| Reply::file(request, &served, TAG));
    let mut home = Home::new();
    let url = server.url("/m.gguf");
    let said = home.fetch(&url, Some(sum(&good))).unwrap_err().to_string();
    assert!(
        said.contains(&sum(&good).to_string()) && said.contains(&sum(&bad).to_string()),
        "{said}"
    );
    assert_eq!(home.files(), [""; 0]);
    home.fetch(&url, Some(sum(&bad))).unwrap();
    // A file with another checksum stays in place if the new one is wrong too.
    let path = home.dir.path().join(&home.files()[0]);
    let kept = gguf(12, 5000);
    fs::write(&path, &kept).unwrap();
    home.fetch(&url, Some(sum(&good))).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), kept);
    home.fetch(&url, Some(sum(&bad))).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bad);
}

#[test]
fn damage_on_disk_is_detected_by_the_checksum() {
    let bytes = gguf(13, 100_000);
    let gone = |_: &Request| Reply::new(503).body(b"");
    let server = Server::start(in_turn(vec![
        broken(&bytes, TAG, 50_000),
        Box::new(gone),
        Box::new(gone),
        Box::new(gone),
        Box::new(gone),
        broken(&bytes, TAG, 0),
    ]));
    let mut home = Home::new();
    let url = server.url("/m.gguf");
    home.fails(&url);
    let part = home.files().into_iter().find(|file| file.ends_with(".part")).unwrap();
    let part = home.dir.path().join(part);
    let mut damaged = fs::read(&part).unwrap();
    damaged[40_000] ^= 1;
    fs::write(&part, damaged).unwrap();
    let said = home.fetch(&url, Some(sum(&bytes))).unwrap_err().to_string();
    assert!(said.contains("SHA-256"), "{said}");
    assert_eq!(home.files(), [""; 0]);
}

#[test]
fn only_one_process_downloads_a_file() {
    let bytes = gguf(14, 1000);
    let server = Server::start(move |request| Reply::file(request, &bytes, TAG));
    let mut home = Home::new();
    let folder = home.dir.path().join(format!("127.0.0.1:{}", server.port()));
    fs::create_dir(&folder).unwrap();
    let other = fs::File::create(folder.join(".m.gguf.part")).unwrap();
    other.lock().unwrap();
    let said = home.fails(&server.url("/m.gguf"));
    assert!(said.contains("another process"), "{said}");
    drop(other);
    home.whole(&server.url("/m.gguf"));
}

/// Connections that break anywhere, servers that temporarily lack ranges, files that change: the
/// final file is always one complete version.
#[test]
fn the_final_file_is_always_one_complete_version() {
    for seed in 0..40 {
        println!("seed {seed}");
        let versions: Vec<Vec<u8>> =
            (0..3).map(|v| gguf(seed * 3 + v, 20_000 + 7000 * v as usize)).collect();
        let served = versions.clone();
        let (mut random, mut version) = (Random(seed), 0);
        let server = Server::start(move |request| {
            if random.below(8) == 0 {
                version = random.below(3);
            }
            let (bytes, tag) = (&served[version], format!("\"{version}\""));
            match random.below(8) {
                0 => Reply::new(503).body(b"later"),
                1 => {
                    Reply::new(200).header("ETag", &tag).body(bytes).cut(random.below(bytes.len()))
                }
                2 | 3 => Reply::file(request, bytes, &tag),
                _ => {
                    let reply = Reply::file(request, bytes, &tag);
                    let cut = random.below(4000);
                    reply.cut(cut.min(200))
                }
            }
        });
        let mut home = Home::new();
        let url = server.url("/m.gguf");
        for _ in 0..30 {
            if home.fetch(&url, None).is_ok() {
                break;
            }
            assert!(!home.holds("/m.gguf"), "seed {seed}");
        }
        let (bytes, _) = home.whole(&url);
        assert!(versions.contains(&bytes), "seed {seed}");
    }
}
