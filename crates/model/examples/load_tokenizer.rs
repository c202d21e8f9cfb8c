//! Measures the load time of a tokenizer: `load_tokenizer FILE.gguf` reads the metadata and builds the tokenizer ten
//! times, and prints the fastest and the slowest time.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use model::gguf::Gguf;
use model::tokenizer::{Tokenizer, Vocabulary};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: load_tokenizer FILE.gguf")?;
    let mut times = Vec::new();
    let mut tokens = 0;
    for _ in 0..10 {
        let start = Instant::now();
        let file = Gguf::open(&path)?;
        let read = start.elapsed();
        let tokenizer = Tokenizer::new(Vocabulary::from_metadata(file.metadata())?)?;
        times.push((start.elapsed(), read));
        tokens = tokenizer.vocab_size();
    }
    times.sort();
    let mut out = std::io::stdout();
    for (what, (all, read)) in [("fastest", times[0]), ("slowest", times[times.len() - 1])] {
        writeln!(out, "{tokens} tokens, {what}: {all:.3?}, of which reading {read:.3?}")?;
    }
    Ok(())
}
