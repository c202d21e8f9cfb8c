//! Whole kernels, compiled by the vendor's compiler, compared with what their sources compute.
//!
//! Every kernel runs with all checks on; the sources lie in `tests/data/kernels`.

use crate::support::Arg::{Float, Int, Pointer};
use crate::support::{Arena, Call, Kernel, kernel, words};
use half::f16;
use orind_testing::random::Random;
use sass::isa::Opcode;
use sass::machine::LOST;
use sass::program::WRONG;

fn halves(random: &mut Random, count: usize, scale: f32) -> Vec<f16> {
    random.reals(count, scale).into_iter().map(f16::from_f32).collect()
}

fn close(ours: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    for (index, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        let limit = tolerance * expected.abs().max(1.0);
        assert!(
            (f64::from(*ours) - expected).abs() <= limit,
            "{what}[{index}]: {ours} for {expected}"
        );
    }
}

#[test]
fn quantised_matrix_times_vector() {
    let kernel = kernel("matvec", "matvec_q8");
    let (rows, blocks) = (5usize, 37usize);
    let mut random = Random(11);
    let w = words(&mut random, rows * blocks * 8);
    let x = words(&mut random, blocks * 8);
    let scales = halves(&mut random, rows * blocks, 0.01);
    let xs = random.reals(blocks, 1.0);
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.words(&w)),
        Pointer(memory.halves(&scales)),
        Pointer(memory.words(&x)),
        Pointer(memory.floats(&xs)),
        Pointer(memory.zeros(rows)),
        Int(blocks as i32),
    ];
    let counters = Call::new(&kernel, rows as u32, 32).run(&memory, &args);
    let byte = |words: &[u32], index: usize| (words[index / 4] >> (index % 4 * 8)) as u8 as i8;
    let expected: Vec<f64> = (0..rows)
        .map(|row| {
            (0..blocks)
                .map(|block| {
                    let at = row * blocks + block;
                    let sum: i32 = (0..32)
                        .map(|i| {
                            i32::from(byte(&w, at * 32 + i)) * i32::from(byte(&x, block * 32 + i))
                        })
                        .sum();
                    f64::from(sum) * scales[at].to_f64() * f64::from(xs[block])
                })
                .sum()
        })
        .collect();
    let Pointer(y) = args[4] else { unreachable!() };
    close(&memory.read_floats(y), &expected, 1e-5, "row");
    // Every byte is loaded once for each row, and the activations again for each row.
    let bytes = rows * blocks * (32 + 2 + 32 + 4);
    assert_eq!(counters.bytes_loaded, bytes as u64);
    assert_eq!(counters.bytes_stored, rows as u64 * 4);
}

#[test]
fn half_matrix_times_vector() {
    let kernel = kernel("matvec", "matvec_half2");
    let n = 40usize;
    let mut random = Random(3);
    let (w, x) = (halves(&mut random, 4 * n * 8, 1.0), halves(&mut random, n * 8, 1.0));
    let mut memory = Arena::default();
    let y = memory.zeros(2);
    let args = [Pointer(memory.halves(&w)), Pointer(memory.halves(&x)), Pointer(y), Int(n as i32)];
    let mut call = Call::new(&kernel, 2, 32);
    call.block = [32, 2, 1];
    call.run(&memory, &args);
    let words = memory.read(y);
    for row in 0..4 {
        let expected: f64 = (0..n * 8).map(|i| w[row * n * 8 + i].to_f64() * x[i].to_f64()).sum();
        let ours = f16::from_bits((words[row / 2] >> (16 * (row % 2))) as u16).to_f64();
        assert!((ours - expected).abs() < 0.2, "row {row}: {ours} for {expected}");
    }
}

#[test]
fn norm_over_several_warps() {
    let kernel = kernel("transformer", "rms_norm");
    let n = 300usize;
    let mut random = Random(5);
    let (x, w) = (random.reals(2 * n, 1.0), random.reals(n, 1.0));
    let mut memory = Arena::default();
    let y = memory.zeros(2 * n);
    let args = [
        Pointer(memory.floats(&x)),
        Pointer(memory.floats(&w)),
        Pointer(y),
        Int(n as i32),
        Float(1e-5),
    ];
    Call::new(&kernel, 2, 128).run(&memory, &args);
    let expected: Vec<f64> = x
        .chunks(n)
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
            let scale = 1.0 / (sum / n as f64 + 1e-5).sqrt();
            row.iter().zip(&w).map(move |(v, w)| f64::from(*v) * scale * f64::from(*w))
        })
        .collect();
    close(&memory.read_floats(y), &expected, 1e-5, "normed");
}

