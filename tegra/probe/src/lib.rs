//! The hardware probe: experiments that answer open questions about a real Orin, one at a time.
//!
//! An [`Experiment`] is a question with a method and a function that finds the answer on the GPU of
//! this machine, through crate `tegra`. [`EXPERIMENTS`] lists all of them in execution order: first
//! queries, then the bring-up steps of the daemon's first light, then measurements, then deliberate
//! errors, and last those that may take the whole machine down. Each runs in its own process with a
//! time limit ([`runner`]): a crash, a fault or a time-out is an answer too, and the next one
//! continues. The answers form a [`tegra_profile::Profile`].
//!
//! Experiments need no root, change no setting of the machine, and know no models: a caller passes
//! in the one that needs a model. There is one file for each family of experiments; `rig` is their
//! common fixture, `kernel` has their kernels, `raw` the requests that the wrappers refuse to make,
//! `answer` builds an answer.

mod addresses;
mod answer;
mod bring_up;
mod child;
mod error;
mod faults;
mod first_light;
mod handover;
mod identity;
mod kernel;
mod latency;
mod launches;
mod limits;
mod log;
mod machine;
mod mapping;
mod power;
mod raw;
mod read_only;
mod results;
mod rig;
pub mod runner;
mod switches;

use std::time::Duration;

use tegra_profile::facts;

pub use answer::Answer;
pub use child::main as child;
pub use error::Error;

