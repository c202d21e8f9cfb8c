//! Prefix cache on disk: stores the KV cache of finished sequences block by block, so that a restarted daemon
//! need not evaluate their tokens again.
//!
//! A block has [`BLOCK`] tokens. The name of its file is a hash of all tokens up to its end, of the model,
//! and of everything else that determines its bytes. Sequences with a common prefix therefore share files. A
//! file is written under a temporary name, verified by its own hash on reading, and touched on use; the least
//! recently used files are deleted first. A damaged, truncated or foreign file is reported and ignored.
//!
//! The recurrent part of a slot (recurrent states, ring caches) is valid only at the end of its sequence.
//! Models with such a part also store it, at the end of some blocks; only there can a prompt continue. The
//! best positions are those where prompts diverge.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use files::{Identity, RegularFile};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::runner::ModelRunner;
use super::{PrefixCounts, PrefixStore, Scales};
use device::{BLOCK, Part};

/// Version of the files and of the block layout of devices.
const MAGIC: &[u8; 8] = b"ORINDKV2";
/// Smallest distance of two snapshots of the recurrent part, in blocks: evaluating fewer tokens is faster
/// than writing.
const APART: usize = 4;
/// Size of the header: magic, name, size of the part. Its hash follows.
const HEAD: usize = 8 + 32 + 8;
const HASH: usize = 32;
const SUFFIX: &str = "kv";
/// Number of first bytes of each model file that identify it, in addition to file system metadata.
const BEGINNING: u64 = 1 << 20;

/// Hash of the tokens up to the end of a block, and of everything that they are evaluated with.
type Name = [u8; 32];

/// A stored file.
struct Kept {
    bytes: u64,
    used: SystemTime,
}

/// Index of the files of a directory.
#[derive(Default)]
struct Files {
    kept: HashMap<Name, Kept>,
    /// Total size in bytes.
    bytes: u64,
}

impl Files {
    fn insert(&mut self, name: Name, kept: Kept) {
        self.bytes += kept.bytes;
        let before = self.kept.insert(name, kept).map_or(0, |kept| kept.bytes);
        self.bytes -= before;
    }

    fn forget(&mut self, name: &Name) {
        self.bytes -= self.kept.remove(name).map_or(0, |kept| kept.bytes);
    }
}

/// Directories that the engines of this process have open. Engines share the size limit of a directory.
#[derive(Default)]
pub(super) struct Directories(Mutex<HashMap<PathBuf, Weak<Mutex<Files>>>>);

impl Directories {
    fn open(&self, dir: &Path) -> io::Result<Arc<Mutex<Files>>> {
        let mut open = self.0.lock();
        if let Some(files) = open.get(dir).and_then(Weak::upgrade) {
            return Ok(files);
        }
        let files = Arc::new(Mutex::new(found(dir)?));
        open.insert(dir.to_owned(), Arc::downgrade(&files));
        Ok(files)
    }
}

/// Contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The last block of a sequence.
    Block,
    /// Recurrent states and ring caches at the end of a sequence.
    Recurrent,
}

/// Sizes of the parts of a slot in bytes. `rest` is 0 for models without recurrent states and ring caches.
#[derive(Clone, Copy)]
struct Sizes {
    block: usize,
    rest: usize,
}

/// Error of reading a file.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{found} bytes instead of {expected}")]
    Length { found: u64, expected: u64 },
    #[error("not the block that its name says")]
    Foreign,
    #[error("its bytes are not those that were written")]
    Damaged,
}

/// Files of one loaded model in a directory.
pub(super) struct PrefixFiles {
    store: PrefixStore,
    /// Hash before the first block: model, device and options.
    root: Name,
    /// Hash of each adapter.
    adapters: Vec<Name>,
    files: Arc<Mutex<Files>>,
    sizes: Sizes,
    /// Buffer for one part.
    part: Vec<u8>,
    /// False after a write has failed.
    writes: bool,
    counts: PrefixCounts,
}

