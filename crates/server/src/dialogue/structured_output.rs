//! Grammar of a structured answer. Combines the requested format, tool calls by their schemas, and
//! the reasoning, markers and channels that the model family writes around them.

use model::tokenizer::Format;
use serde_json::Value;

use super::{Enforcement, Form, Tool};
use engine::{Grammar, Served, Text};
use model::tokenizer::Calls as Family;

/// Requirement for tool calls in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Calls {
    #[default]
    May,
    Must,
}

#[derive(Debug, Default)]
pub(crate) struct StructuredOutput {
    pub(super) tools: Vec<Tool>,
    pub(super) calls: Calls,
    pub(super) parallel: bool,
    pub(super) form: Form,
}

/// Rules for any text and for white space.
const ANY: &str = "any: /(.|\\n)*/\nspace: /\\s*/\n";

impl StructuredOutput {
    /// Returns the grammar of an answer to a prompt that ends in `tail`; `None` if the answer is
    /// unconstrained.
    pub(crate) fn grammar(
        &self,
        served: &Served,
        tail: &str,
        enforcement: Enforcement,
    ) -> Option<Grammar> {
        let format = served.text.chat.format();
        let calls = !self.tools.is_empty();
        let generic = calls && format.calls == Some(Family::Generic);
        let answer = match &self.form {
            Form::Text if self.calls == Calls::May && !generic => return None,
            Form::Text => None,
            Form::Grammar(grammar) => Some(grammar.clone()),
        };
        if !calls
            && !format.can_think()
            && let Some(answer) = answer
        {
            return Some(answer);
        }
        let mut lark =
            Lark { text: &served.text, rules: ANY.into(), parts: Vec::new(), enforcement };
        let mut bodies = Vec::new();
        if calls && let Some(family) = format.calls {
            lark.calls(family, &self.tools, self.parallel);
            bodies.push("calls");
        }
        if self.calls == Calls::May {
            if let Some(answer) = answer {
                lark.parts.push(("answer".into(), answer));
                lark.form(format);
                bodies.push("form");
            } else if generic {
                // Text that does not begin like a call.
                lark.rule("prose", "\"\" | /([^<]|<[^t])(.|\\n)*/");
                bodies.push("prose");
            }
        }
        let thoughts = lark.thoughts(format, tail);
        lark.rule("start", &format!("{thoughts} ({})", bodies.join(" | ")));
        let Lark { rules, parts, .. } = lark;
        Some(Grammar::Within { lark: rules, parts })
    }
}

/// Builder of a Lark grammar.
struct Lark<'a> {
    text: &'a Text,
    rules: String,
    /// Subgrammars that rules refer to by name.
    parts: Vec<(String, Grammar)>,
    enforcement: Enforcement,
}

/// Returns a Lark string literal.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

