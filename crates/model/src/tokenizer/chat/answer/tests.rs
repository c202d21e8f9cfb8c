//! For each family: rendering of tools and calls, parsing of the answer, and rendering of the parsed calls as
//! history. The templates are ours, in the style of each family's.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::tokenizer::{Call, ChatTemplate, Message, RenderOptions, Vocabulary};

const HERMES: &str = "{% if tools %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}</tools>\n{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role ~ '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}
{{- m.content }}
{%- for call in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}
{{- '<tool_call>\n{\"name\": \"' ~ call.function.name ~ '\", \"arguments\": ' ~ (call.function.arguments | tojson) ~ '}\n</tool_call>' }}
{%- endfor %}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const XML: &str = "{% if tools %}{{ tools | tojson }}\n{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role ~ '\n' ~ m.content }}
{%- for call in m.tool_calls %}{{ '\n<tool_call>\n<function=' ~ call.function.name ~ '>\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' ~ key ~ '>\n' ~ (value if value is string else value | tojson) ~ '\n</parameter>\n' }}
{%- endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}";

const MISTRAL_LIST: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]
{%- elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}{{ (call.function | tojson)[:-1] ~ ', \"id\": \"' ~ call.id ~ '\"}' }}
{%- if not loop.last %}, {% endif %}{% endfor %}]</s>
{%- else %}{{ m.content }}</s>{% endif %}{% endfor %}";

const MISTRAL_NAMES: &str = "{%- for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.tool_calls %}{{ m.content }}{% for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name ~ '[CALL_ID]' ~ call.id ~ '[ARGS]' ~ (call.function.arguments | tojson) }}{% endfor %}</s>
{%- else %}{{ m.content }}</s>{% endif %}{% endfor %}{# tools #}";

const LLAMA: &str = "{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.tool_calls %}
{{- '{\"name\": \"' ~ m.tool_calls[0].function.name ~ '\", \"parameters\": ' ~ (m.tool_calls[0].function.arguments | tojson) ~ '}' }}
{%- else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}{# tools #}";

const HARMONY: &str = "{%- for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' ~ m.tool_calls[0].function.name }} <|constrain|>json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}{# tools #}";

const FUNCTION_GEMMA: &str = "{%- macro value(v) %}{% if v is string %}{{ '<escape>' ~ v ~ '<escape>' }}{% elif v is mapping %}{{ '{' }}{% for k, w in v | items %}{{ k ~ ':' ~ value(w) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for w in v %}{{ value(w) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}
{%- for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}
{%- for call in m.tool_calls %}<start_function_call>call:{{ call.function.name ~ value(call.function.arguments) }}<end_function_call>{% endfor %}<end_of_turn>\n{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}{# tools #}";

fn gemma() -> String {
    FUNCTION_GEMMA
        .replace("<start_function_call>", "<|tool_call>")
        .replace("<end_function_call>", "<tool_call|>")
        .replace("<escape>", "<|\\\"|>")
}

fn template(source: &str) -> ChatTemplate {
    let vocabulary = Vocabulary {
        tokens: ["a"].into_iter().collect(),
        chat_template: Some(source.to_owned()),
        ..Vocabulary::default()
    };
    ChatTemplate::new(&vocabulary).unwrap()
}

fn tools() -> Vec<Json> {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
        "note": {},
    }});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    vec![tool("weather"), tool("time")]
}

fn prompt(template: &ChatTemplate, messages: &[Message], answer: bool) -> String {
    let options =
        RenderOptions { tools: tools(), add_generation_prompt: answer, ..Default::default() };
    let never = AtomicBool::new(false);
    template.render(messages, &options, &never).unwrap().text().to_owned()
}

fn parsed(format: Format, prompt: &str, parts: &[&str]) -> Vec<Piece> {
    let mut parser = AnswerParser::new(format, &tools(), prompt);
    let mut all = Vec::new();
    for part in parts {
        let mut out = Vec::new();
        parser.push(part, &mut out);
        out.into_iter().for_each(|piece| emit(&mut all, piece));
    }
    let mut out = Vec::new();
    parser.finish(&mut out);
    out.into_iter().for_each(|piece| emit(&mut all, piece));
    all
}

/// The message that a client sends back as history.
fn message(pieces: &[Piece]) -> Message {
    let mut message = Message::new("assistant", "");
    let mut arguments = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => message.reasoning = Some(text.clone()),
            Piece::Text(text) => message.content.push_str(text),
            Piece::Call { name } => {
                let id = format!("call{:05}", arguments.len());
                message.calls.push(Call { id, name: name.clone(), arguments: Json::Null });
                arguments.push(String::new());
            }
            Piece::Arguments(text) => arguments.last_mut().unwrap().push_str(text),
        }
    }
    for (call, arguments) in message.calls.iter_mut().zip(arguments) {
        call.arguments = serde_json::from_str(&arguments).unwrap();
    }
    message
}