#[test]
fn softmax_over_rows() {
    let kernel = kernel("transformer", "softmax");
    let n = 700usize;
    let x: Vec<f32> = Random(7).reals(3 * n, 10.0);
    let mut memory = Arena::default();
    let y = memory.zeros(3 * n);
    let args = [Pointer(memory.floats(&x)), Pointer(y), Int(n as i32)];
    Call::new(&kernel, 3, 256).run(&memory, &args);
    let expected: Vec<f64> = x
        .chunks(n)
        .flat_map(|row| {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let parts: Vec<f64> = row.iter().map(|v| f64::from(v - most).exp()).collect();
            let sum: f64 = parts.iter().sum();
            parts.into_iter().map(move |part| part / sum)
        })
        .collect();
    close(&memory.read_floats(y), &expected, 1e-6, "probability");
}

#[test]
fn attention_with_dynamic_shared_memory() {
    let kernel = kernel("transformer", "attention");
    let (n, heads) = (77usize, 2usize);
    let mut random = Random(9);
    let q = random.reals(heads * 64, 1.0);
    let (k, v) = (halves(&mut random, n * 64, 1.0), halves(&mut random, n * 64, 1.0));
    let mut memory = Arena::default();
    let out = memory.zeros(heads * 64);
    let args = [
        Pointer(memory.floats(&q)),
        Pointer(memory.halves(&k)),
        Pointer(memory.halves(&v)),
        Pointer(out),
        Pointer(memory.words(&[n as u32])),
        Float(0.125),
    ];
    let mut call = Call::new(&kernel, heads as u32, 128);
    call.dynamic_shared = 4 * n as u32;
    call.run(&memory, &args);
    let mut expected = Vec::new();
    for head in 0..heads {
        let scores: Vec<f64> = (0..n)
            .map(|t| {
                (0..64).map(|i| f64::from(q[head * 64 + i]) * k[t * 64 + i].to_f64()).sum::<f64>()
                    * 0.125
            })
            .collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let parts: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = parts.iter().sum();
        for i in 0..64 {
            expected.push((0..n).map(|t| parts[t] * v[t * 64 + i].to_f64()).sum::<f64>() / sum);
        }
    }
    close(&memory.read_floats(out), &expected, 1e-5, "attention");
}

#[test]
fn rotary_embedding_with_slow_trigonometry() {
    let kernel = kernel("transformer", "rope");
    let (d, heads) = (64usize, 3usize);
    for position in [0u32, 5, 100_000] {
        let q = Random(13).reals(heads * d, 1.0);
        let mut memory = Arena::default();
        let qa = memory.floats(&q);
        let k = memory.zeros((position as usize + 1) * heads * d / 2);
        let args = [
            Pointer(qa),
            Pointer(k),
            Pointer(memory.words(&[position])),
            Float(10000.0),
            Int(d as i32),
        ];
        Call::new(&kernel, heads as u32, d as u32 / 2).run(&memory, &args);
        let ours = memory.read_floats(qa);
        for head in 0..heads {
            for i in 0..d / 2 {
                // The angle is rounded to single precision, as the source says.
                let inverse = 10000f64.powf(-2.0 * i as f64 / d as f64);
                let angle = f64::from(position) * inverse;
                let slack = 1e-5 + angle * 3e-7;
                let (a, b) = (f64::from(q[head * d + i]), f64::from(q[head * d + i + d / 2]));
                let expected = a * angle.cos() - b * angle.sin();
                let value = f64::from(ours[head * d + i]);
                assert!(
                    (value - expected).abs() < slack,
                    "{position} {head} {i}: {value} {expected}"
                );
            }
        }
    }
}

