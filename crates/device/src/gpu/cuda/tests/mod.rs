//! CUDA backend over a fake libcuda that executes kernels from their machine code. Results are
//! compared with the CPU device.

use std::sync::Arc;

mod fake;

use super::weights::Weights;
use super::*;
use crate::cpu::Cpu;
use crate::modes::{Mode, Note, Stage};
use crate::{Data, Device, Error, MAX_SUBMISSIONS, Prepared, Request, Scope};
use fake::{Fake, FakeGpu, ORIN};
use plan::{Buffer, BufferId, Class, Cost, DType, Plan};

const HIDDEN: usize = 256;
const VOCABULARY: usize = 96;

/// A manual step: a gathered row, two projections of each type, a sampled token.
mod sketch {
    use super::*;
    use plan::{
        Bucket, Gather, Linear, NextInputs, Norm, NormKind, Op, Outputs, Product, Project, Sample,
        SampleInputs, Scalar, Step, View,
    };

    pub(super) struct Sketch {
        buffers: Vec<Buffer>,
        steps: Vec<Step>,
    }

    impl Sketch {
        fn buffer(&mut self, name: &str, class: Class, dtype: DType, shape: &[usize]) -> View {
            let id = BufferId(self.buffers.len() as u32);
            self.buffers.push(Buffer { name: name.into(), class, dtype, shape: shape.to_vec() });
            View::whole(id, shape)
        }

        fn step(&mut self, op: Op, label: &str) {
            let cost = Cost::default();
            self.steps.push(Step { op, label: label.into(), scope: None, repeat: None, cost });
        }
    }

    /// The same with a step that also reads its matrices as numbers.
    pub(super) fn with_numbers(dtype: DType) -> Plan {
        let mut plan = decode(dtype);
        let find = |name| plan.find(Class::Weight, name).unwrap();
        let [a, b] = [("table", VOCABULARY), ("square", HIDDEN)]
            .map(|(name, rows)| View::whole(find(name), &[rows, HIDDEN]));
        let mut s = Sketch { buffers: plan.buffers, steps: plan.steps };
        let out = s.buffer("product", Class::Scratch, DType::F32, &[VOCABULARY, HIDDEN]);
        s.step(Op::MatMul { a, b, out }, "numbers");
        (plan.buffers, plan.steps) = (s.buffers, s.steps);
        plan
    }

    pub(super) fn decode(dtype: DType) -> Plan {
        use Class::{Mailbox, Output, Scratch, Weight};
        let mut s = Sketch { buffers: Vec::new(), steps: Vec::new() };
        let tokens = s.buffer("tokens", Mailbox, DType::I32, &[1]);
        let positions = s.buffer("positions", Mailbox, DType::I32, &[1]);
        let temperature = s.buffer("temperature", Mailbox, DType::F32, &[1]);
        let top_k = s.buffer("top_k", Mailbox, DType::I32, &[1]);
        let top_p = s.buffer("top_p", Mailbox, DType::F32, &[1]);
        let min_p = s.buffer("min_p", Mailbox, DType::F32, &[1]);
        let seed = s.buffer("seed", Mailbox, DType::I32, &[1, 2]);
        let table = s.buffer("table", Weight, dtype, &[VOCABULARY, HIDDEN]);
        let square = s.buffer("square", Weight, dtype, &[HIDDEN, HIDDEN]);
        let norm = s.buffer("norm", Weight, DType::F32, &[HIDDEN]);
        let x = s.buffer("x", Scratch, DType::F32, &[1, HIDDEN]);
        let y = s.buffer("y", Scratch, DType::F32, &[1, HIDDEN]);
        let logits = s.buffer("logits", Output, DType::F32, &[1, VOCABULARY]);
        let sampled = s.buffer("sampled", Output, DType::I32, &[1]);
        let gather = Gather { table: table.clone(), indices: vec![tokens.clone()], out: x.clone() };
        s.step(Op::Gather(gather), "embed");
        let (kind, eps) = (NormKind::Rms, Scalar::new(1e-5));
        let norm = Some(Norm { kind, weight: norm, bias: None, eps });
        let (residual, out) = (x.clone(), y.clone());
        let product = Product::Residual { weight: square, bias: None, residual, out };
        s.step(Op::Project(Project { x, norm: norm.clone(), product }), "square");
        let out = logits.clone();
        let linear = Linear { weight: table, bias: None, activation: None, out };
        let product = Product::Each(vec![linear]);
        s.step(Op::Project(Project { x: y, norm, product }), "output");
        let next = Some(NextInputs { tokens, positions: positions.clone() });
        let inputs =
            SampleInputs { temperature, top_k, top_p, min_p, seed, positions, adjustments: None };
        s.step(Op::Sample(Sample { logits, inputs, ids: sampled, next }), "sample");
        let bucket = Bucket { batch: 1, chunk: 1, context: 8, outputs: Outputs::Last };
        Plan {
            bucket,
            precision: plan::Precision::Single,
            buffers: s.buffers,
            steps: s.steps,
            scopes: Vec::new(),
            repeats: Vec::new(),
        }
    }
}

