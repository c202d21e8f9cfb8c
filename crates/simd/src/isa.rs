//! Instruction sets: detection at start, and selection by name.
//!
//! An [`Isa`] exists only for a set that this machine supports, so a value proves the requirement of the kernels'
//! `unsafe` entry points. A set is one of vector instructions, with or without a matrix unit.

use std::fmt;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use super::vector::amx;

/// An instruction set that this machine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa {
    pub(crate) vectors: Vectors,
    /// True if a matrix unit computes products of many rows.
    pub(crate) tiles: bool,
}

/// Vector instructions that kernels are compiled for. Only [`Isa`] proves that the machine can execute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

impl Vectors {
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

/// Error: an unknown instruction set, or one that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction set `{name}` is not available here; this machine has: {available}")]
pub struct UnknownIsa {
    pub name: String,
    pub available: String,
}

impl Isa {
    /// All sets, best first.
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self { vectors: Vectors::Avx512, tiles: true },
        #[cfg(target_arch = "x86_64")]
        Self::of(Vectors::Avx512),
        #[cfg(target_arch = "x86_64")]
        Self::of(Vectors::Avx2),
        #[cfg(target_arch = "aarch64")]
        Self::of(Vectors::Neon),
        Self::of(Vectors::Scalar),
    ];

    const fn of(vectors: Vectors) -> Self {
        Self { vectors, tiles: false }
    }

    fn supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.tiles && !amx::usable() {
            return false;
        }
        self.vectors.supported()
    }

    /// The best supported set. The first call requests the kernel's permission for AMX, for the whole process.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::of(Vectors::Scalar))
    }

    /// Supported sets, best first; the last is always `scalar`.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|isa| isa.supported())
    }

    /// Scalar code with a software model of a matrix unit: computes what `amx` computes, on any machine, slowly.
    #[cfg(feature = "modelled")]
    #[must_use]
    pub const fn modelled() -> Self {
        Self { vectors: Vectors::Scalar, tiles: true }
    }

    /// The same vectors, with a matrix unit for products of many rows.
    ///
    /// # Safety
    ///
    /// On x86-64 this process may use AMX, or a signal handler emulates it.
    #[cfg(feature = "modelled")]
    #[must_use]
    pub const unsafe fn with_tiles(self) -> Self {
        Self { tiles: true, ..self }
    }

    /// The set with a name: `amx`, `avx512`, `avx2`, `neon` or `scalar`, in any case.
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

    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.vectors, self.tiles) {
            #[cfg(target_arch = "x86_64")]
            (Vectors::Avx512, true) => "amx",
            #[cfg(target_arch = "x86_64")]
            (Vectors::Avx512, false) => "avx512",
            #[cfg(target_arch = "x86_64")]
            (Vectors::Avx2, true) => "amx beside avx2",
            #[cfg(target_arch = "x86_64")]
            (Vectors::Avx2, false) => "avx2",
            #[cfg(target_arch = "aarch64")]
            (Vectors::Neon, true) => "modelled tiles beside neon",
            #[cfg(target_arch = "aarch64")]
            (Vectors::Neon, false) => "neon",
            (Vectors::Scalar, true) => "modelled tiles",
            (Vectors::Scalar, false) => "scalar",
        }
    }

    /// Default prefetch distance of weight streams, in bytes. The CPU vendor decides: hardware prefetchers follow
    /// one ascending stream. On AMD (Zen 4), a second stream far ahead disturbs them; Intel (Emerald Rapids) reads
    /// faster with it (docs/cpu.md has both).
    #[must_use]
    pub fn prefetch_distance(self) -> usize {
        #[cfg(target_arch = "x86_64")]
        {
            // Queried once: on a virtual machine the host answers CPUID, which takes as long as a small product.
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

    /// Row counts that quantised weights may interleave. 32 requires registers for the sums of two row groups and
    /// their weights.
    #[must_use]
    pub const fn packings(self) -> &'static [usize] {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.vectors, Vectors::Avx512) {
            return &[16, 32];
        }
        &[16]
    }

    /// Source text of everything that a matrix product is compiled from.
    #[must_use]
    pub const fn sources(self) -> [&'static str; 13] {
        let (vectors, tiles) = match self.vectors {
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => (include_str!("vector/avx512.rs"), include_str!("vector/amx.rs")),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => (include_str!("vector/avx2.rs"), include_str!("vector/amx.rs")),
            #[cfg(target_arch = "aarch64")]
            Vectors::Neon => (include_str!("vector/neon.rs"), include_str!("vector/tiles.rs")),
            Vectors::Scalar => (include_str!("vector/scalar.rs"), include_str!("vector/tiles.rs")),
        };
        [
            include_str!("matmul/block.rs"),
            include_str!("matmul/dispatch.rs"),
            include_str!("matmul/gemm.rs"),
            include_str!("matmul/gemv.rs"),
            include_str!("matmul/plain.rs"),
            include_str!("matmul/product.rs"),
            include_str!("matmul/tiled.rs"),
            include_str!("format.rs"),
            include_str!("packed.rs"),
            include_str!("activations.rs"),
            include_str!("vector/mod.rs"),
            vectors,
            tiles,
        ]
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Defines a function whose first argument is an [`Isa`]. Its body is a generic function over
/// [`Simd`](super::vector::Simd), and over the parameters in angle brackets, compiled once per instruction set.
/// Generics of the function itself are in square brackets.
macro_rules! dispatch {
    ($(
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident $([$($generic:tt)*])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(<$($extra:ty),+>)?;
    )*) => {$(
        $(#[$meta])*
        $vis unsafe fn $name $(<$($generic)*>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: compiled for the set that the type names; the rest is the caller's contract.
                unsafe { $body::<$crate::vector::Avx512 $($(, $extra)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::vector::Avx2 $($(, $extra)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            unsafe fn neon $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::vector::Neon $($(, $extra)+)?>($($arg),*) }
            }
            unsafe fn scalar $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::vector::Scalar $($(, $extra)+)?>($($arg),*) }
            }
            // SAFETY: an `Isa` exists only for a set that this machine supports; the rest is the
            // caller's contract.
            unsafe {
                match isa.vectors {
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Vectors::Avx512 => avx512 $(::<$($extra),+>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Vectors::Avx2 => avx2 $(::<$($extra),+>)? ($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::isa::Vectors::Neon => neon $(::<$($extra),+>)? ($($arg),*),
                    $crate::isa::Vectors::Scalar => scalar $(::<$($extra),+>)? ($($arg),*),
                }
            }
        }
    )*};
}

pub(crate) use dispatch;
