//! Test fixture: exclusive use of the device, a context, and a leak check.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tegra::buffer::Mailbox;
use tegra::context::{Context, Options, QueueId, Ticket};
use tegra::copy::Copier;
use tegra::orin::Orin;
use tegra::pushbuffer::Engine;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};

/// Far longer than any work: a wait that reaches it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test alone in this process, then checks that no handle, mapping, channel or fd leaked.
pub(crate) fn alone(test: impl FnOnce()) {
    let _alone = ALONE.lock();
    test();
    let device = tegra_sim_preload::orin().expect("a simulated Orin");
    // Another test's last thread may still be exiting.
    let begun = Instant::now();
    let clean =
        || device.live() == Default::default() && tegra_sim_preload::open_files().is_empty();
    while !clean() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(device.live(), Default::default(), "left behind");
    let files = tegra_sim_preload::open_files();
    assert!(files.is_empty(), "fds left open: {files:?}");
}

/// An open device with an address space.
pub(crate) fn space() -> AddressSpace {
    space_with(L2::Volatile)
}

pub(crate) fn space_with(l2: L2) -> AddressSpace {
    AddressSpace::new(&Orin::open().unwrap(), l2).unwrap()
}

/// A context with a queue of the copy engine, and a copier for it.
pub(crate) struct Copies {
    pub(crate) context: Context,
    pub(crate) queue: QueueId,
    pub(crate) copier: Copier,
    pub(crate) space: AddressSpace,
}

impl Copies {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        Self::within(space(), options)
    }

    pub(crate) fn within(space: AddressSpace, options: Options) -> Self {
        let mut context = Context::new(&space, options).unwrap();
        let queue = context.add_queue(Engine::Copy, 256).unwrap();
        let copier = Copier::new(&space, queue).unwrap();
        Self { context, queue, copier, space }
    }

    pub(crate) fn mailbox(&self, bytes: u64) -> Mailbox {
        Mailbox::new(&self.space, bytes).unwrap()
    }

    /// Copies between buffers and waits.
    pub(crate) fn copy(
        &mut self,
        from: tegra::address::GpuAddress,
        to: tegra::address::GpuAddress,
        bytes: u64,
    ) {
        let ticket = self.copier.copy(&mut self.context, from, to, bytes).unwrap();
        self.context.wait(ticket, LONG).unwrap();
    }
}

/// Submits only a point, and waits for it.
pub(crate) fn complete(context: &mut Context, queue: QueueId, wake: Wake) -> Ticket {
    let ticket = context.submit(queue, &[], wake).unwrap();
    context.wait(ticket, LONG).unwrap();
    ticket
}

/// A count for every day, or the full one if the environment variable is set.
pub(crate) fn count(usual: u64, full: u64) -> u64 {
    if std::env::var_os("TEGRA_TEST_FULL").is_some() { full } else { usual }
}
