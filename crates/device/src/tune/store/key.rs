//! Hardware key of tuning records.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Hardware with the same best choices; each has its own file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum DeviceKey {
    /// An NVIDIA GPU, with any driver.
    Gpu {
        /// SM version: 87 for SM 8.7.
        sm: u32,
        sms: u32,
        /// Highest allowed clock in MHz, rounded down to a multiple of [`CLOCK_BAND_MHZ`]; 0 if
        /// unknown.
        clock_mhz: u32,
    },
    Cpu {
        /// Processor name from the system.
        model: String,
        /// Instruction set of the kernels.
        features: String,
        cores: u32,
    },
}

/// Clock differences below this do not change the best variant.
pub const CLOCK_BAND_MHZ: u32 = 100;

impl DeviceKey {
    /// A GPU with this highest clock, 0 if unknown.
    #[must_use]
    pub const fn gpu(sm: u32, sms: u32, clock_mhz: u32) -> Self {
        Self::Gpu { sm, sms, clock_mhz: clock_mhz - clock_mhz % CLOCK_BAND_MHZ }
    }

    #[must_use]
    pub fn cpu(model: &str, features: &str, cores: u32) -> Self {
        Self::Cpu { model: model.to_owned(), features: features.to_owned(), cores }
    }

    /// File name without extension, such as `gpu-sm87-16sm-1300mhz` or
    /// `cpu-intel-xeon-6975p-c-avx512-2cores`.
    #[must_use]
    pub fn stem(&self) -> String {
        match self {
            Self::Gpu { sm, sms, clock_mhz: 0 } => format!("gpu-sm{sm}-{sms}sm"),
            Self::Gpu { sm, sms, clock_mhz } => format!("gpu-sm{sm}-{sms}sm-{clock_mhz}mhz"),
            Self::Cpu { model, features, cores } => {
                format!("cpu-{}-{}-{cores}cores", plain(model), plain(features))
            }
        }
    }
}

/// Portable file name: lower-case letters, digits, single hyphens; at most 80 characters.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut plain = words.collect::<Vec<_>>().join("-").to_lowercase();
    plain.truncate(80);
    plain
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu { sm, sms, clock_mhz } => {
                write!(f, "GPU with {sms} SMs of version {}.{}", sm / 10, sm % 10)?;
                if *clock_mhz == 0 { Ok(()) } else { write!(f, ", {clock_mhz} MHz") }
            }
            Self::Cpu { model, features, cores } => {
                write!(f, "{model}, {features}, {cores} threads")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_file() {
        assert_eq!(DeviceKey::gpu(87, 16, 1377).stem(), "gpu-sm87-16sm-1300mhz");
        assert_eq!(DeviceKey::gpu(90, 132, 0).stem(), "gpu-sm90-132sm");
        let key = DeviceKey::cpu("Intel(R) Xeon(R) 6975P-C @ 2.0/GHz", "avx512", 2);
        assert_eq!(key.stem(), "cpu-intel-r-xeon-r-6975p-c-2-0-ghz-avx512-2cores");
        let long = DeviceKey::cpu(&"é/../x ".repeat(100), "../avx2", 64).stem();
        assert!(long.len() < 128 && !long.contains(['/', '.']), "{long}");
    }
}
