//! Axes of a view: which of them lie as one, so that there are fewer to walk over.

/// Neighbouring axes that lie as one, as one, and none of a single element: extents, and elements from one to the next.
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
