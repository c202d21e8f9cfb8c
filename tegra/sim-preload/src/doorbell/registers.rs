//! The registers of the doorbell page.
//!
//! Class AMPERE_USERMODE_A (0xC561) inherits them from VOLTA_USERMODE_A; GA10B reports 0xC461.
//! Source: NVIDIA open-gpu-doc `clc461.h`, `clc361.h`. Undefined registers read 0 and ignore
//! writes.

use super::bus::Bus;
use crate::message;

/// Class of the page.
const CFG0: usize = 0x00;
const CFG0_VALUE: u32 = 0xc461;
/// Nanoseconds, low 32 bits.
const TIME_0: usize = 0x80;
/// Nanoseconds, high 29 bits.
const TIME_1: usize = 0x84;
/// Doorbell: a channel's token, which notifies the GPU of its work.
const NOTIFY_CHANNEL_PENDING: usize = 0x90;

/// The GPU that owns the registers.
pub(super) trait Gpu {
    /// The GPU's clock.
    fn time_ns(&self) -> u64;
    /// Rings the doorbell with a token.
    fn doorbell(&self, token: u32);
}

/// The registers during one access.
pub(super) struct Registers<'a, G> {
    gpu: &'a G,
    /// Cached, so that one access reads one time.
    time: Option<u64>,
}

impl<'a, G: Gpu> Registers<'a, G> {
    pub(super) fn new(gpu: &'a G) -> Self {
        Self { gpu, time: None }
    }

    fn word(&mut self, offset: usize) -> u32 {
        let gpu = self.gpu;
        let mut time = || *self.time.get_or_insert_with(|| gpu.time_ns());
        match offset {
            CFG0 => CFG0_VALUE,
            TIME_0 => time() as u32,
            TIME_1 => (time() >> 32) as u32 & 0x1fff_ffff,
            _ => 0,
        }
    }
}

impl<G: Gpu> Bus for Registers<'_, G> {
    fn read(&mut self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = self.word(at & !3).to_le_bytes()[at & 3];
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let (start, end) = (NOTIFY_CHANNEL_PENDING, NOTIFY_CHANNEL_PENDING + 4);
        if offset >= end || offset + bytes.len() <= start {
            return;
        }
        let token = start
            .checked_sub(offset)
            .filter(|_| offset.is_multiple_of(4))
            .and_then(|at| bytes.get(at..at + 4))
            .and_then(|word| word.try_into().ok());
        match token {
            Some(token) => self.gpu.doorbell(u32::from_le_bytes(token)),
            None => message::abort(format_args!(
                "a store of {} bytes at offset {offset:#x} of the doorbell page covers a part of \
                 NOTIFY_CHANNEL_PENDING (4 bytes at 0x90); store the whole 32-bit token",
                bytes.len()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Recorder {
        tokens: RefCell<Vec<u32>>,
    }

    impl Gpu for Recorder {
        fn time_ns(&self) -> u64 {
            0xffff_ffff_1234_5660
        }

        fn doorbell(&self, token: u32) {
            self.tokens.borrow_mut().push(token);
        }
    }

    #[test]
    fn registers_read_the_values_of_the_class_header() {
        let gpu = Recorder::default();
        let mut page = [0xff; 0x98];
        Registers::new(&gpu).read(0, &mut page);
        assert_eq!(page[..8], [0x61, 0xc4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[0x80..0x88], [0x60, 0x56, 0x34, 0x12, 0xff, 0xff, 0xff, 0x1f]);
        assert_eq!(page[0x88..], [0; 16]);
        let mut byte = [0];
        Registers::new(&gpu).read(1, &mut byte);
        assert_eq!(byte, [0xc4]);
    }

    #[test]
    fn every_complete_store_to_the_doorbell_is_a_token() {
        let gpu = Recorder::default();
        let mut registers = Registers::new(&gpu);
        registers.write(0x90, &511_u32.to_le_bytes());
        registers.write(0x90, &511_u32.to_le_bytes());
        registers.write(0x8c, &[0, 0, 0, 0, 7, 0, 0, 0]);
        registers.write(0x94, &[1, 1, 1, 1]);
        registers.write(0x8c, &[1, 1, 1, 1]);
        assert_eq!(*gpu.tokens.borrow(), [511, 511, 7]);
    }
}
