//! TLS: a server with a trusted certificate, and one without.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use orind_testing::loopback::{Reply, Server, Stream};
use orind_testing::program::{again, outcome};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Home, TAG, gguf};

/// Passes the server's URL to a test's second process.
const URL: &str = "ORIND_TEST_URL";

fn data(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

fn server() -> Server {
    let certificate = CertificateDer::from_pem_file(data("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(data("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key);
    let config = Arc::new(config.unwrap());
    let wrap = move |stream: TcpStream| -> Box<dyn Stream> {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        Box::new(StreamOwned::new(connection, stream))
    };
    let bytes = gguf(1, 100_000);
    let answer = move |request: &orind_testing::loopback::Request| {
        if request.path.starts_with("/down") {
            return Reply::new(302).header("Location", "http://127.0.0.1:9/m.gguf").body(b"");
        }
        // Truncates the first transfer.
        let missing = if request.header("Range").is_none() { 60_000 } else { 0 };
        Reply::file(request, &bytes, TAG).cut(missing)
    };
    Server::wrapped(answer, wrap)
}

/// Downloads a file in a process with its own certificate authorities.
#[test]
#[ignore = "started by the others"]
fn client() {
    let mut home = Home::new();
    match home.fetch(&std::env::var(URL).unwrap(), None) {
        Ok(files) => println!("came: {} bytes", files[0].1.bytes),
        Err(error) => println!("failed: {error}"),
    }
}

fn said(path: &str, host: &str, authorities: &str) -> String {
    let url = format!("https://{host}:{}{path}", server().port());
    let mut client = again(module_path!(), "client");
    client.env(URL, url).env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
    let (code, out, err) = outcome(&mut client);
    assert_eq!(code, Some(0), "{out}\n{err}");
    out
}

#[test]
fn a_trusted_certificate_is_accepted() {
    let certificate = data("certificate.pem");
    let certificate = certificate.to_str().unwrap();
    let out = said("/m.gguf", "localhost", certificate);
    assert!(out.contains("came: 100000 bytes"), "{out}");
    // The certificate is for another host name.
    let out = said("/m.gguf", "127.0.0.1", certificate);
    assert!(out.contains("invalid peer certificate"), "{out}");
    // A redirect from https to http is refused.
    let out = said("/down/m.gguf", "localhost", certificate);
    assert!(out.contains("https only"), "{out}");
}

#[test]
fn an_untrusted_certificate_is_rejected() {
    let out = said("/m.gguf", "localhost", "/nonexistent/authorities.pem");
    assert!(out.contains("is unreachable") || out.contains("certificate authorities"), "{out}");
    assert!(!out.contains("came"), "{out}");
}
