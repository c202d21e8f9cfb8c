//! `orinctl install` and `uninstall`: the programs and the service on a distribution without
//! packages. Every action is printed first. A manifest lists the created files, and `uninstall`
//! removes exactly those; models, caches and a changed configuration stay unless `--purge` is
//! given.

pub(super) mod error;
mod manifest;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::error::Error;
use self::manifest::Manifest;
use super::{args, manual};
use errors::printable;

/// Path of the configuration, as in the systemd unit.
pub(super) const CONFIG: &str = "/etc/orind/orind.toml";
/// Configuration that is installed if there is none: every key, commented out.
const DEFAULT_CONFIG: &str = include_str!("../../../docs/orind.toml");
/// Directories that belong to the owner of the machine.
const STATE: [&str; 3] = ["/etc/orind", "/var/lib/orind", "/var/cache/orind"];
/// Path of the manifest below the prefix.
const MANIFEST: &str = "share/orind/installed";
/// Path of the program in the unit file.
const UNIT_PROGRAM: &str = "/usr/bin/orind";

/// Installed text files, by path below the prefix.
const TEXTS: [(&str, &str); 7] = [
    ("lib/systemd/system/orind.service", include_str!("../../../systemd/orind.service")),
    ("lib/systemd/system/orind.socket", include_str!("../../../systemd/orind.socket")),
    ("lib/sysusers.d/orind.conf", include_str!("../../../systemd/sysusers.conf")),
    ("lib/tmpfiles.d/orind.conf", include_str!("../../../systemd/tmpfiles.conf")),
    ("lib/udev/rules.d/70-orind.rules", include_str!("../../../systemd/udev.rules")),
    ("share/orind/drop-ins/cuda.conf", include_str!("../../../systemd/drop-ins/cuda.conf")),
    ("share/orind/drop-ins/tcp.conf", include_str!("../../../systemd/drop-ins/tcp.conf")),
];

/// Programs copied to `bin` from the directory of the running one.
const PROGRAMS: [&str; 2] = ["orind", "orinctl"];

fn refused(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// Destination of the installation, and whether it is a dry run.
struct Site<'a> {
    prefix: &'a Path,
    /// Directory that replaces `/`.
    root: &'a Path,
    dry: bool,
}

impl<'a> Site<'a> {
    fn new(place: &'a args::Place) -> Result<Self, Error> {
        let prefix = place.prefix.as_path();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._+-".contains(&b);
        let sound = prefix.is_absolute()
            && prefix.as_os_str().as_encoded_bytes().iter().all(|b| plain(*b))
            && !prefix.components().any(|c| c == std::path::Component::ParentDir);
        if !sound {
            return Err(Error::Prefix(prefix.to_owned()));
        }
        let root = place.root.as_deref().unwrap_or(Path::new("/"));
        Ok(Self { prefix, root, dry: place.dry_run })
    }

