//! Matrix products and convolutions of tensors: windows of images, register tiles of any size, lines of any length.

use orind_testing::random::Random;
use simd::dense::{
    self, COLUMNS, ColumnLayout, Destination, Function, Lines, Onto, Operands, SPAN, Tile,
    TileEpilogue,
};
use simd::vector::LANES;
use simd::windows::{self, Axis, Image, pack_windows};

use super::sets;

/// Marks unwritten memory.
const UNTOUCHED: f32 = 1e30;

fn axis(random: &mut Random, longest: usize, step: usize) -> Axis {
    let (size, stride) = (1 + random.below(5), 1 + random.below(3));
    let (dilation, before) = (1 + random.below(3), random.below(4));
    let reach = (size - 1) * dilation + 1;
    let extent = 1 + random.below(longest);
    let count = (before + extent + random.below(3)).saturating_sub(reach) / stride + 1;
    Axis { extent, step, before, stride, dilation, size, count }
}

/// Position on the axis of a window's element; `None` in the padding.
fn place(axis: &Axis, window: usize, element: usize) -> Option<usize> {
    let at = window * axis.stride + element * axis.dilation;
    at.checked_sub(axis.before).filter(|at| *at < axis.extent)
}

#[test]
fn windows_are_packed_for_any_image_shape() {
    let seed = 27;
    println!("seed {seed}");
    let mut random = Random(seed);
    for case in 0..400 {
        let columns = axis(&mut random, if case % 4 == 0 { 700 } else { 30 }, 1 + case % 2);
        let line = columns.extent * columns.step;
        let rows = axis(&mut random, 40, line);
        let (channels, plane) = (1 + random.below(9), rows.extent * line);
        let values: Vec<f32> = (0..channels * plane).map(|i| 1.0 + i as f32).collect();
        let image = Image { at: values.as_ptr(), channel: plane, rows, columns };
        let taps = rows.size * columns.size;
        let windows = rows.count * columns.count;
        let first = random.below(windows);
        let count = 1 + random.below((windows - first).min(COLUMNS));
        let step = random.below(channels * taps);
        let steps = 1 + random.below((channels * taps - step).min(160));
        for isa in sets() {
            let tile = isa.tile();
            let mut lines = vec![UNTOUCHED; windows::scratch(&rows, &columns) + 1];
            let wide = count.next_multiple_of(LANES);
            let mut out = vec![UNTOUCHED; steps * wide + 1];
            let of = ([first, count], [step, steps]);
            // SAFETY: the image has its elements; the buffers are as long as they must be.
            unsafe {
                let (lines, out) = (lines.as_mut_ptr(), out.as_mut_ptr());
                pack_windows(isa, &image, of.0, of.1, lines, out);
            }
            assert_eq!((lines.pop(), out.pop()), (Some(UNTOUCHED), Some(UNTOUCHED)), "{image:?}");
            for (before, vectors) in tile.column_tiles(count) {
                let tile_values = &out[before * LANES * steps..][..vectors * LANES * steps];
                for (i, have) in tile_values.iter().enumerate() {
                    let (s, lane) = (step + i / (vectors * LANES), i % (vectors * LANES));
                    let column = before * LANES + lane;
                    let (channel, tap, window) = (s / taps, s % taps, first + column);
                    let y = place(&rows, window / columns.count, tap / columns.size);
                    let x = place(&columns, window % columns.count, tap % columns.size);
                    let want = match (y, x) {
                        (Some(y), Some(x)) if column < count => {
                            values[channel * plane + y * rows.step + x * columns.step]
                        }
                        _ => 0.0,
                    };
                    assert_eq!(*have, want, "case {case}, {isa}: {of:?} of {image:?}");
                }
            }
        }
    }
}

/// Column tiles over steps of which the first `before` are skipped.
fn tiles(
    tile: Tile,
    columns: usize,
    steps: usize,
    value: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let mut tiles = Vec::new();
    for (before, vectors) in tile.column_tiles(columns) {
        for step in 0..steps {
            let lanes = (before * LANES..).take(vectors * LANES);
            tiles.extend(
                lanes.map(|column| if column < columns { value(step, column) } else { 0.0 }),
            );
        }
    }
    tiles
}

