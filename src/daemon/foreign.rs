//! Words of ollama's and llama.cpp's command lines that `orind` does not have, with ours.

/// Options of llama.cpp's server, and ours.
const OPTIONS: [(&str, &str); 15] = [
    (HUB[0], GET),
    (HUB[1], GET),
    (HUB[2], GET),
    ("--host", "`--listen ADDR:PORT` listens on a TCP port as well as on the socket"),
    ("--port", "`--listen ADDR:PORT` listens on a TCP port as well as on the socket"),
    ("--ctx-size", "`--context N`"),
    ("-np", "`--slots N`"),
    ("--parallel", "`--slots N`"),
    ("-ngl", "the whole model runs on one device; `--backend NAME` selects it"),
    ("--gpu-layers", "the whole model runs on one device; `--backend NAME` selects it"),
    ("--n-gpu-layers", "the whole model runs on one device; `--backend NAME` selects it"),
    ("-md", "`--draft MODEL`"),
    ("--model-draft", "`--draft MODEL`"),
    ("-ctk", "`--kv-type TYPE`"),
    ("--cache-type-k", "`--kv-type TYPE`"),
];

const HUB: [&str; 3] = ["-hf", "-hfr", "--hf-repo"];
const GET: &str = "`orinctl pull NAME` downloads a model of the hub and prints its file, \
                   `orind --model FILE` serves it";

/// Commands that `orinctl` has.
const CLIENT: [&str; 14] = [
    "bench", "chat", "generate", "list", "load", "models", "ps", "pull", "rm", "run", "show",
    "status", "stop", "unload",
];

/// Returns what to run instead of a command line of another program.
pub(super) fn named<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let words: Vec<&str> = words.map(|word| word.split('=').next().unwrap_or_default()).collect();
    match *words.first()? {
        "serve" | "server" | "start" => {
            return Some("orind has no commands: `orind --model MODEL` serves a model".into());
        }
        command if CLIENT.contains(&command) => {
            return Some(format!("orind is the daemon: `orinctl {command}` is the command"));
        }
        _ => {}
    }
    let option = words.iter().find_map(|word| OPTIONS.iter().find(|(theirs, _)| theirs == word));
    option.map(|(theirs, ours)| format!("{theirs} is an option of llama.cpp: {ours}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_other_programs_are_known() {
        for (line, ours) in [
            ("serve", "orind --model MODEL"),
            ("ps", "orinctl ps"),
            ("-hf a/b:Q4_0", "orinctl pull NAME"),
            ("--hf-repo=a/b", "orinctl pull NAME"),
            ("-m x.gguf --port 8080", "--listen ADDR:PORT"),
            ("-m x.gguf -ngl 99", "--backend NAME"),
        ] {
            let found = named(line.split(' ')).unwrap_or_default();
            assert!(found.contains(ours), "{line}: {found}");
        }
        for line in ["", "--model x", "-m x -c 4096", "--listen 127.0.0.1:8080"] {
            assert_eq!(named(line.split(' ').filter(|word| !word.is_empty())), None, "{line}");
        }
    }
}
