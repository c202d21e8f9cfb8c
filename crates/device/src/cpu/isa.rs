//! Which instruction set the kernels run on: found once at start, or chosen by name.
//!
//! An [`Isa`] can only be had for a set that this machine supports, so holding one is the proof
//! that the kernels' `unsafe` entry points ask for.

use std::fmt;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

/// An instruction set that this machine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(pub(super) Kind);

/// The sets that kernels are compiled for. Only [`Isa`] says that one may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

impl Kind {
    /// Best first.
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
        Self::Scalar,
    ];

    fn supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                    && Self::Avx2.supported()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            Self::Scalar => true,
        }
    }
}

/// A name that is no instruction set, or one that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction set `{name}` is not available here; this machine has: {available}")]
pub struct UnknownIsa {
    /// The name as given.
    pub name: String,
    /// The names that would do, best first.
    pub available: String,
}

impl Isa {
    /// The best one.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self(Kind::Scalar))
    }

    /// Every one that this machine supports, best first; the scalar one is always last.
    pub fn available() -> impl Iterator<Item = Self> {
        Kind::ALL.iter().copied().filter(|k| k.supported()).map(Self)
    }

    /// The one of that name: `avx512`, `avx2`, `neon` or `scalar`, in any case.
    ///
    /// # Errors
    ///
    /// The name is unknown, or the machine does not support that set.
    pub fn named(name: &str) -> Result<Self, UnknownIsa> {
        Self::available().find(|i| i.name().eq_ignore_ascii_case(name)).ok_or_else(|| UnknownIsa {
            name: name.to_owned(),
            available: Self::available().map(Self::name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The name that [`Isa::named`] takes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Scalar => "scalar",
        }
    }

    /// How far ahead of a stream memory is asked for where nothing has been measured, in bytes. It is the
    /// processor's maker that decides: what the core asks for by itself follows one ascending stream, and on
    /// AMD's (Zen 4) a second one far ahead disturbs it, while Intel's (Emerald Rapids) reads faster with it
    /// (docs/cpu.md has both).
    pub(super) fn ahead(self) -> usize {
        #[cfg(target_arch = "x86_64")]
        {
            // Asked once: a virtual machine's host answers, which takes as long as a small product.
            static AMD: LazyLock<bool> = LazyLock::new(|| {
                let id = std::arch::x86_64::__cpuid(0);
                [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
            });
            if *AMD {
                return 1024;
            }
        }
        8192
    }

    /// Rows that quantised weights may have side by side: where registers hold the sums of two row groups
    /// beside their weights, 32.
    pub(super) const fn packings(self) -> &'static [usize] {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.0, Kind::Avx512) {
            return &[16, 32];
        }
        &[16]
    }

    /// The source of its vector operations.
    pub(super) const fn source(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => include_str!("simd/avx512.rs"),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => include_str!("simd/avx2.rs"),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => include_str!("simd/neon.rs"),
            Kind::Scalar => include_str!("simd/scalar.rs"),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Defines a function whose first argument is an [`Isa`] and whose body is a generic function over
/// [`Simd`](super::simd::Simd) (and then over the types in angle brackets, if any), compiled once
/// per instruction set.
macro_rules! dispatch {
    ($(
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(<$($extra:ty),+>)?;
    )*) => {$(
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::cpu::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: compiled for the set that the type names; the rest is the caller's contract.
                unsafe { $body::<$crate::cpu::simd::Avx512 $($(, $extra)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::cpu::simd::Avx2 $($(, $extra)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            unsafe fn neon($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::cpu::simd::Neon $($(, $extra)+)?>($($arg),*) }
            }
            unsafe fn scalar($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::cpu::simd::Scalar $($(, $extra)+)?>($($arg),*) }
            }
            // SAFETY: an `Isa` exists only for a set that this machine supports; the rest is the
            // caller's contract.
            unsafe {
                match isa.0 {
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::isa::Kind::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::isa::Kind::Avx2 => avx2($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::cpu::isa::Kind::Neon => neon($($arg),*),
                    $crate::cpu::isa::Kind::Scalar => scalar($($arg),*),
                }
            }
        }
    )*};
}

pub(super) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_set_is_found_by_its_name_and_others_are_refused() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(&isa.name().to_uppercase()), Ok(isa));
        }
        let e = Isa::named("sve9").unwrap_err();
        assert!(e.to_string().contains("sve9") && e.to_string().contains("scalar"), "{e}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn how_far_ahead_follows_from_the_maker_that_the_system_names() {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let amd = about.lines().any(|l| l.starts_with("vendor_id") && l.ends_with("AuthenticAMD"));
        assert_eq!(Isa::detect().ahead(), if amd { 1024 } else { 8192 });
    }
}
