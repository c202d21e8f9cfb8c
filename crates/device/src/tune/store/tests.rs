//! Tests of the store: what is written is read back; invalid content is ignored but preserved.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::*;
use plan::DType;

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

/// Kernels of one source that accept `threads_per_row` of 8 to 64.
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

/// A store in a temporary directory.
fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("tune"));
    (dir, store)
}

fn read(store: &Store) -> Loaded {
    store.read(&orin(), Clock::Measured, &NOW).unwrap()
}

#[test]
fn merged_records_are_read_back_from_readable_text() {
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
    // Merging the same records does not touch the file.
    let before = fs::metadata(store.path(&orin())).unwrap();
    let again = store.merge(&orin(), &[record]).unwrap();
    assert_eq!(again, Merged { known: 1, ..Merged::default() });
    assert_eq!(fs::metadata(store.path(&orin())).unwrap().ino(), before.ino());
}

#[test]
fn entries_of_changed_kernels_are_stale_but_preserved() {
    let (_dir, store) = store();
    store.merge(&orin(), &[sample(1), sample(2)]).unwrap();
    let changed = Kernels("fedcba9876543210");
    let loaded = store.read(&orin(), Clock::Measured, &changed).unwrap();
    assert_eq!((loaded.current.len(), loaded.stale.len()), (0, 2));
    assert_eq!(loaded.stale[0].1, "the kernels have changed: 01234567 before, fedcba98 now");
    let fresh = Record { source: changed.0.into(), ..sample(1) };
    assert_eq!(store.merge(&orin(), std::slice::from_ref(&fresh)).unwrap().added, 1);
    let loaded = store.read(&orin(), Clock::Measured, &changed).unwrap();
    assert_eq!((loaded.current, loaded.stale.len()), (vec![fresh], 2));
    // With the old kernels their records are valid again.
    assert_eq!(read(&store).current, [sample(1), sample(2)]);
    let unknown = Record { case: Case { family: "conv".into(), ..sample(1).case }, ..sample(1) };
    assert_eq!(
        state(&unknown, Clock::Measured, &NOW),
        State::Stale("this program has no such kernels".into())
    );
}

#[test]
fn simulated_counts_are_never_read_as_times() {
    let (_dir, store) = store();
    let counted = Record {
        cost: Cost::Counted(17.0),
        heuristic: Heuristic { cost: 34.0, ..sample(1).heuristic },
        ..sample(1)
    };
    store.merge(&orin(), std::slice::from_ref(&counted)).unwrap();
    let text = fs::read_to_string(store.path(&orin())).unwrap();
    assert!(text.contains("counted     = 17.0") && !text.contains("time_ns"), "{text}");
    let loaded = read(&store);
    assert!(loaded.current.is_empty(), "{loaded:?}");
    assert_eq!(loaded.stale, [(counted.clone(), "counted by the simulator, not measured".into())]);
    // A time does not replace a count, however much later or smaller it is.
    store.merge(&orin(), &[sample(1)]).unwrap();
    assert_eq!(read(&store).current, [sample(1)]);
    let loaded = store.read(&orin(), Clock::Counted, &NOW).unwrap();
    assert_eq!(loaded.current, [counted]);
}

#[test]
fn invalid_values_are_ignored() {
    let (_dir, store) = store();
    let with = |name, value| Record { choice: choice(&[(name, value)]), ..sample(value) };
    store.merge(&orin(), &[with("threads_per_row", 128), with("magic", 1), sample(2)]).unwrap();
    let loaded = read(&store);
    assert_eq!(loaded.current, [sample(2)]);
    let about = |rows: u32, why: &str| (format!("matvec Q8_0 {rows}x1024"), why.to_owned());
    assert_eq!(
        loaded.ignored,
        [
            about(1, "unknown parameter magic"),
            about(128, "threads_per_row is 128; 8 to 64 are allowed")
        ]
    );
}

