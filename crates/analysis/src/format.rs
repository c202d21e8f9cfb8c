//! Reports as text: a table for a terminal, Markdown, CSV. The first columns are like those
//! of `llama-bench`.

use crate::statistics::{DEFINITION, Summary};
use bench::{Model, Report, Roof, Row};
use std::fmt::Write as _;

const COLUMNS: [&str; 12] = [
    "model",
    "size",
    "params",
    "device",
    "threads",
    "test",
    "tok/s",
    "bytes/token",
    "GB/s",
    "% of roof",
    "GFLOP/s",
    "J/token",
];
/// Left-aligned text columns.
const LEFT: [bool; 12] =
    [true, false, false, true, false, true, false, false, false, false, false, false];

/// Formats the terminal table: conditions above, aligned columns, definitions below.
pub fn table(report: &Report) -> String {
    let mut text = conditions(report);
    text.push('\n');
    text.push_str(&aligned(report));
    text.push('\n');
    for (name, value) in facts(report) {
        let _ = writeln!(text, "{name:<20} {value}");
    }
    text.push('\n');
    for note in notes(report) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Formats the report as Markdown, for a README or an issue tracker.
pub fn markdown(report: &Report) -> String {
    let mut text = aligned(report);
    text.push('\n');
    for (name, value) in facts(report) {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text.push('\n');
    let conditions = conditions(report);
    let lines = conditions.lines().map(str::to_owned).chain(notes(report));
    for line in lines {
        let _ = writeln!(text, "{line}  ");
    }
    text
}

/// Formats a line per row in SI units, with every condition repeated on each line.
pub fn csv(report: &Report) -> String {
    let m = &report.manifest;
    let mut text = String::from(
        "version,commit,date,model,architecture,file_type,synthetic,model_bytes,parameters,device,\
         threads,test,kind,tokens,depth,batch,repetitions,median_tokens_per_second,\
         spread_tokens_per_second,mean_tokens_per_second,stddev_tokens_per_second,\
         weight_bytes_per_token,kv_bytes_per_token,bytes_per_second,roof_bytes_per_second,\
         fraction_of_roof,flops_per_second,joules_per_token,invalid\n",
    );
    for row in &report.rows {
        let speed = &row.tokens_per_second;
        let optional = |x: Option<f64>| x.map_or_else(String::new, |x| format!("{x}"));
        let kind = match row.test.kind {
            bench::Kind::Prefill => "prefill",
            bench::Kind::Decode => "decode",
        };
        let fields = [
            m.version.clone(),
            m.commit.clone().unwrap_or_default(),
            m.date.clone(),
            m.model.id.clone(),
            m.model.architecture.clone(),
            m.model.file_type.clone(),
            m.model.synthetic.to_string(),
            m.model.bytes.to_string(),
            m.model.parameters.to_string(),
            m.device.clone(),
            m.threads.to_string(),
            row.name.clone(),
            kind.to_owned(),
            row.test.tokens.to_string(),
            row.test.depth.to_string(),
            row.test.batch.to_string(),
            speed.samples.len().to_string(),
            speed.median.to_string(),
            optional(speed.spread),
            speed.mean.to_string(),
            optional(speed.stddev),
            row.weight_bytes_per_token.to_string(),
            row.kv_bytes_per_token.to_string(),
            row.bytes_per_second.to_string(),
            report.roof.bytes_per_second.to_string(),
            row.fraction_of_roof.to_string(),
            row.flops_per_second.to_string(),
            optional(row.joules_per_token),
            report.invalid.join("; "),
        ];
        let line: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
        let _ = writeln!(text, "{}", line.join(","));
    }
    text
}

/// Quotes a CSV field where RFC 4180 requires it.
pub(super) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn aligned(report: &Report) -> String {
    // Only if there is a power meter.
    let joules = report.rows.iter().any(|row| row.joules_per_token.is_some());
    let shown = if joules { COLUMNS.len() } else { COLUMNS.len() - 1 };
    let mut rows = vec![COLUMNS[..shown].iter().map(|&name| name.to_owned()).collect()];
    rows.extend(report.rows.iter().map(|row| cells(report, row)[..shown].to_vec()));
    pipes(&rows, |column| LEFT[column])
}

/// Formats an aligned Markdown table with names in the first row; `left` selects left-aligned
/// columns.
pub(super) fn pipes(rows: &[Vec<String>], left: impl Fn(usize) -> bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        text.push('|');
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if left(column) {
                write!(text, " {cell:<width$} |")
            } else {
                write!(text, " {cell:>width$} |")
            };
        }
        text.push('\n');
        if at == 0 {
            text.push('|');
            for (column, &width) in widths.iter().enumerate() {
                let dashes = "-".repeat(width.saturating_sub(1));
                let _ = write!(text, " {dashes}{} |", if left(column) { "-" } else { ":" });
            }
            text.push('\n');
        }
    }
    text
}

