//! Storage of buffers in the reference device, and access to it through strided views.

use plan::{Buffer, Class, DType, View};

/// Elements of a buffer. Integers are stored as the bits of an `i32`, half-precision values as
/// rounded `f32`.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) dtype: DType,
    pub(super) values: Vec<f32>,
}

impl Default for Storage {
    fn default() -> Self {
        Self { dtype: DType::F32, values: Vec::new() }
    }
}

impl Storage {
    pub(super) fn zeroed(buffer: &Buffer) -> Self {
        let value = match buffer.class {
            Class::Constant(value) => value.get(),
            _ => 0.0,
        };
        Self { dtype: buffer.dtype, values: vec![value; buffer.elements()] }
    }

    pub(super) fn int(&self, at: usize) -> i32 {
        self.values[at].to_bits() as i32
    }
}

#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) view: &'a View,
    pub(super) storage: &'a Storage,
}

impl<'a> Operand<'a> {
    pub(super) fn of(view: &'a View, storage: &'a [Storage]) -> Self {
        Self { view, storage: &storage[view.buffer.index()] }
    }

    pub(super) fn elements(self) -> impl Iterator<Item = f32> + 'a {
        offsets(self.view).map(move |at| self.storage.values[at])
    }

    pub(super) fn ints(self) -> impl Iterator<Item = i32> + 'a {
        offsets(self.view).map(move |at| self.storage.int(at))
    }

    /// Integers, or integer parts of a constant.
    pub(super) fn whole(self) -> impl Iterator<Item = i32> + 'a {
        let int = self.storage.dtype.is_integer();
        offsets(self.view)
            .map(move |at| if int { self.storage.int(at) } else { self.storage.values[at] as i32 })
    }
}

/// Offsets of a view's elements in row-major order.
pub(super) fn offsets(view: &View) -> impl Iterator<Item = usize> + use<> {
    offsets_of(view.offset, view.shape.clone(), view.strides.clone())
}

pub(super) fn offsets_of(
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<isize>,
) -> impl Iterator<Item = usize> {
    let count: usize = shape.iter().product();
    // Merges contiguous axes, to reach an axis's end less often.
    let mut axes: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
    for (len, stride) in shape.into_iter().zip(strides) {
        match axes.last_mut() {
            Some(last) if last.1 == stride * len.cast_signed() => *last = (last.0 * len, stride),
            _ => axes.push((len, stride)),
        }
    }
    let (run, step) = axes.pop().unwrap_or((1, 0));
    let mut index = vec![0; axes.len()];
    let (mut at, mut inside) = (offset, 0);
    (0..count).map(move |_| {
        let here = at;
        inside += 1;
        if inside < run {
            at = at.wrapping_add_signed(step);
            return here;
        }
        at = at.wrapping_add_signed(step * (1 - run.cast_signed()));
        inside = 0;
        for (index, &(len, stride)) in index.iter_mut().zip(&axes).rev() {
            *index += 1;
            at = at.wrapping_add_signed(stride);
            if *index < len {
                break;
            }
            at = at.wrapping_add_signed(-stride * len.cast_signed());
            *index = 0;
        }
        here
    })
}
