//! Memory bandwidth of a GPU, measured through the same interface as models: a product of one row of
//! activations with a large F16 matrix, on an instance of its own. The matrix grows until reading it
//! takes so long that caches can contain almost nothing of it. A simulated GPU, which interprets machine code,
//! uses the first size.

use std::time::{Duration, Instant};

use super::tuning::bench::{Rows, bucket, noise};
use device::{Device, Error, Instance, Prepared, Request};
use plan::graph::{self, Graph};
use plan::quant;
use plan::{Buffer, Class, DType, Plan, fuse};

/// Columns of each matrix: 8 KiB per row.
const COLS: usize = 4096;
/// Number of distinct rows of weights.
const PERIOD: usize = 61;
/// Sizes of the first and the largest matrix, in bytes.
const BYTES: [u64; 2] = [4 << 20, 512 << 20];
/// Ratio of the sizes of consecutive matrices.
const GROWTH: u64 = 4;
/// Inverse of the share of free memory that a matrix may use.
const PART: u64 = 4;
/// Duration below which a reading is fast; a pass repeats readings until it takes this long.
const QUICK: Duration = Duration::from_millis(5);
/// Largest number of readings in a pass.
const MOST_READINGS: u32 = 16;
/// Total duration of the passes.
const LONG: Duration = Duration::from_millis(20);

/// A matrix in the GPU's memory, and the plan that reads it. Dropping it frees the memory.
pub struct GpuBandwidth {
    instance: Box<dyn Instance>,
    prepared: Prepared,
    bytes: u64,
    readings: u32,
    /// Reason for a smaller matrix than intended.
    limit: Option<String>,
}

impl std::fmt::Debug for GpuBandwidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuBandwidth").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl GpuBandwidth {
    /// Opens the measurement; `None` if the device is not a GPU.
    pub fn of(device: &dyn Device, alive: &(dyn Fn() + Sync)) -> Option<Result<Self, Error>> {
        device.gpu_memory()?;
        Some(Self::open(device, alive))
    }

    /// Allocates the largest matrix that fits and is read fast. Calls `alive` many times a second.
    /// [`Error::Unsupported`] for a device without its own memory to read, [`Error::OutOfMemory`] if the
    /// smallest matrix does not fit.
    pub fn open(device: &dyn Device, alive: &(dyn Fn() + Sync)) -> Result<Self, Error> {
        let info = device.info();
        let Some(free) = device.gpu_memory() else {
            return Err(Error::Unsupported { device: info.name, what: "reading as a GPU".into() });
        };
        let [least, most] = BYTES;
        let room = free / PART;
        if room < least {
            let what = format!("a matrix to read, of a quarter of the {free} bytes that are free");
            return Err(Error::OutOfMemory { what, need: least, have: room });
        }
        let mut bandwidth = Self::with(device, least, alive)?;
        loop {
            let took = bandwidth.once()?;
            bandwidth.readings = (QUICK.as_nanos() / took.as_nanos().max(1)) as u32;
            bandwidth.readings = bandwidth.readings.clamp(1, MOST_READINGS);
            let larger = (GROWTH * bandwidth.bytes).min(most);
            if took >= QUICK || larger == bandwidth.bytes {
                return Ok(bandwidth);
            }
            let next = if larger > room {
                Err(Error::OutOfMemory {
                    what: format!("a quarter of the {free} bytes that are free"),
                    need: larger,
                    have: room,
                })
            } else {
                Self::with(device, larger, alive)
            };
            match next {
                Ok(larger) => bandwidth = larger,
                Err(error) => {
                    bandwidth.limit = Some(errors::one_line(&error));
                    return Ok(bandwidth);
                }
            }
        }
    }

    /// Opens a measurement with a matrix of a given size in bytes.
    fn with(device: &dyn Device, bytes: u64, alive: &(dyn Fn() + Sync)) -> Result<Self, Error> {
        let row = (COLS * DType::F16.block_bytes()) as u64;
        let plan = plan((bytes / row) as usize).map_err(|e| Error::Invalid(e.to_string()))?;
        let plan = fuse(&plan, device.fusions());
        let of_weights = plan.buffers.iter().filter(|b| b.class == Class::Weight);
        let weights: Vec<Buffer> = of_weights.cloned().collect();
        let plans = std::slice::from_ref(&plan);
        let request = Request { weights: &weights, states: &[], plans, choices: None };
        let mut instance = device.open(&request)?;
        alive();
        let mut rows = vec![0; PERIOD * row as usize];
        quant::quantise(DType::F16, &noise(1, PERIOD * COLS), &mut rows)
            .map_err(|e| Error::Invalid(e.to_string()))?;
        let source = Rows { bytes: rows, from: 0 };
        for weight in &weights {
            instance.upload(&weight.name, &source, &|_| alive())?;
        }
        let prepared = instance.prepare(&plan)?;
        alive();
        Ok(Self { instance, prepared, bytes, readings: 1, limit: None })
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// Bytes per second of the fastest of a few passes.
    pub fn measure(&mut self) -> Result<f64, Error> {
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        while best.is_infinite() || begin.elapsed() < LONG {
            best = best.min(self.pass(self.readings)?.as_secs_f64() / f64::from(self.readings));
        }
        Ok(self.bytes as f64 / best.max(1e-9))
    }

    /// Duration of one reading. The first wakes the GPU up, and is the only one on a slow device.
    fn once(&mut self) -> Result<Duration, Error> {
        let first = self.pass(1)?;
        Ok(if first < LONG { first.min(self.pass(1)?) } else { first })
    }

    fn pass(&mut self, readings: u32) -> Result<Duration, Error> {
        let begin = Instant::now();
        let ticket = self.instance.submit(self.prepared, readings)?;
        self.instance.wait(ticket)?;
        Ok(begin.elapsed())
    }
}

