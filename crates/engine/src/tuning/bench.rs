//! Benchmark of one tuning case on a device, through the interface of models: a matmul, or a fused group of
//! tensor operations.
//!
//! Several copies of the weights are read in turn, so that they are read from memory, not from caches, as during
//! decoding. A sample reads a quarter of the copies. Choices with another weight layout have copies of their own.
//! Every output is compared with results computed here, and bit for bit with the output of the previous choice.

mod alone;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use self::alone::Alone;
use super::pace::{Pace, Stopped};
use device::tune::beam::{Bench, Failure};
use device::tune::{Case, Choice, Choices, Clock, Scope, Space};
use device::{Data, Device, Error, Instance, Prepared, Request, Tunable, WeightSource};
use plan::graph::{self, Graph};
use plan::quant;
use plan::sample::philox;
use plan::{Activation, Bucket, Buffer, BufferId, Class, DType, Fusions, Outputs, Plan, fuse};

/// Number of distinct rows of weights: a prime, so that reading a wrong row shows.
const PERIOD: usize = 61;

/// Offset in rows of the second matrix of a gate.
const SHIFT: usize = 7;

/// Number of parts that the copies are executed in.
const PARTS: usize = 4;

/// Number of rows of activations above which a matmul is bound by compute: one copy suffices.
const FEW_ROWS: u32 = 16;

/// Number of rows of results that are verified.
const CHECKED: usize = 3;

/// Bytes of mailboxes and outputs after which the instance is reopened.
const MOST_PREPARED: u64 = 256 << 20;

/// Largest number of open instances: that of the best choice so far, and that of the candidate.
const MOST_OPENED: usize = 2;

/// Lower limit of the read speed of a GPU in bytes per second. A slower result indicates a simulator or a
/// sleeping machine.
const LEAST_GPU_SPEED: f64 = 0.5e9;

/// Smallest size in bytes that the limit applies to.
const LEAST_BYTES: u32 = 128 << 10;

/// Clock of samples.
pub trait Stopwatch {
    fn start(&mut self);

    /// Stops the clock: nanoseconds, or a count.
    fn stop(&mut self) -> Result<f64, String>;

    fn clock(&self) -> Clock;
}

#[derive(Debug, Default)]
pub struct WallClock(Option<Instant>);

impl Stopwatch for WallClock {
    fn start(&mut self) {
        self.0 = Some(Instant::now());
    }

    fn stop(&mut self) -> Result<f64, String> {
        let begin = self.0.take().ok_or("the clock was not started")?;
        Ok((begin.elapsed().as_nanos() as f64).max(1.0))
    }

    fn clock(&self) -> Clock {
        Clock::Measured
    }
}

pub struct CaseBench<'a> {
    device: &'a dyn Device,
    tunable: &'a dyn Tunable,
    pace: &'a Pace,
    watch: &'a mut dyn Stopwatch,
    case: Case,
    work: Box<dyn Work>,
    /// Parameters that determine the layout of weights.
    layout: Vec<&'static str>,
    /// Instances by the values of these parameters, the latest one last.
    opened: Vec<(Choice, Opened)>,
    /// True if the latest instance has changed: its threads are asleep.
    changed: bool,
    next: usize,
    /// Costs of choices, if they are counted.
    counts: HashMap<Choice, f64>,
    /// Bits of the results of the first choice.
    bits: Option<Vec<u32>>,
}

/// An instance with weights and prepared plans.
struct Opened {
    instance: Box<dyn Instance>,
    prepared: HashMap<Choice, Vec<Prepared>>,
    bytes: u64,
}

