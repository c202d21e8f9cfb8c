//! Special values: NaN, zeroes of both signs, infinities and subnormal numbers in every elementwise operation,
//! reduction and concatenation, to the bit, on the including program's devices and on the reference.

use super::devices;
use super::programs::case;
use device::Device;
use device::reference::Reference;
use plan::{Binary, Fusions, Reduce, Unary, maximum};

const SPECIAL: [f32; 16] = [
    f32::NAN,
    0.0,
    -0.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    1e-45,
    -1e-45,
    1e-39,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    1.0,
    -1.0,
    0.5,
    2.5,
    -3.5,
];

/// Operands of all pairs.
fn pairs() -> [Vec<f32>; 2] {
    let left = SPECIAL.iter().flat_map(|a| [*a; SPECIAL.len()]).collect();
    [left, SPECIAL.repeat(SPECIAL.len())]
}

/// Equal bits, or two NaN.
fn is_same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Compares the results of a case, in order, on every device with expected ones.
fn assert_bits(case: &parity::case::Case, want: &[(String, Vec<f32>)]) {
    let reference: [Box<dyn Device>; 1] = [Box::new(Reference)];
    for device in devices().into_iter().chain(reference) {
        let info = device.info();
        let have = case.run_with(&*device, Fusions::NONE, 1).unwrap();
        assert_eq!(have.len(), want.len());
        for (at, (what, want)) in want.iter().enumerate() {
            let have = &have.iter().find(|(name, _)| name.ends_with(&format!("y{at}"))).unwrap().1;
            assert_eq!(have.len(), want.len(), "{what}");
            for (i, (have, want)) in have.iter().zip(want).enumerate() {
                assert!(is_same(*have, *want), "{info:?}: {what} {i}: {have}, {want} expected");
            }
        }
    }
}

#[test]
fn functions_of_special_values_are_exact() {
    let [a, b] = pairs();
    type Function = fn(f32) -> f32;
    let exact: [(Unary, Function); 5] = [
        (Unary::Neg, |x| -x),
        (Unary::Sqrt, f32::sqrt),
        (Unary::Recip, f32::recip),
        (Unary::Floor, f32::floor),
        (Unary::Round, f32::round_ties_even),
    ];
    let two = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::LessEqual,
        Binary::Less,
        Binary::Equal,
        Binary::Rem,
    ];
    let mut want: Vec<(String, Vec<f32>)> = Vec::new();
    for (op, function) in exact {
        want.push((format!("{op:?}"), a.iter().map(|x| function(*x)).collect()));
    }
    for op in two {
        let both = a.iter().zip(&b);
        let values = both.map(|(a, b)| match op {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => maximum(*a, *b),
            Binary::LessEqual => f32::from(u8::from(a <= b)),
            Binary::Less => f32::from(u8::from(a < b)),
            Binary::Equal => f32::from(u8::from(a == b)),
            _ => a % b,
        });
        want.push((format!("{op:?}"), values.collect()));
    }
    // Bounds are constants, which devices may treat otherwise than operands.
    let bounds = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY];
    for bound in bounds {
        want.push((format!("max {bound:?}"), a.iter().map(|x| maximum(*x, bound)).collect()));
        let least = |x: &f32| -maximum(-x, -bound);
        want.push((format!("min {bound:?}"), a.iter().map(least).collect()));
    }
    let chosen = a.iter().zip(&b).map(|(a, b)| if *a == 0.0 { *a } else { *b });
    want.push(("select".into(), chosen.collect()));
    let case = case(|s| {
        let (a, b) = (s.floats("a", &[256], a.clone())?, s.floats("b", &[256], b.clone())?);
        let mut results = Vec::new();
        for (op, _) in exact {
            results.push(s.g.unary(op, a)?);
        }
        for op in two {
            results.push(s.g.binary(op, a, b)?);
        }
        for bound in bounds {
            let (most, least) = (s.g.constant(bound), s.g.constant(-bound));
            results.push(s.g.binary(Binary::Max, a, most)?);
            let negative = s.g.unary(Unary::Neg, a)?;
            let largest = s.g.binary(Binary::Max, negative, least)?;
            results.push(s.g.unary(Unary::Neg, largest)?);
        }
        results.push(s.g.select(a, b, a)?);
        Ok(results)
    });
    assert_bits(&case, &want);
}

#[test]
fn maxima_of_special_values_are_exact() {
    // Rows of one, some and many elements; columns few and many.
    for [rows, columns] in [[16, 1], [3, 5], [7, 70], [300, 3], [2, 700], [5, 16]] {
        let x: Vec<f32> = (0..rows * columns).map(|i| SPECIAL[1 + (i * 7 + i / 11) % 15]).collect();
        for nan in [None, Some(0), Some(rows * columns - 1), Some(rows * columns / 2)] {
            let mut x = x.clone();
            if let Some(at) = nan {
                x[at] = f32::NAN;
            }
            let fold =
                |values: &mut dyn Iterator<Item = f32>| values.fold(f32::NEG_INFINITY, maximum);
            let by_row = x.chunks(columns).map(|row| fold(&mut row.iter().copied()));
            let by_column =
                (0..columns).map(|j| fold(&mut x.iter().skip(j).step_by(columns).copied()));
            let want = [
                (format!("rows {rows} x {columns}"), by_row.collect()),
                (format!("columns {rows} x {columns}"), by_column.collect()),
            ];
            let case = case(|s| {
                let x = s.floats("x", &[rows, columns], x.clone())?;
                Ok(vec![s.g.reduce(Reduce::Max, x, 1)?, s.g.reduce(Reduce::Max, x, 0)?])
            });
            assert_bits(&case, &want);
        }
    }
}

#[test]
fn concatenation_keeps_every_bit() {
    let parts: Vec<Vec<f32>> = (0..3).map(|i| SPECIAL[i..i + 12].to_vec()).collect();
    let whole: Vec<f32> = parts.concat();
    let across = (0..3).flat_map(|row| parts.iter().flat_map(move |part| &part[4 * row..][..4]));
    let want = [
        ("axis 0".to_owned(), whole),
        ("axis 1".to_owned(), across.copied().collect()),
        ("sum".to_owned(), parts.concat().iter().map(|x| x * 1.0).collect()),
    ];
    let case = case(|s| {
        let mut all = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            all.push(s.floats(&format!("x{i}"), &[3, 4], part.clone())?);
        }
        let (first, second) = (s.g.concat(&all, 0)?, s.g.concat(&all, 1)?);
        // Parts that a group computes, which may be written in place.
        let one = s.g.constant(1.0);
        let mut own = Vec::new();
        for part in all {
            own.push(s.g.binary(Binary::Mul, part, one)?);
        }
        Ok(vec![first, second, s.g.concat(&own, 0)?])
    });
    assert_bits(&case, &want);
}
