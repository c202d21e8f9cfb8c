//! `orinctl tune` and `orinctl tune verify`: run a search in the daemon and show its progress.

use std::fmt::Write as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;

use super::super::args::{Connection, TuneSearch};
use super::super::error::Error;
use super::super::run::extents;
use super::super::session::{Daemon, Room, Session};
use super::super::terminal::Terminal;
use super::super::{text, until};
use device::tune::Clock;
use device::tune::report::{Network, Progress, Report, Row, Spec, State};

/// Searches, or measures the stored choices against the heuristic again. The first interrupt ends
/// the search and prints the results; the second ends the program.
pub(crate) async fn run(
    connection: &Connection,
    args: &TuneSearch,
    verify: bool,
    terminal: &Terminal,
    interrupted: Arc<Notify>,
) -> Result<(), Error> {
    let spec = Spec {
        beam: args.beam,
        budget_seconds: args.budget,
        samples: args.samples,
        kernel: args.kernel.clone(),
        again: args.again,
        verify,
        counted: args.counted,
        cold_bytes: args.cold_bytes,
        network: args.network.as_deref().map(|file| network(file, args)).transpose()?,
    };
    spec.check().map_err(|(_, message)| Error::Usage(message))?;
    let open = async {
        Ok::<_, Error>(match &args.network {
            Some(file) => {
                let daemon = Daemon::open(connection, args.model.private).await?;
                (daemon, file.display().to_string())
            }
            None => {
                let room = Room { slots: args.slots, context: Some(1024) };
                let session = Session::open(connection, &args.model, room, terminal).await?;
                let Session { client, private, model, .. } = session;
                (Daemon { client, _private: private }, model.id)
            }
        })
    };
    let (daemon, name) = until(Arc::clone(&interrupted), open).await?;
    let mut stopped = false;
    let report: Report = {
        let live = terminal.steps();
        let (mut done, mut cases) = (0, 0);
        let on_progress = |progress: Progress| match progress {
            Progress::Begun { cases: all, known } => {
                cases = all as u64;
                if !args.json {
                    let what = if verify { "winners to verify" } else { "cases to search" };
                    live.print_line(terminal, &format!("{all} {what}, {known} known and skipped"));
                }
            }
            Progress::Candidate { case, choice, cost, rejected, .. } => {
                let verdict = match (cost, rejected) {
                    (Some(cost), _) => format!("{:+.1} %", 100.0 * (1.0 / cost - 1.0)),
                    (None, why) => format!("rejected: {}", why.unwrap_or_default()),
                };
                live.set(done, cases, format!("{case}: {choice} {verdict}"));
            }
            Progress::Case { row } => {
                done += 1;
                live.set(done, cases, &row.case);
                if !args.json {
                    live.print_line(terminal, &line(&row));
                }
            }
        };
        let mut search = pin!(daemon.client.tune(&spec, on_progress));
        tokio::select! {
            report = search.as_mut() => report?,
            () = interrupted.notified() => {
                stopped = true;
                let stop = async {
                    daemon.client.stop_tuning().await?;
                    Ok(search.await?)
                };
                until(interrupted, stop).await?
            }
        }
    };
    text::show(&report, args.json, |report| table(report, &name, verify))?;
    match report.unwritten {
        Some(why) => Err(Error::NotRemembered(why)),
        None if stopped => Err(Error::Interrupted),
        None => Ok(()),
    }
}

/// Network to tune, in the form that the daemon accepts.
fn network(file: &Path, args: &TuneSearch) -> Result<Network, Error> {
    let shape = |(name, shape): &(String, String)| Ok((name.clone(), extents(name, shape)?));
    let shapes = args.shape.iter().map(shape).collect::<Result<_, Error>>()?;
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    Ok(Network {
        file: path.display().to_string(),
        shapes,
        backend: args.model.backend.map(|b| b.to_string()),
    })
}

fn line(row: &Row) -> String {
    let Row { case, choice, tried, .. } = row;
    let [low, high] = row.gain_interval.map(|gain| 100.0 * (gain - 1.0));
    let (gain, before) = (100.0 * (row.gain - 1.0), before(row));
    match row.state {
        State::Faster => format!("{case}: {gain:+.1} % ({low:+.1} to {high:+.1}) with {choice}"),
        State::Heuristic => {
            format!("{case}: the heuristic stays, after {tried} candidates{before}")
        }
        State::Lost => format!("{case}: no longer faster than the heuristic"),
        State::Partial => {
            format!("{case}: not finished; nothing faster so far, after {tried} candidates{before}")
        }
        State::Failed => format!("{case}: {}", row.why.clone().unwrap_or_default()),
    }
}

