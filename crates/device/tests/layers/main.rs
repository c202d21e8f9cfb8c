//! Layers of which a device makes several stages, through the seam: attention, mixtures of experts, and those that
//! remember.
//! Reference and CPU against formulas in `f64`, the CPU against itself in other company.

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

/// Root mean square of the differences, in units of what is expected.
fn distance(have: &[f32], want: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = squares(&mut have.iter().zip(want).map(|(h, w)| f64::from(h - w)));
    (off / squares(&mut want.iter().map(|w| f64::from(*w)))).sqrt()
}
