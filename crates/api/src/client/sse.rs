//! Incremental parser of server-sent events.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Event name; `message` if the stream has none.
    pub(super) name: String,
    /// Data lines, joined by line feeds.
    pub(super) data: String,
}

/// Maximum size of an event in bytes. The daemon never sends a larger one.
const MAX_EVENT: usize = 64 << 20;

/// Buffers bytes until an event is complete.
#[derive(Debug, Default)]
pub(super) struct Parser {
    bytes: Vec<u8>,
    /// Bytes already searched for a line end.
    searched: usize,
    name: Option<String>,
    data: Option<String>,
}

impl Parser {
    /// Appends bytes of the stream. Returns false if an event exceeds [`MAX_EVENT`].
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.bytes.extend_from_slice(bytes);
        self.bytes.len() + self.data.as_ref().map_or(0, String::len) <= MAX_EVENT
    }

    /// Returns the next complete event. Skips comments and unused fields.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let from = self.bytes.get(self.searched..)?;
            let Some(end) = from.iter().position(|&b| b == b'\n') else {
                self.searched = self.bytes.len();
                return None;
            };
            let rest = self.bytes.split_off(self.searched + end + 1);
            let line = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let name = self.name.take();
                if let Some(data) = self.data.take() {
                    return Some(Event { name: name.unwrap_or_else(|| "message".into()), data });
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => self.name = Some(value.to_owned()),
                "data" => match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.to_owned()),
                },
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for chunk in chunks {
            assert!(parser.push(chunk));
            while let Some(event) = parser.next() {
                found.push((event.name, event.data));
            }
        }
        found
    }

    fn own(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, d)| ((*n).to_owned(), (*d).to_owned())).collect()
    }

    #[test]
    fn names_comments_and_line_ends_are_parsed() {
        let text =
            b": keep-alive\n\nevent: progress\ndata: {\"a\":1}\n\ndata:x\ndata: y\r\n\r\nid: 7\n\n";
        assert_eq!(events(&[text]), own(&[("progress", "{\"a\":1}"), ("message", "x\ny")]));
    }

    #[test]
    fn incomplete_events_are_not_returned() {
        assert_eq!(events(&[b"data: x\n"]), own(&[]));
    }

    #[test]
    fn oversized_events_are_rejected() {
        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1 << 20];
        assert!((0..100).any(|_| {
            let ok = parser.push(&chunk);
            parser.next();
            !ok
        }));
    }

    proptest! {
        /// Chunk boundaries do not change the events.
        #[test]
        fn chunk_boundaries_do_not_matter(cuts in proptest::collection::vec(1usize..9, 0..40)) {
            let text = "event: progress\ndata: zwölf\n\n:\n\ndata: 1\ndata: 2\n\nevent: result\ndata: {}\n\n"
                .as_bytes();
            let mut chunks = Vec::new();
            let mut rest = text;
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(head);
                rest = tail;
            }
            chunks.push(rest);
            prop_assert_eq!(
                events(&chunks),
                own(&[("progress", "zwölf"), ("message", "1\n2"), ("result", "{}")])
            );
        }
    }
}
