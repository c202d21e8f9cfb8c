//! Packing and unpacking of words returns the same bits.

use proptest::array::uniform8;
use proptest::prelude::*;
use simd::bits;

proptest! {
    #[test]
    fn unpacking_inverts_packing_at_every_width(words in uniform8(any::<u32>())) {
        let words = |bits: u32| words.map(|word| word & u32::from_ne_bytes([(1 << bits) - 1; 4]));
        prop_assert_eq!(bits::unpack_two(bits::pack_two(words(2))), words(2));
        prop_assert_eq!(bits::unpack_three(bits::pack_three(words(3))), words(3));
        prop_assert_eq!(bits::unpack_four(bits::pack_four(words(4))), words(4));
        prop_assert_eq!(bits::unpack_five(bits::pack_five(words(5))), words(5));
        prop_assert_eq!(bits::unpack_six(bits::pack_six(words(6))), words(6));
    }
}