impl<'a> CaseBench<'a> {
    /// Creates the benchmark of a case, with at least `cold` bytes of weights if few rows share them. A fused
    /// group requires its plan. [`Failure::Broken`] if no plan of the device has the case.
    pub fn new(
        device: &'a dyn Device,
        case: &Case,
        group: Option<&Plan>,
        space: &Space,
        cold: u64,
        pace: &'a Pace,
        watch: &'a mut dyn Stopwatch,
    ) -> Result<Self, Failure> {
        let Some(tunable) = device.tunable() else {
            return Err(Failure::Broken(format!("{} has nothing to tune", device.info().name)));
        };
        let (work, found): (_, Vec<Case>) = match group {
            Some(plan) => {
                let work: Box<dyn Work> = Box::new(Alone::new(plan));
                let found = tunable.groups(&work.request()).map_err(|e| broken(&e))?;
                (work, found.into_keys().collect())
            }
            None => {
                let work: Box<dyn Work> = Box::new(Product::new(case, device.fusions(), cold)?);
                let found = tunable.cases(&work.request()).map_err(|e| broken(&e))?;
                (work, found)
            }
        };
        if found.is_empty() || found.iter().any(|found| found != case) {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            return Err(Failure::Broken(format!("{case} became {}", found.join(", "))));
        }
        let of = |scope| space.parameters.iter().filter(move |p| p.scope == scope).map(|p| p.name);
        Ok(Self {
            device,
            tunable,
            pace,
            watch,
            case: case.clone(),
            work,
            layout: of(Scope::Layout).collect(),
            opened: Vec::new(),
            changed: false,
            next: 0,
            counts: HashMap::new(),
            bits: None,
        })
    }

    /// Bytes that one execution of the case moves; for a matmul those of its weights.
    pub fn bytes(&self) -> u64 {
        self.work.bytes()
    }

    pub fn clock(&self) -> Clock {
        self.watch.clock()
    }

    /// Prepares the plans of a choice; their instance becomes the latest one.
    fn ready(&mut self, choice: &Choice) -> Result<Vec<Prepared>, Failure> {
        let value = |name: &&str| Some(((*name).to_owned(), *choice.get(*name)?));
        let layout: Choice = self.layout.iter().filter_map(value).collect();
        self.changed = self.opened.last().is_none_or(|(last, _)| *last != layout);
        if let Some(at) = self.opened.iter().position(|(other, _)| *other == layout) {
            let opened = self.opened.remove(at);
            if let Some(prepared) = opened.1.prepared.get(choice).cloned() {
                self.opened.push(opened);
                return Ok(prepared);
            }
            if opened.1.bytes + prepared_bytes(&*self.work) <= MOST_PREPARED {
                self.opened.push(opened);
            }
        }
        let (tunable, case) = (self.tunable, &self.case);
        let wanted = || {
            self.pace.alive();
            !self.pace.is_stopped()
        };
        let compiled = self.pace.aside(|| tunable.compile(case, choice, &wanted))?;
        compiled
            .map_err(|e| if self.pace.is_stopped() { Failure::Stopped } else { rejected(&e) })?;
        let choices: Choices = [(case.clone(), choice.clone())].into_iter().collect();
        if self.opened.last().is_none_or(|(last, _)| *last != layout) {
            if self.opened.len() == MOST_OPENED {
                self.opened.remove(0);
            }
            let opened = match self.open(&choices) {
                Err(Failure::Broken(_)) if !self.opened.is_empty() => {
                    // One instance may fit.
                    self.opened.clear();
                    self.open(&choices)
                }
                opened => opened,
            };
            self.opened.push((layout, opened?));
        }
        let opened = last(&mut self.opened);
        let mut all = Vec::new();
        for plan in self.work.request().plans {
            let instance = &mut opened.instance;
            let made = self.pace.turn(|| {
                let prepared = instance.prepare_as(plan, &choices)?;
                for (buffer, data) in self.work.inputs(plan) {
                    instance.write(prepared, buffer, 0, data)?;
                }
                Ok::<_, Error>(prepared)
            });
            all.push(made?.map_err(|e| rejected(&e))?);
        }
        opened.bytes += prepared_bytes(&*self.work);
        opened.prepared.insert(choice.clone(), all.clone());
        Ok(all)
    }

    /// Opens an instance with the weight layout of the choices.
    fn open(&self, choices: &Choices) -> Result<Opened, Failure> {
        let request = Request { choices: Some(choices), ..self.work.request() };
        let device = self.device;
        let mut instance = self.pace.turn(|| device.open(&request))?.map_err(|e| broken(&e))?;
        for weight in request.weights {
            let upload = || instance.upload(&weight.name, self.work.source(&weight.name), &|_| {});
            self.pace.turn(upload)?.map_err(|e| broken(&e))?;
        }
        Ok(Opened { instance, prepared: HashMap::new(), bytes: 0 })
    }