#[test]
fn argmax_by_atomics_and_the_last_block() {
    let kernel = kernel("transformer", "argmax");
    for (seed, threads) in [(0, 1), (1, 2), (2, 1)] {
        let n = 5000usize;
        let mut x = Random(seed + 20).reals(n, 1.0);
        x[(seed * 997 + 13) as usize] = 2.0;
        let mut memory = Arena::default();
        let (best, out, count) = (memory.zeros(2), memory.zeros(1), memory.zeros(1));
        let args = [
            Pointer(memory.floats(&x)),
            Int(n as i32),
            Pointer(best),
            Pointer(out),
            Pointer(count),
        ];
        let mut call = Call::new(&kernel, 6, 128);
        (call.options.seed, call.options.threads) = (seed, threads);
        call.run(&memory, &args);
        assert_eq!(memory.read(out), [(seed * 997 + 13) as u32], "seed {seed}");
        assert_eq!(memory.read(count), [0]);
    }
}

#[test]
fn loops_of_different_lengths() {
    let kernel = kernel("control", "collatz");
    let mut random = Random(17);
    let input: Vec<u32> = (0..128).map(|_| random.below(5000) as u32 + 1).collect();
    let mut memory = Arena::default();
    let (a, out) = (memory.words(&input), memory.zeros(128));
    Call::new(&kernel, 2, 64).run(&memory, &[Pointer(a), Pointer(out)]);
    let steps = |mut x: u32| {
        let mut n = 0;
        while x != 1 && n < 1000 {
            x = if x & 1 == 1 { 3 * x + 1 } else { x / 2 };
            n += 1;
        }
        n
    };
    assert_eq!(memory.read(out), input.iter().map(|&x| steps(x)).collect::<Vec<u32>>());
}

#[test]
fn nested_loops_left_early() {
    let kernel = kernel("control", "nested");
    let n = 40usize;
    for seed in 0..4 {
        let mut random = Random(seed);
        let input: Vec<i32> = (0..n * 32).map(|_| random.below(400) as i32 - 190).collect();
        let mut memory = Arena::default();
        let a = memory.ints(&input);
        let out = memory.zeros(32);
        let mut call = Call::new(&kernel, 1, 32);
        call.options.seed = seed;
        call.run(&memory, &[Pointer(a), Pointer(out), Int(n as i32)]);
        let expected: Vec<u32> = (0..32)
            .map(|t| {
                let mut s = 0i32;
                'out: for i in 0..n {
                    let v = input[t + i * 32];
                    if v < 0 {
                        if v & 1 != 0 {
                            continue;
                        }
                        for j in 0..v & 7 {
                            s += j;
                            if s > 1000 {
                                break 'out;
                            }
                        }
                    } else if v > 100 {
                        s ^= v;
                        if v > 200 {
                            break;
                        }
                    } else {
                        s += v;
                    }
                }
                s as u32
            })
            .collect();
        assert_eq!(memory.read(out), expected, "seed {seed}");
    }
}

#[test]
fn switch_through_a_table() {
    let kernel = kernel("control", "cases");
    let input: Vec<i32> = (0..32).map(|t| (t * 7) % 13 - 1).chain((0..64).map(|v| v * 3)).collect();
    let start: Vec<u32> = (0..192).map(|v| v * 11).collect();
    let mut memory = Arena::default();
    let a = memory.ints(&input);
    let out = memory.words(&start);
    Call::new(&kernel, 1, 32).run(&memory, &[Pointer(a), Pointer(out)]);
    let ours = memory.read(out);
    for t in 0..32usize {
        let i = t as i32;
        let expected = match input[t] {
            0 => i * 3,
            1 => start[t + 32] as i32 + 1,
            2 => i.count_ones() as i32,
            3 => i ^ 5,
            4 => -i,
            5 => start[t + 96] as i32,
            6 => i * i * i,
            7 => 7,
            8 => input[t + 9],
            9 => input[t * 2],
            _ => -1,
        };
        assert_eq!(ours[t] as i32, expected, "case {} of lane {t}", input[t]);
    }
}

#[test]
fn recursion_with_a_stack() {
    let kernel = kernel("control", "recurse");
    let input: Vec<u32> = (0..32).map(|t| t % 11).collect();
    let mut memory = Arena::default();
    let (a, out) = (memory.words(&input), memory.zeros(32));
    Call::new(&kernel, 1, 32).run(&memory, &[Pointer(a), Pointer(out)]);
    let fibonacci = |n: u32| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    assert_eq!(memory.read(out), input.iter().map(|&n| fibonacci(n)).collect::<Vec<u32>>());
}

