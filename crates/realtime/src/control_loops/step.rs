//! Thread of a control loop: prepares the network, then waits for a client and serves its starts.
//!
//! A step makes three system calls, two for the wake-up and one for the answer, plus those that its
//! device needs. None of them waits for the client, except for its start or its disconnection.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use nn::SessionOptions;
use onnx::{Array, Extent, Model, Network};

use super::memory::{Client, Layout, Outcome, TensorPlace};
use super::{ControlLoop, State};
use errors::one_line;

/// Skipped starts that are counted for one step at most. A client can write any number to the counter.
const MAX_SKIPPED: u64 = 1000;

/// Longest time in ns between a start and the wake-up that is believed, so that a client cannot
/// spoil the loop's latencies by more.
const OLDEST_START: u64 = 10_000_000_000;

/// Shortest time in ns between two log lines about failed steps.
const LOG_INTERVAL: u64 = 1_000_000_000;

/// Most values of a fixed input.
const MOST_FIXED: usize = 4096;

/// Starts the thread. It ends with the daemon.
pub(super) fn spawn(
    control_loop: &Arc<ControlLoop>,
    sender: Sender<Client>,
    clients: Receiver<Client>,
) {
    let name = format!("lane {}", control_loop.config.name);
    let own = Arc::clone(control_loop);
    let body = move || {
        let work = AssertUnwindSafe(|| run(&own, sender, &clients));
        match catch_unwind(work) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => own.fail(why),
            Err(panic) => own.fail(format!("its thread panicked: {}", panic_message(&*panic))),
        }
    };
    if let Err(error) = thread::Builder::new().name(name).spawn(body) {
        control_loop.fail(format!("its thread cannot be started: {error}"));
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("without a message")
}

fn run(
    control_loop: &ControlLoop,
    sender: Sender<Client>,
    clients: &Receiver<Client>,
) -> Result<(), String> {
    let config = &control_loop.config;
    let mut notes = Vec::new();
    if let Some(core) = config.core {
        notes
            .extend(pin_to_core(core).err().map(|why| format!("not pinned to core {core}: {why}")));
    }
    let device = device::open_realtime(config.backend.into())?;
    let failed =
        |error: onnx::Error| format!("{}: {}", control_loop.file.display(), one_line(&error));
    let model = Model::read(&control_loop.file).map_err(failed)?;
    let options = SessionOptions { memory_limit: None, tuned: control_loop.tuned.as_deref() };
    let fixed = fixed_inputs(&model, config)?;
    let network = Network::with(&model, &*device, options, &config.shapes, &fixed);
    let mut network = network.map_err(failed)?;
    // Loading needs no real-time priority.
    if config.priority > 0 {
        let error = set_priority(config.priority).err();
        notes.extend(error.map(|why| format!("no real-time priority {}: {why}", config.priority)));
    }
    let with_shape = |(name, _, shape)| (name, shape);
    let layout =
        Layout::new(config, network.inputs().map(with_shape), network.outputs().map(with_shape));
    if let Some(name) = config.safe.keys().find(|name| !layout.has_output(name)) {
        return Err(format!("`safe` names `{name}`, which is no output of the network"));
    }
    let layout = Arc::new(layout);
    let mut step = Step::new(&layout);
    // Does one-time work before the first client connects.
    step.warm(&mut network).map_err(failed)?;
    for note in &notes {
        tracing::warn!(lane = config.name, note, "a control loop may miss deadlines");
    }
    tracing::info!(lane = config.name, network = %control_loop.file.display(), "a control loop is ready");
    *control_loop.state.lock() =
        State::Ready { layout: Arc::clone(&layout), clients: sender, held_by: None, notes };
    while let Ok(client) = clients.recv() {
        step.serve_or_report(control_loop, &mut network, &client)?;
        if let State::Ready { held_by, .. } = &mut *control_loop.state.lock() {
            *held_by = None;
        }
    }
    Ok(())
}

/// Values of the inputs that the configuration fixes.
fn fixed_inputs(
    model: &Model,
    config: &config::ControlLoop,
) -> Result<BTreeMap<String, Array>, String> {
    let declared = model.inputs();
    let fixed = |(name, value): (&String, &f32)| {
        let input = declared.iter().find(|input| input.name == *name);
        let input = input
            .ok_or_else(|| format!("`fixed` names `{name}`, which is no input of the network"))?;
        let extent = |extent: &Extent| match extent {
            Extent::Of(n) => Some(*n),
            Extent::Named(_) | Extent::Any => None,
        };
        let own = input.shape.as_ref().and_then(|all| all.iter().map(extent).collect());
        let shape: Option<Vec<usize>> = config.shapes.get(name).cloned().or(own);
        let shape = shape.ok_or_else(|| {
            format!("the shape of the fixed input `{name}` is open; give it in `shapes`")
        })?;
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let count = count.filter(|count| *count <= MOST_FIXED).ok_or_else(|| {
            format!("the fixed input `{name}` has shape {shape:?}; at most {MOST_FIXED} values")
        })?;
        let array = Array { elem: input.elem, shape, values: vec![*value; count] };
        Ok((name.clone(), array))
    };
    config.fixed.iter().map(fixed).collect()
}

