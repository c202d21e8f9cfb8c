//! Test plan of a seed: settings of the daemon, and the actions that follow, step by step.

use std::fmt;

use orind_testing::random::Random;

use crate::hostile;
use crate::loops;
use crate::pulls;
use crate::request;

/// Number of steps of a plan, without those before the daemon's start.
const STEPS: usize = 16;

/// Device that runs the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    /// The simulated Orin, selected by name.
    Nv,
    /// The simulated Orin, with the CPU as fallback.
    Auto,
}

impl Device {
    /// Its name in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Nv => "nv",
            Self::Auto => "auto",
        }
    }

    pub(crate) fn is_simulated(self) -> bool {
        self != Self::Cpu
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Settings that apply to the whole plan.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) device: Device,
    pub(crate) slots: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) queue_limit: usize,
    pub(crate) max_connections: usize,
    pub(crate) shutdown_deadline_s: u64,
    pub(crate) tune: &'static str,
    /// True if the state directory has the bring-up results of an earlier start.
    pub(crate) known: bool,
    /// Machine that the simulator imitates, with its failures and its order of events.
    pub(crate) machine: &'static str,
    pub(crate) seed: u64,
}

impl Settings {
    /// Settings for a daemon without disturbances.
    pub(crate) fn quiet(device: Device) -> Self {
        Self {
            device,
            slots: 4,
            prefill_chunk: 16,
            queue_limit: 64,
            max_connections: 64,
            shutdown_deadline_s: 1,
            tune: "off",
            known: false,
            machine: "",
            seed: 0,
        }
    }
}

/// Model files that a load may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Llama,
    Qwen,
    Missing,
    Truncated,
    Corrupt,
    Empty,
    Directory,
    Pipe,
    /// A valid model with a context larger than any machine's memory.
    TooLarge,
}

/// One action on the daemon. Long ones continue in the background.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Fault injected into the simulated Orin of the next start.
    Inject(String),
    /// Valid requests whose answers must be correct.
    Ask {
        request: usize,
        stream: bool,
        clients: usize,
    },
    /// Several requests, one after the other, over one connection.
    Converse {
        requests: Vec<usize>,
    },
    /// A client that disconnects after some milliseconds.
    Cancel {
        request: usize,
        stream: bool,
        after_ms: u64,
    },
    /// A client that sends a byte at a time.
    Drip {
        request: usize,
        gap_ms: u64,
    },
    /// A client that requests long answers and does not read them.
    Deaf,
    Garbage {
        seed: u64,
    },
    /// A request that is built to take time or memory, or a network whose file changes.
    Hostile {
        kind: usize,
        seed: u64,
    },
    /// A client of the control loop.
    Loop {
        kind: usize,
        seed: u64,
    },
    /// A download from a hostile server into the models directory.
    Pull {
        kind: usize,
    },
    /// A request head of `bytes` bytes.
    Head {
        bytes: usize,
    },
    /// A request whose announced body is never sent completely.
    HalfOpen,
    /// Connections that send nothing.
    Idle {
        connections: usize,
    },
    Load {
        file: File,
        wait: bool,
    },
    Unload,
    /// Reloads the configuration, changed or with an error.
    Reload {
        valid: bool,
    },
    Tune {
        beam: usize,
    },
    StopTuning,
    Bench {
        stay: bool,
    },
    /// Reads all status routes.
    Look,
    /// Stops the process (SIGSTOP) for a while.
    Freeze {
        ms: u64,
    },
    /// Sets the wall clock forward or back by `seconds`.
    Clock {
        seconds: i64,
    },
    /// Files can no longer be written; they can again.
    DiskFull,
    DiskFree,
    /// Replaces the state and tuning directories by files; restores them.
    DirectoriesGone,
    DirectoriesBack,
    /// Limits the address space to `mib` MiB above its current use.
    Tight {
        mib: u64,
    },
    Roomy,
    Pause {
        ms: u64,
    },
    /// Waits for all clients.
    Join,
    /// SIGKILL and a restart.
    Kill,
    /// SIGTERM and a restart.
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) settings: Settings,
    pub(crate) steps: Vec<Action>,
}

impl Plan {
    pub(crate) fn new(number: u64) -> Self {
        let random = &mut Random(number);
        // Decorrelates the sequences of neighbouring seeds.
        random.bits();
        let settings = settings(number, random);
        let mut steps = Vec::new();
        let on_orin = settings.device.is_simulated();
        if on_orin && random.below(3) > 0 {
            steps.extend(faults(random));
        }
        for _ in 0..STEPS / 2 + random.below(STEPS / 2) {
            let step = step(settings.device, random);
            if matches!(step, Action::Kill | Action::Restart) && on_orin && random.below(3) == 0 {
                steps.extend(faults(random));
            }
            steps.push(step);
        }
        Self { number, settings, steps }
    }
}