    /// Executes a part once on the latest instance.
    fn run(&mut self, prepared: Prepared, timed: bool) -> Result<f64, Failure> {
        let opened = last(&mut self.opened);
        let watch = &mut *self.watch;
        let ran = self.pace.turn(|| {
            if timed {
                watch.start();
            }
            let ticket = opened.instance.submit(prepared, 1)?;
            opened.instance.wait(ticket)?;
            Ok::<_, Error>(if timed { watch.stop() } else { Ok(0.0) })
        })?;
        match ran {
            Ok(sample) => sample.map_err(Failure::Broken),
            Err(error) => {
                // The next candidate opens a new instance.
                self.opened.pop();
                Err(rejected(&error))
            }
        }
    }
}

impl Bench for CaseBench<'_> {
    fn check(&mut self, choice: &Choice) -> Result<(), Failure> {
        let parts = self.ready(choice)?;
        let mut bits = Vec::new();
        for (part, prepared) in parts.into_iter().enumerate() {
            self.run(prepared, false)?;
            let opened = last(&mut self.opened);
            for (output, buffer) in buffers(&self.work.request().plans[part], Class::Output) {
                let mut got = vec![0.0; buffer.elements()];
                let read = || opened.instance.read(prepared, output, 0, &mut got);
                self.pace.turn(read)?.map_err(|e| rejected(&e))?;
                self.work.check(&got)?;
                bits.extend(got.iter().map(|value| value.to_bits()));
            }
        }
        let expected = self.bits.get_or_insert_with(|| bits.clone());
        if *expected != bits {
            let why = "its bits are not those of the first choice that was checked";
            return Err(Failure::Rejected(why.into()));
        }
        Ok(())
    }

    fn time(&mut self, choice: &Choice) -> Result<f64, Failure> {
        // Counts are deterministic.
        if let Some(&count) = self.counts.get(choice) {
            return Ok(count);
        }
        let parts = self.ready(choice)?;
        let part = self.next % parts.len();
        self.next += 1;
        let copies = self.work.copies(part);
        if self.changed {
            self.run(parts[self.next % parts.len()], false)?;
        }
        let sample = self.run(parts[part], true)? / copies;
        if self.watch.clock() == Clock::Counted {
            self.counts.insert(choice.clone(), sample);
        }
        let speed = self.work.bytes() as f64 / sample * 1e9;
        // Less data is dominated by the launch.
        let enough = self.work.bytes() as f64 * copies >= f64::from(LEAST_BYTES);
        let gpu = enough && self.device.info().threads == 0;
        if self.watch.clock() == Clock::Measured && gpu && speed < self.work.slowest() {
            return Err(Failure::Broken(format!(
                "{} took {:.0} us, which is {:.3} GB/s: no GPU is as slow, so this is no measurement (a simulated one counts: `--counted`)",
                self.case,
                sample / 1e3,
                speed / 1e9
            )));
        }
        Ok(sample)
    }

    fn hurry(&self) -> bool {
        self.pace.is_share_spent()
    }
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

/// Latest instance.
fn last(opened: &mut [(Choice, Opened)]) -> &mut Opened {
    let Some((_, opened)) = opened.last_mut() else {
        unreachable!("a choice is made ready before it is run");
    };
    opened
}

fn broken(error: &Error) -> Failure {
    Failure::Broken(errors::one_line(error))
}

fn rejected(error: &Error) -> Failure {
    Failure::Rejected(errors::one_line(error))
}

/// Work of a case: its plans, weights and inputs.
trait Work {
    fn request(&self) -> Request<'_>;

    /// Source of the bytes of a weight.
    fn source(&self, weight: &str) -> &dyn WeightSource;

    fn inputs(&self, plan: &Plan) -> Vec<(BufferId, Data<'_>)>;

    /// Compares one output with results computed here.
    fn check(&self, got: &[f32]) -> Result<(), Failure>;

    /// Bytes that one copy moves.
    fn bytes(&self) -> u64;

    /// Number of copies of a plan.
    fn copies(&self, part: usize) -> f64;

    /// Bytes per second that every GPU exceeds.
    fn slowest(&self) -> f64;
}

/// Bytes that a prepared choice occupies.
fn prepared_bytes(work: &dyn Work) -> u64 {
    let own = |b: &&Buffer| matches!(b.class, Class::Mailbox | Class::Output);
    work.request().plans.iter().flat_map(|p| p.buffers.iter().filter(own)).map(Buffer::bytes).sum()
}

/// Bytes of repeating rows of weights, from an offset: of any tensor with this many columns.
pub(crate) struct Rows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: usize,
}

