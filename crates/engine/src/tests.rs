//! Engine tests from the device's point of view: the order of submissions and waits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;

use super::runner::{Chunk, Row};
use super::{
    Dry, DynamicTemperature, Event, Events, FinishReason, GenerateError, Grammar, Handle,
    LoadError, LoadEvent, LoadSpec, LogitsProcessors, Request, Scales, Settings, State,
    TokenLogprobs,
};
use device::tune::Choices;
use device::{
    Activity, Data, Error, Footprint, Instance, MAX_SUBMISSIONS, Part, Prepared, Profile, Scope,
    Ticket, WeightSource,
};
use plan::sample::Sampling;
use plan::{BufferId, Outputs, Plan};

const CHUNK: usize = 16;
const CONTEXT: usize = 256;
/// Vocabulary of the model.
const VOCABULARY: usize = 1024;

/// Call of the engine to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Submit(Kind),
    Wait(Kind),
    /// Read of tokens, with the number of steps in flight.
    Tokens(Kind, usize),
    /// Write of a grammar mask for the next step.
    Mask(Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chunk,
    Decode,
    /// The two parts of a decode step.
    Deferring,
    Deferred,
}

#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    /// Plans in the order of their submission.
    submitted: Vec<Prepared>,
    under_way: Vec<Ticket>,
    /// Number of the wait that fails, counted from now; 0 for none.
    fail: usize,
    /// True if the device cannot be reopened after the failure.
    for_good: bool,
    /// Value of every logit that is read, if set.
    logits: Option<f32>,
    /// Number of reads of logits.
    reads: usize,
}

/// An instance that logs calls.
struct Spy {
    inner: Option<Box<dyn Instance>>,
    log: Arc<Mutex<Log>>,
    /// Number of decode plans, which are prepared first.
    decoders: u32,
    /// Number of plans of split decode steps, which follow in pairs.
    parts: u32,
}

impl Spy {
    fn inner(&self) -> &dyn Instance {
        &**self.inner.as_ref().unwrap()
    }

    fn inner_mut(&mut self) -> &mut dyn Instance {
        &mut **self.inner.as_mut().unwrap()
    }

    fn kind(&self, prepared: Prepared) -> Kind {
        match prepared.0.checked_sub(self.decoders) {
            None => Kind::Decode,
            Some(part) if part < self.parts => [Kind::Deferring, Kind::Deferred][part as usize % 2],
            Some(_) => Kind::Chunk,
        }
    }
}

impl Instance for Spy {
    fn footprint(&self) -> Footprint {
        self.inner().footprint()
    }

    fn activity(&self) -> Activity {
        self.inner().activity()
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        self.inner_mut().upload(weight, source, progress)
    }

    fn blocks(&self) -> u32 {
        self.inner().blocks()
    }

    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Error> {
        self.inner_mut().map(slot, blocks)
    }

    fn copy_part(&mut self, from: Part, to: Part) -> Result<(), Error> {
        self.inner_mut().copy_part(from, to)
    }