    /// Maps a path of the installed system to its current location.
    fn here(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn below(&self, place: &str) -> PathBuf {
        self.prefix.join(place)
    }

    fn manifest(&self) -> Result<Option<Manifest>, Error> {
        let path = self.here(&self.below(MANIFEST));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused("read", &path)(error)),
        };
        Manifest::parse(&text, &[self.prefix, Path::new(STATE[0])])
            .map(Some)
            .map_err(|line| Error::Manifest { manifest: path, line })
    }

    /// Prints an action and returns whether to perform it.
    fn act(&self, action: &str, what: &Path) -> bool {
        report(&format!("{action} {}", what.display()));
        !self.dry
    }

    fn make_directory(&self, path: &Path) -> Result<(), Error> {
        if self.act("mkdir  ", path) {
            let here = self.here(path);
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o755).recursive(true);
            builder.create(&here).map_err(refused("make the directory", &here))?;
        }
        Ok(())
    }

    /// Writes a file atomically, even over a running program.
    fn put(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
        if self.act("install", path) {
            let here = self.here(path);
            let mut name = here.clone().into_os_string();
            name.push(".new");
            let new = PathBuf::from(name);
            fs::write(&new, bytes)
                .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
                .and_then(|()| fs::rename(&new, &here))
                .map_err(refused("write", &here))?;
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        let here = self.here(path);
        if fs::symlink_metadata(&here).is_ok() && self.act("remove ", path) {
            fs::remove_file(&here).map_err(refused("remove", &here))?;
        }
        Ok(())
    }

    /// Runs a system command. The installation stays valid if the command fails.
    fn run(&self, program: &str, arguments: &[&str]) {
        let line = format!("{program} {}", arguments.join(" "));
        if self.root != Path::new("/") {
            return report(&format!("later   {line}"));
        }
        report(&format!("run     {line}"));
        if self.dry {
            return;
        }
        let failure = match Command::new(program).args(arguments).status() {
            Ok(status) if status.success() => return,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        report(&format!("        failed ({failure}); run it by hand"));
    }
}

/// Prints a line of the report. A closed standard output does not stop the installation.
fn report(line: &str) {
    let _ = writeln!(io::stdout(), "{}", printable::page(line));
}

pub(super) fn install(place: &args::Place) -> Result<(), Error> {
    let site = Site::new(place)?;
    let before = site.manifest()?.unwrap_or_default();
    let mut files: Vec<(PathBuf, Vec<u8>, u32)> = Vec::new();
    let myself = std::env::current_exe().map_err(refused("find", Path::new("this program")))?;
    for name in PROGRAMS {
        let source = myself.with_file_name(name);
        if !source.is_file() {
            return Err(Error::Program(source));
        }
        let bytes = fs::read(&source).map_err(refused("read", &source))?;
        files.push((site.below("bin").join(name), bytes, 0o755));
    }
    let program = site.below("bin/orind").display().to_string();
    for (place, text) in TEXTS {
        let text = text.replace(UNIT_PROGRAM, &program);
        files.push((site.below(place), text.into_bytes(), 0o644));
    }
    for (shell, place) in manual::COMPLETIONS {
        files.push((site.below(place), manual::completion(shell), 0o644));
    }
    let manual = site.below(manual::MANUAL);
    for (name, page) in manual::manual().map_err(refused("generate the man pages of", &manual))? {
        files.push((manual.join(name), page, 0o644));
    }
    let config = Path::new(CONFIG);
    if site.here(config).exists() {
        report(&format!("keep    {CONFIG}"));
    } else {
        files.push((config.to_owned(), DEFAULT_CONFIG.as_bytes().to_vec(), 0o644));
    }

    let list = site.below(MANIFEST);
    let mut manifest = Manifest { directories: before.directories, ..Manifest::default() };
    manifest.files.extend(files.iter().map(|(path, ..)| path.clone()));
    manifest.files.insert(list.clone());
    if before.files.contains(config) {
        manifest.files.insert(config.to_owned());
    }
    let mut missing: Vec<PathBuf> = manifest
        .files
        .iter()
        .flat_map(|file| file.ancestors().skip(1))
        .filter(|directory| !site.here(directory).exists())
        .map(Path::to_owned)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    for directory in &missing {
        site.make_directory(directory)?;
    }
    let ours = |path: &&PathBuf| path.starts_with(site.prefix) || path.starts_with(STATE[0]);
    manifest.directories.extend(missing.iter().filter(ours).cloned());
    // Write the manifest first, so that any failure can be undone.
    site.put(&list, manifest.to_text().as_bytes(), 0o644)?;
    for (path, bytes, mode) in &files {
        site.put(path, bytes, *mode)?;
    }
    for gone in before.files.difference(&manifest.files) {
        site.remove(gone)?;
    }

    let place = |place: &str| site.below(place).display().to_string();
    site.run("systemd-sysusers", &[&place("lib/sysusers.d/orind.conf")]);
    site.run("systemd-tmpfiles", &["--create", &place("lib/tmpfiles.d/orind.conf")]);
    site.run("udevadm", &["control", "--reload"]);
    site.run("systemctl", &["daemon-reload"]);
    let unit = match site.prefix.to_str() {
        Some("/usr" | "/usr/local") => "orind.socket orind.service".to_owned(),
        // systemd does not search this prefix by itself.
        _ => format!("{} {}", place(TEXTS[1].0), place(TEXTS[0].0)),
    };
    report(&format!(
        "\nNext: set `model` in {CONFIG}, then `systemctl enable --now {unit}`.\n\
         To let a user connect: `usermod -aG orind USER`. After an update: `systemctl restart orind`."
    ));
    Ok(())
}

pub(super) fn uninstall(uninstall: &args::Uninstall) -> Result<(), Error> {
    let site = Site::new(&uninstall.place)?;
    let list = site.below(MANIFEST);
    let Some(manifest) = site.manifest()? else {
        let prefix = site.prefix.to_owned();
        return Err(Error::NotInstalled { prefix, manifest: site.here(&list) });
    };
    site.run("systemctl", &["disable", "--now", "orind.socket", "orind.service"]);
    let config = Path::new(CONFIG);
    for file in manifest.files.iter().filter(|file| **file != list) {
        let here = site.here(file);
        let changed = || fs::read(&here).is_ok_and(|text| text != DEFAULT_CONFIG.as_bytes());
        if file == config && !uninstall.purge && changed() {
            report(&format!("keep    {CONFIG}, which was modified"));
            continue;
        }
        site.remove(file)?;
    }
    site.remove(&list)?;
    if uninstall.purge {
        for state in STATE.map(Path::new) {
            let here = site.here(state);
            if here.exists() && site.act("purge  ", state) {
                fs::remove_dir_all(&here).map_err(refused("remove", &here))?;
            }
        }
    }
    // Inner directories first. A directory that contains other files stays.
    for directory in manifest.directories.iter().rev() {
        let here = site.here(directory);
        let empty = fs::read_dir(&here).is_ok_and(|mut entries| entries.next().is_none());
        if empty && site.act("rmdir  ", directory) {
            fs::remove_dir(&here).map_err(refused("remove", &here))?;
        }
    }
    site.run("systemctl", &["daemon-reload"]);
    if !uninstall.purge {
        report("\nModels, caches and a changed configuration stay: --purge removes them.");
    }
    report("The user and the group `orind` stay: `userdel orind` removes them.");
    Ok(())
}
