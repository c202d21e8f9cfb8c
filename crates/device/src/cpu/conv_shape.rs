//! Shapes of convolutions: their windows, and which kernel computes them.

use plan::Conv;
use simd::windows::Axis;

/// Fewest input and output channels: with fewer, the tile transforms cost as much as the products save.
const WINOGRAD_CHANNELS: usize = 16;

/// The windows of a convolution along both axes of an image with these strides.
pub(super) fn axes(conv: &Conv, strides: &[usize]) -> [Axis; 2] {
    let Conv { windows, x, weight, out, .. } = conv;
    let axis = |i: usize| Axis {
        extent: x.shape[2 + i],
        step: strides[2 + i],
        before: windows.pads[i][0],
        stride: windows.stride[i],
        dilation: windows.dilation[i],
        size: weight.shape[2 + i],
        count: out.shape[2 + i],
    };
    let one = Axis { extent: 1, step: 0, before: 0, stride: 1, dilation: 1, size: 1, count: 1 };
    match x.shape.len() {
        3 => [one, axis(0)],
        _ => [axis(0), axis(1)],
    }
}

/// True if every channel is convolved by itself.
pub(super) fn is_depthwise(conv: &Conv) -> bool {
    let shape = &conv.weight.shape;
    conv.windows.groups == shape[0] && shape[1] == 1 && shape[0] > 1
}

/// True if the Winograd kernel computes the convolution: 3 by 3 windows with stride 1.
pub(super) fn is_winograd(conv: &Conv) -> bool {
    let w = &conv.windows;
    let &[outputs, inputs, 3, 3] = &conv.weight.shape[..] else { return false };
    let next = w.stride == [1, 1] && w.dilation == [1, 1] && w.groups == 1;
    next && outputs.min(inputs) >= WINOGRAD_CHANNELS
}