    fn part_bytes(&self, part: Part) -> Option<usize> {
        self.inner().part_bytes(part)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
        self.inner_mut().prepare(plan)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared, Error> {
        self.inner_mut().prepare_as(plan, choices)
    }

    fn profile(&mut self, prepared: Prepared) -> Result<Profile, Error> {
        self.inner_mut().profile(prepared)
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        self.inner_mut().write(prepared, mailbox, at, data)?;
        if at > 0 && data.elements() == VOCABULARY / 32 {
            let call = Call::Mask(self.kind(prepared));
            self.log.lock().calls.push(call);
        }
        Ok(())
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        let ticket = self.inner_mut().submit(prepared, steps)?;
        let mut log = self.log.lock();
        log.calls.push(Call::Submit(self.kind(prepared)));
        log.submitted.push(prepared);
        log.under_way.push(ticket);
        assert!(log.under_way.len() <= MAX_SUBMISSIONS);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.inner_mut().wait(ticket)?;
        let mut log = self.log.lock();
        if log.fail > 0 {
            log.fail -= 1;
            if log.fail == 0 {
                let reason = "asked to fail".to_owned();
                let (scope, rebuildable) = (Scope::Instance, !log.for_good);
                return Err(Error::Lost { scope, rebuildable, reason, source: None });
            }
        }
        log.calls.push(Call::Wait(self.kind(ticket.prepared)));
        assert_eq!(log.under_way.remove(0), ticket, "the oldest is waited for first");
        Ok(())
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let mut log = self.log.lock();
        let call = Call::Tokens(self.kind(ticket.prepared), log.under_way.len());
        log.calls.push(call);
        self.inner().tokens(ticket, step, out)
    }

    fn read(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        self.inner().read(prepared, output, at, out)?;
        let mut log = self.log.lock();
        log.reads += 1;
        if let Some(logit) = log.logits {
            out.fill(logit);
        }
        Ok(())
    }
}

fn spec(slots: usize) -> LoadSpec {
    LoadSpec {
        model: "synthetic:tiny-llama:q8_0".into(),
        backend: config::Backend::Cpu,
        slots,
        context: CONTEXT,
        prefill_chunk: CHUNK,
        ..LoadSpec::default()
    }
}

/// An engine with a small model on the CPU, and the log of its device.
struct Watched {
    handle: Handle,
    log: Arc<Mutex<Log>>,
    spec: LoadSpec,
}

impl Watched {
    fn new(slots: usize) -> Self {
        Self::of(spec(slots))
    }

    fn of(spec: LoadSpec) -> Self {
        let handle = Handle::start(Settings { queue_limit: 64 }).unwrap();
        let watched = Self { handle, log: Arc::default(), spec };
        watched.load().unwrap();
        watched.watch();
        watched
    }

    fn load(&self) -> Result<(), LoadError> {
        let mut events = self.handle.load(self.spec.clone());
        loop {
            match events.blocking_recv().unwrap() {
                LoadEvent::Progress { .. } | LoadEvent::Unloading { .. } => {}
                LoadEvent::Loaded(_) => return Ok(()),
                LoadEvent::Failed(error) => return Err(error),
            }
        }
    }

    /// Starts logging the calls of the current instance.
    fn watch(&self) {
        *self.log.lock() = Log::default();
        let log = Arc::clone(&self.log);
        // Batches of 1, 2, 4 and so on, and of all slots.
        let decoders = self.spec.slots.next_power_of_two().ilog2() + 1;
        let watched = self.handle.exclusive("watch", move |runner| {
            let parts = if decoders > 1 { 4 } else { 2 };
            let spy = |inner| Box::new(Spy { inner, log: Arc::clone(&log), decoders, parts });
            let real = std::mem::replace(runner.instance(), spy(None));
            *runner.instance() = spy(Some(real));
        });
        watched.blocking_recv().unwrap().unwrap();
    }

    /// Health of the device.
    fn health(&self) -> (u64, Option<String>) {
        let devices = self.handle.snapshot().devices;
        devices
            .into_iter()
            .find(|d| d.name == "cpu")
            .map(|d| (d.losses, d.disabled))
            .unwrap_or_default()
    }

    fn begin(&self, request: Request) -> Events {
        self.handle.generate(request).unwrap()
    }

    /// Submits all requests before the engine sees the first one.
    fn begin_together(&self, requests: &[Request]) -> Vec<Events> {
        let (go, wait) = std::sync::mpsc::channel();
        let held = self.handle.exclusive("hold", move |_| wait.recv());
        let begun = requests.iter().map(|request| self.begin(request.clone())).collect();
        go.send(()).unwrap();
        held.blocking_recv().unwrap().unwrap().unwrap();
        begun
    }

    fn ask(&self, request: Request) -> Answer {
        collect(self.begin(request)).unwrap()
    }