/// Seeded values in a weight's type.
fn weight(buffer: &Buffer) -> Vec<u8> {
    let mut state = buffer.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(b));
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let values: Vec<f32> = (0..buffer.elements()).map(|_| random()).collect();
    if buffer.dtype == DType::F32 {
        return values.iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    let mut bytes = vec![0; buffer.bytes() as usize];
    plan::quant::quantise(buffer.dtype, &values, &mut bytes).unwrap();
    bytes
}

fn weights_of(plan: &Plan) -> Vec<Buffer> {
    plan.buffers.iter().filter(|b| b.class == Class::Weight).cloned().collect()
}

struct Running {
    instance: Box<dyn Instance>,
    prepared: Prepared,
    plan: Plan,
}

impl Running {
    fn new(device: &dyn Device, dtype: DType) -> Result<Self> {
        let plan = sketch::decode(dtype);
        let weights = weights_of(&plan);
        let plans = std::slice::from_ref(&plan);
        let mut instance =
            device.open(&Request { weights: &weights, states: &[], plans, choices: None })?;
        for buffer in &weights {
            instance.upload(&buffer.name, &weight(buffer), &|_| {})?;
        }
        let prepared = instance.prepare(&plan)?;
        Ok(Self { instance, prepared, plan })
    }

    fn find(&self, class: Class, name: &str) -> BufferId {
        self.plan.find(class, name).unwrap()
    }

    /// Tokens of a few steps, and the last logits.
    fn run(&mut self, token: i32, steps: u32) -> Result<(Vec<i32>, Vec<f32>)> {
        for (name, value) in [("tokens", token), ("positions", 0)] {
            let mailbox = self.find(Class::Mailbox, name);
            self.instance.write(self.prepared, mailbox, 0, Data::I32(&[value]))?;
        }
        let ticket = self.instance.submit(self.prepared, steps)?;
        self.instance.wait(ticket)?;
        let mut tokens = Vec::new();
        for step in 0..steps {
            let mut one = [0];
            self.instance.tokens(ticket, step, &mut one)?;
            tokens.extend(one);
        }
        let mut logits = vec![0.0; VOCABULARY];
        let output = self.find(Class::Output, "logits");
        self.instance.read(self.prepared, output, 0, &mut logits)?;
        Ok((tokens, logits))
    }
}

fn cuda(fake: &Arc<Fake>) -> Result<Cuda, String> {
    with(fake, None, None)
}

fn with(fake: &Arc<Fake>, visible: Option<&str>, memory: Option<&str>) -> Result<Cuda, String> {
    let driver: Arc<dyn Driver> = fake.clone();
    Cuda::with(&driver, visible, memory)
}

const TYPES: [DType; 8] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q6_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::IQ4_XS,
    DType::F16,
    DType::BF16,
];

#[test]
fn steps_match_the_cpu() {
    for dtype in TYPES {
        let fake = Arc::new(Fake::new(&[ORIN]));
        let device = cuda(&fake).unwrap();
        let mut ours = Running::new(&device, dtype).unwrap();
        let mut theirs = Running::new(&Cpu::detect(), dtype).unwrap();
        for token in [1, 77] {
            assert_eq!(ours.run(token, 3).unwrap(), theirs.run(token, 3).unwrap(), "{dtype}");
        }
        drop((ours, device));
        assert!(fake.leaks().is_empty(), "{:?}", fake.leaks());
    }
}

