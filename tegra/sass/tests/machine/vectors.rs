//! Decoding against the vendor's disassembler: every instruction of every kernel in `tests/data`,
//! and one of every shape in the project's own prebuilt kernels.
//!
//! A `.txt` holds a kernel's name on a line of its own, then one instruction a line: its low and
//! high 64 bits and the disassembler's text. A line with `@` gives the offset of the next one.
//! `tests/data/build.py` makes them, and `tests/data/forms.py` the one that `forms` looks at;
//! `encoded.txt` has encodings of a public list that no kernel here led to, with what nvdisasm 13 writes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use lzma_rust2::LzmaReader;
use sass::decode::decode;
use sass::program::Program;

use crate::support::sections;

/// Text as both sides can write it: no register-cache hints, numbers by value, single spaces and
/// none within an operand, where the disassembler has one in the constants of halves.
fn normalise(text: &str) -> String {
    let mut out = String::new();
    for token in text.replace(".reuse", "").replace("] [", "][").split_whitespace() {
        let (body, comma) = match token.strip_suffix(',') {
            Some(body) => (body, ","),
            None => (token, ""),
        };
        let separator = if out.is_empty() || token == "," { "" } else { " " };
        let decimal = body.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
            && !body.contains("0x");
        match body.parse::<f64>() {
            Ok(number) if decimal => write!(out, "{separator}{number:e}{comma}").unwrap(),
            _ => write!(out, "{separator}{token}").unwrap(),
        }
    }
    out
}

/// An instruction without its guard and without which registers and numbers it names.
pub(crate) fn shape(text: &str) -> String {
    let text = normalise(text).replace('!', "");
    let text = match text.split_once(' ') {
        Some((guard, rest)) if guard.starts_with('@') => rest,
        _ => &text,
    };
    let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
    let mut out = name.to_owned();
    for token in operands.split(' ') {
        let body = token.trim_end_matches(',');
        if body.parse::<f64>().is_ok() || body.ends_with("INF") || body.ends_with("QNAN") {
            out.push_str(" #");
            continue;
        }
        out.push(' ');
        let mut rest = body;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end.max(1));
            let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
            out.push_str(match letters {
                _ if word.starts_with("0x") => "#",
                "R" | "UR" | "P" | "UP" | "B" | "SB" => letters,
                // The sign of a number is part of it.
                "-" if behind.starts_with("0x") => "",
                _ => word,
            });
            rest = behind;
        }
    }
    out
}

/// A disassembled instruction: where it stands, its bits, its offset in the code, its text.
pub(crate) struct Vector {
    pub(crate) file: PathBuf,
    pub(crate) bits: u128,
    pub(crate) offset: usize,
    pub(crate) text: String,
}

impl Vector {
    /// Returns the text that the decoder prints, or its error.
    pub(crate) fn ours(&self) -> Result<String, String> {
        let decoded = decode(self.bits, self.offset).map_err(|error| error.to_string())?;
        let ours = normalise(&decoded.to_string());
        if ours == normalise(&self.text) { Ok(ours) } else { Err(ours) }
    }

    /// Returns whether the machine executes it, at its own offset, so that branch targets are
    /// valid.
    pub(crate) fn executed(&self) -> bool {
        let mut code = vec![0; self.offset];
        code.extend(self.bits.to_le_bytes());
        !Program::new(&code).unwrap().unknown().contains(&self.offset)
    }
}

/// The instructions of one file.
pub(crate) fn read(file: &Path) -> Vec<Vector> {
    let (mut all, mut offset) = (Vec::new(), 0);
    for line in fs::read_to_string(file).unwrap().lines() {
        if let Some(at) = line.strip_prefix('@') {
            offset = usize::from_str_radix(at, 16).unwrap();
            continue;
        }
        let mut fields = line.splitn(3, ' ');
        let word = |field: Option<&str>| u128::from_str_radix(field?, 16).ok();
        let (Some(low), Some(high), Some(text)) =
            (word(fields.next()), word(fields.next()), fields.next())
        else {
            offset = 0;
            continue;
        };
        let (file, bits, text) = (file.to_owned(), low | high << 64, text.to_owned());
        all.push(Vector { file, bits, offset, text });
        offset += 16;
    }
    all
}

/// The instructions of all files.
pub(crate) fn vectors() -> Vec<Vector> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sm_87");
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "txt"))
        .flat_map(|file| read(&file))
        .collect()
}

/// Vectors of compiled kernels; `forms` lists the instructions that are deliberately not executed.
fn compiled() -> impl Iterator<Item = Vector> {
    vectors().into_iter().filter(|vector| !vector.file.ends_with("ptx.txt"))
}