    /// Waits until the engine is idle, and takes the log.
    fn calls(&self) -> Vec<Call> {
        self.handle.exclusive("look", |_| ()).blocking_recv().unwrap().unwrap();
        let mut log = self.log.lock();
        assert_eq!(log.under_way, [], "nothing is left under way");
        std::mem::take(&mut log.calls)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.handle.stop(Duration::from_secs(10));
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    /// Present on request. The first entry of a prompt is NaN, which equals nothing.
    prompt: Vec<TokenLogprobs>,
    reason: FinishReason,
}

fn collect(mut events: Events) -> Result<Answer, GenerateError> {
    let (mut ids, mut text, mut prompt) = (Vec::new(), String::new(), Vec::new());
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Prompt(all) => {
                assert!(prompt.is_empty() && ids.is_empty(), "once, and first");
                prompt = all[1..].to_vec();
            }
            Event::Embedding(_) => panic!("nobody asks for one here"),
            Event::Token(token) => {
                ids.push(token.id);
                text.push_str(&token.text);
            }
            Event::Finished(finished) => {
                text.push_str(&finished.text);
                return Ok(Answer { ids, text, prompt, reason: finished.reason });
            }
            Event::Failed(error) => return Err(error),
        }
    }
    panic!("a stream of events has an end");
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101) % 250 + 1).collect()
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        prompt,
        max_tokens,
        sampling: Sampling::GREEDY,
        stop: vec![],
        ignore_end: true,
        processors: LogitsProcessors::NONE,
        constraint: None,
        shown: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        adapters: Scales::NONE,
        embed: false,
    }
}

/// The same request, but the host reads logits after every step.
fn not_ahead(request: &Request) -> Request {
    Request { logprobs: Some(0), ..request.clone() }
}

/// A request whose answer ends with an end-of-sequence token.
fn ends_by_itself(engine: &Watched) -> Request {
    (0..40)
        .map(|seed| Request {
            sampling: Sampling {
                temperature: 20.0,
                top_k: 0,
                top_p: 1.0,
                seed,
                ..Sampling::GREEDY
            },
            ignore_end: false,
            logprobs: Some(0),
            ..request(prompt(3, 5), 240)
        })
        .find(|request| {
            let answer = engine.ask(request.clone());
            matches!(answer.reason, FinishReason::End { .. }) && answer.ids.len() > 3
        })
        .map(|request| Request { logprobs: None, ..request })
        .unwrap()
}

fn count(calls: &[Call], call: Call) -> usize {
    calls.iter().filter(|c| **c == call).count()
}

#[test]
fn all_chunks_of_a_prompt_are_submitted_before_the_first_wait() {
    let engine = Watched::new(1);
    let answer = engine.ask(request(prompt(1, 4 * CHUNK), 1));
    let [submit, wait] = [Call::Submit(Kind::Chunk), Call::Wait(Kind::Chunk)];
    let sampled = Call::Tokens(Kind::Chunk, 0);
    assert_eq!(engine.calls(), [submit, submit, submit, submit, wait, wait, wait, wait, sampled]);

    // A longer prompt fills the queue, and one chunk follows each finished one.
    let chunks = CONTEXT / CHUNK - 1;
    engine.ask(request(prompt(1, chunks * CHUNK), 1));
    let mut expected = vec![submit; MAX_SUBMISSIONS];
    expected.extend([wait, submit].repeat(chunks - MAX_SUBMISSIONS));
    expected.extend([wait].repeat(MAX_SUBMISSIONS));
    expected.push(sampled);
    assert_eq!(engine.calls(), expected);

    // The log-probabilities of a prompt's tokens are read chunk by chunk.
    let looked_at = Request { prompt_logprobs: true, ..request(prompt(1, 4 * CHUNK), 1) };
    let looked_at = engine.ask(looked_at);
    assert_eq!(looked_at.prompt.len(), 4 * CHUNK - 1);
    assert_eq!(Answer { prompt: vec![], ..looked_at }, answer);
    assert_eq!(engine.calls(), [submit, wait, sampled].repeat(4));
}

