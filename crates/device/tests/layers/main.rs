//! Layers that a device splits into several kernel calls: attention, MoE, and recurrent layers.
//! Reference and CPU are compared with formulas in `f64`, and the CPU with itself among other rows.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attention;
mod mixture;
mod recurrent;

fn assert_close(have: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(have.len(), want.len());
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        assert!(
            (f64::from(*h) - w).abs() <= tolerance * w.abs().max(1.0),
            "element {i}: {h}, {w} expected"
        );
    }
}

/// Root mean square of the differences, relative to that of the expected values.
fn distance(have: &[f32], want: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = squares(&mut have.iter().zip(want).map(|(h, w)| f64::from(h - w)));
    (off / squares(&mut want.iter().map(|w| f64::from(*w)))).sqrt()
}
