//! The mapped port over plain memory: stores go where the hardware reads.

use std::ptr::addr_of_mut;

use nix::libc;
use tegra::class::host::userd;
use tegra::pushbuffer::{Entry, Operation, Payload, Release};
use tegra::queue::{MappedPort, PortMemory, Queue, QueueConfig, TAIL_WORDS, Wake};

use super::at;

const ENTRIES: u32 = 8;
const TAILS: u64 = 0x10_0000;
const TIMELINE: u64 = 0x20_0000;

#[repr(C, align(4096))]
struct Memory {
    ring: [u64; ENTRIES as usize],
    userd: [u32; userd::SIZE / 4],
    tails: [[u32; TAIL_WORDS]; ENTRIES as usize],
    timeline: u64,
    doorbell: u32,
}

/// A queue over memory that [`forget`] frees after the queue is gone.
fn queue() -> (*mut Memory, Queue<MappedPort>) {
    let memory = Box::into_raw(Box::new(Memory {
        ring: [0; _],
        userd: [0; _],
        tails: [[0; _]; _],
        timeline: 0,
        doorbell: 0,
    }));
    // SAFETY: the box is accessed through these pointers only while the port lives.
    let port = unsafe {
        MappedPort::new(PortMemory {
            ring: addr_of_mut!((*memory).ring).cast(),
            entries: ENTRIES,
            userd: addr_of_mut!((*memory).userd).cast(),
            tails: addr_of_mut!((*memory).tails).cast(),
            timeline: addr_of_mut!((*memory).timeline),
            doorbell: addr_of_mut!((*memory).doorbell),
            token: 511,
        })
    };
    let config =
        QueueConfig { entries: ENTRIES, tails: at(TAILS), timeline: at(TIMELINE), start: 0 };
    (memory, Queue::new(port, config).expect("valid"))
}

fn forget(memory: *mut Memory, queue: Queue<MappedPort>) {
    drop(queue);
    // SAFETY: made by `into_raw` in `queue`, and the port is gone.
    drop(unsafe { Box::from_raw(memory) });
}

#[test]
fn a_submission_writes_entries_tail_put_and_doorbell() {
    let (memory, mut queue) = queue();
    let body = Entry::new(at(0x30_0000), 4).expect("valid");
    let first = queue.submit(&[body], Wake::Quiet).expect("room");
    let second = queue.submit(&[body, body], Wake::Interrupt).expect("room");

    let tail = |slot: u64, words| Entry::new(at(TAILS + slot * 32), words).expect("valid");
    let ring = [body, tail(1, 6), body, body, tail(4, 8)].map(Entry::encode);
    let mut words = Vec::new();
    let release = Release::new(at(TIMELINE), Payload::Long(2)).and_then(Release::with_timestamp);
    Operation::Release(release.expect("aligned")).encode(&mut words);
    Operation::NonStallInterrupt.encode(&mut words);
    // SAFETY: as above; the queue is idle.
    let seen = unsafe { memory.read_volatile() };
    assert_eq!(seen.ring[..5], ring);
    assert_eq!(seen.tails[4], *words);
    assert_eq!(seen.userd[userd::GP_PUT / 4], 5);
    assert_eq!(seen.doorbell, 511);
    // SAFETY: as above; the test plays the GPU.
    unsafe { addr_of_mut!((*memory).timeline).write_volatile(1) };
    assert_eq!(queue.is_reached(first), Ok(true));
    assert_eq!(queue.is_reached(second), Ok(false));
    assert_eq!(queue.room(), 4);
    forget(memory, queue);
}

/// Runs in a process that the kernel kills at any system call except `exit`.
#[test]
fn a_submit_makes_no_system_call() {
    const STEPS: u64 = 1000;
    const NOT_STRICT: i32 = 77;
    let (memory, mut queue) = queue();
    let body = [Entry::new(at(0x30_0000), 4).expect("valid")];
    // SAFETY: the child allocates nothing, takes no lock and ends by `exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: no pointers are passed.
        let strict =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0) };
        let mut done = 0;
        while strict == 0 && done < STEPS {
            let Ok(point) = queue.submit(&body, Wake::Interrupt) else { break };
            // SAFETY: plays the GPU, in the child's copy of the memory.
            unsafe { addr_of_mut!((*memory).timeline).write_volatile(point.value()) };
            if queue.is_reached(point) != Ok(true) {
                break;
            }
            done += 1;
        }
        let code = if strict != 0 { NOT_STRICT } else { i32::from(done != STEPS) };
        // SAFETY: exits the child; `exit_group` is not allowed any more.
        unsafe { libc::syscall(libc::SYS_exit, code) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for a write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "killed by signal {}", libc::WTERMSIG(status));
    forget(memory, queue);
    match libc::WEXITSTATUS(status) {
        NOT_STRICT => println!("skipped: no strict mode here, as under user-mode emulation"),
        code => assert_eq!(code, 0),
    }
}