/// Executes steps of a network. Owns a buffer for inputs and outputs.
struct Step {
    layout: Arc<Layout>,
    buffer: Vec<f32>,
    /// Steps answered for the current client.
    answered: u64,
    /// Earliest time of the next log line about a failed step.
    next_log: u64,
    /// True if all outputs of the last step were finite.
    finite: bool,
}

impl Step {
    fn new(layout: &Arc<Layout>) -> Self {
        let tensors = layout.inputs.iter().chain(&layout.outputs);
        let most = tensors.map(TensorPlace::elements).max().unwrap_or(0);
        let buffer = vec![0.0; most];
        Self { layout: Arc::clone(layout), buffer, answered: 0, next_log: 0, finite: true }
    }

    fn warm(&mut self, network: &mut Network) -> Result<(), onnx::Error> {
        for input in &self.layout.inputs {
            network.write(&input.name, &self.buffer[..input.elements()])?;
        }
        network.step()
    }

    /// As [`Step::serve`], but reports a panic to the client.
    fn serve_or_report(
        &mut self,
        control_loop: &ControlLoop,
        network: &mut Network,
        client: &Client,
    ) -> Result<(), String> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(control_loop, network, client)));
        served.map_err(|panic| {
            let why = format!("its thread panicked: {}", panic_message(&*panic));
            client.report_failure(self.answered + 1, now(), &why);
            why
        })
    }

    /// Serves all starts of a client until it disconnects.
    fn serve(&mut self, control_loop: &ControlLoop, network: &mut Network, client: &Client) {
        let mut last = 0;
        self.answered = 0;
        loop {
            spin_until_start(client, last, control_loop.config.spin_us);
            let Some(starts) = wait_for_starts(client) else { return };
            let woken = now();
            let started = client.memory.started();
            last = started;
            let started = plausible_start(started, woken);
            control_loop.latency.skip((starts - 1).min(MAX_SKIPPED));
            let done = self.step_once(network, client);
            if done.is_err() || !self.finite {
                self.make_safe(&control_loop.config.safe, client);
            }
            let finished = now();
            // Update counters before the client sees the answer.
            match &done {
                Ok(()) if self.finite => {
                    control_loop.latency.add(Duration::from_nanos(finished - started));
                }
                Ok(()) => {
                    control_loop.latency.fail();
                    if finished >= self.next_log {
                        self.next_log = finished.saturating_add(LOG_INTERVAL);
                        tracing::error!(
                            lane = control_loop.config.name,
                            "an output is NaN or infinite; outputs in `safe` have their safe values"
                        );
                    }
                }
                Err(error) => {
                    control_loop.latency.fail();
                    // Clients start steps at any rate.
                    if finished >= self.next_log {
                        self.next_log = finished.saturating_add(LOG_INTERVAL);
                        tracing::error!(
                            lane = control_loop.config.name,
                            error = one_line(error),
                            "a step failed"
                        );
                    }
                }
            }
            self.answered += 1;
            let outcome = match &done {
                Ok(()) if self.finite => Outcome::Done,
                Ok(()) => Outcome::NotFinite,
                Err(_) => Outcome::Failed,
            };
            client.memory.finish(self.answered, finished, outcome);
            client.signal_answer();
        }
    }

    /// Replaces the outputs that have a safe value.
    fn make_safe(&mut self, safe: &BTreeMap<String, f32>, client: &Client) {
        for output in &self.layout.outputs {
            if let Some(value) = safe.get(&output.name) {
                let values = &mut self.buffer[..output.elements()];
                values.fill(*value);
                client.memory.store(output, values);
            }
        }
    }

    fn step_once(&mut self, network: &mut Network, client: &Client) -> Result<(), onnx::Error> {
        for input in &self.layout.inputs {
            let values = &mut self.buffer[..input.elements()];
            client.memory.load(input, values);
            network.write(&input.name, values)?;
        }
        network.step()?;
        self.finite = true;
        for output in &self.layout.outputs {
            let values = &mut self.buffer[..output.elements()];
            network.read(&output.name, values)?;
            self.finite &= values.iter().all(|value| value.is_finite());
            client.memory.store(output, values);
        }
        Ok(())
    }
}

