//! Random programs as the compiler made sm_87 code of them, executed, against their scalar model;
//! and against what an H100 answered (`cargo bench --bench gpu_snippets`, 2026-11-22, driver
//! 580.159.04).

use orind_kernels::cubin::Cubin;
use orind_kernels::snippets::{self, LANES, WARPS, WORDS, Warp};

use super::device::Device;

const CODE: &[u8] = include_bytes!("../../../snippets/snippets.sm_87.cubin");
const SILICON: &[u8] = include_bytes!("../../../snippets/silicon.sm_90.bin");

fn words(warps: &[Warp]) -> Vec<u32> {
    warps.iter().flatten().flatten().copied().collect()
}

/// Result of the simulator for a program's inputs.
fn executed(cubin: &Cubin<'_>, number: u64, snippet: &snippets::Snippet) -> Vec<u32> {
    let inputs: Vec<Warp> = (0..WARPS as u64).map(|warp| snippets::input(number, warp)).collect();
    let mut device = Device::new(number);
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let input = device.bytes(&bytes(&words(&inputs)));
    let output = device.scratch(WARPS * LANES * WORDS);
    let name = snippet.symbol();
    let found = cubin.kernel(&name).expect("`orind-kernels snippets` makes the machine code anew");
    let params = [input.to_le_bytes(), output.to_le_bytes()].concat();
    device.execute(&name, found, [LANES as u32, 1, 1], [WARPS as u32, 1, 1], 0, &params);
    device.words(output)
}

#[test]
fn machine_code_matches_the_model() {
    let cubin = Cubin::parse(CODE).unwrap();
    for (number, snippet) in (0..).zip(snippets::all()) {
        let executed = executed(&cubin, number, &snippet);
        for (warp, found) in (0..).zip(executed.chunks(LANES * WORDS)) {
            let model = words(&[snippet.evaluate(snippets::input(number, warp))]);
            for (at, (found, model)) in found.iter().zip(&model).enumerate() {
                let (lane, word) = (at / WORDS, at % WORDS);
                assert_eq!(
                    found,
                    model,
                    "program {number}, warp {warp}, lane {lane}, word {word}: {found:#x}, not \
                     {model:#x}\n{}",
                    snippet.text()
                );
            }
        }
    }
}

#[test]
fn recorded_silicon_results_match_the_model() {
    let cubin = Cubin::parse(CODE).unwrap();
    let executed: Vec<u32> = (0..)
        .zip(snippets::all())
        .flat_map(|(number, snippet)| executed(&cubin, number, &snippet))
        .collect();
    let answers: Vec<u32> =
        SILICON.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!((executed.len(), SILICON.len()), (answers.len(), 4 * answers.len()));
    assert_eq!(executed.iter().zip(&answers).position(|(a, b)| a != b), None);
}
