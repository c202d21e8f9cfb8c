//! Name and definition of every metric in a comparison, as printed by `orinctl compare --explain`.

/// Name and definition of every metric. `N` in a name stands for any number.
const METRICS: [(&str, &str); 17] = [
    (
        "ppN",
        "tokens per second of evaluating a prompt of N tokens up to the first sampled token, measured by the engine's own bench; for a server known only by its port, N over the time to first token",
    ),
    (
        "tgN",
        "tokens per second of greedily generating N tokens; the first one, which ends the prompt, is not timed",
    ),
    ("@ dN", "the same with N tokens in the context when timing starts"),
    (
        "mean, peak",
        "arithmetic mean of the rounds, and the fastest round; the previous row has the median",
    ),
    (
        "sustained",
        "tokens per second that a client receives in the second half of each answer but the first, pauses included; only for answers with 8 or more tokens in the half",
    ),
    (
        "energy",
        "joules of the whole machine per token of the test, if the machine has a meter that the engine's bench reads",
    ),
    (
        "of the bandwidth",
        "bytes that a decoded token reads according to the plan, times its speed, over the read bandwidth of the same round",
    ),
    (
        "for the memory",
        "tokens per second over the peak memory in 10^9 bytes, including memory reserved on a GPU",
    ),
    (
        "first token after N",
        "milliseconds from sending a new prompt of N ids until the client receives the first token; median over a round's prompts but the first",
    ),
    (
        "very first token",
        "the same for the first prompt after the start: includes compilation, page faults and warm-up",
    ),
    (
        "between tokens",
        "milliseconds between consecutive tokens, as a client receives them; median, and percentiles if there are enough tokens",
    ),
    (
        "first iteration",
        "duration relative to the steady state of the same round; prompt: the very first token over the median of later first tokens; step: the time between the first two tokens after the start, over the median between tokens of later answers. The page shows every iteration",
    ),
    (
        "load",
        "milliseconds from starting the process until the model is ready; the page cache is left as it is",
    ),
    (
        "cold start",
        "load plus the very first token: from starting the process to a token, without idle time in between",
    ),
    (
        "peak memory",
        "sum of the largest resident sets of the engine's processes; pages of a mapped file count while they are resident",
    ),
    (
        "memory, host",
        "weights, KV cache and activations as the engine reports them; code: all executable mappings of its processes (programs, libraries, kernels compiled at run time), resident or not, and on a GPU the kernel images; rest: the peak minus the reported parts",
    ),
    (
        "memory, GPU",
        "the same for memory that the engine reserved on a GPU; the size of the code there is unknown and part of the rest",
    ),
];

/// Returns all definitions as text.
pub fn explain() -> String {
    let width = METRICS.iter().map(|metric| metric.0.len()).max().unwrap_or(0);
    METRICS.iter().map(|(name, what)| format!("{name:<width$}  {what}\n")).collect()
}
