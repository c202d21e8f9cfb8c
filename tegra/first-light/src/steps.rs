//! Bring-up steps 4, 6 and 7: results of single launches, atomics, and visibility between CPU and
//! GPU.

use orind_kernels::first_light::{
    ATOMICS_BLOCKS, ATOMICS_THREADS, AtomicsParams, HANDOVER_THREADS, HandoverParams, Kernel,
    PROBE_GRID, WAYS, copied, mark, part, probe, probe_words, sums,
};
use orind_kernels::params::IntoBytes;
use tegra::buffer::Mailbox;
use tegra::qmd::Invalidate;

use super::launch::{Link, Recording};
use super::{Failure, Trial};

const ROUNDS: u32 = 64;
/// Words handed over in a round: 64 KiB.
const WORDS: u32 = 16 << 10;

/// Copies words out; the caller has seen the GPU finish with them.
fn read(memory: &Mailbox, offset: u64, words: usize) -> Result<Vec<u32>, Failure> {
    let mut bytes = vec![0; 4 * words];
    memory.read(offset, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

impl Trial {
    /// Step 4, launch: one launch whose threads use every kind of instruction, checked bit for bit.
    pub fn launch(&mut self) -> Result<(), Failure> {
        let expected = probe_words();
        let out = Mailbox::new(&self.space, 4 * expected.len() as u64)?;
        let before: Vec<u32> = expected.iter().map(|word| !word).collect();
        out.write_words(0, &before)?;
        let params = probe(out.address().get());
        let launch = self.describe(Kernel::Probe, PROBE_GRID, params.as_bytes());
        let recording = Recording::new(&self.space, &[launch], Link::Stream)?;
        self.run(recording.body())?;
        let found = read(&out, 0, expected.len())?;
        let wrong = |at: &usize| found[*at] != expected[*at];
        let Some(at) = (0..expected.len()).find(wrong) else { return Ok(()) };
        Err(Failure::Probe {
            wrong: (0..expected.len()).filter(wrong).count(),
            words: expected.len(),
            part: part(at),
            at,
            found: found[at],
            expected: expected[at],
        })
    }

    /// Step 6, atomics: the blocks of a launch increment a counter, and the last one must see the
    /// writes of all others; 64 times.
    pub fn atomics(&mut self) -> Result<(), Failure> {
        const PARTS: u64 = 256;
        let (blocks, threads) = (ATOMICS_BLOCKS, ATOMICS_THREADS);
        let marks = PARTS + 4 * u64::from(blocks * threads);
        // The counter is the first word of the buffer.
        let memory = Mailbox::new(&self.space, marks + 4 * u64::from(threads))?;
        memory.write(0, &vec![0; memory.bytes() as usize])?;
        let mut params = AtomicsParams {
            counter: memory.address().get(),
            parts: memory.at(PARTS)?.get(),
            marks: memory.at(marks)?.get(),
            ..AtomicsParams::default()
        };
        let launch = self.describe(Kernel::Atomics, [blocks, 1, 1], params.as_bytes());
        let recording = Recording::new(&self.space, &[launch], Link::Stream)?;
        for round in 0..ROUNDS {
            params.round = round;
            let launch = self.describe(Kernel::Atomics, [blocks, 1, 1], params.as_bytes());
            recording.set_bank(0, &launch.bank)?;
            self.run(recording.body())?;
            let counter = memory.load_u32(0)?;
            if counter != 0 {
                return Err(Failure::Counter { round, blocks, counter });
            }
            for (thread, found) in (0..).zip(read(&memory, marks, threads as usize)?) {
                let expected = mark(round, thread);
                if found != expected {
                    return Err(Failure::Mark { round, blocks, found, expected });
                }
            }
        }
        Ok(())
    }

    /// Step 7, hand-over: the CPU rewrites 64 KiB and a parameter, every SM reads them with each
    /// kind of load, and the CPU reads the results; 64 times. In every other round the launch does
    /// not invalidate L1 itself, only the stream does: [`Failure::StreamAlone`] when only those
    /// rounds fail.
    pub fn handover(&mut self) -> Result<(), Failure> {
        let grid = self.one_each();
        let bytes = 4 * u64::from(WORDS);
        let sums = sums_of(grid) as u64;
        let memory = Mailbox::new(&self.space, 2 * bytes + 4 * sums)?;
        memory.write(0, &vec![0; memory.bytes() as usize])?;
        let mut params = HandoverParams {
            words: memory.address().get(),
            copy: memory.at(bytes)?.get(),
            sums: memory.at(2 * bytes)?.get(),
            count: WORDS,
            key: 0,
        };
        let launch = self.describe(Kernel::Handover, grid, params.as_bytes());
        let mut bare = launch.clone();
        bare.launch.invalidate =
            Invalidate { texture: false, data: false, ..Invalidate::default() };
        let record = |launch| Recording::new(&self.space, &[launch], Link::Stream);
        let recordings = [record(launch)?, record(bare)?];
        let mut stream_alone = None;
        for round in 0..ROUNDS {
            let words: Vec<u32> = (0..WORDS).map(|word| pattern(round, word)).collect();
            memory.write_words(0, &words)?;
            params.key = pattern(round, WORDS);
            let is_bare = round % 2 == 1;
            let recording = &recordings[usize::from(is_bare)];
            recording
                .set_bank(0, &self.describe(Kernel::Handover, grid, params.as_bytes()).bank)?;
            self.run(recording.body())?;
            match check(&memory, round, &words, params.key, grid) {
                Err(failure @ Failure::ForGpu { .. }) if is_bare => {
                    stream_alone.get_or_insert(failure);
                }
                seen => seen?,
            }
        }
        stream_alone.map_or(Ok(()), |failure| Err(Failure::StreamAlone(Box::new(failure))))
    }
}

/// Number of sums that the blocks of a grid compute.
fn sums_of([blocks, ..]: [u32; 3]) -> usize {
    blocks as usize * WAYS.len() * HANDOVER_THREADS as usize
}

/// Checks a round of the hand-over: the copy of the words, and the sums after it.
fn check(
    memory: &Mailbox,
    round: u32,
    words: &[u32],
    key: u32,
    grid: [u32; 3],
) -> Result<(), Failure> {
    let bytes = 4 * words.len() as u64;
    let right = sums(words, key);
    for (i, found) in read(memory, 2 * bytes, sums_of(grid))?.into_iter().enumerate() {
        let expected = right[i % right.len()];
        if found != expected {
            let (way, block) = (i / right.len() % WAYS.len(), i / right.len() / WAYS.len());
            return Err(Failure::ForGpu { round, way: WAYS[way], block, found, expected });
        }
    }
    for (at, (found, word)) in read(memory, bytes, words.len())?.into_iter().zip(words).enumerate()
    {
        let expected = copied(*word, key);
        if found != expected {
            return Err(Failure::ForCpu { round, at, found, expected });
        }
    }
    Ok(())
}

/// A word unique to its round and position.
fn pattern(round: u32, word: u32) -> u32 {
    (round << 20 | word).wrapping_add(1).wrapping_mul(0x9e37_79b1)
}
