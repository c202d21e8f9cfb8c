//! `orinctl sweep` as a command: axes on a tiny model, interrupted and resumed sweeps, foreign files.
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orind_testing::daemon::{MODEL, eventually, orinctl};
use orind_testing::program::{outcome, said, tegra_sim};
use orind_testing::tiny;
use serde_json::Value;
use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("sweep.jsonl")
    }

    /// A sweep of short tests on the CPU.
    fn sweep(&self, more: &[&str]) -> Command {
        let mut command = orinctl(self.0.path());
        command.env("XDG_CACHE_HOME", self.0.path().join("cache"));
        command.args(["sweep", "--backend", "cpu", "-p", "8", "-n", "3", "--out"]).arg(self.file());
        command.args(more);
        command
    }

    /// Round and point of each line.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        let name = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            format!("{} {}", line["round"], line["point"])
        };
        text.lines().map(name).collect()
    }

    /// Number of processes that were started with this home.
    fn processes(&self) -> usize {
        let home = self.0.path().to_str().unwrap();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let ours = all.filter(|process| {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(home)
        });
        ours.count()
    }
}

#[test]
fn every_combination_is_measured_in_every_round() {
    let home = Home::new();
    let model = tiny("tiny-llama-f16");
    let axes = ["-m", &model, "--types", "q8_0,f16", "--threads", "1,2", "--rounds"];
    let found = said(home.sweep(&axes).args(["2", "--json"]));
    let found: Value = serde_json::from_str(&found).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let named = |row: &Value| {
        let setting = &row["setting"];
        format!("{} {} {}", setting["type"], setting["threads"], row["name"]).replace('"', "")
    };
    let names: Vec<String> = rows.iter().map(named).collect();
    let mut expected = Vec::new();
    for kind in ["Q8_0", "F16"] {
        for threads in [1, 2] {
            expected.extend(["pp8", "tg3"].map(|test| format!("{kind} {threads} {test}")));
        }
    }
    assert_eq!(names, expected);
    for row in rows {
        let samples = row["tokens_per_second"]["samples"].as_array().unwrap();
        let [low, high] = ["low", "high"].map(|end| row["interval"][end].as_f64().unwrap());
        let median = row["tokens_per_second"]["median"].as_f64().unwrap();
        assert!(samples.len() == 2 && 0.0 < low && low <= median && median <= high, "{row}");
    }
    let lines = home.lines();
    assert_eq!(lines.len(), 16);
    assert_ne!(lines[..8].join("\n"), lines[8..].join("\n").replace("2 {", "1 {"), "one order");
    // The loaded files are quantised ones, and the model's own file for its own type.
    let text = fs::read_to_string(home.file()).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (setting, manifest) = (&line["point"]["setting"], &line["report"]["manifest"]);
        assert_eq!(manifest["model"]["file_type"], setting["type"]);
        assert_eq!(manifest["threads"], setting["threads"]);
    }
    let quantised = fs::read_dir(home.0.path().join("cache/orind/quantised")).unwrap();
    assert_eq!(quantised.count(), 1);

    // A repeated sweep measures nothing, a further round does; the lines are records.
    let (code, csv, errors) = outcome(home.sweep(&axes).args(["2", "--csv"]));
    assert_eq!((code, csv.lines().count(), home.lines().len()), (Some(0), 9, 16), "{errors}");
    assert!(errors.contains("all 16 measurements are in"), "{errors}");
    let table = said(home.sweep(&axes).arg("3"));
    assert_eq!(home.lines().len(), 24);
    assert!(table.contains("| type | threads | test |"), "{table}");
    let (code, _, errors) = outcome(orinctl(home.0.path()).arg("verify").arg(home.file()));
    assert_ne!(code, Some(1), "{errors}");
}

