//! Tests of the page of a small comparison: complete, inert, and rendered in a browser.

use std::path::PathBuf;
use std::process::Command;

use super::super::workload::Workload;
use super::*;
use crate::{Agreement, Difference, Entrant, Facts, Kernels, Memory, Outcome, Step};

const HOSTILE: &str = "<script>alert('1')</script>&\"x\".gguf";

fn entrant(name: &str, factor: f64, agrees: bool) -> Entrant {
    let round = |i: u32| {
        let slow = factor * (1.0 + 0.01 * f64::from((i * 7) % 5));
        let gap = |n: u32| 0.02 * slow * (1.0 + 0.002 * f64::from((n * 37) % 101));
        let speeds = [("pp128", 800.0), ("pp512", 900.0), ("tg64", 50.0), ("tg64 @ d1024", 40.0)];
        Outcome {
            speeds: speeds.map(|(name, speed)| (name.into(), speed / slow)).into(),
            load: Some(0.8 * slow),
            first_token: [0.9, 0.2, 0.21].map(|s| s * slow).into(),
            between: (0..4).map(|a| (0..63).map(|n| gap(a * 63 + n)).collect()).collect(),
            memory: Memory {
                peak: Some(1400 << 20),
                weights: Some(1000 << 20),
                kv: Some(200 << 20),
                activations: Some(60 << 20),
                ..Memory::default()
            },
            ..Outcome::default()
        }
    };
    Entrant {
        name: name.into(),
        facts: Facts { version: format!("{name} 1"), ..Facts::default() },
        agreement: Some(Agreement { steps: 9, agrees, ..Agreement::default() }),
        rounds: (0..7).map(round).collect(),
        lost: None,
    }
}

fn small() -> Comparison {
    let tests = Test::all(&[128, 512], &[64], &[0, 1024], &[1]);
    let tests = tests.into_iter().filter(|t| t.kind == Kind::Decode || t.depth == 0).collect();
    let work = Workload {
        model: PathBuf::from("/models").join(HOSTILE.replace('/', "\u{2215}")),
        sha256: "0123456789abcdef".into(),
        file_type: "Q6_K".into(),
        vocabulary: 1000,
        tests,
        device: "cpu".into(),
        threads: 2,
        seed: 1,
        prompt: 128,
        stream: 64,
        judged: Vec::new(),
        steps: 1,
    };
    let mut found = Comparison::new(work, 7, true);
    found.entrants = vec![
        entrant("orind", 1.0, true),
        entrant("llama.cpp", 1.3, true),
        entrant("openai:<img src=x onerror=alert(1)>", 0.5, false),
    ];
    found
        .entrants
        .push(Entrant { lost: Some("pip <install> torch".into()), ..Entrant::new("pytorch") });
    found.differences.push(Difference {
        name: "weights".into(),
        peer: "llama.cpp".into(),
        found: "<b>F16</b>".into(),
        wanted: "Q6_K".into(),
        decides: true,
    });
    let record = |commit: &str, median, change| analysis::Point {
        date: "2026-11-23T00:00:00Z".into(),
        commit: Some(commit.into()),
        median,
        spread: Some(0.5),
        change,
        invalid: commit == "<throttled>",
    };
    found.history = vec![analysis::Series {
        model: "m".into(),
        sha256: Some("01234567".into()),
        device: "cpu".into(),
        threads: 2,
        test: "tg64".into(),
        points: vec![
            record("aaaa", 40.0, None),
            record("<throttled>", 9.0, None),
            record("bbbb", 50.0, Some(0.25)),
        ],
    }];
    let step = |step: &str, bytes, operations, seconds| Step {
        step: step.into(),
        op: "matmul".into(),
        count: 16,
        bytes,
        operations,
        seconds,
    };
    found.kernels = Some(Kernels {
        bandwidth: 20e9,
        steps: vec![
            step("qkv", 1_000_000, 2_000_000, 1e-4),
            step("ffn <up>", 8_000_000, 16_000_000, 5e-4),
            step("norm", 0, 5000, 1e-6),
        ],
    });
    found.judge();
    found
}