fn cells(report: &Report, row: &Row) -> [String; 12] {
    let m = &report.manifest;
    [
        m.model.id.clone(),
        binary_bytes(m.model.bytes as f64),
        parameters(m.model.parameters),
        m.device.clone(),
        if m.threads == 0 { "-".to_owned() } else { m.threads.to_string() },
        row.name.clone(),
        plus_minus(&row.tokens_per_second, 2),
        decimal_bytes(row.weight_bytes_per_token + row.kv_bytes_per_token),
        format!("{:.2}", row.bytes_per_second / 1e9),
        if report.roof.bytes_per_second > 0.0 {
            format!("{:.0} %", row.fraction_of_roof * 100.0)
        } else {
            "?".to_owned()
        },
        format!("{:.1}", row.flops_per_second / 1e9),
        row.joules_per_token.map_or_else(|| "?".to_owned(), |joules| format!("{joules:.3}")),
    ]
}

/// Formats `12.34 ± 0.56`; a single measurement has no spread.
fn plus_minus(summary: &Summary, digits: usize) -> String {
    match summary.spread {
        Some(spread) => format!("{:.digits$} ± {spread:.digits$}", summary.median),
        None => format!("{:.digits$} ± ?", summary.median),
    }
}

fn conditions(report: &Report) -> String {
    let m = &report.manifest;
    let mut text = format!("orind {}", m.version);
    if let Some(commit) = &m.commit {
        let _ = write!(text, " ({commit})");
    }
    let _ = writeln!(text, ", {}", m.date);
    if m.debug_build {
        text.push_str("BUILT WITH DEBUG ASSERTIONS: these speeds mean little\n");
    }
    let weights = if m.model.synthetic { ", synthetic: seeded random weights" } else { "" };
    let Model { id, architecture, file_type, .. } = &m.model;
    let _ = writeln!(text, "model   {id}: {architecture} {file_type}{weights}");
    let _ = match m.threads {
        0 => writeln!(text, "device  {}", m.device_description),
        threads => writeln!(text, "device  {}, {threads} threads", m.device_description),
    };
    let machine = &m.machine;
    let mut parts = vec![format!("{} cores", machine.cores)];
    if let Some(governor) = &machine.governor {
        parts.push(format!("governor {governor}"));
    }
    if let Some([before, after]) = machine.mhz {
        parts.push(format!("{before:.0} MHz before, {after:.0} MHz after"));
    }
    if let Some(kernel) = &machine.kernel {
        parts.push(format!("Linux {kernel}"));
    }
    if let Some(taken) = machine.taken_by_others {
        parts.push(format!("{:.0} % of CPU time used by others", taken * 100.0));
    }
    let _ = writeln!(text, "machine {}", parts.join(", "));
    if let Some(summary) = m.conditions.summary() {
        let _ = writeln!(text, "state   {summary}");
    }
    for reason in &report.invalid {
        let _ = writeln!(text, "INVALID: {reason}");
    }
    text
}

/// Facts about the run that do not belong to a row.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let mut facts = vec![("memory bandwidth", bandwidth(&report.roof))];
    if let Some(first) = &report.first_token {
        let (ms, tokens) = (plus_minus(&first.seconds.scaled(1e3), 1), first.prompt_tokens);
        let first = format!("{ms} ms (prompt of {tokens} tokens, over the socket)");
        facts.push(("time to first token", first));
    }
    facts.push(("load time", format!("{:.2} s", report.load_seconds)));
    if let Some(cold) = &report.cold_start {
        let [first, socket, loaded] =
            [cold.first_token_seconds, cold.socket_seconds, cold.loaded_seconds];
        let cold = format!(
            "{first:.2} s from process start to first token (socket {socket:.2} s, \
             model loaded {loaded:.2} s, prompt of {} tokens)",
            cold.prompt_tokens
        );
        facts.push(("cold start", cold));
    }
    let memory = &report.memory;
    let resident = format!("{} resident", binary_bytes(memory.peak as f64));
    let [weights, kv, activations] =
        [memory.weights, memory.kv, memory.activations].map(|bytes| binary_bytes(bytes as f64));
    let reserved = format!("weights {weights}, KV cache {kv}, activations {activations} reserved");
    if memory.gpu {
        facts.push(("peak memory", resident));
        let total = binary_bytes(memory.reserved() as f64);
        let code = memory.code.map(|code| format!(", machine code {}", binary_bytes(code as f64)));
        facts.push(("GPU memory", format!("{total}: {reserved}{}", code.unwrap_or_default())));
    } else {
        let rest = binary_bytes(memory.rest() as f64);
        facts.push(("peak memory", format!("{resident}: {reserved}, rest {rest}")));
    }
    facts
}

