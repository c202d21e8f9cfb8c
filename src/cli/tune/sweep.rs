//! `orinctl tune sweep`: measures tokens per second end to end for each value of a parameter, with
//! a load and a bench for each. Stored choices are disabled, so that the values are compared with
//! the heuristic; without a parameter, the stored choices are compared with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::super::args::{Connection, TuneSweep};
use super::super::error::Error;
use super::super::session::{self, DEFAULT_MODEL};
use super::super::terminal::Terminal;
use super::super::text;
use analysis::statistics::{DEFINITION, Summary};
use api::LoadRequest;
use api::client::private::{self, Private};
use bench::{Progress, Report, Spec};
use device::tune::report::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Setting {
    Heuristic,
    Remembered,
    Value(u32),
}

#[derive(Debug, Serialize)]
struct Line {
    setting: Setting,
    /// Number of the model's cases that use the setting.
    cases: usize,
    /// Tokens per second; `None` if no kernel supports the value.
    tokens_per_second: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct Document {
    model: String,
    device: String,
    parameter: Option<String>,
    test: String,
    lines: Vec<Line>,
}

pub(crate) async fn run(
    _: &Connection,
    args: &TuneSweep,
    terminal: &Terminal,
) -> Result<(), Error> {
    let param = args.param.as_deref().map(parse).transpose()?;
    let (name, values) = match param {
        Some((name, values)) => (Some(name), values.into_iter().map(Setting::Value).collect()),
        None => (None, vec![Setting::Remembered]),
    };
    let (prompts, generate) = match args.prefill {
        Some(tokens) => (vec![tokens], vec![0]),
        None => (vec![0], vec![args.tokens]),
    };
    let spec = Spec {
        prompts: Some(prompts),
        generate: Some(generate),
        batches: vec![args.batch],
        repetitions: Some(args.repetitions),
        ..Spec::default()
    };
    spec.check().map_err(|error| Error::Usage(error.to_string()))?;
    let private = Private::start(private::OWN.as_ref()).await?;
    let choice = &args.model;
    let all: Vec<Setting> = std::iter::once(Setting::Heuristic).chain(values).collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let mut cases = vec![0; all.len()];
    let mut document = Document {
        model: String::new(),
        device: String::new(),
        parameter: name.clone(),
        test: String::new(),
        lines: Vec::new(),
    };
    // Round by round, so that a slow minute of the machine affects all values.
    for round in 1..=args.rounds {
        for (at, &setting) in all.iter().enumerate() {
            let value = match (setting, &name) {
                (Setting::Value(value), Some(name)) => Some((name.clone(), value)),
                _ => None,
            };
            let remembered = setting == Setting::Remembered;
            let request = LoadRequest {
                model: session::absolute(choice.model.as_deref().unwrap_or(DEFAULT_MODEL))?,
                backend: choice.backend,
                slots: Some(spec.slots() as usize),
                context: Some((spec.context() as usize).next_multiple_of(64)),
                threads: choice.threads,
                cpu_isa: choice.cpu_isa,
                tune: Some(if remembered { Mode::Load } else { Mode::Off }),
                force: value.into_iter().collect::<BTreeMap<_, _>>(),
                ..LoadRequest::default()
            };
            let (model, _) = session::load(&private.client, &request, terminal).await?;
            (document.model, document.device) =
                (model.id.clone(), model.device.description.clone());
            cases[at] = if remembered { model.tuning.used } else { model.tuning.possible };
            if setting != Setting::Heuristic && cases[at] == 0 {
                continue;
            }
            let live = terminal.spinner();
            let label = setting.label(name.as_deref());
            live.message(format!("{label}, round {round} of {}", args.rounds));
            let report: Report = private.client.bench(&spec, |_: Progress| {}).await?;
            if let Some(row) = report.rows.first() {
                samples[at].push(row.tokens_per_second.median);
                document.test.clone_from(&row.name);
            }
        }
    }
    document.lines = all
        .into_iter()
        .zip(samples)
        .zip(cases)
        .map(|((setting, samples), cases)| Line {
            setting,
            cases,
            tokens_per_second: Summary::of(samples),
        })
        .collect();
    text::show(&document, args.json, Document::table)
}

impl Setting {
    fn label(self, name: Option<&str>) -> String {
        match (self, name) {
            (Self::Value(value), Some(name)) => format!("{name}={value}"),
            (Self::Value(value), None) => value.to_string(),
            (Self::Heuristic, _) => "heuristic".into(),
            (Self::Remembered, _) => "remembered".into(),
        }
    }
}

/// Parses `threads_per_row=8,16,32`.
fn parse(text: &str) -> Result<(String, Vec<u32>), Error> {
    let wrong = || {
        Error::Usage(format!(
            "--param {text}: expected NAME=VALUE,.. such as threads_per_row=8,16,32"
        ))
    };
    let (name, values) = text.split_once('=').ok_or_else(wrong)?;
    let number = |value: &str| value.trim().parse::<u32>().map_err(|_| wrong());
    let values = values.split(',').map(number).collect::<Result<Vec<u32>, Error>>()?;
    if name.is_empty() || values.is_empty() {
        return Err(wrong());
    }
    Ok((name.to_owned(), values))
}

impl Document {
    fn table(&self) -> String {
        let heads = ["setting", "cases", "tok/s", "±", "vs heuristic"].map(str::to_owned);
        let mut rows = vec![heads.to_vec()];
        let base = self.lines.first().and_then(|line| line.tokens_per_second.as_ref());
        for line in &self.lines {
            let setting = line.setting.label(self.parameter.as_deref());
            let (speed, spread, ratio) = match (&line.tokens_per_second, base) {
                (Some(speed), Some(base)) => (
                    format!("{:.2}", speed.median),
                    speed.spread.map_or_else(String::new, |spread| format!("{spread:.2}")),
                    format!("{:+.1} %", 100.0 * (speed.median / base.median - 1.0)),
                ),
                _ if line.setting == Setting::Remembered => {
                    ("nothing is stored".into(), String::new(), String::new())
                }
                _ => ("no kernel supports it".into(), String::new(), String::new()),
            };
            rows.push(vec![setting, line.cases.to_string(), speed, spread, ratio]);
        }
        let mut out = format!("{} on {}, {}\n\n", self.model, self.device, self.test);
        out.push_str(&text::table(&rows, &[1, 2, 3, 4]));
        let _ = writeln!(out, "\n±: {DEFINITION}");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_values_are_parsed() {
        assert_eq!(parse("a=8,16, 32").unwrap(), ("a".into(), vec![8, 16, 32]));
        for wrong in ["a", "a=", "=1", "a=x", "a=1,,2", "a=-1"] {
            assert!(parse(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }
}