impl PrefixFiles {
    /// Opens the files of a model, if they are configured and the device can export blocks.
    pub(super) fn open(
        runner: &mut ModelRunner,
        counts: PrefixCounts,
        directories: &Directories,
    ) -> Option<Self> {
        let store = runner.spec().prefixes.as_ref()?.clone();
        let dir = store.dir.display();
        let (block, rest) =
            (runner.part_bytes(Part::Block(0)), runner.part_bytes(Part::Recurrent(0)));
        let Some((block, rest)) = block.zip(rest) else {
            let (model, device) = (&runner.model().id, runner.device());
            tracing::info!(model, device, "this device's prefixes are not kept on disk");
            return None;
        };
        let sizes = Sizes { block, rest };
        if sizes.rest > 0
            && let Err(error) = clear(runner, sizes.rest)
        {
            tracing::warn!(%error, %dir, "no prefixes on disk");
            return None;
        }
        let opened = identity(runner.model_files(), &runner.cache_format()).and_then(|root| {
            let each = runner.adapter_files().map(|files| identity(files, ""));
            let adapters = each.collect::<io::Result<_>>()?;
            Self::new(&store, root, adapters, sizes, counts, directories)
        });
        opened.inspect_err(|error| tracing::warn!(%error, %dir, "no prefixes on disk")).ok()
    }

    fn new(
        store: &PrefixStore,
        root: Name,
        adapters: Vec<Name>,
        sizes: Sizes,
        counts: PrefixCounts,
        directories: &Directories,
    ) -> io::Result<Self> {
        files::directory::own(&store.dir)?;
        let files = directories.open(&store.dir)?;
        let prefixes = Self {
            store: store.clone(),
            root,
            adapters,
            files,
            sizes,
            part: vec![0; sizes.block.max(sizes.rest)],
            writes: true,
            counts,
        };
        prefixes.make_room(0);
        Ok(prefixes)
    }

    pub(super) fn counts(&self) -> PrefixCounts {
        PrefixCounts { bytes: self.files.lock().bytes, ..self.counts }
    }

    /// False after a write has failed.
    pub(super) const fn writes(&self) -> bool {
        self.writes
    }

    /// Number of first tokens of a prompt that can be read, never including the last one.
    pub(super) fn covers(&self, prompt: &[u32], adapters: Scales) -> usize {
        let whole = prompt.len().saturating_sub(1) / BLOCK;
        let names = self.names(&prompt[..whole * BLOCK], adapters);
        let files = self.files.lock();
        let blocks = (1..).zip(names).take_while(|(_, name)| files.kept.contains_key(name));
        let complete = |name: &Name| {
            !self.is_recurrent() || files.kept.contains_key(&name_of(*name, Kind::Recurrent))
        };
        blocks.filter(|(_, name)| complete(name)).last().map_or(0, |(blocks, _)| blocks) * BLOCK
    }

    /// True if a prompt can continue only at a snapshot of the recurrent part.
    pub(super) const fn is_recurrent(&self) -> bool {
        self.sizes.rest > 0
    }

    /// Positions of a prompt at which to store the recurrent part, descending, if it is evaluated from `from`
    /// on: the end of its stored blocks, and its own end.
    pub(super) fn snapshot_positions(
        &self,
        prompt: &[u32],
        adapters: Scales,
        from: usize,
    ) -> Vec<usize> {
        if !self.is_recurrent() || !self.writes {
            return Vec::new();
        }
        let whole = prompt.len().saturating_sub(1) / BLOCK;
        let known = self.missing(&prompt[..whole * BLOCK], adapters).unwrap_or(whole);
        let (mut rests, mut last) = (Vec::new(), from);
        for tokens in [known, whole].map(|blocks| blocks * BLOCK) {
            if tokens >= last + APART * BLOCK {
                rests.insert(0, tokens);
                last = tokens;
            }
        }
        rests
    }

    /// Hash before the first block: model, device and options.
    fn root(&self, adapters: Scales) -> Name {
        let taken = self.adapters.iter().zip(adapters.0).filter(|(_, scale)| *scale != 0.0);
        taken.fold(self.root, |root, (adapter, scale)| {
            let hash = Sha256::new_with_prefix(root).chain_update(adapter);
            hash.chain_update(scale.to_le_bytes()).finalize().into()
        })
    }

    /// Names of the whole blocks of a sequence.
    fn names(&self, tokens: &[u32], adapters: Scales) -> impl Iterator<Item = Name> {
        let blocks = tokens.chunks_exact(BLOCK);
        blocks.scan(self.root(adapters), |name, tokens| {
            let mut hash = Sha256::new_with_prefix(*name);
            tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
            *name = hash.finalize().into();
            Some(*name)
        })
    }

