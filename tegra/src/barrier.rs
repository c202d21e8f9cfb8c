//! Barriers between this CPU and the GPU, an observer outside the CPUs' own coherence domain.
//!
//! [`crate::queue`] explains which barrier is needed where, and why the compiler's fences are not
//! enough on AArch64. On x86-64, where the observer is a simulated GPU, a store fence orders
//! write-combined stores and restrains the compiler; loads are in order anyway.

/// Makes earlier stores visible to the GPU before later ones, to ordinary or device memory.
///
/// A full barrier of the whole system: the one seen to work on an Orin. The architecture requires
/// less (`dmb oshst`), which has not been tested there.
#[inline(always)]
pub(crate) fn stores() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no register and no memory; without `nomem` the compiler moves no
    // access across it either.
    unsafe {
        std::arch::asm!("dmb sy", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; every x86-64 has the instruction.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Makes later loads see at least what the GPU had written when earlier loads were made.
#[inline(always)]
pub(crate) fn loads() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `stores`.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}