#[test]
fn the_later_record_wins_and_rejections_stay() {
    let at = |second: u32, ns: f64, warps: u32| Record {
        when: When::parse(&format!("2026-11-20T21:00:{second:02}Z")).unwrap(),
        cost: Cost::Measured { ns, interval_ns: [ns, ns], gb_per_s: 1.0 },
        choice: choice(&[("warps", warps)]),
        ..sample(1)
    };
    let (older, later) = (at(1, 10.0, 2), at(2, 20.0, 4));
    assert_eq!(older.clone().merged(later.clone()), later, "a later measurement counts");
    assert_eq!(at(1, 20.0, 4).merged(older.clone()), older, "of the same second the faster");
    let wrong = |warps| Rejected { choice: choice(&[("warps", warps)]), why: "row 3".into() };
    // Another machine found the later choice to be wrong.
    let warned = Record { rejected: vec![wrong(4), wrong(8)], ..older };
    let merged = later.merged(warned.clone());
    assert_eq!(merged, warned);
    assert!(merged.rejects(&choice(&[("warps", 8)])));
}

#[test]
fn new_and_changed_records_are_written() {
    let (_dir, store) = store();
    store.merge(&orin(), &[sample(1)]).unwrap();
    let later = When::parse("2026-11-21T21:00:00Z").unwrap();
    let records = [Record { when: later, ..sample(1) }, sample(2)];
    let merged = store.merge(&orin(), &records).unwrap();
    assert_eq!((merged.added, merged.changed), (1, 1));
    assert_eq!(read(&store).current, records);
}

#[test]
fn the_gain_is_the_speedup() {
    assert_eq!(sample(1).gain(), 2e3 / 1234.5);
    assert_eq!(Record { cost: Cost::Counted(4e3), ..sample(1) }.gain(), 0.5);
}

#[test]
fn implausible_records_are_not_stored() {
    let (_dir, store) = store();
    let cost = |ns, low, high| Cost::Measured { ns, interval_ns: [low, high], gb_per_s: 1.0 };
    let rejected = vec![Rejected { choice: sample(1).choice, why: "wrong".into() }];
    let named = |family: &str| Case { family: family.into(), ..sample(1).case };
    for (record, why) in [
        (Record { cost: cost(f64::NAN, 1.0, 2.0), ..sample(1) }, "time_ns is NaN"),
        (Record { cost: cost(-1.0, -2.0, 2.0), ..sample(1) }, "time_ns is -1"),
        (Record { cost: cost(3.0, 1.0, 2.0), ..sample(1) }, "outside of its interval"),
        (Record { cost: cost(0.0, 0.0, 1.0), ..sample(1) }, "time_ns is 0"),
        (Record { cost: Cost::Counted(f64::INFINITY), ..sample(1) }, "counted is inf"),
        (Record { source: "xyz".into(), ..sample(1) }, "source is `xyz`"),
        (Record { source: "0123456".into(), ..sample(1) }, "source is `0123456`"),
        (Record { source: "0123456z".into(), ..sample(1) }, "source is `0123456z`"),
        (Record { choice: Choice::new(), ..sample(1) }, "no parameters"),
        (Record { choice: choice(&[("a b", 1)]), ..sample(1) }, "named `a b`"),
        (Record { case: named("x\ny"), ..sample(1) }, "family"),
        (Record { rejected, ..sample(1) }, "is also rejected"),
        (sample(0), "rows is 0"),
    ] {
        let error = store.merge(&orin(), &[sample(2), record]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("not stored"), "{error}");
    }
    assert!(!store.dir().exists(), "nothing was written");
}

#[test]
fn truncated_files_are_ignored_but_preserved() {
    let (_dir, store) = store();
    store.merge(&orin(), &[sample(1), sample(2)]).unwrap();
    let path = store.path(&orin());
    let text = fs::read_to_string(&path).unwrap();
    assert!(File::parse(&text[..text.len() - 1]).is_ok(), "the last line break means nothing");
    for end in 0..text.len() - 1 {
        let cut = File::parse(&text[..end]);
        assert!(matches!(cut, Err(FormatError::Damaged(_))), "{end}: {cut:?}");
    }
    for (n, end) in (0..text.len() - 1).step_by(99).enumerate() {
        fs::write(&path, &text[..end]).unwrap();
        let loaded = read(&store);
        assert_eq!(loaded.damaged.as_ref().unwrap().0, path);
        assert!(loaded.current.is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), text[..end], "reading moves nothing");
        let merged = store.merge(&orin(), &[sample(3)]).unwrap();
        let aside = merged.set_aside.unwrap();
        assert_eq!(
            aside,
            store.dir().join(format!("gpu-sm87-16sm-1300mhz.toml.damaged-{}", n + 1))
        );
        assert_eq!(fs::read_to_string(aside).unwrap(), text[..end]);
        assert_eq!(read(&store).current, [sample(3)]);
    }
    fs::write(&path, b"version = 1 # \xff").unwrap();
    assert_eq!(read(&store).damaged.unwrap().1, "byte 14 is not UTF-8");
    let listed = store.list().unwrap();
    assert_eq!(listed[0].content.as_ref().unwrap_err(), "byte 14 is not UTF-8");
    fs::write(&path, "version = 1\n\nentries = \n").unwrap();
    let why = read(&store).damaged.unwrap().1;
    assert!(why.starts_with("line 3: "), "{why}");
}

