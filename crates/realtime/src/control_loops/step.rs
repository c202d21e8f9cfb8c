//! A lane's thread: it prepares the network, then waits for a client, and for each of its starts.
//!
//! Between a start and its answer there is no system call but on a device that needs one; the wake-up before and the
//! answer after are the two.

use std::any::Any;
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use nn::Terms;
use onnx::{Model, Network};

use super::memory::{Client, Layout, Place};
use super::{Lane, State};
use errors::one_line;

/// Starts the thread. It ends with the daemon.
pub(super) fn spawn(lane: &Arc<Lane>, sender: Sender<Client>, clients: Receiver<Client>) {
    let name = format!("lane {}", lane.config.name);
    let own = Arc::clone(lane);
    let body = move || {
        let work = AssertUnwindSafe(|| run(&own, sender, &clients));
        match catch_unwind(work) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => own.fail(why),
            Err(panic) => own.fail(format!("its thread panicked: {}", said(&*panic))),
        }
    };
    if let Err(error) = thread::Builder::new().name(name).spawn(body) {
        lane.fail(format!("its thread cannot be started: {error}"));
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("without a word")
}

fn run(lane: &Lane, sender: Sender<Client>, clients: &Receiver<Client>) -> Result<(), String> {
    let config = &lane.config;
    let mut notes = Vec::new();
    if let Some(core) = config.core {
        notes.extend(stay_on(core).err().map(|why| format!("not on core {core}: {why}")));
    }
    let device = device::for_loops(&config.backend)?;
    let told = |error: onnx::Error| format!("{}: {}", lane.file.display(), one_line(&error));
    let model = Model::read(&lane.file).map_err(told)?;
    let terms = Terms { room: None, tuned: lane.tuned.as_deref() };
    let network = Network::with(&model, &*device, terms, &config.shapes, &Default::default());
    let mut network = network.map_err(told)?;
    // Loading is no real-time work.
    if config.priority > 0 {
        let refused = urgent(config.priority).err();
        notes
            .extend(refused.map(|why| format!("no real-time priority {}: {why}", config.priority)));
    }
    let of = |(name, _, shape)| (name, shape);
    let layout = Layout::new(config, network.inputs().map(of), network.outputs().map(of));
    let layout = Arc::new(layout);
    let mut step = Step::new(&layout);
    // What is done once only is done before the first client comes.
    step.warm(&mut network).map_err(told)?;
    for note in &notes {
        tracing::warn!(lane = config.name, note, "a lane may miss deadlines");
    }
    tracing::info!(lane = config.name, network = %lane.file.display(), "a lane is ready");
    *lane.state.lock() =
        State::Ready { layout: Arc::clone(&layout), clients: sender, held_by: None, notes };
    while let Ok(client) = clients.recv() {
        step.hold(lane, &mut network, &client)?;
        if let State::Ready { held_by, .. } = &mut *lane.state.lock() {
            *held_by = None;
        }
    }
    Ok(())
}

/// A network's step, with room for what goes in and comes out.
struct Step {
    layout: Arc<Layout>,
    room: Vec<f32>,
    /// Starts of the client that have been answered.
    answered: u64,
}

impl Step {
    fn new(layout: &Arc<Layout>) -> Self {
        let places = layout.inputs.iter().chain(&layout.outputs);
        let most = places.map(Place::elements).max().unwrap_or(0);
        Self { layout: Arc::clone(layout), room: vec![0.0; most], answered: 0 }
    }

    fn warm(&mut self, network: &mut Network) -> Result<(), onnx::Error> {
        for input in &self.layout.inputs {
            network.write(&input.name, &self.room[..input.elements()])?;
        }
        network.step()
    }

