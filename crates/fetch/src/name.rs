//! Names of models: a URL, or a repository on the hub; and the paths of their files in a cache.
//! Paths never come from response headers and no component starts with a dot, which is reserved for
//! partial files.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use ureq::http::Uri;

use crate::error::Error;

/// Host names of the hub; the first is used for display and in the cache.
const HUB: [&str; 2] = ["hf.co", "huggingface.co"];

/// `http://…`, `https://…`, `[hf.co/]OWNER/REPO[:TYPE]` or `[hf.co/]OWNER/REPO/FILE.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Url(Url),
    Hub(Place),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    host: String,
    path: Vec<String>,
}

/// A repository, and a model in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(crate) owner: String,
    pub(crate) repository: String,
    pub(crate) which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The only model, or the one in Q4_K_M.
    Any,
    /// The weight type at the end of a file name: `Q4_K_M`.
    Type(String),
    /// A path in the repository.
    File(String),
}

impl Name {
    /// True if a model name must be remote, not a local path: a URL, or `hf.co/…`.
    #[must_use]
    pub fn is_remote(name: &str) -> bool {
        let hub = |host: &str| name.strip_prefix(host).is_some_and(|rest| rest.starts_with('/'));
        scheme(name).is_some() || HUB.iter().any(|host| hub(host))
    }
}

/// The part of a URL after its scheme.
fn scheme(name: &str) -> Option<&str> {
    ["https://", "http://"].iter().find_map(|scheme| {
        let (start, rest) = name.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let bad =
            |why: &str| Error::Name { name: name.escape_debug().to_string(), why: why.into() };
        let url = scheme(name).is_some();
        let place = scheme(name).unwrap_or(name);
        let on_hub = HUB.iter().find_map(|host| place.strip_prefix(host)?.strip_prefix('/'));
        if url {
            // Browser URLs of a repository or a file in it.
            let parts: Vec<&str> = on_hub.map_or_else(Vec::new, |path| path.split('/').collect());
            return match parts[..] {
                [owner, repository] => Place::new(owner, repository, Which::Any),
                [owner, repository, "blob" | "resolve", "main", ..] => {
                    let file = parts[4..].join("/");
                    let file = file.split(['?', '#']).next().unwrap_or_default();
                    Place::new(owner, repository, Which::File(file.into()))
                }
                _ => return Url::parse(name).map(Self::Url).map_err(|why| bad(&why)),
            }
            .map(Self::Hub)
            .map_err(|why| bad(&why));
        }
        let (path, kind) = match on_hub.unwrap_or(name).rsplit_once(':') {
            Some((path, kind)) => (path, Some(kind)),
            None => (on_hub.unwrap_or(name), None),
        };
        let mut parts = path.splitn(3, '/');
        let (Some(owner), Some(repository)) = (parts.next(), parts.next()) else {
            return Err(bad(
                "is neither a URL nor OWNER/REPO, OWNER/REPO:TYPE or OWNER/REPO/FILE.gguf on the hub",
            ));
        };
        let which = match (parts.next(), kind) {
            (None, None) => Which::Any,
            (None, Some(kind)) => Which::Type(kind.into()),
            (Some(file), None) => Which::File(file.into()),
            (Some(_), Some(_)) => return Err(bad("has both a file and a type")),
        };
        Place::new(owner, repository, which).map(Self::Hub).map_err(|why| bad(&why))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&url.text),
            Self::Hub(place) => {
                write!(f, "{}", place.at())?;
                match &place.which {
                    Which::Any => Ok(()),
                    Which::Type(kind) => write!(f, ":{kind}"),
                    Which::File(file) => write!(f, "/{file}"),
                }
            }
        }
    }
}

impl Url {
    fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("is not a URL: {error}"))?;
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("contains a user name, which is visible in the process list".into());
        }
        let decoded = |part: &str| {
            let part = percent_decode_str(part).decode_utf8().map_err(|_| "is not UTF-8")?;
            checked(&part).map(|()| part.into_owned())
        };
        let host = authority.as_str().to_ascii_lowercase();
        let path = uri.path().split('/').skip(1).map(decoded).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { text: text.into(), host, path })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Path below the cache.
    pub(crate) fn place(&self) -> PathBuf {
        std::iter::once(&self.host).chain(&self.path).collect()
    }

    /// URL of another part of a split model; replaces the part number.
    pub(crate) fn part(&self, file: &str) -> Option<Self> {
        let end = |name: &str| name.len().checked_sub(PART).map(|at| name[at..].to_owned());
        let (here, there) = (end(self.file())?, end(file)?);
        let at = self.text.rfind(&here)?;
        let mut other = self.clone();
        other.text.replace_range(at..at + PART, &there);
        *other.path.last_mut()? = file.into();
        Some(other)
    }

    pub(crate) fn file(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }
}

impl Place {
    fn new(owner: &str, repository: &str, which: Which) -> Result<Self, String> {
        for part in [owner, repository] {
            checked(part)?;
            plain(part)?;
        }
        match &which {
            Which::Any => {}
            Which::Type(kind) => plain(kind)?,
            Which::File(file) => {
                file.split('/').try_for_each(checked)?;
                if !file.to_ascii_lowercase().ends_with(".gguf") {
                    return Err("names a file that is not a .gguf".into());
                }
            }
        }
        Ok(Self { owner: owner.into(), repository: repository.into(), which })
    }