    /// Name and size of a part at the end of `tokens`, which are whole blocks.
    fn part(&self, tokens: &[u32], adapters: Scales, part: Kind) -> (Name, usize) {
        let Some(name) = self.names(tokens, adapters).last() else {
            unreachable!("parts are at the end of a block");
        };
        let Sizes { block, rest } = self.sizes;
        (name_of(name, part), if part == Kind::Recurrent { rest } else { block })
    }

    /// Reads the part at the end of `tokens`, which are whole blocks. `None` if there is no usable file; logs
    /// the reason.
    pub(super) fn read(&mut self, tokens: &[u32], adapters: Scales, part: Kind) -> Option<&[u8]> {
        let (name, bytes) = self.part(tokens, adapters, part);
        let path = self.path(&name);
        match read(&path, &name, &mut self.part[..bytes]) {
            Ok(()) => {
                self.counts.read += 1;
                Some(&self.part[..bytes])
            }
            Err(error) => {
                let gone = matches!(&error, Refused::Io(e) if e.kind() == io::ErrorKind::NotFound);
                if !gone {
                    self.counts.refused += 1;
                    let file = path.display();
                    tracing::warn!(%file, %error, "a kept prefix is not used: it is evaluated");
                }
                self.files.lock().forget(&name);
                None
            }
        }
    }

    /// Index of the first whole block of a sequence without a file.
    pub(super) fn missing(&self, tokens: &[u32], adapters: Scales) -> Option<usize> {
        let files = self.files.lock();
        self.names(tokens, adapters).position(|name| !files.kept.contains_key(&name))
    }

    /// Writes the part at the end of `tokens`, which are whole blocks, after `fill` has provided its bytes.
    /// Stops writing files after a failure.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(super) fn write<E>(
        &mut self,
        tokens: &[u32],
        adapters: Scales,
        part: Kind,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (name, bytes) = self.part(tokens, adapters, part);
        fill(&mut self.part[..bytes])?;
        let whole = (HEAD + HASH + bytes) as u64;
        self.make_room(whole);
        let has_room = self.files.lock().bytes + whole <= self.store.limit;
        let written = match has_room {
            true => write(&self.path(&name), &name, &self.part[..bytes]),
            false => Err(io::Error::other("prefix_cache_mib is less than one file")),
        };
        match written {
            Ok(()) => {
                self.files.lock().insert(name, Kept { bytes: whole, used: SystemTime::now() });
                self.counts.written += 1;
            }
            Err(error) => {
                self.counts.failed += 1;
                self.writes = false;
                let dir = self.store.dir.display();
                tracing::warn!(%dir, %error, "prefixes are not kept until the next load");
            }
        }
        Ok(())
    }

    /// Marks the files of a sequence as used. Each block gets an older time than the one before it, without
    /// which it is useless.
    pub(super) fn touch(&self, tokens: &[u32], adapters: Scales) {
        let now = SystemTime::now();
        let mut names: Vec<Name> = self.names(tokens, adapters).collect();
        names.extend(names.last().map(|name| name_of(*name, Kind::Recurrent)));
        let mut files = self.files.lock();
        for (name, age) in names.iter().zip(0..) {
            let path = self.path(name);
            let Some(kept) = files.kept.get_mut(name) else { return };
            kept.used = now - Duration::from_millis(age);
            // After a failure the next start sees an older time.
            let _ = File::open(path).and_then(|file| file.set_modified(kept.used));
        }
    }

    /// Deletes the least recently used files until a number of bytes is free.
    fn make_room(&self, bytes: u64) {
        let mut files = self.files.lock();
        while files.bytes + bytes > self.store.limit {
            let oldest = files.kept.iter().min_by_key(|(_, kept)| kept.used);
            let Some(name) = oldest.map(|(name, _)| *name) else { return };
            let path = self.path(&name);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(file = %path.display(), %error, "a kept prefix cannot be removed");
            }
            files.forget(&name);
        }
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.store.dir.join(hex(name)).with_extension(SUFFIX)
    }
}

