//! The submit function as compiled for aarch64: entry stores, barrier, GP_PUT, barrier, doorbell,
//! in this order and with no other store in between.
//!
//! Skipped, with a message, if the target's standard library is not installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use tegra::class::host::userd;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const BARRIER: &str = "dmb sy";

/// The instructions of the functions whose name contains `submit` and that have a barrier.
fn submit_functions(assembly: &str) -> Vec<Vec<String>> {
    let mut functions = Vec::new();
    let mut current: Option<Vec<String>> = None;
    for line in assembly.lines() {
        let text = line.split("//").next().unwrap().trim();
        if let Some(label) = text.strip_suffix(':') {
            if !label.starts_with('.') {
                current = label.contains("submit").then(Vec::new);
            }
        } else if text == ".cfi_endproc" {
            functions.extend(current.take());
        } else if !text.is_empty() && !text.starts_with('.') {
            let words = text.split_whitespace().collect::<Vec<_>>();
            current.iter_mut().for_each(|function| function.push(words.join(" ")));
        }
    }
    functions.retain(|function| function.iter().any(|line| line == BARRIER));
    functions
}

fn is_store(line: &str) -> bool {
    line.starts_with("st")
}

/// A store of a word, as opposed to a double word or a pair.
fn is_word_store(line: &str) -> bool {
    (line.starts_with("str w") || line.starts_with("stur w")) && line.contains('[')
}

/// A store of a double word at an index: a ring entry.
fn is_entry_store(line: &str) -> bool {
    line.starts_with("str x") && line.ends_with("lsl #3]")
}

/// Checks the rule; the error names the violation.
fn check(function: &[String]) -> Result<(), String> {
    let barriers: Vec<_> = (0..function.len()).filter(|line| function[*line] == BARRIER).collect();
    let &[first, second] = &barriers[..] else {
        return Err(format!("{} barriers instead of 2", barriers.len()));
    };
    let last_entry = function.iter().rposition(|line| is_entry_store(line));
    if last_entry.is_none_or(|entry| entry > first) {
        return Err(format!("entries are stored at {last_entry:?}, the barrier is at {first}"));
    }
    let between: Vec<_> = (first..second).filter(|line| is_store(&function[*line])).collect();
    let &[put] = &between[..] else {
        return Err(format!("{} stores between the barriers instead of 1", between.len()));
    };
    let offset = format!("#{}", userd::GP_PUT);
    let addressed = function[first..=put].iter().any(|line| line.contains(&offset));
    if !is_word_store(&function[put]) || !addressed {
        return Err(format!("not GP_PUT: {}", function[put]));
    }
    let doorbell = function[second..].iter().find(|line| is_store(line) || line.starts_with('b'));
    if !doorbell.is_some_and(|line| is_word_store(line)) {
        return Err(format!("not the doorbell: {doorbell:?}"));
    }
    Ok(())
}

fn assembly() -> Option<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .unwrap();
    let library = String::from_utf8(output.stdout).unwrap();
    if !output.status.success() || !Path::new(library.trim()).is_dir() {
        return None;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aarch64");
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--quiet", "--lib", "--offline", "--target", TARGET])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&place)
        .args(["--", "--emit", "asm", "-C", "codegen-units=1", "-C", "debug-assertions=off"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let newest = fs::read_dir(place.join(TARGET).join("debug/deps"))
        .unwrap()
        .map(|file| file.unwrap())
        .filter(|file| {
            let name = file.file_name().into_string().unwrap();
            name.starts_with("tegra-") && name.ends_with(".s")
        })
        .max_by_key(|file| file.metadata().unwrap().modified().unwrap())
        .expect("the crate's assembly");
    Some(fs::read_to_string(newest.path()).unwrap())
}

#[test]
fn a_submit_orders_entries_put_and_doorbell_on_aarch64() {
    let Some(assembly) = assembly() else {
        println!(
            "skipped: no standard library for {TARGET}, `rustup target add {TARGET}` installs it"
        );
        return;
    };
    let functions = submit_functions(&assembly);
    assert!(!functions.is_empty(), "no submit function with a barrier");
    for function in &functions {
        check(function).unwrap_or_else(|why| panic!("{why}\n{}", function.join("\n")));
        assert_the_rule_detects_changes(function);
    }
}

/// The check detects every change that the rule forbids.
fn assert_the_rule_detects_changes(function: &[String]) {
    let barrier = |from: usize| {
        from + function[from..].iter().position(|line| line == BARRIER).expect("a barrier")
    };
    let first = barrier(0);
    let second = barrier(first + 1);
    for place in [first, second] {
        let mut changed = function.to_vec();
        changed.remove(place);
        assert!(check(&changed).is_err(), "no barrier at {place}");
        let mut changed = function.to_vec();
        changed[place] = "dmb ish".into();
        assert!(check(&changed).is_err(), "a barrier at {place} that reaches the CPUs only");
    }
    let store = |from: usize| {
        from + function[from..].iter().position(|line| is_word_store(line)).expect("a store")
    };
    let mut changed = function.to_vec();
    let late = changed.remove(store(first));
    changed.insert(second, late);
    assert!(check(&changed).is_err(), "GP_PUT after its barrier");
    let mut changed = function.to_vec();
    changed.insert(second, "str x1, [x2, x3, lsl #3]".into());
    assert!(check(&changed).is_err(), "an entry after GP_PUT");
}