fn settings(number: u64, random: &mut Random) -> Settings {
    const NOTHING: &str = "";
    Settings {
        // Fixed share of a third for the simulated Orin, which is slow.
        device: match number % 6 {
            1 => Device::Auto,
            4 => Device::Nv,
            _ => Device::Cpu,
        },
        slots: 1 + random.below(4),
        prefill_chunk: random.pick(&[8, 16, 32]),
        queue_limit: random.pick(&[0, 2, 8, 64]),
        max_connections: random.pick(&[6, 16, 64]),
        shutdown_deadline_s: random.pick(&[0, 1, 2]),
        tune: random.pick(&["off", "load", "auto"]),
        known: random.below(4) > 0,
        machine: random.pick(&[
            NOTHING,
            NOTHING,
            NOTHING,
            NOTHING,
            NOTHING,
            "no-event",
            "no-heap-query",
            "no-qmd-release",
            "stale-handover",
        ]),
        seed: random.bits() % 1000,
    }
}

/// Faults to inject at one start.
fn faults(random: &mut Random) -> Vec<Action> {
    // Requests to the drivers during a load and a step.
    const REQUESTS: [&str; 8] = [
        "*",
        "CREATE_64",
        "ALLOC",
        "MAP_BUFFER_EX",
        "UNMAP_BUFFER",
        "ALLOC_OBJ_CTX",
        "OPEN_CHANNEL",
        "GET_FD",
    ];
    const ERRNOS: [&str; 6] = ["ENOMEM", "EINTR", "EIO", "EBUSY", "EINVAL", "ETIMEDOUT"];
    let count = 1 + random.below(3);
    let one = |random: &mut Random| match random.below(8) {
        0..3 => format!("mmu-fault@{}", 1 + random.below(900)),
        // Fails the same step repeatedly, so that the device is lost.
        3 => {
            let first = 100 + random.below(600);
            let all = (first..first + 2 + random.below(8)).map(|at| format!("mmu-fault@{at}"));
            all.collect::<Vec<_>>().join(",")
        }
        4 => format!("stuck-semaphore@{}", 2 + random.below(60)),
        5 => format!("lost-event@{}", 1 + random.below(60)),
        6 => format!("memory-full={}M", 1 + random.below(16)),
        _ => {
            let (request, errno) = (random.pick(&REQUESTS), random.pick(&ERRNOS));
            format!("ioctl:{request}:{errno}@{}", 1 + random.below(120))
        }
    };
    (0..count).map(|_| Action::Inject(one(random))).collect()
}

fn step(device: Device, random: &mut Random) -> Action {
    let known = request::known(device);
    let request = random.below(known);
    let stream = random.below(2) == 0;
    let file = |random: &mut Random| {
        use File::{Corrupt, Directory, Empty, Llama, Missing, Pipe, Qwen, TooLarge, Truncated};
        random.pick(&[
            Llama, Llama, Qwen, Qwen, Missing, Truncated, Corrupt, Empty, Directory, Pipe, TooLarge,
        ])
    };
    match random.below(51) {
        0..10 => Action::Ask { request, stream, clients: 1 + random.below(4) },
        10..12 => {
            let requests = (0..2 + random.below(3)).map(|_| random.below(known));
            Action::Converse { requests: requests.collect() }
        }
        12..15 => Action::Cancel { request, stream, after_ms: random.below(150) as u64 },
        15 => Action::Drip { request, gap_ms: random.pick(&[0, 1, 20]) },
        16 => Action::Deaf,
        17..19 => Action::Garbage { seed: random.bits() },
        19 => Action::Head { bytes: random.pick(&[1 << 10, 60 << 10, 70 << 10, 1 << 20]) },
        20 => Action::HalfOpen,
        21 => Action::Idle { connections: 1 + random.below(12) },
        22..26 => Action::Load { file: file(random), wait: random.below(2) == 0 },
        26 => Action::Unload,
        27 => Action::Reload { valid: random.below(3) > 0 },
        28 => Action::Tune { beam: 1 + random.below(3) },
        29 => Action::StopTuning,
        30 => Action::Bench { stay: random.below(2) == 0 },
        31 => Action::Look,
        32 => Action::Freeze { ms: random.pick(&[10, 200, 1500]) },
        33..35 => {
            let seconds = random.pick(&[1, 60, 3600, 86_400, 400_000_000]);
            Action::Clock { seconds: if random.below(2) == 0 { seconds } else { -seconds } }
        }
        35 if stream => Action::DiskFull,
        35 => Action::DiskFree,
        36 if stream => Action::DirectoriesGone,
        36 => Action::DirectoriesBack,
        37 if stream => Action::Tight { mib: 4 << random.below(6) },
        37 => Action::Roomy,
        38 => {
            Action::Pause { ms: random.below(if device == Device::Cpu { 120 } else { 400 }) as u64 }
        }
        39..41 => Action::Join,
        41 => Action::Restart,
        42..45 => Action::Hostile { kind: random.below(hostile::KINDS), seed: random.bits() },
        45..48 => Action::Loop { kind: random.below(loops::KINDS), seed: random.bits() },
        48 => Action::Pull { kind: random.below(pulls::KINDS) },
        _ => Action::Kill,
    }
}
