//! What each number of a comparison means: said by `--explain`, held against the rows by a test.

/// Name and definition of every metric. A name with `N` stands for any number.
const METRICS: [(&str, &str); 17] = [
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
        "mean, peak",
        "of the rounds: their arithmetic mean, and the fastest of them; the row before has their median",
    ),
    (
        "sustained",
        "tokens per second that a client sees in the second half of each answer but the first, pauses and all: tokens over time of all these halves; for answers whose half has 8 tokens or more",
    ),
    (
        "energy",
        "joules of the whole machine during the test over its tokens, where the machine has a meter and the engine's bench reads it",
    ),
    (
        "of the bandwidth",
        "bytes that the plan says a decoded token reads, times its speed, over the read bandwidth measured in the same round",
    ),
    (
        "for the memory",
        "tokens per second over the peak memory in 10^9 bytes, with what was reserved on a GPU",
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
        "first iteration",
        "how many times the steady state it takes, in the same round; prompt: the very first token over the median of the later first tokens; step: from the first token after the start to the second, over the median between tokens of the later answers. The page has every iteration",
    ),
    (
        "load",
        "milliseconds from starting the process to a model that is ready; the file is in the page cache as it is",
    ),
    (
        "cold start",
        "load and the very first token together: from starting the process to a token, without the time in which nothing was asked",
    ),
    (
        "peak memory",
        "largest resident set of the engine's processes, added; pages of a mapped file count while they are resident",
    ),
    (
        "memory, host",
        "weights, KV cache and activations as the engine tells them; code: all executable mappings of its processes (programs, libraries, kernels compiled on the way), resident or not, and on a GPU the kernels' images; rest: the peak without what is told",
    ),
    (
        "memory, GPU",
        "the same of what the engine reserved on a GPU; nobody tells the size of the code there, which is in the rest",
    ),
];

/// All of them, as text.
pub fn explain() -> String {
    let width = METRICS.iter().map(|metric| metric.0.len()).max().unwrap_or(0);
    METRICS.iter().map(|(name, what)| format!("{name:<width$}  {what}\n")).collect()
}