#[test]
fn the_page_contains_every_result() {
    let found = small();
    let page = page(&found).unwrap();
    for table in [
        format::entrants(&found),
        format::differences(&found),
        format::measured(&found),
        format::ratios(&found),
    ] {
        assert!(table.len() > 1);
        for cell in table.iter().flatten() {
            assert!(page.contains(&format!(">{}</t", escape(cell))), "{cell}");
        }
    }
    for line in format::head(&found).lines().chain(format::notes(&found).lines()) {
        assert!(page.contains(&escape(line)), "{line}");
    }
    for title in [
        "orind over llama.cpp, every pair",
        "Tokens per second, tg64 @ d1024",
        "Prefill against length, depth 0",
        "Decode against depth, 64 tokens, batch 1",
        "Between tokens",
        "Warm-up: the first answer",
        "Warm-up: first tokens",
        "Memory",
        "Roofline",
        "History, tg64",
    ] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "{title}");
    }
    // Half of 20 GB/s; four fifths of it; a step without a place under the roof is still in the
    // table.
    for cell in
        ["50", "80", "norm", "0.001", "+25.0 %", "INVALID", "&lt;throttled&gt;", "2 threads, 3"]
    {
        assert!(page.contains(&format!(">{cell}</t")), "{cell}");
    }
    // Each kernel that reads weights or cache is a labelled mark, and the roof is a line.
    for name in ["qkv", "ffn &lt;up&gt;", "bandwidth"] {
        assert!(page.contains(&format!("\n{name}\n</text>")), "{name}");
    }
    // There is no curve unless tests differ only in that variable.
    assert!(!page.contains("against batch"));
    // Every drawing has a name, a text and a table.
    let plots = page.matches("<svg ").count();
    assert!(plots >= 11, "{plots}");
    for part in
        ["<figure>", "<title id=\"plot", "<desc id=\"plot", "<details>", "</svg>", "role=\"img\""]
    {
        assert_eq!(page.matches(part).count(), plots, "{part}");
    }
    // Seven rounds of every ratio: circles without a fill.
    let ratios = format::ratios(&found).len() - 1;
    let bars = found.rows.iter().filter(|r| r.unit == Unit::TokensPerSecond).count() * 3;
    assert_eq!(page.matches("r=\"4\" opacity=\"1\" fill=\"none\"").count(), 7 * (ratios + bars));
}

#[test]
fn derived_numbers_are_computed_and_unreported_ones_marked() {
    let mut found = small();
    for round in &mut found.entrants[1].rounds {
        (round.load, round.memory.kv) = (None, None);
    }
    found.judge();
    let first = |name: &str, engine: usize| {
        let row =
            found.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"));
        row.cells[engine].as_ref().map(|cell| cell.summary.samples[0])
    };
    let close = |name: &str, engine, want: f64| {
        let got = first(name, engine).unwrap();
        assert!((got / want - 1.0).abs() < 1e-9, "{name}: {got}, not {want}");
    };
    close("cold start", 0, 0.8 + 0.9);
    close("first iteration, prompt", 2, 0.9 / 0.205);
    close("tg64, for the memory", 0, 50.0 / (1400.0 * 1.048576e-3));
    let sustained = first("sustained", 0).unwrap();
    assert!((45.0..50.0).contains(&sustained), "{sustained}");
    assert_eq!((first("load", 1), first("cold start", 1)), (None, None));
    let measured = format::measured(&found);
    let line = |name: &str| measured.iter().find(|line| line[0].starts_with(name)).unwrap();
    assert_eq!(line("load")[2..], ["not reported", &line("load")[3], "-"]);
    let memory = line("memory, host");
    assert_eq!(memory[1], "1000, 200, 60, not reported, 140");
    assert_eq!(memory[2], "1000, not reported, 60, not reported, 340");
    assert_eq!(line("pp128: mean, peak")[1].split(", ").nth(1), Some("800.0"));
    assert!(!measured.iter().any(|line| line[0].starts_with("memory, GPU")));
}

#[test]
fn comparisons_round_trip_through_json() {
    let mut found = small();
    for (i, round) in (1u32..).zip(found.entrants.iter_mut().flat_map(|e| &mut e.rounds)) {
        // Quotients with a last digit that inexact parsers lose.
        for gap in round.between.iter_mut().flatten() {
            *gap /= f64::from(i) * 3.7;
        }
    }
    found.judge();
    let json = serde_json::to_string_pretty(&found).unwrap();
    assert_eq!(Comparison::from_json(json.as_bytes()).unwrap(), found);
    // Verdicts are recomputed from the rounds, whatever the file says.
    let better = json.replace("\"worse\"", "\"better\"").replace("\"disagrees\"", "\"better\"");
    assert_ne!(better, json);
    assert_eq!(Comparison::from_json(better.as_bytes()).unwrap(), found);
    assert!(Comparison::from_json(b"{}").is_err());
}

#[test]
fn the_page_contains_no_active_content() {
    let page = page(&small()).unwrap();
    let lower = page.to_lowercase();
    for part in [
        "<script",
        "<img",
        "<b>",
        "<install",
        "javascript:",
        "<link",
        "src=\"",
        "href",
        "@import",
        "url(",
    ] {
        assert!(!lower.contains(part), "{part}");
    }
    assert!(page.contains("default-src 'none'"));
    // Every tag that is opened is closed, so no name ends one early.
    for tag in [
        "html", "head", "title", "style", "body", "main", "table", "thead", "tbody", "tr",
        "figure", "svg", "details", "div",
    ] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert_eq!(escape("a\u{0}\u{1b}[1m"), "a\u{fffd}\u{fffd}[1m");
}

