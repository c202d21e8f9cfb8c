//! Reports of faults, and recovery from them.

use std::time::Duration;

use tegra::Error;
use tegra::abi::channel::ErrorCode;
use tegra::address::GpuAddress;
use tegra::class;
use tegra::context::{Context, Options};
use tegra::fault::Fault;
use tegra::orin::Orin;
use tegra::pushbuffer::{Acquire, Condition, Engine, Payload, PushBuffer};
use tegra::queue::Wake;
use tegra::space::{self, Access, AddressSpace};

use crate::support::{Copies, LONG, alone, complete, space};

fn fault(error: Error) -> Fault {
    assert!(error.can_rebuild());
    match error {
        Error::Fault(fault) => *fault,
        other => panic!("{other}"),
    }
}

/// An unmapped address.
fn nowhere() -> GpuAddress {
    GpuAddress::new(0x10_0000).unwrap()
}

#[test]
fn a_context_is_rebuilt_after_a_copy_from_an_unmapped_address() {
    alone(|| {
        let mut copies = Copies::new();
        let (from, to) = (copies.mailbox(4096), copies.mailbox(4096));
        from.store_u64(0, 77).unwrap();
        copies.copy(from.address(), to.address(), 8);
        let address = to.address();
        for round in 1..=3 {
            let Copies { context, copier, queue, .. } = &mut copies;
            let done = complete(context, *queue, Wake::Quiet);
            let lost = copier.copy(context, nowhere(), address, 64).unwrap();
            let report = fault(context.wait(lost, LONG).unwrap_err());
            assert_eq!(report.code, Some(ErrorCode::MmuFault));
            let [progress] = &report.queues[..] else { panic!("{report:?}") };
            assert_eq!(progress.engine, Engine::Copy);
            assert_eq!(progress.completed, done.point().value());
            assert_eq!(progress.submitted, lost.point().value());
            // The host unit has reported nothing yet, the copy, or the copy and its tail.
            let streams: Vec<_> = progress.streams.iter().map(|stream| stream.words()).collect();
            assert!([9, 8].starts_with(&streams), "{report}");
            assert!(report.to_string().contains("address fault (31)"), "{report}");
            // Until the rebuild, every call returns the same fault.
            let again = fault(context.submit(*queue, &[], Wake::Quiet).unwrap_err());
            assert_eq!(again, report);
            assert_eq!(fault(context.wait(lost, LONG).unwrap_err()), report);
            context.rebuild().unwrap();
            assert!(context.is_done(done).unwrap(), "done before the fault");
            let gone = context.wait(lost, LONG).unwrap_err();
            assert!(matches!(gone, Error::Lost { queue: 0, .. }), "{gone}");
            // Buffers retained content and address, and work continues.
            assert_eq!(to.load_u64(0).unwrap(), 76 + round);
            from.store_u64(0, 77 + round).unwrap();
            copies.copy(from.address(), address, 8);
            assert_eq!(to.load_u64(0).unwrap(), 77 + round);
        }
    });
}

#[test]
fn a_write_to_read_only_weights_faults() {
    alone(|| {
        let options = space::Options { sealed: Access::Read, ..space::Options::default() };
        let space = AddressSpace::with(&Orin::open().unwrap(), options).unwrap();
        let mut copies = Copies::within(space, Options::default());
        let weights = tegra::buffer::Filling::new(&copies.space, 4096).unwrap().seal().unwrap();
        let from = copies.mailbox(4096);
        from.store_u64(0, 1).unwrap();
        let Copies { context, copier, .. } = &mut copies;
        let ticket = copier.copy(context, from.address(), weights.address(), 8).unwrap();
        let report = fault(context.wait(ticket, LONG).unwrap_err());
        assert_eq!(report.code, Some(ErrorCode::MmuFault));
        assert!(weights.as_slice().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_freed_buffer_faults() {
    alone(|| {
        let mut copies = Copies::new();
        let to = copies.mailbox(4096);
        let freed = copies.mailbox(4096);
        let address = freed.address();
        drop(freed);
        let Copies { context, copier, .. } = &mut copies;
        let ticket = copier.copy(context, address, to.address(), 8).unwrap();
        assert_eq!(fault(context.wait(ticket, LONG).unwrap_err()).code, Some(ErrorCode::MmuFault));
    });
}

/// A fault kills all queues of its context and none of another.
#[test]
fn other_contexts_survive_a_fault() {
    alone(|| {
        let space = space();
        let mut first = Context::new(&space, Options::default()).unwrap();
        let mut second = Context::new(&space, Options::default()).unwrap();
        let queues = [0, 1].map(|_| first.add_queue(Engine::Copy, 16).unwrap());
        let other = second.add_queue(Engine::Copy, 16).unwrap();
        let mut copier = tegra::copy::Copier::new(&space, queues[0]).unwrap();
        complete(&mut first, queues[1], Wake::Quiet);
        let target = tegra::buffer::Mailbox::new(&space, 4096).unwrap();
        let lost = copier.copy(&mut first, nowhere(), target.address(), 8).unwrap();
        let report = fault(first.wait(lost, LONG).unwrap_err());
        assert_eq!(report.queues.len(), 2);
        assert!(report.queues[0].is_busy() && !report.queues[1].is_busy());
        complete(&mut second, other, Wake::Interrupt);
        first.rebuild().unwrap();
        for queue in queues {
            complete(&mut first, queue, Wake::Interrupt);
        }
    });
}

/// Work that waits for a missing release is stalled, which is no fault; a rebuild removes it.
#[test]
fn a_rebuild_removes_stalled_work() {
    alone(|| {
        let mut copies = Copies::with(Options { spin: Duration::ZERO, ..Options::default() });
        let gate = copies.mailbox(8192);
        let acquire =
            Acquire::new(gate.at(0).unwrap(), Payload::Long(1), Condition::Reached).unwrap();
        let mut stream = PushBuffer::<class::Copy>::new();
        stream.acquire(acquire);
        let Copies { context, copier, queue, .. } = &mut copies;
        let stuck = copier.submit(context, &stream).unwrap();
        let patience = Duration::from_millis(30);
        let error = context.wait(stuck, patience).unwrap_err();
        let Error::Stalled { value, completed, waited, .. } = error else { panic!("{error}") };
        assert_eq!((value, completed), (stuck.point().value(), stuck.point().value() - 1));
        assert!(waited >= patience);
        let known = context.describe();
        assert_eq!((known.code, known.sms.len()), (None, 0));
        assert!(known.queues[0].is_busy() && !known.queues[0].streams.is_empty(), "{known:?}");
        // Released after all: it was not a fault.
        gate.store_u64(0, 1).unwrap();
        context.wait(stuck, LONG).unwrap();
        gate.store_u64(0, 0).unwrap();
        let stuck = copier.submit(context, &stream).unwrap();
        assert!(context.wait(stuck, patience).is_err());
        context.rebuild().unwrap();
        assert!(matches!(context.is_done(stuck), Err(Error::Lost { .. })));
        complete(context, *queue, Wake::Interrupt);
        // Releases the semaphore, so that nothing waits for it any more.
        gate.store_u64(0, 1).unwrap();
    });
}
