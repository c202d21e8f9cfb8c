//! Commands and options of ollama and llama.cpp that `orinctl` does not have, with ours.

/// Ollama's, llama.cpp's and common commands, and what to run instead. Those that mean one of our
/// commands exactly are its aliases.
const COMMANDS: [(&str, &str); 21] = [
    ("version", "`orinctl --version` prints the version"),
    ("serve", "`orind --model MODEL` is the daemon"),
    ("server", "`orind --model MODEL` is the daemon"),
    ("start", "`systemctl start orind` starts the service, `orind --model MODEL` a daemon here"),
    ("restart", "`systemctl restart orind` restarts the service"),
    ("create", "`orinctl load FILE` loads a GGUF file as it is"),
    ("import", "`orinctl load FILE` loads a GGUF file as it is"),
    ("cp", "`orinctl load FILE --beside --name NAME` serves a file under another name"),
    ("copy", "`orinctl load FILE --beside --name NAME` serves a file under another name"),
    ("push", "orind uploads no models"),
    ("signin", "the variable HF_TOKEN has the token for gated models"),
    ("signout", "the variable HF_TOKEN has the token for gated models"),
    ("login", "the variable HF_TOKEN has the token for gated models"),
    ("logs", "`journalctl -u orind` prints the service's log"),
    ("log", "`journalctl -u orind` prints the service's log"),
    ("cli", "`orinctl chat -m MODEL` talks to a model"),
    ("complete", "`orinctl generate -m MODEL TEXT` continues a text"),
    ("embed", "POST /v1/embeddings; docs/api.md has an example"),
    ("delete", "`orinctl rm MODEL` deletes a downloaded model"),
    ("remove", "`orinctl rm MODEL` deletes a downloaded model"),
    ("download", "`orinctl pull NAME` downloads a model"),
];

/// Options of llama.cpp that name a model of the hub.
const HUB: [&str; 3] = ["-hf", "-hfr", "--hf-repo"];

/// Options of llama.cpp that need a command first.
const OPTIONS: [(&str, &str); 3] = [
    ("-m", "`orinctl chat -m MODEL` talks to a model, `orind --model MODEL` serves it"),
    ("--model", "`orinctl chat -m MODEL` talks to a model, `orind --model MODEL` serves it"),
    ("-p", "`orinctl generate -m MODEL TEXT` continues a text"),
];

/// Returns our command for a command of another program.
pub(super) fn command(word: &str) -> Option<String> {
    let (_, ours) = COMMANDS.iter().find(|(theirs, _)| *theirs == word)?;
    Some(format!("there is no command `{word}`: {ours}"))
}

/// Returns our command for an option of another program, on a command line without the program's
/// name.
pub(super) fn option<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<String> {
    let name = |word: &'a str| word.split('=').next().unwrap_or_default();
    let first = name(words.next()?);
    if let Some((_, ours)) = OPTIONS.iter().find(|(theirs, _)| *theirs == first) {
        return Some(format!("{first} needs a command before it: {ours}"));
    }
    // The arguments of a client are its own.
    let ours = std::iter::once(first).chain(words.map(name));
    let mut ours = ours.take_while(|word| !["launch", "--"].contains(word));
    let hub = ours.find(|word| HUB.contains(word))?;
    Some(format!(
        "{hub} is an option of llama.cpp: `orinctl pull NAME` downloads a model of the hub, \
         `orinctl chat -m hf.co/NAME` talks to it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_client_are_its_own() {
        let found = |line: &str| option(line.split(' ')).is_some();
        for line in ["-hf a/b", "run -hf a/b", "chat --hf-repo=a/b", "-m x", "--model=x"] {
            assert!(found(line), "{line}");
        }
        for line in ["chat -m x", "launch -hf x", "generate -- -hf", "status"] {
            assert!(!found(line), "{line}");
        }
    }
}
