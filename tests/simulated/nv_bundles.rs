//! Fault bundles: the NV device writes one while it recovers from a GPU fault, and the simulator replays it.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use device::Device;
use device::first_light::Mode;
use device::gpu::nv::Nv;
use model::{KvLayout, Model};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use orind_testing::daemon::{self, Daemon, eventually, orinctl};
use orind_testing::program::{again, outcome, preload_library, said, tegra_sim};
use orind_testing::session::Session;
use orind_testing::tiny;
use parking_lot::Mutex;
use plan::Bucket;
use tegra_bundle::{Bundle, Directory, Header, MAX_BUNDLES, Mapping};
use tegra_sim::engine::Replay;

/// Environment variable with the path of the state directory.
const STATE: &str = "ORIND_TEST_STATE";
/// Environment variable with the number of bundles to wait for.
const BUNDLES: &str = "ORIND_TEST_BUNDLES";
/// Environment variable with the number of launches in a chain.
const LONGEST: &str = "ORIND_TEST_LONGEST";
/// Environment variable that limits files to [`ROOM`] bytes, as if the disk were full.
const FULL: &str = "ORIND_TEST_FULL_DISK";
const ROOM: u64 = 64 << 10;
/// Launches of a step, which are one chain.
const LAUNCHES: usize = 14;

/// Runs sixteen steps on the device, and prints their tokens after the expected bundles have been written.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn steps() {
    const STEPS: u32 = 16;
    tracing_subscriber::fmt().with_writer(|| Log).init();
    let (layout, bucket) = (KvLayout { slots: 1, context: 64, ring: None }, Bucket::decode(1, 64));
    let model = Model::open(tiny("tiny-llama-Q8_0")).unwrap();
    let longest = std::env::var(LONGEST).map_or(32, |longest| longest.parse().unwrap());
    let mode = Mode { longest, ..Mode::default() };
    let nv = Nv::detect().unwrap().first_light().unwrap().in_mode(mode);
    let mut session = Session::new(&*nv, &model, layout, &[bucket]);
    let state = std::env::var_os(STATE).map(PathBuf::from).unwrap();
    session.instance.write_fault_bundles(&state);
    session.load(0, &[(5, 0, 0)]);
    if std::env::var_os(FULL).is_some() {
        // A write beyond the limit fails, as on a full disk, instead of raising a signal.
        // SAFETY: ignoring a signal runs no code.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, ROOM, ROOM).unwrap();
    }
    let ticket = session.run(0, STEPS);
    let mut tokens = vec![[0]; STEPS as usize];
    for (step, token) in tokens.iter_mut().enumerate() {
        session.instance.tokens(ticket, step as u32, token).unwrap();
    }
    println!("tokens {:?}", tokens.concat());
    let wanted: usize = std::env::var(BUNDLES).map_or(0, |count| count.parse().unwrap());
    let directory = Directory::of_state(&state);
    eventually("bundles are there, or the reason why not", || {
        directory.list().is_ok_and(|found| found.len() >= wanted) || complaints() > 0
    });
    println!("complaints {}", complaints());
}

/// Log of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of log lines that report a missing bundle.
fn complaints() -> usize {
    String::from_utf8_lossy(&LOG.lock()).matches("cannot write a GPU fault bundle").count()
}

/// Command that runs the steps with these faults.
fn steps_with(faults: &str, state: &Path, bundles: usize) -> Command {
    let mut command = again(module_path!(), "steps");
    command.env("TEGRA_SIM_FAULTS", faults);
    command.env(STATE, state).env(BUNDLES, bundles.to_string());
    command
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| Some(line.split_once(name)?.1)).unwrap()
}

/// Tokens of the steps without faults, which write no file.
fn undisturbed() -> &'static str {
    static TOKENS: OnceLock<String> = OnceLock::new();
    TOKENS.get_or_init(|| {
        let state = tempfile::tempdir().unwrap();
        let text = said(&mut steps_with("", state.path(), 0));
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
        line(&text, "tokens ").to_owned()
    })
}

/// The first bundle that these faults cause, and its replay; the faults change no token.
fn left_by(faults: &str) -> (Header, Replay) {
    let state = tempfile::tempdir().unwrap();
    let text = said(&mut steps_with(faults, state.path(), 1));
    assert_eq!((line(&text, "tokens "), line(&text, "complaints ")), (undisturbed(), "0"));
    let first = Directory::of_state(state.path()).list().unwrap().remove(0);
    let bundle = Bundle::read(&first).unwrap();
    let replay = Replay::run(&bundle, None).unwrap();
    (bundle.header, replay)
}

