//! Random programs on the CUDA GPU of this machine, compared bit for bit with their scalar model.
//! `kernels/tests/machine` compares the machine-code engine with the same programs, and with the results of an H100 in
//! `kernels/snippets/silicon.sm_90.bin`. Needs a GPU of SM 9.0, for which the programs are compiled; without one it
//! prints `skipped` and exits with 0.
//!
//!     cargo bench --bench gpu_snippets -- [FILE FOR THE RESULTS]
//!
//! Prints one JSON object.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic and reports")]

use std::ffi::{CString, c_void};
use std::process::ExitCode;
use std::ptr;

use cudarc::driver::result;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use device::Device as _;
use device::gpu::cuda::Cuda;
use orind_kernels::snippets::{self, LANES, Snippet, WARPS, WORDS, Warp};
use serde_json::json;

const CODE: &[u8] = include_bytes!("../kernels/snippets/snippets.sm_90.cubin");
const OUTPUT: usize = WARPS * LANES * WORDS;

fn main() -> ExitCode {
    let name = match Cuda::detect() {
        Ok(device) => device.info().description,
        Err(reason) => {
            println!("{}", json!({ "skipped": reason }));
            return ExitCode::SUCCESS;
        }
    };
    // SAFETY: the driver is loaded; the device is the first one, and its context stays current.
    let sm = unsafe {
        let device = result::device::get(0).unwrap();
        let context = result::primary_ctx::retain(device).unwrap();
        result::ctx::set_current(context).unwrap();
        let of = |attribute| result::device::get_attribute(device, attribute).unwrap();
        let major = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        (major, of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    };
    if sm != (9, 0) {
        println!("{}", json!({ "skipped": format!("{name} is SM {}.{}, not 9.0", sm.0, sm.1) }));
        return ExitCode::SUCCESS;
    }
    let (mut answers, mut wrong) = (Vec::new(), Vec::new());
    for (number, snippet) in (0..).zip(snippets::all()) {
        let inputs: Vec<Warp> = (0..WARPS as u64).map(|w| snippets::input(number, w)).collect();
        let answer = run(&snippet, &inputs);
        let model: Vec<Warp> = inputs.iter().map(|warp| snippet.evaluate(*warp)).collect();
        let differ = answer.iter().zip(words(&model)).filter(|(a, b)| *a != b).count();
        if differ > 0 {
            wrong.push(json!({ "program": number, "words": differ }));
        }
        answers.extend(answer.iter().flat_map(|word| word.to_le_bytes()));
    }
    // Cargo adds flags of its own.
    if let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        std::fs::write(path, &answers).unwrap();
    }
    println!(
        "{}",
        json!({ "device": name, "programs": snippets::COUNT, "words": answers.len() / 4, "wrong": wrong })
    );
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn words(warps: &[Warp]) -> Vec<u32> {
    warps.iter().flatten().flatten().copied().collect()
}

/// Runs a program on the GPU and returns its output.
fn run(snippet: &Snippet, inputs: &[Warp]) -> Vec<u32> {
    let mut output = vec![0u32; OUTPUT];
    // SAFETY: a context is current; the kernel accesses only the two buffers, which are
    // freed after the copy that waits for it.
    unsafe {
        let module = result::module::load_data(CODE.as_ptr().cast()).unwrap();
        let name = CString::new(snippet.symbol()).unwrap();
        let function = result::module::get_function(module, name).unwrap();
        let mut from = result::malloc_sync(4 * OUTPUT).unwrap();
        let mut to = result::malloc_sync(4 * OUTPUT).unwrap();
        result::memcpy_htod_sync(from, &words(inputs)).unwrap();
        let mut params: [*mut c_void; 2] = [(&raw mut from).cast(), (&raw mut to).cast()];
        let (grid, block) = ((WARPS as u32, 1, 1), (LANES as u32, 1, 1));
        result::launch_kernel(function, grid, block, 0, ptr::null_mut(), &mut params).unwrap();
        result::memcpy_dtoh_sync(&mut output, to).unwrap();
        result::free_sync(from).unwrap();
        result::free_sync(to).unwrap();
        result::module::unload(module).unwrap();
    }
    output
}