    /// `hf.co/OWNER/REPO`.
    pub(crate) fn at(&self) -> String {
        format!("{}/{}/{}", HUB[0], self.owner, self.repository)
    }

    /// Path below the cache.
    pub(crate) fn folder(&self) -> PathBuf {
        self.at().into()
    }
}

/// Checks for characters that the hub allows in names.
fn plain(part: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !part.is_empty() && part.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "has the part `{}`, but names on the hub consist of letters, digits, `.`, `_` and `-`",
        part.escape_debug()
    ))
}

/// Rejects anything but a plain file or folder name.
pub(crate) fn checked(part: &str) -> Result<(), String> {
    let why = match part {
        "" => "is empty",
        _ if part.starts_with('.') => "starts with a dot",
        _ if part.len() > 240 => "is longer than 240 bytes",
        _ if part.contains('/') || part.chars().any(char::is_control) => {
            "has characters that file names cannot have"
        }
        _ => return Ok(()),
    };
    Err(format!("has the part `{}`, which {why}", part.escape_debug()))
}

/// Length of `-00002-of-00003.gguf`.
const PART: usize = 20;

/// A file of a split model: `NAME-00002-of-00003.gguf`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split<'a> {
    pub(crate) name: &'a str,
    pub(crate) count: u32,
}

impl<'a> Split<'a> {
    /// Returns `None` if the file is not split.
    pub(crate) fn of(file: &'a str) -> Option<Self> {
        let rest = file.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let five = |text: &str| -> Option<u32> {
            let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let (number, count) = (five(number)?, five(count)?);
        (1..=count).contains(&number).then_some(Self { name, count })
    }

    /// Names of all parts, which are made one at a time: a name of a few bytes can mean 99,999.
    pub(crate) fn parts(self) -> impl Iterator<Item = String> + use<'a> {
        let Self { name, count } = self;
        (1..=count).map(move |number| format!("{name}-{number:05}-of-{count:05}.gguf"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> String {
        name.parse::<Name>().map_or_else(|error| error.to_string(), |name| name.to_string())
    }

    #[test]
    fn names_are_parsed() {
        for (written, meant) in [
            ("owner/repo", "hf.co/owner/repo"),
            ("owner/repo:Q4_K_M", "hf.co/owner/repo:Q4_K_M"),
            ("hf.co/owner/repo:Q8_0", "hf.co/owner/repo:Q8_0"),
            ("huggingface.co/owner/repo", "hf.co/owner/repo"),
            ("https://huggingface.co/owner/repo", "hf.co/owner/repo"),
            ("https://hf.co/o/r/blob/main/a/b.gguf?download=true", "hf.co/o/r/a/b.gguf"),
            ("owner/repo/folder/file.gguf", "hf.co/owner/repo/folder/file.gguf"),
            ("https://example.org:8443/a/b.gguf?x=1", "https://example.org:8443/a/b.gguf?x=1"),
        ] {
            assert_eq!(parsed(written), meant, "{written}");
        }
    }

    #[test]
    fn a_url_is_cached_below_its_host() {
        for (url, place) in [
            ("https://Example.org/a/b%20c.gguf?x=/../y", "example.org/a/b c.gguf"),
            ("http://127.0.0.1:80/x", "127.0.0.1:80/x"),
        ] {
            let Ok(Name::Url(url)) = url.parse() else { panic!("{url}") };
            assert_eq!(url.place(), PathBuf::from(place));
        }
    }

    #[test]
    fn names_cannot_escape_their_folder() {
        for (name, why) in [
            ("model.gguf", "neither a URL nor"),
            ("../repo", "starts with a dot"),
            ("owner/..", "starts with a dot"),
            ("owner/re\\po", "names on the hub"),
            ("owner/repo/../x.gguf", "starts with a dot"),
            ("owner/repo//x.gguf", "is empty"),
            ("owner/repo/x.bin", "not a .gguf"),
            ("owner/repo/x.gguf:Q8_0", "both a file and a type"),
            ("owner/repo:", "names on the hub"),
            ("owner/repo:../x", "names on the hub"),
            ("https://host/a/../x.gguf", "starts with a dot"),
            ("https://host/a/%2e%2e/x.gguf", "starts with a dot"),
            ("https://host/a%2fx.gguf", "characters"),
            ("https://host/a%00.gguf", "characters"),
            ("https://host/a%ff.gguf", "UTF-8"),
            ("https://host/", "is empty"),
            ("https://host", "is empty"),
            ("https:///x.gguf", "is not a URL"),
            ("https://user:word@host/x.gguf", "user name"),
            ("https://hf.co/o/r/blob/main/../x.gguf", "starts with a dot"),
            ("ftp://host/x.gguf", "neither a URL nor"),
        ] {
            let error = parsed(name);
            assert!(error.contains(why), "{name}: {error}");
        }
        assert!(parsed(&format!("https://host/{}.gguf", "x".repeat(250))).contains("240 bytes"));
    }

    #[test]
    fn parts_of_split_models_are_listed() {
        let all: Vec<String> = Split::of("a/m-00002-of-00003.gguf").unwrap().parts().collect();
        assert_eq!(all, [1, 2, 3].map(|n| format!("a/m-0000{n}-of-00003.gguf")));
        for whole in [
            "m.gguf",
            "m-2-of-3.gguf",
            "m-00001-of-00002.bin",
            "m-0000x-of-00002.gguf",
            "m-00001-of-00000.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
        ] {
            assert!(Split::of(whole).is_none(), "{whole}");
        }
    }
}
