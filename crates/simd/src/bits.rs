//! Integers of 5 and 6 bits in whole bytes, of which most are taken out by one operation.
//!
//! Four columns of a row are one *word*, a byte each, the unit of the packed layout: `packed` says where words
//! lie, `format` takes them out of sixteen rows at a time. What is said here holds for each byte of a word.

/// `byte` in every byte.
const fn each(byte: u8) -> u32 {
    u32::from_ne_bytes([byte; 4])
}

/// Four words of 6 bits in three: the first three are the lower bits, the upper pairs are the fourth, from its lowest
/// pair.
#[must_use]
pub fn pack_six(words: [u32; 4]) -> [u32; 3] {
    let last = words[3];
    let pair = |i: u32| (last >> (2 * i) & each(3)) << 6;
    [words[0] | pair(0), words[1] | pair(1), words[2] | pair(2)]
}

/// What [`pack_six`] was given.
#[must_use]
pub fn unpack_six(packed: [u32; 3]) -> [u32; 4] {
    let [a, b, c] = packed;
    let [x, y, z] = packed.map(|word| word & each(63));
    let last = a >> 6 & each(3) | b >> 4 & each(12) | c >> 2 & each(48);
    [x, y, z, last]
}

/// Eight words of 5 bits in five: the first five are the lower bits. Of the upper three bits, the sixth word is those of
/// the first and two of the second, the seventh the same of the third and fourth, the eighth those of the fifth,
/// then what the second and the fourth have left.
#[must_use]
pub fn pack_five(words: [u32; 8]) -> [u32; 5] {
    let [v, w, x, y, z, a, b, c] = words;
    let [upper, lower, second, first] = [28, 3, 2, 1].map(each);
    [
        v | (a & upper) << 3,
        w | (a & lower) << 6 | (c & second) << 4,
        x | (b & upper) << 3,
        y | (b & lower) << 6 | (c & first) << 5,
        z | (c & upper) << 3,
    ]
}

/// What [`pack_five`] was given.
#[must_use]
pub fn unpack_five(packed: [u32; 5]) -> [u32; 8] {
    let [a, b, c, d, e] = packed;
    let [v, w, x, y, z] = packed.map(|word| word & each(31));
    let [upper, lower, second, first] = [28, 3, 2, 1].map(each);
    [
        v,
        w,
        x,
        y,
        z,
        a >> 3 & upper | b >> 6 & lower,
        c >> 3 & upper | d >> 6 & lower,
        e >> 3 & upper | b >> 4 & second | d >> 5 & first,
    ]
}