#[test]
fn pages_are_reproducible_and_need_little_data() {
    let found = small();
    assert_eq!(page(&found).unwrap(), page(&found.clone()).unwrap());
    let mut bare = small();
    for entrant in &mut bare.entrants {
        entrant.rounds.clear();
    }
    (bare.interrupted, bare.invalid) = (true, vec!["a <clock> moved".into()]);
    bare.history.clear();
    bare.kernels = None;
    bare.judge();
    let page = page(&bare).unwrap();
    assert!(page.contains("Interrupted") && page.contains("INVALID: a &lt;clock&gt; moved"));
    assert!(!page.contains("<figure>"));
    bare.entrants.clear();
    super::page(&bare).unwrap();
}

#[test]
fn memory_is_reported_by_kind_and_the_rest_is_unnamed() {
    let memory = Memory {
        peak: Some(90),
        weights: Some(50),
        kv: Some(10),
        code: Some(5),
        ..Memory::default()
    };
    let host = memory.places();
    assert_eq!(
        (host.len(), host[0].1[3], host[0].1[4]),
        (1, ("code", Some(5)), ("rest", Some(25)))
    );
    assert_eq!(host[0].1[2], ("activations", None), "unreported is not zero");
    let both = Memory { gpu: Some(70), gpu_code: Some(3), ..memory }.places();
    assert_eq!(
        (both[0].0, both[0].1[3], both[0].1[4]),
        ("GPU", ("code", Some(3)), ("rest", Some(7)))
    );
    assert_eq!(
        (both[1].0, both[1].1[0], both[1].1[4]),
        ("host", ("weights", None), ("rest", Some(85)))
    );
    // Weights that were never touched are not resident.
    assert_eq!(Memory { peak: Some(20), ..memory }.places()[0].1[4], ("rest", Some(0)));
}

/// Returns the output of a headless browser for a file.
fn shown(browser: &std::path::Path, folder: &std::path::Path, more: &[&str], file: &str) -> String {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    let output = command.args(more).arg(folder.join(file)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn browsers_render_the_page_on_phone_and_desktop_in_light_and_dark() {
    let Some(browser) = orind_testing::browser::chromium() else {
        let mut errors = io::stderr();
        io::Write::write_all(&mut errors, b"skipped: no chromium on this machine\n").unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = page(&small()).unwrap();
    // The page in a frame as wide as a phone or a desktop, measured from outside because the page
    // runs no script.
    let frame = |width: u32| {
        format!(
            "<!doctype html><iframe id=f style=\"width:{width}px;height:844px;border:0\" srcdoc=\"{}\"></iframe>
             <script>onload=()=>{{const d=f.contentDocument,e=d.documentElement,s=[...d.querySelectorAll('svg')];\
             document.body.dataset.seen=[e.scrollWidth,s.filter(x=>x.getBoundingClientRect().height>100).length,\
             f.contentWindow.getComputedStyle(d.body).backgroundColor].join(';')}}</script>",
            page.replace('&', "&amp;").replace('"', "&quot;")
        )
    };
    let mut grounds = Vec::new();
    for (width, scheme) in [(360, "0"), (390, "1"), (1280, "0"), (1280, "1")] {
        std::fs::write(folder.path().join("frame.html"), frame(width)).unwrap();
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        let dom = shown(&browser, folder.path(), &["--dump-dom", &scheme], "frame.html");
        let (_, seen) = dom.split_once("data-seen=\"").expect(&dom);
        let seen: Vec<&str> = seen.split('"').next().unwrap().split(';').collect();
        assert!(seen[0].parse::<u32>().unwrap() <= width, "it scrolls sideways: {seen:?}");
        assert_eq!(seen[1].parse::<usize>().unwrap(), page.matches("<svg ").count());
        grounds.push(seen[2].to_owned());
    }
    assert_eq!(grounds, [&*grounds[0], &*grounds[1], &*grounds[0], &*grounds[1]]);
    assert_ne!(grounds[0], grounds[1], "dark is not light");
    std::fs::write(folder.path().join("page.html"), &page).unwrap();
    std::fs::write(folder.path().join("blank.html"), "<!doctype html>").unwrap();
    let picture = |file: &str| {
        let png = folder.path().join("seen.png");
        let shot = format!("--screenshot={}", png.display());
        shown(&browser, folder.path(), &[&shot, "--window-size=1280,3000"], file);
        std::fs::metadata(png).unwrap().len()
    };
    // A picture of an empty page compresses well.
    assert!(picture("page.html") > 10 * picture("blank.html"));
}
