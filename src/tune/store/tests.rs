//! The store by itself: what is written is read again, what is wrong is not used and not lost.

use std::fs;

use super::*;
use crate::plan::DType;

fn choice(pairs: &[(&str, u32)]) -> Choice {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn orin() -> DeviceKey {
    DeviceKey::gpu(87, 16, 1300)
}

fn sample(rows: u32) -> Record {
    Record {
        case: Case { family: "matvec".into(), dtype: DType::Q8_0, rows, cols: 1024, batch: 1 },
        source: "0123456789abcdef".into(),
        choice: choice(&[("threads_per_row", 32), ("warps", 4)]),
        cost: Cost::Measured { ns: 1234.5, interval_ns: [1200.0, 1300.25], gb_per_s: 98.75 },
        heuristic: Heuristic { choice: choice(&[("threads_per_row", 8), ("warps", 4)]), cost: 2e3 },
        when: When::parse("2026-11-20T21:00:00Z").unwrap(),
        clocks: "MAXN, gpu 1300 MHz, emc 3199 MHz".into(),
        candidates: Candidates::Prebuilt,
        rejected: Vec::new(),
    }
}

/// Kernels of one source that take `threads_per_row` of 8 to 64.
struct Kernels(&'static str);

impl Declared for Kernels {
    fn source(&self, case: &Case) -> Option<String> {
        (case.family == "matvec").then(|| self.0.to_owned())
    }

    fn admits(&self, _: &Case, choice: &Choice) -> Result<(), String> {
        for (name, value) in choice {
            match name.as_str() {
                "threads_per_row" if (8..=64).contains(value) => {}
                "threads_per_row" => return Err(format!("{name} is {value}; 8 to 64 are allowed")),
                "warps" => {}
                _ => return Err(format!("unknown parameter {name}")),
            }
        }
        Ok(())
    }
}

const NOW: Kernels = Kernels("0123456789abcdef");

/// A store in a directory of its own.
fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("tune"));
    (dir, store)
}

fn read(store: &Store) -> Loaded {
    store.read(&orin(), Clock::Measured, &NOW).unwrap()
}

#[test]
fn what_is_merged_is_read_and_the_file_is_for_people() {
    let (_dir, store) = store();
    assert_eq!(read(&store), Loaded::default(), "nothing is known before");
    let mut record = sample(2048);
    record.rejected =
        vec![Rejected { choice: choice(&[("warps", 8)]), why: "row 3: \"1.5\"\n".into() }];
    let merged = store.merge(&orin(), std::slice::from_ref(&record)).unwrap();
    assert_eq!(merged, Merged { added: 1, ..Merged::default() });
    assert_eq!(read(&store), Loaded { current: vec![record.clone()], ..Loaded::default() });
    let text = fs::read_to_string(store.path(&orin())).unwrap();
    let body = text.split_once("version").unwrap().1;
    let (body, check) = body.split_once("check       = ").unwrap();
    assert_eq!(
        body,
        r#" = 1

[device]
kind      = "gpu"
sm        = 87
sms       = 16
clock_mhz = 1300

[[entry]]
case        = { family = "matvec", dtype = "Q8_0", rows = 2048, cols = 1024, batch = 1 }
choice      = { threads_per_row = 32, warps = 4 }
time_ns     = 1234.5
interval_ns = [1200.0, 1300.25]
gb_per_s    = 98.75
heuristic   = { choice = { threads_per_row = 8, warps = 4 }, time_ns = 2000.0 }
when        = 2026-11-20T21:00:00Z
clocks      = "MAXN, gpu 1300 MHz, emc 3199 MHz"
candidates  = "prebuilt"
source      = "0123456789abcdef"
rejected    = [
  { choice = { warps = 8 }, why = "row 3: \"1.5\"\u000A" },
]
"#
    );
    assert!(check.ends_with("\"\n\n[end]\n"), "{check}");
    // The same again changes nothing, not even the file.
    let before = fs::metadata(store.path(&orin())).unwrap();
    let again = store.merge(&orin(), &[record]).unwrap();
    assert_eq!(again, Merged { known: 1, ..Merged::default() });
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(fs::metadata(store.path(&orin())).unwrap().ino(), before.ino());
}
