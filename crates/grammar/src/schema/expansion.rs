//! Keywords that llguidance lacks, written as alternatives of keywords that it has: `uniqueItems`,
//! `contains`, `if`, `not`, `oneOf`, `dependentRequired` and `dependentSchemas`. A keyword stays if
//! the alternatives are too many, or if no keywords express them.

use serde_json::{Map, Value, json};

use super::complement::{all_types_but, without};
use super::{Preparation, is_any};

/// Maximum number of alternatives that one keyword is written as.
const ALTERNATIVES: usize = 400;
/// Number of positions in a list that may have the first item of `contains`.
const POSITIONS: u64 = 8;
/// Maximum number of items of `contains`.
const CONTAINED: u64 = 16;

impl Preparation<'_> {
    /// Writes the keywords of a schema as alternatives.
    pub(super) fn expand(&mut self, map: &mut Map<String, Value>) {
        self.unique_items(map);
        self.contains(map);
        self.dependents(map);
        self.condition(map);
        self.negation(map);
        self.exclusive(map);
    }

    /// Adds the rule that a value matches one of the alternatives. Returns false if these are too
    /// many.
    fn require(&mut self, map: &mut Map<String, Value>, mut any: Vec<Value>) -> bool {
        if any.iter().any(is_any) {
            return true;
        }
        let rule = match any.len() {
            0 => Value::Bool(false),
            1 => any.remove(0),
            _ => json!({"anyOf": any}),
        };
        let size = rule.to_string().len();
        if size > self.room {
            return false;
        }
        let Value::Array(all) = map.entry("allOf").or_insert_with(|| json!([])) else {
            return false;
        };
        self.room -= size;
        all.push(rule);
        true
    }

    /// Writes different items of few values as all their sequences.
    fn unique_items(&mut self, map: &mut Map<String, Value>) {
        let size = |key: &str| map.get(key).and_then(Value::as_u64);
        if map.get("uniqueItems") != Some(&Value::Bool(true)) || map.contains_key("prefixItems") {
            return;
        }
        let Some(values) = map.get("items").and_then(|items| self.finite(items, 0)) else { return };
        let least = size("minItems").unwrap_or(0);
        let most = size("maxItems").unwrap_or(u64::MAX).min(values.len() as u64);
        let Some(sequences) = sequences(&values, least, most) else { return };
        let list = |sequence: &Vec<&Value>| {
            let items: Vec<Value> = sequence.iter().map(|value| json!({"const": value})).collect();
            json!({"type": "array", "items": items, "minItems": items.len(), "maxItems": items.len()})
        };
        let mut any = vec![all_types_but("array")];
        any.extend(sequences.iter().map(list));
        if self.require(map, any) {
            map.shift_remove("uniqueItems");
        }
    }

    /// Writes `contains` as items at one of the first positions. A longer list whose first such item
    /// is later is not generated.
    fn contains(&mut self, map: &mut Map<String, Value>) {
        let Some(item) = map.get("contains").cloned() else { return };
        let size = |key: &str| map.get(key).and_then(Value::as_u64);
        let least = size("minContains").unwrap_or(1);
        let longest = size("maxItems").unwrap_or(u64::MAX);
        let any_item = is_any(&item);
        let most = size("maxContains").filter(|most| *most < longest);
        if (most.is_some() && !any_item) || least > CONTAINED {
            return;
        }
        let mut any = vec![all_types_but("array")];
        if any_item {
            let mut list = json!({"type": "array", "minItems": least});
            if let Some(most) = most {
                list["maxItems"] = most.into();
            }
            any.push(list);
        } else if least == 0 {
            any = vec![Value::Bool(true)];
        } else {
            let positions = POSITIONS.min(longest.saturating_sub(least).saturating_add(1));
            for position in 0..positions {
                let mut items = vec![Value::Bool(true); position as usize];
                items.resize((position + least) as usize, item.clone());
                any.push(json!({"type": "array", "items": items, "minItems": items.len()}));
            }
        }
        if self.require(map, any) {
            map.retain(|key, _| {
                !["contains", "minContains", "maxContains"].contains(&key.as_str())
            });
        }
    }

    /// Writes properties that depend on others as objects without these or with both.
    fn dependents(&mut self, map: &mut Map<String, Value>) {
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(Value::Object(dependents)) = map.get(keyword).cloned() else { continue };
            let mut done = true;
            for (name, needed) in &dependents {
                let then = match needed {
                    Value::Array(names) => json!({"required": names}),
                    schema => schema.clone(),
                };
                let with = json!({"type": "object", "required": [name]});
                let any =
                    vec![all_types_but("object"), without(name), json!({"allOf": [with, then]})];
                done &= self.require(map, any);
            }
            if done {
                map.shift_remove(keyword);
            }
        }
    }

    /// Writes `if` as two alternatives: the condition and `then`, or its complement and `else`.
    fn condition(&mut self, map: &mut Map<String, Value>) {
        let Some(condition) = map.get("if") else { return };
        let branch = |key: &str| map.get(key).cloned().unwrap_or(Value::Bool(true));
        let (then, otherwise) = (branch("then"), branch("else"));
        let domain = Value::Object(map.clone());
        let Some(complement) = self.complement(condition, Some(&domain), 0) else { return };
        let mut any = vec![json!({"allOf": [condition, then]})];
        any.extend(complement.into_iter().map(|other| json!({"allOf": [other, otherwise]})));
        if self.require(map, any) {
            map.retain(|key, _| !["if", "then", "else"].contains(&key.as_str()));
        }
    }

    /// Writes `not` as the values that its schema excludes. A `not` of types alone stays: the types
    /// that are left are easier to name.
    fn negation(&mut self, map: &mut Map<String, Value>) {
        let Some(excluded) = map.get("not") else { return };
        if excluded.as_object().is_some_and(|one| one.len() == 1 && one.contains_key("type")) {
            return;
        }
        let domain = Value::Object(map.clone());
        let Some(any) = self.complement(excluded, Some(&domain), 0) else { return };
        if self.require(map, any) {
            map.shift_remove("not");
        }
    }

    /// Writes `oneOf` as alternatives that exclude each other.
    fn exclusive(&mut self, map: &mut Map<String, Value>) {
        let Some(Value::Array(schemas)) = map.get("oneOf") else { return };
        if schemas.len() > POSITIONS as usize {
            return;
        }
        let domain = Value::Object(map.clone());
        let complements: Option<Vec<Vec<Value>>> =
            schemas.iter().map(|one| self.complement(one, Some(&domain), 0)).collect();
        let Some(complements) = complements else { return };
        let alternative = |(at, schema): (usize, &Value)| {
            let mut all = vec![schema.clone()];
            for (other, complement) in complements.iter().enumerate() {
                if other != at {
                    all.push(json!({"anyOf": complement}));
                }
            }
            let never = all.iter().any(|one| one.get("anyOf") == Some(&json!([])));
            (!never).then(|| json!({"allOf": all}))
        };
        let any = schemas.iter().enumerate().filter_map(alternative).collect();
        if self.require(map, any) {
            map.shift_remove("oneOf");
        }
    }
}

/// Returns all sequences of different values with the given lengths, if they are few.
fn sequences(values: &[Value], least: u64, most: u64) -> Option<Vec<Vec<&Value>>> {
    let mut all = Vec::new();
    let mut last: Vec<Vec<&Value>> = vec![Vec::new()];
    for length in 0..=most {
        if length >= least {
            all.extend(last.iter().cloned());
        }
        if all.len() + last.len() > ALTERNATIVES {
            return None;
        }
        if length == most {
            break;
        }
        let mut next = Vec::new();
        for sequence in &last {
            for value in values.iter().filter(|value| !sequence.contains(value)) {
                let mut longer = sequence.clone();
                longer.push(value);
                next.push(longer);
            }
        }
        last = next;
    }
    Some(all)
}