    /// The same as [`Step::serve`]; a client that is deserted is told.
    fn hold(&mut self, lane: &Lane, network: &mut Network, client: &Client) -> Result<(), String> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(lane, network, client)));
        served.map_err(|panic| {
            let why = format!("its thread panicked: {}", said(&*panic));
            client.desert(self.answered + 1, now(), &why);
            why
        })
    }

    /// All starts of a client, until it is gone.
    fn serve(&mut self, lane: &Lane, network: &mut Network, client: &Client) {
        let mut last = 0;
        self.answered = 0;
        loop {
            stay_awake(client, last, lane.config.spin_us);
            let starts = starts(client);
            if client.gone.load(Ordering::Acquire) {
                return;
            }
            let woken = now();
            let started = client.memory.started();
            last = started;
            // A time that cannot be is none.
            let started = if started == 0 || started > woken { woken } else { started };
            lane.latency.skip(starts - 1);
            let done = self.once(network, client);
            let finished = now();
            // Who has the answer finds it counted.
            match &done {
                Ok(()) => lane.latency.add(Duration::from_nanos(finished - started)),
                Err(error) => {
                    lane.latency.fail();
                    tracing::error!(
                        lane = lane.config.name,
                        error = one_line(error),
                        "a step failed"
                    );
                }
            }
            self.answered += 1;
            client.memory.finish(self.answered, finished, done.is_err());
            if let Err(errno) = client.answer.write(1) {
                tracing::error!(lane = lane.config.name, %errno, "an answer was not told");
            }
        }
    }

    fn once(&mut self, network: &mut Network, client: &Client) -> Result<(), onnx::Error> {
        for input in &self.layout.inputs {
            let values = &mut self.room[..input.elements()];
            client.memory.load(input, values);
            network.write(&input.name, values)?;
        }
        network.step()?;
        for output in &self.layout.outputs {
            let values = &mut self.room[..output.elements()];
            network.read(&output.name, values)?;
            client.memory.store(output, values);
        }
        Ok(())
    }
}

/// Until the client stamps another start than the last, or so many microseconds are over: who is awake then need not be
/// woken.
fn stay_awake(client: &Client, last: u64, spin_us: u32) {
    let end = now().saturating_add(u64::from(spin_us) * 1000);
    while client.memory.started() == last && !client.gone.load(Ordering::Relaxed) && now() < end {
        std::hint::spin_loop();
    }
}

/// Waits for a client to start a step; how often it did since the last one.
fn starts(client: &Client) -> u64 {
    loop {
        match client.start.read() {
            Ok(starts) => return starts,
            Err(Errno::EINTR) => {}
            // The client has its say in whether reads wait.
            Err(Errno::EAGAIN) => {
                let mut fds = [PollFd::new(client.start.as_fd(), PollFlags::POLLIN)];
                // Whatever it says, the next read tells.
                let _ = poll(&mut fds, PollTimeout::NONE);
            }
            Err(errno) => unreachable!("a counter of 64 bits: {errno}"),
        }
    }
}

/// Nanoseconds of the clock that clients have too.
fn now() -> u64 {
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else {
        unreachable!("every Linux has this clock");
    };
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

fn stay_on(core: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// `SCHED_FIFO`: whatever has no such priority waits for the lane.
fn urgent(priority: u8) -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: of the calling thread; the structure lives.
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

    /// A thread that panics in a step, as a client sees it: here because its places lie outside of the memory.
    #[test]
    fn a_client_is_told_that_the_thread_has_failed() {
        let text = "[[lane]]\nname = 'policy'\nnetwork = 'policy.onnx'\nshapes = { observation = [1, 12] }\n";
        let config = Config::parse(text, "here").unwrap().lane.remove(0);
        let file = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/lanes/policy.onnx"
        ));
        let model = Model::read(&file).unwrap();
        let device = device::for_loops("cpu").unwrap();
        let mut network =
            Network::new(&model, &*device, &config.shapes, &Default::default()).unwrap();
        let of = |(name, _, shape)| (name, shape);
        let mut layout = Layout::new(&config, network.inputs().map(of), network.outputs().map(of));
        let (mut here, there) = UnixStream::pair().unwrap();
        let (client, _) = Client::new(&layout, &there).unwrap();
        layout.outputs[0].offset = layout.bytes;
        let (state, latency) = (Mutex::new(State::Preparing), Latency::new(config.deadline()));
        let lane = Lane { config, file, tuned: None, state, latency };
        client.start.write(1).unwrap();
        let why = Step::new(&Arc::new(layout)).hold(&lane, &mut network, &client).unwrap_err();
        assert!(why.starts_with("its thread panicked: byte "), "{why}");
        assert_eq!(client.answer.read().unwrap(), 1);
        assert!(client.memory.failed());
        drop(there);
        let mut line = String::new();
        here.read_to_string(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["error"]["message"], why);
    }
}