impl Lark<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// Returns a marker: a control token by id, or its text.
    fn mark(&self, name: &str) -> String {
        match self.text.mark(name) {
            Some(id) => format!("<[{id}]>"),
            None => literal(name),
        }
    }

    /// Adds a rule for any text up to and including a marker.
    fn until(&mut self, rule: &str, mark: &str) {
        match self.text.mark(mark) {
            Some(id) => self.rule(rule, &format!("any <[{id}]>")),
            None => self.rule(&format!("{rule}[suffix={}]", literal(mark)), "/(.|\\n)*/"),
        }
    }

    /// Adds a subgrammar and returns a reference to it.
    fn part(&mut self, grammar: Grammar) -> String {
        let name = format!("json{}", self.parts.len());
        let reference = format!("@{name}");
        self.parts.push((name, grammar));
        reference
    }

    fn arguments(&mut self, tool: &Tool) -> String {
        self.part(tool.grammar(self.enforcement))
    }

    /// Adds the rules for reasoning before the answer and returns a reference to them.
    fn thoughts(&mut self, format: Format, tail: &str) -> String {
        if format.calls == Some(Family::Harmony) {
            let [channel, message, end, start] =
                ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].map(|mark| self.mark(mark));
            self.rule(
                "thoughts",
                &format!("{channel} \"analysis\" {message} any {end} {start} \"assistant\""),
            );
            return "thoughts?".into();
        }
        let Some([open, close]) = format.thinking else { return String::new() };
        self.until("thought", close);
        if tail.trim_end().ends_with(open) {
            return "thought space".into();
        }
        let open = self.mark(open);
        self.rule("thoughts", &format!("{open} thought space"));
        "thoughts?".into()
    }

    /// Adds the rule `form`: the answer in its format.
    fn form(&mut self, format: Format) {
        if format.calls == Some(Family::Harmony) {
            let [channel, message] = ["<|channel|>", "<|message|>"].map(|mark| self.mark(mark));
            self.rule("form", &format!("{channel} \"final\" {message} @answer"));
        } else {
            self.rule("form", "@answer");
        }
    }

    /// Adds the rule `calls`.
    fn calls(&mut self, family: Family, tools: &[Tool], parallel: bool) {
        let mut calls = Vec::new();
        for (at, tool) in tools.iter().enumerate() {
            let call = match family {
                Family::Hermes | Family::Generic => self.object(tool, "arguments"),
                Family::Llama => self.object(tool, "parameters"),
                Family::Xml => self.tags(at, tool),
                Family::Mistral => self.mistral(tool),
                Family::Harmony => self.message(tool),
                Family::DeepSeek => self.deepseek(tool),
                // LFM2 writes calls as JSON too.
                Family::Granite
                | Family::Phi
                | Family::Nemotron
                | Family::Functools
                | Family::Lfm => self.object(tool, "arguments"),
                Family::FunctionGemma | Family::Gemma => {
                    let rule = format!("rest{at}");
                    let close = family.ends().first().copied().unwrap_or_default();
                    self.until(&rule, close);
                    format!("{} {rule}", literal(&format!("call:{}{{", tool.name)))
                }
            };
            calls.push(call);
        }
        self.rule("call", &calls.join(" | "));
        let mark = family.opens().first().map(|mark| self.mark(mark)).unwrap_or_default();
        let named = family == Family::Mistral && self.text.chat.reads("[ARGS]");
        let (one, between) = match family {
            Family::Hermes | Family::Generic | Family::Xml => {
                (format!("{mark} \"\\n\" call \"\\n\" {}", self.mark("</tool_call>")), "\"\\n\"")
            }
            Family::Mistral if named => (format!("{mark} call"), ""),
            Family::DeepSeek => ("call".into(), "\"\\n\""),
            Family::Mistral => ("call".into(), "\", \""),
            family if family.is_list() || family == Family::Lfm => ("call".into(), "\", \""),
            Family::FunctionGemma | Family::Gemma => (format!("{mark} call"), ""),
            _ => ("call".into(), ""),
        };
        self.rule("one", &one);
        // Models of these families write one call per answer, or repeat themselves.
        let several =
            parallel && !matches!(family, Family::Llama | Family::Harmony | Family::Generic);
        let all = if several { format!("one ({between} one)*") } else { "one".into() };
        let close = match family {
            Family::Mistral => String::new(),
            family => family.ends().first().map(|mark| self.mark(mark)).unwrap_or_default(),
        };
        let calls = match family {
            Family::Mistral if named => all,
            Family::DeepSeek => format!("{mark} {all} {close}"),
            Family::Mistral | Family::Lfm => format!("{mark} \"[\" {all} \"]\" {close}"),
            family if family.is_list() => format!("{mark} \"[\" {all} \"]\" {close}"),
            _ => all,
        };
        self.rule("calls", &calls);
    }

    fn object(&mut self, tool: &Tool, key: &str) -> String {
        let head = format!("{{\"name\": {}, \"{key}\": ", literal(&tool.name));
        let arguments = self.arguments(tool);
        format!("{} {arguments} \"}}\"", literal(&head))
    }

    fn mistral(&mut self, tool: &Tool) -> String {
        if !self.text.chat.reads("[ARGS]") {
            return self.object(tool, "arguments");
        }
        let id = match self.text.chat.reads("[CALL_ID]") {
            true => format!("{} /[a-zA-Z0-9]{{9}}/", self.mark("[CALL_ID]")),
            false => String::new(),
        };
        let (args, arguments) = (self.mark("[ARGS]"), self.arguments(tool));
        format!("{} {id} {args} {arguments}", literal(&tool.name))
    }

    /// Returns a call in DeepSeek's marks; its older models write a block of Markdown.
    fn deepseek(&mut self, tool: &Tool) -> String {
        let [begin, separator, end] =
            ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]
                .map(|mark| self.mark(mark));
        let arguments = self.arguments(tool);
        if self.text.chat.reads("```json") {
            let head = literal(&format!("{}\n```json\n", tool.name));
            return format!("{begin} \"function\" {separator} {head} {arguments} \"\\n```\" {end}");
        }
        format!("{begin} {} {separator} {arguments} {end}", literal(&tool.name))
    }

    fn message(&mut self, tool: &Tool) -> String {
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|mark| self.mark(mark));
        let head = literal(&format!("commentary to=functions.{} ", tool.name));
        let arguments = self.arguments(tool);
        format!("{channel} {head} {constrain} \"json\" {message} {arguments}")
    }

    /// Returns a call in tags. Required parameters follow the schema's order; the optional ones may
    /// appear at their places.
    fn tags(&mut self, at: usize, tool: &Tool) -> String {
        const CLOSE: &str = "\n</parameter>\n";
        let mut call = literal(&format!("<function={}>\n", tool.name));
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let required = tool.parameters.get("required").and_then(Value::as_array);
        for (i, (name, schema)) in properties.into_iter().flatten().enumerate() {
            let open = literal(&format!("<parameter={name}>\n"));
            let is_text = schema.get("type").is_some_and(|kind| kind == "string");
            let choices = schema.get("enum").and_then(Value::as_array);
            let value = match choices {
                Some(choices) if is_text => {
                    let texts = choices.iter().filter_map(Value::as_str).map(literal);
                    format!("({}) {}", texts.collect::<Vec<_>>().join(" | "), literal(CLOSE))
                }
                _ if is_text => {
                    let rule = format!("value{at}x{i}");
                    self.until(&rule, CLOSE);
                    rule
                }
                _ => {
                    let schema = within(schema, &tool.parameters);
                    let value = match self.enforcement {
                        Enforcement::Relaxed if !tool.strict => Grammar::RelaxedSchema(schema),
                        Enforcement::Objects if !tool.strict => {
                            Grammar::JsonSchema(serde_json::json!({}))
                        }
                        _ => Grammar::JsonSchema(schema),
                    };
                    format!("{} {}", self.part(value), literal(CLOSE))
                }
            };
            let must = required.is_some_and(|names| names.iter().any(|n| n == name));
            call.push_str(&format!(" ({open} {value}){}", if must { "" } else { "?" }));
        }
        call.push_str(" \"</function>\"");
        call
    }
}

/// Returns a subschema with the definitions that it may refer to.
fn within(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    if let Value::Object(map) = &mut part {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(key) {
                map.insert(key.into(), definitions.clone());
            }
        }
    }
    part
}
