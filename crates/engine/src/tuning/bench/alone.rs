//! Benchmark of one fused group of tensor operations. Its results are not verified independently: results
//! under the heuristic choice match other devices, and every choice must give the same bits.

use super::{Work, buffers, noise};
use device::tune::beam::Failure;
use device::{Data, Request, WeightSource};
use plan::{Buffer, BufferId, Class, DType, Plan};

/// Lower limit: a row on a few threads at the lowest clock of an Orin. A simulator is slower.
const SLOWEST: f64 = 0.01e9;

/// A plan of one group, and its inputs.
pub(super) struct Alone {
    plan: [Plan; 1],
    numbers: Vec<f32>,
    integers: Vec<i32>,
    bytes: Vec<u8>,
    signed: Vec<i8>,
    truths: Vec<bool>,
}

impl Alone {
    pub(super) fn new(plan: &Plan) -> Self {
        let most = |dtype: DType| {
            let of = |(_, buffer): (BufferId, &Buffer)| {
                (buffer.dtype == dtype).then(|| buffer.elements())
            };
            buffers(plan, Class::Mailbox).filter_map(of).max().unwrap_or(0)
        };
        Self {
            plan: [plan.clone()],
            numbers: noise(3, most(DType::F32)),
            integers: (0..most(DType::I32) as i32).map(|i| i * 7 % 61 - 9).collect(),
            bytes: (0..most(DType::U8)).map(|i| (i * 7 % 251) as u8).collect(),
            signed: (0..most(DType::I8)).map(|i| (i * 7 % 127) as i8 - 63).collect(),
            truths: (0..most(DType::BOOL)).map(|i| i % 3 == 0).collect(),
        }
    }
}

impl Work for Alone {
    fn request(&self) -> Request<'_> {
        Request { weights: &[], states: &[], plans: &self.plan, choices: None }
    }

    fn source(&self, _: &str) -> &dyn WeightSource {
        unreachable!("a group's plan has no weights")
    }

    fn inputs(&self, plan: &Plan) -> Vec<(BufferId, Data<'_>)> {
        let data = |buffer: &Buffer| {
            let n = buffer.elements();
            match buffer.dtype {
                DType::F32 => Data::F32(&self.numbers[..n]),
                DType::I32 => Data::I32(&self.integers[..n]),
                DType::U8 => Data::U8(&self.bytes[..n]),
                DType::I8 => Data::I8(&self.signed[..n]),
                DType::BOOL => Data::Bool(&self.truths[..n]),
                other => unreachable!("a group that takes {other} is no case"),
            }
        };
        buffers(plan, Class::Mailbox).map(|(id, buffer)| (id, data(buffer))).collect()
    }

    fn check(&self, _: &[f32]) -> Result<(), Failure> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let moved = |buffer: &&Buffer| matches!(buffer.class, Class::Mailbox | Class::Output);
        self.plan[0].buffers.iter().filter(moved).map(Buffer::bytes).sum()
    }

    fn copies(&self, _: usize) -> f64 {
        1.0
    }

    fn slowest(&self) -> f64 {
        SLOWEST
    }
}
