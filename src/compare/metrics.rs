//! What each number of a comparison means: said by `--explain`, held against the rows by a test.

/// Name and definition of every metric. A name with `N` stands for any number.
const METRICS: [(&str, &str); 11] = [
    (
        "ppN",
        "tokens per second of the evaluation of a prompt of N tokens, by the engine's own bench, up to its first sampled token; for a server of which only the port is known, N over the time to its first token",
    ),
    (
        "tgN",
        "tokens per second of N tokens generated greedily, one after the other; the first, which ends the prompt, is not timed",
    ),
    ("@ dN", "the same with N tokens in the context when the clock starts"),
    (
        "energy",
        "joules of the whole machine during the test over its tokens, where the machine has a meter and the engine's bench reads it",
    ),
    (
        "of the bandwidth",
        "bytes that the plan says a decoded token reads, times its speed, over the read bandwidth measured in the same round",
    ),
    (
        "first token after N",
        "milliseconds from sending a prompt of N ids that nobody has seen to the first token, as a client sees it; the median of a round's prompts but the first",
    ),
    (
        "very first token",
        "the same for the first prompt after the start: what compilation, page faults and warm-up cost",
    ),
    (
        "between tokens",
        "milliseconds between two tokens that follow each other, as a client sees them; median, and percentiles where there are enough to have one beyond",
    ),
    (
        "load",
        "milliseconds from starting the process to a model that is ready; the file is in the page cache as it is",
    ),
    (
        "peak memory",
        "largest resident set of the engine's processes, added; pages of a mapped file count while they are resident",
    ),
    (
        "memory",
        "what the engine says of its parts: weights, KV cache, activations, and what it reserved on a GPU",
    ),
];

/// All of them, as text.
pub fn explain() -> String {
    let width = METRICS.iter().map(|metric| metric.0.len()).max().unwrap_or(0);
    METRICS.iter().map(|(name, what)| format!("{name:<width$}  {what}\n")).collect()
}
