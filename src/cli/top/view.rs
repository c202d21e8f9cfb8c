//! Drawing of a history, made for 80 columns and 24 rows; what does not fit is cut off at the
//! bottom.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use super::history::{History, Series};
use crate::status::{lane, others, resident};
use crate::{machine, text};
use api::Model;
use errors::printable;

/// Width of the names on the left.
const NAME: u16 = 10;
/// Width of the numbers next to a series.
const NUMBER: u16 = 26;

pub(super) fn draw(frame: &mut Frame<'_>, history: &History) {
    let area = frame.area();
    let rows: Vec<Rect> = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .split(area)
    .to_vec();
    let &[head, tokens, prompt, bytes, watts, celsius, rest, foot] = rows.as_slice() else {
        return;
    };
    frame.render_widget(Paragraph::new(title(history)), head);
    let speed = |series: &Series| format!("{:.1} tok/s", series.now());
    series(frame, tokens, "decode", &speed(&history.tokens), &history.tokens);
    series(frame, prompt, "prefill", &speed(&history.prompt), &history.prompt);
    let roof = history
        .roof_fraction()
        .map_or_else(String::new, |(part, _)| format!(", {:.0} % of roof", part * 100.0));
    let read = format!("{:.1} GB/s{roof}", history.bytes.now() / 1e9);
    series(frame, bytes, "weights", &read, &history.bytes);
    let status = history.last.as_ref().map(|(_, status)| status);
    let now = status.map(|status| &status.machine.now);
    let power = match now.and_then(telemetry::Sample::watts) {
        Some(watts) => format!("{watts:.1} W"),
        None => "no meter".into(),
    };
    series(frame, watts, "power", &power, &history.watts);
    let heat = match now.and_then(|now| now.hottest()) {
        Some(zone) => format!("{} {:.0} °C", zone.name, zone.celsius),
        None => "no sensor".into(),
    };
    series(frame, celsius, "heat", &heat, &history.celsius);
    frame.render_widget(Paragraph::new(details(history)), rest);
    let help = Style::default().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled("q quits", help)), foot);
}

fn name(name: &str) -> Span<'static> {
    let style = Style::default().add_modifier(Modifier::BOLD);
    Span::styled(format!("{name:<width$}", width = usize::from(NAME)), style)
}

/// Text from the daemon, with control characters escaped.
fn raw(text: &str) -> Span<'static> {
    Span::raw(printable::line(text))
}

/// Draws a name, a number, and the series behind it.
fn series(frame: &mut Frame<'_>, area: Rect, label: &str, number: &str, series: &Series) {
    let parts = Layout::horizontal([
        Constraint::Length(NAME),
        Constraint::Length(NUMBER),
        Constraint::Min(0),
    ]);
    let [left, middle, right] = parts.areas(area);
    frame.render_widget(Paragraph::new(name(label)), left);
    frame.render_widget(Paragraph::new(raw(number)), middle);
    let bars = series.bars(usize::from(right.width));
    frame.render_widget(Sparkline::default().data(bars).max(1000), right);
}

/// Daemon, model, device.
fn title(history: &History) -> Vec<Line<'static>> {
    let alarm = Style::default().fg(Color::Red);
    let state = history.state();
    let state = match history.silence {
        Some(_) => Span::styled(printable::line(&state), alarm),
        None => raw(&state),
    };
    let Some((_, status)) = &history.last else {
        return vec![Line::from(vec![name("orind"), raw(&history.daemon)]), state.into()];
    };
    let up = std::time::Duration::from_secs_f64(status.uptime_s.clamp(0.0, 1e12));
    let daemon = format!("{}, up {}: ", status.version, text::duration(up));
    let mut lines = vec![Line::from(vec![name("orind"), raw(&daemon), state])];
    if let Some(model) = &status.model {
        let Model { id, file_type, bytes, device, .. } = model;
        let model = format!("{id} {file_type}, {} on {}", text::bytes(*bytes), device.name);
        lines.push(Line::from(vec![name("model"), raw(&model)]));
    }
    lines
}

/// Numbers without a series.
fn details(history: &History) -> Vec<Line<'static>> {
    let Some((_, status)) = &history.last else { return Vec::new() };
    let requests = &status.requests;
    let slots = status.model.as_ref().map_or(0, |model| model.slots);
    let mut lines = Vec::new();
    let mut line = |label: &str, value: String| {
        lines.push(Line::from(vec![name(label), raw(&value)]));
    };
    let slots = format!("{} of {slots} slots", requests.active);
    line("requests", format!("{slots}, {}", others(requests)));
    if let Some(fill) = history.kv_fill() {
        let tokens = requests.kv_tokens;
        line("KV cache", format!("{:.0} % full, {tokens} tokens", fill * 100.0));
    }
    if let Some((_, source)) = history.roof_fraction() {
        let roof = status.roof.as_ref().map_or(0.0, |roof| roof.bytes_per_second);
        line("roof", format!("{:.1} GB/s by the {source}", roof / 1e9));
    }
    if let Some(power) = machine::power(&status.machine) {
        line("power", power);
    }
    let now = &status.machine.now;
    for (label, clock) in [("GPU", &now.gpu_clock), ("memory", &now.memory_clock)] {
        if let Some(clock) = clock {
            line(label, machine::clock_text(clock));
        }
    }
    let fastest = now.clusters.iter().map(|c| &c.clock).max_by_key(|clock| clock.now_hz);
    if let Some(clock) = fastest {
        line("CPU", machine::clock_text(clock));
    }
    for one in &status.residents {
        line("beside", resident(one));
    }
    for lane in &status.lanes {
        line("lane", self::lane(lane));
    }
    if let Some(alarms) = machine::alarms(&status.machine) {
        let style = Style::default().fg(Color::Red);
        lines.push(Line::from(vec![name("alarms"), Span::styled(printable::line(&alarms), style)]));
    }
    lines
}