/// Possible harm of an experiment to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// Only queries, or does the work of any program.
    Harmless,
    /// Deliberately makes an error; one confirmation covers all of these. The text describes the
    /// possible consequence.
    Risky(&'static str),
    /// May take the whole machine down, so it runs only when named. The text describes the known
    /// consequences.
    Dangerous(&'static str),
}

/// A question and the function that answers it.
#[derive(Debug)]
pub struct Experiment {
    pub name: &'static str,
    pub question: &'static str,
    pub method: &'static str,
    pub risk: Risk,
    /// All later experiments depend on it: if it took a machine down, so would they.
    pub basis: bool,
    /// Breaks a rule that a simulated Orin enforces: there it ends its process, which is not a
    /// defect.
    pub forbidden: bool,
    pub limit: Duration,
    /// `None` if it needs models: then the caller's program answers it ([`child`]).
    run: Option<fn() -> Result<Answer, Error>>,
}

impl Experiment {
    const fn new(
        name: &'static str,
        run: fn() -> Result<Answer, Error>,
        question: &'static str,
        method: &'static str,
    ) -> Self {
        Self { run: Some(run), ..Self::of_models(name, question, method) }
    }

    const fn of_models(name: &'static str, question: &'static str, method: &'static str) -> Self {
        let limit = Duration::from_secs(60);
        let (basis, forbidden) = (false, false);
        Self { name, question, method, risk: Risk::Harmless, basis, forbidden, limit, run: None }
    }

    const fn forbidden(mut self) -> Self {
        self.forbidden = true;
        self
    }

    const fn basis(mut self) -> Self {
        self.basis = true;
        self
    }

    const fn risky(mut self, what: &'static str) -> Self {
        self.risk = Risk::Risky(what);
        self
    }

    const fn dangerous(mut self, known: &'static str) -> Self {
        self.risk = Risk::Dangerous(known);
        self
    }

    const fn within(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }
}

/// The experiment that needs a model.
pub const FINGERPRINT: &str = "fingerprint";

/// Every experiment, in execution order.
pub static EXPERIMENTS: &[Experiment] = &[
    Experiment::new(
        facts::CHARACTERISTICS,
        identity::characteristics,
        "What does the driver say that the GPU is?",
        "GET_CHARACTERISTICS, all bytes, without the number of the device; SM and TPC masks",
    ),
    Experiment::new(
        facts::ENGINES,
        identity::engines,
        "Which engines are there, and on which runlists?",
        "GET_ENGINE_INFO",
    ),
    Experiment::new(
        "clocks",
        identity::clocks,
        "What are the timer's steps, does it drift, which clocks are there?",
        "64 reads of the timer; two pairs with the system's time 50 ms apart; CLK_GET_RANGE",
    ),
    Experiment::new(
        "placement",
        addresses::placement,
        "Where do buffers land?",
        "buffers of 4 KiB to 64 MiB in a new address space; one freed and asked for again",
    ),
    Experiment::new(
        "va-range",
        addresses::ranges,
        "Which ranges may an address space have, and how large a piece can be had?",
        "address spaces with ends at powers of two up to 2^40; reservations, halving, freed at once",
    ),
    Experiment::new(
        "page-sizes",
        addresses::page_sizes,
        "Which page sizes are there?",
        "reservations of one page of 4 KiB to 2 MiB",
    ),
    Experiment::new(
        "map-flags",
        mapping::flags,
        "Which flags may a mapping have?",
        "a buffer mapped with each flag and unmapped at once",
    ),
    Experiment::new(
        facts::SWITCH_TIMEOUT.experiment,
        switches::limit,
        "May a program set the limit for held-up context switches of its channel?",
        "SET_TIMEOUT of 10 s on a channel without an engine",
    ),
    Experiment::new(
        "bring-up",
        bring_up::steps,
        "Is the proven order accepted, what does each step take, what are the tokens?",
        "a copy channel and two compute channels, step by step by the CPU's clock",
    )
    .basis(),
    Experiment::new(
        "first-light-channel",
        first_light::channel,
        "Does a compute channel come up with all its addresses where engines reach them?",
        "bring-up step 1 of the daemon's first light: token, ring, doorbell, syncpoint below 2^40",
    )
    .basis(),
    Experiment::new(
        "first-light-release",
        first_light::release,
        "Does a channel without work release a semaphore with payload and time?",
        "step 2: two releases in sequence",
    )
    .basis(),
    Experiment::new(
        facts::EVENT.experiment,
        first_light::event,
        "Does the interrupt behind a submission wake a sleeper?",
        "step 3: four sleeps of 20 ms at most",
    ),
    Experiment::new(
        "first-light-launch",
        first_light::launch,
        "Does one launch do every kind of integer work right?",
        "step 4: dot products, shuffles, shared memory, barriers, stack, constant banks; 4 KiB of words",
    )
    .basis(),
    Experiment::new(
        facts::LONGEST_CHAIN.experiment,
        first_light::order,
        "How long may a chain of launches be of which each starts the next?",
        "step 5: chains of 32 to 4096 launches, each computing from its predecessor's word",
    )
    .basis(),
    Experiment::new(
        "first-light-atomics",
        first_light::atomics,
        "Do atomic additions find the last block of a launch?",
        "step 6: 64 launches of 64 blocks",
    )
    .basis(),
    Experiment::new(
        "first-light-handover",
        first_light::handover,
        "Do SMs see what the CPU wrote, and the CPU what they wrote?",
        "step 7: 64 KiB rewritten, summed three ways and copied back, 64 times",
    )
    .basis(),
    Experiment::new(
        facts::READ_ONLY.experiment,
        read_only::reads,
        "Does the GPU read and run through read-only mappings?",
        "64 KiB copied from one; the Q8_0 projection with code, literals and matrix behind them",
    ),
    Experiment::new(
        "kernel-results",
        results::classes,
        "Do kernels compute what they should, for each class of instructions?",
        "nine kernels of the decode path; words compared with those computed without a GPU, and hashed",
    ),
    Experiment::new(
        "doorbell-latency",
        latency::doorbell,
        "How long is it from the doorbell to completion?",
        "empty submissions one by one, by the CPU's clock and by the GPU's; the CPU spins",
    ),
    Experiment::new(
        "submission-cost",
        latency::submission,
        "What do a semaphore release and a ring entry cost the host unit?",
        "48 releases in one stream, and 48 entries, against one",
    ),
    Experiment::new(
        "event-latency",
        latency::event,
        "How long until an event wakes a sleeper, and with many channels?",
        "empty submissions that raise the interrupt, waited for in poll, with 1 and 16 channels",
    ),
    Experiment::new(
        "copy-bandwidth",
        mapping::copies,
        "How fast does the copy engine copy, and does a cacheable mapping change it?",
        "copies of 64 KiB to 256 MiB by the GPU's timer; the rate between smallest and largest",
    ),
    Experiment::new(
        "cpu-bandwidth",
        mapping::cpu,
        "How fast does one CPU go through each kind of its mappings?",
        "4 MiB written and read word by word",
    ),
    Experiment::new(
        facts::READ_RATE.experiment,
        mapping::reads,
        "How fast does a kernel read, and does a cacheable mapping change it?",
        "the F16 projection of one row over matrices of up to 256 MiB, by the GPU's timer",
    ),
    Experiment::new(
        "handover",
        handover::classes,
        "Do CPU and GPU see each other's writes without cache maintenance?",
        "64 KiB written by one and read by the other, 64 times, for each kind of CPU mapping",
    ),
    Experiment::new(
        "handover-l2",
        handover::invalidated,
        "The same through a cacheable mapping, with L2 invalidated before the GPU reads?",
        "as handover, with L2_SYSMEM_INVALIDATE in the stream before",
    ),
    Experiment::new(
        "release-order",
        handover::release_order,
        "Is what a kernel stored there for the CPU as soon as a release behind it is?",
        "a product read when the timeline's release is visible, and a launch's own, thousands of times",
    ),
    Experiment::new(
        "launch-latency",
        launches::launch,
        "What does a launch cost?",
        "a kernel of one EXIT, once and 33 times in one stream, by the GPU's timer",
    ),
    Experiment::new(
        "dependent-launch",
        launches::dependent,
        "What is the gap between two launches of which one starts the other?",
        "a chain of 33 QMDs ordered by dependence against one, by the GPU's timer",
    ),
    Experiment::new(
        "launch-release",
        launches::released,
        "Does a launch take a release beside a dependent, and what does it cost?",
        "the chain of dependent-launch with a semaphore release in each QMD, against one without",
    ),
    Experiment::new(
        "launch-jitter",
        launches::jitter,
        "Do the same launches always take the same time, or are there two speeds?",
        "the chain of dependent-launch up to 4000 times, by the GPU's timer; those 1.5 times slower",
    ),
    Experiment::new(
        "preemption",
        launches::preemption,
        "Which kinds of preemption are taken, and what do they cost a launch?",
        "SET_PREEMPTION_MODE and the launch of launch-latency under each",
    ),
    Experiment::new(
        "sharing",
        launches::sharing,
        "How long does a launch wait for others on the GPU, and does their kind of preemption matter?",
        "the launch of launch-latency while another group runs kernels that read up to 256 MiB each",
    ),
    Experiment::new(
        "chain-preemption",
        switches::preemption,
        "How long does another program wait while a chain of launches runs, and does the driver object?",
        "64 launches of about 10 ms in one chain under each kind of preemption, and in chains of 8; \
         GET_TIMEDOUT afterwards",
    )
    .within(120),
    Experiment::new(
        "import",
        mapping::import,
        "Can pages of a process become a buffer, and what does pinning them cost?",
        "FROM_VA of 64 MiB to 4 GiB, an eighth of what is free at most, mapped and released",
    ),
    Experiment::new(
        "idle-power",
        power::idle,
        "Does the GPU power down without channels, and what does it take to come back?",
        "channels closed for 1.5 s while runtime_status is watched, then opened again",
    )
    .within(90),
    Experiment::of_models(
        FINGERPRINT,
        "Are a model's logits those of every other device, to the last bit?",
        "a tiny model of Q4_K and Q6_K, prompts of up to 33 tokens, chunks, company, on the GPU and on the \
         CPU; hashes of the logits",
    )
    .within(300),
    Experiment::new(
        "copy-runlist",
        bring_up::copy_runlist,
        "Does a copy engine's own runlist take channels, and with which token?",
        "OPEN_CHANNEL with each runlist of an asynchronous copy engine, up to the object",
    )
    .risky("no channel has been opened there yet; the driver may log errors"),
    Experiment::new(
        facts::LARGEST.experiment,
        limits::largest,
        "How large a buffer can be had in one piece?",
        "what is available less 4 GiB or an eighth, then by bisection; released at once",
    )
    .within(240)
    .risky("takes most of the free memory for some seconds"),
    Experiment::new(
        "handover-l2-unmaintained",
        handover::forbidden,
        "What happens through a cacheable mapping without invalidation?",
        "as handover, with a cacheable mapping and nothing else: what the rules forbid",
    )
    .risky("breaks a rule on purpose; its own buffers only")
    .forbidden(),
    Experiment::new(
        "read-only-write",
        read_only::write,
        "What does a write through a read-only mapping do?",
        "64 KiB copied to one; the reported error, and the words written",
    )
    .risky("faults on purpose; the kernel logs it"),
    Experiment::new(
        "recovery",
        faults::recovery,
        "How long until work goes on after a fault?",
        "a copy from an unmapped address, its report, a rebuild, and the next copy; three times",
    )
    .risky("faults on purpose; the kernel logs it"),
    Experiment::new(
        "bystander",
        faults::bystander,
        "Does another group of channels go on during a fault?",
        "two contexts of one process; one faults, the other works before, during and after",
    )
    .risky("faults on purpose; the kernel logs it"),
    Experiment::new(
        "ctxsw-accumulation",
        switches::accumulation,
        "Does the driver add up held-up context switches until it tears the channel down?",
        "40 switches held up for 150 ms by a chain of launches, with the driver's limit of 3 s and \
         with one of 60 s",
    )
    .within(180)
    .risky("other programs on the GPU, the desktop too, stutter for half a minute; a channel of its own is torn down"),
    Experiment::new(
        "bring-up-orders",
        bring_up::orders,
        "Which orders and values does the driver refuse?",
        "requests in wrong orders, each on its own channel, compared with the driver's sources",
    )
    .dangerous(
        "each request is one that the driver's sources refuse or survive, among them an engine before a \
         ring; none of it was ever tried. Nothing here needs the answers",
    ),
    Experiment::new(
        "va-range-beyond",
        addresses::beyond,
        "May address spaces end beyond 2^40?",
        "address spaces with ends at powers of two from 2^41 to 2^49, given back at once",
    )
    .dangerous(
        "engines have 40 address bits; at 2^49 the driver's sources run into an assertion, which is a \
         warning in the log as they are built for Jetson. Nothing here needs the answer",
    ),
    Experiment::new(
        "hang-recovery",
        faults::hang,
        "How long until a channel that hangs is replaced?",
        "a wait for a semaphore that is never released, abandoned after 100 ms",
    )
    .dangerous(
        "a channel that waits for ever is closed; where the GPU does not let go of it in time the driver \
         gives the GPU up until a reboot",
    ),
    Experiment::new(
        "doorbell-after-power-off",
        power::doorbell_page,
        "What does the doorbell page do when the GPU has no power?",
        "channels closed for 1.5 s, then one read of the timer's register",
    )
    .dangerous(
        "reads a register of a GPU that may be without power: a signal for its process where the driver \
         takes the page away as its sources say, an error of the bus otherwise",
    ),
    Experiment::new(
        "large-ring",
        bring_up::large_ring,
        "Is a ring of 4 MiB fetched from when addresses end 4 GiB below 2^40?",
        "a copy channel with 524288 entries and one empty submission",
    )
    .dangerous(
        "a ring of 3 MB froze a whole machine, though with another range of addresses: only cutting \
         the power helped. Nothing here needs more than 16 KiB",
    ),
];

#[must_use]
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}
