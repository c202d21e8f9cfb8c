//! Arguments of `orinctl first-contact`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl first-contact
      asks before risky experiments, skips dangerous ones
  orinctl first-contact --list
      the experiments and their known risks
  orinctl first-contact --only doorbell-latency,copy-bandwidth
  orinctl first-contact --yes --skip largest-allocation -o agx-64.json
  orinctl first-contact --resume orin-profile.json
      continues after a crash of the machine
  orinctl first-contact --only large-ring -o ring.json
      may crash the machine
  tegra-sim run -- orinctl first-contact
      the same on a simulated Orin
  tegra-sim profile diff orin-profile.json
      how the simulator differs from the machine

Every experiment runs in its own process with a time limit; a failure is a result too. Nothing \
needs root, no setting is changed, everything is released. The file contains no serial numbers or paths \
and is never overwritten.")]
pub(crate) struct FirstContact {
    /// Run only these experiments, without asking, even if they are risky or dangerous
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Also run these risky or dangerous experiments; dangerous ones run only if named here or in
    /// --only
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) risky: Vec<String>,
    /// Skip these experiments
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// List the experiments, run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Run risky experiments without asking; dangerous ones must still be named
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Profile to write; must not exist yet
    #[arg(short, long, value_name = "FILE", default_value = "orin-profile.json")]
    pub(crate) output: PathBuf,
    /// Continue this profile: finished experiments are kept, one that was interrupted runs again
    /// only if named
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub(crate) resume: Option<PathBuf>,
    /// Time limit of every experiment in seconds [default: its own limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Option<f64>,
    /// Print the profile as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("expected a number of seconds above 0".into()),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Experiment {
    /// Name of the experiment
    pub(crate) name: String,
}
