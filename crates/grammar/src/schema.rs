//! JSON schemas as pydantic, zod and OpenAPI write them, in the keywords that llguidance supports.
//! Removes keywords that constrain nothing, and rewrites some into equivalent ones (`expansion.rs`,
//! `complement.rs`). Other keywords stay: llguidance reports those that it does not support. A
//! relaxed schema loses them instead (`relaxation.rs`).

mod complement;
mod expansion;
mod relaxation;

pub use self::relaxation::unenforced;

use std::collections::BTreeSet;

use regex_syntax::hir::{Look, LookSet, literal::Extractor};
use serde_json::{Map, Value, json};

/// Maximum nesting of a schema. It bounds the stack of the compiler.
const NESTING: usize = 128;

/// Maximum number of texts that one pattern of property names is replaced by.
const NAMES: usize = 64;

/// Keywords that describe a value and do not constrain it.
const ANNOTATIONS: [&str; 15] = [
    "$comment",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "readOnly",
    "title",
    "writeOnly",
];

/// Formats of texts that llguidance enforces. JSON Schema ignores unknown ones.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Pattern of pydantic's `Decimal`, whose look-ahead only excludes texts without digits, and the same
/// set of texts without one.
const DECIMAL: [&str; 2] =
    [r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"];

/// Maximum number of references that are followed to find one that leads back to itself.
const FOLLOWED: usize = 1000;

/// Keywords whose value is a whole number.
const SIZES: [&str; 6] =
    ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];

/// Largest divisor of a number, times the power of ten that makes it whole. llguidance computes
/// remainders in 32 bits and has a state for each.
const DIVISOR: f64 = 1e6;

/// Keywords that apply other schemas to the same value.
const IN_PLACE: [&str; 8] =
    ["$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then"];

/// Treatment of keywords that cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unenforced {
    /// An error, of this crate or of llguidance.
    Refuse,
    /// Removed: the schema allows more values.
    Remove,
}

/// Rewrites a schema. `room` is the number of bytes that it may grow by.
///
/// # Errors
/// The schema is nested too deeply, or cannot be enforced.
pub(crate) fn prepare(schema: Value, room: usize, unenforced: Unenforced) -> Result<Value, String> {
    let root = schema.clone();
    let mut schema = schema;
    Preparation { root: &root, room, unenforced }.schema(&mut schema, 0)?;
    Ok(schema)
}

struct Preparation<'a> {
    /// The whole schema, as written.
    root: &'a Value,
    room: usize,
    unenforced: Unenforced,
}

impl<'a> Preparation<'a> {
    fn schema(&mut self, schema: &mut Value, depth: usize) -> Result<(), String> {
        if depth > NESTING {
            return Err(format!("the schema is nested deeper than {NESTING} levels"));
        }
        let Value::Object(map) = schema else { return Ok(()) };
        for (key, value) in map.iter_mut() {
            match (&**key, value) {
                (
                    "$defs" | "definitions" | "dependentSchemas" | "patternProperties"
                    | "properties",
                    Value::Object(schemas),
                ) => {
                    schemas.values_mut().try_for_each(|one| self.schema(one, depth + 1))?;
                }
                ("allOf" | "anyOf" | "items" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                    schemas.iter_mut().try_for_each(|one| self.schema(one, depth + 1))?;
                }
                (
                    "additionalItems"
                    | "additionalProperties"
                    | "contains"
                    | "else"
                    | "if"
                    | "items"
                    | "not"
                    | "propertyNames"
                    | "then"
                    | "unevaluatedItems"
                    | "unevaluatedProperties",
                    one,
                ) => self.schema(one, depth + 1)?,
                _ => {}
            }
        }
        map.retain(|key, value| !is_idle(key, value));
        let remove = self.unenforced == Unenforced::Remove;
        if let Err(reason) = divisor(map) {
            if !remove {
                return Err(reason);
            }
            map.shift_remove("multipleOf");
        }
        lists(map);
        conditions(map);
        anchors(map);
        property_names(map);
        unevaluated(map);
        self.patterns(map);
        if let Some(reference) = self.circular(map) {
            if !remove {
                return Err(format!("`$ref`: {reference} leads back to itself"));
            }
            map.shift_remove("$ref");
        }
        if let Some(reference) = self.outside(map) {
            if !remove {
                return Err(format!(
                    "`$ref`: {reference} is not in the schema; put it into `$defs`"
                ));
            }
            map.shift_remove("$ref");
        }
        self.reference(map);
        self.one_of(map);
        self.expand(map);
        if remove {
            self.relax(map);
        }
        if let Some(only) = only_member(map) {
            *schema = only;
        }
        Ok(())
    }