fn call(name: &str, arguments: &Json) -> [Piece; 2] {
    [Piece::Call { name: name.into() }, Piece::Arguments(arguments.to_string())]
}

/// Normalises white space in arguments.
fn normal(pieces: Vec<Piece>) -> Vec<Piece> {
    let normal = |piece| match piece {
        Piece::Arguments(text) => {
            Piece::Arguments(serde_json::from_str::<Json>(&text).unwrap().to_string())
        }
        piece => piece,
    };
    pieces.into_iter().map(normal).collect()
}

/// A family, a model's answer, and its pieces.
struct Golden {
    name: &'static str,
    template: String,
    answer: &'static str,
    pieces: Vec<Piece>,
    /// The template's end of an assistant message.
    end: &'static str,
}

fn goldens() -> Vec<Golden> {
    let one = json!({"city": "Bern \"<x>\" {é}", "days": 3});
    let two = json!({"where": {"at": [1, 2.5, true, null], "in": "[ ]"}});
    let text = |text: &str| Piece::Text(text.into());
    let thoughts = |text: &str| Piece::Reasoning(text.into());
    let golden = |name, template: &str, answer, pieces: Vec<Piece>, end| Golden {
        name,
        template: template.to_owned(),
        answer,
        pieces,
        end,
    };
    let both = || [call("weather", &one), call("time", &two)].concat();
    vec![
        golden(
            "Hermes",
            HERMES,
            "<think>\nTwo calls.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
             {\"city\": \"Bern \\\"<x>\\\" {é}\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \
             \"arguments\": {\"where\": {\"at\": [1, 2.5, true, null], \"in\": \"[ ]\"}}}\n</tool_call>",
            [vec![thoughts("Two calls."), text("I look.")], both()].concat(),
            "<|im_end|>\n",
        ),
        golden(
            "Qwen 3.5",
            XML,
            "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nBern \"<x>\" {é}\n</parameter>\n\
             <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n\
             <parameter=where>\n{\"at\": [1, 2.5, true, null], \"in\": \"[ ]\"}\n</parameter>\n</function>\n</tool_call>",
            [vec![text("I look.")], both()].concat(),
            "<|im_end|>\n",
        ),
        golden(
            "Mistral, a list",
            MISTRAL_LIST,
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern \\\"<x>\\\" {é}\", \"days\": 3}, \
             \"id\": \"call00000\"}, {\"name\": \"time\", \"arguments\": {\"where\": {\"at\": [1, 2.5, true, null], \
             \"in\": \"[ ]\"}}, \"id\": \"call00001\"}]",
            both(),
            "</s>",
        ),
        golden(
            "Mistral, names",
            MISTRAL_NAMES,
            "I look.[TOOL_CALLS]weather[CALL_ID]call00000[ARGS]{\"city\": \"Bern \\\"<x>\\\" {é}\", \"days\": 3}\
             [TOOL_CALLS]time[CALL_ID]call00001[ARGS]{\"where\": {\"at\": [1, 2.5, true, null], \"in\": \"[ ]\"}}",
            [vec![text("I look.")], both()].concat(),
            "</s>",
        ),
        golden(
            "Llama 3",
            LLAMA,
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern \\\"<x>\\\" {é}\", \"days\": 3}}",
            call("weather", &one).to_vec(),
            "<|eot_id|>",
        ),
        golden(
            "gpt-oss",
            HARMONY,
            "<|channel|>analysis<|message|>One call.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern \\\"<x>\\\" {é}\", \"days\": 3}<|call|>",
            [vec![thoughts("One call.")], call("weather", &one).to_vec()].concat(),
            "",
        ),
        golden(
            "functiongemma",
            FUNCTION_GEMMA,
            "<start_function_call>call:weather{city:<escape>Bern \"<x>\" {é}<escape>,days:3}<end_function_call>\
             <start_function_call>call:time{where:{at:[1,2.5,true,null],in:<escape>[ ]<escape>}}<end_function_call>",
            both(),
            "<end_of_turn>\n",
        ),
        golden(
            "Gemma 4",
            &gemma(),
            "<|tool_call>call:weather{city:<|\"|>Bern \"<x>\" {é}<|\"|>,days:3}<tool_call|>\
             <|tool_call>call:time{where:{at:[1,2.5,true,null],in:<|\"|>[ ]<|\"|>}}<tool_call|>",
            both(),
            "<end_of_turn>\n",
        ),
    ]
}

#[test]
fn calls_survive_parsing_and_rendering_as_history() {
    for Golden { name, template: source, answer, pieces, end } in goldens() {
        let template = template(&source);
        let user = [Message::new("user", "The weather?")];
        let asked = prompt(&template, &user, true);
        // The prompt begins the reasoning.
        let thinks = asked.ends_with("<think>\n");
        let (given, expected) = match thinks {
            true => (
                format!("Hm.\n</think>\n\n{answer}"),
                [vec![Piece::Reasoning("Hm.".into())], pieces].concat(),
            ),
            false => (answer.to_owned(), pieces),
        };
        let read = parsed(template.format(), &asked, &[&given]);
        assert_eq!(normal(read.clone()), expected, "{name}");
        let mut history = message(&read);
        if thinks {
            history.reasoning = None;
        }
        let again = prompt(&template, &[user.to_vec(), vec![history]].concat(), false);
        let asked = asked.strip_suffix("<think>\n").unwrap_or(&asked);
        assert_eq!(again, format!("{asked}{answer}{end}"), "{name}");
    }
}

#[test]
fn text_that_only_begins_like_a_call_is_text() {
    let text = |text: &str| vec![Piece::Text(text.into())];
    for (calls, answer) in [
        (Calls::Hermes, "a <tool_call> is written {so}"),
        (Calls::Hermes, "<tool_call>{\"nome\": 1}</tool_call>"),
        (Calls::Hermes, "a <tool_cal"),
        (Calls::Llama, "{\"name\": \"nobody\", \"parameters\": {}}"),
        (Calls::Llama, "{\"weather\": \"fine\"}"),
        (Calls::Xml, "<function weather>"),
        (Calls::Xml, "<tool_call>weather</tool_call>"),
        (Calls::Mistral, "[TOOL_CALLS] and more"),
        (Calls::Mistral, "[TOOL_CALLS][1]"),
        (Calls::FunctionGemma, "<start_function_call>call:weather{city}<end_function_call>"),
        (Calls::Gemma, "<|tool_call>call:weather{city:<tool_call|>"),
        (Calls::Harmony, "no channel at all"),
    ] {
        let format = Format { calls: Some(calls), thinking: None };
        assert_eq!(parsed(format, "", &[answer]), text(answer), "{calls:?}");
    }
    let spaced = " \n a \n ";
    assert_eq!(parsed(Format::PLAIN, "", &[spaced]), text(spaced));
    assert_eq!(
        parsed(Format { calls: Some(Calls::Hermes), thinking: None }, "", &[spaced]),
        text(spaced)
    );
}

#[test]
fn unusual_calls_are_recognised() {
    let none = json!({});
    let one = json!({"days": 1});
    let days = |days: Json| call("weather", &json!({"city": "1", "days": days, "note": [1]}));
    for (calls, answer, expected) in [
        (
            Calls::Hermes,
            "<tool_call>{\"arguments\": {\"days\": 1}, \"name\": \"weather\"}",
            call("weather", &one),
        ),
        (Calls::Hermes, "<tool_call>{\"name\": \"weather\"}</tool_call>", call("weather", &none)),
        (
            Calls::Hermes,
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"days\\\": 1}\"}\n",
            call("weather", &one),
        ),
        (
            Calls::Hermes,
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}",
            call("other", &none),
        ),
        (
            Calls::Llama,
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {}}",
            call("weather", &none),
        ),
        (Calls::Llama, "{\"name\": \"weather\"] well", call("weather", &none)),
        (Calls::Mistral, "[TOOL_CALLS][{\"name\": \"weather\"} well", call("weather", &none)),
        (
            Calls::Llama,
            " {\"type\": \"function\", \"name\": \"time\", \"parameters\": {}}",
            call("time", &none),
        ),
        (Calls::Xml, "<function=weather></function>", call("weather", &none)),
        (Calls::Xml, "<function=weather>\n<parameter=days>1</parameter>\n", call("weather", &one)),
        (
            Calls::Xml,
            "<function=weather><parameter=city>\n1\n</parameter><parameter=days>True</parameter>\
             <parameter=note>[1]</parameter></function>",
            days(json!(true)),
        ),
        (Calls::Mistral, "[TOOL_CALLS]weather{\"days\": 1}", call("weather", &one)),
        (
            Calls::Harmony,
            " to=functions.time<|channel|>commentary json<|message|>",
            call("time", &none),
        ),
    ] {
        let format = Format { calls: Some(calls), thinking: None };
        let mut read = parsed(format, "", &[answer]);
        read.retain(|piece| !matches!(piece, Piece::Text(text) if text.ends_with("well")));
        if read.len() == 1 {
            read.push(Piece::Arguments("{}".into()));
        }
        assert_eq!(normal(read), expected, "{calls:?} {answer}");
    }
}

