//! A control loop on the simulated Orin, in a TSG of its own beside the model's.

use orind_testing::daemon::{self, Daemon};
use orind_testing::lane::{Client, example, lane, ready};
use orind_testing::program::preload_library;
use serde_json::json;

#[test]
fn a_lane_beside_a_model_on_the_same_gpu() {
    let state = tempfile::tempdir().unwrap();
    let mut command = daemon::orind();
    command.env("LD_PRELOAD", preload_library());
    let settings = format!(
        "model = '{}'\nthreads = 1\ncontext = 128\nbackend = 'nv'\nstate_dir = '{}'\n{}{}",
        daemon::MODEL,
        state.path().display(),
        lane("policy", "backend = 'nv'\ndeadline_us = 60000000"),
        lane("same", "backend = 'cpu'"),
    );
    let daemon = Daemon::launch_with(command, &settings);
    ready(&daemon);
    let mut client = Client::open(&daemon, "policy").unwrap();
    let (observation, action) = example();
    let want = client.step(&observation);
    for (got, want) in want.iter().zip(&action) {
        assert!((f64::from(*got) - want).abs() < 1e-5, "{got}, not {want}");
    }
    let same = Client::open(&daemon, "same").unwrap().step(&observation);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&want), bits(&same), "the CPU and the GPU give the same bits");
    // Through first light, the load and an answer.
    while daemon.get("/orin/v1/status").json()["state"]["name"] != "ready" {
        assert_eq!(client.step(&observation), want);
    }
    let body = json!({ "prompt": "once upon a time", "max_tokens": 12 });
    std::thread::scope(|scope| {
        let served = scope.spawn(|| daemon.post("/v1/completions", &body).status);
        while !served.is_finished() {
            assert_eq!(client.step(&observation), want);
        }
        assert_eq!(served.join().unwrap(), 200);
    });
    let lane = daemon.get("/orin/v1/status").json()["lanes"][0].clone();
    assert_eq!((&lane["missed"], &lane["failed"]), (&json!(0), &json!(0)), "{lane}");
    assert_eq!(lane["behind_s"], json!(0.05));
}
