//! A directory of bundles: permissions, limits, leftovers and errors.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tegra_bundle::{Bundle, Directory, Header, LIMIT, MAX_BUNDLES, MAX_BYTES, Range};

const TIME: &str = "20261123T140509Z";

fn bundle(bytes: u64) -> Bundle {
    let contents = vec![Range { va: 0x1000, bytes }];
    Bundle {
        header: Header { message: "it failed".into(), contents, ..Header::default() },
        memory: vec![vec![7; bytes as usize]],
    }
}

fn keep(directory: &Directory, bytes: u64) -> PathBuf {
    let place = directory.place(directory.next_number(), TIME);
    directory.keep(&place, &bundle(bytes)).unwrap();
    place
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn bundles_are_complete_and_private() {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::of_state(&state.path().join("deeper"));
    let path = state.path().join("deeper").join("faults");
    assert_eq!(directory.path(), path);
    assert!(directory.list().unwrap().is_empty());
    let place = keep(&directory, 100);
    assert_eq!(place.file_name().unwrap(), "fault-20261123T140509Z-1.bundle");
    assert_eq!((mode(&path), mode(&place)), (0o700, 0o600));
    assert_eq!(Bundle::read(&place).unwrap(), bundle(100));
    assert_eq!(Header::read(&place).unwrap(), bundle(100).header);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
}

#[test]
fn the_lowest_numbers_are_removed_first() {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::of_state(state.path());
    for year in [2026, 1970, 2038].into_iter().cycle().take(MAX_BUNDLES + 4) {
        let place = directory.place(directory.next_number(), &format!("{year}1123T140509Z"));
        directory.keep(&place, &bundle(10)).unwrap();
    }
    let numbers: Vec<String> = directory.list().unwrap().iter().map(|path| number(path)).collect();
    let expected: Vec<String> = (5..=MAX_BUNDLES + 4).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
}

fn number(path: &Path) -> String {
    let name = path.file_stem().unwrap().to_str().unwrap();
    name.rsplit_once('-').unwrap().1.to_owned()
}

#[test]
fn total_size_is_limited_but_the_newest_bundle_stays() {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::of_state(state.path());
    fs::create_dir(directory.path()).unwrap();
    let large = MAX_BYTES / LIMIT;
    for number in 1..=large {
        let file = fs::File::create(directory.place(number, TIME)).unwrap();
        file.set_len(LIMIT).unwrap();
    }
    let last = keep(&directory, 1);
    let kept = directory.list().unwrap();
    assert_eq!((kept.len() as u64, kept.last()), (large, Some(&last)));
    // A bundle above the total limit stays until there is a newer one.
    fs::File::options().write(true).open(&last).unwrap().set_len(2 * MAX_BYTES).unwrap();
    let last = keep(&directory, 1);
    assert_eq!(directory.list().unwrap(), [last]);
}

/// Only files with a bundle's name are counted, or removed.
#[test]
fn unfinished_bundles_are_removed_and_other_files_stay() {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::of_state(state.path());
    fs::create_dir(directory.path()).unwrap();
    let file = |name: &str| directory.path().join(name);
    for name in ["fault-x-1.unfinished", "fault-20261123T140509Z-3.unfinished"] {
        fs::write(file(name), "half").unwrap();
    }
    let others = ["notes", "fault-7", "fault-a-b.bundle", "fault-9.bundle", "-1.bundle"];
    others.iter().for_each(|name| fs::write(file(name), "kept").unwrap());
    let place = keep(&directory, 1);
    assert_eq!(directory.list().unwrap(), [place]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), others.len() + 1);
    assert!(others.iter().all(|name| file(name).is_file()));
    // The largest number has no successor: it is used again.
    fs::write(directory.place(u64::MAX, TIME), "").unwrap();
    assert_eq!(directory.next_number(), u64::MAX);
}

#[test]
fn a_failed_write_returns_an_error_and_leaves_no_file() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("faults");
    fs::write(&file, "a file").unwrap();
    let directory = Directory::of_state(state.path());
    assert!(directory.list().is_err());
    let place = directory.place(directory.next_number(), TIME);
    let error = directory.keep(&place, &bundle(1)).unwrap_err().to_string();
    assert!(error.contains(&place.display().to_string()), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "a file");
    // A directory has the bundle's name: the written file is removed again.
    let directory = Directory::of_state(&state.path().join("other"));
    let place = directory.place(1, TIME);
    fs::create_dir_all(place.join("full")).unwrap();
    assert!(directory.keep(&place, &bundle(1)).is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
