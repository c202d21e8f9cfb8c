//! The interface between an emulated instruction and the registers of the doorbell page.

/// The registers of a doorbell page, as the faulting instruction sees them.
///
/// Addresses are bytes from the start of the page. The longest access is one 512-bit register.
pub(crate) trait Bus {
    /// Reads `into.len()` bytes.
    fn read(&mut self, offset: usize, into: &mut [u8]);
    /// Writes `bytes`.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}

/// Reads up to eight bytes as a little-endian number.
pub(super) fn read_number(bus: &mut impl Bus, offset: usize, bytes: u8) -> u64 {
    let mut buffer = [0; 8];
    let bytes = usize::from(bytes).min(buffer.len());
    bus.read(offset, &mut buffer[..bytes]);
    u64::from_le_bytes(buffer)
}

/// Writes the low `bytes` bytes of `value`.
pub(super) fn write_number(bus: &mut impl Bus, offset: usize, bytes: u8, value: u64) {
    let bytes = usize::from(bytes).min(8);
    bus.write(offset, &value.to_le_bytes()[..bytes]);
}

/// Sign-extends the low `bytes` bytes of `value`.
pub(super) fn sign_extend(value: u64, bytes: u8) -> u64 {
    let shift = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (((value << shift) as i64) >> shift) as u64
}

/// Zero-extends the low `bytes` bytes of `value`.
pub(super) fn truncate(value: u64, bytes: u8) -> u64 {
    let shift = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (value << shift) >> shift
}

/// An instruction that the emulation cannot decode.
pub(super) struct Undecoded {
    pub(super) bytes: [u8; 15],
    pub(super) length: usize,
    pub(super) address: usize,
}
