//! The arrows in `ARCHITECTURE.md`: between the modules of `src/`, and from them to the crates below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The table: rooms, from the bottom up, and what each may use.
fn allowed(page: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let (_, table) = page.split_once("```arrows\n").unwrap();
    let (table, _) = table.split_once("```").unwrap();
    let row = |line| {
        let (room, uses): (&str, &str) = str::split_once(line, ':').unwrap();
        (room, uses.split_whitespace().collect())
    };
    table.lines().map(row).collect()
}

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
        found.push(path.to_owned());
    }
}

/// The rooms and crates that code names, tests and comments left out.
fn used(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let path = Regex::new(
        r"\bcrate::(\w+)|(?:^|[^:\w])(plan|model|device|telemetry|fetch|tegra\w*|sass|orind_kernels)::",
    )
    .unwrap();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| path.captures_iter(line))
        .map(|found| found.iter().skip(1).flatten().next().unwrap().as_str().to_owned())
        .collect()
}

#[test]
fn the_scanner_sees_rooms_and_crates() {
    let source = "use crate::a::b;\n// crate::no\nfn f(_: &plan::Plan) { crate::c::d(tegra::e()) }\n\
                  use super::model::no;\n#[cfg(test)]\nmod tests {\nuse crate::no;";
    assert_eq!(used(source), ["a", "c", "plan", "tegra"].map(str::to_owned).into());
    let grouped = Regex::new(r"crate::\{").unwrap();
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        assert!(!grouped.is_match(&source), "{}: one `use crate::` a room", file.display());
    }
}

#[test]
fn arrows_run_downward_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut rooms: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(root.join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["bin", "lib"].contains(&name.as_str()) {
            sources(&path, rooms.entry(name).or_default());
        }
    }
    let allowed = allowed(&page);
    let listed: BTreeSet<&str> = allowed.iter().map(|(room, _)| *room).collect();
    assert_eq!(
        listed,
        rooms.keys().map(String::as_str).collect(),
        "the table's rooms are those in src/"
    );
    for (i, (room, uses)) in allowed.iter().enumerate() {
        let mut above = allowed[i..].iter().map(|(room, _)| room);
        assert!(above.all(|r| !uses.contains(r)), "`{room}` is below something that it uses");
        for file in &rooms[*room] {
            for other in used(&fs::read_to_string(file).unwrap()) {
                assert!(
                    other == *room || uses.contains(other.as_str()),
                    "{}: uses `{other}`, which `{room}` must not",
                    file.display()
                );
            }
        }
    }
}

/// The tour names every file of the core, and a number of lines that they may have, and that of gradients by itself.
#[test]
fn the_core_can_be_read_in_one_sitting() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/core.md")).unwrap();
    let mut budgets = page.split("at most **").skip(1).map(|rest| {
        let (budget, _) = rest.split_once(" lines**").unwrap();
        budget.replace(',', "").parse::<usize>().unwrap()
    });
    let (budget, of_gradients) = (budgets.next().unwrap(), budgets.next().unwrap());
    let mut files = Vec::new();
    for folder in ["crates/plan/src", "crates/device/src/reference"] {
        sources(&root.join(folder), &mut files);
    }
    files.retain(|file| !file.starts_with(root.join("crates/plan/src/quant")));
    let mut lines = 0;
    for file in &files {
        let name = file.strip_prefix(root).unwrap().display();
        assert!(page.contains(&format!("](../{name})")), "docs/core.md does not name {name}");
        let source = fs::read_to_string(file).unwrap();
        let own = source.split("#[cfg(test)]").next().unwrap().lines().count();
        if file.ends_with("graph/grad.rs") {
            assert!(own <= of_gradients, "{own} lines; docs/core.md allows {of_gradients}");
        }
        lines += own;
    }
    assert!(lines <= budget, "the core has {lines} lines; docs/core.md allows {budget}");
    assert!(lines + 300 > budget, "the core has {lines} lines; docs/core.md should allow fewer");
}
