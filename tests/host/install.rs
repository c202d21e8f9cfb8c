//! `orinctl install` and `uninstall` below a staging directory: files written, files left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use orind_testing::program::{command, outcome};

fn orinctl(arguments: &[&str], root: &Path) -> (Option<i32>, String, String) {
    outcome(command(env!("CARGO_BIN_EXE_orinctl")).args(arguments).arg("--root").arg(root))
}

/// Every path below a directory with its permissions.
fn tree(root: &Path) -> BTreeMap<PathBuf, u32> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
            found.insert(path.strip_prefix(root).unwrap().to_owned(), mode);
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

#[test]
fn uninstall_removes_only_installed_files() {
    let stage = tempfile::tempdir().unwrap();
    let root = stage.path();
    // Another program's file in a shared directory.
    fs::create_dir_all(root.join("opt/o/bin")).unwrap();
    fs::write(root.join("opt/o/bin/theirs"), "").unwrap();
    let before = tree(root);

    let (code, planned, _) = orinctl(&["install", "--dry-run", "--prefix", "/opt/o"], root);
    assert_eq!(code, Some(0));
    assert_eq!(tree(root), before);
    let (code, done, error) = orinctl(&["install", "--prefix", "/opt/o"], root);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(done, planned);

    let installed = tree(root);
    for (path, mode) in [
        ("opt/o/bin/orind", 0o755),
        ("opt/o/bin/orinctl", 0o755),
        ("opt/o/lib/systemd/system/orind.service", 0o644),
        ("opt/o/lib/systemd/system/orind.socket", 0o644),
        ("opt/o/lib/sysusers.d/orind.conf", 0o644),
        ("opt/o/lib/tmpfiles.d/orind.conf", 0o644),
        ("opt/o/lib/udev/rules.d/70-orind.rules", 0o644),
        ("opt/o/share/bash-completion/completions/orinctl", 0o644),
        ("opt/o/share/zsh/site-functions/_orinctl", 0o644),
        ("opt/o/share/fish/vendor_completions.d/orinctl.fish", 0o644),
        ("opt/o/share/man/man1/orinctl-chat.1", 0o644),
        ("opt/o/share/man/man1/orind.1", 0o644),
        ("etc/orind/orind.toml", 0o644),
    ] {
        assert_eq!(installed.get(Path::new(path)), Some(&mode), "{path}");
        assert!(done.contains(&format!("install /{path}\n")), "{path} in {done}");
    }
    let unit = fs::read_to_string(root.join("opt/o/lib/systemd/system/orind.service")).unwrap();
    assert!(unit.contains("\nExecStart=/opt/o/bin/orind --config /etc/orind/orind.toml"), "{unit}");
    assert!(!unit.contains("/usr/bin"), "{unit}");
    let program = root.join("opt/o/bin/orind");
    assert_eq!(fs::read(&program).unwrap(), fs::read(env!("CARGO_BIN_EXE_orind")).unwrap());

    // An update installs the same files, and remembers the directories that the first installation created.
    assert_eq!(orinctl(&["install", "--prefix", "/opt/o"], root).0, Some(0));
    assert_eq!(tree(root), installed);

    let (code, planned, _) = orinctl(&["uninstall", "--dry-run", "--prefix", "/opt/o"], root);
    assert_eq!((code, tree(root)), (Some(0), installed));
    assert!(planned.contains("remove  /opt/o/bin/orind\n"), "{planned}");
    assert_eq!(orinctl(&["uninstall", "--prefix", "/opt/o"], root).0, Some(0));
    let mut left = tree(root);
    // Directories above the prefix and the configuration's directory stay.
    left.remove(Path::new("etc"));
    assert_eq!(left, before);
}

#[test]
fn files_of_the_owner_stay_without_purge() {
    let stage = tempfile::tempdir().unwrap();
    let root = stage.path();
    let config = root.join("etc/orind/orind.toml");
    let model = root.join("var/lib/orind/models/m.gguf");
    assert_eq!(orinctl(&["install"], root).0, Some(0));
    fs::write(&config, "model = 'm'\n").unwrap();
    fs::create_dir_all(model.parent().unwrap()).unwrap();
    fs::write(&model, "").unwrap();

    let (_, said, _) = orinctl(&["install"], root);
    assert!(said.contains("keep    /etc/orind/orind.toml"), "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "model = 'm'\n");
    let (_, said, _) = orinctl(&["uninstall"], root);
    assert!(said.contains("keep    /etc/orind/orind.toml, which was modified"), "{said}");
    assert!(config.exists() && model.exists() && !root.join("usr/local/bin/orind").exists());

    assert_eq!(orinctl(&["install"], root).0, Some(0));
    assert_eq!(orinctl(&["uninstall", "--purge"], root).0, Some(0));
    assert!(!config.exists() && !model.exists());
}

#[test]
fn impossible_installations_are_refused_with_the_reason() {
    let stage = tempfile::tempdir().unwrap();
    let root = stage.path();
    let (code, _, error) = orinctl(&["uninstall"], root);
    assert!(code == Some(1) && error.contains("nothing is installed below /usr/local"), "{error}");
    for prefix in ["relative", "/opt/a b", "/opt/100%", "/opt/../etc"] {
        let (code, _, error) = orinctl(&["install", "--prefix", prefix], root);
        assert!(code == Some(1) && error.contains("not an absolute path"), "{error}");
    }
    // A manifest that lists foreign files.
    fs::create_dir_all(root.join("usr/local/share/orind")).unwrap();
    fs::write(root.join("usr/local/share/orind/installed"), "file /etc/passwd\n").unwrap();
    let (code, _, error) = orinctl(&["uninstall"], root);
    assert!(code == Some(1) && error.contains("contains an invalid line"), "{error}");
    fs::remove_file(root.join("usr/local/share/orind/installed")).unwrap();
    // A file in place of a directory.
    fs::write(root.join("usr/local/bin"), "").unwrap();
    let (code, _, error) = orinctl(&["install"], root);
    assert!(code == Some(1) && error.contains("/usr/local/bin"), "{error}");
}

/// systemd's own checks of the units.
#[test]
fn systemd_accepts_the_units() {
    let found = Command::new("systemd-analyze").arg("--version").output();
    if !found.is_ok_and(|found| found.status.success()) {
        println!("skipped: there is no systemd-analyze");
        return;
    }
    let stage = tempfile::tempdir().unwrap();
    assert_eq!(orinctl(&["install", "--prefix", "/usr"], stage.path()).0, Some(0));
    let unit = stage.path().join("usr/lib/systemd/system/orind.service");
    let run = |arguments: &[&str]| {
        let run = Command::new("systemd-analyze").args(arguments).arg(&unit).output().unwrap();
        let both = [run.stdout, run.stderr].concat();
        (run.status.success(), String::from_utf8_lossy(&both).into_owned())
    };
    // The threshold is ten times the printed exposure.
    let (sound, said) = run(&["security", "--offline=true", "--threshold=15"]);
    assert!(sound, "{said}");
    // The only complaint is that the programs are not installed.
    let (_, said) = run(&["verify", "--man=no", "--recursive-errors=no"]);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("orind.s") && !line.contains("is not executable"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}