#[test]
fn without_tools_calls_are_text() {
    let format = Format { calls: Some(Calls::Hermes), thinking: Some(["<think>", "</think>"]) };
    let mut parser = AnswerParser::new(format, &[], "");
    let mut out = Vec::new();
    parser.push("<think>a</think> <tool_call>{\"name\": \"x\"}", &mut out);
    parser.finish(&mut out);
    let text = Piece::Text("<tool_call>{\"name\": \"x\"}".into());
    assert_eq!(out, [Piece::Reasoning("a".into()), text]);
}

#[test]
fn a_call_that_a_limit_cuts_has_partial_arguments() {
    let format = Format { calls: Some(Calls::Hermes), thinking: None };
    let cut = |text: &str| {
        let mut parser = AnswerParser::new(format, &tools(), "");
        let mut out = Vec::new();
        parser.push(text, &mut out);
        parser.interrupt(&mut out);
        out
    };
    let out = cut("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be");
    let call = Piece::Call { name: "weather".into() };
    assert_eq!(out, [call.clone(), Piece::Arguments("{\"city\": \"Be".into())]);
    assert_eq!(cut("<tool_call>{\"name\": \"weather\","), [call]);
}

/// A model that ends its answer without the brackets of its call.
#[test]
fn arguments_are_json_whatever_the_model_writes() {
    let cases = [
        (Calls::Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be"),
        (
            Calls::Hermes,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"</tool_call>",
        ),
        (
            Calls::Hermes,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}</tool_call>",
        ),
        (Calls::Hermes, "<tool_call>{'name': 'weather', 'arguments': {'city': 'Be'}}</tool_call>"),
        (
            Calls::Generic,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\",}}</tool_call>",
        ),
        (Calls::Llama, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Be\"}"),
        (
            Calls::Generic,
            "<tool_call>{\"name\": \"weather\", \"parameters\": {\"city\": \"Be\"}, \"arguments\": {\"a\": 1}}</tool_call>",
        ),
        (
            Calls::Hermes,
            "<tool_call>{\"arguments\": {\"city\": \"Be\"}, \"arguments\": 5, \"name\": \"weather\"}</tool_call>",
        ),
        (
            Calls::Hermes,
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{'city': 'Be'\"}</tool_call>",
        ),
        (Calls::Mistral, "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\""),
        (Calls::Mistral, "[TOOL_CALLS]weather[ARGS]{\"city\": \"Be\""),
        (
            Calls::Harmony,
            "<|channel|>commentary to=functions.weather<|message|>{\"city\": \"Be\"<|call|>",
        ),
        (Calls::Xml, "<function=weather>\n<parameter=city>\nBe\n</function>\n</tool_call>"),
        (
            Calls::Granite,
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}}]",
        ),
        (
            Calls::Phi,
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}}]<|/tool_call|>",
        ),
        (
            Calls::Nemotron,
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}}]</TOOLCALL>",
        ),
        (
            Calls::Nemotron,
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}</TOOLCALL>",
        ),
        (Calls::Functools, "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}}]"),
        (Calls::Lfm, "<|tool_call_start|>[weather(city=\"Be\")]<|tool_call_end|>"),
        (Calls::Lfm, "<|tool_call_start|>[weather(city='Be')]"),
        (
            Calls::Lfm,
            "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Be\"}}]<|tool_call_end|>",
        ),
        (
            Calls::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Be\"}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            Calls::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Be\"}<｜tool▁call▁end｜>",
        ),
    ];
    for (calls, answer) in cases {
        let format = Format { calls: Some(calls), thinking: None };
        let expected = call("weather", &json!({"city": "Be"}));
        assert_eq!(normal(parsed(format, "", &[answer])), expected, "{calls:?} {answer}");
        let single: Vec<String> = answer.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(|part| &**part).collect();
        assert_eq!(normal(parsed(format, "", &single)), expected, "{calls:?} {answer}, by letters");
    }
}

