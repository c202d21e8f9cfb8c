//! Machine instructions that the assembler generates for the PTX manual's instructions: which are
//! executed, only decoded, or refused, and why.
//!
//! `tests/data/forms.py` generates `ptx.txt`: a line with `#` names a family, one with `:` a PTX
//! instruction, followed by the machine instructions of new shapes. `refused.txt` lists those that
//! are not executed: the beginning of their shape, a tab, and the reason.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::vectors::{Vector, read, shape};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

/// A family of PTX instructions.
struct Family {
    name: String,
    /// Instructions of PTX.
    forms: usize,
    vectors: Vec<Vector>,
}

fn families() -> Vec<Family> {
    let file = Path::new(DATA).join("sm_87/ptx.txt");
    let mut vectors = read(&file).into_iter();
    let mut families: Vec<Family> = Vec::new();
    for line in fs::read_to_string(&file).unwrap().lines() {
        if let Some(name) = line.strip_prefix("# ") {
            families.push(Family { name: name.to_owned(), forms: 0, vectors: Vec::new() });
            continue;
        }
        let family = families.last_mut().unwrap();
        match line.as_bytes()[0] {
            b':' => family.forms += 1,
            b'@' => {}
            _ => family.vectors.extend(vectors.next()),
        }
    }
    assert!(vectors.next().is_none());
    families
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Executed,
    Decoded,
    Refused,
    /// Executed, but written in another way.
    Miswritten,
}

fn state(vector: &Vector) -> State {
    match (vector.ours(), vector.executed()) {
        (Ok(_), true) => State::Executed,
        (Ok(_), false) => State::Decoded,
        (Err(_), true) => State::Miswritten,
        (Err(_), false) => State::Refused,
    }
}

#[test]
fn refused_instructions_are_listed_with_a_reason() {
    let list = fs::read_to_string(Path::new(DATA).join("refused.txt")).unwrap();
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for line in list.lines() {
        let (beginning, reason) =
            line.split_once('\t').unwrap_or_else(|| panic!("no reason: {line}"));
        assert!(!reason.is_empty() && uses.insert(beginning, 0).is_none(), "{line}");
    }
    let mut wrong = String::new();
    for vector in families().iter().flat_map(|family| &family.vectors) {
        let shape = shape(&vector.text);
        let listed = uses.iter_mut().find(|(beginning, _)| shape.starts_with(**beginning));
        match (state(vector), listed) {
            (State::Executed, None) => {}
            (State::Executed, Some((beginning, _))) => {
                writeln!(wrong, "executed, and listed as {beginning}: {}", vector.text).unwrap();
            }
            (State::Decoded | State::Refused, Some((_, count))) => *count += 1,
            _ => {
                let why = vector.ours().unwrap_or_else(|ours| ours);
                writeln!(wrong, "{:032x} {shape}\n    {why}", vector.bits).unwrap();
            }
        }
    }
    for (beginning, _) in uses.iter().filter(|(_, count)| **count == 0) {
        writeln!(wrong, "nothing is like this: {beginning}").unwrap();
    }
    assert!(wrong.is_empty(), "not as in refused.txt:\n{wrong}");
}

#[test]
fn the_instruction_table_of_the_page_is_correct() {
    let mut table = String::new();
    let mut all = [0; 5];
    let mut row = |name: &str, counts: [usize; 5]| {
        let [forms, machine, executed, decoded, refused] = counts;
        writeln!(table, "| {name} | {forms} | {machine} | {executed} | {decoded} | {refused} |")
            .unwrap();
    };
    for family in families() {
        let states: Vec<State> = family.vectors.iter().map(state).collect();
        let of = |wanted| states.iter().filter(|state| **state == wanted).count();
        let counts = [
            family.forms,
            states.len(),
            of(State::Executed),
            of(State::Decoded),
            of(State::Refused),
        ];
        row(&family.name, counts);
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    row("all", all);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator-internals.md");
    let document = fs::read_to_string(path).unwrap();
    assert!(document.contains(&table), "docs/simulator-internals.md must say:\n{table}");
    assert!(all[0] > 3000 && all[1] > 3900, "{table}");
}
