//! Removal of the keywords that cannot be enforced, for tools whose schema is a wish.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Preparation;

/// Keywords that llguidance does not enforce, in any or in some of their uses.
const UNENFORCED: [&str; 23] = [
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Keywords of the list that are removed wherever they are left.
const NEVER: [&str; 16] = [
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Types of JSON Schema.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Returns the keywords of a schema that may not be enforced, in alphabetical order. Names of
/// properties count as keywords too.
#[must_use]
pub fn unenforced(schema: &Value) -> Vec<&'static str> {
    let mut found = BTreeSet::new();
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(map) => {
                found.extend(UNENFORCED.iter().filter(|key| map.contains_key(**key)));
                let reference = map.get("$ref").and_then(Value::as_str);
                if reference.is_some_and(|reference| !leads(schema, reference)) {
                    found.insert("$ref");
                }
                left.extend(map.values());
            }
            Value::Array(all) => left.extend(all),
            _ => {}
        }
    }
    found.into_iter().collect()
}

/// Returns true if a reference leads to a part of the schema, or may do.
fn leads(schema: &Value, reference: &str) -> bool {
    let Some(inside) = reference.strip_prefix('#') else { return false };
    !inside.starts_with('/') || schema.pointer(inside).is_some()
}

impl Preparation<'_> {
    /// Removes the keywords that cannot be enforced. Everything else has been rewritten.
    pub(super) fn relax(&self, map: &mut Map<String, Value>) {
        map.retain(|key, value| match &**key {
            "uniqueItems" => false,
            "pattern" => value.as_str().is_some_and(is_regular),
            "patternProperties" => {
                value.as_object().is_some_and(|all| all.keys().all(|one| is_regular(one)))
            }
            "$ref" => self.target(value).is_some(),
            "type" => match value {
                Value::Array(all) => {
                    all.iter().all(|one| one.as_str().is_some_and(|one| TYPES.contains(&one)))
                }
                one => one.as_str().is_some_and(|one| TYPES.contains(&one)),
            },
            key => !NEVER.contains(&key),
        });
        if let Some(any) = map.shift_remove("oneOf") {
            map.entry("anyOf").or_insert(any);
        }
        if map.contains_key("properties") {
            map.shift_remove("minProperties");
            map.shift_remove("maxProperties");
        }
        let number = |key: &str| map.get(key).and_then(Value::as_f64);
        for (least, most) in
            [("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")]
        {
            if matches!((number(least), number(most)), (Some(least), Some(most)) if least > most) {
                map.retain(|key, _| key != least && key != most);
                return;
            }
        }
    }
}

/// Returns true for a regular expression without look-around and references.
fn is_regular(pattern: &str) -> bool {
    regex_syntax::parse(pattern).is_ok_and(|hir| {
        let looks = hir.properties().look_set();
        !looks.contains_word()
    })
}