#[test]
fn a_value_ends_only_where_its_format_ends_it() {
    for value in [
        "use </parameter> here",
        "a\n  </parameter> b\nc",
        "</function> and </tool_call> too",
        "x</parameter>\n<parameter=no> y",
        "<parameter=city>\nz",
        "",
        "a\n\n",
    ] {
        let answer = format!(
            "<tool_call>\n<function=weather>\n<parameter=note>\n{value}\n</parameter>\n<parameter=days>\n1\n\
             </parameter>\n</function>\n</tool_call>"
        );
        let format = Format { calls: Some(Calls::Xml), thinking: None };
        let expected = call("weather", &json!({"note": value, "days": 1}));
        assert_eq!(normal(parsed(format, "", &[&answer])), expected, "{value:?}");
    }
}

/// Corpus of the fuzz target `answer`: the first byte selects the format, the second the divisions of the stream.
#[test]
fn the_fuzz_corpus_parses_equally_for_any_division_of_the_stream() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/answer");
    let mut families = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        let thinking = (data[0] & 128 != 0).then_some(["<think>", "</think>"]);
        let family = Calls::ALL[usize::from(data[0] & 127) % Calls::ALL.len()];
        let format = Format { calls: Some(family), thinking };
        let text = String::from_utf8_lossy(&data[2..]);
        let whole = parsed(format, "", &[&text]);
        let found = whole.iter().filter(|piece| matches!(piece, Piece::Call { .. })).count();
        if found > 0 {
            families.insert(family.name());
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(|part| &**part).collect();
        assert_eq!(parsed(format, "", &single), whole, "{text}");
    }
    let all = Calls::ALL.iter().map(|family| family.name()).collect();
    assert_eq!(families, all, "each format has a call in the corpus");
}

