//! Interrupts as seen by a program: event fds, WAIT, notifiers, and the state afterwards.

use std::thread;
use std::time::Duration;

use tegra::abi::{channel, tsg};
use tegra_sim::config::Config;
use tegra_sim::driver::Errno;
use tegra_sim::finding::Rule;

use super::bench::{Bench, Ready, bytes, errno, whole};

impl Bench {
    pub(super) fn event(&self, tsg: i32, event_id: u32) -> i32 {
        let mut args = tsg::EventIdCtrl { cmd: 1, event_id, event_fd: -9, padding: 0 };
        self.call(self.file(tsg), tsg::EVENT_ID_CTRL, &mut args).unwrap();
        args.event_fd
    }

    /// Runs words on a channel to the end: ring entry, GP_PUT, doorbell.
    pub(super) fn run(&self, ready: &Ready, words: &[u32]) {
        let (handle, fd) = self.buffer(4096);
        let va = self.map(ready.space, &mut whole(fd)).unwrap();
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.dma_buf(fd).write(0, &body).unwrap();
        let userd = self.dma_buf(ready.userd);
        let put = userd.load_u32(0x8c).unwrap();
        let entry = va | (words.len() as u64) << 42 | 1 << 41;
        self.dma_buf(ready.ring).store_u64(u64::from(put) * 8, entry).unwrap();
        userd.store_u32(0x8c, put + 1).unwrap();
        self.orin.gpu().doorbell(511);
        self.orin.gpu().drain();
        self.unmap(ready.space, va).unwrap();
        self.close(fd);
        self.free(handle);
    }

    pub(super) fn notifier(&self, channel: i32, mem: i32, offset: u64) {
        let mut args = channel::SetErrorNotifier { offset, size: 16, mem: mem as u32, padding: 0 };
        self.call(self.file(channel), channel::SET_ERROR_NOTIFIER, &mut args).unwrap();
    }

    pub(super) fn timedout(&self, channel: i32) -> u32 {
        self.ask(self.file(channel), channel::GET_TIMEDOUT, channel::GetTimedout { value: 9 }).value
    }

    fn wait(
        &self,
        channel: i32,
        kind: u32,
        ms: u32,
        fd: i32,
        at: u32,
        payload: u32,
    ) -> Result<i32, Errno> {
        let mut args = bytes::<24>(&[
            (0, kind.into(), 4),
            (4, ms.into(), 4),
            (8, fd as u64, 4),
            (12, at.into(), 4),
            (16, payload.into(), 4),
        ]);
        errno(self.raw(self.file(channel), "NVGPU_IOCTL_CHANNEL_WAIT", &mut args))
    }
}

/// Host method NON_STALL_INTERRUPT, data ignored.
pub(super) const INTERRUPT: [u32; 2] = [0x2001_0008, 0];

#[test]
fn an_interrupt_is_latched_once_for_each_fd_of_the_event() {
    let bench = Bench::new();
    let ready = bench.running();
    let (first, second) = (bench.event(ready.tsg, 2), bench.event(ready.tsg, 2));
    let other = bench.event(ready.tsg, 0);
    assert_ne!(first, second);
    assert_eq!(bench.orin.live().events, 3);
    assert!(!bench.fds.poll(first));
    bench.run(&ready, &[INTERRUPT, INTERRUPT].concat());
    assert!(bench.fds.poll(first) && !bench.fds.poll(first), "latched, and taken by a poll");
    assert!(bench.fds.poll(second) && !bench.fds.poll(other));
    bench.close(first);
    assert_eq!(bench.orin.live().events, 2);
    bench.run(&ready, &INTERRUPT);
    assert!(bench.fds.poll(second));
    assert_eq!(bench.findings.take(), []);
}

