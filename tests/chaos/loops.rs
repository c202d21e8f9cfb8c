//! Clients of a control loop: polite ones, and ones that send noise, leave, say nothing, or write to
//! everything that they share with the loop.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use orind_testing::control_loop::{Client, example, lane};
use orind_testing::random::Random;

use crate::subject::{Fate, PATIENCE, Subject};

/// Number of kinds of clients.
pub(crate) const KINDS: usize = 4;

const NAME: &str = "policy";

/// Configuration of the loop; the last lines of a file.
pub(crate) fn configuration() -> String {
    lane(NAME, "deadline_us = 60000000")
}

/// Runs a client of a kind. Returns its complaint, if the daemon lives.
pub(crate) fn client(subject: &Subject, kind: usize, seed: u64) {
    let random = &mut Random(seed);
    let acted = catch_unwind(AssertUnwindSafe(|| match kind {
        0 => noise(subject, random),
        1 => silence(subject),
        2 => flood(subject, random),
        _ => drop(step(subject)),
    }));
    if let Err(complaint) = acted
        && subject.fate() == Fate::Serves
    {
        std::panic::resume_unwind(complaint);
    }
}

/// Checks that the loop serves a polite client, once others have left.
pub(crate) fn serves(subject: &Subject) {
    let begin = Instant::now();
    while !step(subject) {
        assert!(begin.elapsed() < PATIENCE, "the control loop is lost");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a step and checks its result. False if the loop is taken, or is not ready.
fn step(subject: &Subject) -> bool {
    let Ok(mut client) = Client::open_at(&subject.loops(), NAME) else { return false };
    let (observation, action) = example();
    let (outcome, have) = client.attempt(&observation);
    assert_eq!(outcome, 0, "a step failed");
    let near = |(have, want): (&f32, &f64)| (f64::from(*have) - want).abs() < 1e-5;
    assert!(have.iter().zip(&action).all(near), "{have:?}, not {action:?}");
    true
}

fn connect(subject: &Subject) -> Option<UnixStream> {
    let stream = UnixStream::connect(subject.loops()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// Reads until the daemon closes the connection, which it must do.
fn until_closed(stream: &mut UnixStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("a greeting has no end"),
        _ => {}
    }
}

/// Sends bytes that name no loop.
fn noise(subject: &Subject, random: &mut Random) {
    let Some(mut stream) = connect(subject) else { return };
    let length = 1 + random.below(3000);
    let _ = stream.write_all(&random.bytes(length));
    if random.below(2) == 0 {
        let _ = stream.write_all(b"\n");
        until_closed(&mut stream);
    }
}

/// Sends half a greeting.
fn silence(subject: &Subject) {
    let Some(mut stream) = connect(subject) else { return };
    let _ = stream.write_all(&NAME.as_bytes()[..3]);
    until_closed(&mut stream);
}

/// Writes to the shared memory and the counters, and leaves.
fn flood(subject: &Subject, random: &mut Random) {
    let Ok(mut client) = Client::open_at(&subject.loops(), NAME) else { return };
    for shared in [client.start.as_fd(), client.answer.as_fd()] {
        let _ = fcntl(shared, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
    }
    for _ in 0..random.below(60) {
        let at = random.below(client.memory.len());
        let length = 1 + random.below(64).min(client.memory.len() - at - 1);
        let noise = random.bytes(length);
        client.memory[at..at + length].copy_from_slice(&noise);
        let starts = random.pick(&[1, 7, u64::MAX - 1]);
        let _ = nix::unistd::write(&client.start, &starts.to_ne_bytes());
        let _ = nix::unistd::write(&client.answer, &starts.to_ne_bytes());
    }
}
