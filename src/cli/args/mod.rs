//! Command line of `orinctl`: the parts that all subcommands share, and one file of arguments per
//! subcommand.

mod bench;
mod chat;
mod compare;
mod completions;
mod doctor;
mod fingerprint;
mod first_contact;
mod generate;
mod history;
mod install;
mod launch;
mod load;
mod parity;
mod plan;
mod profile;
mod pull;
mod quality;
mod quantize;
mod run;
mod shared;
mod show;
mod sweep;
mod top;
mod tune;
mod verify;

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::foreign;

pub(super) use bench::Bench;
pub(super) use chat::Chat;
pub(super) use compare::Compare;
pub(super) use completions::{Completions, Man};
pub(super) use doctor::Doctor;
pub(super) use fingerprint::Fingerprint;
pub(super) use first_contact::{Experiment, FirstContact};
pub(super) use generate::Generate;
pub(super) use history::History;
pub(super) use install::{Place, Uninstall};
pub(super) use launch::Launch;
pub(super) use load::{Load, Unload};
pub(super) use parity::Parity;
pub(super) use plan::Plan;
pub(super) use profile::Profile;
pub(super) use pull::Pull;
pub(super) use quality::{Kld, Perplexity, Predicted};
pub(super) use quantize::Quantize;
pub(super) use run::Run;
pub(super) use shared::{Connection, Format, Json, ModelChoice, RecordsFile};
pub(super) use show::{Rm, Show};
pub(super) use sweep::Sweep;
pub(super) use top::Top;
pub(super) use tune::{
    Tune, TuneCommand, TuneDiff, TuneExport, TuneImport, TunePlace, TuneSearch, TuneShow, TuneSweep,
};
pub(super) use verify::Verify;

/// Control orind, the daemon that runs GGUF language models, and measure with it.
#[derive(Debug, Parser)]
#[command(name = "orinctl", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  orinctl bench
      measure this machine; needs no daemon and no model file
  orinctl bench -m model.gguf -p 512 -n 128
      the tests of llama-bench
  orinctl generate -m model.gguf 'The capital of France is'
  orinctl chat
      chat with the loaded model, or with -m MODEL
  orinctl launch claude
      run Claude Code, or another client, on the daemon
  orinctl status
      what the daemon is doing
  orinctl pull hf.co/OWNER/REPO:Q4_K_M
      download a model; -m accepts the same name
  orinctl plan synthetic:llama-3.2-1b:q6_k
      cost of one token, step by step

A MODEL is a GGUF file, a name from `orinctl models`, a downloaded model by its URL or \
hf.co/OWNER/REPO[:TYPE], or synthetic:NAME: seeded random weights in the shape of a real model.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) connection: Connection,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Subcommands that do not connect to a daemon.
const ALONE: [&str; 16] = [
    "sweep",
    "compare",
    "plan",
    "profile",
    "parity",
    "perplexity",
    "kld",
    "quantize",
    "pull",
    "first-contact",
    "install",
    "uninstall",
    "verify",
    "history",
    "completions",
    "man",
];
const ALONE_IN_TUNE: [&str; 4] = ["show", "export", "import", "diff"];

impl Args {
    /// Returns the definition, in which only subcommands that connect to a daemon have connection
    /// options.
    pub(super) fn definition() -> clap::Command {
        let mut command = Self::command();
        let global = command.get_arguments().filter(|option| option.is_global_set());
        let hidden: Vec<clap::Arg> = global.map(|option| option.clone().hide(true)).collect();
        // An argument of the subcommand itself replaces the global one of the same name.
        let hide = |command: clap::Command| command.args(hidden.clone());
        for name in ALONE {
            command = command.mut_subcommand(name, hide);
        }
        for name in ALONE_IN_TUNE {
            command = command.mut_subcommand("tune", |tune| tune.mut_subcommand(name, hide));
        }
        command
    }

