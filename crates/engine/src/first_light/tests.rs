//! First light with a device that can fail in any bring-up step.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use device::bring_up::{self, Book, FILE};
use device::first_light::{Chains, FirstLight};
use device::{Error, Footprint, Info, Instance, Request, Result, Scope, Tunable, named};
use plan::Fusions;

/// Simulated failure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Flaws {
    /// The process ends in this stage.
    ends: Option<Stage>,
    fails: Option<Stage>,
    /// A stage that degrades.
    lacks: Option<Stage>,
    /// Models fail in any higher mode.
    runs: Option<Chains>,
}

/// The CPU in the role of a GPU.
#[derive(Clone)]
struct Gpu {
    cpu: Arc<dyn Device>,
    flaws: Flaws,
    mode: Mode,
    dir: Arc<Path>,
    /// Modes that were tested.
    asked: Arc<Mutex<Vec<Mode>>>,
}

impl Device for Gpu {
    fn info(&self) -> Info {
        Info { name: "nv", ..self.cpu.info() }
    }

    fn fusions(&self) -> Fusions {
        self.cpu.fusions()
    }

    fn skips_padding(&self) -> bool {
        self.cpu.skips_padding()
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint> {
        self.cpu.footprint(request)
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>> {
        match self.flaws.runs {
            Some(runs) if self.mode.chains < runs => {
                Err(Error::Unsupported { device: "nv", what: "such chains".into() })
            }
            _ => self.cpu.open(request),
        }
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        None
    }

    fn first_light(&self) -> Option<&dyn FirstLight> {
        Some(self)
    }
}

impl FirstLight for Gpu {
    fn key(&self) -> String {
        "a GPU of its own kind".into()
    }

    fn prove(
        &self,
        wanted: Mode,
        note: &mut dyn FnMut(Note<'_>) -> Result<()>,
    ) -> Result<Option<Mode>> {
        self.asked.lock().push(wanted);
        let mut mode = wanted;
        for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Model) {
            note(Note::Begins(stage))?;
            let written = bring_up::read(&self.dir).unwrap().devices["nv"].under_way.clone();
            assert_eq!(written.unwrap().stage, stage, "it is on the disk when it begins");
            assert_ne!(self.flaws.ends, Some(stage), "here it ends");
            if self.flaws.fails == Some(stage) {
                let reason = format!("first light, stage {stage}: 7 where 8 was expected");
                let (scope, rebuildable) = (Scope::Device, false);
                return Err(Error::Lost { scope, rebuildable, reason, source: None });
            }
            if self.flaws.lacks == Some(stage) {
                mode.chains = Chains::Serial;
                note(Note::Degraded(stage, "stopped after 64 of 256 launches"))?;
            }
            note(Note::Passed(stage))?;
        }
        Ok(Some(mode))
    }

    fn in_mode(&self, mode: Mode) -> Arc<dyn Device> {
        Arc::new(Self { mode, ..self.clone() })
    }
}

/// A machine: its state directory and the state of the process.
struct Machine {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Mode>>>,
    shared: Shared,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, asked: Arc::default(), shared: Shared::default() }
    }

    fn light(&self) -> Light {
        Light { dir: Some(self.dir.path().to_owned()), wanted: Mode::default() }
    }

    fn start_as(&self, flaws: Flaws, light: &Light) -> std::result::Result<(), String> {
        let device: Arc<dyn Device> = Arc::new(Gpu {
            cpu: named("cpu", "auto", 1).unwrap(),
            flaws,
            mode: Mode::default(),
            dir: self.dir.path().into(),
            asked: Arc::clone(&self.asked),
        });
        pass(&device, light, &self.shared).map(|_| ())
    }

    /// Starts a daemon on the machine.
    fn start(&self, flaws: Flaws) -> std::result::Result<(), String> {
        self.start_as(flaws, &self.light())
    }

    /// Starts a daemon whose process ends in a stage.
    fn end(&self, stage: Stage) {
        let flaws = Flaws { ends: Some(stage), ..Flaws::default() };
        catch_unwind(AssertUnwindSafe(|| self.start(flaws))).unwrap_err();
    }

    fn book(&self) -> Book {
        bring_up::read(self.dir.path()).unwrap()
    }

    fn reboot(&self) {
        let mut book = self.book();
        book.devices.get_mut("nv").unwrap().key.boot = "another".into();
        fs::write(self.dir.path().join(FILE), serde_json::to_vec(&book).unwrap()).unwrap();
    }

