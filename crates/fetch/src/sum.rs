//! SHA-256 checksum: 64 hexadecimal digits.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(pub(crate) [u8; 32]);

impl Sum {
    /// Checksum of a file; `read` receives the number of bytes read so far.
    pub(crate) fn of(mut file: &File, read: &mut dyn FnMut(u64)) -> io::Result<Self> {
        let (mut sum, mut done, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 17]);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok(Self(sum.finalize().into()));
            }
            sum.update(&buffer[..count]);
            done += count as u64;
            read(done);
        }
    }
}

impl FromStr for Sum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let mut sum = [0; 32];
        match digits {
            Some(digits) if digits.len() == 64 => {
                for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = pair[0] << 4 | pair[1];
                }
                Ok(Self(sum))
            }
            _ => Err("a SHA-256 has 64 hexadecimal digits".into()),
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