/// Mentions candidates that an earlier search tried.
fn before(row: &Row) -> String {
    if row.before == 0 { String::new() } else { format!(", {} of them before", row.before) }
}

fn table(report: &Report, model: &str, verify: bool) -> String {
    let counted = report.clock == Clock::Counted;
    let unit = if counted { "counted" } else { "us" };
    let heads = ["case", unit, unit, "GB/s", "gain %", "95 %", "tried", "choice"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let cost = |cost: f64| match cost {
        0.0 => String::new(),
        cost if counted => format!("{cost:.0}"),
        cost => format!("{:.1}", cost / 1e3),
    };
    for row in &report.rows {
        let faster = row.state == State::Faster;
        let [low, high] = row.gain_interval.map(|gain| 100.0 * (gain - 1.0));
        let choice = match row.state {
            State::Faster => row.choice.clone(),
            State::Heuristic => "heuristic".into(),
            State::Lost => "heuristic: the stored choice is no longer faster".into(),
            State::Partial => "heuristic, not finished".into(),
            State::Failed => row.why.clone().unwrap_or_default(),
        };
        rows.push(vec![
            row.case.clone(),
            cost(row.heuristic_cost),
            cost(row.cost),
            row.gb_per_s.map_or_else(String::new, |speed| format!("{speed:.1}")),
            if faster { format!("{:+.1}", 100.0 * (row.gain - 1.0)) } else { String::new() },
            if faster { format!("{low:+.1} to {high:+.1}") } else { String::new() },
            row.tried.to_string(),
            choice,
        ]);
    }
    let mut out = format!(
        "{model} on {}, candidates {}, {}; heuristic, then best:\n\n",
        report.device,
        report.candidates,
        if counted { "costs counted by the simulator, not times" } else { "measured" },
    );
    if report.rows.is_empty() {
        out.push_str("nothing to do\n");
    } else {
        out.push_str(&text::table(&rows, &[1, 2, 3, 4, 5, 6]));
    }
    let Report { known, left, seconds, .. } = report;
    let faster = report.rows.iter().filter(|row| row.state == State::Faster).count();
    let rejected: Vec<&String> = report.rows.iter().flat_map(|row| &row.rejected).collect();
    let verb = match (counted, verify) {
        (true, _) => "cheaper",
        (false, true) => "still faster",
        (false, false) => "faster",
    };
    let _ = writeln!(
        out,
        "\n{faster} of {} {verb} than the heuristic, {known} known before, {left} left, {seconds:.0} s of measuring",
        report.rows.len()
    );
    for why in rejected {
        let _ = writeln!(out, "rejected: {why}");
    }
    let file = report.file.display();
    let _ = match (verify, report.remembered, counted) {
        (true, ..) => writeln!(out, "{file} is unchanged; `orinctl tune --again` searches again"),
        (_, false, _) => writeln!(out, "nothing was written to {file}"),
        (_, _, true) => writeln!(out, "stored in {file}; a count is never used as a time"),
        (_, _, false) => writeln!(out, "stored in {file}; used from the next load on"),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_distinguishes_times_from_counts() {
        let row = Row {
            case: "project Q8_0 2048x1024".into(),
            state: State::Faster,
            heuristic: "rows_per_task=128".into(),
            choice: "rows_per_task=64".into(),
            heuristic_cost: 2000.0,
            cost: 1600.0,
            gain: 1.25,
            gain_interval: [1.2, 1.3],
            gb_per_s: Some(12.5),
            tried: 9,
            before: 4,
            rejected: vec!["rows_per_task=512: row 3 is wrong".into()],
            samples: 300,
            why: None,
        };
        let mut report = Report {
            device: "a processor".into(),
            file: "/x/cpu.toml".into(),
            remembered: true,
            unwritten: None,
            candidates: "built in".into(),
            clock: Clock::Measured,
            rows: vec![row],
            known: 2,
            left: 1,
            seconds: 3.0,
        };
        let text = table(&report, "m", false);
        for part in ["+25.0", "+20.0 to +30.0", "12.5", "rejected: rows_per_task=512", "1 left"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        report.clock = Clock::Counted;
        report.rows[0].gb_per_s = None;
        let text = table(&report, "m", false);
        assert!(text.contains("stored in /x/cpu.toml; a count"), "{text}");
        report.remembered = false;
        assert!(table(&report, "m", false).ends_with("nothing was written to /x/cpu.toml\n"));
        assert!(text.contains("not times") && !text.contains("  us") && !text.contains("measured"));
    }
}
