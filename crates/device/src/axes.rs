//! Merging of contiguous axes of a view, so that loops have fewer axes.

/// Merges axes that are contiguous and drops those of a single element. Returns extents and strides
/// in elements.
pub(crate) fn merged(shape: &[usize], strides: &[isize]) -> (Vec<usize>, Vec<isize>) {
    let (mut axes, mut steps): (Vec<usize>, Vec<isize>) = (Vec::new(), Vec::new());
    for (&n, &stride) in shape.iter().zip(strides).filter(|(n, _)| **n != 1) {
        match (axes.last_mut(), steps.last_mut()) {
            (Some(extent), Some(step)) if *step == stride * n.cast_signed() => {
                *extent *= n;
                *step = stride;
            }
            _ => {
                axes.push(n);
                steps.push(stride);
            }
        }
    }
    (axes, steps)
}