    /// Modes that were tested since the previous call.
    fn asked(&self) -> Vec<Chains> {
        std::mem::take(&mut *self.asked.lock()).into_iter().map(|mode| mode.chains).collect()
    }

    fn mode(&self) -> Option<Chains> {
        Some(self.shared.devices.health().first()?.mode?.chains)
    }
}

const NONE: Flaws = Flaws { ends: None, fails: None, lacks: None, runs: None };

/// Stopping the daemon does not interrupt a stage.
#[test]
fn stopping_the_daemon_interrupts_no_stage() {
    let machine = Machine::new();
    for _ in 0..3 {
        machine.shared.set_state(State::Stopping);
        let why = machine.start(NONE).unwrap_err();
        assert!(why.contains("stopped in first light"), "{why}");
        assert_eq!(machine.book().devices["nv"].under_way, None);
    }
    machine.shared.set_state(State::Empty);
    machine.start(NONE).unwrap();
    assert_eq!(machine.mode(), Some(Mode::default().chains), "nothing is held against it");
}

#[test]
fn first_light_runs_once_per_start_of_the_machine() {
    let machine = Machine::new();
    for asked in [&[Chains::Split][..], &[]] {
        machine.start(NONE).unwrap();
        assert_eq!((machine.asked(), machine.mode()), (asked.to_vec(), Some(Chains::Split)));
    }
    // A higher wanted mode is tested.
    let full =
        Light { wanted: Mode { chains: Chains::Full, ..Mode::default() }, ..machine.light() };
    machine.start_as(NONE, &full).unwrap();
    assert_eq!((machine.asked(), machine.mode()), (vec![Chains::Full], Some(Chains::Full)));
    machine.reboot();
    machine.start(NONE).unwrap();
    assert_eq!(machine.asked(), [Chains::Split]);
    assert_eq!(machine.shared.devices.health()[0].disabled, None);
}

#[test]
fn a_crashed_machine_disables_the_device_until_the_record_is_cleared() {
    for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Model) {
        let machine = Machine::new();
        machine.end(stage);
        machine.reboot();
        machine.asked();
        let light = Light { dir: Some(machine.dir.path().into()), ..Light::default() };
        for _ in 0..2 {
            let why = machine.start_as(NONE, &light).unwrap_err();
            let words = ["went down in stage", stage.name(), "Z;", "orinctl doctor --retry-gpu"];
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            assert_eq!(machine.shared.devices.health()[0].disabled, Some(why));
        }
        assert_eq!(machine.asked(), [], "it was not touched");
        assert_eq!(bring_up::forget(machine.dir.path()).unwrap(), ["nv"]);
        machine.start(NONE).unwrap();
        assert_eq!(machine.asked(), [Chains::Split]);
        assert_eq!(machine.shared.devices.health()[0].disabled, None);
    }
}

#[test]
fn a_crashed_process_gets_one_more_attempt_in_a_lower_mode() {
    let machine = Machine::new();
    machine.end(Stage::Order);
    machine.start(NONE).unwrap();
    assert_eq!(
        (machine.asked(), machine.mode()),
        (vec![Chains::Split, Chains::Serial], Some(Chains::Serial))
    );

    let machine = Machine::new();
    machine.end(Stage::Order);
    machine.end(Stage::Launch);
    assert_eq!(machine.asked(), [Chains::Split, Chains::Serial]);
    let why = machine.start(NONE).unwrap_err();
    assert!(why.contains("ended in stage `launch`"), "{why}");
    // Not even if a lower mode is left.
    let machine = Machine::new();
    let full =
        Light { wanted: Mode { chains: Chains::Full, ..Mode::default() }, ..machine.light() };
    let flaws = Flaws { ends: Some(Stage::Event), ..NONE };
    for _ in 0..2 {
        catch_unwind(AssertUnwindSafe(|| machine.start_as(flaws, &full))).unwrap_err();
    }
    assert!(machine.start_as(NONE, &full).is_err());
    assert_eq!(machine.asked(), [Chains::Full, Chains::Split]);
    // No lower mode is left.
    let machine = Machine::new();
    let light =
        Light { wanted: Mode { chains: Chains::Serial, ..Mode::default() }, ..machine.light() };
    let flaws = Flaws { ends: Some(Stage::Event), ..NONE };
    catch_unwind(AssertUnwindSafe(|| machine.start_as(flaws, &light))).unwrap_err();
    assert!(machine.start_as(NONE, &light).is_err());
}

