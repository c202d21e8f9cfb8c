//! HTTP client: the machine's certificate authorities, timeouts, the hub's address and token.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::error::Error;
use crate::file::{File, Folder, place};
use crate::hub::{self, Listing, Sibling};
use crate::name::{Name, Place, Split};
use crate::sum::Sum;

/// Default address of the hub.
pub(crate) const ENDPOINT: &str = "https://huggingface.co";

/// Timeout for a silent server.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Most bytes of a hub listing: enough for ten thousand files.
const LISTING: u64 = 16 << 20;

/// Most files of a repository.
const LISTED: usize = 10_000;

/// Time limit for a hub's listing, with its redirects.
const LISTING_TIME: Duration = Duration::from_secs(60);

/// Most parts of a model that is named by a URL, which has no list of its files.
const PARTS: u32 = 1000;

/// Characters of a path that are not percent-encoded.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    authorities: bool,
    /// Pause before the third consecutive try; doubles from there.
    pub pause: Duration,
}

impl Client {
    /// A client for the hub at an address (`$HF_ENDPOINT`, like other hub programs), with a token
    /// (`$HF_TOKEN`) that is only sent to the hub. Opens no connection.
    #[must_use]
    pub fn new(endpoint: Option<&str>, token: Option<String>) -> Self {
        let found = rustls_native_certs::load_native_certs().certs;
        let authorities: Vec<_> =
            found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&authorities))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .user_agent(concat!("orinctl/", env!("CARGO_PKG_VERSION")))
            // No compression: ranges refer to the file's own bytes.
            .accept_encoding("identity")
            // The server may close a pooled connection, which would fail the next request.
            .max_idle_connections(0)
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Self {
            agent: config.new_agent(),
            endpoint: endpoint.unwrap_or(ENDPOINT).trim_end_matches('/').to_owned(),
            token,
            authorities: !authorities.is_empty(),
            pause: Duration::from_secs(1),
        }
    }

    /// Files to download for a name: one, or all parts of a split model. Queries the hub for its
    /// names. `sum` is the checksum that the user expects.
    ///
    /// # Errors
    /// [`Error`] if the hub does not know the name, or if it matches no file or several.
    pub fn files(&self, name: &Name, folder: Folder, sum: Option<Sum>) -> Result<Vec<File>, Error> {
        let mut files = match name {
            Name::Url(url) => {
                let split = Split::of(url.file());
                if let Some(Split { count, .. }) = split.filter(|split| split.count > PARTS) {
                    let (name, most) = (url.text().to_owned(), PARTS);
                    return Err(Error::TooManyParts { name, count, most });
                }
                let all = split.into_iter().flat_map(Split::parts);
                let mut urls: Vec<_> = all.filter_map(|part| url.part(&part)).collect();
                if urls.is_empty() {
                    urls.push(url.clone());
                }
                let file = |url: &crate::name::Url| File {
                    url: url.text().to_owned(),
                    path: place(folder, url.place()),
                    bytes: None,
                    sum: None,
                    hub: false,
                };
                urls.iter().map(file).collect()
            }
            Name::Hub(at) => self.listed(at, folder)?,
        };
        match (sum, &mut files[..]) {
            (None, _) => {}
            (sum, [file]) => file.sum = sum,
            (Some(_), all) => {
                return Err(Error::SplitSum { name: name.to_string(), count: all.len() });
            }
        }
        Ok(files)
    }

    fn listed(&self, at: &Place, folder: Folder) -> Result<Vec<File>, Error> {
        let Place { owner, repository, .. } = at;
        let url =
            format!("{}/api/models/{owner}/{repository}/revision/main?blobs=true", self.endpoint);
        let mut answer = self.get(&url, true, &[], Some(LISTING_TIME))?;
        succeeded(&url, answer.status().as_u16())?;
        let body = answer.body_mut().with_config().limit(LISTING).read_to_vec();
        let body = body
            .map_err(|source| Error::Unreachable { url: url.clone(), source: Box::new(source) })?;
        let listing: Listing = serde_json::from_slice(&body)
            .map_err(|error| Error::answer(&url, error.to_string()))?;
        if listing.siblings.len() > LISTED {
            return Err(Error::answer(&url, format!("lists more than {LISTED} files")));
        }
        let there = listing.siblings.iter().map(|one| (one.rfilename.as_str(), one));
        let there: HashMap<&str, &Sibling> = there.collect();
        let file = |path: String| {
            let entry = there.get(path.as_str());
            let sum = entry.and_then(|entry| entry.lfs.as_ref()?.sha256.as_deref());
            let sum = sum.map(str::parse).transpose().map_err(|why| Error::answer(&url, why))?;
            let escaped = utf8_percent_encode(&path, PATH);
            let (endpoint, revision) = (&self.endpoint, listing.revision());
            Ok(File {
                url: format!("{endpoint}/{owner}/{repository}/resolve/{revision}/{escaped}"),
                path: place(folder, at.folder().join(&path)),
                bytes: entry.and_then(|entry| entry.size),
                sum,
                hub: true,
            })
        };
        let names: BTreeSet<&str> = there.keys().copied().collect();
        hub::choose(at, &names)?.into_iter().map(file).collect()
    }

    /// Sends one request and follows redirects; `hub` allows the token to be sent.
    pub(crate) fn get(
        &self,
        url: &str,
        hub: bool,
        headers: &[(&str, &str)],
        limit: Option<Duration>,
    ) -> Result<ureq::http::Response<ureq::Body>, Error> {
        let secure = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if secure && !self.authorities {
            return Err(Error::NoAuthorities);
        }
        let mut request = self.agent.get(url);
        if let Some(token) = self.token.as_ref().filter(|_| hub) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // Never downgrade from https.
        let answer = request.config().https_only(secure).timeout_global(limit).build().call();
        answer.map_err(|source| Error::Unreachable { url: url.into(), source: Box::new(source) })
    }
}

/// Maps unsuccessful statuses to errors.
pub(crate) fn succeeded(url: &str, status: u16) -> Result<(), Error> {
    let url = url.to_owned();
    match status {
        200..300 => Ok(()),
        404 | 410 => Err(Error::NotFound { url }),
        401 | 403 => Err(Error::Refused { url, status }),
        _ => Err(Error::Status { url, status }),
    }
}
