//! Stored responses: their items in later requests, and their routes.

use orind_testing::daemon::{Daemon, head};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const ROOM: &str = "slots = 1\ncontext = 1024\nprefill_chunk = 64";

/// A request that must be answered with a call.
fn call() -> Value {
    json!({"input": [{"role": "user", "content": "The weather?"}], "temperature": 0, "max_output_tokens": 60,
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object",
            "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}}],
        "tool_choice": "required"})
}

#[test]
fn items_of_a_stored_answer_are_found_by_id() {
    let daemon = Daemon::start(ROOM);
    let first = daemon.post(RESPONSES, &call()).json();
    let item = first["output"][0].clone();
    assert_eq!(item["type"], "function_call", "{first}");
    let again = |reference: Value| {
        let mut request = call();
        let input = request["input"].as_array_mut().unwrap();
        input.push(reference);
        input.push(
            json!({"type": "function_call_output", "call_id": item["call_id"], "output": "20"}),
        );
        request["tool_choice"] = "none".into();
        request["max_output_tokens"] = 4.into();
        daemon.post(RESPONSES, &request)
    };
    let whole = again(item.clone()).json();
    for reference in
        [json!({"type": "item_reference", "id": item["id"]}), json!({"id": item["id"]})]
    {
        let answer = again(reference).json();
        assert_eq!(answer["output"][0]["content"], whole["output"][0]["content"], "{answer}");
        assert_eq!(answer["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    }
    let missing = again(json!({"type": "item_reference", "id": "fc_nowhere"}));
    assert_eq!(missing.error(), (404, "item_not_found".into()));
    assert!(missing.message().contains("fc_nowhere"), "{}", missing.body);

    // Items of a streamed answer are those that the stream named.
    let mut streamed = call();
    streamed["stream"] = true.into();
    let done =
        daemon.stream(RESPONSES, &streamed).filter(|(name, _)| name == "response.output_item.done");
    let done: Value = serde_json::from_str(&done.last().unwrap().1).unwrap();
    let reference = json!({"type": "item_reference", "id": done["item"]["id"]});
    let mut request = call();
    request["input"] = json!([{"role": "user", "content": "x"}, reference,
        {"type": "function_call_output", "call_id": done["item"]["call_id"], "output": "20"}]);
    assert_eq!(daemon.post(RESPONSES, &request).status, 200);

    let mut unstored = call();
    unstored["store"] = false.into();
    let id = daemon.post(RESPONSES, &unstored).json()["output"][0]["id"].clone();
    assert_eq!(again(json!({"type": "item_reference", "id": id})).error().0, 404);
}

#[test]
fn stored_answers_are_read_listed_and_deleted() {
    let daemon = Daemon::start(ROOM);
    let request = json!({"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}]}], "max_output_tokens": 2});
    let answer = daemon.post(RESPONSES, &request).json();
    let path = format!("{RESPONSES}/{}", answer["id"].as_str().unwrap());
    assert_eq!(daemon.get(&path).json(), answer);
    let list = |query: &str| daemon.get(&format!("{path}/input_items{query}")).json();
    let all = list("?order=asc");
    let texts: Vec<&str> = all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!((texts, &all["has_more"]), (vec!["a", "b", "c"], &json!(false)));
    let one = list("?limit=1");
    assert_eq!((&one["data"][0], &one["has_more"]), (&all["data"][2], &json!(true)));
    let after = list(&format!("?limit=1&after={}", one["last_id"].as_str().unwrap()));
    assert_eq!(after["data"][0], all["data"][1]);
    assert_eq!(list("?limit=0")["error"]["param"], "limit");
    let tokens = daemon.post("/v1/responses/input_tokens", &request).json();
    assert_eq!(tokens["input_tokens"], answer["usage"]["input_tokens"]);

    let delete = || daemon.raw(&head("DELETE", &path, "connection: close\r\n"));
    assert_eq!(delete().json()["deleted"], true);
    assert_eq!(delete().error(), (404, "response_not_found".into()));
    for gone in [path.clone(), format!("{path}/input_items")] {
        assert_eq!(daemon.get(&gone).error(), (404, "response_not_found".into()));
    }
    let next = json!({"input": "x", "previous_response_id": answer["id"]});
    assert_eq!(daemon.post(RESPONSES, &next).error().0, 404);
}
