//! Kernels on the compute engine. The simulator runs no machine code here: the tests check that
//! launches are accepted, end, and release their semaphores.

use tegra::address::QmdAddress;
use tegra::buffer::{Filling, Mailbox, Scratch};
use tegra::class;
use tegra::context::{Context, Options};
use tegra::local_memory::{LocalMemory, LocalMemorySize};
use tegra::pushbuffer::{CacheInvalidate, Engine, Payload, PushBuffer};
use tegra::qmd::{ConstantBank, Launch, Program, QmdRelease};
use tegra::queue::Wake;

use crate::support::{LONG, alone, space};

const QMD: u64 = 0;
const BANK: u64 = 4096;
const RESULT: u64 = 8192;
const STREAM: u64 = 12_288;
/// `EXIT`, followed by a branch to itself, as compilers end code.
const CODE: [u64; 4] =
    [0x0000_0000_0000_794d, 0x000f_ea00_0380_0000, 0xffff_fff0_0000_7947, 0x000f_c000_0383_ffff];

#[test]
fn a_launch_with_local_memory() {
    alone(|| {
        let space = space();
        let mut context = Context::new(&space, Options::default()).unwrap();
        let compute = context.add_queue(Engine::Compute, 64).unwrap();
        let size = LocalMemorySize::new(0, space.orin().tpcs()).unwrap();
        let store = Scratch::new(&space, size.total).unwrap();
        let memory = LocalMemory::new(store.address(), size.per_tpc).unwrap();
        context.set_local_memory(memory).unwrap();

        let mut code = Filling::new(&space, 8192).unwrap();
        for (place, word) in code.as_mut_slice().chunks_exact_mut(8).zip(CODE) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let code = code.seal().unwrap();
        let mailbox = Mailbox::new(&space, 4 * 4096).unwrap();
        let at = |offset| mailbox.at(offset).unwrap();
        let bank = 0x200;
        mailbox.write(BANK, &vec![0; bank as usize]).unwrap();
        let program = Program {
            address: code.address(),
            code_bytes: size_of_val(&CODE) as u32,
            registers: 24,
            barriers: 0,
            local_bytes: size.per_thread,
        };
        let mut launch = Launch::new(program, [4, 1, 1], [128, 1, 1]);
        launch.constants[0] =
            Some(ConstantBank { address: at(BANK), bytes: bank, invalidate: true });
        launch.releases[0] = Some(QmdRelease {
            at: at(RESULT),
            payload: Payload::Long(0x1_0000_0002),
            timestamp: true,
            system_barrier: true,
        });
        mailbox.write_words(QMD, launch.encode().unwrap().words()).unwrap();
        let mut stream = PushBuffer::<class::Compute>::new();
        stream
            .invalidate_shader_caches(CacheInvalidate {
                instruction: true,
                constant: true,
                ..CacheInvalidate::default()
            })
            .launch(QmdAddress::new(at(QMD)).unwrap());
        let body = mailbox.write_stream(STREAM, stream.words()).unwrap();
        let ticket = context.submit_timed(compute, &[body], Wake::Interrupt).unwrap();
        context.wait(ticket, LONG).unwrap();
        assert_eq!(mailbox.load_u64(RESULT).unwrap(), 0x1_0000_0002);
        let stamp = mailbox.load_u64(RESULT + 8).unwrap();
        let timing = context.timing(ticket).unwrap().expect("timed and done");
        assert!(timing.started <= stamp && stamp <= timing.finished, "{stamp} {timing:?}");

        // A larger store, while the channel is open; and again after it was closed.
        let larger = LocalMemorySize::new(1024, space.orin().tpcs()).unwrap();
        let store = Scratch::new(&space, larger.total).unwrap();
        context
            .set_local_memory(LocalMemory::new(store.address(), larger.per_tpc).unwrap())
            .unwrap();
        for _ in 0..2 {
            mailbox.store_u64(RESULT, 0).unwrap();
            let ticket = context.submit(compute, &[body], Wake::Quiet).unwrap();
            context.wait(ticket, LONG).unwrap();
            assert_eq!(mailbox.load_u64(RESULT).unwrap(), 0x1_0000_0002);
            context.close().unwrap();
        }
    });
}
