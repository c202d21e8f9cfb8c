//! Benchmark of the interpreter: thread instructions per second on one core for kernels of a decode
//! step, with checks off and on.

#![expect(clippy::unwrap_used, reason = "a bench that cannot set up has nothing to measure")]

#[path = "../tests/machine/support.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod support;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use orind_testing::random::Random;
use sass::check::Checks;
use support::Arg::{self, Float, Int, Pointer};
use support::{Arena, Call, Kernel, kernel, words};

/// A kernel with arguments that make it work for a while.
fn measure(
    criterion: &mut Criterion,
    name: &str,
    kernel: &Kernel,
    shape: (u32, u32, u32),
    memory: &Arena,
    args: &[Arg],
) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10);
    for (title, checks) in [
        ("checks off", Checks::NONE),
        ("races", Checks { definedness: false, races: true }),
        ("all checks", Checks::ALL),
    ] {
        let mut call = Call::new(kernel, shape.0, shape.1);
        call.dynamic_shared = shape.2;
        call.options.checks = checks;
        let counters = call.run(memory, args);
        group.throughput(Throughput::Elements(counters.lane_total()));
        group.bench_function(title, |bencher| bencher.iter(|| call.run(memory, args)));
    }
    group.finish();
}

fn matrix_times_vector(criterion: &mut Criterion) {
    let (rows, blocks) = (256usize, 64usize);
    let mut random = Random(1);
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.words(&words(&mut random, rows * blocks * 8))),
        Pointer(memory.words(&vec![0x2000_2000; rows * blocks / 2])),
        Pointer(memory.words(&words(&mut random, blocks * 8))),
        Pointer(memory.floats(&random.reals(blocks, 1.0))),
        Pointer(memory.zeros(rows)),
        Int(blocks as i32),
    ];
    measure(criterion, "q8 matvec", &kernel("matvec", "matvec_q8"), (256, 32, 0), &memory, &args);
}

fn half_matrix_times_vector(criterion: &mut Criterion) {
    let (rows, n) = (64usize, 256usize);
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.words(&vec![0x3c00_3800; rows * n * 4])),
        Pointer(memory.words(&vec![0x3400_3000; n * 4])),
        Pointer(memory.zeros(rows)),
        Int(n as i32),
    ];
    let kernel = kernel("matvec", "matvec_half2");
    measure(criterion, "half2 matvec", &kernel, (64, 32, 0), &memory, &args);
}

fn norm(criterion: &mut Criterion) {
    let n = 4096usize;
    let mut random = Random(2);
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.floats(&random.reals(8 * n, 1.0))),
        Pointer(memory.floats(&random.reals(n, 1.0))),
        Pointer(memory.zeros(8 * n)),
        Int(n as i32),
        Float(1e-5),
    ];
    measure(criterion, "norm", &kernel("transformer", "rms_norm"), (8, 256, 0), &memory, &args);
}

fn softmax(criterion: &mut Criterion) {
    let n = 4096usize;
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.floats(&Random(3).reals(4 * n, 1.0))),
        Pointer(memory.zeros(4 * n)),
        Int(n as i32),
    ];
    measure(criterion, "softmax", &kernel("transformer", "softmax"), (4, 256, 0), &memory, &args);
}

criterion_group!(benches, matrix_times_vector, half_matrix_times_vector, norm, softmax);
criterion_main!(benches);
