//! `orinctl tune show`, `export`, `import` and `diff`, as a program with directories of their own.
use std::fs;
use std::path::Path;
use std::process::Output;

use device::tune::store::File;
use device::tune::{Candidates, Case, Cost, DeviceKey, Heuristic, Record, Rejected, Store, When};
use orind_testing::program::{command, stderr, stdout};
use plan::DType;

fn tune(dir: &Path, args: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_orinctl"))
        .arg("tune")
        .args(args)
        .arg("--tune-dir")
        .arg(dir)
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

/// Key of this machine's CPU, and a valid record for its kernels.
fn here() -> (DeviceKey, Record) {
    let cpu = device::named("cpu", "scalar", 2).unwrap();
    let case =
        Case { family: "project".into(), dtype: DType::Q8_0, rows: 2048, cols: 1024, batch: 1 };
    let kernels = cpu.tunable().unwrap();
    let space = kernels.space(&case).unwrap();
    let record = Record {
        case,
        source: space.source,
        choice: space.heuristic.clone(),
        cost: Cost::Measured { ns: 12_345.0, interval_ns: [12e3, 13e3], gb_per_s: 98.76 },
        heuristic: Heuristic { choice: space.heuristic, cost: 24_690.0 },
        when: When::parse("2026-11-20T21:00:00Z").unwrap(),
        clocks: "governor performance".into(),
        candidates: Candidates::BuiltIn,
        rejected: Vec::new(),
    };
    (kernels.key(), record)
}

fn changed(record: &Record) -> Record {
    let case = Case { rows: 512, ..record.case.clone() };
    Record { case, source: "0123456789abcdef".into(), ..record.clone() }
}

#[test]
fn show_prints_used_entries_and_others_with_all() {
    let dir = tempfile::tempdir().unwrap();
    let none = out(&tune(&dir.path().join("none"), &["show"]));
    assert!(none.starts_with("nothing is stored in "), "{none}");
    let (key, record) = here();
    let store = Store::new(dir.path());
    let rejected = vec![Rejected { choice: [("warps".to_owned(), 9)].into(), why: "row 3".into() }];
    let heuristic = Heuristic { cost: 34.0, ..record.heuristic.clone() };
    let counted = Record { cost: Cost::Counted(17.0), heuristic, rejected, ..record.clone() };
    store.merge(&key, &[record.clone(), changed(&record)]).unwrap();
    store.merge(&DeviceKey::gpu(87, 3, 100), &[counted]).unwrap();
    fs::write(dir.path().join("gpu-x.toml"), "version = 1\n").unwrap();
    let text = out(&tune(dir.path(), &["show"]));
    let line = text.lines().find(|line| line.contains("project Q8_0 2048x1024")).unwrap();
    for part in ["12.3 us", "98.8", "24.7 us", "2.00x", "2026-11-20", "current"] {
        assert!(line.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("512x1024") && text.contains("1 not used; --all"), "{text}");
    assert!(text.contains("not used: it names no device"), "{text}");
    let simulated = text.split_once("gpu-sm87-3sm-100mhz.toml").unwrap().1;
    let simulated = simulated.split_once("gpu-x.toml").unwrap().0;
    assert!(simulated.contains("not a device of this machine"), "{text}");
    assert!(
        simulated.contains("17 counted")
            && simulated.contains("34 counted")
            && !simulated.contains(" us"),
        "{text}"
    );
    let text = out(&tune(dir.path(), &["show", "--all"]));
    let line = text.lines().find(|line| line.contains("512x1024")).unwrap();
    assert!(line.contains("stale: the kernels have changed: 01234567 before"), "{text}");
    let json = out(&tune(dir.path(), &["show", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let cpu = &json[0];
    assert_eq!(cpu["here"], true);
    assert_eq!(cpu["device"]["kind"], "cpu");
    assert_eq!(
        (&cpu["entries"][0]["state"], &cpu["entries"][1]["state"]),
        (&"stale".into(), &"current".into())
    );
    assert_eq!(cpu["entries"][1]["time_ns"], 12_345.0);
    let gpu = &json[1]["entries"][0];
    assert_eq!((&gpu["counted"], &gpu["rejected"][0]["why"]), (&17.0.into(), &"row 3".into()));
    assert!(gpu.get("time_ns").is_none() && gpu["heuristic"].get("time_ns").is_none(), "{gpu}");
}

#[test]
fn exported_entries_are_imported_on_the_same_device() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (key, record) = here();
    let store = Store::new(from.path());
    store.merge(&key, &[record.clone(), changed(&record)]).unwrap();
    let text = out(&tune(from.path(), &["export", "-"]));
    assert_eq!(text, fs::read_to_string(store.path(&key)).unwrap());
    let file = from.path().join("taken").display().to_string();
    let told = tune(from.path(), &["export", &file]);
    assert!(
        told.status.success() && stderr(&told).contains("2 entries about "),
        "{}",
        stderr(&told)
    );
    let said = out(&tune(to.path(), &["import", &file]));
    assert!(said.starts_with("1 new, 0 changed, 0 known: "), "{said}");
    assert!(
        said.contains("stale, not imported: project Q8_0 512x1024: the kernels have"),
        "{said}"
    );
    assert_eq!(
        File::parse(&out(&tune(to.path(), &["export", "-"]))).unwrap().records,
        std::slice::from_ref(&record)
    );
    // Entries of another device are always refused.
    let other = DeviceKey::gpu(90, 131, 1900);
    store.merge(&other, &[record]).unwrap();
    let told = tune(from.path(), &["export", &file]);
    assert!(
        stderr(&told).contains("--device is needed; devices in the store: cpu-"),
        "{}",
        stderr(&told)
    );
    out(&tune(from.path(), &["export", &file, "--device", &other.stem()]));
    let told = tune(to.path(), &["import", &file]);
    assert_eq!(told.status.code(), Some(1));
    assert!(
        stderr(&told).contains("a device that this machine does not have: GPU with 131 SMs"),
        "{}",
        stderr(&told)
    );
    assert!(!to.path().join(other.stem() + ".toml").exists());
    fs::write(&file, "version = 7").unwrap();
    let told = stderr(&tune(to.path(), &["import", &file]));
    assert!(told.contains("version 7") && told.contains("update orind"), "{told}");
}

#[test]
fn diff_compares_two_files_or_dates() {
    let dir = tempfile::tempdir().unwrap();
    let (key, record) = here();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, records: &[Record]| {
        let mut file = File::new(key.clone());
        for record in records {
            file.add(record.clone());
        }
        fs::write(dir.path().join(name), file.text()).unwrap();
    };
    let faster = Record {
        cost: Cost::Measured { ns: 6172.5, interval_ns: [6e3, 7e3], gb_per_s: 197.5 },
        when: When::parse("2026-11-22T00:00:00Z").unwrap(),
        ..record.clone()
    };
    write("a", &[record.clone(), changed(&record)]);
    write("b", &[faster.clone(), changed(&record)]);
    let text = out(&tune(dir.path(), &["diff", &path("a"), &path("b")]));
    assert!(text.contains("12.3 us -> 6.17 us (2.00x)") && text.contains("1 unchanged"), "{text}");
    let store = Store::new(dir.path().join("store"));
    store.merge(&key, &[record, Record { case: changed(&faster).case, ..faster }]).unwrap();
    let text = out(&tune(store.dir(), &["diff", "2026-11-20", "2026-11-22"]));
    let new = text.lines().find(|line| line.starts_with("  new")).unwrap();
    assert!(new.contains("512x1024") && text.contains("1 unchanged"), "{text}");
    assert_eq!(tune(dir.path(), &["diff", "2026-11-20", &path("a")]).status.code(), Some(2));
}