    /// Replaces patterns that match finitely many names by these names. llguidance excludes named
    /// properties from patterns, and a pattern that is left with no name never ends.
    fn patterns(&mut self, map: &mut Map<String, Value>) {
        let Some(Value::Object(patterns)) = map.get("patternProperties") else { return };
        let mut finite = Vec::new();
        for (pattern, schema) in patterns {
            let Some(names) = finite_names(pattern) else { continue };
            let size = schema.to_string().len().saturating_mul(names.len());
            if size <= self.room {
                self.room -= size;
                finite.push((pattern.clone(), names, schema.clone()));
            }
        }
        for (pattern, names, schema) in finite {
            if let Some(Value::Object(patterns)) = map.get_mut("patternProperties") {
                patterns.shift_remove(&pattern);
            }
            let properties = map.entry("properties").or_insert_with(|| json!({}));
            let Value::Object(properties) = properties else { return };
            for name in names {
                let property = properties.entry(name).or_insert(Value::Bool(true));
                *property = match is_any(property) {
                    true => schema.clone(),
                    false => json!({"allOf": [property.take(), schema]}),
                };
            }
        }
        if map.get("patternProperties").is_some_and(|left| *left == json!({})) {
            map.shift_remove("patternProperties");
        }
    }

    /// Removes keywords next to a `$ref` that its target has too: llguidance supports none there
    /// if the reference is recursive.
    fn reference(&self, map: &mut Map<String, Value>) {
        let Some(target) = map.get("$ref").and_then(|target| self.target(target)) else { return };
        map.retain(|key, value| key == "$ref" || target.get(key) != Some(value));
    }

    /// Returns a reference to another document.
    fn outside(&self, map: &Map<String, Value>) -> Option<String> {
        let reference = map.get("$ref")?.as_str()?;
        let inside = reference.starts_with('#') || self.root.get("$id").is_some();
        (!inside).then(|| reference.to_owned())
    }

    /// Returns the reference of a schema that stands for nothing but itself.
    fn circular(&self, map: &Map<String, Value>) -> Option<String> {
        let reference = map.get("$ref")?;
        let circular =
            self.never_ends(self.target(reference)?, &mut vec![reference], &mut { FOLLOWED });
        circular.then(|| reference.to_string())
    }

