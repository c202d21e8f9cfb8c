//! Packing of integers of 2 to 6 bits into bytes, so that one operation unpacks most of them.
//!
//! Four columns of a row form one *word* of four bytes, the unit of the packed layout. `packed` decides the order
//! of words, `format` unpacks sixteen rows at a time. Descriptions here apply to each byte of a word.

/// `byte`, four times.
const fn each(byte: u8) -> u32 {
    u32::from_ne_bytes([byte; 4])
}

/// Packs eight words of 2 bits into two: four in each, the first in the lowest bits.
#[must_use]
pub fn pack_two(words: [u32; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = words;
    [a | b << 2 | c << 4 | d << 6, e | f << 2 | g << 4 | h << 6]
}

/// Inverse of [`pack_two`].
#[must_use]
pub fn unpack_two(packed: [u32; 2]) -> [u32; 8] {
    std::array::from_fn(|i| packed[i / 4] >> (2 * (i % 4)) & each(3))
}

/// Packs eight words of 3 bits into three. The first three words are in the lower bits, the next three above them.
/// The upper pairs contain the lower two bits of the seventh and the eighth word, and the remaining bits of both.
#[must_use]
pub fn pack_three(words: [u32; 8]) -> [u32; 3] {
    let [a, b, c, d, e, f, y, z] = words;
    let (pair, third) = (each(3), each(4));
    [
        a | d << 3 | (y & pair) << 6,
        b | e << 3 | (z & pair) << 6,
        c | f << 3 | (y & third) << 4 | (z & third) << 5,
    ]
}

/// Inverse of [`pack_three`].
#[must_use]
pub fn unpack_three(packed: [u32; 3]) -> [u32; 8] {
    let [a, b, c] = packed.map(|word| word & each(7));
    let [d, e, f] = packed.map(|word| word >> 3 & each(7));
    let [y, z, third] = packed;
    let (pair, bit) = (each(3), each(4));
    [a, b, c, d, e, f, y >> 6 & pair | third >> 4 & bit, z >> 6 & pair | third >> 5 & bit]
}

/// Packs eight words of 4 bits into four: the last four are the upper bits.
#[must_use]
pub fn pack_four(words: [u32; 8]) -> [u32; 4] {
    std::array::from_fn(|i| words[i] | words[i + 4] << 4)
}

/// Inverse of [`pack_four`].
#[must_use]
pub fn unpack_four(packed: [u32; 4]) -> [u32; 8] {
    std::array::from_fn(|i| packed[i % 4] >> (4 * (i / 4)) & each(15))
}

/// Packs eight words of 6 bits into six, four words per three: three are in the lower bits. The upper pairs form
/// the fourth, from its lowest pair on.
#[must_use]
pub fn pack_six(words: [u32; 8]) -> [u32; 6] {
    let mut packed = [0; 6];
    for (to, &[a, b, c, last]) in packed.as_chunks_mut::<3>().0.iter_mut().zip(words.as_chunks().0)
    {
        let pair = |i: u32| (last >> (2 * i) & each(3)) << 6;
        *to = [a | pair(0), b | pair(1), c | pair(2)];
    }
    packed
}

/// Inverse of [`pack_six`].
#[must_use]
pub fn unpack_six(packed: [u32; 6]) -> [u32; 8] {
    let mut words = [0; 8];
    for (to, &[a, b, c]) in words.as_chunks_mut::<4>().0.iter_mut().zip(packed.as_chunks().0) {
        let [x, y, z] = [a, b, c].map(|word| word & each(63));
        *to = [x, y, z, a >> 6 & each(3) | b >> 4 & each(12) | c >> 2 & each(48)];
    }
    words
}

/// Packs eight words of 5 bits into five: the first five are in the lower bits. The upper three bits of the first and two
/// of the second contain the sixth word, those of the third and fourth the seventh. The upper three bits of the fifth and
/// the remaining bits of the second and fourth contain the eighth.
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

/// Inverse of [`pack_five`].
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