#[test]
fn an_event_can_be_lost_on_request() {
    let config = Config::from_variables(|name| {
        (name == "TEGRA_SIM_FAULTS").then(|| "lost-event@2".to_owned())
    });
    let bench = Bench::with(&config.unwrap());
    let ready = bench.running();
    let event = bench.event(ready.tsg, 2);
    let seen: Vec<bool> = (0..3)
        .map(|_| {
            bench.run(&ready, &INTERRUPT);
            bench.fds.poll(event)
        })
        .collect();
    assert_eq!(seen, [true, false, true]);
}

#[test]
fn wait_looks_at_memory_at_once_and_when_an_interrupt_comes() {
    let bench = Bench::new();
    let ready = bench.running();
    let (_, fd) = bench.buffer(4096);
    let memory = bench.dma_buf(fd);
    assert_eq!(bench.wait(ready.channel, 1, 0, fd, 8, 0), Ok(0), "true from the start");
    assert_eq!(bench.wait(ready.channel, 1, 5, fd, 8, 7), Err(Errno::ETIMEDOUT));
    memory.store_u32(8, 7).unwrap();
    thread::scope(|scope| {
        // A store by the CPU wakes nobody; the interrupt does.
        let waiter = scope.spawn(|| bench.wait(ready.channel, 1, 0, fd, 12, 1));
        thread::sleep(Duration::from_millis(20));
        memory.store_u32(12, 1).unwrap();
        while !waiter.is_finished() {
            bench.run(&ready, &INTERRUPT);
        }
        assert_eq!(waiter.join().unwrap(), Ok(0));
    });
    memory.write(30, &[1, 0]).unwrap();
    assert_eq!(bench.wait(ready.channel, 0, 5, fd, 16, 0), Err(Errno::EINTR), "status stays 1");
    memory.write(30, &[0, 0]).unwrap();
    assert_eq!(bench.wait(ready.channel, 0, 0, fd, 16, 0), Ok(0));
    let mut record = [0; 16];
    memory.read(16, &mut record).unwrap();
    assert_eq!(record[8..], [0xef, 0xbe, 0xad, 0xde, 0xff, 1, 0, 0], "the channel's id is 511");
}

/// Checks the state of a stopped TSG as a program sees it.
fn assert_dead(bench: &Bench, ready: &Ready, notifier: i32, code: u32) {
    assert_eq!(bench.timedout(ready.channel), 1);
    let mut record = [0; 16];
    bench.dma_buf(notifier).read(64, &mut record).unwrap();
    assert_eq!(u32::from_le_bytes(record[8..12].try_into().unwrap()), code);
    assert_eq!(record[12..], [0, 0, 0xff, 0xff]);
    let time = u64::from_le_bytes(record[..8].try_into().unwrap());
    assert!(time > 1_600_000_000_000_000_000, "wall-clock nanoseconds: {time}");
    assert_eq!(bench.wait(ready.channel, 1, 0, notifier, 0, 0), Err(Errno::ETIMEDOUT));
    let mut submit = [0; 24];
    let submit =
        bench.raw(bench.file(ready.channel), "NVGPU_IOCTL_CHANNEL_SUBMIT_GPFIFO", &mut submit);
    assert_eq!(errno(submit), Err(Errno::ETIMEDOUT));
    bench.object(ready.channel, 0xc7b5).unwrap();
}