#[test]
fn a_single_sequence_runs_ahead_and_stops_at_its_limit() {
    let engine = Watched::new(2);
    let asked = request(prompt(2, 5), 12);
    let ahead = engine.ask(asked.clone());
    let calls = engine.calls();
    assert_eq!(count(&calls, Call::Submit(Kind::Decode)), 11, "the first token is the prompt's");
    assert_eq!(count(&calls, Call::Tokens(Kind::Decode, 1)), 10, "the next step is under way");
    assert_eq!(count(&calls, Call::Tokens(Kind::Decode, 0)), 1, "and behind the last one none");

    let alone = engine.ask(not_ahead(&asked));
    assert_eq!(alone, ahead);
    assert_eq!(count(&engine.calls(), Call::Tokens(Kind::Decode, 0)), 11);
    let stop = Request { stop: vec!["no such text".into()], ..asked };
    assert_eq!(engine.ask(stop), ahead);
    assert_eq!(count(&engine.calls(), Call::Tokens(Kind::Decode, 0)), 11);

    // Up to the end of the context.
    let len = CONTEXT - 5;
    let full = request(prompt(2, 5), len as u32);
    let ahead = engine.ask(full.clone());
    assert_eq!((ahead.ids.len(), &ahead.reason), (len, &FinishReason::Length));
    assert_eq!(count(&engine.calls(), Call::Submit(Kind::Decode)), len - 1);
    assert_eq!(ahead, engine.ask(not_ahead(&full)));
}

#[test]
fn a_dropped_run_ahead_step_has_no_effect() {
    let engine = Watched::new(1);
    let ending = ends_by_itself(&engine);
    let other = request(prompt(9, 40), 30);
    let [known, expected] = [&ending, &other].map(|r| engine.ask(not_ahead(r)));
    engine.calls();
    // The next request waits for the only slot.
    let mut running = engine.begin_together(&[ending, other]).into_iter();
    let [ending, other] = [(); 2].map(|()| running.next().unwrap());
    let ended = collect(ending).unwrap();
    assert_eq!(ended, known);
    assert_eq!(collect(other).unwrap(), expected);
    // One step per token and end token, except for those of the prompts, and one step of run-ahead.
    let needed = ended.ids.len() + 1 + 30 - 2;
    assert_eq!(count(&engine.calls(), Call::Submit(Kind::Decode)), needed + 1);
}

#[test]
fn a_finished_sequence_does_not_change_the_others() {
    let engine = Watched::new(4);
    let ending = ends_by_itself(&engine);
    let seeded = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
    let requests = [
        request(prompt(4, 3), 60),
        ending,
        Request { sampling: seeded, ..request(prompt(5, 70), 50) },
        request(prompt(6, 20), 7),
        request(prompt(7, 33), 9),
        request(prompt(8, 1), 25),
    ];
    let alone: Vec<Answer> = requests.iter().map(|r| engine.ask(not_ahead(r))).collect();
    engine.calls();
    let together = engine.begin_together(&requests);
    for (events, alone) in together.into_iter().zip(&alone) {
        assert_eq!(collect(events).unwrap(), *alone);
    }
    let calls = engine.calls();
    assert!(count(&calls, Call::Tokens(Kind::Decode, 1)) > 30, "{calls:?}");
}

/// Plans of the chunks that evaluated these prompts, which are submitted together and sample one token each. Chunks with
/// and without logits have one plan each.
fn chunk_plans(engine: &Watched, prompts: &[Vec<u32>]) -> Vec<Prepared> {
    let requests: Vec<Request> = prompts.iter().map(|p| request(p.clone(), 1)).collect();
    let expected: Vec<Answer> = requests.iter().map(|r| engine.ask(r.clone())).collect();
    engine.handle.exclusive("forget the cache", |_| ()).blocking_recv().unwrap().unwrap();
    std::mem::take(&mut engine.log.lock().submitted);
    let running = engine.begin_together(&requests);
    let answers: Vec<Answer> = running.into_iter().map(|r| collect(r).unwrap()).collect();
    assert_eq!(answers, expected);
    engine.calls();
    std::mem::take(&mut engine.log.lock().submitted)
}

