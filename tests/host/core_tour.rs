//! `docs/core.md`, the tour of the core, names every file of the core and the maximum of their lines.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
        found.push(path.to_owned());
    }
}

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
