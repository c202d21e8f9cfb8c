//! `orinctl completions` and `orinctl man`: shell completions and man pages, generated from the
//! command line definitions of both programs. `install` installs them.

use std::fs;
use std::path::Path;

use clap_complete::Shell;
use clap_mangen::Man;

use super::args::{self, Args};
use super::error::Error;
use super::text;

const NAME: &str = "orinctl";

/// Shells with installed completions, and their search paths below a prefix.
pub(super) const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/orinctl"),
    (Shell::Zsh, "share/zsh/site-functions/_orinctl"),
    (Shell::Fish, "share/fish/vendor_completions.d/orinctl.fish"),
];

/// Search path of man pages below a prefix.
pub(super) const MANUAL: &str = "share/man/man1";

pub(super) fn completions(args: &args::Completions) -> Result<(), Error> {
    text::print(&String::from_utf8_lossy(&completion(args.shell)))
}

/// Returns the completion script of a shell.
pub(super) fn completion(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::definition(), NAME, &mut script);
    script
}

pub(super) fn man(args: &args::Man) -> Result<(), Error> {
    let failed = |file: &Path, error: &std::io::Error| Error::Output {
        file: file.to_owned(),
        why: format!("cannot be written: {error}"),
    };
    fs::create_dir_all(&args.folder).map_err(|error| failed(&args.folder, &error))?;
    for (name, page) in manual()? {
        let file = args.folder.join(name);
        fs::write(&file, page).map_err(|error| failed(&file, &error))?;
    }
    Ok(())
}

/// Returns file name and content of every man page: one per program and subcommand.
pub(super) fn manual() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for definition in [Args::definition(), daemon::definition()] {
        let mut definition = definition.disable_help_subcommand(true);
        definition.build();
        pages(&definition, &mut all)?;
    }
    Ok(all)
}

fn pages(command: &clap::Command, all: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        pages(part, all)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    all.push((page.get_filename(), text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_man_pages_and_shells_have_scripts() {
        let pages = manual().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["orinctl.1", "orind.1", "orinctl-bench.1", "orinctl-tune-show.1"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("daemon") || name.contains("help")));
        let (_, bench) = pages.iter().find(|(name, _)| name == "orinctl-bench.1").unwrap();
        let bench = String::from_utf8_lossy(bench);
        assert!(bench.contains("prompt\\-tokens") && bench.contains("EXTRA"), "{bench}");
        for (shell, _) in COMPLETIONS {
            let script = String::from_utf8(completion(shell)).unwrap();
            assert!(script.contains("quantize"), "{shell}");
        }
    }
}