/// Every format but Harmony, and the marks of lists.
const FORMATS: [Calls; 13] = [
    Calls::Hermes,
    Calls::Xml,
    Calls::Mistral,
    Calls::Llama,
    Calls::FunctionGemma,
    Calls::Gemma,
    Calls::Granite,
    Calls::Phi,
    Calls::Nemotron,
    Calls::Functools,
    Calls::Lfm,
    Calls::DeepSeek,
    Calls::Generic,
];

fn fragments() -> impl Strategy<Value = String> {
    const PARTS: [&str; 60] = [
        "<|tool_call|>",
        "<|/tool_call|>",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "functools",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "weather(city='a')",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "\n```json\n",
        "'",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "weather",
        "time",
        ">",
        "<parameter=",
        "city",
        "</parameter>",
        "</function>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[",
        "]",
        "{",
        "}",
        "\"name\"",
        ":",
        "\"weather\"",
        ",",
        "\"arguments\"",
        "\"parameters\"",
        "{}",
        "\"a\\\"b\"",
        "12",
        "<|python_tag|>",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.time",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<start_function_call>",
        "call:",
        "<escape>",
        "<end_function_call>",
        " ",
        "\n",
        "é",
        ";",
        "{\"name\": \"weather\", \"arguments\": {\"days\": 1}}",
    ];
    let part = prop_oneof![
        8 => prop::sample::select(&PARTS[..]).prop_map(str::to_owned),
        1 => "[a-z<>{}\"\\\\]{1,4}",
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn arguments_are_json_and_do_not_depend_on_the_division(
        calls in prop::sample::select(&FORMATS[..]),
        answer in fragments(),
    ) {
        let format = Format { calls: Some(calls), thinking: None };
        let mark = calls.opens()[0].to_owned();
        for answer in [mark + &answer, answer] {
            let whole = parsed(format, "", &[&answer]);
            for piece in &whole {
                if let Piece::Arguments(text) = piece {
                    prop_assert!(serde_json::from_str::<Json>(text).is_ok(), "{:?} {} {}", calls, answer, text);
                }
            }
            let single: Vec<String> = answer.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(|part| &**part).collect();
            prop_assert_eq!(&parsed(format, "", &single), &whole, "{:?} {}", calls, answer);
        }
    }

    #[test]
    fn any_division_of_the_stream_gives_the_same_pieces(
        family in 0..8usize,
        answer in prop_oneof![fragments(), (0..8usize).prop_map(|at| goldens()[at].answer.to_owned())],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        prompt in prop::sample::select(&["", "<think>\n"][..]),
    ) {
        let format = Format { thinking: Some(["<think>", "</think>"]), ..template(&goldens()[family].template).format() };
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
        ends.retain(|&end| answer.is_char_boundary(end));
        ends.extend([0, answer.len()]);
        ends.sort_unstable();
        let parts: Vec<&str> = ends.windows(2).map(|ends| &answer[ends[0]..ends[1]]).collect();
        let whole = parsed(format, prompt, &[&answer]);
        prop_assert_eq!(&parsed(format, prompt, &parts), &whole);
        let single: Vec<String> = answer.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(|part| &**part).collect();
        prop_assert_eq!(&parsed(format, prompt, &single), &whole);
    }
}