#[test]
fn edited_entries_are_ignored_but_preserved() {
    for (from, to, why) in [
        ("threads_per_row = 32", "threads_per_row = 64", "check"),
        ("warps = 4 }\ntime", "wraps = 4 }\ntime", "check"),
        ("time_ns     = 1234.5", "time_ns = 1201", "check"),
        ("time_ns     = 1234.5", "time_ns = nan", "time_ns is NaN"),
        ("time_ns     = 1234.5", "counted = 1234.5", "time_ns, interval_ns and gb_per_s"),
        ("time_ns     = 1234.5\n", "", "are needed"),
        ("Q8_0", "Q9", "Q9"),
        ("rows = 1,", "rows = -1,", "-1"),
        ("2026-11-20T21:00:00Z", "2099-11-20T21:00:00Z", "check"),
        ("2026-11-20T21:00:00Z", "\"yesterday\"", "yesterday"),
        ("2026-11-20T21:00:00Z", "21:00:00", "21:00:00"),
        ("gb_per_s ", "note = 1979-05-27\ngb_per_s ", "note"),
        ("source ", "sauce ", "sauce"),
        ("case ", "\"the \\\"case\" ", "the \"case"),
        ("\"prebuilt\"", "\"guessed\"", "guessed"),
    ] {
        let (_dir, store) = store();
        store.merge(&orin(), &[sample(1)]).unwrap();
        let path = store.path(&orin());
        let text = fs::read_to_string(&path).unwrap();
        let edited = text.replacen(from, to, 1);
        assert_ne!(edited, text, "{from}");
        fs::write(&path, &edited).unwrap();
        let loaded = read(&store);
        assert!(loaded.current.is_empty() && loaded.damaged.is_none(), "{to}: {loaded:?}");
        assert_eq!(loaded.ignored.len(), 1, "{to}");
        assert!(loaded.ignored[0].1.contains(why), "{to}: {:?}", loaded.ignored);
        // Entries that one merge preserves, the next preserves too.
        let kept = |text: &str| format!("{:?}", File::parse(text).unwrap().unusable);
        for rows in [1, 2] {
            store.merge(&orin(), &[sample(rows)]).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(kept(&text), kept(&edited), "{to}: {text}");
        }
        assert_eq!(read(&store).current, [sample(1), sample(2)]);
    }
}

#[test]
fn whitespace_comments_and_deleted_entries_are_valid() {
    let (_dir, store) = store();
    store.merge(&orin(), &[sample(1), sample(2)]).unwrap();
    let path = store.path(&orin());
    let text = fs::read_to_string(&path).unwrap();
    let spaced = text.replace(" = ", "   =  ").replace("[[entry]]", "# mine\n[[ entry ]]\n");
    fs::write(&path, spaced.replace('\n', "\r\n")).unwrap();
    assert_eq!(read(&store).current, [sample(1), sample(2)]);
    let (first, rest) = text.split_once("[[entry]]").unwrap();
    let (_, second) = rest.split_once("[[entry]]").unwrap();
    fs::write(&path, format!("{first}[[entry]]{second}")).unwrap();
    assert_eq!(read(&store).current, [sample(2)]);
}

