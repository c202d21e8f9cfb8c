//! Sessions: graphs on a device that share states by name. Each is a recorded plan, whose buffers
//! are written and read by name.

use std::collections::HashMap;
use std::path::Path;

use device::{Data, Device, Instance, Prepared, Request};
use plan::graph::Graph;
use plan::{Bucket, Buffer, BufferId, Class, DType, Outputs, Plan, fuse};

/// Tensor plans have no rows of tokens.
const BUCKET: Bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };

/// Reason why a graph cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Graph(#[from] plan::graph::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("no {what} `{name}`; known: {}", .known.join(", "))]
    Unknown { what: &'static str, name: String, known: Vec<String> },
    #[error("`{name}` needs {want} values, got {have}")]
    Length { name: String, want: usize, have: usize },
}

/// An input by name, written by the host before a step.
pub type Input<'a> = (&'a str, Data<'a>);

/// Read-only elements by name; the graphs declare them as weights of one axis.
pub type Weight<'a> = (&'a str, Data<'a>);

/// Options of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionOptions<'a> {
    /// Most bytes of device memory; `None` for all that is free.
    pub memory_limit: Option<u64>,
    /// Tuning store with the kernel parameters to use.
    pub tuned: Option<&'a Path>,
}

/// Graphs on a device, addressed by their index in [`Session::open`].
pub struct Session {
    instance: Box<dyn Instance>,
    entries: Vec<Entry>,
}

/// A plan and its handle in the instance.
struct Entry {
    plan: Plan,
    prepared: Prepared,
    inputs: HashMap<String, BufferId>,
    outputs: HashMap<String, BufferId>,
}

impl Entry {
    fn new(plan: Plan, prepared: Prepared) -> Self {
        let named = |class| {
            let all = (0..).map(BufferId).zip(&plan.buffers);
            let all = all.filter(|(_, buffer)| buffer.class == class);
            all.map(|(id, buffer)| (buffer.name.clone(), id)).collect()
        };
        let (inputs, outputs) = (named(Class::Mailbox), named(Class::Output));
        Self { plan, prepared, inputs, outputs }
    }
}

/// The buffer of that name.
fn find(
    all: &HashMap<String, BufferId>,
    what: &'static str,
    name: &str,
) -> Result<BufferId, Failure> {
    all.get(name).copied().ok_or_else(|| {
        let mut known: Vec<String> = all.keys().cloned().collect();
        known.sort_unstable();
        Failure::Unknown { what, name: name.to_owned(), known }
    })
}

impl Session {
    /// Records the graphs' plans and uploads the weights. States, `F32`, are declared by name and
    /// shape.
    ///
    /// # Errors
    /// A graph is invalid, or the device cannot run it.
    pub fn open<'a>(
        device: &dyn Device,
        weights: &[Weight<'_>],
        states: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        graphs: &[&Graph],
    ) -> Result<Self, Failure> {
        Self::open_with(device, SessionOptions::default(), weights, states, graphs)
    }

