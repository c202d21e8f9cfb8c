//! Run mode: programs that know nothing of the simulator, under `tegra-sim run`.
//!
//! Not for cross-built tests: their programs would be for another processor.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "integration tests")]

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where cargo puts the preload library and programs: `target/debug/deps` and the directory above.
fn built() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(deps.join("libtegra_sim_preload.so").is_file(), "cargo builds it along with the tests");
    deps
}

/// The program `tegra-sim`, built if need be.
fn tegra_sim() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let directory = built().parent().unwrap().to_owned();
            let target = directory.parent().unwrap();
            let status = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "-p", "tegra-sim", "--bin", "tegra-sim", "--target-dir"])
                .arg(target)
                .status()
                .unwrap();
            assert!(status.success(), "tegra-sim is built");
            directory.join("tegra-sim")
        })
        .clone()
}

/// Runs a program under `tegra-sim run` and waits for it.
fn run<I: AsRef<OsStr>>(command: impl IntoIterator<Item = I>) -> Output {
    let library = built().join("libtegra_sim_preload.so");
    Command::new(tegra_sim())
        .args(["run", "--seed", "1", "--"])
        .args(command)
        .env("TEGRA_SIM_PRELOAD", library)
        .output()
        .unwrap()
}

/// What a program wrote to stdout; it must have succeeded.
fn stdout(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    text
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
        let text = stdout(&run([&program]));
        assert_eq!(text, "token 511, semaphore written three times, time runs\n", "{flags:?}");
    }
}

#[test]
fn a_python_program_runs() {
    if has("python3") {
        let text = stdout(&run(["python3".into(), source("release.py")]));
        assert_eq!(text, "token 511, semaphore written four times\n");
    }
}

#[test]
fn a_static_program_is_refused() {
    let Some((_keep, program)) = compile("release.c", &["-static"]) else { return };
    let output = run([&program]);
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("statically linked"), "{message}");
}

#[test]
fn nodes_look_as_on_the_device() {
    if has("stat") {
        let text =
            stdout(&run(["stat", "-c", "%n %F %a %U", "/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"]));
        let expected = "/dev/nvmap character special file 660 root\n\
                        /dev/nvgpu/igpu0/ctrl character special file 660 root\n";
        assert_eq!(text, expected);
    }
    if has("ls") {
        let text = stdout(&run(["ls", "-l", "/dev/nvgpu/igpu0/prof"]));
        assert!(text.starts_with("crw------- 1 root"), "{text}");
    }
}

#[test]
fn shell_redirections_reach_a_node() {
    let script = "test -c /dev/nvmap && test ! -e /dev/nvmap1 && echo 1 > /dev/nvgpu/igpu0/power && \
                  ! echo x > /dev/nvgpu/igpu0/power && head -c2 /dev/nvgpu/igpu0/power";
    assert_eq!(stdout(&run(["sh", "-c", script])), "2\0");
}

#[test]
fn the_exit_status_is_the_programs_own() {
    assert_eq!(run(["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(["no-such-program-anywhere"]).status.code(), Some(125));
}

#[test]
fn a_missing_library_is_named_with_how_to_build_it() {
    let output = Command::new(tegra_sim())
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
    let program = install(tegra_sim(), "bin");
    let library = install(built().join("libtegra_sim_preload.so"), "lib");
    let output = Command::new(program)
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env_remove("TEGRA_SIM_PRELOAD")
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    assert_eq!(stdout(&output).trim(), library.to_str().unwrap());
}

#[test]
fn a_trace_tells_what_happened() {
    let Some((keep, program)) = compile("release.c", &[]) else { return };
    let trace = keep.path().join("trace.jsonl");
    let under = |arguments: &[&OsStr]| {
        let library = built().join("libtegra_sim_preload.so");
        let mut command = Command::new(tegra_sim());
        stdout(&command.args(arguments).env("TEGRA_SIM_PRELOAD", library).output().unwrap())
    };
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
