//! `orinctl install` and `uninstall`: the programs and the service on a distribution without packages.
//! Actions are printed before they are done. What was put where is written down in a manifest, and `uninstall`
//! removes exactly that; models, caches and a changed configuration stay unless `--purge` says otherwise.

mod manifest;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::manifest::Manifest;
use super::{args, pages};

/// The configuration's place, which systemd's unit names.
const CONFIG: &str = "/etc/orind/orind.toml";
/// The configuration that is put there when there is none: every key, commented out.
const DEFAULT_CONFIG: &str = include_str!("../../../docs/orind.toml");
/// What belongs to the owner.
const STATE: [&str; 3] = ["/etc/orind", "/var/lib/orind", "/var/cache/orind"];
/// The manifest's place below the prefix.
const MANIFEST: &str = "share/orind/installed";
/// The program's place that the unit is written for.
const UNIT_PROGRAM: &str = "/usr/bin/orind";

/// Texts that are installed, by their place below the prefix.
const TEXTS: [(&str, &str); 7] = [
    ("lib/systemd/system/orind.service", include_str!("../../../systemd/orind.service")),
    ("lib/systemd/system/orind.socket", include_str!("../../../systemd/orind.socket")),
    ("lib/sysusers.d/orind.conf", include_str!("../../../systemd/sysusers.conf")),
    ("lib/tmpfiles.d/orind.conf", include_str!("../../../systemd/tmpfiles.conf")),
    ("lib/udev/rules.d/70-orind.rules", include_str!("../../../systemd/udev.rules")),
    ("share/orind/drop-ins/cuda.conf", include_str!("../../../systemd/drop-ins/cuda.conf")),
    ("share/orind/drop-ins/tcp.conf", include_str!("../../../systemd/drop-ins/tcp.conf")),
];

/// Programs that are installed into `bin`, from where this one lies.
const PROGRAMS: [&str; 2] = ["orind", "orinctl"];

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the prefix {} is not an absolute path of letters, digits and `/._+-`", .0.display())]
    Prefix(PathBuf),
    #[error(
        "{} is not there; both programs are installed from one directory, and \
         `cargo build --release` makes both",
        .0.display()
    )]
    Program(PathBuf),
    #[error("nothing is installed below {}: there is no {}", prefix.display(), manifest.display())]
    NotInstalled { prefix: PathBuf, manifest: PathBuf },
    #[error("{} has a line that no installation writes: {line}", manifest.display())]
    Manifest { manifest: PathBuf, line: String },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    pub(super) fn hint(&self) -> Option<String> {
        let Self::Io { source, .. } = self else { return None };
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        denied.then(|| "run it as root (sudo), or stage it with --root DIR".into())
    }
}

fn refused(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// Where it goes, and whether anything is done at all.
struct Site<'a> {
    prefix: &'a Path,
    /// The directory that stands for `/`.
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

    /// Where a path of the installed system lies now.
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

    /// Prints an action, and says whether to do it.
    fn act(&self, action: &str, what: &Path) -> bool {
        say(&format!("{action} {}", what.display()));
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

    /// Puts a file in place whole or not at all, over a running program too.
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

    /// Tells the system; where it cannot be told, the installation is sound all the same.
    fn run(&self, program: &str, arguments: &[&str]) {
        let line = format!("{program} {}", arguments.join(" "));
        if self.root != Path::new("/") {
            return say(&format!("later   {line}"));
        }
        say(&format!("run     {line}"));
        if self.dry {
            return;
        }
        let failure = match Command::new(program).args(arguments).status() {
            Ok(status) if status.success() => return,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        say(&format!("        it did not work ({failure}); run it by hand"));
    }
}

/// A line of the report. A reader that went away is no reason to stop half-way.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
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
    for (shell, place) in pages::COMPLETIONS {
        files.push((site.below(place), pages::completion(shell), 0o644));
    }
    let manual = site.below(pages::MANUAL);
    for (name, page) in pages::manual().map_err(refused("make the manual", &manual))? {
        files.push((manual.join(name), page, 0o644));
    }
    let config = Path::new(CONFIG);
    if site.here(config).exists() {
        say(&format!("keep    {CONFIG}"));
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
    // First of all, so that whatever happens can be undone.
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
        // Where systemd does not look by itself.
        _ => format!("{} {}", place(TEXTS[1].0), place(TEXTS[0].0)),
    };
    say(&format!(
        "\nNext: set `model` in {CONFIG}, then `systemctl enable --now {unit}`.\n\
         Who may use it: `usermod -aG orind USER`. After an update: `systemctl restart orind`."
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
            say(&format!("keep    {CONFIG}, which was changed"));
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
    // Inner ones first. What others have put something into stays.
    for directory in manifest.directories.iter().rev() {
        let here = site.here(directory);
        let empty = fs::read_dir(&here).is_ok_and(|mut entries| entries.next().is_none());
        if empty && site.act("rmdir  ", directory) {
            fs::remove_dir(&here).map_err(refused("remove", &here))?;
        }
    }
    site.run("systemctl", &["daemon-reload"]);
    if !uninstall.purge {
        say("\nModels, caches and a changed configuration stay: --purge removes them.");
    }
    say("The user and the group `orind` stay: `userdel orind` removes them.");
    Ok(())
}