#[test]
fn a_bundle_holds_the_submitted_work() {
    let (header, replay) = left_by("mmu-fault@3");
    let Header { rule, notifier, message, launches, stream, mappings, contents, .. } = &header;
    assert_eq!((rule.as_str(), *notifier), ("mmu-fault", Some(31)));
    assert!(message.contains("address fault"), "{message}");
    assert!(header.at.is_some() && header.device.contains("SMs"), "{header:?}");
    assert_eq!((launches.len(), &header.left_out[..]), (LAUNCHES, &[][..]));
    assert!(launches[0].name.contains("embed_q8_0"), "{}", launches[0].name);
    let stream = stream.join("\n");
    assert!(stream.contains("launch") && stream.contains("the queue was at"), "{stream}");
    let what: HashSet<&str> = mappings.iter().map(|mapping| mapping.what.as_str()).collect();
    assert_eq!(what, HashSet::from(["weights", "scratch", "a mailbox"]));
    let lies_in = |va: u64, bytes: u64| {
        move |mapping: &&Mapping| mapping.va <= va && va + bytes <= mapping.va + mapping.bytes
    };
    for range in contents {
        assert!(mappings.iter().any(|m| lies_in(range.va, range.bytes)(&m)), "{range:?}");
    }
    // Weights are included.
    let weights = mappings.iter().filter(|mapping| mapping.what == "weights");
    let weights: Vec<&Mapping> = weights.collect();
    let of_weights = contents
        .iter()
        .filter(|part| weights.iter().any(|mapping| lies_in(part.va, part.bytes)(mapping)));
    assert!(of_weights.map(|part| part.bytes).sum::<u64>() > 100_000);
    // The launches themselves are correct.
    let text = replay.to_string();
    assert!(text.contains("each of the 14 launches runs to its end"), "{text}");
    assert!(!replay.is_same(), "a replay repeats no injected fault");
}

/// The fault is in the fifth launch of the second step; the launches before it finish.
#[test]
fn a_read_of_unmapped_memory_is_repeated_in_replay() {
    let (header, replay) = left_by(&format!("bit-error@{}", LAUNCHES + 5));
    let text = replay.to_string();
    assert!(replay.is_same(), "{text}");
    assert_eq!(text.matches("ran to its end: ").count(), 4, "{text}");
    assert!(text.contains(&format!("\n{}: kernel 0x", header.launches[4].name)), "{text}");
    let fault = text.lines().find(|line| line.starts_with("replayed: ")).unwrap();
    let (_, address) = fault.split_once("GPU address 0x").expect(fault);
    let (address, _) = address.split_once(' ').unwrap();
    let address = u64::from_str_radix(address, 16).unwrap();
    let is_mapped = |at: u64| header.mappings.iter().any(|m| (m.va..m.va + m.bytes).contains(&at));
    assert!(!is_mapped(address) && is_mapped(address ^ 1 << 38), "{fault}");
    assert!(
        text.contains("lane ") && text.contains("\n> 0x") && text.contains("\n  R0 "),
        "{text}"
    );
}

/// Semaphore releases after each chain identify the interrupted one: in the second step, and in its repetition, which
/// is interrupted earlier.
#[test]
fn a_bundle_holds_the_interrupted_chain() {
    let names = |state: &Path| -> Vec<Vec<String>> {
        let files = Directory::of_state(state).list().unwrap();
        let headers = files.iter().map(|file| Header::read(file).unwrap());
        headers.map(|header| header.launches.into_iter().map(|l| l.name).collect()).collect()
    };
    let [whole, short] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    said(&mut steps_with("mmu-fault@1", whole.path(), 1));
    let chain = names(whole.path()).remove(0);
    assert_eq!(chain.len(), LAUNCHES);
    // The second fault interrupts the third launch of the repetition.
    let faults = format!("mmu-fault@{},mmu-fault@{}", LAUNCHES + 6, LAUNCHES + 6 + 3);
    said(steps_with(&faults, short.path(), 2).env(LONGEST, "4"));
    assert_eq!(names(short.path()), [&chain[4..8], &chain[..4]]);
}

