//! Arguments of `orinctl first-contact`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl first-contact
      asks before what is risky, leaves out what is dangerous
  orinctl first-contact --list
      the experiments, and what is known of their risk
  orinctl first-contact --only doorbell-latency,copy-bandwidth
  orinctl first-contact --yes --skip largest-allocation -o agx-64.json
  orinctl first-contact --resume orin-profile.json
      goes on after the machine went down
  orinctl first-contact --only large-ring -o ring.json
      one that may take the machine down
  tegra-sim run -- orinctl first-contact
      the same on a simulated Orin
  tegra-sim profile diff orin-profile.json
      how the simulator differs from the machine

Every experiment runs in a process of its own with a time limit; a failure is a result too. Nothing \
needs root, no setting is changed, everything is released. The file has no serial numbers and no paths, \
and is never overwritten.")]
pub(crate) struct FirstContact {
    /// Run these experiments only; what is named is agreed to, risky and dangerous ones too
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Run these besides, which is the only way to run dangerous ones beside others
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) risky: Vec<String>,
    /// Leave these experiments out
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// List the experiments, run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Run risky experiments without asking; dangerous ones have to be named
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// File that the profile is written to; there must be none of that name
    #[arg(short, long, value_name = "FILE", default_value = "orin-profile.json")]
    pub(crate) output: PathBuf,
    /// Go on with this file: what has an answer is kept, what was under way when the run ended is not
    /// run again unless it is named
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub(crate) resume: Option<PathBuf>,
    /// Seconds after which any experiment is killed [default: its own limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Option<f64>,
    /// Print the profile as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("a number of seconds above 0 is needed".into()),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Experiment {
    /// Which
    pub(crate) name: String,
}