/// Result of first light, and the bring-up steps that were run.
fn prove(fake: &Arc<Fake>) -> (Result<Option<Mode>>, Vec<Stage>) {
    let device = cuda(fake).unwrap();
    let mut begun = Vec::new();
    let proven = device.prove(Mode::default(), &mut |note| {
        if let Note::Begins(stage) = note {
            begun.push(stage);
        }
        Ok(())
    });
    (proven, begun)
}

#[test]
fn first_light_detects_a_skipped_launch() {
    use Stage::{Atomics, Handover, Launch, Order};
    let fake = Arc::new(Fake::new(&[ORIN]));
    let (proven, begun) = prove(&fake);
    assert_eq!((proven.unwrap(), &begun[..]), (None, &[Launch, Order, Atomics, Handover][..]));
    assert!(fake.leaks().is_empty(), "{:?}", fake.leaks());
    // One launch, a graph of 256, twice 64.
    for (skipped, stage) in [
        (1, Launch),
        (2, Order),
        (257, Order),
        (258, Atomics),
        (321, Atomics),
        (322, Handover),
        (385, Handover),
    ] {
        let mut fake = Fake::new(&[ORIN]);
        fake.skipped = Some(skipped);
        let fake = Arc::new(fake);
        let (proven, begun) = prove(&fake);
        let error = proven.unwrap_err().to_string();
        assert!(error.contains(&format!("stage {stage}: ")), "{skipped}: {error}");
        assert_eq!(begun.last(), Some(&stage));
        assert!(fake.leaks().is_empty(), "{:?}", fake.leaks());
    }
}

#[test]
fn weights_are_equal_in_every_kind_of_memory() {
    let answers: Vec<_> = ["device", "pinned", "managed"]
        .map(|kind| {
            let fake = Arc::new(Fake::new(&[ORIN]));
            let device = with(&fake, None, Some(kind)).unwrap();
            assert!(device.info().description.contains(kind), "{:?}", device.info());
            Running::new(&device, DType::Q6_K).unwrap().run(5, 2).unwrap()
        })
        .into();
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
    let shared = FakeGpu { integrated: true, ..ORIN };
    let device = cuda(&Arc::new(Fake::new(&[shared]))).unwrap();
    assert!(device.info().description.contains("managed"), "{:?}", device.info());
    let wrong = with(&Arc::new(Fake::new(&[ORIN])), None, Some("fast")).unwrap_err();
    assert!(wrong.contains("`fast`") && wrong.contains("managed"), "{wrong}");
}

#[test]
fn halves_are_not_written_while_they_are_copied() {
    let fake = Arc::new(Fake::new(&[ORIN]));
    let device = cuda(&fake).unwrap();
    let all = TYPES.into_iter().flat_map(|dtype| {
        [sketch::decode(dtype), sketch::with_numbers(dtype)].map(|plan| (dtype, plan))
    });
    for (dtype, plan) in all {
        let (buffers, plans) = (weights_of(&plan), std::slice::from_ref(&plan));
        let request = Request { weights: &buffers, states: &[], plans, choices: None };
        let layout = Layout::new(&request).unwrap();
        let stream = gpu::Owned::new(&device.gpu, |driver| driver.create_stream()).unwrap();
        // A few rows at a time.
        let mut weights = Weights::new(&device.gpu, &layout, MemoryKind::Device, 2048).unwrap();
        let progress = std::sync::atomic::AtomicU64::new(0);
        for buffer in &buffers {
            let count = |n| {
                progress.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
            };
            let bytes = weight(buffer);
            weights.upload(&buffer.name, &bytes, &count, stream.get()).unwrap();
        }
        weights.seal(stream.get()).unwrap();
        let total: u64 = buffers.iter().map(Buffer::bytes).sum();
        assert_eq!(progress.into_inner(), total);
        for buffer in &buffers {
            let (address, form) = weights.places()[&buffer.name];
            let mut want = vec![0; form.bytes() as usize];
            let bytes = weight(buffer);
            super::super::weights::fill(&buffer.name, &form, &bytes, &mut want, &|_| {}).unwrap();
            let have = fake.peek(address, want.len());
            let packed = form.matrices().map_or(0, |(layout, count)| layout.bytes() * count);
            assert!(have[..packed] == want[..packed], "{dtype} {}", buffer.name);
            let behind = form.numbers().map_or(want.len(), |numbers| numbers.at as usize);
            assert!(have[behind..] == want[behind..], "numbers of {dtype} {}", buffer.name);
        }
        let again = weights.upload("table", &Vec::new(), &|_| {}, stream.get());
        assert!(matches!(again, Err(Error::Invalid(_))));
    }
}

