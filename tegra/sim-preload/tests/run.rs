//! Run mode: unmodified programs under `tegra-sim run`.
//!
//! Not for cross-built tests: their programs would be for another processor.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "integration tests")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use orind_testing::program::{built, preload_library, said, tegra_sim};

/// A program under `tegra-sim run`.
fn run<I: AsRef<OsStr>>(words: impl IntoIterator<Item = I>) -> Command {
    let mut command = tegra_sim();
    command.args(["run", "--seed", "1", "--"]).args(words);
    command
}

fn source(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Compiles a C program; `None`, with a message, without a compiler.
fn compile(name: &str, flags: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let result = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-o"])
        .args([program.as_path(), &source(name)])
        .args(flags)
        .status();
    match result {
        Ok(status) => {
            assert!(status.success(), "{name} with {flags:?} compiles");
            Some((directory, program))
        }
        Err(error) => {
            eprintln!("skipped: no C compiler ({error})");
            None
        }
    }
}

fn has(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        eprintln!("skipped: no {program}");
    }
    found
}

#[test]
fn a_c_program_runs() {
    for flags in [["-O0"].as_slice(), &["-O2", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"]] {
        let Some((_keep, program)) = compile("release.c", flags) else { return };
        let text = said(&mut run([&program]));
        assert_eq!(text, "token 511, semaphore written three times, time runs\n", "{flags:?}");
    }
}

#[test]
fn a_python_program_runs() {
    if has("python3") {
        let text = said(&mut run(["python3".into(), source("release.py")]));
        assert_eq!(text, "token 511, semaphore written four times\n");
    }
}

#[test]
fn a_program_has_exactly_the_drivers_descriptors() {
    let Some((_keep, program)) = compile("descriptors.c", &[]) else { return };
    assert_eq!(said(&mut run([&program])), "as many descriptors as the driver gave\n");
}

#[test]
fn a_static_program_is_refused() {
    let Some((_keep, program)) = compile("release.c", &["-static"]) else { return };
    let output = run([&program]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("statically linked"), "{message}");
}

#[test]
fn stat_prints_nodes_as_on_the_device() {
    if has("stat") {
        let text =
            said(&mut run(["stat", "-c", "%n %F %a %U", "/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"]));
        let expected = "/dev/nvmap character special file 660 root\n\
                        /dev/nvgpu/igpu0/ctrl character special file 660 root\n";
        assert_eq!(text, expected);
    }
    if has("ls") {
        let text = said(&mut run(["ls", "-l", "/dev/nvgpu/igpu0/prof"]));
        assert!(text.starts_with("crw------- 1 root"), "{text}");
    }
}

#[test]
fn shell_redirections_reach_a_node() {
    let script = "test -c /dev/nvmap && test ! -e /dev/nvmap1 && echo 1 > /dev/nvgpu/igpu0/power && \
                  ! echo x > /dev/nvgpu/igpu0/power && head -c2 /dev/nvgpu/igpu0/power";
    assert_eq!(said(&mut run(["sh", "-c", script])), "2\0");
}

#[test]
fn the_exit_status_is_the_programs() {
    assert_eq!(run(["sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    assert_eq!(run(["no-such-program-anywhere"]).status().unwrap().code(), Some(125));
}

#[test]
fn a_missing_library_error_names_the_build_command() {
    let output = tegra_sim()
        .args(["run", "--", "sh"])
        .env("TEGRA_SIM_PRELOAD", "/nonexistent/library.so")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("cargo build -p tegra-sim-preload"), "{message}");
}

/// `bin/tegra-sim` and `lib/libtegra_sim_preload.so` below one prefix.
#[test]
fn an_installed_program_finds_its_library() {
    let prefix = tempfile::tempdir_in(built()).unwrap();
    let install = |file: PathBuf, folder: &str| {
        let folder = prefix.path().join(folder);
        fs::create_dir(&folder).unwrap();
        let installed = folder.join(file.file_name().unwrap());
        // Another test's fork might still have a copy open for writing.
        fs::hard_link(file, &installed).unwrap();
        installed
    };
    let program = install(tegra_sim().get_program().into(), "bin");
    let library = install(preload_library(), "lib");
    let mut command = Command::new(program);
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = said(command.env_remove("TEGRA_SIM_PRELOAD").env_remove("LD_PRELOAD"));
    assert_eq!(output.trim(), library.to_str().unwrap());
}

#[test]
fn a_trace_records_requests_and_work() {
    let Some((keep, program)) = compile("release.c", &[]) else { return };
    let trace = keep.path().join("trace.jsonl");
    let under = |arguments: &[&OsStr]| said(tegra_sim().args(arguments));
    let word = OsStr::new;
    under(&[word("run"), word("--trace"), trace.as_os_str(), word("--"), program.as_os_str()]);
    let stats = under(&[word("stats"), word("--json"), trace.as_os_str()]);
    for count in ["\"doorbells\": 3", "\"releases\": 3", "\"interrupts\": 3", "\"refused\": 0"] {
        assert!(stats.contains(count), "{count} in {stats}");
    }
    let listing = under(&[word("decode"), trace.as_os_str()]);
    assert!(listing.contains("SEM_PAYLOAD_LO = 0x3"), "{listing}");
    let errnos = under(&[word("errnos"), word("--node"), word("nvmap"), word("--json")]);
    assert!(errnos.contains("\"errno\": \"EEXIST\""), "{errnos}");
}

/// The commands of a step of `docs/ci/jetson.yml`, as its shell gets them.
fn step(name: &str) -> String {
    let recipe = include_str!("../../../docs/ci/jetson.yml");
    let (_, step) = recipe.split_once(&format!("- name: {name}\n")).unwrap();
    let (_, script) = step.split_once("run: |\n").unwrap();
    let indented = |line: &&str| line.is_empty() || line.starts_with("          ");
    script.lines().take_while(indented).map(|line| format!("{}\n", line.trim())).collect()
}

/// Runs the recipe on a project of one test that passes, one that fails, and one whose error only
/// the simulator sees.
#[test]
fn the_ci_recipe_reports_failures_and_findings() {
    if !has("python3") || !has("bash") {
        return;
    }
    let project = tempfile::tempdir().unwrap();
    let at = |name: &str| project.path().join(name);
    let write = |name: &str, text: &str| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::create_dir_all(at("build/tests")).unwrap();
    write("known-findings.txt", "");
    // The program of `tegra-sim`, and with it the library of this build.
    let simulator = tegra_sim();
    fs::create_dir(at("bin")).unwrap();
    std::os::unix::fs::symlink(simulator.get_program(), at("bin/tegra-sim")).unwrap();
    let outcome = |step_name: &str| {
        let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &step(step_name)]);
        shell.current_dir(project.path()).env("PATH", path);
        shell.env("TEGRA_SIM_PRELOAD", preload_library());
        shell.env("TESTS", "build/tests/*").env("KNOWN", "known-findings.txt");
        shell.env("GITHUB_STEP_SUMMARY", at("summary.md"));
        let output = shell.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let python = fs::read_to_string(source("release.py")).unwrap();
    let good = format!("#!/usr/bin/env python3\n{python}");
    write("build/tests/good", &good);
    assert_eq!(
        outcome("Test"),
        (Some(0), "token 511, semaphore written four times\ngood: exit status 0\n".into())
    );
    outcome("Tell what was found");
    let summary = || fs::read_to_string(at("summary.md")).unwrap();
    assert!(summary().contains("nothing was found"), "{}", summary());

    write("build/tests/bad", "#!/bin/sh\nexit 3\n");
    let (unseen, behind) = good.split_once("libc = ").unwrap();
    let forgets = "struct.pack_into('<I', userd[2], 0x8C, 5)\nos.close(channel)\n";
    write("build/tests/forgets", &format!("{unseen}{forgets}libc = {behind}"));
    let (status, said) = outcome("Test");
    assert_eq!(status, Some(1), "{said}");
    for line in ["bad: exit status 3", "forgets: exit status 134", "good: exit status 0"] {
        assert!(said.contains(line), "{line} in {said}");
    }
    assert!(at("orin/forgets.jsonl").is_file());
    outcome("Tell what was found");
    assert!(summary().contains("forgets.log:tegra-sim: doorbell-missing"), "{}", summary());

    // The suppression line that the finding prints, with a reason, is enough.
    fs::remove_file(at("build/tests/bad")).unwrap();
    let log = fs::read_to_string(at("orin/forgets.log")).unwrap();
    let line = log.lines().find(|line| line.ends_with(" -- WHY")).unwrap();
    write("known-findings.txt", &line.trim().replace("WHY", "the last submission is never wanted"));
    assert_eq!(outcome("Test").0, Some(0));
}