    /// Like [`Session::open`], with options.
    ///
    /// # Errors
    /// As for [`Session::open`]; graphs beyond the memory limit are rejected before any memory is
    /// reserved.
    pub fn open_with<'a>(
        device: &dyn Device,
        options: SessionOptions<'_>,
        weights: &[Weight<'_>],
        states: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        graphs: &[&Graph],
    ) -> Result<Self, Failure> {
        let mut plans = Vec::new();
        for graph in graphs {
            plans.push(fuse(&graph.lower(BUCKET)?, device.fusions()));
        }
        let buffer = |class, name: &str, dtype, shape: &[usize]| Buffer {
            name: name.to_owned(),
            class,
            dtype,
            shape: shape.to_vec(),
        };
        let state = |(name, shape)| buffer(Class::State, name, DType::F32, shape);
        let states: Vec<Buffer> = states.into_iter().map(state).collect();
        let weight = |(name, data): &Weight<'_>| {
            buffer(Class::Weight, name, data.dtype(), &[data.elements()])
        };
        let held: Vec<Buffer> = weights.iter().map(weight).collect();
        let request = Request { weights: &held, states: &states, plans: &plans, choices: None };
        if let Some(limit) = options.memory_limit {
            device.footprint(&request)?.fits(limit)?;
        }
        let choices = options.tuned.map(|store| device::remembered(device, &request, store));
        let request = Request { choices: choices.as_ref(), ..request };
        let mut instance = device.open(&request)?;
        for (name, data) in weights {
            let read = |offset: u64, to: &mut [u8]| {
                to.copy_from_slice(&data.bytes()[offset as usize..][..to.len()]);
                Ok(())
            };
            instance.upload(name, &read, &|_| {})?;
        }
        let mut entries = Vec::new();
        for plan in plans {
            let prepared = instance.prepare(&plan)?;
            entries.push(Entry::new(plan, prepared));
        }
        Ok(Self { instance, entries })
    }

    /// The plan of a graph.
    #[must_use]
    pub fn plan(&self, graph: usize) -> &Plan {
        &self.entries[graph].plan
    }

    /// True if a step of a graph reads an input of that name.
    #[must_use]
    pub fn has_input(&self, graph: usize, name: &str) -> bool {
        self.entries[graph].inputs.contains_key(name)
    }

    /// Writes inputs of a graph; they keep their values for later steps.
    ///
    /// # Errors
    /// There is no such input, or it has another number of values.
    pub fn write(&mut self, graph: usize, inputs: &[Input<'_>]) -> Result<(), Failure> {
        let entry = &self.entries[graph];
        for &(name, data) in inputs {
            let id = find(&entry.inputs, "input", name)?;
            let want = entry.plan.buffer(id).elements();
            let have = data.elements();
            if have != want {
                return Err(Failure::Length { name: name.to_owned(), want, have });
            }
            self.instance.write(entry.prepared, id, 0, data)?;
        }
        Ok(())
    }

    /// Runs `steps` steps of a graph as one submission, and waits for it.
    ///
    /// # Errors
    /// The device fails.
    pub fn run(&mut self, graph: usize, steps: u32) -> Result<(), Failure> {
        let ticket = self.instance.submit(self.entries[graph].prepared, steps)?;
        Ok(self.instance.wait(ticket)?)
    }

    /// Ends a running step early from another thread, if the device can. The session is lost then.
    #[must_use]
    pub fn canceller(&self) -> Option<device::Canceller> {
        self.instance.canceller()
    }

    /// Runs a step of a graph and returns the time of each of its parts.
    ///
    /// # Errors
    /// The device fails.
    pub fn profile(&mut self, graph: usize) -> Result<device::Profile, Failure> {
        Ok(self.instance.profile(self.entries[graph].prepared)?)
    }

    /// Reads an output of a graph's last step.
    ///
    /// # Errors
    /// There is no such output.
    pub fn output(&self, graph: usize, name: &str) -> Result<Vec<f32>, Failure> {
        let entry = &self.entries[graph];
        let id = find(&entry.outputs, "output", name)?;
        let mut values = vec![0.0; entry.plan.buffer(id).elements()];
        self.read(graph, name, &mut values)?;
        Ok(values)
    }

    /// Like [`Session::output`], into `values`.
    ///
    /// # Errors
    /// There is no such output, or it has another number of values.
    pub fn read(&self, graph: usize, name: &str, values: &mut [f32]) -> Result<(), Failure> {
        let entry = &self.entries[graph];
        let id = find(&entry.outputs, "output", name)?;
        let (want, have) = (entry.plan.buffer(id).elements(), values.len());
        if want != have {
            return Err(Failure::Length { name: name.to_owned(), want, have });
        }
        Ok(self.instance.read(entry.prepared, id, 0, values)?)
    }
}

/// A graph that loads states from inputs of the same names, or copies them to outputs.
///
/// # Errors
/// A name is declared twice, with different shapes.
pub fn moves<'a>(
    states: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    into: bool,
) -> plan::graph::Result<Graph> {
    let mut g = Graph::new();
    for (name, shape) in states {
        let state = g.source(Class::State, name, DType::F32, shape)?;
        if into {
            let mailbox = g.source(Class::Mailbox, name, DType::F32, shape)?;
            g.assign(state, mailbox)?;
        } else {
            g.output(name, state);
        }
    }
    Ok(g)
}