#[test]
fn another_device_s_records_are_ignored() {
    let (_dir, store) = store();
    let other = DeviceKey::gpu(90, 132, 1980);
    store.merge(&other, &[sample(1)]).unwrap();
    let theirs = fs::read_to_string(store.path(&other)).unwrap();
    // Another device's file under this device's name.
    fs::copy(store.path(&other), store.path(&orin())).unwrap();
    let loaded = read(&store);
    assert!(loaded.current.is_empty());
    let why = loaded.damaged.unwrap().1;
    assert_eq!(why, "it is about another device: GPU with 132 SMs of version 9.0, 1900 MHz");
    let listed = store.list().unwrap();
    assert_eq!(listed[0].content, Err(why));
    assert!(listed[1].content.is_ok());
    let merged = store.merge(&orin(), &[sample(2)]).unwrap();
    let aside = merged.set_aside.unwrap();
    assert!(aside.ends_with("gpu-sm87-16sm-1300mhz.toml.foreign-1"), "{}", aside.display());
    assert_eq!(fs::read_to_string(aside).unwrap(), theirs);
    // An entry of it pasted, and its header changed to this device's.
    let ours = fs::read_to_string(store.path(&orin())).unwrap();
    let pasted = theirs.split_once("[[entry]]").unwrap().1;
    let (head, own) = ours.split_once("[[entry]]").unwrap();
    for text in [
        ours.replace("\n[end]\n", &format!("\n[[entry]]{pasted}")),
        format!("{head}[[entry]]{}[[entry]]{own}", pasted.replace("\n[end]\n", "")),
    ] {
        fs::write(store.path(&orin()), text).unwrap();
        let loaded = read(&store);
        assert_eq!(loaded.current, [sample(2)]);
        assert!(loaded.ignored[0].1.contains("another device"), "{:?}", loaded.ignored);
    }
}

#[test]
fn newer_versions_are_rejected_and_unchanged() {
    let (_dir, store) = store();
    fs::create_dir(store.dir()).unwrap();
    let path = store.path(&orin());
    let text = "version = 2\nentries = [[[1]]]\n";
    fs::write(&path, text).unwrap();
    for error in [
        store.read(&orin(), Clock::Measured, &NOW).unwrap_err(),
        store.merge(&orin(), &[sample(1)]).unwrap_err(),
        open(&path).unwrap_err(),
    ] {
        let message = error.to_string();
        assert!(message.contains("version 2") && message.contains("update orind"), "{message}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(fs::read_dir(store.dir()).unwrap().count(), 2, "the file and its lock");
}

#[test]
fn an_import_takes_valid_records() {
    let (_dir, store) = store();
    let mut file = File::new(orin());
    let stale = Record { source: "fedcba9876543210".into(), ..sample(2) };
    let magic = Record { choice: choice(&[("magic", 1)]), ..sample(3) };
    let counted = Record { cost: Cost::Counted(1.0), ..sample(1) };
    for record in [sample(1), counted.clone(), stale.clone(), magic] {
        assert_eq!(file.add(record), Added::New);
    }
    let imported = store.import(file, &NOW).unwrap();
    assert_eq!(imported.merged.added, 2);
    assert_eq!(imported.stale.len(), 1);
    assert_eq!(imported.stale[0].0, stale);
    assert_eq!(imported.ignored[0].1, "unknown parameter magic");
    assert_eq!(open(&store.path(&orin())).unwrap().records, [sample(1), counted]);
}

#[test]
fn changes_between_files_or_times_are_listed() {
    let day = |day: u32| When::parse(&format!("2026-11-{day:02}T12:00:00Z")).unwrap();
    let mut file = File::new(orin());
    let later = Record { source: "fedcba9876543210".into(), when: day(22), ..sample(1) };
    for record in [sample(1), later.clone(), Record { when: day(21), ..sample(2) }] {
        file.add(record);
    }
    let by = |n: u32| Snapshot { file: &file, until: Some(day(n)) };
    let now = |file| Snapshot { file, until: None };
    let changes = compare(by(20), now(&file));
    assert_eq!(changes.len(), 2, "nothing was found by noon of the first day");
    assert!(changes.iter().all(|change| change.before.is_none() && change.after.is_some()));
    let changes = compare(by(21), by(22));
    assert_eq!((changes[0].before, changes[0].after), (Some(&sample(1)), Some(&later)));
    assert_eq!(changes[1].before, changes[1].after);
    let empty = File::new(orin());
    let changes = compare(now(&file), now(&empty));
    assert_eq!((changes[0].before, changes[0].after), (Some(&later), None));
}

#[test]
fn the_fuzzer_s_corpus_does_not_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tune_store");
    let mut accepted = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = String::from_utf8(fs::read(&path).unwrap()) else { continue };
        let Ok(file) = File::parse(&text) else { continue };
        accepted += 1;
        let once = file.text();
        let again =
            File::parse(&once).unwrap_or_else(|e| panic!("{}: {e}\n{once}", path.display()));
        assert_eq!(again.text(), once, "{}", path.display());
        assert_eq!(again.unusable.len(), file.unusable.len(), "{}", path.display());
        assert_eq!(again.records, file.records, "{}", path.display());
    }
    assert!(accepted >= 4, "{accepted} files of the corpus are files of the store");
}