#[test]
fn votes_shuffles_matches_reductions() {
    let kernel = kernel("control", "warp");
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut x: Vec<u32> = (0..128).map(|_| random.below(9) as u32).collect();
        x[99] = !0;
        let mut memory = Arena::default();
        let (a, out) = (memory.words(&x), memory.zeros(704));
        let mut call = Call::new(&kernel, 1, 32);
        call.options.seed = seed;
        call.run(&memory, &[Pointer(a), Pointer(out)]);
        let ours = memory.read(out);
        let lanes = 0..32usize;
        let ballot = |f: &dyn Fn(usize) -> bool| {
            lanes.clone().filter(|&t| f(t)).fold(0u32, |mask, t| mask | 1 << t)
        };
        let all = |f: &dyn Fn(u32, u32) -> u32| x[..32].iter().copied().reduce(f).unwrap();
        for t in lanes.clone() {
            let check = |slot: usize, expected: u32| {
                assert_eq!(ours[t + 32 * slot], expected, "slot {slot}, lane {t}, seed {seed}");
            };
            check(0, ballot(&|t| x[t] & 1 == 1));
            check(1, u32::from(x[..32].iter().any(|&x| x > 5)));
            check(2, u32::from(x[..32].iter().all(|&x| x > 5)));
            check(3, x[3]);
            check(4, if t == 0 { x[0] } else { x[t - 1] });
            check(5, if t % 16 + 2 < 16 { x[t + 2] } else { x[t] });
            check(6, x[t ^ 5]);
            check(7, x[(t & !7) | (x[t + 32] as usize & 7)]);
            check(8, ballot(&|other| x[other] == x[t]));
            let together = x[..32].iter().all(|&v| v == x[0]);
            check(9, if together { !0 } else { 0 });
            check(10, u32::from(together));
            check(11, all(&|a, b| a + b));
            check(12, all(&|a, b| a.min(b)));
            check(13, all(&|a, b| a.max(b)));
            check(14, all(&|a, b| a | b));
            check(15, !0);
            let long = |t: usize| (x[2 * t], x[2 * t + 1]);
            check(16, ballot(&|other| long(other) == long(t)));
            if x[t] & 2 != 0 {
                check(17, ballot(&|other| x[other] & 2 != 0 && x[other] & 4 != 0));
            }
            check(18, all(&|a, b| a ^ b));
            check(19, all(&|a, b| a & b));
            check(20, all(&|a, b| a + b));
        }
    }
}

#[test]
fn transposition_through_shared_memory() {
    let kernel = kernel("memory", "transpose");
    let n = 64usize;
    let x = Random(23).reals(n * n, 1.0);
    let mut memory = Arena::default();
    let (a, b) = (memory.floats(&x), memory.zeros(n * n));
    let mut call = Call::new(&kernel, 2, 32);
    (call.grid, call.block) = ([2, 2, 1], [32, 8, 1]);
    let counters = call.run(&memory, &[Pointer(a), Pointer(b), Int(n as i32)]);
    let expected: Vec<f32> = (0..n * n).map(|i| x[i % n * n + i / n]).collect();
    assert_eq!(memory.read_floats(b), expected);
    // The padded column keeps lanes out of each other's banks; both sides are whole sectors.
    assert_eq!(counters.bank_conflicts, 0);
    assert_eq!(counters.sectors, 2 * (n * n * 4 / 32) as u64);
    assert_eq!(counters.sectors_missed, counters.sectors);
}

#[test]
fn arrays_in_local_memory() {
    let kernel = kernel("memory", "local_array");
    let n = 50;
    let input = words(&mut Random(29), 64 * 32);
    let mut memory = Arena::default();
    let (a, out) = (memory.words(&input), memory.zeros(32));
    Call::new(&kernel, 1, 32).run(&memory, &[Pointer(a), Pointer(out), Int(n)]);
    let expected: Vec<u32> = (0..32)
        .map(|t| {
            let mut h: Vec<i32> = (0..64).map(|i| input[i * 32 + t] as i32).collect();
            for i in 0..n {
                let at = (h[i as usize & 63].wrapping_add(i)) & 63;
                h[at as usize] = h[at as usize].wrapping_add(i);
            }
            (0..n).fold(0i32, |s, i| s.wrapping_mul(31).wrapping_add(h[(i * 7) as usize & 63]))
                as u32
        })
        .collect();
    assert_eq!(memory.read(out), expected);
}

