//! Arena: scratch buffers that are alive at the same time share no byte, in random plans.

use plan::{
    Arena, Bucket, Buffer, BufferId, Class, Cost, DType, Gather, Op, Plan, Precision, RepeatId,
    SCRATCH_ALIGN, Step, View,
};
use proptest::prelude::*;

/// Steps that touch random buffers; their results do not matter.
fn plan(sizes: &[usize], steps: &[Vec<usize>]) -> Plan {
    let class = |i: usize| match i % 7 {
        5 => Class::Mailbox,
        6 => Class::Output,
        _ => Class::Scratch,
    };
    let buffer = |(i, n): (usize, &usize)| Buffer {
        name: format!("b{i}"),
        class: class(i),
        dtype: DType::F32,
        shape: vec![*n],
    };
    let buffers: Vec<Buffer> = sizes.iter().enumerate().map(buffer).collect();
    let view = |i: &usize| {
        let i = i % sizes.len();
        View::whole(BufferId(i as u32), &[sizes[i]])
    };
    let op = |touched: &Vec<usize>| match &touched[..] {
        [] => unreachable!("a step writes something"),
        [out] => Op::Iota { out: view(out) },
        [out, table, indices @ ..] => Op::Gather(Gather {
            table: view(table),
            indices: indices.iter().map(view).collect(),
            out: view(out),
        }),
    };
    let step = |touched: &Vec<usize>| Step {
        op: op(touched),
        label: String::new(),
        scope: None,
        repeat: None,
        cost: Cost::default(),
    };
    Plan {
        bucket: Bucket::decode(1, 1),
        precision: Precision::Single,
        steps: steps.iter().map(step).collect(),
        buffers,
        scopes: vec![],
        repeats: vec![],
    }
}

/// Checks the arena of a plan step by step. `place` returns the buffer that contains another one, and the offset in it.
pub(super) fn check(plan: &Plan, place: impl Fn(BufferId) -> (BufferId, u64)) {
    let arena = Arena::new(plan, |step| step, &place);
    let ids = || (0..plan.buffers.len() as u32).map(BufferId);
    let place = &place;
    let inside = |whole: BufferId| ids().filter(move |id| place(*id).0 == whole);
    let touched = |whole: BufferId, steps: &[Step]| {
        steps.iter().any(|step| inside(whole).any(|id| step.touches(id)))
    };
    let scratch = || ids().filter(|id| plan.buffer(*id).class == Class::Scratch);
    let range = |whole: BufferId| {
        let mut starts = inside(whole).filter_map(|id| Some(arena.offset(id)? - place(id).1));
        let start = starts.next().expect("a used scratch buffer has a place");
        assert!(starts.all(|other| other == start), "what lies in a buffer lies where it says");
        assert!(start.is_multiple_of(SCRATCH_ALIGN));
        (start, start + plan.buffer(whole).bytes())
    };
    let mut alive_most = 0;
    for at in 0..plan.steps.len() {
        // Alive at a step: touched up to this step, and touched from it on.
        let bodies =
            plan.blocks().into_iter().filter(|(steps, count)| *count > 1 && steps.contains(&at));
        let body = bodies.map(|(steps, _)| steps).next().unwrap_or(at..at);
        // Every execution of a body reads what was written before the body.
        let again = |id: BufferId| {
            touched(id, &plan.steps[..body.start]) && touched(id, &plan.steps[body.clone()])
        };
        let alive = scratch().filter(|id| {
            let later = touched(*id, &plan.steps[at..]) || again(*id);
            touched(*id, &plan.steps[..=at]) && later
        });
        let mut ranges: Vec<(u64, u64)> = alive.map(&range).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "step {at}: {ranges:?}");
        assert!(ranges.iter().all(|(_, end)| *end <= arena.bytes), "step {at}");
        alive_most = alive_most.max(ranges.iter().map(|(start, end)| end - start).sum());
    }
    let all: u64 = scratch()
        .filter(|id| touched(*id, &plan.steps))
        .map(|id| plan.buffer(id).bytes().next_multiple_of(SCRATCH_ALIGN))
        .sum();
    assert!((alive_most..=all).contains(&arena.bytes), "{} of {alive_most}..{all}", arena.bytes);
    for id in ids() {
        let used = plan.steps.iter().any(|step| step.touches(id));
        let placed = plan.buffer(id).class == Class::Scratch && used;
        assert_eq!(arena.offset(id).is_some(), placed, "`{}`", plan.buffer(id).name);
    }
    assert_eq!(arena.offset(BufferId(plan.buffers.len() as u32)), None);
}

proptest! {
    #[test]
    fn live_buffers_never_overlap(
        sizes in prop::collection::vec(1usize..200, 1..24),
        steps in prop::collection::vec(prop::collection::vec(0usize..24, 1..5), 1..24),
        places in prop::collection::vec(0usize..24, 24),
        body in (0usize..24, 0usize..24),
    ) {
        let mut plan = plan(&sizes, &steps);
        plan.repeats = vec![3];
        let (first, last) = (body.0.min(steps.len()), (body.0 + body.1).min(steps.len()));
        for step in &mut plan.steps[first..last] {
            step.repeat = Some(RepeatId(0));
        }
        check(&plan, |id| (id, 0));
        // Two of three buffers may lie at the end of a larger one.
        let whole = |id: BufferId| BufferId((places[id.index()] % sizes.len()) as u32);
        let size = |id: BufferId| plan.buffer(id).bytes();
        let class = |id: BufferId| plan.buffer(id).class == Class::Scratch;
        check(&plan, |id| match whole(id) {
            other if class(id) && class(other) && id.0 % 3 > 0 && other.0 % 3 == 0 && size(id) <= size(other) => {
                (other, size(other) - size(id))
            }
            _ => (id, 0),
        });
    }
}