#[test]
fn a_short_prompt_passes_a_long_one() {
    let engine = Watched::new(2);
    let plans = chunk_plans(&engine, &[prompt(1, 8 * CHUNK), prompt(2, 3)]);
    // The last chunk of a prompt has a plan with logits.
    let [short, long @ .., last] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!((long.len(), short), (7, last), "{plans:?}");
    assert!(long.iter().all(|plan| plan == &long[0] && plan != short), "{plans:?}");
}

#[test]
fn a_long_prompt_does_not_wait_for_all_short_ones() {
    let engine = Watched::new(4);
    let long = prompt(1, 4 * CHUNK);
    let short = (2..62).map(|seed| prompt(seed, 8));
    let plans = chunk_plans(&engine, &std::iter::once(long).chain(short).collect::<Vec<_>>());
    assert_eq!(plans.len(), 4 + 60);
    let short = plans[0];
    let passed = plans.iter().take_while(|plan| **plan == short).count();
    // Four times its own 64 tokens are 32 prompts of 8.
    assert!((24..=40).contains(&passed), "{passed} short prompts first: {plans:?}");
}

#[test]
fn a_prompt_shares_the_prefix_that_another_one_evaluates() {
    let engine = Watched::new(2);
    let long = prompt(1, 12 * CHUNK);
    // It is shorter, but waits for the blocks that they have in common.
    let short = [&long[..10 * CHUNK], &prompt(2, 4)].concat();
    let plans = chunk_plans(&engine, &[long, short]);
    assert!(plans.len() <= 12 + 3, "the common prefix was evaluated twice: {plans:?}");
}

#[test]
fn decode_steps_alternate_with_chunks() {
    let engine = Watched::new(2);
    let [long, late] = [request(prompt(1, 3), 120), request(prompt(2, 10 * CHUNK), 4)];
    let expected = [&long, &late].map(|r| engine.ask(not_ahead(r)));
    for ahead in [true, false] {
        engine.calls();
        let [long, late] = [&long, &late].map(|r| if ahead { r.clone() } else { not_ahead(r) });
        let mut running = engine.begin(long);
        let Some(Event::Token(first)) = running.blocking_recv() else { panic!("a token") };
        let answer = collect(engine.begin(late)).unwrap();
        assert_eq!(answer, expected[1]);
        let rest = collect(running).unwrap();
        assert_eq!([&[first.id], &rest.ids[..]].concat(), expected[0].ids);
        let submitted: Vec<Kind> = engine
            .calls()
            .into_iter()
            .filter_map(|call| if let Call::Submit(kind) = call { Some(kind) } else { None })
            .collect();
        let chunks: Vec<usize> =
            (0..submitted.len()).filter(|i| submitted[*i] == Kind::Chunk).collect();
        assert_eq!(chunks.len(), 1 + 10);
        let one_apart = chunks[1..].windows(2).all(|pair| pair[1] - pair[0] == 2);
        assert!(one_apart, "ahead: {ahead}: {submitted:?}");
    }
}

#[test]
fn a_cancelled_request_leaves_its_slot_clean() {
    let engine = Watched::new(1);
    let other = request(prompt(9, 40), 30);
    let expected = engine.ask(not_ahead(&other));
    // While one request decodes and chunks of another are in flight.
    for (gone, tokens) in [(request(prompt(1, 5), 200), 3), (request(prompt(1, 200), 50), 0)] {
        let mut events = engine.begin(gone);
        for _ in 0..tokens {
            events.blocking_recv().unwrap();
        }
        drop(events);
        assert_eq!(engine.ask(other.clone()), expected);
        engine.calls();
    }
}

fn penalised() -> LogitsProcessors {
    let dry = Dry { multiplier: 1.0, base: 1.5, allowed: 1, breakers: vec![7] };
    LogitsProcessors {
        repetition: 1.2,
        frequency: 0.3,
        presence: 0.1,
        dry: Some(dry),
        ..LogitsProcessors::NONE
    }
}

