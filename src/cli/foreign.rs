//! Commands and options of ollama and llama.cpp that `orinctl` does not have, with ours.

/// Ollama's, llama.cpp's and common commands, and what to run instead. Those that mean one of our
/// commands exactly are its aliases.
const COMMANDS: [(&str, &str); 20] = [
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

/// Options of llama.cpp that need a command first.
const OPTIONS: [(&str, &str); 6] = [
    ("-hf", "`orinctl pull NAME` downloads a model of the hub, then `orinctl chat -m hf.co/NAME`"),
    ("-hfr", "`orinctl pull NAME` downloads a model of the hub, then `orinctl chat -m hf.co/NAME`"),
    (
        "--hf-repo",
        "`orinctl pull NAME` downloads a model of the hub, then `orinctl chat -m hf.co/NAME`",
    ),
    ("-m", "`orinctl chat -m MODEL` talks to a model, `orind --model MODEL` serves it"),
    ("--model", "`orinctl chat -m MODEL` talks to a model, `orind --model MODEL` serves it"),
    ("-p", "`orinctl generate -m MODEL TEXT` continues a text"),
];

/// Returns our command for a command of another program.
pub(super) fn command(word: &str) -> Option<String> {
    let (_, ours) = COMMANDS.iter().find(|(theirs, _)| *theirs == word)?;
    Some(format!("there is no command `{word}`: {ours}"))
}

/// Returns our command for an option of another program before any command.
pub(super) fn option(word: &str) -> Option<String> {
    let name = word.split('=').next().unwrap_or_default();
    let (_, ours) = OPTIONS.iter().find(|(theirs, _)| *theirs == name)?;
    Some(format!("{name} needs a command before it: {ours}"))
}