#[test]
fn a_fault_stops_only_the_channels_of_its_tsg() {
    let bench = Bench::new();
    let ready = bench.running();
    let (_, notifier) = bench.buffer(4096);
    bench.dma_buf(notifier).write(64, &[0xee; 16]).unwrap();
    bench.notifier(ready.channel, notifier, 64);
    let mut record = [1; 16];
    bench.dma_buf(notifier).read(64, &mut record).unwrap();
    assert_eq!(record, [0; 16], "zeroed by the call");
    // A sibling of the same TSG, and a stranger.
    let sibling = bench.channel();
    bench.bind_space(ready.space, sibling).unwrap();
    bench.bind_tsg(ready.tsg, sibling, ready.veid).unwrap();
    let (other_tsg, stranger) = (bench.tsg(), bench.channel());
    let veid = bench.subcontext(other_tsg, 1, ready.space).unwrap();
    bench.bind_space(ready.space, stranger).unwrap();
    bench.bind_tsg(other_tsg, stranger, veid).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bench.wait(ready.channel, 1, 0, notifier, 128, 99));
        thread::sleep(Duration::from_millis(20));
        // A release to an address that nothing is mapped at.
        bench.run(&ready, &[0x2005_0017, 0x1000, 0x12, 1, 0, 0x0010_0001]);
        assert_eq!(waiter.join().unwrap(), Ok(0), "a fault ends a wait with success");
    });
    assert_dead(&bench, &ready, notifier, 31);
    assert_eq!((bench.timedout(sibling), bench.timedout(stranger)), (1, 0));
}

#[test]
fn a_fault_at_an_unmapped_address_reports_the_unmap_time() {
    let bench = Bench::new();
    let ready = bench.running();
    let (_, fd) = bench.buffer(8192);
    let va = bench.map(ready.space, &mut whole(fd)).unwrap();
    bench.unmap(ready.space, va).unwrap();
    bench.run(&ready, &[0x2005_0017, va as u32 + 0x1010, (va >> 32) as u32, 1, 0, 0x0010_0001]);
    let found = bench.findings.take();
    let fault = found.iter().find(|found| found.rule == Rule::MmuFault).unwrap();
    for part in
        ["it was mapped until", &format!("0x1010 bytes into the 0x2000 at {va:#x}"), "unmap when"]
    {
        assert!(fault.message.contains(part), "no {part:?} in {}", fault.message);
    }
}

#[test]
fn force_reset_ends_the_tsg_before_it_returns() {
    let bench = Bench::new();
    let ready = bench.running();
    let (_, notifier) = bench.buffer(4096);
    bench.notifier(ready.channel, notifier, 64);
    bench.raw(bench.file(ready.channel), "NVGPU_IOCTL_CHANNEL_FORCE_RESET", &mut []).unwrap();
    assert_dead(&bench, &ready, notifier, 43);
    // Address space and buffers survive; TSG and channel are recreated.
    bench.close(ready.channel);
    bench.close(ready.tsg);
    let (tsg, channel) = (bench.tsg(), bench.channel());
    let veid = bench.subcontext(tsg, 1, ready.space).unwrap();
    bench.bind(channel, ready.space, tsg, veid);
    bench.dma_buf(ready.userd).write(0, &[0; 4096]).unwrap();
    bench.setup(channel, &mut Ready { channel, tsg, veid, ..ready }.request()).unwrap();
    assert_eq!(bench.timedout(channel), 0);
    let event = bench.event(tsg, 2);
    bench.run(&Ready { channel, tsg, veid, ..ready }, &INTERRUPT);
    assert!(bench.fds.poll(event));
}

#[test]
fn a_channel_serves_from_its_tsg_on_and_never_after_it_left() {
    let bench = Bench::new();
    let ready = bench.ready();
    let fresh = bench.channel();
    assert_eq!((bench.timedout(fresh), bench.timedout(ready.channel)), (1, 0));
    let mut fd = ready.channel.to_le_bytes();
    let tsg = bench.file(ready.tsg);
    bench.raw(tsg, "NVGPU_TSG_IOCTL_UNBIND_CHANNEL", &mut fd).unwrap();
    assert_eq!(bench.timedout(ready.channel), 1);
    // The subcontext stays after an unbind, and goes with the last channel that is closed in it.
    bench.bind_space(ready.space, fresh).unwrap();
    bench.bind_tsg(ready.tsg, fresh, ready.veid).unwrap();
    bench.close(fresh);
    let last = bench.channel();
    bench.bind_space(ready.space, last).unwrap();
    assert_eq!(errno(bench.bind_tsg(ready.tsg, last, ready.veid)), Err(Errno::EINVAL));
}
