//! Successful kernels, compared with plain arithmetic.

use std::sync::Arc;

use orind_kernels::catalogue::launch::{elements_grid, embed_grid, rows_grid};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{EmbedParams, GatherParams, RowsParams};
use orind_kernels::repack::Layout;
use tegra_sim::config::Checks;
use tegra_sim::engine::MachineCode;
use tegra_sim::finding::Rule;
use tegra_sim::gpu::MapFlags;
use tegra_sim::memory::DmaBuf;
use tegra_sim::trace::{Event, Stats, Work};

use super::loaded::{Loaded, floats, read, rig};
use crate::gpu::rig::Rig;

fn values(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin() * 3.0).collect()
}

struct Rows {
    rig: Rig,
    a: Vec<f32>,
    b: Vec<f32>,
    out: crate::gpu::rig::Buffer,
    params: RowsParams,
}

/// `a`, `b` and an output of `rows` rows of `n` in memory.
fn rows(n: usize, rows: usize, seed: u64) -> Rows {
    let rig = rig(seed);
    let (a, b) = (values(n * rows, 0.37), values(n * rows, 0.11));
    let out = rig.buffer(4 * (n * rows) as u64);
    let params = RowsParams {
        a: floats(&rig, &a).va,
        b: floats(&rig, &b).va,
        out: out.va,
        n: n as u32,
        rows: rows as u32,
        eps: 1e-5,
        reserved: 0,
    };
    Rows { rig, a, b, out, params }
}

#[test]
fn add_in_seeded_orders() {
    for seed in 0..8 {
        let Rows { rig, a, b, out, params } = rows(1000, 3, seed);
        let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(1000, 3), &params);
        assert!(loaded.run(&rig));
        rig.assert_clean();
        let got = read(&out, 3000);
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(got, want, "seed {seed}");
    }
}

#[test]
fn a_launch_reports_its_work() {
    let Rows { rig, params, .. } = rows(1000, 3, 1);
    let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(1000, 3), &params);
    assert!(loaded.run(&rig));
    let work = rig.trace.take().into_iter().find_map(|record| match record.event {
        Event::Launch { work, program, .. } if program == loaded.code.va => work,
        _ => None,
    });
    let work = work.unwrap();
    assert_eq!((work.bytes_loaded, work.bytes_stored), (2 * 12_000, 12_000));
    assert_eq!(work.instructions["float"].lanes, 3000);
    assert_eq!(work.sectors, 3 * 3 * 125);
    // Read once, written once, from a cold cache.
    assert_eq!(work.l2_misses, work.sectors);
}

#[test]
fn kernels_are_counted_by_their_code() {
    let Rows { rig, params, .. } = rows(512, 1, 1);
    let add = Loaded::new(&rig, Kernel::Add, elements_grid(512, 1), &params);
    let norm = Loaded::new(&rig, Kernel::RmsNorm, rows_grid(1), &params);
    assert!(add.run(&rig) && add.run(&rig) && norm.run(&rig));
    let mut stats = Stats::default();
    rig.trace.take().iter().for_each(|record| stats.add(record));
    assert_eq!(stats.kernels[&add.code.va].launches, 2);
    assert_eq!(stats.kernels[&add.code.va].work.bytes(), 2 * 3 * 2048);
    assert_eq!(stats.kernels[&norm.code.va].launches, 1);
    assert!(stats.kernels[&norm.code.va].work.instructions["shared"].warps > 0);
    let text = stats.to_string();
    let line = |code: u64| text.lines().position(|line| line.contains(&format!("{code:x} ")));
    assert!(line(add.code.va).unwrap() < line(norm.code.va).unwrap(), "{text}");
}

#[test]
fn norm_through_shared_memory() {
    let Rows { rig, a, b, out, params } = rows(2048, 2, 5);
    let loaded = Loaded::new(&rig, Kernel::RmsNorm, rows_grid(2), &params);
    assert!(loaded.run(&rig));
    rig.assert_clean();
    for (row, got) in read(&out, 2 * 2048).chunks(2048).enumerate() {
        let a = &a[row * 2048..][..2048];
        let squares: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
        let factor = 1.0 / (squares / 2048.0 + 1e-5).sqrt();
        for (i, got) in got.iter().enumerate() {
            let want = f64::from(a[i]) * factor * f64::from(b[i]);
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 2e-6 * want.abs() + 1e-12, "{row} {i}: {got}, not {want}");
        }
    }
}