#[test]
fn ctrl_c_leaves_no_process_and_the_same_command_resumes() {
    let home = Home::new();
    let axes = ["-m", MODEL, "--threads", "1,2", "--neighbours", "0,1", "--rounds", "4"];
    let mut command = home.sweep(&axes);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(home.file()).unwrap_or_default().lines().count() < 5 {
        assert!(Instant::now() < deadline, "nothing is measured");
        thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{table}");
    assert!(table.starts_with("Interrupted") && table.contains("| pp8 "), "{table}");
    eventually("all processes have ended", || home.processes() == 0);
    let before = home.lines();
    assert!((5..32).contains(&before.len()), "{}", before.len());

    let (code, table, errors) = outcome(&mut home.sweep(&axes));
    assert_eq!(code, Some(0), "{errors}");
    let going_on = format!("{} of 32 measurements are in", before.len());
    assert!(errors.contains(&going_on), "{errors}");
    assert!(table.contains("of fair share"), "{table}");
    let lines = home.lines();
    assert_eq!(lines[..before.len()], before);
    let different: BTreeSet<&String> = lines.iter().collect();
    assert_eq!((lines.len(), different.len()), (32, 32));
}

#[test]
fn a_truncated_line_is_measured_again() {
    let home = Home::new();
    let axes = ["-m", MODEL, "-t", "1", "-d", "0,4", "--rounds", "1"];
    said(&mut home.sweep(&axes));
    let whole = fs::read(home.file()).unwrap();
    let lines = home.lines();
    fs::write(home.file(), &whole[..whole.len() - 40]).unwrap();
    let (code, _, errors) = outcome(&mut home.sweep(&axes));
    assert_eq!(code, Some(0), "{errors}");
    for part in ["dropped an incomplete last line", "3 of 4 measurements"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    assert_eq!(home.lines(), lines);
}

#[test]
fn unusable_axes_and_files_are_refused_by_name() {
    let home = Home::new();
    let refused = |more: &[&str], code: i32, parts: &[&str]| {
        let (found, _, errors) = outcome(&mut home.sweep(more));
        assert_eq!(found, Some(code), "{more:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{part} in {errors}");
        }
    };
    let quantised = tiny("tiny-llama-Q8_0");
    refused(&["-m", MODEL, "--types", "q9"], 2, &["--types", "no type `q9`", "Q4_K_M"]);
    refused(&["-m", MODEL, "--types", "q5_k_m"], 1, &["synthetic:tiny-llama:q5_k_m"]);
    refused(&["-m", &quantised, "--types", "q4_0"], 1, &["is already Q8_0", "F16"]);
    refused(&["-m", "none.gguf"], 1, &["none.gguf"]);
    refused(&["-m", MODEL, "--quota", "120%"], 2, &["--quota", "from 1 to 100"]);
    let (code, _, errors) = outcome(orinctl(home.0.path()).args(["sweep", "-p", "0", "-n", "0"]));
    assert!(code == Some(2) && errors.contains("nothing to measure"), "{errors}");
    let rows = ["-m", MODEL, "--threads-per-row", "8"];
    refused(&rows, 2, &["--threads-per-row 8", "no kernel of", "tiny-llama"]);
    assert!(!home.file().exists());

    // A foreign file stays unchanged.
    fs::write(home.file(), "tok/s,model\n1,2\n").unwrap();
    refused(&["-m", MODEL], 1, &["sweep.jsonl, line 1", "not a measurement of a sweep", "--out"]);
    fs::remove_file(home.file()).unwrap();
    let axes = ["-m", MODEL, "-t", "1", "-d", "0", "--rounds", "1"];
    said(&mut home.sweep(&axes));
    let before = fs::read(home.file()).unwrap();
    let other = ["-m", MODEL, "-t", "1,2", "-d", "0", "--rounds", "1"];
    refused(
        &other,
        1,
        &["belongs to another sweep", "threads is [1] there and [1,2] here", "--out"],
    );
    assert_eq!(fs::read(home.file()).unwrap(), before);
}

/// The daemon runs in a control group, if groups can be created, and the group is removed afterwards.
#[test]
fn a_quota_is_applied_or_refused() {
    let home = Home::new();
    let axes = ["-m", MODEL, "--quota", "50%,100%", "--rounds", "1", "--json"];
    let (code, found, errors) = outcome(&mut home.sweep(&axes));
    if code != Some(0) {
        assert!(errors.contains("--quota") && errors.contains("root"), "{errors}");
        return;
    }
    let found: Value = serde_json::from_str(&found).unwrap();
    let share = |row: &Value| (row["fair_share"].as_f64(), row["threads_used"].as_u64());
    let rows: Vec<_> = found["rows"].as_array().unwrap().iter().map(share).collect();
    let cores = thread::available_parallelism().unwrap().get() as u64;
    let [half, whole] = [(Some(0.5), Some((cores / 2).max(1))), (Some(1.0), Some(cores))];
    // One prompt and one generation for each quota.
    assert_eq!(rows, [half, half, whole, whole]);
}

/// On the simulated Orin, whose times are meaningless.
#[test]
fn threads_per_row_select_kernel_variants() {
    let home = Home::new();
    let own = orinctl(home.0.path());
    let mut command = tegra_sim();
    command.args(["run", "--", env!("CARGO_BIN_EXE_orinctl")]);
    for (name, value) in own.get_envs() {
        value.map(|value| command.env(name, value));
    }
    command.args(["sweep", "--backend", "nv", "-m", MODEL, "--threads-per-row", "4,16", "-p", "0"]);
    command.args(["-n", "1", "--rounds", "1", "--out"]).arg(home.file());
    let table = said(&mut command);
    assert!(table.contains("| threads per row | test |"), "{table}");
    let text = fs::read_to_string(home.file()).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let asked = &line["point"]["setting"]["threads_per_row"];
        let tuning = line["report"]["manifest"]["provenance"]["tuning"].as_object().unwrap();
        let products = tuning.iter().filter(|(case, _)| case.starts_with("project "));
        let used: Vec<&Value> = products.map(|(_, choice)| &choice["threads_per_row"]).collect();
        assert!(!used.is_empty() && used.iter().all(|used| *used == asked), "{asked}: {used:?}");
    }
}
