//! The decoding table, by family.

mod control;
mod convert;
mod float;
mod integer;
mod memory;
mod packed;
mod uniform;
mod warp;
mod words;

use super::field::Encoding;

const FAMILIES: [&[Encoding]; 8] = [
    integer::TABLE,
    float::TABLE,
    packed::TABLE,
    convert::TABLE,
    memory::TABLE,
    warp::TABLE,
    control::TABLE,
    uniform::TABLE,
];

/// Returns the row that matches an encoding.
pub(super) fn find(base: u16, form: u8, bits: u128) -> Option<&'static Encoding> {
    FAMILIES.iter().flat_map(|family| family.iter()).find(|row| {
        row.base == base
            && row.forms.contains(&form)
            && row.when.is_none_or(|(low, width, value)| {
                (bits >> low & ((1u128 << width) - 1)) as u64 == value
            })
    })
}