/// Formats the read bandwidth and its access pattern.
fn bandwidth(roof: &Roof) -> String {
    let limit = roof.limit.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    if roof.measurements == 0 {
        return format!("not measured{limit}");
    }
    // The stream of a GPU includes the size.
    let how = match roof.threads {
        0 => String::new(),
        threads => format!("; {} per pass, {threads} threads", binary_bytes(roof.bytes as f64)),
    };
    format!(
        "{:.2} GB/s, best of {} measurements ({}{how}; slowest {:.2}){limit}",
        roof.bytes_per_second / 1e9,
        roof.measurements,
        roof.stream,
        roof.lowest / 1e9
    )
}

fn notes(report: &Report) -> Vec<String> {
    let m = &report.manifest;
    let joules = report.rows.iter().any(|row| row.joules_per_token.is_some());
    let mut notes = vec![
        format!(
            "tok/s: {DEFINITION}; {} repetitions, {} warm-up, tests interleaved.",
            m.repetitions, m.spec.warmup
        ),
        "pp N: a prompt of N tokens; tg N: N greedy tokens; x B: B sequences, their speeds summed; \
         @ d D: D tokens were already in the context."
            .into(),
        format!(
            "Prompts are random token ids (seed {}); tokenisation is not included.",
            m.spec.seed
        ),
        "bytes/token: weights and KV cache that the plan reads per token; % of roof: relative to the \
         memory bandwidth measured in this run."
            .into(),
    ];
    if joules {
        notes.push("J/token: of the whole module or machine while the test ran.".into());
    }
    notes
}

/// Formats bytes with factor 1024, as llama-bench does.
fn binary_bytes(bytes: f64) -> String {
    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
    if bytes >= GIB {
        format!("{:.2} GiB", bytes / GIB)
    } else {
        format!("{:.2} MiB", bytes / (1024.0 * 1024.0))
    }
}

/// Formats bytes with factor 1000, to match GB/s.
fn decimal_bytes(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.3} GB", bytes / 1e9) } else { format!("{:.2} MB", bytes / 1e6) }
}

