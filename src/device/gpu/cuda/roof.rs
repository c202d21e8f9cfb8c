//! How fast the GPU's memory is: what kernels are held against.

use std::sync::Arc;

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::elements_grid;
use orind_kernels::params::{Parameters as _, RowsParams};

use super::Cuda;
use super::code::Code;
use super::driver::{Call, Kind};
use super::fault::Fault;
use super::gpu::{Memory, Owned};
use crate::device::Error;

/// Elements of a row, and rows: 256 MiB an operand, beyond any cache.
const SHAPE: (u32, u32) = (1 << 14, 1 << 12);
/// Repetitions; the fastest counts.
const TIMES: usize = 8;

impl Cuda {
    /// Bytes per second that a sum of two large vectors moves: two read, one written.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without 768 MiB, [`Error::Lost`].
    pub fn bandwidth(&self) -> Result<f64, Error> {
        let bytes = 4 * u64::from(SHAPE.0) * u64::from(SHAPE.1);
        let operand = || Memory::new(&self.gpu, Kind::Device, bytes);
        let (a, b, out) = (operand()?, operand()?, operand()?);
        let mut code = Code::new(&self.gpu);
        let function = code.function(Kernel::Add, 0)?;
        let params = RowsParams {
            a: a.address(),
            b: b.address(),
            out: out.address(),
            n: SHAPE.0,
            rows: SHAPE.1,
            ..RowsParams::default()
        };
        let call = Call {
            function,
            grid: elements_grid(SHAPE.0, SHAPE.1),
            threads: Kernel::Add.threads(),
            shared_bytes: 0,
            params: params.as_bytes(),
        };
        let gpu = Arc::clone(&self.gpu);
        let measure = || -> Result<f64, Fault> {
            let driver = gpu.enter()?;
            let stream = Owned::new(&gpu, |driver| driver.create_stream())?;
            let event = || Owned::new(&gpu, |driver| driver.create_event(true));
            let (before, after) = (event()?, event()?);
            let mut best = f32::INFINITY;
            for memory in [&a, &b] {
                driver.clear(memory.address(), bytes, stream.get())?;
            }
            for _ in 0..TIMES {
                driver.record(before.get(), stream.get())?;
                // SAFETY: the kernel's own parameters, over three operands of this size.
                unsafe { driver.launch(&call, stream.get())? };
                driver.record(after.get(), stream.get())?;
                driver.wait(after.get())?;
                best = best.min(driver.elapsed(before.get(), after.get())?);
            }
            Ok(3.0 * bytes as f64 / (f64::from(best) * 1e-3))
        };
        measure().map_err(Fault::at_the_seam)
    }
}