#[test]
fn the_contract_is_satisfied() {
    let fake = Arc::new(Fake::new(&[ORIN]));
    crate::contract::check(&cuda(&fake).unwrap());
    assert!(fake.leaks().is_empty(), "{:?}", fake.leaks());
}

/// Graphs are queued back to back, and the driver does not wait before the host does.
#[test]
fn all_allowed_submissions_are_queued_before_the_first_wait() {
    let fake = Arc::new(Fake::new(&[ORIN]));
    let mut running = Running::new(&cuda(&fake).unwrap(), DType::Q8_0).unwrap();
    let waits = || fake.calls("wait") + fake.calls("synchronize");
    let before = waits();
    let submit = |_| running.instance.submit(running.prepared, 1).unwrap();
    let tickets: Vec<_> = (0..MAX_SUBMISSIONS).map(submit).collect();
    assert_eq!((fake.calls("launch_graph"), waits()), (MAX_SUBMISSIONS, before));
    assert!(running.instance.submit(running.prepared, 1).is_err());
    for ticket in tickets {
        running.instance.wait(ticket).unwrap();
    }
    assert!(waits() - before <= MAX_SUBMISSIONS);
}

#[test]
fn a_step_is_one_graph() {
    let fake = Arc::new(Fake::new(&[ORIN]));
    let mut running = Running::new(&cuda(&fake).unwrap(), DType::Q8_0).unwrap();
    assert_eq!((fake.calls("instantiate"), fake.calls("launch")), (1, 4));
    running.run(3, 5).unwrap();
    running.run(4, 2).unwrap();
    assert_eq!((fake.calls("instantiate"), fake.calls("launch")), (1, 4), "recorded once");
    assert_eq!(fake.calls("launch_graph"), 7);
    let activity = running.instance.activity();
    assert_eq!((activity.submits, activity.launches), (7, 28));
    // Launched individually it is the same step.
    let alone = running.run(9, 2).unwrap();
    for (name, value) in [("tokens", 9), ("positions", 0)] {
        let mailbox = running.find(Class::Mailbox, name);
        running.instance.write(running.prepared, mailbox, 0, Data::I32(&[value])).unwrap();
    }
    let profile = running.instance.profile(running.prepared).unwrap();
    let labels: Vec<&str> = profile.timings.iter().map(|t| t.label.as_str()).collect();
    assert_eq!(labels, ["embed", "square", "output", "sample"]);
    assert!(profile.timings.iter().all(|t| t.nanoseconds == 1000) && profile.serialised);
    let mut logits = vec![0.0; VOCABULARY];
    let output = running.find(Class::Output, "logits");
    running.instance.read(running.prepared, output, 0, &mut logits).unwrap();
    assert_eq!(logits, alone.1);
}

#[test]
fn recorded_launches_begin_early_if_code_and_driver_allow_it() {
    let hopper = FakeGpu { name: "H100", capability: (9, 0), ..ORIN };
    for (gpu, version, early) in
        [(hopper.clone(), 12_060, 3), (hopper, 12_020, 0), (ORIN, 12_060, 0)]
    {
        let mut fake = Fake::new(&[gpu]);
        fake.version = version;
        let fake = Arc::new(fake);
        let _running = Running::new(&cuda(&fake).unwrap(), DType::Q8_0).unwrap();
        assert_eq!((fake.calls("launch"), fake.calls("launch_early")), (4 - early, early));
    }
}

