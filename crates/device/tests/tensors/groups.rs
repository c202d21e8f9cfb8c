//! Scheduling of tensor operations: for each graph, the groups that its primitives run in, and the number of launches on a
//! GPU after fusion.

use device::{Request, gpu};
use plan::graph::{Graph, Result, Tensor};
use plan::{Binary, Bucket, Buffer, Class, Fusions, Outputs, Reduce, Unary, fuse, schedule};

use super::group_cases::{CASES, Sketch};

type Build = dyn Fn(&mut Sketch) -> Result<Vec<Tensor>>;

/// The groups of a graph with these results, by the names of their steps, and its number of launches.
fn schedule_of(build: &Build) -> (Vec<String>, usize) {
    let mut s = Sketch { g: Graph::new(), inputs: 0 };
    for (i, tensor) in build(&mut s).unwrap().into_iter().enumerate() {
        s.g.output(format!("y{i}"), tensor);
    }
    let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
    let plan = s.g.lower(bucket).unwrap();
    let groups = schedule(&plan).iter().map(|group| group.name(&plan)).collect();
    let plan = fuse(&plan, Fusions { convolutions: false, ..Fusions::ALL });
    let of =
        |class| plan.buffers.iter().filter(move |buffer: &&Buffer| buffer.class == class).cloned();
    let (weights, states): (Vec<Buffer>, Vec<Buffer>) =
        (of(Class::Weight).collect(), of(Class::State).collect());
    let plans = std::slice::from_ref(&plan);
    let request = Request { weights: &weights, states: &states, plans, choices: None };
    (groups, gpu::outline(&plan, &request, 16).unwrap().len())
}

/// A graph with its expected groups and launches.
struct Case {
    what: String,
    build: Box<Build>,
    groups: Vec<String>,
    launches: usize,
    why: &'static str,
}

impl Case {
    fn new(
        what: impl Into<String>,
        build: impl Fn(&mut Sketch) -> Result<Vec<Tensor>> + 'static,
        groups: &[&str],
        (launches, why): (usize, &'static str),
    ) -> Self {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Self { what: what.into(), build: Box::new(build), groups, launches, why }
    }
}

const UNARY: [(Unary, &str); 8] = [
    (Unary::Neg, "neg"),
    (Unary::Exp, "exp"),
    (Unary::Ln, "ln"),
    (Unary::Sqrt, "sqrt"),
    (Unary::Recip, "recip"),
    (Unary::Sin, "sin"),
    (Unary::Cos, "cos"),
    (Unary::Floor, "floor"),
];

/// Five graphs with a function of one operand.
fn of_one((op, name): (Unary, &'static str)) -> [Case; 5] {
    [
        Case::new(
            format!("{name} twice"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(op, x)?;
                Ok(vec![s.g.unary(op, y)?])
            },
            &[&format!("{name}+{name}")],
            (1, "an element becomes an element"),
        ),
        Case::new(
            format!("{name} before a reduction"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(op, x)?;
                Ok(vec![s.g.reduce(Reduce::Sum, y, 1)?])
            },
            &[&format!("{name}+reduce-sum")],
            (1, "an element is reduced as it is made"),
        ),
        Case::new(
            format!("{name} after a reduction"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.reduce(Reduce::Max, x, 0)?;
                Ok(vec![s.g.unary(op, y)?])
            },
            &[&format!("reduce-max+{name}")],
            (1, "a result goes on where it is whole"),
        ),
        Case::new(
            format!("{name}, then across"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(op, x)?;
                let y = s.g.permute(y, &[1, 0])?;
                Ok(vec![s.g.unary(op, y)?])
            },
            &[name, name],
            (2, "the other order of the elements is another pass"),
        ),
        Case::new(
            format!("{name}, then in another shape"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(op, x)?;
                let y = s.g.reshape(y, &[3, 8])?;
                Ok(vec![s.g.unary(op, y)?])
            },
            &[&format!("{name}+{name}")],
            (1, "the order of the elements is the same"),
        ),
    ]
}

const BINARY: [(Binary, &str); 6] = [
    (Binary::Add, "add"),
    (Binary::Sub, "sub"),
    (Binary::Mul, "mul"),
    (Binary::Max, "max"),
    (Binary::Rem, "rem"),
    (Binary::LessEqual, "lessequal"),
];

/// Five graphs with a function of two operands.
fn of_two((op, name): (Binary, &'static str)) -> [Case; 5] {
    [
        Case::new(
            format!("{name} of a row and a column"),
            move |s| {
                let (x, y, z) = (s.x(&[4, 6]), s.x(&[6]), s.x(&[4, 1]));
                let y = s.g.binary(op, x, y)?;
                Ok(vec![s.g.binary(op, y, z)?])
            },
            &[&format!("{name}+{name}")],
            (1, "inputs are broadcast where they are read"),
        ),
        Case::new(
            format!("{name} of a value and itself"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(Unary::Neg, x)?;
                Ok(vec![s.g.binary(op, y, y)?])
            },
            &[&format!("neg+{name}")],
            (1, "both are in one register"),
        ),
        Case::new(
            format!("{name} of a row that was computed"),
            move |s| {
                let (x, y) = (s.x(&[4, 6]), s.x(&[6]));
                let y = s.g.unary(Unary::Neg, y)?;
                Ok(vec![s.g.binary(op, x, y)?])
            },
            &["neg", name],
            (2, "a row that is computed is kept, not computed for each"),
        ),
        Case::new(
            format!("{name} of what is reduced and its sum"),
            move |s| {
                let x = s.x(&[4, 6]);
                let sum = s.g.reduce(Reduce::Sum, x, 1)?;
                Ok(vec![s.g.binary(op, x, sum)?])
            },
            &["reduce-sum", name],
            (2, "the sum is whole when the last element is read"),
        ),
        Case::new(
            format!("{name} of neighbours"),
            move |s| {
                let x = s.x(&[4, 6]);
                let y = s.g.unary(Unary::Neg, x)?;
                let (a, b) = (s.g.slice(y, 1, 0, 5)?, s.g.slice(y, 1, 1, 5)?);
                Ok(vec![s.g.binary(op, a, b)?])
            },
            &["neg", name],
            (2, "a neighbour is another element than its own"),
        ),
    ]
}

#[test]
fn each_graph_has_the_expected_groups_and_launches() {
    let mut cases: Vec<Case> = UNARY.into_iter().flat_map(of_one).collect();
    cases.extend(BINARY.into_iter().flat_map(of_two));
    cases.extend(
        CASES
            .iter()
            .map(|&(what, build, groups, launches)| Case::new(what, build, groups, launches)),
    );
    assert!(cases.len() >= 96, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let (groups, launches) = schedule_of(&*case.build);
        if (&groups, launches) != (&case.groups, case.launches) {
            let (wanted, launched) = (&case.groups, case.launches);
            let Case { what, why, .. } = case;
            wrong.push(format!(
                "{what}: {groups:?}, {launches} launches; {wanted:?}, {launched} wanted: {why}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} graphs", cases.len());
}
