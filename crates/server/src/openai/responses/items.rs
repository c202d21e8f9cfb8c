//! Items of a request as messages of a conversation.

use std::sync::Arc;

use model::tokenizer::{Call, Message};
use serde_json::json;

use super::functions::Functions;
use crate::dialogue::tools;
use crate::error::Error;
use errors::invalid::excerpt;

/// Items of tools that OpenAI runs, and of its housekeeping: they are no part of the prompt.
const OF_OPENAI: [&str; 25] = [
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "file_search_call",
    "ghost_snapshot",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Returns true for an item that stands for a stored one.
pub(super) fn is_reference(item: &api::Item) -> bool {
    match item.kind.as_deref() {
        Some(kind) => kind == "item_reference",
        None => item.role.is_none() && item.content.is_none() && item.id.is_some(),
    }
}

/// Appends an item to a conversation. Consecutive reasoning, text and calls of the assistant form
/// one message.
pub(super) fn append(
    at: usize,
    item: &Arc<api::Item>,
    functions: &Functions,
    list: &mut Vec<Message>,
) -> Result<(), Error> {
    let item = api::Item::clone(item);
    let place = format!("input[{at}]");
    let missing = |field: &str| {
        let param = format!("{place}.{field}");
        Error::value(param.as_str(), format!("{param}: is missing"))
    };
    let assistant = |list: &mut Vec<Message>, add: &mut dyn FnMut(&mut Message)| {
        if list.last().is_none_or(|last| last.role != "assistant") {
            list.push(Message::new("assistant", ""));
        }
        if let Some(last) = list.last_mut() {
            add(last);
        }
    };
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = item.role.ok_or_else(|| missing("role"))?;
            let text =
                text(&format!("{place}.content"), item.content.ok_or_else(|| missing("content"))?)?;
            match &*role {
                "assistant" => assistant(list, &mut |last| last.content.push_str(&text)),
                "developer" | "system" => list.push(Message::new("system", text)),
                "user" => list.push(Message::new("user", text)),
                role => {
                    let param = format!("{place}.role");
                    let allowed = "allowed are user, assistant, system, developer";
                    let message = format!("{param}: is `{}`; {allowed}", excerpt(role));
                    return Err(Error::value(param, message));
                }
            }
        }
        "reasoning" => {
            let summary = || item.summary.iter().flatten().map(|part| &*part.text).collect();
            let content = match item.content {
                Some(content) => text(&format!("{place}.content"), content)?,
                None => summary(),
            };
            if !content.is_empty() {
                assistant(list, &mut |last| {
                    last.reasoning.get_or_insert_default().push_str(&content);
                });
            }
        }
        kind @ ("function_call" | "custom_tool_call") => {
            let name = item.name.ok_or_else(|| missing("name"))?;
            let call = Call {
                id: tools::call_id(&format!("{place}.call_id"), item.call_id)?,
                name: functions.known_as(item.namespace.as_deref(), name),
                arguments: match kind {
                    "custom_tool_call" => json!({"input": item.input.unwrap_or_default()}),
                    _ => tools::arguments(&item.arguments),
                },
            };
            assistant(list, &mut |last| last.calls.push(call.clone()));
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.output.ok_or_else(|| missing("output"))?;
            let output = text(&format!("{place}.output"), output)?;
            let call_id = Some(tools::call_id(&format!("{place}.call_id"), item.call_id)?);
            list.push(Message { call_id, ..Message::new("tool", output) });
        }
        kind if OF_OPENAI.contains(&kind) => {}
        kind => {
            let param = format!("{place}.type");
            let allowed = "allowed are message, reasoning, function_call, function_call_output, \
                           custom_tool_call, custom_tool_call_output, item_reference";
            let message = format!("{param}: is `{}`; {allowed}", excerpt(kind));
            return Err(Error::value(param, message));
        }
    }
    Ok(())
}

fn text(place: &str, content: api::ItemContent) -> Result<String, Error> {
    const READABLE: [&str; 6] =
        ["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"];
    match content {
        api::ItemContent::Text(text) => Ok(text),
        api::ItemContent::Parts(parts) => {
            let odd = parts.iter().enumerate().find(|(_, part)| !READABLE.contains(&&*part.kind));
            if let Some((i, part)) = odd {
                let param = format!("{place}[{i}].type");
                let message =
                    format!("{param}: is `{}`; only text can be read", excerpt(&part.kind));
                return Err(Error::value(param, message));
            }
            Ok(parts.into_iter().map(|part| part.text).collect())
        }
        api::ItemContent::Other(_) => {
            let message = format!("{place}: is an object; a text or a list of parts is needed");
            Err(Error::value(place, message))
        }
    }
}
