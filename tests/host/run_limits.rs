//! Limits of `/orin/v1/run`: which files a client may name, identity of files, cancellation, queue.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use orind_testing::daemon::{Answer, Daemon, post};
use orind_testing::external::{field, model};
use serde_json::{Value, json};
use tempfile::TempDir;

const RUN: &str = "/orin/v1/run";

/// Time after which a change of a file is certain to be visible in its times.
const SETTLED: Duration = Duration::from_millis(150);

/// Writes `y = x + w + v` with external data of this value, and waits.
fn sum(folder: &Path, value: f32) {
    let place = [("location", "data")];
    fs::write(folder.join("sum.onnx"), model(&place, &place)).unwrap();
    fs::write(folder.join("data"), bytes(value)).unwrap();
    std::thread::sleep(SETTLED);
}

fn bytes(value: f32) -> Vec<u8> {
    [value; 8].iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn ask(daemon: &Daemon, model: &Path) -> Answer {
    let x = json!({"shape": [2, 2], "values": [0.0, 0.0, 0.0, 0.0]});
    daemon.post(RUN, &json!({"model": model, "inputs": {"x": x}}))
}

fn first_value(answer: &Answer) -> f64 {
    answer.json()["outputs"]["y"]["values"][0].as_f64().unwrap()
}

#[test]
fn only_regular_files_below_the_root_are_opened() {
    let dir = TempDir::new().unwrap();
    let (open, secret) = (dir.path().join("open"), dir.path().join("secret"));
    fs::create_dir_all(&open).unwrap();
    fs::create_dir_all(&secret).unwrap();
    sum(&open, 1.0);
    sum(&secret, 1.0);
    mkfifo(&open.join("pipe.onnx"), Mode::S_IRWXU).unwrap();
    symlink(secret.join("sum.onnx"), open.join("link.onnx")).unwrap();
    symlink(secret.join("data"), open.join("elsewhere")).unwrap();
    let place = [("location", "elsewhere")];
    fs::write(open.join("leak.onnx"), model(&place, &place)).unwrap();
    let daemon = Daemon::launch(&format!("threads = 1\nnetwork_root = '{}'", open.display()));
    for (path, expected) in [
        (open.join("pipe.onnx"), (400, "invalid_model")),
        (open.join("leak.onnx"), (400, "invalid_model")),
        (open.join("link.onnx"), (403, "foreign_file")),
        (secret.join("sum.onnx"), (403, "foreign_file")),
        (open.join("../secret/sum.onnx"), (403, "foreign_file")),
        ("/dev/zero".into(), (403, "foreign_file")),
        (open.join("none.onnx"), (404, "model_not_found")),
    ] {
        let answer = ask(&daemon, &path);
        assert_eq!(answer.error(), (expected.0, expected.1.to_owned()), "{}", path.display());
        let network = json!({"network": {"file": path, "shapes": {"x": [2, 2]}}});
        assert_eq!(daemon.post("/orin/v1/tune", &network).error().0, expected.0);
    }
    // A pipe does not block those who come after it.
    assert_eq!(first_value(&ask(&daemon, &open.join("sum.onnx"))), 2.0);
}

/// Neither the length nor the time of a file tells that it is another one.
#[test]
fn a_replaced_file_is_read_again() {
    let dir = TempDir::new().unwrap();
    sum(dir.path(), 0.0);
    let daemon = Daemon::launch("threads = 1");
    let (network, data, new) =
        (dir.path().join("sum.onnx"), dir.path().join("data"), dir.path().join("new"));
    let time = fs::metadata(&data).unwrap().modified().unwrap();
    for i in 1..60 {
        let value = i as f32;
        if i % 2 == 0 {
            fs::write(&data, bytes(value)).unwrap();
        } else {
            let mut file = fs::File::create(&new).unwrap();
            file.write_all(&bytes(value)).unwrap();
            file.set_modified(time).unwrap();
            fs::rename(&new, &data).unwrap();
        }
        assert_eq!(first_value(&ask(&daemon, &network)), f64::from(2.0 * value), "change {i}");
    }
    std::thread::sleep(SETTLED);
    let prepared = [(); 2].map(|()| ask(&daemon, &network).json()["prepared"].clone());
    assert_eq!(prepared, [json!(false), json!(true)]);
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while number >= 128 {
        all.push((number % 128 + 128) as u8);
        number /= 128;
    }
    all.push(number as u8);
    all
}

/// A network of `count` products of matrices of `n` rows and columns; its input is `x [1, n]`.
fn chain(count: usize, n: usize) -> Vec<u8> {
    let long =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2][..], &varint(bytes.len()), bytes].concat();
    let node = |op: &[u8], inputs: [&str; 2], out: &str| {
        let parts = [
            field(1, inputs[0].as_bytes()),
            field(1, inputs[1].as_bytes()),
            field(2, out.as_bytes()),
            field(4, op),
        ];
        long(1, &parts.concat())
    };
    let info = |name: &str, shape: [usize; 2]| {
        let extents = shape.iter().flat_map(|n| field(1, &[&[8][..], &varint(*n)].concat()));
        let of = [&[8, 1][..], &field(2, &extents.collect::<Vec<u8>>())].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &of))].concat()
    };
    let extents: Vec<u8> = [n as i64; 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    let shape = [&[8, 2, 16, 7][..], &field(8, b"s"), &field(9, &extents)].concat();
    let mut graph = node(b"Expand", ["x", "s"], "v0");
    for i in 0..count {
        graph.extend(node(b"MatMul", [&format!("v{i}"), "v0"], &format!("v{}", i + 1)));
    }
    graph.extend(field(5, &shape));
    graph.extend(field(11, &info("x", [1, n])));
    graph.extend(field(12, &info(&format!("v{count}"), [n, n])));
    [long(7, &graph), field(8, &[16, 17])].concat()
}

