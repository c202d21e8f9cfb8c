//! Checks whether a file is a program that the dynamic linker loads, which interposition requires.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};

/// Kind of program file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Dynamically linked, for this architecture.
    Dynamic,
    /// Statically linked: it has no program interpreter.
    Static,
    /// Built for another architecture, with this `e_machine`.
    Foreign { machine: u16 },
    /// A script with this interpreter.
    Script(PathBuf),
    /// Unknown format; the kernel decides whether it runs.
    Unknown,
}

/// `e_machine` of this build.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// Classifies a file.
pub(super) fn kind(path: &Path) -> io::Result<Kind> {
    kind_of(&mut File::open(path)?)
}

fn kind_of(file: &mut (impl Read + Seek)) -> io::Result<Kind> {
    let mut start = Vec::new();
    file.take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        let program = text.split_whitespace().next().unwrap_or_default();
        return Ok(Kind::Script(PathBuf::from(program)));
    }
    let file = ReadCache::new(file);
    Ok(kind_of_elf(&file).unwrap_or(Kind::Unknown))
}

fn kind_of_elf<'data>(file: impl ReadRef<'data>) -> object::read::Result<Kind> {
    let header = FileHeader64::<LittleEndian>::parse(file)?;
    let endian = header.endian()?;
    let machine = header.e_machine(endian);
    if machine != MACHINE {
        return Ok(Kind::Foreign { machine });
    }
    let mut headers = header.program_headers(endian, file)?.iter();
    let interpreted = headers.any(|header| header.p_type(endian) == PT_INTERP);
    Ok(if interpreted { Kind::Dynamic } else { Kind::Static })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// Size of a file header and of a program header.
    const FILE_HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    /// `PT_INTERP`.
    const INTERPRETER: u32 = 3;

    /// Builds an ELF file with one program header.
    fn elf(machine: u16, header: u32) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(FILE_HEADER + PROGRAM_HEADER, 0);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32..40].copy_from_slice(&(FILE_HEADER as u64).to_le_bytes());
        file[54..56].copy_from_slice(&(PROGRAM_HEADER as u16).to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        file[FILE_HEADER..FILE_HEADER + 4].copy_from_slice(&header.to_le_bytes());
        file
    }

    fn kind_of_bytes(bytes: &[u8]) -> Kind {
        kind_of(&mut Cursor::new(bytes)).unwrap()
    }

    #[test]
    fn the_program_interpreter_decides() {
        assert_eq!(kind_of_bytes(&elf(MACHINE, INTERPRETER)), Kind::Dynamic);
        assert_eq!(kind_of_bytes(&elf(MACHINE, 1)), Kind::Static);
        assert_eq!(kind_of_bytes(&elf(8, INTERPRETER)), Kind::Foreign { machine: 8 });
        let script = Kind::Script(PathBuf::from("/usr/bin/env"));
        assert_eq!(kind_of_bytes(b"#! /usr/bin/env python3\nprint()\n"), script);
        assert_eq!(kind_of_bytes(b"hello"), Kind::Unknown);
        let mut big_endian = elf(MACHINE, INTERPRETER);
        big_endian[5] = 2;
        assert_eq!(kind_of_bytes(&big_endian), Kind::Unknown);
    }

    #[test]
    fn this_very_program_is_dynamic() {
        assert_eq!(kind(&std::env::current_exe().unwrap()).unwrap(), Kind::Dynamic);
    }

    proptest! {
        #[test]
        fn any_file_has_some_kind(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            kind_of_bytes(&bytes);
            let mut file = elf(MACHINE, INTERPRETER);
            let at = bytes.len().min(file.len());
            file.truncate(FILE_HEADER + PROGRAM_HEADER - at / 4);
            kind_of_bytes(&file);
        }
    }
}
