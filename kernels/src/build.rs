//! Build of `prebuilt/`: compiles every unit for every target and writes the manifest.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use orind_kernels::catalogue::Unit;
use orind_kernels::cubin::Cubin;
use orind_kernels::manifest::{File, Manifest, Usage};
use orind_kernels::nvrtc::Compiler;
use orind_kernels::occupancy::blocks_per_sm;
use orind_kernels::params;
use orind_kernels::prebuilt::{MANIFEST, pack, packed, unpack};
use orind_kernels::snippets;
use orind_kernels::source::{self, Compiled, HEADERS, OPTIONS, Target};
use sha2::{Digest as _, Sha256};

/// Limit on the packed size of all checked-in machine code.
const LIMIT: usize = 6 << 20;

/// Bytes of spill stores and loads of each kernel, from ptxas's log.
type Spills = BTreeMap<String, (u32, u32)>;

/// Writes the CUDA declarations of parameter blocks.
pub(crate) fn header() -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/params.cuh");
    std::fs::write(&path, params::header()).with_context(|| path.display().to_string())
}

/// Compiles units whose code, target or compiler changed since the last build. Writes to
/// `prebuilt/` only if all of them compile.
pub(crate) fn build(compiler: &Compiler) -> anyhow::Result<()> {
    let version = compiler.version();
    ensure!(
        version == (12, 6),
        "this is NVRTC {}.{}; JetPack 6 has 12.6, and the machine code is made for it",
        version.0,
        version.1
    );
    let mut options: Vec<String> = OPTIONS.iter().map(|&o| o.to_owned()).collect();
    let nothing = compiler.compile("nothing", "", &[], &options, true)?;
    let mut manifest = Manifest {
        sources: source::hash(),
        compiler: compiler_of(&nothing.code)?,
        options: options.clone(),
        files: BTreeMap::new(),
        kernels: BTreeMap::new(),
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("prebuilt");
    let before = std::fs::read(folder.join(MANIFEST)).ok();
    let before = before.and_then(|json| serde_json::from_slice::<Manifest>(&json).ok());
    let before =
        before.filter(|b| b.compiler == manifest.compiler && b.options == manifest.options);
    let mut made = BTreeMap::new();
    for unit in Unit::all() {
        for target in Target::ALL {
            let name = target.file(unit);
            let known = before.as_ref().and_then(|before| {
                let file = before.files.get(&name)?;
                let code = unpack(&std::fs::read(folder.join(packed(&name))).ok()?).ok()?;
                let same = file.unit == source::unit_hash(unit, target)
                    && file.sha256 == source::hex(&Sha256::digest(&code));
                let used = |kernel: &Compiled| before.kernels.get(&kernel.symbol).copied();
                let kernels = source::compiled(unit, target);
                let used: Option<Vec<Usage>> = kernels.iter().map(used).collect();
                same.then(|| Some((code, file.spilled, used?)))?
            });
            let (code, spilled, used) = match known {
                Some(known) => known,
                None => {
                    options.truncate(OPTIONS.len());
                    options.push(format!("--gpu-architecture={}", target.architecture()));
                    compile(compiler, unit, target, &options)?
                }
            };
            if target == Target::Sm87 {
                let symbols = source::compiled(unit, target).into_iter().map(|k| k.symbol);
                manifest.kernels.extend(symbols.zip(used));
            }
            say(&format!("{name}: {} bytes", code.len()));
            let sha256 = source::hex(&Sha256::digest(&code));
            let unit = source::unit_hash(unit, target);
            manifest.files.insert(name.clone(), File { sha256, bytes: code.len(), unit, spilled });
            made.insert(packed(&name), pack(&code)?);
        }
    }
    let total: usize = made.values().map(Vec::len).sum();
    say(&format!("{} kernels, {} KiB", manifest.kernels.len(), total >> 10));
    ensure!(total <= LIMIT, "{total} bytes of packed machine code; at most {LIMIT} are checked in");
    let mut json = serde_json::to_vec_pretty(&manifest)?;
    json.push(b'\n');
    made.insert(MANIFEST.into(), json);
    write(&folder, &made)
}

/// Machine code of a unit, bytes spilled, and the resources of each kernel (none for PTX).
fn compile(
    compiler: &Compiler,
    unit: Unit,
    target: Target,
    options: &[String],
) -> anyhow::Result<(Vec<u8>, u32, Vec<Usage>)> {
    let (name, text) = (target.file(unit), source::text(unit, target));
    let ptx = target == Target::Compute80;
    let output = compiler.compile(&name, &text, HEADERS, options, ptx)?;
    if ptx {
        return Ok((output.code, 0, Vec::new()));
    }
    let spills = spills(&output.log);
    let cubin = Cubin::parse(&output.code).context(name)?;
    let kernels = source::compiled(unit, target);
    let used: Vec<Usage> =
        kernels.iter().map(|kernel| usage(&cubin, kernel, &spills)).collect::<Result<_, _>>()?;
    let spilled = spills.values().map(|(stores, loads)| stores + loads).sum::<u32>()
        + used.iter().map(|usage| usage.stack).sum::<u32>();
    Ok((output.code, spilled, used))
}

/// Compiles the random programs into `snippets/`.
pub(crate) fn snippets(compiler: &Compiler) -> anyhow::Result<()> {
    let mut made = BTreeMap::new();
    for target in [Target::Sm87, Target::Sm90] {
        let name = format!("snippets.{}.cubin", target.architecture());
        let architecture = format!("--gpu-architecture={}", target.architecture());
        let options = ["--std=c++17".to_owned(), architecture];
        let output = compiler.compile(&name, &snippets::source(), &[], &options, false)?;
        say(&format!("{name}: {} bytes", output.code.len()));
        made.insert(name, output.code);
    }
    write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("snippets"), &made)
}