    /// Parses the command line.
    ///
    /// # Errors
    /// Clap's error, which may be the help text.
    pub(super) fn read() -> Result<Self, clap::Error> {
        let mut definition = Self::definition();
        let words: Vec<OsString> = std::env::args_os().collect();
        let texts = words.iter().skip(1).filter_map(|word| word.to_str());
        if let Some(message) = foreign::option(texts) {
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, message + "\n"));
        }
        let matches = definition.try_get_matches_from_mut(words);
        matches
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| daemon::command_line(translated(error), &definition))
    }
}

/// Names our command in the error about another program's command.
fn translated(error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    match word.and_then(|word| foreign::command(&word)) {
        Some(message) => clap::Error::raw(ErrorKind::InvalidSubcommand, message + "\n"),
        None => error,
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Measure prefill and decode, and compare them with the machine's memory bandwidth
    Bench(Bench),
    /// Compare other engines with orind on the same model: speed, latency, memory, and agreement of
    /// their answers; needs no daemon
    Compare(Compare),
    /// Measure every combination of models, types, threads, depths and more into a resumable file;
    /// needs no daemon
    Sweep(Sweep),
    /// Check records against their samples, and report missing facts; needs no daemon
    Verify(Verify),
    /// Show how speeds changed between records; needs no daemon
    History(History),
    /// Generate text from a prompt, or answer a message
    Generate(Generate),
    /// Chat with the model in the terminal
    Chat(Chat),
    /// Show what the daemon is doing
    Status(Json),
    /// Exit 0 if the daemon can serve requests (for probes)
    Health,
    /// Watch daemon and machine live: speed, queue, KV cache, clocks, power, temperature
    Top(Top),
    /// Find what prevents models from running, or from running fast, on this machine, and how to
    /// fix it
    Doctor(Doctor),
    /// List the models that can be loaded
    #[command(visible_alias = "list", alias = "ls")]
    Models(Json),
    /// List the loaded models
    Ps(Json),
    /// Show the properties of a model: type, context length, chat template
    Show(Show),
    /// Delete downloaded models
    Rm(Rm),
    /// Load a model, in place of the loaded one or in addition to it
    Load(Load),
    /// Unload a model
    #[command(visible_alias = "stop")]
    Unload(Unload),
    /// Run Claude Code, Codex, opencode or another client on the daemon
    Launch(Launch),
    /// Print the path of the daemon's socket, for curl and other programs
    #[command(after_help = "\
Example:
  curl --unix-socket \"$(orinctl socket)\" http://localhost/v1/models")]
    Socket,
    /// Show the plan of one step before and after fusion, and its cost; needs no daemon
    Plan(Plan),
    /// Time every step of decoding a token on a device, and compare it with the memory bandwidth;
    /// needs no daemon
    Profile(Profile),
    /// Compare devices with the reference: single steps, and the logits of a model; needs no daemon
    Parity(Parity),
    /// Chat with a model, ask it one question, or run an ONNX network on a device; needs no daemon
    Run(Run),
    /// Print one hash of a model's logits on a device, the same on every other device; needs no
    /// daemon
    Fingerprint(Fingerprint),
    /// Measure the perplexity of models over a text; needs no daemon
    Perplexity(Perplexity),
    /// Measure the quality loss of quantised models: KL divergence from the F16 model over a text;
    /// needs no daemon
    Kld(Kld),
    /// Convert a model to another weight type; needs no daemon
    Quantize(Quantize),
    /// Download a model from a URL or the Hugging Face hub; needs no daemon
    Pull(Pull),
    /// Run hardware experiments on a real Orin and write the results to a file; needs no daemon
    FirstContact(FirstContact),
    /// Run one experiment of first-contact
    #[command(hide = true, name = tegra_probe::runner::CHILD_COMMAND)]
    Experiment(Experiment),
    /// Install the programs and the systemd service on this machine; needs no daemon
    #[command(after_help = "\
Examples:
  orinctl install --dry-run
      print what would be done
  cargo build --profile dist && sudo target/dist/orinctl install
      build and install into /usr/local
  target/dist/orinctl install --root stage --prefix /usr
      stage the files of a package