static GOES_ON: AtomicBool = AtomicBool::new(false);

/// The device applies biases, penalties, grammars and min-p: the host reads no logits, and steps run ahead
/// unless a token depends on the one before it. A dynamic temperature forces the host to sample the same
/// answers.
#[test]
fn the_device_applies_logit_edits() {
    let engine = Watched::new(4);
    let constraint = engine.handle.exclusive("compile", |runner| {
        let grammar = Grammar::Regex("[a-z]{3,9}( [a-z0-9]{2,5})*".into());
        runner.text().grammars.compile(&grammar, &GOES_ON).unwrap()
    });
    let constraint = Some(constraint.blocking_recv().unwrap().unwrap());
    let temperature = 1.3;
    let drawn = Sampling { temperature, seed: 11, ..Sampling::GREEDY };
    let cut = Sampling { min_p: plan::sample::min_p(0.2), top_p: 0.95, ..drawn };
    let processors = LogitsProcessors {
        bias: vec![(40, 6.0), (41, -100.0), (90_000, 1.0)],
        ..LogitsProcessors::NONE
    };
    let length = 24;
    let kinds = [
        Request { sampling: cut, ..request(prompt(1, 40), length) },
        Request { processors: processors.clone(), sampling: cut, ..request(prompt(2, 5), length) },
        Request { processors: penalised(), sampling: drawn, ..request(prompt(3, 50), length) },
        Request {
            processors: LogitsProcessors { repetition: 1.1, ..processors },
            constraint,
            sampling: cut,
            ..request(prompt(4, 9), length)
        },
    ];
    engine.ask(kinds[0].clone());
    let reads = || std::mem::take(&mut engine.log.lock().reads);
    let mut alone = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        engine.calls();
        reads();
        let answer = engine.ask(kind.clone());
        let (calls, by_device) = (engine.calls(), reads());
        assert_eq!(by_device, 0, "kind {at}");
        let ahead = count(&calls, Call::Tokens(Kind::Decode, 1));
        assert_eq!(ahead > 10, at < 2, "kind {at}: {ahead} steps ahead");
        let dynamic = DynamicTemperature { least: temperature, most: temperature, exponent: 1.0 };
        let processors = LogitsProcessors { dynamic: Some(dynamic), ..kind.processors.clone() };
        let host = engine.ask(Request { processors, ..kind.clone() });
        assert_eq!(answer, host, "kind {at}");
        assert!(reads() >= length as usize, "kind {at}");
        // With log-probabilities the host reads the original logits.
        assert_eq!(engine.ask(not_ahead(kind)), answer, "kind {at}");
        let plain = Request {
            processors: LogitsProcessors::NONE,
            constraint: None,
            sampling: drawn,
            ..kind.clone()
        };
        assert_ne!(engine.ask(plain), answer, "kind {at}");
        alone.push(answer);
    }
    // Together, and with plain requests in slots of finished ones.
    for _ in 0..2 {
        let plain = (0..4).map(|seed| request(prompt(seed, 12), 9));
        let plain: Vec<_> = plain.collect();
        let expected: Vec<_> = plain.iter().map(|request| engine.ask(request.clone())).collect();
        let together = engine.begin_together(&[&kinds[..], &plain].concat());
        let got: Vec<_> = together.into_iter().map(|events| collect(events).unwrap()).collect();
        assert_eq!(got, [&alone[..], &expected].concat());
    }
}

