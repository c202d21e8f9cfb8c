//! Text for a terminal that is narrower than it: lines are broken between words below the place where their text
//! begins, and the rows of a table that does not fit stand as lists.

use std::io::IsTerminal;

use super::text;

/// Narrower terminals are treated as this one.
const NARROWEST: usize = 20;

/// Columns of what standard output goes to: as `$COLUMNS` says, or the terminal; none where nobody knows.
pub(super) fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || {
        let terminal = std::io::stdout().is_terminal();
        let size = terminal.then(crossterm::terminal::size).and_then(Result::ok);
        size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
    };
    told.or_else(asked).map(|columns| columns.max(NARROWEST))
}

/// Characters that a terminal shows of a line: without the codes of colours.
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

/// Text as a page of that width. Tables of Markdown become lists where they do not fit.
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
        // Below the names is a rule.
        let rows: Vec<Vec<String>> =
            block.iter().take(1).chain(block.iter().skip(2)).map(cells).collect();
        page.push_str(&apart(&rows, width));
    }
    page
}

/// A table in two parts: what is the same in every row, and what is not.
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
    let table = text::columns(&rows, &(1..other.len()).collect::<Vec<_>>());
    let fits = table.lines().all(|line| shown(line) <= width);
    page.push_str(&if fits { table } else { lists(&rows, width) });
    page
}

/// A line, broken where it is too long. What comes behind a name and a gap stays behind it.
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

/// `begin` and the words of `text`, with `indent` columns before every line but the first.
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
        // A word that no line holds, such as a path, goes on in the next.
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

/// The rows below the first, which has the names, each as a list of what it holds.
pub(super) fn lists(rows: &[Vec<String>], width: usize) -> String {
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
    fn a_long_line_goes_on_below_its_text() {
        let text = "state  ready\nmodel  one two three four five six\nwords without any gap between them\n";
        assert_eq!(
            page(text, Some(20)),
            "state  ready\nmodel  one two three\n       four five six\nwords without any\n  gap between them\n"
        );
        assert_eq!(page(text, None), text);
        assert_eq!(page(text, Some(80)), text);
    }

    #[test]
    fn nothing_is_wider_than_the_terminal_and_nothing_is_lost() {
        let path = "/a/path/that/is/longer/than/any/line/of/this/terminal.toml";
        let text =
            format!("file  {path}\n\x1b[1;31mFAILURE \x1b[0m what  it is so because it is so\n");
        let page = page(&text, Some(20));
        assert!(page.lines().all(|line| shown(line) <= 20), "{page}");
        let bare = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(bare(&page), bare(&text));
    }

    #[test]
    fn a_table_that_does_not_fit_is_a_list() {
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
