//! Random programs of copies and semaphores over several channels, compared with sequential
//! execution.
//!
//! Runs 20 seeds; `TEGRA_SIM_PROGRAMS` sets another number, such as 1000.

use tegra::pushbuffer::Fill;
use tegra_sim::gpu::Random;

use super::rig::{Rig, acquire, copy, copy_stream, release};

const CHANNELS: usize = 4;
const SIZE: u64 = 64 << 10;

/// Everything is ordered as it is made: each step waits for all others' steps before it that it
/// must, by the timelines of their channels.
fn program(seed: u64) {
    let mut random = Random::new(seed);
    let rig = Rig::new(seed);
    let (memory, timelines) = (rig.buffer(SIZE), rig.buffer(4096));
    let mut expected: Vec<u8> = (0..SIZE).map(|index| (index * 7 + index / 256) as u8).collect();
    memory.write(0, &expected);
    let mut channels: Vec<_> = (0..CHANNELS).map(|_| rig.channel()).collect();
    let mut streams: Vec<_> = (0..CHANNELS).map(|_| copy_stream()).collect();
    let mut done = [0u64; CHANNELS];
    for _ in 0..40 {
        let who = random.below(CHANNELS as u64) as usize;
        let stream = &mut streams[who];
        for (other, value) in done.iter().enumerate() {
            if other != who && *value > 0 {
                stream.acquire(acquire(timelines.at(16 * other as u64), *value));
            }
        }
        let bytes = 1 + random.below(5000);
        let to = random.below(SIZE / 2 - bytes);
        if random.one_in(4) {
            let (to, words) = (to / 4 * 4, 1 + bytes / 4);
            let value = random.next() as u32;
            stream.fill(Fill::new(memory.at(to), value, words as u32).unwrap());
            let filled = value.to_le_bytes().repeat(words as usize);
            expected[to as usize..][..filled.len()].copy_from_slice(&filled);
        } else {
            // From one half to the other, so that no copy overlaps itself.
            let from = SIZE / 2 + random.below(SIZE / 2 - bytes);
            let (from, to) = if random.one_in(2) { (from, to) } else { (to, from) };
            stream.transfer(copy(memory.at(from), memory.at(to), bytes as u32));
            expected.copy_within(from as usize..(from + bytes) as usize, to as usize);
        }
        done[who] += 1;
        stream.release(release(timelines.at(16 * who as u64), done[who]));
        if random.one_in(3) {
            rig.submit(&mut channels[who], stream.words());
            *stream = tegra::pushbuffer::PushBuffer::new();
        }
    }
    for (channel, stream) in channels.iter_mut().zip(&streams) {
        if !stream.words().is_empty() {
            rig.submit(channel, stream.words());
        }
    }
    assert_eq!(rig.gpu.drain(), [], "seed {seed}");
    assert_eq!(rig.findings(), [], "seed {seed}");
    let found = memory.read(0, SIZE as usize);
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "seed {seed}: first wrong byte");
    for (channel, value) in done.iter().enumerate() {
        assert_eq!(timelines.long(16 * channel as u64), *value, "seed {seed}");
    }
}

#[test]
fn programs_equal_a_run_in_order() {
    let programs = std::env::var("TEGRA_SIM_PROGRAMS").ok();
    let programs = programs.map_or(20, |count| count.parse().unwrap());
    (0..programs).for_each(program);
}