/// Clears the recurrent parts of all slots, so that every stored byte has been written.
fn clear(runner: &mut ModelRunner, rest: usize) -> Result<(), device::Error> {
    let nothing = vec![0; rest];
    (0..runner.slots() as u32)
        .try_for_each(|slot| runner.write_part(Part::Recurrent(slot), &nothing))
}

/// Name of a part at the end of a block.
fn name_of(block: Name, part: Kind) -> Name {
    match part {
        Kind::Block => block,
        Kind::Recurrent => Sha256::new_with_prefix(block).chain_update("rest").finalize().into(),
    }
}

fn hex(name: &Name) -> String {
    name.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Name> {
    let mut name = Name::default();
    if text.len() != 2 * name.len() || !text.is_ascii() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(name)
}

/// Indexes the block files of a directory. Deletes the temporary files of interrupted writes.
fn found(dir: &Path) -> io::Result<Files> {
    let mut files = Files::default();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(unhex);
        let (Some(name), Ok(metadata)) = (stem, entry.metadata()) else { continue };
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some(SUFFIX) if metadata.is_file() => {
                let used = metadata.modified()?;
                files.insert(name, Kept { bytes: metadata.len(), used });
            }
            Some("tmp") => fs::remove_file(&path)?,
            _ => {}
        }
    }
    Ok(files)
}

/// Hash of everything besides tokens that determines a block: the files that were loaded, and the cache format.
///
/// # Errors
/// A file cannot be read, or has been written since it was opened: its weights may be those of before.
fn identity<'a>(
    files: impl Iterator<Item = &'a RegularFile>,
    evaluated_by: &str,
) -> io::Result<Name> {
    let mut hash = Sha256::new_with_prefix(MAGIC);
    for file in files {
        if !file.is_unchanged() {
            return Err(io::Error::other("a file of the model was written while it was loaded"));
        }
        let Identity { device, inode, bytes, modified, changed } = file.identity();
        for fact in [device, inode, bytes] {
            hash.update(fact.to_le_bytes());
        }
        for fact in [modified.0, modified.1, changed.0, changed.1] {
            hash.update(fact.to_le_bytes());
        }
        let mut beginning = vec![0; usize::try_from(bytes.min(BEGINNING)).unwrap_or(0)];
        file.file().read_exact_at(&mut beginning, 0)?;
        hash.update(beginning);
    }
    hash.update(evaluated_by);
    Ok(hash.finalize().into())
}

fn head(name: &Name, bytes: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..40].copy_from_slice(name);
    head[40..].copy_from_slice(&(bytes as u64).to_le_bytes());
    head
}

fn checksum(head: &[u8; HEAD], block: &[u8]) -> [u8; HASH] {
    Sha256::new_with_prefix(head).chain_update(block).finalize().into()
}

/// Reads a part of known size and verifies it.
fn read(path: &Path, name: &Name, block: &mut [u8]) -> Result<(), Refused> {
    let mut file = File::open(path)?;
    let (found, expected) = (file.metadata()?.len(), (HEAD + HASH + block.len()) as u64);
    if found != expected {
        return Err(Refused::Length { found, expected });
    }
    let (mut begins, mut hash) = ([0; HEAD], [0; HASH]);
    file.read_exact(&mut begins)?;
    if begins != head(name, block.len()) {
        return Err(Refused::Foreign);
    }
    file.read_exact(&mut hash)?;
    file.read_exact(block)?;
    if hash != checksum(&begins, block) { Err(Refused::Damaged) } else { Ok(()) }
}