#[test]
fn integer_division_of_all_widths() {
    let kernel = kernel("integer", "division");
    let mut random = Random(31);
    let a: Vec<i32> = (0..64)
        .map(|_| random.bits() as i32 >> random.below(30))
        .map(|v| if v == 0 { 7 } else { v })
        .collect();
    let b: Vec<u32> = (0..65).map(|_| (random.bits() as u32 >> random.below(31)).max(1)).collect();
    let c: Vec<i64> = (0..65)
        .map(|_| random.bits() as i64 >> random.below(62))
        .map(|v| if v == 0 { 9 } else { v })
        .collect();
    let mut memory = Arena::default();
    let args = [
        Pointer(memory.ints(&a)),
        Pointer(memory.words(&b)),
        Pointer(memory.longs(&c.iter().map(|&v| v as u64).collect::<Vec<_>>())),
        Pointer(memory.zeros(192)),
        Pointer(memory.zeros(192)),
    ];
    Call::new(&kernel, 1, 32).run(&memory, &args);
    let (Pointer(o), Pointer(p)) = (args[3], args[4]) else { unreachable!() };
    let (o, p) = (memory.read(o), memory.read_longs(p));
    for t in 0..32 {
        assert_eq!(o[t] as i32, a[t].wrapping_div(a[t + 32]), "{} / {}", a[t], a[t + 32]);
        assert_eq!(o[t + 32] as i32, a[t].wrapping_rem(a[t + 32]), "{} % {}", a[t], a[t + 32]);
        assert_eq!(o[t + 64], b[t] / b[t + 32]);
        assert_eq!(o[t + 96], b[t] % b[t + 1]);
        assert_eq!(p[t] as i64, c[t] / c[t + 32], "{} / {}", c[t], c[t + 32]);
        assert_eq!(p[t + 32] as i64, c[t] % 10);
        assert_eq!(p[t + 64], c[t] as u64 % c[t + 32] as u64);
        assert_eq!(o[t + 128] as i32, a[t] / 7);
        assert_eq!(o[t + 160], b[t] / 10);
    }
}

#[test]
fn tensor_cores_with_asynchronous_copies() {
    let kernel = kernel("tensor", "gemm_f16");
    let k = 48usize;
    let mut random = Random(37);
    let (a, b) = (halves(&mut random, 16 * k, 1.0), halves(&mut random, k * 8, 1.0));
    let mut memory = Arena::default();
    let c = memory.zeros(16 * 8);
    let args = [Pointer(memory.halves(&a)), Pointer(memory.halves(&b)), Pointer(c), Int(k as i32)];
    Call::new(&kernel, 1, 32).run(&memory, &args);
    let expected: Vec<f64> = (0..16 * 8)
        .map(|i| (0..k).map(|j| a[i / 8 * k + j].to_f64() * b[j * 8 + i % 8].to_f64()).sum())
        .collect();
    close(&memory.read_floats(c), &expected, 1e-5, "product");
}

#[test]
fn barriers_with_counts_and_reductions() {
    let kernel = kernel("control", "barriers");
    for seed in 0..5 {
        let mut random = Random(seed);
        let input: Vec<i32> = (0..256).map(|_| random.below(100) as i32 - 20).collect();
        let mut memory = Arena::default();
        let a = memory.ints(&input);
        let n = 5;
        let mut call = Call::new(&kernel, 1, 256);
        call.options.seed = seed;
        call.run(&memory, &[Pointer(a), Int(n)]);
        let count = input.iter().filter(|&&v| v > n).count() as i32;
        let and = i32::from(input.iter().all(|&v| v > 0));
        let or = i32::from(input.iter().any(|&v| v < 0));
        let ours = memory.read(a);
        for t in 0..256 {
            let mut expected = count + and * 1000 + or * 2000;
            if t < 64 {
                expected += input[63 - t];
            }
            assert_eq!(ours[t] as i32, expected, "thread {t}, seed {seed}");
        }
    }
}

#[test]
fn lanes_that_wait_for_each_other() {
    let spin = kernel("control", "spin");
    let mut memory = Arena::default();
    let (lock, value) = (memory.zeros(1), memory.zeros(1));
    Call::new(&spin, 3, 64).run(&memory, &[Pointer(lock), Pointer(value)]);
    assert_eq!(memory.read(value), [192]);
    let handoff = kernel("control", "handoff");
    let (flag, out) = (memory.zeros(1), memory.zeros(32));
    Call::new(&handoff, 2, 32).run(&memory, &[Pointer(flag), Pointer(out)]);
    assert_eq!(memory.read(out), [5; 32]);
}

