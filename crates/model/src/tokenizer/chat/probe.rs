//! Expectations of a template about its input, found by rendering small conversations.

use std::time::Duration;

use serde_json::json;

use super::answer::Calls;
use super::generic::Gaps;
use super::message::{Call, Message, RenderOptions};
use super::{ChatTemplate, Error, Expectations, instructions};

/// Time for one conversation.
const TIME: Duration = Duration::from_millis(500);
const WORD: &str = "halibut";
const VALUE: &str = "herring";

impl ChatTemplate {
    /// Finds the expectations of the template.
    pub(super) fn probe(&self) -> Expectations {
        let mut found = Expectations::default();
        let user = [Message::new("user", WORD)];
        let tools = vec![json!({
            "type": "function",
            "function": {
                "name": "fish", "description": "", "parameters": {
                    "type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"],
                },
            },
        })];
        let renders = |messages: &[Message],
                       tools: &[_],
                       expected: Expectations|
         -> Result<String, Error> {
            let options = RenderOptions { tools: tools.to_vec(), ..RenderOptions::answer() };
            Ok(self.attempt(messages, &options, &super::NEVER, expected, TIME)?.text().to_owned())
        };
        if matches!(renders(&user, &[], found), Err(Error::TemplateTime { .. })) {
            return found;
        }
        let says = |expected| renders(&user, &[], expected).is_ok_and(|text| text.contains(WORD));
        if !says(found) {
            let parts = Expectations { content_parts: true, ..found };
            let list = Expectations { tool_list: true, ..found };
            found = [parts, list].into_iter().find(|other| says(*other)).unwrap_or(found);
        }

        let late = [
            ("system", "turbot"),
            ("user", WORD),
            ("assistant", WORD),
            ("system", "sprat"),
            ("user", WORD),
        ];
        let late = late.map(|(role, content)| Message::new(role, content));
        let drops = |messages: &[Message]| {
            renders(messages, &[], found)
                .is_ok_and(|text| !instructions::are_all_in(messages, &text))
        };
        let drops_instructions = drops(&late) || drops(&late[..2]);
        found.drops_instructions = drops_instructions;
        let family = self.format.calls;
        if family == Some(Calls::Generic) {
            found.gaps = Gaps::ALL;
            return found;
        }
        let call =
            Call { id: "abcdefghi".into(), name: "fish".into(), arguments: json!({"size": VALUE}) };
        let answer = Message { calls: vec![call], ..Message::new("assistant", "") };
        let id = Some("abcdefghi".to_owned());
        let result =
            Message { call_id: id, name: Some("fish".into()), ..Message::new("tool", "trout") };
        let called = [user[0].clone(), answer, result];
        let repr = format!("{{'size': '{VALUE}'}}");
        let as_object = renders(&called, &tools, found);
        if !as_object.is_ok_and(|text| text.contains(VALUE) && !text.contains(&repr)) {
            let texts = Expectations { argument_texts: true, ..found };
            let json = format!("{{\"size\": \"{VALUE}\"}}");
            found.argument_texts =
                renders(&called, &tools, texts).is_ok_and(|text| text.contains(&json));
        }
        let rendered = renders(&called, &tools, found);
        if let Ok(text) = &rendered {
            found.gaps.results = !text.contains("trout");
            found.gaps.calls = !text.contains(VALUE);
        }
        // Models of this family answer in its form, although some of their templates list no tools.
        found.gaps.tools = family == Some(Calls::DeepSeek)
            && renders(&user, &tools, found).is_ok_and(|text| !text.contains("fish"));
        found
    }
}
