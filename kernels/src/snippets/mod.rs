//! Random programs for comparing GPUs: straight-line PTX over eight registers, each with a scalar
//! model of its result.
//!
//! Compiled for sm_87 the simulator executes them; compiled for sm_90 a real GPU does. All three
//! must agree bit for bit, so only exactly defined instructions are used: no approximations, no
//! tensor cores. Defines programs, model and inputs; executes nothing.

mod op;

use sha2::{Digest as _, Sha256};

use crate::source::hex;
use op::Op;

/// Registers of a program; also words of a lane's input and output.
pub const WORDS: usize = 8;
/// Lanes of a warp.
pub const LANES: usize = 32;
/// Warps that run a program, one block each.
pub const WARPS: usize = 16;
/// Number of programs.
pub const COUNT: u64 = 24;
/// Instructions of a program.
const LENGTH: usize = 48;

/// Registers of all lanes of a warp.
pub type Warp = [[u32; WORDS]; LANES];

/// An instruction with its destination and source registers.
#[derive(Clone, Copy, Debug)]
struct Step {
    op: Op,
    to: usize,
    from: [usize; 3],
}

/// A program.
#[derive(Clone, Debug)]
pub struct Snippet {
    steps: Vec<Step>,
}

impl Snippet {
    /// Program with this number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let mut random = Random(number);
        let steps = (0..LENGTH)
            .map(|_| Step {
                op: Op::random(&mut random),
                to: random.below(WORDS),
                from: std::array::from_fn(|_| random.below(WORDS)),
            })
            .collect();
        Self { steps }
    }

    /// Body of the kernel. Parameters: input and output, [`WORDS`] for each lane of the grid.
    fn body(&self) -> String {
        let mut body = String::from(
            "(const unsigned *in, unsigned *out)\n{\n    \
             unsigned lane = blockIdx.x * 32 + threadIdx.x;\n    unsigned v[8];\n    \
             for (int i = 0; i < 8; i++) v[i] = in[8 * lane + i];\n",
        );
        for Step { op, to, from: [a, b, c] } in &self.steps {
            body += &format!(
                "    asm volatile(\"{{ {} }}\" : \"=r\"(v[{to}]) : \"r\"(v[{a}]), \"r\"(v[{b}]), \
                 \"r\"(v[{c}]));\n",
                op.ptx()
            );
        }
        body += "    for (int i = 0; i < 8; i++) out[8 * lane + i] = v[i];\n}\n";
        body
    }

    /// Name of the kernel. It contains a hash of the program, so that outdated machine code is not
    /// found.
    #[must_use]
    pub fn symbol(&self) -> String {
        let hash = hex(&Sha256::digest(self.body().as_bytes()));
        format!("snippet_{}", hash.get(..16).unwrap_or_default())
    }

    /// The kernel in CUDA C++.
    #[must_use]
    pub fn text(&self) -> String {
        format!("extern \"C\" __global__ void {}{}", self.symbol(), self.body())
    }

    /// Registers of a warp after the program.
    #[must_use]
    pub fn evaluate(&self, mut warp: Warp) -> Warp {
        for Step { op, to, from } in &self.steps {
            let operands = warp.map(|lane| from.map(|register| lane[register]));
            let results = op.evaluate(&operands);
            for (lane, result) in warp.iter_mut().zip(results) {
                lane[*to] = result;
            }
        }
        warp
    }
}

/// All programs.
#[must_use]
pub fn all() -> Vec<Snippet> {
    (0..COUNT).map(Snippet::new).collect()
}

/// All programs as one unit.
#[must_use]
pub fn source() -> String {
    all().iter().map(Snippet::text).collect()
}

/// Initial registers of a warp: random bits, small integers, ordinary and special values of both
/// widths.
#[must_use]
pub fn input(program: u64, warp: u64) -> Warp {
    const SPECIAL: [u32; 12] = [
        0,
        0x8000_0000,
        1,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x0000_0001,
        0x807f_ffff,
        0x3f80_0000,
        u32::MAX,
        0x7c00_fc00,
        0x0001_83ff,
    ];
    let mut random = Random(!(program << 32 | warp));
    std::array::from_fn(|_| {
        std::array::from_fn(|_| match random.below(8) {
            0 => SPECIAL[random.below(SPECIAL.len())],
            1 => random.below(64) as u32,
            2 | 3 => ((random.next() >> 40) as f32 / 65_536.0 - 128.0).to_bits(),
            // Half-precision values between 2^-8 and 2^8, of either sign.
            4 | 5 => random.next() as u32 & 0xc3ff_c3ff | 0x2000_2000 & random.next() as u32,
            _ => random.next() as u32,
        })
    })
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
