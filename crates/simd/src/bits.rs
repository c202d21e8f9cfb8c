//! Integers of 2 to 6 bits in whole bytes, of which most are taken out by one operation.
//!
//! Four columns of a row are one *word*, a byte each, the unit of the packed layout: `packed` says where words
//! lie, `format` takes them out of sixteen rows at a time. What is said here holds for each byte of a word.

/// `byte` in every byte.
const fn each(byte: u8) -> u32 {
    u32::from_ne_bytes([byte; 4])
}

/// Eight words of 2 bits in two: four in each, the first one lowest.
#[must_use]
pub fn pack_two(words: [u32; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = words;
    [a | b << 2 | c << 4 | d << 6, e | f << 2 | g << 4 | h << 6]
}

/// What [`pack_two`] was given.
#[must_use]
pub fn unpack_two(packed: [u32; 2]) -> [u32; 8] {
    std::array::from_fn(|i| packed[i / 4] >> (2 * (i % 4)) & each(3))
}

/// Eight words of 3 bits in three: the first three are the lower bits, the next three above them. The upper pairs are
/// the lower two bits of the seventh and of the eighth, and what these two have left.
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

/// What [`pack_three`] was given.
#[must_use]
pub fn unpack_three(packed: [u32; 3]) -> [u32; 8] {
    let [a, b, c] = packed.map(|word| word & each(7));
    let [d, e, f] = packed.map(|word| word >> 3 & each(7));
    let [y, z, third] = packed;
    let (pair, bit) = (each(3), each(4));
    [a, b, c, d, e, f, y >> 6 & pair | third >> 4 & bit, z >> 6 & pair | third >> 5 & bit]
}

/// Eight words of 4 bits in four: the last four are the upper bits.
#[must_use]
pub fn pack_four(words: [u32; 8]) -> [u32; 4] {
    std::array::from_fn(|i| words[i] | words[i + 4] << 4)
}

/// What [`pack_four`] was given.
#[must_use]
pub fn unpack_four(packed: [u32; 4]) -> [u32; 8] {
    std::array::from_fn(|i| packed[i % 4] >> (4 * (i / 4)) & each(15))
}

/// Eight words of 6 bits in six, four in three: three are the lower bits, the upper pairs are the fourth, from its lowest
/// pair.
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

/// What [`pack_six`] was given.
#[must_use]
pub fn unpack_six(packed: [u32; 6]) -> [u32; 8] {
    let mut words = [0; 8];
    for (to, &[a, b, c]) in words.as_chunks_mut::<4>().0.iter_mut().zip(packed.as_chunks().0) {
        let [x, y, z] = [a, b, c].map(|word| word & each(63));
        *to = [x, y, z, a >> 6 & each(3) | b >> 4 & each(12) | c >> 2 & each(48)];
    }
    words
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