/// Writes a part atomically.
fn write(path: &Path, name: &Name, block: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let head = head(name, block.len());
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(&head)?;
        file.write_all(&checksum(&head, block))?;
        file.write_all(block)
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    // Deletes the truncated file of a full disk.
    renamed.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const BYTES: usize = 1000;

    const REST: usize = 1700;
    const FILE: u64 = (HEAD + HASH + BYTES) as u64;

    /// Opens a directory as another process would.
    fn open(dir: &Path, limit: u64) -> PrefixFiles {
        among(&Directories::default(), [7; 32], dir, limit)
    }

    fn among(directories: &Directories, root: Name, dir: &Path, limit: u64) -> PrefixFiles {
        let store = PrefixStore { dir: dir.join("prefixes"), limit };
        let counts = PrefixCounts::default();
        let sizes = Sizes { block: BYTES, rest: 0 };
        PrefixFiles::new(&store, root, Vec::new(), sizes, counts, directories).unwrap()
    }

    /// Opens a directory for a model with a recurrent part.
    fn with_recurrent(dir: &Path, limit: u64) -> PrefixFiles {
        let mut prefixes = open(dir, limit);
        prefixes.sizes.rest = REST;
        prefixes.part.resize(BYTES.max(REST), 0);
        prefixes
    }

    fn tokens(seed: u32, blocks: usize) -> Vec<u32> {
        (0..(blocks * BLOCK) as u32).map(|i| i.wrapping_mul(seed) % 1000).collect()
    }

    fn write(prefixes: &mut PrefixFiles, tokens: &[u32], blocks: std::ops::RangeInclusive<usize>) {
        for block in blocks {
            let fill = |bytes: &mut [u8]| {
                bytes.fill(block as u8);
                Ok::<_, ()>(())
            };
            prefixes.write(&tokens[..block * BLOCK], Scales::NONE, Kind::Block, fill).unwrap();
        }
    }

    fn file(prefixes: &PrefixFiles, tokens: &[u32]) -> PathBuf {
        prefixes.path(&prefixes.names(tokens, Scales::NONE).last().unwrap())
    }

    #[test]
    fn stored_blocks_are_found_up_to_the_first_difference() {
        let dir = tempfile::tempdir().unwrap();
        let said = tokens(3, 3);
        let mut first = open(dir.path(), 1 << 20);
        assert_eq!(first.missing(&said, Scales::NONE), Some(0));
        write(&mut first, &said, 1..=3);
        assert_eq!((first.missing(&said, Scales::NONE), first.counts().written), (None, 3));
        let mut again = open(dir.path(), 1 << 20);
        assert_eq!(again.counts().bytes, 3 * FILE);
        // The last token of a prompt is evaluated in any case.
        assert_eq!(again.covers(&said, Scales::NONE), 2 * BLOCK);
        assert_eq!(again.covers(&[&said[..], &[9]].concat(), Scales::NONE), 3 * BLOCK);
        let mut other = said.clone();
        other[BLOCK + 5] += 1;
        assert_eq!(again.covers(&other, Scales::NONE), BLOCK);
        assert_eq!(again.read(&said[..2 * BLOCK], Scales::NONE, Kind::Block).unwrap(), [2; BYTES]);
        // Another model, or another cache format.
        again.root = [8; 32];
        assert_eq!(again.covers(&said, Scales::NONE), 0);
        let mode = fs::metadata(file(&first, &said)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("prefixes")).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn stored_prefixes_depend_on_adapters() {
        let dir = tempfile::tempdir().unwrap();
        let said = tokens(3, 1);
        let mut prefixes = open(dir.path(), 1 << 20);
        prefixes.adapters = vec![[1; 32], [2; 32]];
        let scales = |first, second| {
            let mut scales = Scales::NONE;
            (scales.0[0], scales.0[1]) = (first, second);
            scales
        };
        let with = scales(0.0, 0.5);
        prefixes.write(&said, with, Kind::Block, |_| Ok::<_, ()>(())).unwrap();
        assert_eq!(prefixes.missing(&said, with), None);
        for other in [Scales::NONE, scales(0.5, 0.0), scales(0.0, 0.25), scales(0.5, 0.5)] {
            assert_eq!(prefixes.missing(&said, other), Some(0));
        }
        // Another file in its place.
        prefixes.adapters[0] = [3; 32];
        assert_eq!(prefixes.missing(&said, with), None);
        prefixes.adapters[1] = [3; 32];
        assert_eq!(prefixes.missing(&said, with), Some(0));
    }

    #[test]
    fn damaged_truncated_and_foreign_files_are_counted_and_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let said = tokens(5, 2);
        let one = &said[..BLOCK];
        let mut prefixes = open(dir.path(), 1 << 20);
        write(&mut prefixes, &said, 1..=2);
        let whole = fs::read(file(&prefixes, one)).unwrap();
        let other = fs::read(file(&prefixes, &said)).unwrap();
        let mut wrong: Vec<Vec<u8>> = (0..whole.len())
            .step_by(61)
            .map(|at| {
                let mut bytes = whole.clone();
                bytes[at] ^= 1;
                bytes
            })
            .collect();
        let cuts = [0, 1, HEAD, HEAD + HASH, whole.len() - 1];
        wrong.extend(cuts.map(|len| whole[..len].to_vec()));
        wrong.extend([[&whole[..], &[0]].concat(), other, vec![0; whole.len()]]);
        let count = wrong.len() as u64;
        for bytes in wrong {
            fs::write(file(&prefixes, one), bytes).unwrap();
            let mut again = open(dir.path(), 1 << 20);
            assert_eq!(again.covers(&said, Scales::NONE), BLOCK);
            assert!(again.read(one, Scales::NONE, Kind::Block).is_none());
            // It is written again then.
            assert_eq!(
                (again.covers(&said, Scales::NONE), again.missing(&said, Scales::NONE)),
                (0, Some(0))
            );
            prefixes.counts.refused += again.counts().refused;
        }
        assert_eq!(prefixes.counts().refused, count);
        write(&mut prefixes, &said, 1..=1);
        assert_eq!(prefixes.read(one, Scales::NONE, Kind::Block).unwrap(), [1; BYTES]);
        // A file that another program deleted is missing without a warning.
        fs::remove_file(file(&prefixes, one)).unwrap();
        assert!(prefixes.read(one, Scales::NONE, Kind::Block).is_none());
        assert_eq!(prefixes.counts().refused, count);
    }

    #[test]
    fn the_least_recently_used_files_go_first_and_ends_before_prefixes() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (tokens(3, 3), tokens(7, 3));
        let mut prefixes = open(dir.path(), 5 * FILE);
        write(&mut prefixes, &old, 1..=3);
        prefixes.touch(&old, Scales::NONE);
        write(&mut prefixes, &new, 1..=3);
        prefixes.touch(&new, Scales::NONE);
        assert_eq!(prefixes.counts().bytes, 5 * FILE);
        let covered = |prefixes: &PrefixFiles, tokens: &[u32]| {
            prefixes.covers(&[tokens, &[1]].concat(), Scales::NONE) / BLOCK
        };
        assert_eq!([covered(&prefixes, &old), covered(&prefixes, &new)], [2, 3]);
        // The order survives on disk, and a lower limit applies at once.
        prefixes.touch(&old, Scales::NONE);
        let smaller = open(dir.path(), 3 * FILE);
        assert_eq!([covered(&smaller, &old), covered(&smaller, &new)], [2, 1]);
        assert_eq!(fs::read_dir(dir.path().join("prefixes")).unwrap().count(), 3);
    }

    #[test]
    fn models_of_one_process_share_the_size_limit() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::default();
        let model = |root| among(&directories, [root; 32], dir.path(), 4 * FILE);
        let (mut one, mut other) = (model(1), model(2));
        let said = tokens(3, 3);
        write(&mut one, &said, 1..=3);
        one.touch(&said, Scales::NONE);
        write(&mut other, &said, 1..=3);
        assert_eq!((one.counts().bytes, other.counts().bytes), (4 * FILE, 4 * FILE));
        assert_eq!(fs::read_dir(dir.path().join("prefixes")).unwrap().count(), 4);
        // The end of what was used before made room.
        assert_eq!(one.missing(&said, Scales::NONE), Some(1));
        assert_eq!(other.missing(&said, Scales::NONE), None);
        // A file that another engine is writing is not deleted as an interrupted write.
        fs::write(file(&one, &said).with_extension("tmp"), b"").unwrap();
        model(3);
        assert!(file(&one, &said).with_extension("tmp").exists());
    }

    #[test]
    fn a_failed_write_is_not_repeated_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let said = tokens(3, 1);
        let mut small = open(dir.path(), FILE - 1);
        write(&mut small, &said, 1..=1);
        assert_eq!((small.writes(), small.counts().failed, small.counts().written), (false, 1, 0));
        let mut blocked = open(dir.path(), 1 << 20);
        // A folder where the file would be.
        fs::create_dir(file(&blocked, &said)).unwrap();
        write(&mut blocked, &said, 1..=1);
        assert!(!blocked.writes());
        let left = fs::read_dir(dir.path().join("prefixes")).unwrap().count();
        assert_eq!((left, blocked.counts().bytes), (1, 0));
        // A write that was cut short.
        fs::write(file(&blocked, &said).with_extension("tmp"), b"ORIND").unwrap();
        open(dir.path(), 1 << 20);
        assert!(!file(&blocked, &said).with_extension("tmp").exists());
    }
    /// Writes the recurrent snapshot that belongs after `blocks` blocks.
    fn write_rest(prefixes: &mut PrefixFiles, tokens: &[u32], blocks: usize) {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(100 + blocks as u8);
            Ok::<_, ()>(())
        };
        prefixes.write(&tokens[..blocks * BLOCK], Scales::NONE, Kind::Recurrent, fill).unwrap();
    }

    #[test]
    fn a_recurrent_model_continues_only_at_a_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let said = tokens(3, 12);
        let mut prefixes = with_recurrent(dir.path(), 1 << 20);
        write(&mut prefixes, &said, 1..=10);
        assert_eq!(prefixes.covers(&said, Scales::NONE), 0);
        for blocks in [4, 9, 11] {
            write_rest(&mut prefixes, &said, blocks);
        }
        let mut again = with_recurrent(dir.path(), 1 << 20);
        let whole = |bytes: usize| (HEAD + HASH + bytes) as u64;
        assert_eq!(again.counts().bytes, 10 * whole(BYTES) + 3 * whole(REST));
        // The last sequence misses some blocks.
        assert_eq!(again.covers(&said, Scales::NONE), 9 * BLOCK);
        assert_eq!(again.covers(&said[..9 * BLOCK], Scales::NONE), 4 * BLOCK);
        let nine = &said[..9 * BLOCK];
        assert_eq!(again.read(nine, Scales::NONE, Kind::Recurrent).unwrap(), [109; REST]);
        assert_eq!(again.read(nine, Scales::NONE, Kind::Block).unwrap(), [9; BYTES]);
        // One for the other, cut or damaged: each is a file of its own.
        let file = |part| again.path(&again.part(nine, Scales::NONE, part).0);
        let (rest, block) = (file(Kind::Recurrent), file(Kind::Block));
        let kept = fs::read(&rest).unwrap();
        let mut damaged = kept.clone();
        damaged[HEAD + HASH + 3] ^= 1;
        for (round, bytes) in (1..).zip([fs::read(&block).unwrap(), kept[..99].to_vec(), damaged]) {
            fs::write(&rest, bytes).unwrap();
            let mut again = with_recurrent(dir.path(), 1 << 20);
            assert!(again.read(nine, Scales::NONE, Kind::Recurrent).is_none());
            prefixes.counts.refused += again.counts().refused;
            assert_eq!(prefixes.counts().refused, round);
            assert_eq!(again.covers(&said, Scales::NONE), 4 * BLOCK);
        }
    }

    #[test]
    fn snapshots_are_at_the_divergence_and_the_end_of_prompts() {
        let dir = tempfile::tempdir().unwrap();
        let mut prefixes = with_recurrent(dir.path(), 1 << 20);
        let (said, at) = (tokens(3, 20), |blocks: usize| blocks * BLOCK);
        let rests = |prefixes: &PrefixFiles, tokens: &[u32], from| {
            prefixes.snapshot_positions(tokens, Scales::NONE, from)
        };
        assert_eq!(rests(&prefixes, &said, 0), [at(19)]);
        assert_eq!(rests(&prefixes, &said[..at(APART)], 0), [0; 0]);
        assert_eq!(rests(&prefixes, &said, at(19 - APART) + 1), [0; 0]);
        write(&mut prefixes, &said, 1..=19);
        let mut other = said.clone();
        other[at(11) + 7] += 1;
        assert_eq!(rests(&prefixes, &other, 0), [at(19), at(11)]);
        assert_eq!(rests(&prefixes, &other, at(11)), [at(19)]);
        assert_eq!(rests(&prefixes, &other[..at(13)], 0), [at(11)]);
        // Without writing or without a recurrent part there are no snapshots.
        prefixes.writes = false;
        assert_eq!(rests(&prefixes, &said, 0), [0; 0]);
        assert_eq!(rests(&open(dir.path(), 1 << 20), &said, 0), [0; 0]);
    }
}
