//! Structural mutations of ONNX's node tests: each file is run or refused, without a panic, within
//! two seconds and 64 MiB.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use device::cpu::Cpu;
use onnx::{Array, Model, Network};
use orind_testing::nodes::{Case, cases};
use orind_testing::random::Random;

/// A field of a protobuf message.
#[derive(Clone)]
enum Field {
    Varint(u64, u64),
    /// Fixed bytes of 4 or 8.
    Fixed(u64, Vec<u8>),
    Bytes(u64, Vec<u8>),
    Message(u64, Vec<Field>),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << (7 * at);
        if byte & 128 == 0 {
            return Some(number);
        }
    }
    None
}

/// Fields of a message; `None` if the bytes are none.
fn fields(mut bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        all.push(match (key & 7, key >> 3) {
            (_, 0) => return None,
            (0, _) => Field::Varint(key, varint(&mut bytes)?),
            (kind @ (1 | 5), _) => {
                let (value, rest) = bytes.split_at_checked(if kind == 1 { 8 } else { 4 })?;
                bytes = rest;
                Field::Fixed(key, value.to_vec())
            }
            (2, _) => {
                let length = varint(&mut bytes)? as usize;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                match fields(value, depth + 1).filter(|fields| depth < 8 && !fields.is_empty()) {
                    Some(fields) => Field::Message(key, fields),
                    None => Field::Bytes(key, value.to_vec()),
                }
            }
            _ => return None,
        });
    }
    Some(all)
}

fn put(mut number: u64, into: &mut Vec<u8>) {
    while number >= 128 {
        into.push(number as u8 | 128);
        number >>= 7;
    }
    into.push(number as u8);
}

fn bytes(fields: &[Field]) -> Vec<u8> {
    let mut all = Vec::new();
    for field in fields {
        let (Field::Varint(key, _)
        | Field::Fixed(key, _)
        | Field::Bytes(key, _)
        | Field::Message(key, _)) = field;
        put(*key, &mut all);
        match field {
            Field::Varint(_, number) => put(*number, &mut all),
            Field::Fixed(_, value) => all.extend(value),
            Field::Bytes(_, value) => {
                put(value.len() as u64, &mut all);
                all.extend(value);
            }
            Field::Message(_, fields) => {
                let value = bytes(fields);
                put(value.len() as u64, &mut all);
                all.extend(value);
            }
        }
    }
    all
}

fn count(fields: &[Field]) -> usize {
    let inner = |field: &Field| match field {
        Field::Message(_, fields) => count(fields),
        _ => 0,
    };
    fields.iter().map(|field| 1 + inner(field)).sum()
}

/// Collects texts and tensors' contents, which others are replaced by.
fn leaves(fields: &[Field], into: &mut Vec<Vec<u8>>) {
    for field in fields {
        match field {
            Field::Bytes(_, value) => into.push(value.clone()),
            Field::Message(_, fields) => leaves(fields, into),
            Field::Varint(..) | Field::Fixed(..) => {}
        }
    }
}

/// Changes the field at a position in depth-first order.
fn change(
    fields: &mut Vec<Field>,
    at: &mut usize,
    random: &mut Random,
    others: &[Vec<u8>],
) -> bool {
    const NUMBERS: [u64; 12] =
        [0, 1, 2, 7, 64, 255, 1 << 20, 1 << 31, 1 << 40, 1 << 62, u64::MAX, i64::MIN as u64];
    for i in 0..fields.len() {
        if *at > 0 {
            *at -= 1;
            if let Field::Message(_, inner) = &mut fields[i]
                && change(inner, at, random, others)
            {
                return true;
            }
            continue;
        }
        match random.below(6) {
            0 => drop(fields.remove(i)),
            1 => fields.insert(i, fields[i].clone()),
            2 => {
                let other = random.below(fields.len());
                fields.swap(i, other);
            }
            _ => match &mut fields[i] {
                Field::Varint(_, number) => *number = random.pick(&NUMBERS),
                Field::Fixed(_, value) => {
                    let byte = random.pick(&[0, 0x7f, 0x80, 0xff]);
                    value.fill(byte);
                }
                Field::Bytes(_, value) if random.below(3) > 0 && !others.is_empty() => {
                    value.clone_from(&others[random.below(others.len())]);
                }
                Field::Bytes(_, value) => value.truncate(value.len() / 2),
                Field::Message(_, inner) => inner.truncate(inner.len() / 2),
            },
        }
        return true;
    }
    false
}

fn mutated(case: &Case, random: &mut Random) -> Vec<u8> {
    let mut model = fields(&case.model, 0).unwrap();
    let mut others = Vec::new();
    leaves(&model, &mut others);
    for _ in 0..1 + random.below(3) {
        let mut at = random.below(count(&model).max(1));
        change(&mut model, &mut at, random, &others);
    }
    bytes(&model)
}

/// Number from `/proc/self/status` in MiB.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn mutate(number: usize) {
    let (all, device) = (cases(), Cpu::detect());
    let mut random = Random(48);
    let mut accepted = 0;
    for at in 0..number {
        let case = &all[random.below(all.len())];
        let model = mutated(case, &mut random);
        let (seed, name) = (at, &case.name);
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let (begin, before) = (Instant::now(), memory("VmRSS"));
        let run = || {
            let inputs = case.inputs.iter().map(|input| Array::parse(input));
            let inputs: BTreeMap<String, Array> = inputs.collect::<Result<_, _>>().ok()?;
            let model = Model::parse(&model).ok()?;
            Network::of(&model, &device, &inputs).ok()?.run(&inputs).ok()
        };
        let end = catch_unwind(AssertUnwindSafe(run));
        assert!(end.is_ok(), "mutation {seed} of {name} panics");
        accepted += usize::from(end.is_ok_and(|end| end.is_some()));
        // The limit is 2 s; this machine may be busy.
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "mutation {seed} of {name}: {:?}",
            begin.elapsed()
        );
        let peak = memory("VmHWM");
        assert!(peak < before + 64, "mutation {seed} of {name} takes {} MiB", peak - before);
    }
    assert!(accepted > number / 20, "{accepted} of {number} are accepted");
}

#[test]
#[ignore = "nightly"]
fn nightly_mutated_files_are_run_or_refused() {
    mutate(50_000);
}

#[test]
fn mutated_files_are_run_or_refused() {
    mutate(400);
}