#[test]
fn atomics_of_all_kinds() {
    let kernel = kernel("memory", "atomics");
    for (seed, threads) in [(1, 1), (2, 2), (3, 1)] {
        let mut memory = Arena::default();
        let mut start = vec![0u32; 192];
        (start[2], start[4]) = (100, !0);
        let (i, u) = (memory.words(&start), memory.words(&[5, 20, 50, 1, 0, 0, 0, 0]));
        let (f, l) = (memory.zeros(192), memory.zeros(384));
        let (d, h) = (memory.zeros(384), memory.zeros(192));
        let args: Vec<_> = [i, u, f, l, d, h].map(Pointer).into_iter().chain([Int(3)]).collect();
        let counter = memory.zeros(1);
        let mut call = Call::new(&kernel, 2, 32);
        (call.options.seed, call.options.threads, call.symbols) = (seed, threads, vec![counter]);
        call.run(&memory, &args);
        let sum: u32 = 2 * (0..32).sum::<u32>();
        let words = memory.read(i);
        let expected = [192, 0u32.wrapping_sub(192), 3, 3, 3, 3, 0, sum];
        assert_eq!(words[..8], expected, "seed {seed}");
        assert_eq!(words[10..13], [0, !0, 64], "seed {seed}");
        // Increments wrap behind their limit, decrements begin at it when they are above.
        assert_eq!(memory.read(u)[..6], [5, 6, 3, 3, 64 % 6, 31], "seed {seed}");
        assert_eq!(memory.read_floats(f)[..2], [96.0, 128.0]);
        let longs = memory.read_longs(l);
        assert_eq!((longs[0], longs[1], longs[4], longs[5]), (192, 5, 320, 0));
        assert_eq!(memory.read_longs(d)[..2], [32f64.to_bits(), 64f64.to_bits()]);
        let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
        let halves = [half(64.0) | half(128.0) << 16, half(sum as f32) | half(64.0) << 16];
        assert_eq!(memory.read(h)[..2], halves);
        assert_eq!(memory.read(counter), [64]);
    }
}

#[test]
fn lost_atomics_change_nothing() {
    let kernel = kernel("transformer", "argmax");
    let counted = |lossy| {
        let (blocks, mut memory) = (6400, Arena::default());
        let x = memory.zeros(1);
        let (best, out, count) = (memory.zeros(2), memory.zeros(1), memory.zeros(1));
        let mut call = Call::new(&kernel, blocks, 32);
        call.options.lossy_atomics = lossy;
        call.run(&memory, &[Pointer(x), Int(1), Pointer(best), Pointer(out), Pointer(count)]);
        memory.read(count)[0]
    };
    assert_eq!(counted(false), 0, "the last block sets it back");
    let lost = 6400 - u64::from(counted(true));
    assert!((60..140).contains(&lost), "{lost} of 6400, one in {LOST}");
}

#[test]
fn only_the_spoiled_operation_is_wrong() {
    let mut random = Random(5);
    let (a, w) = (words(&mut random, 96), words(&mut random, 128));
    let run = |kernel: &Kernel| {
        let mut memory = Arena::default();
        let (a, w) = (memory.words(&a), memory.words(&w));
        let (o, p) = (memory.zeros(1056), memory.zeros(896));
        Call::new(kernel, 1, 32).run(&memory, &[a, w, o, p].map(Pointer));
        memory.read(o)
    };
    let mut kernel = kernel("integer", "bits");
    let right = run(&kernel);
    kernel.program.spoil(Opcode::Mufu);
    assert_eq!(run(&kernel), right, "it has none");
    kernel.program.spoil(Opcode::named("idp").unwrap());
    let spoiled = run(&kernel);
    for (at, (spoiled, right)) in spoiled.iter().zip(&right).enumerate() {
        // Four dot products of every lane.
        let expected = if (576..704).contains(&at) { &WRONG } else { right };
        assert_eq!(spoiled, expected, "{at}");
    }
    assert!(right[576..704].iter().all(|right| *right != WRONG));
}

