//! Hub repositories: resolution of names, checksums, tokens, split models.

use std::fs;

use fetch::{Client, Folder};
use orind_testing::loopback::{Reply, Server};

use super::{Home, TAG, gguf, sum};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with these files in every repository of `owner`; `store` serves their bytes.
fn hub(files: &[(&'static str, Vec<u8>)], store: Option<&Server>) -> Server {
    let files = files.to_vec();
    let store = store.map(|store| store.url(""));
    Server::start(move |request| {
        let path = request.path.as_str();
        if let Some(repository) = path.strip_prefix("/api/models/") {
            if repository != "owner/repo/revision/main?blobs=true" {
                return Reply::new(404).body(b"");
            }
            let file = |(path, bytes): &(&str, Vec<u8>)| {
                let (size, sum) = (bytes.len(), sum(bytes));
                format!(
                    "{{\"rfilename\":\"{path}\",\"size\":{size},\"blobId\":\"x\",\"lfs\":{{\"sha256\":\"{sum}\",\"size\":{size},\"pointerSize\":134}}}}"
                )
            };
            let all: Vec<String> = files.iter().map(file).collect();
            let body = format!(
                "{{\"id\":\"owner/repo\",\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}",
                all.join(",")
            );
            return Reply::new(200)
                .header("Content-Type", "application/json")
                .body(body.as_bytes());
        }
        let wanted =
            path.strip_prefix(&format!("/owner/repo/resolve/{COMMIT}/")).unwrap_or_default();
        match (&store, files.iter().find(|(path, _)| path.replace(' ', "%20") == wanted)) {
            (Some(store), Some(_)) => {
                Reply::new(302).header("Location", &format!("{store}/{wanted}")).body(b"")
            }
            (None, Some((_, bytes))) => Reply::file(request, bytes, TAG),
            _ => Reply::new(404).body(b""),
        }
    })
}

fn home(hub: &Server) -> Home {
    Home::of(Client::new(Some(&hub.url("/")), Some("secret".into())))
}

#[test]
fn only_the_hub_receives_the_token() {
    let bytes = gguf(1, 50_000);
    let served = bytes.clone();
    let store = Server::start(move |request| Reply::file(request, &served, TAG));
    let files = [("m-Q8_0.gguf", gguf(2, 10)), ("a b/m-Q4_K_M.gguf", bytes.clone())];
    let hub = hub(&files, Some(&store));
    let mut home = home(&hub);
    for name in ["owner/repo", "owner/repo:q4_k_m", "hf.co/owner/repo/a b/m-Q4_K_M.gguf"] {
        let received = home.whole(name);
        assert_eq!(
            received,
            (bytes.clone(), if name == "owner/repo" { 50_000 } else { 0 }),
            "{name}"
        );
        let found = fetch::find(&name.parse().unwrap(), home.dir.path()).unwrap();
        assert!(found.ends_with("hf.co/owner/repo/a b/m-Q4_K_M.gguf"), "{}", found.display());
    }
    assert!(hub.requests().iter().all(|r| r.header("Authorization") == Some("Bearer secret")));
    assert!(store.requests().iter().all(|r| r.header("Authorization").is_none()));
    assert_eq!(store.requests().len(), 1);
    assert_eq!(fetch::find(&"owner/repo:Q8_0".parse().unwrap(), home.dir.path()), None);
}

#[test]
fn a_newer_file_of_the_same_size_replaces_the_old_one() {
    let new = gguf(3, 5000);
    let hub = hub(&[("m.gguf", new.clone())], None);
    let mut home = home(&hub);
    let folder = home.dir.path().join("hf.co/owner/repo");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("m.gguf"), gguf(4, 5000)).unwrap();
    assert_eq!(home.whole("owner/repo"), (new, 5000));
}

#[test]
fn a_file_with_a_wrong_checksum_is_discarded() {
    let (said, other) = (gguf(5, 5000), gguf(6, 5000));
    for (store, expected) in [(other, "SHA-256"), (gguf(7, 4000), "5000 expected")] {
        let store = Server::start(move |request| Reply::file(request, &store, TAG));
        let hub = hub(&[("m.gguf", said.clone())], Some(&store));
        let mut home = home(&hub);
        let said = home.fails("owner/repo");
        assert!(said.contains(expected), "{said}");
        assert_eq!(home.files(), [""; 0]);
    }
}

#[test]
fn all_parts_of_a_split_model_are_downloaded() {
    let names = ["Q8/m-Q8_0-00002-of-00002.gguf", "Q8/m-Q8_0-00001-of-00002.gguf"];
    let files = names.map(|name| (name, gguf(name.len() as u64, 3000)));
    let server = hub(&files, None);
    let mut home = home(&server);
    let fetched = home.fetch("owner/repo:Q8_0", None).unwrap();
    let places: Vec<_> =
        fetched.iter().map(|(path, _)| path.strip_prefix(home.dir.path()).unwrap()).collect();
    assert_eq!(places[0], std::path::Path::new("hf.co/owner/repo/Q8/m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(places.len(), 2);
    let found = fetch::find(&"owner/repo".parse().unwrap(), home.dir.path()).unwrap();
    assert!(found.ends_with(places[0]));
    let said = home.fetch("owner/repo:Q8_0", Some(sum(b""))).unwrap_err().to_string();
    assert!(said.contains("split into 2"), "{said}");
    // The URLs of the other parts derive from one part's URL.
    let url = server.url(&format!("/owner/repo/resolve/{COMMIT}/Q8/m-Q8_0-00002-of-00002.gguf"));
    let files =
        home.client.files(&url.parse().unwrap(), Folder::Cache(home.dir.path()), None).unwrap();
    assert_eq!(files.len(), 2);
    assert!(files[0].url.ends_with("m-Q8_0-00001-of-00002.gguf"), "{files:?}");
    home.fetch(&url, None).unwrap();
}

#[test]
fn missing_repositories_and_types_are_named() {
    let hub = hub(&[("m-Q8_0.gguf", gguf(8, 10)), ("m-F16.gguf", gguf(9, 10))], None);
    let mut home = home(&hub);
    for (name, expected) in [
        ("owner/other", "does not exist (404)"),
        ("owner/repo", "hf.co/owner/repo has no Q4_K_M; it has m-F16, m-Q8_0"),
        ("owner/repo:Q6_K", "has no Q6_K; it has m-F16, m-Q8_0"),
        ("owner/repo/x.gguf", "does not exist (404)"),
    ] {
        let said = home.fails(name);
        assert!(said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn malformed_hub_listings_are_rejected() {
    for (listing, expected) in [
        ("not json", "invalid answer"),
        ("[]", "invalid answer"),
        ("{\"siblings\":[{\"rfilename\":7}]}", "invalid answer"),
        ("{\"siblings\":[]}", "has no GGUF file"),
        ("{}", "has no GGUF file"),
        (
            "{\"siblings\":[{\"rfilename\":\"../../m.gguf\"},{\"rfilename\":\"/etc/m.gguf\"}]}",
            "has no GGUF file",
        ),
        (
            "{\"siblings\":[{\"rfilename\":\"m.gguf\",\"lfs\":{\"sha256\":\"abc\"}}]}",
            "64 hexadecimal digits",
        ),
        ("{\"siblings\":[{\"rfilename\":\"m.gguf\",\"size\":18446744073709551615}]}", "expected"),
        ("{\"sha\":\"../../..\",\"siblings\":[{\"rfilename\":\"m.gguf\"}]}", "resolve/main/m.gguf"),
        (
            "{\"siblings\":[{\"rfilename\":\"m-00001-of-99999.gguf\"}]}",
            "lacks m-00002-of-99999.gguf",
        ),
    ] {
        let server = Server::start(move |request| match request.path.starts_with("/api/") {
            true => Reply::new(200).body(listing.as_bytes()),
            false if listing.contains("../../..") => Reply::new(404).body(b""),
            false => Reply::new(200).body(&gguf(10, 100)),
        });
        let mut home = home(&server);
        let said = home.fails("owner/repo");
        assert!(said.contains(expected), "{listing}: {said}");
        assert_eq!(home.files().iter().filter(|file| !file.ends_with(".part")).count(), 0);
    }
}
