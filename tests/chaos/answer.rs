//! Content of an answer: equal for whole and streamed answers, without fields that differ between runs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// End of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The answer is complete.
    Whole,
    /// HTTP status and code of an error.
    Error(u16, String),
    /// The connection closed before the end.
    Cut,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) end: End,
    /// Name of the model; empty if the answer names none.
    pub(crate) model: String,
    /// By index: text, finish reason, log-probabilities.
    pub(crate) choices: BTreeMap<u64, Choice>,
    pub(crate) usage: Value,
    /// Number of received bytes.
    pub(crate) bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) text: String,
    finish_reason: Value,
    /// Lists of all parts, concatenated.
    logprobs: Map<String, Value>,
}

impl Answer {
    /// Parses all bytes of a connection with one request. Panics if they are not HTTP, or not an answer of this API.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut answer = Self {
            end: End::Cut,
            model: String::new(),
            choices: BTreeMap::new(),
            usage: Value::Null,
            bytes: bytes.len(),
        };
        let text = std::str::from_utf8(bytes)
            .unwrap_or_else(|e| std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return answer };
        let head = head.to_lowercase();
        let status: u16 = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| {
            panic!("no answer: {text}");
        });
        if head.contains("text/event-stream") {
            let (body, _) = unchunk(body);
            answer.follow(&body);
            return answer;
        }
        let (body, is_whole) = match head.contains("transfer-encoding: chunked") {
            true => unchunk(body),
            false => (body.to_owned(), length(&head).is_none_or(|length| length == body.len())),
        };
        if !is_whole {
            return answer;
        }
        if status == 431 {
            // The HTTP library's own answers have no body.
            answer.end = End::Error(status, String::new());
            return answer;
        }
        let body: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {text}"));
        if status == 200 {
            answer.end = End::Whole;
            answer.add(&body);
        } else {
            answer.end = End::Error(status, code(&body));
        }
        answer
    }

    /// Adds the received events.
    fn follow(&mut self, body: &str) {
        let mut name = "";
        for line in body.split_inclusive('\n') {
            if !line.ends_with('\n') {
                break;
            }
            if let Some(value) = line.strip_prefix("event: ") {
                name = value.trim_end();
            }
            let Some(data) = line.strip_prefix("data: ").map(str::trim_end) else { continue };
            assert_eq!(self.end, End::Cut, "more after the end: {body}");
            if data == "[DONE]" {
                self.end = End::Whole;
                continue;
            }
            let event: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{data}"));
            match name {
                "error" => self.end = End::Error(200, code(&event)),
                "result" => self.end = End::Whole,
                _ => self.add(&event),
            }
            name = "";
        }
    }

    /// Adds a whole answer, or the part in one event.
    fn add(&mut self, part: &Value) {
        if let Some(model) = part["model"].as_str() {
            self.model = model.to_owned();
        }
        if part["usage"].is_object() {
            self.usage = part["usage"].clone();
            // Cached and drafted tokens depend on other clients and do not change the answer.
            for details in ["prompt_tokens_details", "completion_tokens_details"] {
                self.usage.as_object_mut().unwrap().remove(details);
            }
        }
        for choice in part["choices"].as_array().into_iter().flatten() {
            let to = self.choices.entry(choice["index"].as_u64().unwrap()).or_default();
            let places =
                [&choice["text"], &choice["delta"]["content"], &choice["message"]["content"]];
            to.text.extend(places.into_iter().filter_map(Value::as_str));
            if !choice["finish_reason"].is_null() {
                to.finish_reason = choice["finish_reason"].clone();
            }
            for (name, list) in choice["logprobs"].as_object().into_iter().flatten() {
                let Some(list) = list.as_array() else { continue };
                let all = to.logprobs.entry(name).or_insert_with(|| json!([]));
                all.as_array_mut().unwrap().extend(list.iter().cloned());
            }
        }
    }

    /// True if this answer equals `whole`, or a prefix of it if it was cut. Numbers may differ by `tolerance`.
    pub(crate) fn is_like(&self, whole: &Self, tolerance: f64) -> bool {
        match self.end {
            End::Whole => {
                self.end == whole.end
                    && self.usage == whole.usage
                    && self.choices.len() == whole.choices.len()
                    && self.choices.iter().zip(&whole.choices).all(|((i, a), (j, b))| {
                        let lists = |c: &Choice| Value::Object(c.logprobs.clone());
                        i == j
                            && (&a.text, &a.finish_reason) == (&b.text, &b.finish_reason)
                            && close(&lists(a), &lists(b), tolerance)
                    })
            }
            // Text before the error must be a prefix of the correct text.
            End::Error(..) | End::Cut => self.choices.iter().all(|(index, choice)| {
                whole.choices.get(index).is_some_and(|w| w.text.starts_with(&choice.text))
            }),
        }
    }
}

fn close(a: &Value, b: &Value, tolerance: f64) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) if tolerance > 0.0 => {
            x.as_f64().zip(y.as_f64()).is_some_and(|(x, y)| (x - y).abs() <= tolerance)
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| close(x, y, tolerance))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| close(x, y, tolerance)))
        }
        _ => a == b,
    }
}

fn code(body: &Value) -> String {
    let code = body["error"]["code"].as_str().unwrap_or_else(|| panic!("no code: {body}"));
    assert!(body["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "no message: {body}");
    code.to_owned()
}

fn length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
}

/// Concatenated chunks, and whether the last one arrived.
fn unchunk(mut body: &str) -> (String, bool) {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no chunk: {size}"));
        if size == 0 {
            return (whole, true);
        }
        let Some(chunk) = rest.get(..size) else {
            whole.push_str(rest);
            break;
        };
        whole.push_str(chunk);
        body = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    (whole, false)
}