/// Plan of a product of one row with a matrix of `rows` rows.
fn plan(rows: usize) -> Result<Plan, graph::Error> {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[1, COLS])?;
    let w = g.source(Class::Weight, "w", DType::F16, &[rows, COLS])?;
    let y = g.matmul(x, w)?;
    g.output("y", y);
    g.lower(bucket(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;
    use device::tune::Choices;
    use device::{Data, Footprint, Info, Part, Profile, Ticket, Tunable, WeightSource};
    use plan::{BufferId, Fusions};

    const MIB: u64 = 1 << 20;

    /// A GPU with a fixed duration of a reading and a largest instance.
    #[derive(Clone)]
    struct Fake {
        free: u64,
        most: u64,
        takes: Duration,
        /// Bytes of weights, shared with each instance.
        uploaded: Arc<AtomicU64>,
    }

    impl Fake {
        fn new(free: u64, most: u64, takes: Duration) -> Self {
            Self { free, most, takes, uploaded: Arc::default() }
        }

        fn instances(&self) -> usize {
            Arc::strong_count(&self.uploaded) - 1
        }
    }

    impl Device for Fake {
        fn info(&self) -> Info {
            Info { name: "fake", description: "a fake".into(), threads: 0 }
        }

        fn fusions(&self) -> Fusions {
            Fusions::ALL
        }

        fn footprint(&self, _: &Request<'_>) -> Result<Footprint, Error> {
            Ok(Footprint::default())
        }

        fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>, Error> {
            let [weight] = request.weights else { panic!("{request:?}") };
            let weights = weight.bytes();
            Footprint { weights, ..Footprint::default() }.fits(self.most)?;
            Ok(Box::new(Opened { weights, gpu: self.clone() }))
        }

        fn gpu_memory(&self) -> Option<u64> {
            Some(self.free)
        }

        fn tunable(&self) -> Option<&dyn Tunable> {
            None
        }
    }

    struct Opened {
        weights: u64,
        gpu: Fake,
    }

    impl Instance for Opened {
        fn footprint(&self) -> Footprint {
            Footprint::default()
        }

        fn upload(
            &mut self,
            _: &str,
            source: &dyn WeightSource,
            progress: &(dyn Fn(u64) + Sync),
        ) -> Result<(), Error> {
            // Crosses the end of the distinct rows.
            let mut bytes = vec![0; 3 * PERIOD * COLS];
            source.read_at(self.weights - bytes.len() as u64, &mut bytes).unwrap();
            assert!(bytes.iter().filter(|byte| **byte == 0).count() < bytes.len() / 8);
            self.gpu.uploaded.store(self.weights, Ordering::Relaxed);
            progress(self.weights);
            Ok(())
        }

        fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
            assert_eq!(plan.steps.len(), 1, "{plan:?}");
            assert_eq!(plan.cost().weight_bytes, self.weights);
            Ok(Prepared(0))
        }

        fn prepare_as(&mut self, _: &Plan, _: &Choices) -> Result<Prepared, Error> {
            unreachable!("nothing is chosen")
        }

        fn copy_part(&mut self, _: Part, _: Part) -> Result<(), Error> {
            unreachable!("nothing is copied")
        }

        fn write(&mut self, _: Prepared, _: BufferId, _: usize, _: Data<'_>) -> Result<(), Error> {
            unreachable!("nothing is written")
        }

        fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
            Ok(Ticket { prepared, sequence: 1, first: 0, steps })
        }

        fn profile(&mut self, _: Prepared) -> Result<Profile, Error> {
            unreachable!("nothing is profiled")
        }

        fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
            std::thread::sleep(self.gpu.takes * ticket.steps);
            Ok(())
        }

        fn tokens(&self, _: Ticket, _: u32, _: &mut [i32]) -> Result<(), Error> {
            unreachable!("nothing is sampled")
        }

        fn read(&self, _: Prepared, _: BufferId, _: usize, _: &mut [f32]) -> Result<(), Error> {
            unreachable!("nothing is read back")
        }
    }

    #[test]
    fn a_fast_gpu_reads_the_largest_matrix_and_a_slow_one_the_first() {
        for (takes, bytes) in [(Duration::ZERO, 512 * MIB), (QUICK, 4 * MIB)] {
            let fake = Fake::new(8 << 30, u64::MAX, takes);
            let calls = AtomicU32::new(0);
            let count = || {
                calls.fetch_add(1, Ordering::Relaxed);
            };
            let mut bandwidth = GpuBandwidth::open(&fake, &count).unwrap();
            assert_eq!((bandwidth.bytes(), bandwidth.limit()), (bytes, None));
            assert!(calls.into_inner() >= 3);
            assert_eq!(fake.uploaded.load(Ordering::Relaxed), bytes);
            assert_eq!(fake.instances(), 1);
            // A reading lasts at least as long as the GPU sleeps.
            let most = bytes as f64 / takes.as_secs_f64();
            let speed = bandwidth.measure().unwrap();
            assert!(speed > 0.0 && speed <= most, "{speed}");
            drop(bandwidth);
            assert_eq!(fake.instances(), 0);
        }
    }

    #[test]
    fn without_room_the_matrix_is_smaller_and_the_reason_is_reported() {
        // Limited by a quarter of the free memory, and by the size limit of the device.
        for (free, most, why) in [
            (256 * MIB, u64::MAX, "a quarter of the 268435456 bytes that are free"),
            (8 << 30, 100 * MIB, "weights 268435456 + KV cache 0"),
        ] {
            let fake = Fake::new(free, most, Duration::ZERO);
            let bandwidth = GpuBandwidth::open(&fake, &|| {}).unwrap();
            assert_eq!(bandwidth.bytes(), 64 * MIB);
            let limit = bandwidth.limit().unwrap();
            assert!(limit.contains(why) && !limit.contains('\n'), "{limit}");
            assert_eq!(fake.instances(), 1);
        }
        for (free, most) in [(15 * MIB, u64::MAX), (0, u64::MAX), (8 << 30, MIB)] {
            let fake = Fake::new(free, most, Duration::ZERO);
            let error = GpuBandwidth::open(&fake, &|| {}).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
            assert_eq!(fake.instances(), 0);
        }
    }
}