#[test]
fn a_failed_stage_is_reported_and_retried_at_the_next_load() {
    let machine = Machine::new();
    for _ in 0..2 {
        let why = machine.start(Flaws { fails: Some(Stage::Atomics), ..NONE }).unwrap_err();
        assert!(why.starts_with("first light, stage atomics: 7 where 8"), "{why}");
        let record = machine.book().devices["nv"].clone();
        assert!(record.under_way.is_none() && record.to_string().contains("7 where 8"), "{record}");
    }
    machine.start(NONE).unwrap();
    assert_eq!(machine.asked().len(), 3);
}

#[test]
fn notes_name_what_a_lower_mode_lacks() {
    let machine = Machine::new();
    machine.start(Flaws { lacks: Some(Stage::Order), ..NONE }).unwrap();
    let health = machine.shared.devices.health().remove(0);
    assert_eq!(health.mode.unwrap().chains, Chains::Serial);
    assert_eq!(health.notes, ["order: stopped after 64 of 256 launches"]);
    // The record contains the cause.
    let later = Shared::default();
    let machine = Machine { shared: later, ..machine };
    machine.start(NONE).unwrap();
    assert_eq!(machine.shared.devices.health(), [health]);
    assert_eq!(machine.asked().len(), 1);
}

#[test]
fn a_model_that_fails_in_one_mode_runs_in_the_next() {
    let machine = Machine::new();
    machine.start(Flaws { runs: Some(Chains::Serial), ..NONE }).unwrap();
    assert_eq!(machine.mode(), Some(Chains::Serial));
    let notes = &machine.shared.devices.health()[0].notes;
    assert!(notes[0].starts_with("model: nv does not support such chains"), "{notes:?}");
}

#[test]
fn a_mode_lowered_by_faults_stays_low() {
    let machine = Machine::new();
    machine.start(NONE).unwrap();
    let serial = Mode { chains: Chains::Serial, ..Mode::default() };
    for _ in 0..2 {
        lowered("nv", serial, &machine.light(), &machine.shared);
        let health = &machine.shared.devices.health()[0];
        assert_eq!((health.mode, health.mode_changes, health.notes.len()), (Some(serial), 1, 1));
    }
    let machine = Machine { shared: Shared::default(), ..machine };
    machine.start(NONE).unwrap();
    assert_eq!((machine.asked(), machine.mode()), (vec![Chains::Split], Some(Chains::Serial)));
    machine.reboot();
    machine.start(NONE).unwrap();
    assert_eq!((machine.asked(), machine.mode()), (vec![Chains::Serial], Some(Chains::Serial)));
    // Until the user clears the record.
    bring_up::forget(machine.dir.path()).unwrap();
    machine.start(NONE).unwrap();
    assert_eq!(machine.asked(), [Chains::Split]);
}

#[test]
fn a_damaged_or_unwritable_stage_file_disables_the_device() {
    let cpu = named("cpu", "auto", 1).unwrap();
    for damage in ["", "{", "[]", "{\"version\": 2, \"devices\": {}}", "\0\0\0\0"] {
        let machine = Machine::new();
        fs::write(machine.dir.path().join(FILE), damage).unwrap();
        let why = machine.start(NONE).unwrap_err();
        assert!(why.contains("damaged") && why.contains("--retry-gpu"), "{why}");
        assert_eq!(machine.asked(), []);
        pass(&cpu, &machine.light(), &machine.shared).map(|_| ()).unwrap();
        assert!(bring_up::forget(machine.dir.path()).unwrap()[0].starts_with("a damaged file"));
        machine.start(NONE).unwrap();
    }
    let machine = Machine::new();
    let file = machine.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let light = Light { dir: Some(file.join("state")), ..Light::default() };
    let why = machine.start_as(NONE, &light).unwrap_err();
    assert!(why.contains("set another state_dir"), "{why}");
    assert_eq!(machine.asked(), []);
    pass(&cpu, &light, &machine.shared).map(|_| ()).unwrap();
}

#[test]
fn without_a_state_directory_first_light_runs_no_stage() {
    let machine = Machine::new();
    machine.start_as(Flaws { fails: Some(Stage::Channel), ..NONE }, &Light::default()).unwrap();
    assert_eq!((machine.asked(), machine.mode()), (vec![], Some(Chains::Split)));
}