Copies orind and orinctl from the folder of this program. An existing configuration is kept. \
docs/service.md describes the service.")]
    Install(Place),
    /// Remove what `install` installed; models and configuration stay
    Uninstall(Uninstall),
    /// Print the completion script of a shell; needs no daemon
    Completions(Completions),
    /// Write the man pages of both programs to a folder; needs no daemon
    Man(Man),
    /// Find the fastest kernel settings on this machine, and store them
    Tune(Tune),
    /// Run as the daemon
    #[command(hide = true)]
    Daemon(Daemon),
}

#[derive(Debug, clap::Args)]
pub(super) struct Daemon {
    /// Arguments of `orind`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
        Args::definition().debug_assert();
    }

    #[test]
    fn only_daemon_commands_have_connection_options() {
        let mut definition = Args::definition();
        definition.build();
        let says = |command: &clap::Command| {
            command.clone().render_help().to_string().contains("--socket")
        };
        for command in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let asks = !ALONE.contains(&name) && name != "help";
            assert_eq!(says(command), asks, "{name}");
        }
        let tune = definition.find_subcommand("tune").unwrap();
        for command in tune.get_subcommands() {
            let name = command.get_name();
            assert_eq!(says(command), ["verify", "sweep"].contains(&name), "tune {name}");
        }
    }

    #[test]
    fn every_position_and_command_accepts_a_socket() {
        for line in
            ["--socket /x status", "status --socket /x", "plan m --socket /x", "--socket /x plan m"]
        {
            let words = std::iter::once("orinctl").chain(line.split(' '));
            let matches = Args::definition().try_get_matches_from(words).unwrap();
            let args = Args::from_arg_matches(&matches).unwrap();
            assert_eq!(args.connection.socket, Some("/x".into()), "{line}");
        }
        let help =
            Args::definition().try_get_matches_from(["orinctl", "plan", "--help"]).unwrap_err();
        assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{help}");
    }

    #[test]
    fn the_commands_of_the_example_workflow_exist() {
        let workflow = include_str!("../../../docs/examples/speed-gate.yml").replace("\\\n", " ");
        let commands =
            workflow.lines().filter_map(|line| line.split_once("target/release/orinctl "));
        let mut seen = 0;
        for (_, words) in commands {
            let words = words.split_whitespace().map(|word| word.trim_matches('"'));
            let parsed =
                Args::definition().try_get_matches_from(std::iter::once("orinctl").chain(words));
            assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
            seen += 1;
        }
        assert_eq!(seen, 4);
    }

    #[test]
    fn list_and_global_arguments_are_parsed() {
        let args = Args::try_parse_from([
            "orinctl", "bench", "-p", "32,128", "-n", "0", "-d", "0,64", "--socket", "/x",
        ])
        .unwrap();
        let Command::Bench(bench) = args.command else { panic!("{:?}", args.command) };
        assert_eq!(bench.prompts, Some(vec![32, 128]));
        assert_eq!((bench.generate, bench.depths), (Some(vec![0]), vec![0, 64]));
        assert_eq!(args.connection.socket, Some("/x".into()));
        let both = ["orinctl", "bench", "--json", "--csv"];
        assert!(Args::try_parse_from(both).is_err());
        assert!(Args::try_parse_from(["orinctl", "generate"]).is_err());
        for (text, threshold) in
            [("5%", Some(0.05)), ("2.5", Some(0.025)), ("0", None), ("x%", None)]
        {
            let line = ["orinctl", "bench", "--against", "last", "--threshold", text];
            let parsed = Args::try_parse_from(line).ok().map(|args| args.command);
            let found = parsed.map(|command| match command {
                Command::Bench(bench) => bench.threshold,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, threshold, "{text}");
        }
        assert!(Args::try_parse_from(["orinctl", "generate", "x", "-p", "y"]).is_err());
    }
}
