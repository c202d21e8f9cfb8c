//! Answer of `/orin/v1/run`, encoded piece by piece: a network's outputs may have millions of values.

use std::collections::BTreeMap;
use std::vec;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use onnx::Array;
use realtime::sessions::Answer;
use serde_json::{Value, json};

use super::embeddings::base64;
use super::unread::UnreadAnswers;

/// Values of one piece. Three values of four bytes are 16 characters of base64 without padding, so
/// that pieces can be joined.
const PIECE: usize = 3 << 12;

/// Encodes an answer as an [`api::RunAnswer`].
pub(super) fn response(
    model: &str,
    answer: Answer,
    encoded: bool,
    unread: &UnreadAnswers,
) -> Response {
    let mut head = json!({
        "model": model,
        "device": answer.device,
        "prepared": answer.prepared,
        "run_ms": answer.took.as_secs_f64() * 1e3,
    })
    .to_string();
    head.pop();
    head.push_str(",\"outputs\":{");
    let values: usize = answer.outputs.values().map(|array| array.values.len()).sum();
    let pieces = Pieces::new(head, answer.outputs, encoded);
    let body = if values <= PIECE {
        Body::from(pieces.flatten().collect::<Vec<u8>>())
    } else {
        unread.body(size_of::<f32>() * values, None, pieces)
    };
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], body).into_response()
}

/// The text of an answer.
struct Pieces {
    /// Text before the first output, until it has been returned.
    head: Option<String>,
    outputs: std::collections::btree_map::IntoIter<String, Array>,
    /// Values of the current output that have not been returned.
    values: Option<vec::IntoIter<f32>>,
    encoded: bool,
    /// True until the first value of the current output has been returned.
    first_value: bool,
    first_output: bool,
    done: bool,
}

impl Pieces {
    fn new(head: String, outputs: BTreeMap<String, Array>, encoded: bool) -> Self {
        Self {
            head: Some(head),
            outputs: outputs.into_iter(),
            values: None,
            encoded,
            first_value: true,
            first_output: true,
            done: false,
        }
    }

    /// Begins the next output, or ends the answer.
    fn begin(&mut self) -> String {
        let Some((name, Array { elem, shape, values })) = self.outputs.next() else {
            self.done = true;
            return "}}".into();
        };
        let comma = if std::mem::take(&mut self.first_output) { "" } else { "," };
        let quote = if self.encoded { '"' } else { '[' };
        (self.values, self.first_value) = (Some(values.into_iter()), true);
        let (name, elem) = (Value::from(name), Value::from(elem.name()));
        format!("{comma}{name}:{{\"type\":{elem},\"shape\":{},\"values\":{quote}", json!(shape))
    }

    /// Encodes the next values of the current output, or ends it.
    fn next_values(&mut self, mut values: vec::IntoIter<f32>) -> String {
        let piece: Vec<f32> = values.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            return if self.encoded { "\"}" } else { "]}" }.into();
        }
        self.values = Some(values);
        if self.encoded {
            return base64(&piece);
        }
        let mut text = String::new();
        for value in piece {
            if !std::mem::take(&mut self.first_value) {
                text.push(',');
            }
            // JSON has no infinities and no NaN: they are `null`.
            text.push_str(&Value::from(value).to_string());
        }
        text
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head.into());
        }
        let text = match self.values.take() {
            Some(values) => self.next_values(values),
            None if self.done => return None,
            None => self.begin(),
        };
        Some(text.into())
    }
}

#[cfg(test)]
mod tests {
    use api::RunAnswer;
    use onnx::Elem;

    use super::*;

    #[test]
    fn pieces_are_an_answer() {
        let ramp: Vec<f32> = (0..2 * PIECE + 5).map(|i| i as f32 / 3.0).collect();
        let array = |values: &[f32]| Array {
            elem: Elem::F32,
            shape: vec![values.len()],
            values: values.to_vec(),
        };
        let outputs = BTreeMap::from([
            ("a \"quoted\" name".to_owned(), array(&ramp)),
            ("empty".to_owned(), array(&[])),
            ("one".to_owned(), array(&[f32::NAN])),
        ]);
        for encoded in [false, true] {
            let head = r#"{"model":"m","device":"d","prepared":true,"run_ms":1.5,"outputs":{"#;
            let pieces = Pieces::new(head.into(), outputs.clone(), encoded);
            let text: Vec<u8> = pieces.flatten().collect();
            let answer: RunAnswer = serde_json::from_slice(&text).unwrap();
            assert_eq!(answer.outputs.len(), 3);
            for (name, output) in &answer.outputs {
                let values = &outputs[name].values;
                let expected =
                    if encoded { base64(values).into() } else { Value::from(values.clone()) };
                assert_eq!(output.values, expected, "{name}");
            }
        }
    }
}
