//! Shared by engine benchmarks: settings from the environment, and processor time.

use std::{env, fs};

/// An environment variable, or its default.
pub fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.into())
}

/// A numeric environment variable, or its default.
pub fn number(name: &str, default: usize) -> usize {
    variable(name, &default.to_string()).parse().unwrap()
}

/// Seconds of processor time of all threads so far.
pub fn processor() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
    let ns = |text: String| text.split(' ').next().unwrap().parse::<f64>().unwrap();
    // A thread may have ended in the meantime.
    tasks.filter_map(|task| of(task.unwrap())).map(ns).sum::<f64>() / 1e9
}
