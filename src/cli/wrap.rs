//! Layout of text for a terminal: tables are aligned, lines wrap between words with a hanging indent, and a table that does
//! not fit becomes a list.

use std::io::IsTerminal;

use errors::printable;

/// Narrower terminals are treated as this width.
const NARROWEST: usize = 20;

/// Width of standard output: `$COLUMNS`, or that of the terminal; `None` if unknown.
pub(super) fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || {
        let terminal = std::io::stdout().is_terminal();
        let size = terminal.then(crossterm::terminal::size).and_then(Result::ok);
        size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
    };
    told.or_else(asked).map(|columns| columns.max(NARROWEST))
}

/// Aligns columns, two spaces apart; columns in `right` are right-aligned.
pub(super) fn columns(rows: &[Vec<String>], right: &[usize]) -> String {
    let rows = &lines(rows);
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            line.push_str(&if right.contains(&column) {
                format!("{gap}{cell:>width$}")
            } else {
                format!("{gap}{cell:<width$}")
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Cells as one line each.
fn lines(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    rows.iter().map(|row| row.iter().map(|cell| printable::line(cell)).collect()).collect()
}

/// Number of visible characters in a line, without colour codes.
fn shown(line: &str) -> usize {
    let mut count = 0;
    let mut code = false;
    for character in line.chars() {
        match (code, character) {
            (false, '\x1b') => code = true,
            (false, _) => count += 1,
            (true, end) => code = !end.is_ascii_alphabetic(),
        }
    }
    count
}

/// Wraps text to this width. Markdown tables that do not fit become lists.
pub(super) fn page(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut page = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with("| ") {
            page.push_str(&broken(line, width));
            continue;
        }
        let mut block = vec![line];
        while let Some(line) = lines.next_if(|line| line.starts_with("| ")) {
            block.push(line);
        }
        if block.iter().all(|line| shown(line) <= width) {
            block.iter().for_each(|line| page.extend([line, "\n"]));
            continue;
        }
        let cells = |line: &&str| {
            let cells = line.trim_matches('|').split(" |").map(|cell| cell.trim().to_owned());
            cells.collect::<Vec<String>>()
        };
        // The row below the names is a rule.
        let rows: Vec<Vec<String>> =
            block.iter().take(1).chain(block.iter().skip(2)).map(cells).collect();
        page.push_str(&apart(&rows, width));
    }
    page
}

/// Splits a table in two parts: the columns that are the same in every row, and the others.
fn apart(rows: &[Vec<String>], width: usize) -> String {
    let (Some(names), Some(first)) = (rows.first(), rows.get(1)) else { return String::new() };
    let is_same =
        |column: usize| rows.len() > 2 && rows[1..].iter().all(|r| r[column] == first[column]);
    let (same, other): (Vec<usize>, Vec<usize>) = (0..names.len()).partition(|c| is_same(*c));
    let same: Vec<String> = same.iter().map(|c| format!("{} {}", names[*c], first[*c])).collect();
    let mut page = String::new();
    if !same.is_empty() {
        page = wrapped("", &same.join(", "), 2, width) + "\n";
    }
    let part = |row: &Vec<String>| other.iter().map(|c| row[*c].clone()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(part).collect();
    let table = columns(&rows, &(1..other.len()).collect::<Vec<_>>());
    let fits = table.lines().all(|line| shown(line) <= width);
    page.push_str(&if fits { table } else { lists(&rows, width) });
    page
}

/// Wraps a long line. Text after a name and a gap is indented below itself.
fn broken(line: &str, width: usize) -> String {
    if shown(line) <= width {
        return format!("{line}\n");
    }
    let start = line.len() - line.trim_start().len();
    let gap = line[start..].find("  ").map(|at| start + at);
    let behind = gap.map(|gap| gap + line[gap..].len() - line[gap..].trim_start().len());
    let behind = behind.filter(|at| shown(&line[..*at]) <= width / 2);
    let at = behind.unwrap_or(start);
    let indent = shown(&line[..at]);
    let indent = if behind.is_none() { (indent + 2).min(width / 2) } else { indent };
    wrapped(&line[..at], &line[at..], indent, width)
}

/// Wraps `begin` and the words of `text`, with `indent` columns before every line but the first.
fn wrapped(begin: &str, text: &str, indent: usize, width: usize) -> String {
    let mut page = begin.to_owned();
    let mut column = shown(begin);
    let mut fresh = true;
    for word in text.split_whitespace() {
        if column > indent && column + usize::from(!fresh) + shown(word) > width {
            page.truncate(page.trim_end().len());
            page.push('\n');
            page.extend(std::iter::repeat_n(' ', indent));
            (column, fresh) = (indent, true);
        }
        if !fresh {
            page.push(' ');
            column += 1;
        }
        fresh = false;
        // A word longer than a line, such as a path, continues on the next.
        for character in word.chars() {
            if column == width && shown(word) + indent > width {
                page.push('\n');
                page.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            }
            page.push(character);
            column += 1;
        }
        column -= word.chars().count() - shown(word);
    }
    page.push('\n');
    page
}

/// Formats each row as a list with the names of the first row.
pub(super) fn lists(rows: &[Vec<String>], width: usize) -> String {
    let rows = lines(rows);
    let Some((names, rows)) = rows.split_first() else { return String::new() };
    let mut page = String::new();
    for row in rows {
        let mut cells = names.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        if let Some((name, cell)) = cells.next() {
            let name = name.trim();
            let name = if name.is_empty() { String::new() } else { format!("{name} ") };
            page.push_str(&wrapped(&name, cell, 2, width));
        }
        for (name, cell) in cells {
            page.push_str(&wrapped(&format!("  {name}  "), cell, 4, width));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_with_a_hanging_indent() {
        let text = "state  ready\nmodel  one two three four five six\nwords without any gap between them\n";
        assert_eq!(
            page(text, Some(20)),
            "state  ready\nmodel  one two three\n       four five six\nwords without any\n  gap between them\n"
        );
        assert_eq!(page(text, None), text);
        assert_eq!(page(text, Some(80)), text);
    }

    #[test]
    fn wrapped_text_fits_the_terminal_and_is_complete() {
        let path = "/a/path/that/is/longer/than/any/line/of/this/terminal.toml";
        let text =
            format!("file  {path}\n\x1b[1;31mFAILURE \x1b[0m what  it is so because it is so\n");
        let page = page(&text, Some(20));
        assert!(page.lines().all(|line| shown(line) <= 20), "{page}");
        let bare = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(bare(&page), bare(&text));
    }

    #[test]
    fn tables_that_do_not_fit_become_lists() {
        let table = "| test | tok/s |\n| ---- | ----: |\n| pp8  |  12.5 |\n\nmore\n";
        assert_eq!(page(table, Some(20)), table);
        let wide = table.replace("tok/s", "tokens a second");
        assert_eq!(page(&wide, Some(20)), "test pp8\n  tokens a second\n    12.5\n\nmore\n");
        let both = wide.replace("pp8  |  12.5 |", "pp8  |  12.5 |\n| pp9  |  12.5 |");
        assert_eq!(page(&both, Some(20)), "tokens a second 12.5\n\ntest\npp8\npp9\n\nmore\n");
        let rows = [vec!["".into(), "op".into()], vec!["".into(), "add".into()]];
        assert_eq!(lists(&rows, 20), "op add\n");
    }
}