    /// Returns true if a schema leads to one of the references that lead to it, whatever the value
    /// is.
    fn never_ends<'v>(&self, schema: &'v Value, seen: &mut Vec<&'v Value>, fuel: &mut usize) -> bool
    where
        'a: 'v,
    {
        let Some(left) = fuel.checked_sub(1) else { return false };
        *fuel = left;
        if let Some(reference) = schema.get("$ref") {
            if seen.contains(&reference) {
                return true;
            }
            seen.push(reference);
            let target = self.target(reference);
            let circular = target.is_some_and(|target| self.never_ends(target, seen, fuel));
            seen.pop();
            return circular;
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        let all = list("allOf").into_iter().flatten();
        if all.into_iter().any(|one| self.never_ends(one, seen, fuel)) {
            return true;
        }
        let any = list("anyOf").or_else(|| list("oneOf")).filter(|list| !list.is_empty());
        any.is_some_and(|any| any.iter().all(|one| self.never_ends(one, seen, fuel)))
    }

    fn target(&self, reference: &Value) -> Option<&'a Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }

    /// Writes `oneOf` as `anyOf` if no value matches two of its schemas.
    fn one_of(&self, map: &mut Map<String, Value>) {
        if map.contains_key("anyOf") {
            return;
        }
        let Some(Value::Array(schemas)) = map.get("oneOf") else { return };
        let resolve = |schema| match Value::get(schema, "$ref") {
            Some(reference) => self.target(reference).unwrap_or(schema),
            None => schema,
        };
        let resolved: Vec<&Value> = schemas.iter().map(resolve).collect();
        let exclusive = distinct(resolved.iter().map(|schema| schema.get("type")?.as_str()))
            || have_distinct_tags(&resolved);
        if exclusive && let Some(schemas) = map.shift_remove("oneOf") {
            map.insert("anyOf".into(), schemas);
        }
    }
}

/// Rejects divisors with which remainders would overflow.
fn divisor(map: &Map<String, Value>) -> Result<(), String> {
    let Some(divisor) = map.get("multipleOf").and_then(Value::as_f64) else { return Ok(()) };
    let whole = (0..=6).map(|places| divisor * 10_f64.powi(places));
    let whole =
        whole.into_iter().find(|number| (number - number.round()).abs() < 1e-9 * number.abs());
    match whole {
        Some(whole) if whole <= DIVISOR => Ok(()),
        _ => Err(format!("`multipleOf`: {divisor} has more than 6 digits")),
    }
}

/// Takes the schema out of a list of one schema without other keywords.
fn only_member(map: &mut Map<String, Value>) -> Option<Value> {
    if map.len() != 1 {
        return None;
    }
    let (key, list) = map.iter_mut().next()?;
    let list = list.as_array_mut().filter(|list| list.len() == 1)?;
    if ["allOf", "anyOf", "oneOf"].contains(&key.as_str()) { list.pop() } else { None }
}

/// Returns true if all values exist and differ.
fn distinct<T: Ord>(values: impl Iterator<Item = Option<T>>) -> bool {
    let mut seen = BTreeSet::new();
    values.into_iter().all(|value| value.is_some_and(|value| seen.insert(value)))
}

/// Returns true if a required property has another constant in each schema.
fn have_distinct_tags(schemas: &[&Value]) -> bool {
    let Some(properties) = schemas.first().and_then(|one| one.get("properties")?.as_object())
    else {
        return false;
    };
    properties.keys().any(|name| {
        distinct(schemas.iter().map(|schema| {
            let required = schema.get("required")?.as_array()?;
            required.iter().find(|one| *one == name)?;
            let property = schema.get("properties")?.get(name)?;
            let only = |values: &Value| match values.as_array().map(Vec::as_slice) {
                Some([one]) => one.as_str().map(str::to_owned),
                _ => None,
            };
            let constant = property.get("const").map(|one| one.as_str().map(str::to_owned));
            constant.unwrap_or_else(|| property.get("enum").and_then(only))
        }))
    })
}

/// Returns true for a schema that every value matches.
fn is_any(schema: &Value) -> bool {
    *schema == true || schema.as_object().is_some_and(Map::is_empty)
}

/// Returns true for a keyword that constrains nothing. Its value has been rewritten already.
fn is_idle(key: &str, value: &mut Value) -> bool {
    if SIZES.contains(&key)
        && let Some(size) = value.as_f64().filter(|size| size.fract() == 0.0 && *size >= 0.0)
    {
        *value = (size as u64).into();
    }
    if key == "pattern" && value == DECIMAL[0] {
        *value = DECIMAL[1].into();
    }
    match key {
        _ if ANNOTATIONS.contains(&key) => true,
        "$schema" => !value.as_str().is_some_and(|schema| schema.contains("json-schema.org")),
        "format" => !value.as_str().is_some_and(|format| FORMATS.contains(&format)),
        "uniqueItems" => *value == false,
        "not" => *value == false,
        "dependencies" | "dependentRequired" | "dependentSchemas" | "patternProperties" => {
            *value == json!({})
        }
        "unevaluatedItems" | "unevaluatedProperties" => is_any(value),
        // Extensions of other servers and clients.
        _ => key.starts_with("x-") && key != "x-guidance",
    }
}

/// Removes keywords of lists that constrain nothing.
fn lists(map: &mut Map<String, Value>) {
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let (least, most) = (number("minContains"), number("maxContains"));
    let idle = map.get("contains").is_none_or(|_| least == Some(0.0) && most.is_none());
    let single = number("maxItems").is_some_and(|most| most <= 1.0);
    map.retain(|key, _| match &**key {
        "contains" | "minContains" | "maxContains" => !idle,
        "uniqueItems" => !single,
        _ => true,
    });
}

/// Removes incomplete conditions.
fn conditions(map: &mut Map<String, Value>) {
    let has = |key: &str| map.contains_key(key);
    let complete = has("if") && (has("then") || has("else"));
    map.retain(|key, _| complete || !["if", "then", "else"].contains(&key.as_str()));
}

/// Writes dynamic anchors and references as plain ones: within one document they mean the same.
fn anchors(map: &mut Map<String, Value>) {
    for (dynamic, plain) in [("$dynamicAnchor", "$anchor"), ("$dynamicRef", "$ref")] {
        if let Some(value) = map.shift_remove(dynamic) {
            map.entry(plain).or_insert(value);
        }
    }
    let not_recursive = map.get("$recursiveAnchor").is_some_and(|recursive| *recursive == false);
    if not_recursive {
        map.shift_remove("$recursiveAnchor");
    }
}

/// Removes `propertyNames` of any text, and writes a list or a pattern of names as properties.
fn property_names(map: &mut Map<String, Value>) {
    let Some(names) = map.get("propertyNames") else { return };
    let Value::Object(rule) = names else {
        if *names == true {
            map.shift_remove("propertyNames");
        }
        return;
    };
    let mut rule = rule.clone();
    if rule.get("type").is_some_and(|kind| kind == "string") {
        rule.shift_remove("type");
    }
    if rule.is_empty() {
        map.shift_remove("propertyNames");
        return;
    }
    if rule.len() != 1 || map.contains_key("properties") || map.contains_key("patternProperties") {
        return;
    }
    let values = || map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let (key, members) = match (rule.get("enum"), rule.get("const"), rule.get("pattern")) {
        (Some(Value::Array(names)), None, None) => {
            let names = names.iter().filter_map(Value::as_str);
            ("properties", names.map(|name| (name.to_owned(), values())).collect())
        }
        (None, Some(Value::String(name)), None) => {
            ("properties", Map::from_iter([(name.clone(), values())]))
        }
        (None, None, Some(Value::String(pattern))) => {
            ("patternProperties", Map::from_iter([(pattern.clone(), values())]))
        }
        _ => return,
    };
    map.shift_remove("propertyNames");
    map.insert(key.into(), Value::Object(members));
    map.insert("additionalProperties".into(), Value::Bool(false));
}

/// Writes `unevaluatedProperties: false` as `additionalProperties` if no other schema evaluates
/// any, and `unevaluatedItems` likewise.
fn unevaluated(map: &mut Map<String, Value>) {
    if IN_PLACE.iter().any(|key| map.contains_key(*key)) {
        return;
    }
    for (keyword, plain) in
        [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
    {
        if let Some(value) = map.shift_remove(keyword) {
            map.entry(plain).or_insert(value);
        }
    }
}

/// Returns all names that a pattern matches, if they are few.
fn finite_names(pattern: &str) -> Option<Vec<String>> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let looks = hir.properties();
    let ends = LookSet::singleton(Look::Start).insert(Look::End);
    let anchored = looks.look_set_prefix().contains(Look::Start)
        && looks.look_set_suffix().contains(Look::End)
        && looks.look_set().subtract(ends).is_empty();
    if !anchored {
        return None;
    }
    let names = Extractor::new().limit_total(NAMES).extract(&hir);
    if !names.is_exact() {
        return None;
    }
    let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    names.literals()?.iter().map(|literal| name(literal.as_bytes())).collect()
}

#[cfg(test)]
mod tests;
