//! A model on a device, driven only through the device interface.

use device::tune::{Case, Choices};
use device::{Data, Device, Instance, Prepared, Request, Ticket};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Plan, fuse};

/// A row of a step: token, position, slot.
pub type Row = (i32, i32, i32);

/// An open instance with the model's weights and recorded plans.
pub struct Session {
    pub instance: Box<dyn Instance>,
    /// One per bucket.
    pub plans: Vec<(Plan, Prepared)>,
    /// Logits per row.
    pub vocabulary: usize,
}

impl Session {
    pub fn new(device: &dyn Device, model: &Model, layout: KvLayout, buckets: &[Bucket]) -> Self {
        Self::tuned(device, model, layout, buckets, None)
    }

    /// Records each bucket's plan without adapters, then with adapters.
    pub fn adapted(
        device: &dyn Device,
        model: &Model,
        layout: KvLayout,
        buckets: &[Bucket],
    ) -> Self {
        let base = buckets.iter().map(|bucket| model.plan(layout, *bucket).unwrap());
        let adapted = buckets.iter().map(|bucket| model.adapted_plan(layout, *bucket).unwrap());
        let plans = base.chain(adapted).map(|plan| fuse(&plan, device.fusions())).collect();
        Self::of(device, model, layout, plans, None)
    }

    /// Records each bucket's plan, then the draft plan of the model's MTP layer, then for each
    /// bucket the plan that leaves no state for drafting, if there is one.
    pub fn drafting(
        device: &dyn Device,
        model: &Model,
        layout: KvLayout,
        buckets: &[Bucket],
    ) -> Self {
        let plans = buckets.iter().map(|bucket| model.plan(layout, *bucket).unwrap());
        let resting = |bucket: &Bucket| model.plan_without_nextn(layout, *bucket, false).unwrap();
        let resting = buckets.iter().filter_map(resting);
        let all = plans.chain(model.draft_plan(layout).unwrap()).chain(resting);
        let plans = all.map(|plan| fuse(&plan, device.fusions())).collect();
        Self::of(device, model, layout, plans, None)
    }

    /// Sets a parameter of every kernel that has it.
    pub fn tuned(
        device: &dyn Device,
        model: &Model,
        layout: KvLayout,
        buckets: &[Bucket],
        parameter: Option<(&str, u32)>,
    ) -> Self {
        let plan = |bucket: &Bucket| fuse(&model.plan(layout, *bucket).unwrap(), device.fusions());
        let plans = buckets.iter().map(plan).collect();
        Self::of(device, model, layout, plans, parameter)
    }

    fn of(
        device: &dyn Device,
        model: &Model,
        layout: KvLayout,
        plans: Vec<Plan>,
        parameter: Option<(&str, u32)>,
    ) -> Self {
        let weights: Vec<_> = model.weights().cloned().collect();
        let states = model.states(layout);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let choices: Option<Choices> = parameter.map(|(name, value)| {
            let of = |case: Case| {
                let choice = device.tunable()?.space(&case)?.heuristic_with(name, value).ok()?;
                Some((case, choice))
            };
            let choices: Choices = device
                .tunable()
                .unwrap()
                .cases(&request)
                .unwrap()
                .into_iter()
                .filter_map(of)
                .collect();
            assert!(!choices.is_empty(), "no kernel has `{name}`");
            choices
        });
        let request = Request { choices: choices.as_ref(), ..request };
        let mut instance = device.open(&request).unwrap();
        assert_eq!(instance.footprint(), device.footprint(&request).unwrap());
        for weight in &weights {
            let name = &weight.name;
            let read = |at, bytes: &mut [u8]| Ok(model.read_weight(name, at, bytes)?);
            instance.upload(name, &read, &|_| {}).unwrap();
        }
        let plans = plans.into_iter().map(|p| (p.clone(), instance.prepare(&p).unwrap())).collect();
        Self { instance, plans, vocabulary: model.hyperparameters().vocabulary }
    }

    pub fn write(&mut self, plan: usize, name: &str, data: Data<'_>) {
        let (plan, prepared) = &self.plans[plan];
        let mailbox = plan.find(Class::Mailbox, name).unwrap();
        self.instance.write(*prepared, mailbox, 0, data).unwrap();
    }

    /// Writes the inputs of greedy rows, padded to the plan's row count. A plan with one row of
    /// logits computes those of the last row.
    pub fn load(&mut self, plan: usize, rows: &[Row]) {
        let bucket = self.plans[plan].0.bucket.rows();
        let column = |f: fn(&Row) -> i32, pad: i32| {
            let mut column: Vec<i32> = rows.iter().map(f).collect();
            column.resize(bucket, pad);
            column
        };
        self.write(plan, ports::TOKENS, Data::I32(&column(|r| r.0, 0)));
        self.write(plan, ports::POSITIONS, Data::I32(&column(|r| r.1, 0)));
        // A plan that resumes from another plan's hidden states has no slots.
        if self.plans[plan].0.find(Class::Mailbox, ports::SLOTS).is_some() {
            self.write(plan, ports::SLOTS, Data::I32(&column(|r| r.2, -1)));
        }
        if self.plans[plan].0.find(Class::Mailbox, ports::LOGIT_ROWS).is_some() {
            self.write(plan, ports::LOGIT_ROWS, Data::I32(&[rows.len() as i32 - 1]));
        }
    }

    pub fn run(&mut self, plan: usize, steps: u32) -> Ticket {
        let ticket = self.instance.submit(self.plans[plan].1, steps).unwrap();
        self.instance.wait(ticket).unwrap();
        ticket
    }

    /// All logits of a plan's last step.
    pub fn logits(&self, plan: usize) -> Vec<f32> {
        self.output(plan, ports::LOGITS)
    }

    /// An output of a plan's last step.
    pub fn output(&self, plan: usize, name: &str) -> Vec<f32> {
        let (plan, prepared) = &self.plans[plan];
        let output = plan.find(Class::Output, name).unwrap();
        let mut values = vec![0.0; plan.buffer(output).elements()];
        self.instance.read(*prepared, output, 0, &mut values).unwrap();
        values
    }
}
