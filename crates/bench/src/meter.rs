//! Who reads the memory that holds the weights, and how fast: a device's threads, or a GPU. Measured before,
//! between and after the tests; the best counts.

use super::report::{Roof, Stream as Reading};
use super::roof::Bandwidth;
use super::spec::Error;
use device::Device;
use engine::ModelRunner;
use telemetry::memory;

/// What reads, and what was measured so far.
pub struct Meter(Reader);

enum Reader {
    Cpu(Bandwidth),
    Gpu(Gpu),
}

/// What a GPU reads with, and what it read.
struct Gpu {
    stream: Option<engine::GpuBandwidth>,
    /// Why there is none, or a smaller one than usual.
    limit: Option<String>,
    bytes: u64,
    /// What it added to the process's resident memory: where the GPU's memory is the machine's, the matrix.
    resident: u64,
    /// Bytes per second of each measurement.
    history: Vec<f64>,
}

impl Meter {
    /// Reserves what is read. That a GPU has no room for it is no error: there is no roof then.
    pub(super) fn new(core: &ModelRunner) -> Result<Self, Error> {
        Self::with(core.threads(), || core.bandwidth())
    }

    /// The same for a device that nobody has loaded a model on. `alive` is called while memory is filled.
    pub fn of_device(device: &dyn Device, alive: &(dyn Fn() + Sync)) -> Result<Self, Error> {
        Self::with(device.info().threads, || engine::GpuBandwidth::of(device, alive))
    }

    fn with(
        threads: usize,
        stream: impl FnOnce() -> Option<Result<engine::GpuBandwidth, device::Error>>,
    ) -> Result<Self, Error> {
        let resident = || memory::resident().unwrap_or(0);
        let before = resident();
        let Some(opened) = stream() else {
            return Ok(Self(Reader::Cpu(Bandwidth::new(threads)?)));
        };
        let gpu = match opened {
            Ok(stream) => Gpu {
                limit: stream.limit().map(str::to_owned),
                bytes: stream.bytes(),
                resident: resident().saturating_sub(before),
                history: Vec::new(),
                stream: Some(stream),
            },
            Err(error) => Gpu {
                stream: None,
                limit: Some(errors::one_line(&error)),
                bytes: 0,
                resident: 0,
                history: Vec::new(),
            },
        };
        Ok(Self(Reader::Gpu(gpu)))
    }

    /// Measures once. What fails on a GPU is not tried again.
    pub fn measure(&mut self) {
        match &mut self.0 {
            Reader::Cpu(bandwidth) => {
                bandwidth.measure();
            }
            Reader::Gpu(gpu) => match gpu.stream.as_mut().map(engine::GpuBandwidth::measure) {
                Some(Ok(speed)) => gpu.history.push(speed),
                Some(Err(error)) => {
                    gpu.limit = Some(errors::one_line(&error));
                    gpu.stream = None;
                }
                None => {}
            },
        }
    }

    /// Bytes of the process's resident memory that are for measuring.
    pub(super) fn resident(&self) -> u64 {
        match &self.0 {
            Reader::Cpu(bandwidth) => bandwidth.bytes(),
            Reader::Gpu(gpu) if gpu.stream.is_some() => gpu.resident,
            Reader::Gpu(_) => 0,
        }
    }

    pub(super) const fn is_gpu(&self) -> bool {
        matches!(self.0, Reader::Gpu(_))
    }

    pub fn roof(&self) -> Roof {
        match &self.0 {
            Reader::Cpu(bandwidth) => bandwidth.roof(),
            Reader::Gpu(gpu) => gpu.roof(),
        }
    }
}

impl Gpu {
    fn roof(&self) -> Roof {
        let best = self.history.iter().copied().fold(0.0, f64::max);
        let stream = format!("read by the GPU: F16 matrix of {} MiB", self.bytes >> 20);
        let read = Reading { name: stream.clone(), bytes_per_second: best };
        let measured = !self.history.is_empty();
        Roof {
            stream: if measured { stream } else { String::new() },
            bytes_per_second: best,
            lowest: self.history.iter().copied().reduce(f64::min).unwrap_or(0.0),
            bytes: self.bytes,
            threads: 0,
            measurements: u32::try_from(self.history.len()).unwrap_or(u32::MAX),
            streams: if measured { vec![read] } else { Vec::new() },
            limit: self.limit.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_could_not_be_measured_leaves_no_roof_and_says_why() {
        let gpu = |history: Vec<f64>| Gpu {
            stream: None,
            limit: Some("no room".into()),
            bytes: 64 << 20,
            resident: 7,
            history,
        };
        let mut meter = Meter(Reader::Gpu(gpu(Vec::new())));
        meter.measure();
        let roof = meter.roof();
        assert_eq!((roof.bytes_per_second, roof.lowest, roof.measurements), (0.0, 0.0, 0));
        assert_eq!((roof.stream.as_str(), roof.limit.as_deref()), ("", Some("no room")));
        // What is gone is not in memory any more.
        assert_eq!(meter.resident(), 0);

        // One that was lost in between.
        let roof = Meter(Reader::Gpu(gpu(vec![2e9, 3e9, 1e9]))).roof();
        assert_eq!((roof.bytes_per_second, roof.lowest, roof.measurements), (3e9, 1e9, 3));
        assert_eq!(roof.stream, "read by the GPU: F16 matrix of 64 MiB");
        assert_eq!(roof.streams[0].bytes_per_second, 3e9);
    }
}