/// The mask is computed while the device evaluates the newest token, and written before its logits.
#[test]
fn masks_are_computed_during_the_step() {
    for slots in [1, 3] {
        let engine = Watched::new(slots);
        let constraint = engine.handle.exclusive("compile", |runner| {
            assert_eq!(runner.vocabulary(), VOCABULARY);
            runner.text().grammars.compile(&Grammar::Regex("[a-z]{90}".into()), &GOES_ON).unwrap()
        });
        let constraint = Some(constraint.blocking_recv().unwrap().unwrap());
        engine.calls();
        engine.ask(Request { constraint, ..request(prompt(1, 10), 6) });
        let step = [
            Call::Submit(Kind::Deferring),
            Call::Mask(Kind::Deferred),
            Call::Submit(Kind::Deferred),
            Call::Wait(Kind::Deferring),
            Call::Wait(Kind::Deferred),
            Call::Tokens(Kind::Deferred, 0),
        ];
        let prompt = [
            Call::Mask(Kind::Chunk),
            Call::Submit(Kind::Chunk),
            Call::Wait(Kind::Chunk),
            Call::Tokens(Kind::Chunk, 0),
        ];
        assert_eq!(engine.calls(), [&prompt[..], &step.repeat(5)].concat(), "{slots} slots");
    }
}

/// Prompts and decode steps use plans without the nextn layer while it is paused.
#[test]
fn a_paused_nextn_layer_is_in_no_plan() {
    let model = "synthetic:tiny-qwen35:q8_0".to_owned();
    let engine = Watched::of(LoadSpec { model, draft: 7, ..spec(2) });
    engine.log.lock().submitted.clear();
    let (sampling, adapters) = (Sampling::GREEDY, Scales::NONE);
    let row = Row { slot: 0, token: 1, position: 0, sampling, adapters };
    let done = engine.handle.exclusive("evaluate", move |runner| -> Result<(), Error> {
        let at = |position| Row { position, ..row };
        let mut tokens = Vec::new();
        for feeds_nextn in [true, false, true] {
            for (position, outputs) in [(0, Outputs::None), (5, Outputs::Last), (10, Outputs::All)]
            {
                let chunk = [1, 2, 3, 4, 5];
                let chunk = Chunk {
                    start: at(position),
                    tokens: &chunk,
                    next: None,
                    outputs,
                    edits: &[],
                    feeds_nextn,
                };
                runner.steps().submit_chunk(&chunk)?;
                runner.finish(&mut tokens)?;
            }
            runner.steps().submit_decode(&[at(15)], &[], feeds_nextn)?;
            runner.finish(&mut tokens)?;
            runner.steps().submit_until_logits(&[at(16)])?;
            runner.steps().submit_logits(&[at(16)], &[], feeds_nextn)?;
            runner.finish(&mut tokens)?;
            runner.finish(&mut tokens)?;
        }
        Ok(())
    });
    done.blocking_recv().unwrap().unwrap().unwrap();
    let submitted = engine.log.lock().submitted.clone();
    let [seen, rested, again] = [0, 6, 12].map(|at| &submitted[at..at + 6]);
    assert_eq!(seen, again);
    let same: Vec<bool> = seen.iter().zip(rested).map(|(one, other)| one == other).collect();
    // Verification and the first half of split steps have only one plan.
    assert_eq!(same, [false, false, true, false, true, false], "{seen:?}, {rested:?}");
}

#[test]
fn a_grammar_without_a_token_differs_from_logits_that_are_not_finite() {
    let engine = Watched::new(1);
    let constraint = engine.handle.exclusive("compile", |runner| {
        runner.text().grammars.compile(&Grammar::Regex("[ab]{9}".into()), &GOES_ON).unwrap()
    });
    let constraint = Some(constraint.blocking_recv().unwrap().unwrap());
    engine.ask(request(prompt(1, 4), 2));
    // Every token that the grammar allows is banned.
    let bias = (0..1024).map(|id| (id, f32::NEG_INFINITY)).collect();
    let processors = LogitsProcessors { bias, ..LogitsProcessors::NONE };
    let asked = Request { processors, constraint, ..request(prompt(1, 4), 4) };
    let error = collect(engine.begin(asked)).unwrap_err();
    assert!(matches!(error, GenerateError::Constraint(_)), "{error}");
}