fn parameters(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 { format!("{:.2} B", count / 1e9) } else { format!("{:.2} M", count / 1e6) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bench::{
        ColdStart, Conditions, FirstToken, Kind, Machine, Manifest, Memory, Spec, Stream, Test,
    };

    fn row(test: Test, samples: Vec<f64>, bytes_per_token: f64) -> Row {
        let speed = Summary::of(samples).unwrap();
        let median = speed.median;
        Row {
            name: test.to_string(),
            test,
            tokens_per_second: speed,
            tokens_per_second_per_sequence: median / f64::from(test.batch),
            weight_bytes_per_token: bytes_per_token,
            kv_bytes_per_token: 0.0,
            flops_per_token: 2e9,
            bytes_per_second: median * bytes_per_token,
            fraction_of_roof: median * bytes_per_token / 20e9,
            flops_per_second: median * 2e9,
            joules_per_token: None,
        }
    }

    pub(crate) fn report() -> Report {
        Report {
            invalid: Vec::new(),
            manifest: Manifest {
                version: "0.1.0".into(),
                commit: None,
                debug_build: false,
                date: "2026-01-02T03:04:05Z".into(),
                model: Model {
                    id: "synthetic:x:q8_0".into(),
                    architecture: "qwen3".into(),
                    file_type: "Q8_0".into(),
                    synthetic: true,
                    bytes: 512 << 20,
                    parameters: 596_050_000,
                },
                device: "cpu".into(),
                device_description: "A processor, AVX2".into(),
                threads: 2,
                context: 513,
                conditions: Conditions::default(),
                machine: Machine { cores: 2, taken_by_others: Some(0.034), ..Machine::default() },
                spec: Spec::default(),
                repetitions: 3,
                provenance: None,
                seconds: 12.0,
            },
            roof: Roof {
                stream: "linear read".into(),
                bytes_per_second: 20e9,
                lowest: 18e9,
                bytes: 1 << 30,
                threads: 2,
                measurements: 5,
                streams: vec![Stream { name: "linear read".into(), bytes_per_second: 20e9 }],
                limit: None,
            },
            rows: vec![
                row(
                    Test { kind: Kind::Prefill, tokens: 512, depth: 0, batch: 1 },
                    vec![100.0, 101.0, 99.0],
                    2.5e6,
                ),
                row(
                    Test { kind: Kind::Decode, tokens: 128, depth: 1024, batch: 1 },
                    vec![20.0],
                    634e6,
                ),
            ],
            memory: Memory {
                peak: 900 << 20,
                weights: 600 << 20,
                kv: 100 << 20,
                activations: 50 << 20,
                code: None,
                gpu: false,
            },
            load_seconds: 1.25,
            first_token: Some(FirstToken {
                prompt_tokens: 128,
                seconds: Summary::of(vec![0.5, 0.5, 0.5]).unwrap(),
            }),
            cold_start: Some(ColdStart {
                socket_seconds: 0.02,
                loaded_seconds: 1.3,
                first_token_seconds: 1.5,
                prompt_tokens: 8,
            }),
        }
    }

    #[test]
    fn invalid_runs_are_marked_and_energy_has_a_column() {
        let mut report = report();
        assert!(!table(&report).contains("J/token"));
        report.invalid = vec!["the GPU clock moved between 612 and 1300 MHz".into()];
        report.rows[1].joules_per_token = Some(0.4567);
        for text in [table(&report), markdown(&report)] {
            assert!(text.contains("INVALID: the GPU clock moved"), "{text}");
            assert!(text.contains("|       ? |") && text.contains("|   0.457 |"), "{text}");
        }
        let csv = csv(&report);
        assert!(
            csv.lines()
                .nth(2)
                .unwrap()
                .ends_with("0.4567,the GPU clock moved between 612 and 1300 MHz")
        );
    }

    #[test]
    fn the_table_has_llama_bench_columns() {
        let expected = "\
orind 0.1.0, 2026-01-02T03:04:05Z
model   synthetic:x:q8_0: qwen3 Q8_0, synthetic: seeded random weights
device  A processor, AVX2, 2 threads
machine 2 cores, 3 % of CPU time used by others

| model            |       size |   params | device | threads | test          |         tok/s | bytes/token |  GB/s | % of roof | GFLOP/s |
| ---------------- | ---------: | -------: | ------ | ------: | ------------- | ------------: | ----------: | ----: | --------: | ------: |
| synthetic:x:q8_0 | 512.00 MiB | 596.05 M | cpu    |       2 | pp512         | 100.00 ± 4.97 |     2.50 MB |  0.25 |       1 % |   200.0 |
| synthetic:x:q8_0 | 512.00 MiB | 596.05 M | cpu    |       2 | tg128 @ d1024 |     20.00 ± ? |   634.00 MB | 12.68 |      63 % |    40.0 |

memory bandwidth     20.00 GB/s, best of 5 measurements (linear read; 1.00 GiB per pass, 2 threads; slowest 18.00)
time to first token  500.0 ± 5.0 ms (prompt of 128 tokens, over the socket)
load time            1.25 s
cold start           1.50 s from process start to first token (socket 0.02 s, model loaded 1.30 s, prompt of 8 tokens)
peak memory          900.00 MiB resident: weights 600.00 MiB, KV cache 100.00 MiB, activations 50.00 MiB reserved, rest 150.00 MiB
";
        let text = table(&report());
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("prediction interval") && text.contains("random token ids (seed 1)"));
    }

    #[test]
    fn gpu_reports_have_no_threads_and_separate_memory() {
        let mut report = report();
        report.manifest.threads = 0;
        report.manifest.device_description = "A GPU, 132 SMs".into();
        report.memory.gpu = true;
        report.memory.peak = 200 << 20;
        report.memory.code = Some(2 << 20);
        report.roof.threads = 0;
        report.roof.stream = "read by the GPU: F16 matrix of 512 MiB".into();
        let text = table(&report);
        for expected in [
            "\ndevice  A GPU, 132 SMs\n",
            " cpu    |       - | pp512 ",
            "\nmemory bandwidth     20.00 GB/s, best of 5 measurements (read by the GPU: F16 matrix of 512 MiB; slowest 18.00)\n",
            "\npeak memory          200.00 MiB resident\n",
            "\nGPU memory           752.00 MiB: weights 600.00 MiB, KV cache 100.00 MiB, activations 50.00 MiB reserved, \
             machine code 2.00 MiB\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        // Measured with a smaller buffer than usual, then not measured.
        report.roof.limit = Some("no room".into());
        assert!(table(&report).contains("slowest 18.00); no room\n"));
        report.roof.measurements = 0;
        report.roof.bytes_per_second = 0.0;
        let text = table(&report);
        assert!(text.contains("\nmemory bandwidth     not measured; no room\n"), "{text}");
        assert!(text.contains("|         ? |"), "{text}");
    }

    #[test]
    fn csv_has_a_field_for_every_column() {
        let mut report = report();
        report.manifest.model.id = "a, \"b\"".into();
        let text = csv(&report);
        let header = text.lines().next().unwrap().split(',').count();
        let row = text.lines().nth(1).unwrap();
        assert!(row.contains("\"a, \"\"b\"\"\""), "{row}");
        assert_eq!(row.replace("\"a, \"\"b\"\"\"", "id").split(',').count(), header);
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn markdown_begins_with_the_table() {
        let text = markdown(&report());
        assert!(text.starts_with("| model") && text.contains("\n- cold start: 1.50 s"), "{text}");
    }

    #[test]
    fn json_round_trips() {
        let report = report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