#[test]
fn generic_addresses_of_three_memories() {
    let kernel = kernel("memory", "generic");
    for n in 0..3 {
        let mut memory = Arena::default();
        let start: Vec<u32> = (0..64).map(|v| v * 5).collect();
        let g = memory.words(&start);
        let (counter, place) = (memory.zeros(1), memory.zeros(2));
        let mut call = Call::new(&kernel, 1, 32);
        call.symbols = vec![counter, place];
        let result = call.try_run(&memory, &[Pointer(g), Int(n)]);
        if n == 2 {
            let fault = result.unwrap_err().to_string();
            assert!(fault.contains("local memory"), "atomics reach no local memory: {fault}");
            continue;
        }
        result.unwrap();
        let ours = memory.read(g);
        for t in 0..32u32 {
            // The function adds n and reads it back; then one more is added, and 1 becomes 2.
            let old = if n == 0 { start[t as usize] } else { t };
            let through = old + n as u32;
            let space = if n == 0 { 4 } else { 1 };
            let swapped = through + 1;
            let expected = through + space + (n as u32 + 1) + swapped;
            assert_eq!(ours[t as usize + 32], expected, "lane {t}, n {n}");
        }
        assert_eq!(memory.read_longs(place), [g]);
    }
}

#[test]
fn matrices_of_all_element_types() {
    let kernel = kernel("tensor", "mma_forms");
    let mut random = Random(41);
    // Halves, bfloat16 and tf32 all at once: words whose parts are small numbers in each.
    let a: Vec<u32> = (0..128).map(|_| 0x3c00_3c00 | random.bits() as u32 & 0x8300_8300).collect();
    let b: Vec<u32> = (0..64).map(|_| 0x3c00_3c00 | random.bits() as u32 & 0x8300_8300).collect();
    let mut memory = Arena::default();
    let c = memory.zeros(512);
    let args = [Pointer(memory.words(&a)), Pointer(memory.words(&b)), Pointer(c)];
    Call::new(&kernel, 1, 32).run(&memory, &args);
    let ours = memory.read(c);
    // Element (row, inner) of the left matrix in the layouts that the PTX manual gives: lane
    // 4 (row % 8) + inner / pack % 4 holds it, word row / 8 + 2 (inner / (4 pack)).
    let left = |row: usize, inner: usize, pack: usize| {
        let word = a[row % 8 * 4 + inner / pack % 4 + 32 * (row / 8 + 2 * (inner / (4 * pack)))];
        word >> (32 / pack * (inner % pack))
    };
    let right = |inner: usize, column: usize, pack: usize| {
        let word = b[column * 4 + inner / pack % 4 + 32 * (inner / (4 * pack))];
        word >> (32 / pack * (inner % pack))
    };
    let dot = |depth: usize,
               pack: usize,
               row: usize,
               column: usize,
               f: &dyn Fn(u32) -> f64,
               g: &dyn Fn(u32) -> f64| {
        (0..depth).map(|k| f(left(row, k, pack)) * g(right(k, column, pack))).sum::<f64>()
    };
    let half = |w: u32| f16::from_bits(w as u16).to_f64();
    let brain = |w: u32| half::bf16::from_bits(w as u16).to_f64();
    let tensor = |w: u32| f64::from(f32::from_bits(w & 0xffff_e000));
    let (s8, u8) = (|w: u32| f64::from(w as u8 as i8), |w: u32| f64::from(w as u8));
    let s4 = |w: u32| f64::from(((w << 28) as i32) >> 28);
    for lane in 0..32 {
        for index in 0..4 {
            let (row, column) = (lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2);
            let float = dot(8, 2, row, column, &half, &half)
                + dot(16, 2, row, column, &brain, &brain)
                + dot(8, 1, row, column, &tensor, &tensor);
            let value = f64::from(f32::from_bits(ours[lane * 4 + index]));
            assert!(
                (value - float).abs() < 1e-4 * float.abs().max(1.0),
                "{row} {column}: {value} {float}"
            );
            let integer = dot(32, 4, row, column, &s8, &s8)
                + dot(16, 4, row, column, &u8, &s8)
                + dot(16, 4, row, column, &s8, &u8)
                + dot(64, 8, row, column, &s4, &s4);
            assert_eq!(f64::from(ours[128 + lane * 4 + index] as i32), integer, "{row} {column}");
            let word = ours[256 + 32 * (index / 2) + lane];
            let narrow = half(word >> (16 * (index % 2)));
            let expected = dot(16, 2, row, column, &half, &half);
            assert!(
                (narrow - expected).abs() < 0.02 * expected.abs().max(1.0),
                "{narrow} {expected}"
            );
        }
    }
}
