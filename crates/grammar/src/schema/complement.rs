//! Schemas of the values that another schema excludes, for `not`, `if` and `oneOf`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{ANNOTATIONS, Preparation};

/// Maximum nesting of schemas and references that are followed.
const DEPTH: usize = 16;
/// Maximum number of values of a finite schema.
const VALUES: usize = 64;
/// Maximum number of characters of a text in a pattern of other texts. It bounds the nesting.
const TEXT: usize = 64;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl Preparation<'_> {
    /// Returns schemas that together allow exactly the values of `domain` that `schema` excludes;
    /// `None` if no keywords express them. Values outside of `domain` may be allowed or not.
    pub(super) fn complement(
        &self,
        schema: &Value,
        domain: Option<&Value>,
        depth: usize,
    ) -> Option<Vec<Value>> {
        let depth = Some(depth + 1).filter(|depth| *depth <= DEPTH)?;
        let map = match schema {
            Value::Bool(true) => return Some(Vec::new()),
            Value::Bool(false) => return Some(vec![Value::Bool(true)]),
            Value::Object(map) => map,
            _ => return None,
        };
        let mut all = Vec::new();
        for (key, value) in map {
            if ANNOTATIONS.contains(&key.as_str()) {
                continue;
            }
            let count = || value.as_u64();
            let one: Vec<Value> = match key.as_str() {
                "$ref" => self.complement(self.target(value)?, domain, depth)?,
                "const" => self.other_values(std::slice::from_ref(value), domain)?,
                "enum" => self.other_values(value.as_array()?, domain)?,
                "type" => other_types(value)?,
                "not" => vec![value.clone()],
                "allOf" => {
                    let parts = value.as_array()?.iter();
                    let parts: Option<Vec<_>> =
                        parts.map(|one| self.complement(one, domain, depth)).collect();
                    parts?.concat()
                }
                "anyOf" => {
                    let parts = value.as_array()?.iter();
                    let parts: Option<Vec<_>> = parts
                        .map(|one| Some(json!({"anyOf": self.complement(one, domain, depth)?})))
                        .collect();
                    let parts = parts?;
                    // A schema whose complement is empty allows every value.
                    match parts.iter().any(|one| one["anyOf"] == json!([])) {
                        true => Vec::new(),
                        false => vec![json!({"allOf": parts})],
                    }
                }
                "required" => {
                    let names = value.as_array()?.iter().filter_map(Value::as_str);
                    names.map(without).collect()
                }
                "properties" => self.other_properties(value.as_object()?, domain, depth)?,
                "minimum" => vec![json!({"type": "number", "exclusiveMaximum": value})],
                "maximum" => vec![json!({"type": "number", "exclusiveMinimum": value})],
                "exclusiveMinimum" if value.is_number() => {
                    vec![json!({"type": "number", "maximum": value})]
                }
                "exclusiveMaximum" if value.is_number() => {
                    vec![json!({"type": "number", "minimum": value})]
                }
                "minLength" => below("string", "maxLength", count()?),
                "maxLength" => vec![json!({"type": "string", "minLength": count()? + 1})],
                "minItems" => below("array", "maxItems", count()?),
                "maxItems" => vec![json!({"type": "array", "minItems": count()? + 1})],
                _ => return None,
            };
            all.extend(one);
        }
        Some(all)
    }

    /// Returns schemas of objects with a property that its schema excludes.
    fn other_properties(
        &self,
        properties: &Map<String, Value>,
        domain: Option<&Value>,
        depth: usize,
    ) -> Option<Vec<Value>> {
        let mut all = Vec::new();
        for (name, schema) in properties {
            let domain = domain.and_then(|domain| domain.get("properties")?.get(name));
            for other in self.complement(schema, domain, depth)? {
                all.push(
                    json!({"type": "object", "properties": {name: other}, "required": [name]}),
                );
            }
        }
        Some(all)
    }

    /// Returns schemas of all values of a domain but these.
    fn other_values(&self, values: &[Value], domain: Option<&Value>) -> Option<Vec<Value>> {
        if let Some(mut rest) = domain.and_then(|domain| self.finite(domain, 0)) {
            rest.retain(|one| !values.iter().any(|value| same(one, value)));
            return Some(if rest.is_empty() { Vec::new() } else { vec![json!({"enum": rest})] });
        }
        let mut texts = Vec::new();
        let mut numbers = Vec::new();
        let mut touched = BTreeSet::new();
        for value in values {
            match value {
                Value::String(text) => texts.push(text.as_str()),
                Value::Number(number) => numbers.push(number.as_f64()?),
                Value::Bool(_) | Value::Null => {}
                Value::Array(_) | Value::Object(_) => return None,
            }
            touched.insert(name_of(value));
        }
        let left: Vec<&str> = TYPES.into_iter().filter(|kind| !touched.contains(kind)).collect();
        let mut all = vec![json!({"type": left})];
        let flags = [true, false].map(Value::from);
        let flags: Vec<&Value> = flags.iter().filter(|flag| !values.contains(flag)).collect();
        if touched.contains("boolean") && !flags.is_empty() {
            all.push(json!({"enum": flags}));
        }
        if !texts.is_empty() {
            all.push(json!({"type": "string", "pattern": other_texts(&texts)?}));
        }
        numbers.sort_by(f64::total_cmp);
        if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
            all.push(json!({"type": "number", "exclusiveMaximum": first}));
            all.push(json!({"type": "number", "exclusiveMinimum": last}));
        }
        for pair in numbers.windows(2).filter(|pair| pair[0] < pair[1]) {
            all.push(
                json!({"type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1]}),
            );
        }
        Some(all)
    }

    /// Returns all values that a schema can have, and perhaps others, if they are few.
    pub(super) fn finite(&self, schema: &Value, depth: usize) -> Option<Vec<Value>> {
        let depth = Some(depth + 1).filter(|depth| *depth <= DEPTH)?;
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        let values = if let Some(value) = schema.get("const") {
            vec![value.clone()]
        } else if let Some(values) = list("enum") {
            values.clone()
        } else if let Some(reference) = schema.get("$ref") {
            self.finite(self.target(reference)?, depth)?
        } else if let Some(any) = list("anyOf").or_else(|| list("oneOf")) {
            let all: Option<Vec<_>> = any.iter().map(|one| self.finite(one, depth)).collect();
            all?.concat()
        } else {
            match schema.get("type")?.as_str()? {
                "null" => vec![Value::Null],
                "boolean" => vec![true.into(), false.into()],
                "integer" => {
                    let bound = |key: &str| schema.get(key).and_then(Value::as_i64);
                    let (least, most) = (bound("minimum")?, bound("maximum")?);
                    let few = most.checked_sub(least).is_some_and(|most| most < VALUES as i64);
                    few.then(|| (least..=most).map(Value::from).collect())?
                }
                _ => return None,
            }
        };
        let mut distinct: Vec<Value> = Vec::new();
        for value in values {
            if distinct.len() > VALUES {
                return None;
            }
            if !distinct.iter().any(|one| same(one, &value)) {
                distinct.push(value);
            }
        }
        (distinct.len() <= VALUES).then_some(distinct)
    }
}

