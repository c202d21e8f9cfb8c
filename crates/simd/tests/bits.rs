//! What is packed comes back.

use proptest::array::{uniform4, uniform8};
use proptest::prelude::*;
use simd::bits::{pack_five, pack_six, unpack_five, unpack_six};

proptest! {
    #[test]
    fn words_of_six_bits_come_back(words in uniform4(any::<u32>())) {
        let words = words.map(|word| word & u32::from_ne_bytes([63; 4]));
        prop_assert_eq!(unpack_six(pack_six(words)), words);
    }

    #[test]
    fn words_of_five_bits_come_back(words in uniform8(any::<u32>())) {
        let words = words.map(|word| word & u32::from_ne_bytes([31; 4]));
        prop_assert_eq!(unpack_five(pack_five(words)), words);
    }
}
