//! `orinctl install` and `uninstall`, staged below a directory: what is written, what is left.

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
fn what_is_installed_is_removed_again_and_nothing_else() {
    let stage = tempfile::tempdir().unwrap();
    let root = stage.path();
    // Something of others in a directory that is used too.
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

    // Again, as an update does: the same, and the first time's directories are not forgotten.
    assert_eq!(orinctl(&["install", "--prefix", "/opt/o"], root).0, Some(0));
    assert_eq!(tree(root), installed);

    let (code, planned, _) = orinctl(&["uninstall", "--dry-run", "--prefix", "/opt/o"], root);
    assert_eq!((code, tree(root)), (Some(0), installed));
    assert!(planned.contains("remove  /opt/o/bin/orind\n"), "{planned}");
    assert_eq!(orinctl(&["uninstall", "--prefix", "/opt/o"], root).0, Some(0));
    let mut left = tree(root);
    // Above the prefix and the configuration's directory nothing is taken away.
    left.remove(Path::new("etc"));
    assert_eq!(left, before);
}

#[test]
fn what_the_owner_has_made_stays_unless_it_is_purged() {
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
fn what_cannot_be_done_is_said() {
    let stage = tempfile::tempdir().unwrap();
    let root = stage.path();
    let (code, _, error) = orinctl(&["uninstall"], root);
    assert!(code == Some(1) && error.contains("nothing is installed below /usr/local"), "{error}");
    for prefix in ["relative", "/opt/a b", "/opt/100%", "/opt/../etc"] {
        let (code, _, error) = orinctl(&["install", "--prefix", prefix], root);
        assert!(code == Some(1) && error.contains("not an absolute path"), "{error}");
    }
    // A manifest that would have strangers' files deleted.
    fs::create_dir_all(root.join("usr/local/share/orind")).unwrap();
    fs::write(root.join("usr/local/share/orind/installed"), "file /etc/passwd\n").unwrap();
    let (code, _, error) = orinctl(&["uninstall"], root);
    assert!(code == Some(1) && error.contains("contains an invalid line"), "{error}");
    fs::remove_file(root.join("usr/local/share/orind/installed")).unwrap();
    // In the way of a directory.
    fs::write(root.join("usr/local/bin"), "").unwrap();
    let (code, _, error) = orinctl(&["install"], root);
    assert!(code == Some(1) && error.contains("/usr/local/bin"), "{error}");
}

/// The unit's filter by system call and the daemon's own by request leave what the daemon needs.
#[test]
fn the_units_are_sound() {
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
    // Ten times the exposure that is printed.
    let (sound, said) = run(&["security", "--offline=true", "--threshold=15"]);
    assert!(sound, "{said}");
    // The programs are not where the unit says, which is the only thing to complain about.
    let (_, said) = run(&["verify", "--man=no", "--recursive-errors=no"]);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("orind.s") && !line.contains("is not executable"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}
