//! `orinctl top`: polls the daemon twice a second and reads the keyboard. `history` computes speeds
//! from statuses, `view` draws them. If the daemon stops, it waits for a new one. Without a
//! terminal it prints one view as text; with `--json`, one line per sample.

mod history;
mod sample;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tokio::time::MissedTickBehavior;

use super::args::{self, Connection};
use super::error::Error;
use super::{text, wrap};
use api::client::Client;
use history::History;
use sample::Sample;

/// Interval between requests to the daemon.
const PERIOD: Duration = Duration::from_millis(500);
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between keyboard checks.
const KEYS: Duration = Duration::from_millis(50);
/// Columns and rows of a view printed as text.
const PAGE: (u16, u16) = (80, 24);

pub(super) async fn run(connection: &Connection, args: &args::Top) -> Result<(), Error> {
    let client = connection.client()?;
    let mut history = History::new(client.daemon.to_string());
    if args.json {
        return lines(&client, history, args.samples).await;
    }
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        // A speed needs two statuses.
        history.answered(Instant::now(), client.status().await?);
        tokio::time::sleep(PERIOD).await;
        history.answered(Instant::now(), client.status().await?);
        return text::print(&page(&history)?);
    }
    let mut screen = Screen::open()?;
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= PERIOD) {
            asked = Some(Instant::now());
            ask(&client, &mut history).await;
            screen.0.draw(|frame| view::draw(frame, &history))?;
        }
        // Poll without blocking, so that Ctrl-C and the daemon's answers are handled.
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if control => return Ok(()),
                        _ => {}
                    }
                }
                Event::Resize(..) => {
                    screen.0.draw(|frame| view::draw(frame, &history))?;
                }
                _ => {}
            }
        }
        tokio::time::sleep(KEYS).await;
    }
}

async fn ask(client: &Client, history: &mut History) {
    match tokio::time::timeout(PATIENCE, client.status()).await {
        Ok(Ok(status)) => history.answered(Instant::now(), status),
        Ok(Err(error)) => history.silent(error.to_string()),
        Err(_) => history.silent("the daemon does not answer".into()),
    }
}

/// Prints a line per sample, a given number or without end.
async fn lines(client: &Client, mut history: History, samples: Option<u64>) -> Result<(), Error> {
    history.answered(Instant::now(), client.status().await?);
    let mut ticks = tokio::time::interval_at((Instant::now() + PERIOD).into(), PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = samples.unwrap_or(u64::MAX);
    while left > 0 {
        ticks.tick().await;
        ask(client, &mut history).await;
        let line = serde_json::to_string(&Sample::of(&history)).map_err(std::io::Error::from)?;
        text::json_text(&(line + "\n"))?;
        left -= 1;
    }
    Ok(())
}

fn page(history: &History) -> Result<String, Error> {
    let width = wrap::width().and_then(|width| u16::try_from(width).ok());
    let columns = width.map_or(PAGE.0, |width| PAGE.0.min(width));
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, PAGE.1));
    let Ok(_) = terminal.draw(|frame| view::draw(frame, history));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(columns)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// Terminal in raw mode on the alternate screen; restored on drop and after a panic.
struct Screen(ratatui::DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Error> {
        Ok(Self(ratatui::try_init()?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests;
