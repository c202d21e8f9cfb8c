//! Parser of the checked-in tables.

/// The rows of a comma-separated table of `N` columns, without its header.
pub(crate) fn rows<const N: usize>(table: &str) -> Vec<[&str; N]> {
    table
        .lines()
        .skip(1)
        .map(|line| {
            let columns: Vec<_> = line.split(',').collect();
            columns.try_into().unwrap_or_else(|_| panic!("not {N} columns: {line}"))
        })
        .collect()
}
