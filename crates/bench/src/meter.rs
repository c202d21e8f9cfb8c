//! Measures the read bandwidth of the memory that contains the weights, by CPU threads or by a GPU:
//! before, between and after the tests. The best measurement counts.

use super::report::{Roof, Stream as Reading};
use super::roof::Bandwidth;
use super::spec::Error;
use device::Device;
use engine::ModelRunner;
use telemetry::memory;

/// Reader and its measurements so far.
pub struct Meter(Reader);

enum Reader {
    Cpu(Bandwidth),
    Gpu(Gpu),
}

/// GPU reader and its measurements.
struct Gpu {
    stream: Option<engine::GpuBandwidth>,
    /// Reason why there is no matrix, or a smaller one than usual.
    limit: Option<String>,
    bytes: u64,
    /// Increase of the process's resident memory: the size of the matrix if the GPU shares the
    /// machine's memory.
    resident: u64,
    /// Bytes per second of each measurement.
    history: Vec<f64>,
}

impl Meter {
    /// Allocates the memory to read. A GPU without room for it is not an error; then there is no
    /// roof.
    pub(super) fn new(core: &ModelRunner) -> Result<Self, Error> {
        Self::with(core.threads(), || core.bandwidth())
    }

    /// Creates a meter for a device without a model. `alive` is called while memory is filled.
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

    /// Measures once. A failure on a GPU is not retried.
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

    /// Resident bytes of this process that are used for measuring.
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
    fn an_unmeasurable_gpu_has_no_roof_but_a_reason() {
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
        // A released matrix is no longer resident.
        assert_eq!(meter.resident(), 0);

        // A GPU that was lost between measurements.
        let roof = Meter(Reader::Gpu(gpu(vec![2e9, 3e9, 1e9]))).roof();
        assert_eq!((roof.bytes_per_second, roof.lowest, roof.measurements), (3e9, 1e9, 3));
        assert_eq!(roof.stream, "read by the GPU: F16 matrix of 64 MiB");
        assert_eq!(roof.streams[0].bytes_per_second, 3e9);
    }
}