#[test]
fn tiles_of_every_size_add_in_the_documented_order() {
    let seed = 28;
    println!("seed {seed}");
    let mut random = Random(seed);
    for isa in sets() {
        let tile = isa.tile();
        let sizes = (1..=tile.rows).flat_map(|rows| (0..5).map(move |vectors| (rows, vectors)));
        for (rows, vectors) in sizes {
            for steps in [0, 1, 3, 4, 127, 128, 129, 300] {
                let columns = vectors * LANES + random.below(LANES);
                let (first, width) = (random.below(3), columns.next_multiple_of(LANES) + LANES);
                let x: Vec<f32> = (0..rows * (steps + 1)).map(|_| random.real(1.0)).collect();
                let w: Vec<f32> = (0..(steps + 1) * width).map(|_| random.real(1.0)).collect();
                let in_tiles = tiles(tile, columns, first + steps, |step, column| {
                    step.checked_sub(first).map_or(UNTOUCHED, |step| w[step * width + column])
                });
                let lies = [
                    ColumnLayout::Steps(width),
                    ColumnLayout::Tiles { steps: first + steps, before: first },
                ];
                let finish = TileEpilogue {
                    function: Function::Between(-1.0, 1.5),
                    ..TileEpilogue::default()
                };
                let starts: Vec<f32> = (0..rows * columns).map(|_| random.real(1.0)).collect();
                for (apart, layout, onto) in [None, Some(steps + 1)]
                    .into_iter()
                    .flat_map(|apart| lies.map(|layout| (apart, layout)))
                    .flat_map(|(apart, layout)| {
                        [Onto::Nothing, Onto::Itself].map(|o| (apart, layout, o))
                    })
                {
                    let mut out = starts.clone();
                    out.push(UNTOUCHED);
                    let to = Destination { out: out.as_mut_ptr(), stride: columns, columns };
                    let at = match layout {
                        ColumnLayout::Steps(_) => w.as_ptr(),
                        ColumnLayout::Tiles { .. } => in_tiles.as_ptr(),
                    };
                    let rows_at = x.as_ptr();
                    let operands =
                        Operands { rows: rows_at, apart, count: rows, columns: at, layout, steps };
                    // SAFETY: the operands are as long as they must be.
                    unsafe { dense::product(isa, operands, onto, finish, to) };
                    assert_eq!(out.pop(), Some(UNTOUCHED));
                    for (i, have) in out.iter().enumerate() {
                        let (row, column) = (i / columns, i % columns);
                        // Row tiles of a span follow those of earlier spans.
                        let of = |step: usize| match apart {
                            None => x[step * rows + row],
                            Some(apart) => x[row * apart + step],
                        };
                        let span = |start: usize| {
                            (start..steps.min(start + SPAN)).fold(0.0, |sum: f32, step| {
                                of(step).mul_add(w[step * width + column], sum)
                            })
                        };
                        let onto = match onto {
                            Onto::Itself => starts[i],
                            Onto::Nothing | Onto::Rows(_) => 0.0,
                        };
                        let spans = (0..steps.max(1)).step_by(SPAN);
                        let sum = spans.fold(onto, |sum, start| span(start) + sum);
                        let want = sum.clamp(-1.0, 1.5);
                        assert_eq!(
                            *have, want,
                            "{isa}: {rows} x {columns} over {steps}, {layout:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn columns_are_packed_into_tiles_for_any_strides() {
    let seed = 29;
    println!("seed {seed}");
    let mut random = Random(seed);
    for _ in 0..100 {
        let (columns, steps) = (random.below(COLUMNS + 1), random.below(40));
        let more = random.below(5);
        for (line, step) in [(1, columns + more), (steps + more, 1), (2 * steps + 1, 2)] {
            let x: Vec<f32> = (0..columns * line + steps * step + 1).map(|i| i as f32).collect();
            for isa in sets() {
                let want =
                    tiles(isa.tile(), columns, steps, |s, column| x[column * line + s * step]);
                let mut out = vec![UNTOUCHED; want.len() + 1];
                let lines = Lines { at: x.as_ptr(), line, step };
                // SAFETY: the matrix has its elements, and the tiles room.
                unsafe { dense::pack_columns(isa, lines, columns, steps, out.as_mut_ptr()) };
                assert_eq!(out.pop(), Some(UNTOUCHED));
                assert_eq!(out, want, "{isa}: {columns} columns of {steps} steps, {lines:?}");
            }
        }
    }
}

#[test]
fn strided_copies_read_nothing_beyond_the_last_value() {
    let x: Vec<f32> = (0..200).map(|i| i as f32).collect();
    for (isa, apart, n) in sets()
        .into_iter()
        .flat_map(|isa| [1, 2, 3].map(|apart| (isa, apart)))
        .flat_map(|(isa, apart)| (0..=60).map(move |n| (isa, apart, n)))
    {
        let mut out = vec![UNTOUCHED; n + 1];
        // The last value that counts is the last of the buffer.
        let x = &x[..n.saturating_sub(1) * apart + n.min(1)];
        // SAFETY: the source has `n` strided values, and the destination has space for them.
        unsafe { dense::strided_copy(isa, x.as_ptr(), apart, out.as_mut_ptr(), n) };
        let want: Vec<f32> = (0..n).map(|i| (i * apart) as f32).chain([UNTOUCHED]).collect();
        assert_eq!(out, want, "{isa}, {apart} apart");
    }
}
