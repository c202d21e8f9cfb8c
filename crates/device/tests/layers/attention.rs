//! Attention over caches of every type, with sinks and windows: CPU compared with the reference,
//! and independence of a row from other rows.

use std::num::NonZeroUsize;

use device::Device;
use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use parity::case::{BuildError, Case, Sketch, noise};
use plan::graph::{Caches, Rows};
use plan::{Binary, Bucket, DType, Outputs, RopeStyle, Scalar, Scores};

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const CONTEXT: usize = 96;
const ROWS: usize = 80;

/// Attention with random queries, keys and values.
#[derive(Clone, Copy, Debug)]
struct Attended {
    dtype: DType,
    window: Option<usize>,
    sinks: bool,
    /// Positions of the caches if they are rings.
    ring: Option<usize>,
}

impl Attended {
    /// [`ROWS`] rows of a sequence, `chunk` per step.
    fn case(&self, chunk: usize) -> Case {
        let mut case = Case::new("attention", format!("{self:?}"), 0.0);
        for first in (0..ROWS).step_by(chunk) {
            let bucket = Bucket { batch: 1, chunk, context: CONTEXT, outputs: Outputs::None };
            case = case.stage(bucket, |s| self.stage(s, first, chunk)).unwrap();
        }
        case
    }

    fn stage(&self, s: &mut Sketch<'_>, first: usize, m: usize) -> Result<(), BuildError> {
        let mut part = |name: &str, seed: u64, heads: usize, by: f32| {
            let all = noise(seed, ROWS * heads * DIM);
            let part = &all[first * heads * DIM..(first + m) * heads * DIM];
            s.floats(name, &[m, heads, DIM], part.iter().map(|v| by * v).collect())
        };
        let (q, k) = (part("q", 1, HEADS, 4.0)?, part("k", 2, KV_HEADS, 1.0)?);
        let v = part("v", 3, KV_HEADS, 1.0)?;
        let positions = (first..first + m).map(|at| at as i32).collect();
        let positions = s.ints("positions", &[m], positions)?;
        let rows = Rows { slots: s.ints("slots", &[m], vec![1; m])?, positions };
        let frequencies = (0..DIM / 2).map(|i| 1e4f32.powf(-2.0 * i as f32 / DIM as f32));
        let frequencies = s.quantised("f", DType::F32, &[DIM / 2], &Vec::from_iter(frequencies))?;
        let table = s.g.rope_table(positions, frequencies, 1.0)?;
        let style = RopeStyle::HalfSplit;
        let (q, k) = (s.g.rope(q, table, style)?, s.g.rope(k, table, style)?);
        let (capacity, ring) = (self.ring.unwrap_or(CONTEXT), self.ring.is_some());
        let mut cache = |name| s.cache(name, self.dtype, &[2, capacity, KV_HEADS, DIM]);
        let (keys, values) = (cache("keys")?, cache("values")?);
        let keys = s.g.kv_write(keys, rows, k, ring)?;
        let caches = Caches { keys, values: s.g.kv_write(values, rows, v, ring)?, ring };
        let sinks = match self.sinks {
            true => Some(s.quantised("sinks", DType::F32, &[HEADS], &noise(4, HEADS))?),
            false => None,
        };
        let scale = Scalar::new(1.0 / (DIM as f32).sqrt());
        let scores = Scores { window: self.window, ..Scores::scaled(scale.get()) };
        let y = s.g.attention(q, caches, rows, sinks, scores, CONTEXT)?;
        let y = s.g.reshape(y, &[m, HEADS * DIM])?;
        let zeroes = s.floats("zeroes", &[m, HEADS * DIM], vec![0.0; m * HEADS * DIM])?;
        let y = s.g.binary(Binary::Add, y, zeroes)?;
        s.g.output("y", y);
        Ok(())
    }

    fn run(&self, device: &dyn Device, chunk: usize) -> Vec<f32> {
        let results = self.case(chunk).run(device).unwrap();
        results.into_iter().flat_map(|(_, values)| values).collect()
    }
}

#[test]
fn cpu_attention_matches_the_definition_for_every_cache_and_batch() {
    let plain = |dtype| Attended { dtype, window: None, sinks: false, ring: None };
    let exact = plain(DType::F16).run(&Reference, ROWS);
    for dtype in [DType::F16, DType::Q8_0, DType::Q4_0] {
        // Error of the type itself. A device may add a little: a code that rounding changes.
        let cost = super::distance(&plain(dtype).run(&Reference, ROWS), &exact);
        for (window, sinks) in [(None, false), (Some(17), true), (Some(40), false), (None, true)] {
            let attended = Attended { dtype, window, sinks, ring: None };
            let want = attended.run(&Reference, ROWS);
            let got = attended.run(&Cpu::new(Isa::detect(), NonZeroUsize::MIN), ROWS);
            let off = super::distance(&got, &want);
            assert!(off < 2e-5 + cost / 10.0, "{attended:?}: {off} beside {cost}");
            for isa in Isa::available() {
                let cpu = Cpu::new(isa, NonZeroUsize::new(3).unwrap());
                for chunk in [1, 16, ROWS] {
                    let what = format!("{attended:?} on {isa}, chunks of {chunk}");
                    assert!(attended.run(&cpu, chunk) == got, "{what}");
                    // The first span of a window is needed as long as rows see it.
                    let needed = window.map_or(CONTEXT, |w| w + 30 + chunk).next_multiple_of(32);
                    if needed < CONTEXT {
                        let ring = Attended { ring: Some(needed), ..attended };
                        assert!(ring.run(&cpu, chunk) == got, "{what}, a ring");
                        assert!(ring.run(&Reference, chunk) == want, "{what}, its definition");
                    }
                }
            }
        }
    }
}

/// Eight bits are more precise than four, and both are close.
#[test]
fn cache_errors_follow_their_precision() {
    let run =
        |dtype| Attended { dtype, window: None, sinks: false, ring: None }.run(&Reference, ROWS);
    let exact = run(DType::F16);
    let [eight, four] = [DType::Q8_0, DType::Q4_0].map(|d| super::distance(&run(d), &exact));
    assert!((1e-3..1e-2).contains(&eight) && (2e-2..2e-1).contains(&four), "{eight}, {four}");
}