#[test]
fn every_instruction_is_written_as_the_disassembler_writes_it() {
    let (mut wrong, mut count, mut all) = (String::new(), 0, 0);
    for vector in compiled() {
        all += 1;
        if let Err(ours) = vector.ours() {
            count += 1;
            if count < 60 {
                let Vector { file, bits, offset, text } = &vector;
                writeln!(wrong, "{} {offset:#x} {bits:032x}", file.display()).unwrap();
                writeln!(wrong, "    {}\n    {ours}", normalise(text)).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{count} of {all} differ:\n{wrong}");
    assert!(all > 9000, "{all} instructions");
}

#[test]
fn every_vector_can_be_executed() {
    let unknown: BTreeSet<String> =
        compiled().filter(|vector| !vector.executed()).map(|vector| vector.text).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn the_prebuilt_kernels_are_decoded_and_every_shape_has_a_vector() {
    let known: BTreeSet<String> = vectors().iter().map(|vector| shape(&vector.text)).collect();
    let mut missing = BTreeSet::new();
    let mut instructions = 0;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/prebuilt");
    for file in fs::read_dir(directory).unwrap() {
        let file = file.unwrap().path();
        if !file.to_string_lossy().ends_with(".sm_87.cubin.lzma") {
            continue;
        }
        let packed = fs::read(&file).unwrap();
        let mut cubin = Vec::new();
        let mut reader = LzmaReader::new_mem_limit(&*packed, u32::MAX, None).unwrap();
        reader.read_to_end(&mut cubin).unwrap();
        for section in sections(&cubin) {
            if !section.name.starts_with(".text.") {
                continue;
            }
            let program = Program::new(&section.data).unwrap();
            let unknown = program.unknown();
            assert!(unknown.is_empty(), "{} {}: {unknown:?}", file.display(), section.name);
            for decoded in program.instructions() {
                let text = shape(&decoded.as_ref().unwrap().to_string());
                if !known.contains(&text) {
                    missing.insert(text);
                }
                instructions += 1;
            }
        }
    }
    assert!(instructions > 10_000, "{instructions} instructions");
    assert!(
        missing.is_empty(),
        "{} shapes that no vector has: run tests/data/build.py prebuilt\n{missing:#?}",
        missing.len()
    );
}

/// As nvdisasm 13 prints it; ptxas selects it for some kernels that are compiled at run time.
#[test]
fn a_bank_is_indexed_by_one_of_the_warps_registers() {
    for (bits, text) in [
        (0x000f_e400_0800_0800_0000_6200_0813_7abb, "ULDC UR19, c[0x0][UR8+0x188]"),
        (0x000f_e400_0800_0a00_0000_5800_0a0a_7abb, "ULDC.64 UR10, c[0x0][UR10+0x160]"),
    ] {
        assert_eq!(decode(bits, 0).unwrap().to_string(), text);
        let mut code = bits.to_le_bytes().to_vec();
        code.extend_from_slice(&code.clone());
        assert_eq!(Program::new(&code).unwrap().unknown(), Vec::<usize>::new());
    }
}

#[test]
fn invalid_instructions_are_named() {
    for (bits, says) in [
        (0, "is no known operation"),
        // A multiply-add with a bit that belongs to no field.
        (
            0x078e_00ff_0000_0004_0400_7824 | 1 << 100,
            "unexpected bits 0x10000000000000000000000000",
        ),
    ] {
        let error = decode(bits, 0x40).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("at 0x40"), "{error}");
    }
    assert!(Program::new(&[0; 24]).is_err());
}

/// Encodings of CuAssembler's public list `DefaultInsAsmRepos.sm_80`
/// (github.com/cloudcores/CuAssembler, 96a9f72b) that the decoder once misread.
#[test]
fn an_offset_and_a_shift_are_where_a_public_list_has_them() {
    for (bits, text) in [
        (0x0010_0d00_0000_0100_2e28_8980, "@!P0 LD.E.128 R40, [R46+0x100]"),
        (0x028f_1c1e_ffff_ffff_001e_4411, "@P4 LEA.HI.X R30, R0, R30, 0xffffffff, 0x3, P5"),
    ] {
        assert_eq!(decode(bits, 0).unwrap().to_string(), text);
    }
}

/// The semantics of these are undocumented; only their text is known.
#[test]
fn decoded_only_instructions_have_the_disassemblers_text() {
    for (bits, text) in [
        (0x000f_e400_03e0_0000_0000_0000_1400_7950, "RET.ABS.NODEC R20 0x0"),
        (0x001e_8d03_0000_0000_9284_7381, "LDG.E.128.CONSTANT R132, [R146], P4"),
        (
            0x0000_0020_0c1e_fd2c_0000_0004_4a5c_7981,
            "LDG.E.LTC128B.128.STRONG.GPU R92, desc[UR4][R74.64], !P3",
        ),
        (0x0000_8004_0000_0003_0804_7231, "HFMA2.RELU R4, R8, R3, R4, P0"),
    ] {
        assert_eq!(decode(bits, 0x110).unwrap().to_string(), text);
        assert!(!Program::new(&bits.to_le_bytes()).unwrap().unknown().is_empty(), "{text}");
    }
}
