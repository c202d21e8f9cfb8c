//! The arrows in `ARCHITECTURE.md` and those in the code are the same: no room uses one that is not
//! below it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The table: rooms, from the bottom up, and what each may use.
fn allowed() -> Vec<(String, BTreeSet<String>)> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = page.split_once("```arrows\n").unwrap();
    let (table, _) = table.split_once("```").unwrap();
    let row = |line: &str| {
        let (room, uses) = line.split_once(':').unwrap();
        (room.to_owned(), uses.split_whitespace().map(str::to_owned).collect())
    };
    table.lines().map(row).collect()
}

/// Each room's source files.
fn rooms() -> BTreeMap<String, Vec<PathBuf>> {
    let mut rooms: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !["bin", "lib"].contains(&name.as_str()) {
            files(&path, rooms.entry(name).or_default());
        }
    }
    rooms
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
        found.push(path.to_owned());
    }
}

/// First path segments after `crate::`, in code that is not a comment and not a test.
fn used(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut used = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        let mut depth = 0;
        // One path, or the first segments of a group in braces.
        let mut starts = vec![0];
        for (i, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ';' => break,
                _ => {}
            }
            if i == 0 && c == '{' {
                starts.clear();
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && (c == '{' && i == 0 || c == ',') {
                starts.push(i + 1);
            }
        }
        for start in starts {
            let path = rest[start..].trim_start();
            let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
            used.insert(path[..end].to_owned());
        }
    }
    used.remove("");
    used
}

#[test]
fn the_scanner_sees_every_form_of_use() {
    let source = "use crate::{\n    a::{x, y},\n    b,\n};\nuse crate::c::d;\n// crate::no\n\
                  fn f(_: crate::e::F) { crate::g::h() }\n#[cfg(test)]\nmod tests {\nuse crate::no;";
    let want = ["a", "b", "c", "e", "g"].map(str::to_owned);
    assert_eq!(used(source), want.into());
}

#[test]
fn arrows_run_downward_only() {
    let (allowed, rooms) = (allowed(), rooms());
    let listed: BTreeSet<&String> = allowed.iter().map(|(room, _)| room).collect();
    assert_eq!(listed, rooms.keys().collect(), "the table's rooms are those in src/");
    for (i, (room, uses)) in allowed.iter().enumerate() {
        let below: BTreeSet<String> = allowed[..i].iter().map(|(room, _)| room.clone()).collect();
        assert!(uses.is_subset(&below), "`{room}` is below something that it uses");
        for file in &rooms[room] {
            for other in used(&fs::read_to_string(file).unwrap()) {
                assert!(
                    other == *room || uses.contains(&other),
                    "{}: uses `{other}`, which `{room}` must not",
                    file.display()
                );
            }
        }
    }
}