#[test]
fn embedding_of_halves() {
    let (n, k) = (7, 304);
    let rig = rig(3);
    // 1 + i / 1024 for element i, exact.
    let bits = |row: usize, i: usize| 0x3c00 + ((row * 131 + i) % 1024) as u16;
    let bytes: Vec<u8> =
        (0..n).flat_map(|row| (0..k).flat_map(move |i| bits(row, i).to_le_bytes())).collect();
    let layout = Layout::new(Weight::F16.dtype(), n, k).unwrap();
    let mut packed = vec![0; layout.bytes()];
    layout.pack(0, &bytes, &mut packed).unwrap();
    let table = rig.buffer(packed.len() as u64);
    table.write(0, &packed);
    let ids = rig.buffer(16);
    let wanted = [6i32, 0, -1];
    ids.write(0, &wanted.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
    let out = rig.buffer(4 * 3 * k as u64);
    let params = EmbedParams {
        table: table.va,
        ids: ids.va,
        out: out.va,
        n: n as u32,
        k: k as u32,
        rows: 3,
        reserved: 0,
    };
    let kernel = Kernel::Embed(Weight::F16);
    let loaded = Loaded::new(&rig, kernel, embed_grid(Weight::F16, k as u32, 3), &params);
    assert!(loaded.run(&rig));
    rig.assert_clean();
    for (got, id) in read(&out, 3 * k).chunks(k).zip(wanted) {
        for (i, got) in got.iter().enumerate() {
            let half = |row| 1.0 + f32::from(bits(row, i) - 0x3c00) / 1024.0;
            assert_eq!(*got, usize::try_from(id).map_or(0.0, half));
        }
    }
}

#[test]
fn every_access_is_seen_by_the_checks() {
    // An input that nobody wrote.
    let Rows { rig, mut params, .. } = rows(64, 1, 1);
    params.b = rig.buffer(4096).va;
    assert!(Loaded::new(&rig, Kernel::Add, elements_grid(64, 1), &params).run(&rig));
    assert_eq!(rig.rules(), [Rule::UninitialisedRead]);
    // Two channels that write the same output, nothing between them.
    let Rows { rig, params, .. } = rows(64, 1, 1);
    for _ in 0..2 {
        let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(64, 1), &params);
        let words = loaded.launch.encode().unwrap();
        let bytes: Vec<u8> = words.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        loaded.qmd.write(0, &bytes);
        let qmd = tegra::address::QmdAddress::new(loaded.qmd.at(0)).unwrap();
        let mut stream = crate::gpu::rig::compute_stream();
        stream.launch(qmd);
        rig.submit(&mut rig.channel(), stream.words());
    }
    rig.assert_found(Rule::UnorderedAccess);
}

#[test]
fn exactly_the_read_words_are_reported() {
    // Stale is what a launch reads again and the CPU has changed, to the word.
    let stale = |word: u64| {
        let rig = rig(1);
        // Row 0 is read by lanes that follow each other, in both launches; row 1 is not read.
        let table = floats(&rig, &values(2 * 100, 0.3));
        let ids = rig.buffer(4096);
        ids.write(0, &[0; 4]);
        let params = GatherParams {
            table: table.va,
            ids: ids.va,
            out: rig.buffer(4096).va,
            extent: 2,
            width: 100,
            rows: 1,
            reserved: 0,
        };
        let mut loaded = Loaded::new(&rig, Kernel::Gather, elements_grid(100, 1), &params);
        loaded.launch.invalidate.data = false;
        assert!(loaded.run(&rig));
        table.write(4 * word, &[1]);
        assert!(loaded.run(&rig));
        rig.rules()
    };
    for word in [0, 1, 31, 32, 77, 99] {
        assert!(stale(word).contains(&Rule::StaleDataCache), "word {word}");
    }
    for word in [100, 101, 150, 199] {
        assert_eq!(stale(word), [], "word {word}");
    }
}