#[expect(clippy::print_stdout, reason = "this program's output")]
fn say(line: &str) {
    println!("{line}");
}

fn write(folder: &Path, made: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !made.contains_key(entry.file_name().to_string_lossy().as_ref()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    for (name, bytes) in made {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn usage(cubin: &Cubin<'_>, kernel: &Compiled, spills: &Spills) -> anyhow::Result<Usage> {
    let Compiled { symbol, threads, .. } = kernel;
    let found = cubin.kernel(symbol).with_context(|| format!("{symbol} was not compiled"))?;
    let &(spill_stores, spill_loads) =
        spills.get(symbol).with_context(|| format!("{symbol} is missing in ptxas's log"))?;
    let shared = u32::try_from(found.shared_bytes)?;
    Ok(Usage {
        registers: found.registers,
        shared: found.shared_bytes,
        stack: found.stack_bytes,
        spill_stores,
        spill_loads,
        code: found.code.len(),
        blocks_per_sm: blocks_per_sm(*threads, found.registers, shared),
    })
}

/// Parses `Cuda compilation tools, release 12.6, V12.6.85` in the first lines of PTX.
fn compiler_of(ptx: &[u8]) -> anyhow::Result<String> {
    let text = String::from_utf8_lossy(ptx);
    match text.lines().take(20).find_map(|line| line.split_once(", V")) {
        Some((_, version)) => Ok(format!("NVRTC {}", version.trim())),
        None => bail!("the PTX has no compiler version"),
    }
}

/// Parses `... entry function 'K' ...` and `..., N bytes spill stores, N bytes spill loads`.
fn spills(log: &str) -> Spills {
    let mut all = Spills::new();
    let mut kernel = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("entry function '") {
            kernel = rest.split('\'').next().map(String::from);
        }
        let count = |what: &str| {
            let before = line.split(what).next().filter(|part| part.len() < line.len())?;
            before.trim_end().rsplit([' ', ',']).next()?.parse::<u32>().ok()
        };
        let both = count("bytes spill stores").zip(count("bytes spill loads"));
        if let (Some(name), Some(both)) = (&kernel, both) {
            all.insert(name.clone(), both);
        }
    }
    all
}