impl WeightSource for Rows {
    fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut at = usize::try_from((offset + self.from as u64) % self.bytes.len() as u64)?;
        let mut buf = buf;
        while !buf.is_empty() {
            let n = buf.len().min(self.bytes.len() - at);
            let (now, rest) = std::mem::take(&mut buf).split_at_mut(n);
            now.copy_from_slice(&self.bytes[at..at + n]);
            buf = rest;
            at = 0;
        }
        Ok(())
    }
}

/// A matmul case: its plans, inputs and expected results.
struct Product {
    case: Case,
    plans: Vec<Plan>,
    x: Vec<f32>,
    /// First, last and one middle row of activations.
    checked: [i32; CHECKED],
    weights: Vec<Buffer>,
    /// Rows of the weights: those of gates and other matrices, and those of matrices multiplied with a gate.
    rows: [Rows; 2],
    /// Bytes of weights of one copy.
    bytes: u64,
    width: usize,
    /// Expected result and tolerance for each checked row of activations and each distinct row of weights.
    expected: Vec<Vec<(f64, f64)>>,
}

impl Product {
    fn new(case: &Case, fusions: Fusions, cold: u64) -> Result<Self, Failure> {
        let [rows, cols, batch] = [case.rows, case.cols, case.batch].map(|n| n as usize);
        let gate = case.family == "gate";
        let width = if gate { rows / 2 } else { rows };
        if gate && !rows.is_multiple_of(2)
            || width == 0
            || !cols.is_multiple_of(case.dtype.block_len())
        {
            return Err(Failure::Broken(format!("{case}: no such matrix")));
        }
        let row_bytes = cols / case.dtype.block_len() * case.dtype.block_bytes();
        let bytes = (rows * row_bytes) as u64;
        let copies =
            if case.batch > FEW_ROWS { 1 } else { cold.div_ceil(bytes).clamp(1, 256) as usize };
        let parts = copies.min(PARTS);
        let mut product = Self {
            case: case.clone(),
            plans: Vec::new(),
            x: noise(2, batch * cols),
            checked: [0, case.batch / 2, case.batch - 1].map(|row| row as i32),
            weights: Vec::new(),
            rows: [0, SHIFT].map(|rows| Rows { bytes: Vec::new(), from: rows * row_bytes }),
            bytes,
            width,
            expected: Vec::new(),
        };
        let numbers = noise(1, PERIOD * cols);
        let failed = |e: quant::Error| Failure::Broken(e.to_string());
        let mut stored = vec![0; PERIOD * row_bytes];
        quant::quantise(case.dtype, &numbers, &mut stored).map_err(failed)?;
        product.rows[1].bytes.clone_from(&stored);
        product.rows[0].bytes = stored;
        product.expect(cols)?;
        let each = copies.div_ceil(parts);
        for part in 0..parts {
            let mut g = Graph::new();
            let plan = product
                .draw(&mut g, part * each..(part + 1) * each, cols)
                .and_then(|()| g.lower(bucket(batch)))
                .map_err(|e| Failure::Broken(e.to_string()))?;
            let plan = fuse(&plan, fusions);
            product.weights.extend(buffers(&plan, Class::Weight).map(|(_, weight)| weight.clone()));
            product.plans.push(plan);
        }
        Ok(product)
    }

    /// Plan of matmuls with these copies of a matrix of `cols` columns.
    fn draw(&self, g: &mut Graph, copies: Range<usize>, cols: usize) -> Result<(), graph::Error> {
        let (width, batch) = (self.width, self.case.batch as usize);
        let fine = self.case.family == "project_fine";
        for copy in copies {
            let x = g.source(Class::Mailbox, &format!("x{copy}"), DType::F32, &[batch, cols])?;
            let mut matrix = |name: &str| {
                g.source(Class::Weight, &format!("{name}{copy}"), self.case.dtype, &[width, cols])
            };
            let y = if self.case.family == "gate" {
                let (gate, up) = (matrix("gate")?, matrix("up")?);
                let (gate, up) = (g.matmul(x, gate)?, g.matmul(x, up)?);
                g.glu(Activation::Silu, gate, up)?
            } else {
                let w = matrix("w")?;
                g.matmul(x, w)?
            };
            // Outputs of a plan are computed in two planes of activations; everything else is written to
            // scratch.
            let y = if fine {
                y
            } else {
                let rows =
                    g.source(Class::Mailbox, &format!("rows{copy}"), DType::I32, &[CHECKED])?;
                g.gather(y, &[rows])?
            };
            g.output(format!("y{copy}"), y);
        }
        Ok(())
    }