/// For every kind of request, at every position.
fn all_kinds() -> [Request; 6] {
    let seeded = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
    [
        Request { logprobs: Some(2), prompt_logprobs: true, ..request(prompt(7, 3 * CHUNK), 20) },
        request(prompt(1, 5), 40),
        request(prompt(2, 4 * CHUNK), 30),
        Request { sampling: seeded, ..request(prompt(5, 7), 50) },
        Request { processors: penalised(), ..request(prompt(8, 30), 30) },
        Request {
            stop: vec!["no such text".into()],
            sampling: seeded,
            ..request(prompt(6, 20), 25)
        },
    ]
}

#[test]
fn a_lost_instance_is_reopened_without_affecting_requests() {
    let requests = all_kinds();
    let expected: Vec<Answer> = {
        let engine = Watched::new(4);
        requests.iter().map(|request| engine.ask(request.clone())).collect()
    };
    // During prompts, between them and during answers; one request waits for a slot.
    for fail in [1, 2, 3, 5, 9, 20, 33] {
        let engine = Watched::new(4);
        engine.log.lock().fail = fail;
        let together = engine.begin_together(&requests);
        for (events, expected) in together.into_iter().zip(&expected) {
            assert_eq!(collect(events).unwrap(), *expected, "wait {fail} failed");
        }
        assert_eq!(engine.health(), (1, None), "wait {fail} failed");
        let now = engine.handle.snapshot();
        assert_eq!((now.failures, now.active, now.queued), (0, 0, 0));
    }
}

#[test]
fn a_device_that_is_lost_twice_is_disabled() {
    let engine = Watched::new(2);
    let one = request(prompt(1, 5), 40);
    engine.log.lock().fail = 3;
    let expected = engine.ask(one.clone());
    engine.watch();
    assert_eq!(engine.ask(one.clone()), expected);
    engine.log.lock().fail = 3;
    // The third request has no slot yet.
    let two = request(prompt(2, 4 * CHUNK), 40);
    for events in engine.begin_together(&[one.clone(), two, one.clone()]) {
        let told = collect(events).unwrap_err().to_string();
        let known =
            ["asked to fail", "reloading the model failed: backend cpu cannot be used", "2 times"];
        assert!(known.iter().all(|word| told.contains(word)), "{told}");
    }
    let (losses, disabled) = engine.health();
    assert!(losses == 2 && disabled.unwrap().contains("asked to fail"));
    let now = engine.handle.snapshot();
    assert_eq!((now.state, now.active, now.queued), (State::Empty, 0, 0));
    assert!(now.given_up.unwrap().to_string().contains("lost 2 times"));
    assert_eq!(engine.handle.generate(one).unwrap_err(), GenerateError::NoModel);
    let refused = engine.load().unwrap_err().to_string();
    assert!(refused.contains("lost 2 times"), "{refused}");
    assert_eq!(engine.handle.snapshot().given_up, None, "the load's answer tells");
}

#[test]
fn a_permanently_lost_device_is_not_reopened() {
    let engine = Watched::new(1);
    *engine.log.lock() = Log { fail: 2, for_good: true, ..Log::default() };
    let told = collect(engine.begin(request(prompt(1, 5), 40))).unwrap_err().to_string();
    assert!(told.contains("lost for good"), "{told}");
    assert_eq!(engine.health().0, 1);
}

#[test]
fn a_model_with_equal_first_logits_is_not_served() {
    let engine = Watched::new(1);
    engine.log.lock().logits = Some(0.5);
    let told = collect(engine.begin(request(prompt(1, 5), 40))).unwrap_err().to_string();
    assert!(told.contains("all equal") && told.contains("first step"), "{told}");
    assert_eq!(engine.health(), (0, None), "other models may do");
    let refused = engine.load().unwrap_err().to_string();
    assert!(refused.contains("first step"), "{refused}");
    // Later logits may have any value.
    let engine = Watched::new(1);
    let expected = engine.ask(request(prompt(1, 5), 40));
    engine.log.lock().logits = Some(0.5);
    assert_eq!(engine.ask(request(prompt(1, 5), 40)), expected);
}