mod properties {
    use jiff::Timestamp;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::super::*;
    use plan::DType;

    fn choices() -> impl Strategy<Value = Choice> {
        btree_map("[a-z_]{1,8}", any::<u32>(), 1..4)
    }

    fn costs() -> impl Strategy<Value = f64> {
        prop_oneof![1e-3..1e12, Just(f64::MIN_POSITIVE), Just(f64::MAX), Just(1e16), Just(3.0)]
    }

    fn records() -> impl Strategy<Value = Record> {
        let case = ("[a-z]{1,3}", 0..DType::ALL.len(), 1..4u32, 1..u32::MAX, 1..3u32);
        let cost = prop_oneof![
            (costs(), costs()).prop_map(|(ns, gb_per_s)| Cost::Measured {
                ns,
                interval_ns: [ns / 2.0, ns],
                gb_per_s
            }),
            costs().prop_map(Cost::Counted),
        ];
        let rejected = vec((choices(), any::<String>()), 0..3);
        let heuristic = (choices(), costs());
        let words = (any::<String>(), "[0-9a-f]{8}", 0..=Timestamp::MAX.as_second(), 0..3);
        (case, choices(), cost, heuristic, words, rejected)
            .prop_map(|(case, choice, cost, heuristic, words, rejected)| {
                let (family, dtype, rows, cols, batch) = case;
                let (clocks, source, seconds, candidates) = words;
                let candidates =
                    [Candidates::Prebuilt, Candidates::Nvrtc(12, 6), Candidates::BuiltIn]
                        [candidates as usize];
                let when = Timestamp::from_second(seconds).unwrap();
                let rejected = rejected.into_iter().map(|(choice, why)| Rejected { choice, why });
                let dtype = DType::ALL[dtype];
                Record {
                    case: Case { family, dtype, rows, cols, batch },
                    source,
                    choice,
                    cost,
                    heuristic: Heuristic { choice: heuristic.0, cost: heuristic.1 },
                    when: when.into(),
                    clocks,
                    candidates,
                    rejected: rejected.collect(),
                }
            })
            .prop_filter("plausible", |record| record.plausible().is_ok())
    }

    fn keys() -> impl Strategy<Value = DeviceKey> {
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<u32>())
                .prop_map(|(sm, sms, clock)| DeviceKey::gpu(sm, sms, clock)),
            (any::<String>(), any::<String>(), any::<u32>())
                .prop_map(|(model, features, cores)| DeviceKey::cpu(&model, &features, cores)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn written_records_are_read_back(key in keys(), records in vec(records(), 0..6)) {
            let mut file = File::new(key);
            for record in records {
                file.add(record);
            }
            let text = file.text();
            prop_assert_eq!(File::parse(&text), Ok(file), "{}", text);
        }

        /// Two writers in any order, one of them twice.
        #[test]
        fn merging_does_not_depend_on_the_order(a in records(), b in records()) {
            let b = Record { case: a.case.clone(), source: a.source.clone(), ..b };
            prop_assume!(a.identity() == b.identity());
            let once = a.clone().merged(b.clone());
            prop_assert_eq!(&b.clone().merged(a.clone()), &once);
            prop_assert_eq!(&once.clone().merged(a), &once);
            prop_assert_eq!(&once.clone().merged(b), &once);
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "(version = 1|\\[device\\]|\\[\\[entry\\]\\]|\\[end\\]|[a-z]{1,3} = [0-9\"{}\\[\\]]{1,4}|\n){0,12}") {
            if let Ok(file) = File::parse(&text) {
                prop_assert!(File::parse(&file.text()).is_ok());
            }
        }
    }
}
