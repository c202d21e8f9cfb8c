//! List of strings in one allocation: vocabularies have hundreds of thousands.

use std::fmt;
use std::ops::Index;

/// A list of strings, concatenated in a single buffer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    #[must_use]
    pub const fn new() -> Self {
        Self { text: String::new(), ends: Vec::new() }
    }

    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|index| &self[index])
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    #[must_use]
    pub const fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Frees unused capacity.
    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

impl Index<usize> for Strings {
    type Output = str;

    fn index(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

impl<S: AsRef<str>> Extend<S> for Strings {
    fn extend<I: IntoIterator<Item = S>>(&mut self, strings: I) {
        strings.into_iter().for_each(|string| self.push(string.as_ref()));
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut list = Self::new();
        list.extend(strings);
        list
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
