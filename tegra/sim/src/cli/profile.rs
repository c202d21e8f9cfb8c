//! `tegra-sim profile`: compares the simulator with the profile of an Orin.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use tegra_profile::Profile;
use tegra_profile::diff::{Comparison, Row, compare};
use tegra_sim::profile::{Calibration, SIMULATED};

/// Largest width of a value in the table.
const WIDTH: usize = 34;

/// Commands about profiles.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Compare a profile that `orinctl first-contact` wrote with the simulator
    Diff(Diff),
}

/// Arguments of `profile diff`.
#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// Profile of a real Orin
    file: PathBuf,
    /// Profile of the simulator [default: the built-in one]
    #[arg(long, value_name = "FILE")]
    simulated: Option<PathBuf>,
    /// Print equal answers too
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let Self::Diff(diff) = self;
        diff.print()
    }
}

impl Diff {
    fn print(&self) -> Result<ExitCode, Box<dyn Error>> {
        let real = Profile::read(&self.file)?;
        let simulated = match &self.simulated {
            Some(path) => Profile::read(path)?,
            None => Profile::parse(SIMULATED.as_bytes())?,
        };
        let rows = compare(&simulated, &real);
        let text = if self.json {
            serde_json::to_string_pretty(&rows)? + "\n"
        } else {
            let calibration = Calibration::of(&real)?;
            table(&rows, self.all) + &summary(&calibration).join("\n") + "\n"
        };
        super::output::write(&text, &mut std::io::stdout());
        Ok(ExitCode::SUCCESS)
    }
}

fn said(comparison: &Comparison) -> String {
    match comparison {
        Comparison::Same => "same".into(),
        Comparison::Differs => "differs".into(),
        Comparison::Factor(factor) if *factor >= 10.0 => format!("x{factor:.0}"),
        Comparison::Factor(factor) => format!("x{factor:.2}"),
        Comparison::NotModelled => "not modelled".into(),
        Comparison::Missing => "no answer".into(),
    }
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= WIDTH {
        return line.into();
    }
    line.chars().take(WIDTH - 1).chain(['…']).collect()
}

/// Formats each question with its differences.
fn table(rows: &[Row], all: bool) -> String {
    let shown = |row: &Row| all || row.comparison != Comparison::Same;
    let name = |row: &Row| row.fact.clone().unwrap_or_else(|| "verdict".into());
    let widest = rows.iter().filter(|row| shown(row)).map(|row| name(row).len()).max();
    let names = widest.unwrap_or(0);
    let mut text = format!("  {:names$}  {:WIDTH$}  {:WIDTH$}  VERDICT\n", "", "SIMULATED", "REAL");
    let (mut same, mut experiments) = (0, 0);
    for experiment in rows.chunk_by(|one, other| one.experiment == other.experiment) {
        experiments += 1;
        if !experiment.iter().any(shown) {
            same += 1;
            continue;
        }
        let _ = writeln!(text, "{}: {}", experiment[0].experiment, experiment[0].question);
        for row in experiment.iter().filter(|row| shown(row)) {
            let (one, other) = (cut(&row.one), cut(&row.other));
            let verdict = said(&row.comparison);
            let _ =
                writeln!(text, "  {:names$}  {one:WIDTH$}  {other:WIDTH$}  {verdict}", name(row));
        }
    }
    let _ = writeln!(text, "{same} of {experiments} questions are answered alike");
    text
}

/// Summarises how `run --profile` uses a profile, in two lines.
pub(super) fn summary(calibration: &Calibration) -> [String; 2] {
    let taken: Vec<String> =
        calibration.taken.iter().map(|(what, value)| format!("{what} {value}")).collect();
    let list = |items: &[String]| {
        if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }
    };
    [
        format!("taken from the profile: {}", list(&taken)),
        format!("not modelled: {}", list(&calibration.unused)),
    ]
}
