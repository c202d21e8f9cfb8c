//! Recorded machines: a file of `tests/data/orin` contains a machine's files below `/proc`, `/sys` and
//! `/etc`, as `PATH = ONE LINE` or as `PATH <<`, lines, `>>`. `\0` stands for a NUL.

use std::fs;
use std::path::PathBuf;

use telemetry::{Probe, Root};
use tempfile::TempDir;

/// Files of a machine, in a directory of their own.
pub(crate) struct Machine {
    directory: TempDir,
}

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        let page = orind_testing::data(&format!("orin/{name}.tree"));
        let text = fs::read_to_string(page).unwrap();
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with('#') {
                continue;
            }
            if let Some(path) = line.strip_suffix(" <<") {
                let body: Vec<&str> = lines.by_ref().take_while(|line| *line != ">>").collect();
                machine.write(path, &body.join("\n"));
            } else {
                let (path, value) = line.split_once(" =").unwrap();
                machine.write(path, value.strip_prefix(' ').unwrap_or(value));
            }
        }
        machine
    }

    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.directory.path().join(absolute.trim_start_matches('/'))
    }

    pub(crate) fn root(&self) -> Root {
        Root::new(self.directory.path())
    }

    pub(crate) fn probe(&self) -> Probe {
        Probe::new(self.root())
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("\\0", "\0") + "\n").unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }
}
