//! Decoding against CuAssembler's public lists of what older tools wrote
//! (github.com/cloudcores/CuAssembler, `CuAsm/InsAsmRepos/DefaultInsAsmRepos.sm_80.txt` and `sm_86`).
//!
//! The lists are not part of the repository: `SASS_CUASSEMBLER` names their folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sass::decode::decode;

use crate::vectors::Vector;

const LISTS: [&str; 2] = ["sm_80", "sm_86"];

/// Numbers of encodings with the same text that are executed or only decoded, with another text,
/// and without one.
#[derive(Clone, Copy, Default)]
struct Counts {
    executed: usize,
    read: usize,
    other: usize,
    refused: usize,
}

impl Counts {
    fn add(self, other: Self) -> Self {
        Self {
            executed: self.executed + other.executed,
            read: self.read + other.read,
            other: self.other + other.other,
            refused: self.refused + other.refused,
        }
    }
}

/// The records of a list: `(0xOFFSET, 0xBITS, "TEXT;", ...)`.
fn records(file: &Path) -> Vec<Vector> {
    let list = fs::read_to_string(file).unwrap();
    let number = |digits: &str| u128::from_str_radix(digits, 16).ok();
    let record = |part: &str| {
        let (offset, rest) = part.split_once(", 0x")?;
        let (bits, rest) = rest.split_once(", \"")?;
        let (text, _) = rest.split_once('"')?;
        let text = text.trim_end_matches(';').trim().to_owned();
        let (offset, bits) = (number(offset)? as usize, number(bits)?);
        Some(Vector { file: file.to_owned(), bits, offset, text })
    };
    list.split("(0x").skip(1).filter_map(record).collect()
}

/// The counts of each opcode in a list, and a report of what is not executed.
fn compared(list: &str, folder: &Path) -> (BTreeMap<String, Counts>, String) {
    let mut all: BTreeMap<String, Counts> = BTreeMap::new();
    let mut report = String::new();
    for vector in records(&folder.join(format!("DefaultInsAsmRepos.{list}.txt"))) {
        let Vector { bits, offset, ref text, .. } = vector;
        let name = text.split(' ').find(|word| !word.starts_with('@')).unwrap();
        let counts = all.entry(name.split('.').next().unwrap().to_owned()).or_default();
        let (place, why) = match vector.ours() {
            Ok(_) if vector.executed() => {
                counts.executed += 1;
                continue;
            }
            Ok(_) => (&mut counts.read, "read only".to_owned()),
            Err(ours) if decode(bits, offset).is_ok() => (&mut counts.other, ours),
            Err(why) => (&mut counts.refused, why),
        };
        *place += 1;
        writeln!(report, "{list} {bits:032x} {offset:#x}\n    {text}\n    {why}").unwrap();
    }
    (all, report)
}

#[test]
fn the_public_list_table_of_the_page_is_correct() {
    let Some(folder) = std::env::var_os("SASS_CUASSEMBLER").map(PathBuf::from) else { return };
    let [(first, mut report), (second, more)] = LISTS.map(|list| compared(list, &folder));
    report.push_str(&more);
    let lists = [first, second];
    let sum = |counts: &BTreeMap<String, Counts>| {
        counts.values().fold(Counts::default(), |sum, counts| sum.add(*counts))
    };
    let row = |name: &str, [a, b]: [Counts; 2]| {
        let cells =
            [a, b].map(|c| format!("{} | {} | {} | {}", c.executed, c.read, c.other, c.refused));
        format!("| {name} | {} | {} |", cells[0], cells[1])
    };
    let names: BTreeSet<&String> = lists.iter().flat_map(|l| l.keys()).collect();
    let mut rows = vec![row("all", [sum(&lists[0]), sum(&lists[1])])];
    for name in names {
        let counts = [0, 1].map(|at| lists[at].get(name).copied().unwrap_or_default());
        if counts.iter().any(|counts| counts.read + counts.other + counts.refused > 0) {
            rows.push(row(&format!("`{name}`"), counts));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator-internals.md");
    let document = fs::read_to_string(path).unwrap();
    let mut missing = String::new();
    for row in &rows {
        writeln!(report, "{row}").unwrap();
        if !document.lines().any(|line| line.starts_with(row)) {
            writeln!(missing, "{row}").unwrap();
        }
    }
    std::io::stdout().write_all(report.as_bytes()).unwrap();
    assert!(missing.is_empty(), "docs/simulator-internals.md must say:\n{missing}");
}
