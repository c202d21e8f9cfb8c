//! Prints any stream, line by line.

use std::fmt;

use super::decode::decode;
use super::header::Header;
use crate::class::{Class, Compute, Copy, Host, host};

/// A stream, printed as its operations, or as methods if it cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a>(
    /// The stream's words.
    pub &'a [u32],
);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match decode(self.0) {
            Ok(operations) => operations.iter().try_for_each(|op| writeln!(f, "{op}")),
            Err(error) => {
                writeln!(f, "not a stream of this crate: {error}")?;
                self.methods(f)
            }
        }
    }
}

impl Listing<'_> {
    fn methods(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let [word, after @ ..] = rest {
            let at = self.0.len() - rest.len();
            write!(f, "{at:6}: {word:08x} ")?;
            rest = after;
            match Header::decode(*word) {
                Err(error) => return writeln!(f, "{error}"),
                Ok(Header::Nop) => writeln!(f, "nop")?,
                Ok(Header::EndSegment) => return writeln!(f, "end of segment"),
                Ok(Header::Immediate { subchannel, address, data }) => {
                    writeln!(f, "{} = {data:#x}", name(subchannel, address))?;
                }
                Ok(Header::Methods { opcode, subchannel, address, count }) => {
                    writeln!(f, "{opcode:?}, {count} words")?;
                    let (data, after) = rest.split_at(rest.len().min(count as usize));
                    rest = after;
                    for (index, word) in (0..).zip(data) {
                        let name = name(subchannel, opcode.address(address, index));
                        writeln!(f, "        {word:08x} {name}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn name(subchannel: u32, address: u32) -> String {
    fn of<C: Class>(address: u32) -> Option<&'static str> {
        C::METHODS.iter().find(|method| method.address() == address).map(|method| method.name())
    }
    let known = match subchannel {
        _ if address < host::METHODS_END => of::<Host>(address),
        Compute::SUBCHANNEL => of::<Compute>(address),
        Copy::SUBCHANNEL => of::<Copy>(address),
        _ => None,
    };
    known.map_or_else(|| format!("subchannel {subchannel} method {address:#x}"), str::to_owned)
}
