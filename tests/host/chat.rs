//! `orinctl chat` on a terminal, and with input from a pipe.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use orind_testing::daemon::{Daemon, orinctl};
use orind_testing::terminal::Terminal;
use serde_json::{Value, json};

const ROOM: &str = "slots = 1\ncontext = 512";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const ENTER: &str = "\r";
const ALT_ENTER: &str = "\x1b\r";

fn chat(daemon: &Daemon, home: &Path, args: &[&str]) -> Command {
    let mut command = orinctl(home);
    command.arg("chat").args(args).arg("--socket").arg(daemon.socket());
    command.env("TERM", "xterm").current_dir(home);
    command
}

/// Presses keys at the prompt. Between two lines the program may not be reading keys.
fn say(terminal: &mut Terminal, keys: &str) {
    terminal.wait_for("> ");
    terminal.press(keys);
}

#[test]
fn a_terminal_shows_a_conversation() {
    let daemon = Daemon::start(ROOM);
    let home = tempfile::tempdir().unwrap();
    let args = ["--temp", "0", "-n", "4", "--system", "Be brief."];
    let mut terminal = Terminal::start(chat(&daemon, home.path(), &args));
    terminal.wait_for("/help lists commands");
    say(&mut terminal, &format!("Hello\\{ENTER}there{ALT_ENTER}you{ENTER}"));
    terminal.wait_for(" tok/s");
    say(&mut terminal, &format!("/tok\t{ENTER}"));
    let counted = terminal.wait_for(" of 512 tokens");
    let counted = counted.trim_end_matches(" of 512 tokens").rsplit(char::is_whitespace).next();
    let counted = counted.and_then(|word| word.parse::<usize>().ok());
    assert!(counted.is_some_and(|tokens| tokens > 10), "{counted:?}");
    say(&mut terminal, &format!("/save said.json{ENTER}"));
    terminal.wait_for("1 turns written");
    let said: Value =
        serde_json::from_slice(&std::fs::read(home.path().join("said.json")).unwrap()).unwrap();
    assert_eq!(said["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(said["messages"][1], json!({"role": "user", "content": "Hello\nthere\nyou"}));
    assert_eq!(said["messages"][2]["role"], "assistant");

    say(&mut terminal, &format!("/undo{ENTER}"));
    terminal.wait_for("removed: Hello");
    say(&mut terminal, &format!("/tokens{ENTER}"));
    terminal.wait_for("no question yet");
    say(&mut terminal, &format!("/load said.json{ENTER}"));
    terminal.wait_for("1 turns read");
    say(&mut terminal, &format!("/system{ENTER}"));
    terminal.wait_for("Be brief.");
    say(&mut terminal, &format!("/model synthetic:tiny-qwen3:q8_0{ENTER}"));
    terminal.wait_for("synthetic:tiny-qwen3:q8_0 is loaded");
    say(&mut terminal, &format!("/nope{ENTER}"));
    terminal.wait_for("unknown command /nope");
    // A cancelled line, and a line of the history.
    say(&mut terminal, &format!("half{CTRL_C}"));
    terminal.wait_for("half");
    say(&mut terminal, "\x1b[A");
    terminal.wait_for("/nope");
    terminal.press(CTRL_C);
    say(&mut terminal, CTRL_D);
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn ctrl_c_ends_the_answer_and_not_the_program() {
    let daemon = Daemon::start("slots = 1\ncontext = 4096");
    let home = tempfile::tempdir().unwrap();
    // The end-of-text token is never likely enough.
    let mut terminal =
        Terminal::start(chat(&daemon, home.path(), &["--temp", "2", "--top-k", "0"]));
    terminal.wait_for("/help lists commands");
    say(&mut terminal, &format!("Tell me all.{ENTER}"));
    // Wait until some of the answer is on the screen.
    terminal.wait_for("\x1b[?2004l\r\n");
    terminal.wait_for_more();
    terminal.press(CTRL_C);
    terminal.wait_for("interrupted");
    daemon.until("the slot is free", |status| status["requests"]["active"] == 0);
    say(&mut terminal, &format!("/save kept.json{ENTER}"));
    terminal.wait_for("1 turns written");
    say(&mut terminal, CTRL_D);
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn lines_from_a_pipe_are_answered_one_after_the_other() {
    let daemon = Daemon::start(ROOM);
    let home = tempfile::tempdir().unwrap();
    let mut command = chat(&daemon, home.path(), &["--temp", "0", "-n", "3"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n/nope\n/quit\nthree\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told.matches(" tokens in, ").count(), 2, "{told}");
    assert!(told.contains("unknown command /nope"), "{told}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains('\x1b'));
}