    /// Products of the stored rows in `f64`.
    fn expect(&mut self, cols: usize) -> Result<(), Failure> {
        let mut values = vec![0.0; PERIOD * cols];
        quant::dequantise(self.case.dtype, &self.rows[0].bytes, &mut values)
            .map_err(|e| Failure::Broken(e.to_string()))?;
        let norm = |v: &[f32]| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let gate = self.case.family == "gate";
        for row in self.checked {
            let x = &self.x[row as usize * cols..][..cols];
            let of = |w: &[f32]| {
                let y: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                // Activations of 8 bits: ten times the root mean square of their error, which is 25 times
                // less than the typical difference to the product of another row.
                (y, 0.04 / (cols as f64).sqrt() * norm(w) * norm(x) + 1e-6)
            };
            let mut products: Vec<(f64, f64)> = values.chunks_exact(cols).map(of).collect();
            if gate {
                let mut up = products.clone();
                up.rotate_left(SHIFT);
                for (gate, (up, off)) in products.iter_mut().zip(up) {
                    let silu = gate.0 / (1.0 + (-gate.0).exp());
                    // The slope of SiLU never exceeds 1.1.
                    let error = 1.1 * gate.1 * up.abs() + silu.abs() * off + 1.1 * gate.1 * off;
                    *gate = (silu * up, error + 1e-6);
                }
            }
            self.expected.push(products);
        }
        Ok(())
    }
}

impl Work for Product {
    fn request(&self) -> Request<'_> {
        Request { weights: &self.weights, states: &[], plans: &self.plans, choices: None }
    }

    fn source(&self, weight: &str) -> &dyn WeightSource {
        &self.rows[matches!(weight.as_bytes(), [b'u', ..]) as usize]
    }

    fn inputs(&self, plan: &Plan) -> Vec<(BufferId, Data<'_>)> {
        let data = |buffer: &Buffer| match buffer.dtype {
            DType::F32 => Data::F32(&self.x),
            _ => Data::I32(&self.checked),
        };
        buffers(plan, Class::Mailbox).map(|(id, buffer)| (id, data(buffer))).collect()
    }

    fn check(&self, got: &[f32]) -> Result<(), Failure> {
        let rows = got.len() / self.width;
        for (row, got) in got.chunks_exact(self.width).enumerate() {
            // A plan outputs the checked rows, or all rows including them.
            let which = if rows == CHECKED && self.case.family != "project_fine" {
                Some(row)
            } else {
                self.checked.iter().position(|&checked| checked as usize == row)
            };
            let Some(expected) = which.map(|which| &self.expected[which]) else { continue };
            for (column, &got) in got.iter().enumerate() {
                let (want, error) = expected[column % PERIOD];
                let off = (f64::from(got) - want).abs();
                if off.is_nan() || off > error {
                    let column = format!("row {row}, column {column}");
                    return Err(Failure::Rejected(format!("{column} is {got}, not {want:.6}")));
                }
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn copies(&self, part: usize) -> f64 {
        buffers(&self.plans[part], Class::Output).count() as f64
    }

    fn slowest(&self) -> f64 {
        LEAST_GPU_SPEED
    }
}

/// Buffers of a plan by class.
fn buffers(plan: &Plan, class: Class) -> impl Iterator<Item = (BufferId, &Buffer)> {
    let all = plan.buffers.iter().enumerate().map(|(at, buffer)| (BufferId(at as u32), buffer));
    all.filter(move |(_, buffer)| buffer.class == class)
}

/// Bucket of a step without logits.
pub(crate) const fn bucket(batch: usize) -> Bucket {
    Bucket { batch, chunk: 1, context: 1, outputs: Outputs::None }
}

/// Returns `n` values from -1 to 1, determined by the seed.
pub(crate) fn noise(seed: u64, n: usize) -> Vec<f32> {
    let word = |i: usize| philox([(i / 4) as u32, 0, 0, 0], seed)[i % 4];
    (0..n).map(|i| (f64::from(word(i)) / f64::from(u32::MAX) * 2.0 - 1.0) as f32).collect()
}