#[test]
fn lent_pages_are_read_and_written() {
    let Rows { rig, a, b, mut params, .. } = rows(512, 1, 1);
    let mut pages = vec![0u8; 3 * 4096];
    let skip = pages.as_ptr().align_offset(4096);
    let page = &mut pages[skip..skip + 4096];
    page.fill(0x55);
    let lent = DmaBuf::over_user_pages(page.as_ptr() as u64, 4096).unwrap();
    rig.mmu.map(0x7_0000_0000, Arc::clone(&lent), 0, 4096, MapFlags::default()).unwrap();
    params.out = 0x7_0000_0000 + 1024;
    assert!(Loaded::new(&rig, Kernel::Add, elements_grid(512, 1), &params).run(&rig));
    rig.assert_clean();
    let mut seen = vec![0; 4096];
    lent.read(0, &mut seen).unwrap();
    let want: Vec<u8> = a.iter().zip(&b).flat_map(|(a, b)| (a + b).to_le_bytes()).collect();
    assert!(seen[1024..][..2048] == want, "what was added");
    assert!(seen[..1024].iter().chain(&seen[3072..]).all(|byte| *byte == 0x55), "and nothing else");
}

/// Duration of a launch on the virtual clock in ticks of 32 ns, and its work.
fn timed(rig: &Rig, loaded: &Loaded) -> (u64, Work) {
    let before = rig.trace.take().len();
    assert!(loaded.run(rig), "behind {before} records");
    rig.assert_clean();
    let records = rig.trace.take();
    let mut pairs = records.windows(2);
    let found = pairs.find_map(|pair| match &pair[1].event {
        Event::Launch { work, .. } => {
            Some(((pair[1].time - pair[0].time) / 32, *work.clone().unwrap()))
        }
        _ => None,
    });
    found.unwrap()
}

#[test]
fn a_launch_takes_as_long_as_its_memory_accesses() {
    // A launch takes 160 ticks; 45 GB/s are 1440 bytes a tick.
    for (n, ticks) in [(100, 160), (1 << 20, 3 * 4 * (1 << 20) / 1440)] {
        let Rows { rig, params, .. } = rows(n, 1, 1);
        let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(n as u32, 1), &params);
        let (found, work) = timed(&rig, &loaded);
        assert_eq!((found, work.bytes_touched), (ticks, 12 * n as u64));
    }
}

#[test]
fn a_launch_takes_as_long_as_its_warp_instructions() {
    // One block computes a norm, on one SM, which executes 40 in a tick.
    let Rows { rig, params, .. } = rows(1 << 16, 1, 1);
    let loaded = Loaded::new(&rig, Kernel::RmsNorm, rows_grid(1), &params);
    let (ticks, work) = timed(&rig, &loaded);
    assert!(ticks > 160 && Kernel::RmsNorm.threads() / 32 >= 5, "{ticks} ticks");
    assert_eq!(ticks, work.warp_instructions() / 40);
}

#[test]
fn a_launch_that_was_executed_before_is_only_timed() {
    const N: u32 = 1 << 16;
    let run = |checks| {
        let Rows { rig, a, b, out, params } = rows(N as usize, 1, 1);
        rig.gpu.set_compute_engine(Box::new(MachineCode::new(checks)));
        let again = rig.buffer(4 * u64::from(N));
        let other = RowsParams { out: again.va, ..params };
        let half = RowsParams { n: N / 2, ..other };
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let mut times = Vec::new();
        let mut time = |params: &RowsParams| {
            let loaded = Loaded::new(&rig, Kernel::Add, elements_grid(params.n, 1), params);
            times.push(timed(&rig, &loaded).0);
        };
        time(&params);
        assert_eq!(read(&out, N as usize), sum);
        time(&other);
        let executed = read(&again, N as usize) == sum;
        time(&half);
        assert_eq!(read(&again, N as usize / 2), sum[..N as usize / 2], "of another grid");
        (executed, times)
    };
    let ((fast, fast_times), (timing, times)) = (run(Checks::Fast), run(Checks::Timing));
    assert!(fast && !timing);
    assert_eq!(times, fast_times);
    assert!(times[0] == times[1] && times[2] < times[1] && times[2] > 160, "{times:?}");
}