/// Spins until the client writes a new start time, or `spin_us` microseconds have passed. A start
/// while spinning needs no wake-up.
fn spin_until_start(client: &Client, last: u64, spin_us: u32) {
    let end = now().saturating_add(u64::from(spin_us) * 1000);
    while client.memory.started() == last && !client.disconnection.happened() && now() < end {
        std::hint::spin_loop();
    }
}

/// Returns the start of a step in the client's memory, or the time of the wake-up if the client
/// wrote none, or one that cannot be.
const fn plausible_start(started: u64, woken: u64) -> u64 {
    match woken.checked_sub(started) {
        Some(ago) if started != 0 && ago <= OLDEST_START => started,
        _ => woken,
    }
}

/// Waits for the client to start a step. Returns the number of starts since the last one, or `None`
/// after the client has disconnected.
fn wait_for_starts(client: &Client) -> Option<u64> {
    loop {
        let mut fds = client.wake_ups().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // An error is a signal, or a shortage of memory that passes.
        let _ = poll(&mut fds, PollTimeout::NONE);
        if client.disconnection.happened() {
            return None;
        }
        // A process that shares the counter may have taken the start.
        if let Some(starts) = client.take_starts() {
            return Some(starts.max(1));
        }
    }
}

/// Time of `CLOCK_MONOTONIC` in nanoseconds, the clock that clients use.
fn now() -> u64 {
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else {
        unreachable!("every Linux has this clock");
    };
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

fn pin_to_core(core: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Sets `SCHED_FIFO`: the loop preempts all processes without real-time priority.
fn set_priority(priority: u8) -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: applies to the calling thread; `param` outlives the call.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use parking_lot::Mutex;

    use super::super::latency::Latency;
    use super::*;
    use config::Config;

    /// A fixed input has the shape that the file declares, or that of `shapes`.
    #[test]
    fn inputs_are_fixed_to_one_value() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lanes/policy.onnx");
        let model = Model::read(file.as_ref()).unwrap();
        let fixed = |more: &str| {
            let text = format!("[[lane]]\nname = 'a'\nnetwork = 'policy.onnx'\n{more}");
            fixed_inputs(&model, &Config::parse(&text, "here").unwrap().lane.remove(0))
        };
        assert_eq!(fixed(""), Ok(BTreeMap::new()));
        let made = fixed("fixed = { observation = 2 }\nshapes = { observation = [2, 12] }");
        assert_eq!(made.unwrap()["observation"].values, [2.0; 24]);
        let why = fixed("fixed = { rate = 2 }").unwrap_err();
        assert!(why.contains("`rate`, which is no input"), "{why}");
        let why = fixed("fixed = { observation = 2 }\nshapes = { observation = [2000, 12] }");
        assert!(why.unwrap_err().ends_with("at most 4096 values"));
    }

    /// The layout's output is outside of the memory, so the step panics.
    #[test]
    fn clients_get_an_error_if_the_thread_panics() {
        let text = "[[lane]]\nname = 'policy'\nnetwork = 'policy.onnx'\nshapes = { observation = [1, 12] }\n";
        let config = Config::parse(text, "here").unwrap().lane.remove(0);
        let file = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/lanes/policy.onnx"
        ));
        let model = Model::read(&file).unwrap();
        let device = device::open_realtime("cpu").unwrap();
        let mut network =
            Network::new(&model, &*device, &config.shapes, &Default::default()).unwrap();
        let with_shape = |(name, _, shape)| (name, shape);
        let mut layout = Layout::new(
            &config,
            network.inputs().map(with_shape),
            network.outputs().map(with_shape),
        );
        let (mut here, there) = UnixStream::pair().unwrap();
        let (client, [.., answered]) = Client::new(&layout, &there).unwrap();
        layout.outputs[0].offset = layout.bytes;
        let (state, latency) = (Mutex::new(State::Preparing), Latency::new(config.deadline()));
        let control_loop = ControlLoop { config, file, tuned: None, state, latency };
        client.start(1);
        let why = Step::new(&Arc::new(layout))
            .serve_or_report(&control_loop, &mut network, &client)
            .unwrap_err();
        assert!(why.starts_with("its thread panicked: byte "), "{why}");
        let mut signal = [0; 8];
        UnixStream::from(answered).read_exact(&mut signal).unwrap();
        assert_eq!(u64::from_ne_bytes(signal), 1);
        assert!(client.memory.failed());
        drop(there);
        let mut line = String::new();
        here.read_to_string(&mut line).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(reply["error"]["message"], why);
    }
}
