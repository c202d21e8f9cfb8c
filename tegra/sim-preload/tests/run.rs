//! Run mode: programs that know nothing of the simulator, under `tegra-sim run`.
//!
//! Not for cross-built tests: their programs would be for another processor.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "integration tests")]

use std::ffi::OsStr;
use std::fs;
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

/// Compiles a C program; none, with a word about it, where there is no compiler.
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
fn a_program_has_the_descriptors_that_the_driver_gave_it() {
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
fn nodes_look_as_on_the_device() {
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
fn the_exit_status_is_the_programs_own() {
    assert_eq!(run(["sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    assert_eq!(run(["no-such-program-anywhere"]).status().unwrap().code(), Some(125));
}

#[test]
fn a_missing_library_is_named_with_how_to_build_it() {
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
        // A copy might still be open for writing when another test forks.
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
fn a_trace_tells_what_happened() {
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