/// Schema of objects without a property.
pub(super) fn without(name: &str) -> Value {
    json!({"type": "object", "properties": {name: false}})
}

/// Schema of every type but one.
pub(super) fn all_types_but(kind: &str) -> Value {
    let others: Vec<&str> = TYPES.into_iter().filter(|one| *one != kind).collect();
    json!({"type": others})
}

/// Equality in JSON Schema: 1 and 1.0 are the same.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

const fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns schemas of the types that a list excludes; `None` for fractions, which none describes.
fn other_types(types: &Value) -> Option<Vec<Value>> {
    let listed: Vec<&str> = match types {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let integer = listed.contains(&"integer") && !listed.contains(&"number");
    let left: Vec<&str> = TYPES.into_iter().filter(|kind| !listed.contains(kind)).collect();
    let known = listed.iter().all(|kind| TYPES.contains(kind) || *kind == "integer");
    (known && !integer).then(|| vec![json!({"type": left})])
}

fn below(kind: &str, most: &str, least: u64) -> Vec<Value> {
    least.checked_sub(1).map(|size| json!({"type": kind, most: size})).into_iter().collect()
}

/// Returns a pattern of all texts but these: texts that leave the tree of their characters.
fn other_texts(texts: &[&str]) -> Option<String> {
    let texts: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    let short = texts.len() <= VALUES && texts.iter().all(|text| text.len() <= TEXT);
    let texts: Vec<&[char]> = texts.iter().map(Vec::as_slice).collect();
    short.then(|| format!("^{}$", leaving(&texts)))
}

fn leaving(texts: &[&[char]]) -> String {
    let mut next: BTreeMap<char, Vec<&[char]>> = BTreeMap::new();
    for text in texts {
        if let Some((first, rest)) = text.split_first() {
            next.entry(*first).or_default().push(rest);
        }
    }
    let escape = |c: &char| regex_syntax::escape(c.encode_utf8(&mut [0; 4]));
    let known: String = next.keys().map(escape).collect();
    let mut ways = Vec::new();
    if !texts.iter().any(|text| text.is_empty()) {
        ways.push(String::new());
    }
    ways.push(match known.is_empty() {
        true => "(?s:.)+".into(),
        false => format!("[^{known}](?s:.)*"),
    });
    ways.extend(next.iter().map(|(c, rests)| format!("{}{}", escape(c), leaving(rests))));
    format!("(?:{})", ways.join("|"))
}