/// A run ends between two kernels after its client has disconnected; so others get their turn.
#[test]
fn a_run_ends_with_its_client() {
    const N: usize = 1024;
    let dir = TempDir::new().unwrap();
    let slow = dir.path().join("slow.onnx");
    // A minute of work.
    fs::write(&slow, chain(1000, N)).unwrap();
    sum(dir.path(), 1.0);
    let daemon = Daemon::launch("threads = 1");
    assert_eq!(first_value(&ask(&daemon, &dir.path().join("sum.onnx"))), 2.0);
    let x = json!({"shape": [1, N], "values": vec![1.0; N]});
    let request = json!({"model": slow, "inputs": {"x": x}});
    let mut leaver = daemon.connect();
    leaver.write_all(post(RUN, &request.to_string()).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(leaver);
    let begin = Instant::now();
    let answer: Value = ask(&daemon, &dir.path().join("sum.onnx")).json();
    assert_eq!(answer["outputs"]["y"]["values"][0], 2.0, "{answer}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// A loop without end, whose body computes on the device (`on_host` false) or when it is unrolled.
fn endless(on_host: bool) -> Vec<u8> {
    let long =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2][..], &varint(bytes.len()), bytes].concat();
    let node = |op: &str, inputs: &[&str], output: &str, attribute: &[u8]| {
        let mut all: Vec<u8> = inputs.iter().flat_map(|name| long(1, name.as_bytes())).collect();
        all.extend([long(2, output.as_bytes()), long(4, op.as_bytes())].concat());
        all.extend_from_slice(attribute);
        long(1, &all)
    };
    let name = |number: u8, name: &str| long(number, &long(1, name.as_bytes()));
    let body = [
        node("Sqrt", &["s"], "s2", &[]),
        node("Identity", &["c"], "c2", &[]),
        ["i", "c", "s"].map(|input| name(11, input)).concat(),
        ["c2", "s2"].map(|output| name(12, output)).concat(),
    ];
    let body = long(5, &[long(1, b"body"), long(6, &body.concat())].concat());
    let number = [&[16, 7][..], &long(8, b"n"), &long(9, &(1_i64 << 40).to_le_bytes())].concat();
    let one = [&[8, 1, 16, 1][..], &long(8, b"k"), &long(9, &2_f32.to_le_bytes())].concat();
    let of = long(1, &[&[8, 1][..], &long(2, &long(1, &[8, 1]))].concat());
    let input = long(11, &[long(1, b"x"), long(2, &of)].concat());
    let state = if on_host { "k" } else { "x" };
    let graph = [
        node("Loop", &["n", "", state], "y", &body),
        long(5, &number),
        long(5, &one),
        input,
        name(12, "y"),
    ];
    [long(7, &graph.concat()), long(8, &[16, 17])].concat()
}

/// Preparing a network has limits of time and memory, whatever its few bytes unroll to.
#[test]
fn networks_that_unroll_for_ever_are_refused() {
    let dir = TempDir::new().unwrap();
    let daemon = Daemon::launch("threads = 1\nnetwork_seconds = 1");
    let before = resident(daemon.pid());
    for on_host in [false, true] {
        let network = dir.path().join("endless.onnx");
        fs::write(&network, endless(on_host)).unwrap();
        let x = json!({"shape": [1], "values": [1.0]});
        let answer = daemon.post(RUN, &json!({"model": network, "inputs": {"x": x}}));
        assert_eq!(answer.error(), (400, "network_refused".into()), "{}", answer.body);
        assert!(answer.message().contains("the limit"), "{}", answer.body);
        let network = json!({"network": {"file": network, "shapes": {"x": [1]}}});
        assert_eq!(daemon.post("/orin/v1/tune", &network).error().1, "network_refused");
    }
    let grown = resident(daemon.pid()).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB");
}

/// Resident memory of a process at most, in KiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