#[test]
fn a_hang_writes_a_bundle() {
    let (header, replay) = left_by("stuck-semaphore@17");
    assert_eq!((header.rule.as_str(), header.notifier), ("hang", None));
    assert!(header.message.contains("not reached after"), "{}", header.message);
    assert_eq!(header.launches.len(), LAUNCHES);
    assert!(!replay.is_same() && replay.to_string().contains("runs to its end"), "{replay}");
}

/// Each of sixteen steps fails once.
#[test]
#[ignore = "nightly"]
fn nightly_repeated_faults_leave_only_a_few_bundles() {
    let state = tempfile::tempdir().unwrap();
    let faults = (0..16).map(|step| format!("mmu-fault@{}", 2 * LAUNCHES * step + LAUNCHES));
    let faults: Vec<String> = faults.collect();
    said(&mut steps_with(&faults.join(","), state.path(), 1));
    let kept = Directory::of_state(state.path()).list().unwrap();
    assert!((1..=MAX_BUNDLES).contains(&kept.len()), "{kept:?}");
    for file in kept {
        Bundle::read(&file).unwrap();
    }
}

/// A full disk, and a file in place of the directory.
#[test]
fn a_bundle_that_cannot_be_written_changes_no_token() {
    const FAULTS: &str = "mmu-fault@3,mmu-fault@50";
    let state = tempfile::tempdir().unwrap();
    let once = |command: &mut Command| {
        let text = said(command);
        assert_eq!((line(&text, "tokens "), line(&text, "complaints ")), (undisturbed(), "1"));
    };
    once(steps_with(FAULTS, state.path(), 1).env(FULL, "1"));
    assert_eq!(fs::read_dir(Directory::of_state(state.path()).path()).unwrap().count(), 0);
    let state = tempfile::tempdir().unwrap();
    fs::write(Directory::of_state(state.path()).path(), "a file").unwrap();
    once(&mut steps_with(FAULTS, state.path(), 1));
}

/// The daemon's log and `orinctl doctor` name the file, and `tegra-sim` replays it.
#[test]
fn the_daemon_and_the_doctor_report_a_bundle() {
    let state = tempfile::tempdir().unwrap();
    let orind = |faults: &str| {
        let mut command = daemon::orind();
        command.env("LD_PRELOAD", preload_library());
        command.env("TEGRA_SIM_FAULTS", faults);
        command
    };
    let settings = format!(
        "model = '{}'\nthreads = 1\ncontext = 64\nbackend = 'nv'\nstate_dir = '{}'\n",
        daemon::MODEL,
        state.path().display()
    );
    // First light, which has thousands of launches, runs at the first start only.
    let mut daemon = Daemon::launch_with(orind(""), &settings);
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    daemon.signal(Signal::SIGTERM);
    daemon.restart_with(orind("bit-error@40"));
    daemon.until("the model is loaded", |status| status["state"]["name"] == "ready");
    let request = serde_json::json!({ "prompt": "once upon a time", "max_tokens": 20 });
    let answer = daemon.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let directory = Directory::of_state(state.path());
    let mut newest = PathBuf::new();
    eventually("the log names a bundle that is there", || {
        let kept = directory.list().unwrap();
        newest = kept.last().cloned().unwrap_or_default();
        kept.iter().any(|file| daemon.log().contains(&file.display().to_string()))
    });
    let log = daemon.log();
    assert!(log.contains("GPU fault: rebuilding the channel and repeating the step"), "{log}");

    let config = daemon.socket().with_file_name("orind.toml");
    let report = state.path().join("report.json");
    let mut doctor = orinctl(state.path());
    doctor.arg("doctor").arg("--config").arg(&config).arg("--report").arg(&report);
    let (_, text, errors) = outcome(&mut doctor);
    assert!(text.contains(&format!("tegra-sim replay {}", newest.display())), "{text} {errors}");
    let report = fs::read_to_string(report).unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    assert!(report.contains(name) && report.contains("mmu-fault on 2"), "{report}");

    let (code, text, errors) = outcome(tegra_sim().arg("replay").arg(&newest));
    assert_eq!(code, Some(0), "{text} {errors}");
    assert!(text.contains("at GPU address 0x") && text.ends_with("the same fault\n"), "{text}");
}