#[test]
fn a_faulting_kernel_loses_the_device_and_a_new_context_works() {
    let mut fake = Fake::new(&[ORIN]);
    fake.fatal = Some(6);
    let fake = Arc::new(fake);
    let device = cuda(&fake).unwrap();
    let mut running = Running::new(&device, DType::Q8_0).unwrap();
    let first = running.run(1, 3).map(drop);
    let then = running.instance.submit(running.prepared, 1).map(drop);
    let mailbox = running.find(Class::Mailbox, "tokens");
    let written = running.instance.write(running.prepared, mailbox, 0, Data::I32(&[1]));
    for result in [first, then, written] {
        match result {
            Err(Error::Lost { scope: Scope::Device, rebuildable: true, reason, .. }) => {
                assert!(reason.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{reason}");
                assert!(reason.contains("load the model again"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    drop((running, device));
    assert!(fake.leaks().is_empty(), "{:?}", fake.leaks());
    Running::new(&cuda(&fake).unwrap(), DType::Q8_0).unwrap().run(1, 3).unwrap();
}

#[test]
fn a_failure_of_any_call_is_reported_and_leaks_nothing() {
    let whole = |fake: &Arc<Fake>| -> Result<(), String> {
        let device = cuda(fake)?;
        let mut running = Running::new(&device, DType::Q8_0).map_err(|e| e.to_string())?;
        running.run(1, 2).map_err(|e| e.to_string())?;
        running.instance.profile(running.prepared).map_err(|e| e.to_string())?;
        Ok(())
    };
    let fake = Arc::new(Fake::new(&[ORIN]));
    whole(&fake).unwrap();
    let calls = fake.all_calls();
    for code in [Code::OUT_OF_MEMORY.0, Code::ILLEGAL_ADDRESS.0, 46, 12_345] {
        let mut failed = 0;
        // Every call during start-up, and some of the many during steps.
        for at in (0..calls).step_by(3) {
            let fake = Arc::new(Fake::new(&[ORIN]));
            fake.fail_after(at, code);
            failed += usize::from(whole(&fake).is_err());
            assert!(fake.leaks().is_empty(), "{code} at call {at}: {:?}", fake.leaks());
        }
        assert!(failed * 2 > calls / 3, "{failed} of {}", calls / 3);
    }
}

#[test]
fn unusable_gpus_are_rejected_on_one_line() {
    let gpu = |change: fn(&mut FakeGpu)| {
        let mut gpu = ORIN;
        change(&mut gpu);
        Fake::new(&[gpu])
    };
    let driver = |change: fn(&mut Fake)| {
        let mut fake = Fake::new(&[ORIN]);
        change(&mut fake);
        fake
    };
    let ampere = |version| {
        let mut fake = Fake::new(&[FakeGpu { capability: (8, 6), ..ORIN }]);
        fake.version = version;
        fake
    };
    for (fake, visible, words) in [
        (driver(|f| f.version = 11_040), None, &["too old", "11.4", "12.0"][..]),
        (driver(|f| f.init = 100), Some(""), &["CUDA_VISIBLE_DEVICES=\"\"", "hides"]),
        (driver(|f| f.init = 100), None, &["no GPU"]),
        (Fake::new(&[]), Some("7"), &["CUDA_VISIBLE_DEVICES=\"7\"", "hides"]),
        (driver(|f| f.init = 34), None, &["STUB_LIBRARY", "LD_LIBRARY_PATH"]),
        (driver(|f| f.init = 803), None, &["SYSTEM_DRIVER_MISMATCH", "reboot"]),
        (driver(|f| f.init = 4242), None, &["cuInit", "4242"]),
        (gpu(|g| g.capability = (7, 5)), None, &["Orin is too old", "7.5", "8.0"]),
        (gpu(|g| g.mode = 2), None, &["Prohibited"]),
        (driver(|f| f.context = 2), None, &["other processes use all of its memory"]),
        (driver(|f| f.context = 46), None, &["DEVICE_UNAVAILABLE", "exclusively"]),
        (ampere(12_020), None, &["12.5", "12.2"]),
    ] {
        let reason = with(&Arc::new(fake), visible, None).unwrap_err();
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}: {words:?}");
        assert_eq!(reason.lines().count(), 1);
    }
    let mut busy = Fake::new(&[FakeGpu { mode: ComputeMode::EXCLUSIVE_PROCESS, ..ORIN }]);
    busy.context = 101;
    let reason = with(&Arc::new(busy), None, None).unwrap_err();
    assert!(reason.contains("in use by another process"), "{reason}");
    // The next GPU is used.
    let old = FakeGpu { name: "old", capability: (6, 1), ..ORIN };
    let device = cuda(&Arc::new(Fake::new(&[old, ORIN]))).unwrap();
    assert!(device.info().description.starts_with("Orin, 4 SMs, sm_87"), "{:?}", device.info());
    assert!(cuda(&Arc::new(ampere(12_050))).unwrap().info().description.contains("compute_80"));
}

#[test]
fn too_little_memory_is_reported_before_allocating() {
    let fake = Arc::new(Fake::new(&[FakeGpu { bytes: 1000, ..ORIN }]));
    match Running::new(&cuda(&fake).unwrap(), DType::Q8_0).map(drop) {
        Err(Error::OutOfMemory { what, need, have: 1000 }) => {
            assert!(what.contains("weights") && need > 1000, "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fake.calls("alloc"), 0);
}

#[test]
fn without_the_library_there_is_a_reason() {
    // Must not panic on any machine.
    match Cuda::detect() {
        Ok(device) => assert_eq!(device.info().name, "cuda"),
        Err(reason) => assert_eq!(reason.lines().count(), 1, "{reason}"),
    }
}

/// Two rows, one with an adapter and one without.
#[test]
fn a_step_with_adapters_matches_the_cpu() {
    use model::gguf::Writer;
    use model::{Adapter, KvLayout, Model, ports};
    let dir = tempfile::tempdir().unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let base = Model::open(root.join("../../tests/data/architectures/llama.gguf")).unwrap();
    let mut to = Writer::new(dir.path().join("adapter.gguf"));
    for (key, value) in
        [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
    {
        to.metadata(key, value).unwrap();
    }
    let tensor = |name: String, shape: &[usize]| Buffer {
        name,
        class: Class::Weight,
        dtype: DType::F16,
        shape: shape.to_vec(),
    };
    let beside = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight"];
    let tensors: Vec<Buffer> = beside
        .iter()
        .flat_map(|name| {
            let [rows, columns] = base.gguf().tensor(name).unwrap().shape[..] else {
                panic!("{name}")
            };
            [
                tensor(format!("{name}.lora_a"), &[4, columns]),
                tensor(format!("{name}.lora_b"), &[rows, 4]),
            ]
        })
        .collect();
    let ids: Vec<_> =
        tensors.iter().map(|t| to.tensor(&t.name, &t.shape, t.dtype).unwrap()).collect();
    let data = to.begin().unwrap();
    for (id, tensor) in ids.into_iter().zip(&tensors) {
        data.write(id, 0, &weight(tensor)).unwrap();
    }
    data.finish().unwrap();
    let adapter = Adapter::open(dir.path().join("adapter.gguf")).unwrap();
    let model = base.with_adapters(vec![adapter]).unwrap();
    let layout = KvLayout { slots: 2, context: 32, ring: None };
    let run = |device: &dyn Device| {
        let bucket = plan::Bucket::decode(2, layout.context);
        let plan = plan::fuse(&model.adapted_plan(layout, bucket).unwrap(), device.fusions());
        let weights: Vec<Buffer> = model.weights().cloned().collect();
        let (states, plans) = (model.states(layout), std::slice::from_ref(&plan));
        let request = Request { weights: &weights, states: &states, plans, choices: None };
        let mut instance = device.open(&request).unwrap();
        for Buffer { name, .. } in &weights {
            let read = |at, bytes: &mut [u8]| Ok(model.read_weight(name, at, bytes)?);
            instance.upload(name, &read, &|_| {}).unwrap();
        }
        let prepared = instance.prepare(&plan).unwrap();
        let mailbox = |name| plan.find(Class::Mailbox, name).unwrap();
        for (name, values) in
            [(ports::TOKENS, [5, 5]), (ports::POSITIONS, [0, 0]), (ports::SLOTS, [0, 1])]
        {
            instance.write(prepared, mailbox(name), 0, Data::I32(&values)).unwrap();
        }
        instance.write(prepared, mailbox(ports::ADAPTERS), 0, Data::F32(&[0.5, 0.0])).unwrap();
        let ticket = instance.submit(prepared, 2).unwrap();
        instance.wait(ticket).unwrap();
        let output = plan.find(Class::Output, ports::LOGITS).unwrap();
        let mut logits = vec![0.0; plan.buffer(output).elements()];
        instance.read(prepared, output, 0, &mut logits).unwrap();
        logits
    };
    let ours = run(&cuda(&Arc::new(Fake::new(&[ORIN]))).unwrap());
    assert!(ours == run(&Cpu::detect()));
    let (with, without) = ours.split_at(ours.len() / 2);
    assert!(with != without);
}
