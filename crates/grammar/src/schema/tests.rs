//! Tests of the rewriting of schemas.

use super::relaxation::unenforced;
use super::*;
use crate::Grammar;
use crate::compiler::{Compiler, Tokens};

fn prepared(schema: Value) -> Value {
    prepare(schema, 1 << 14, Unenforced::Refuse).unwrap()
}

#[test]
fn keywords_that_constrain_nothing_are_removed() {
    let text = json!({"type": "string"});
    for (schema, plain) in [
        (
            json!({"type": "string", "format": "password", "title": "T", "default": "x"}),
            text.clone(),
        ),
        (json!({"type": "string", "format": "uuid"}), json!({"type": "string", "format": "uuid"})),
        (
            json!({"propertyNames": {"type": "string"}, "minProperties": 1.0}),
            json!({"minProperties": 1}),
        ),
        (json!({"contains": {"const": 1}, "minContains": 0}), json!({})),
        (json!({"minContains": 2, "uniqueItems": false}), json!({})),
        (
            json!({"contains": {}}),
            json!({"anyOf": [
                {"type": ["null", "boolean", "number", "string", "object"]}, {"type": "array", "minItems": 1},
            ]}),
        ),
        (json!({"uniqueItems": true, "maxItems": 1}), json!({"maxItems": 1})),
        (json!({"if": {"const": 1}}), json!({})),
        (json!({"then": {"const": 1}}), json!({})),
        (
            json!({"$dynamicAnchor": "node", "type": "string"}),
            json!({"$anchor": "node", "type": "string"}),
        ),
        (json!({"dependentRequired": {}, "unevaluatedItems": true}), json!({})),
        (json!({"unevaluatedProperties": false}), json!({"additionalProperties": false})),
        (json!({"allOf": [{"type": "string", "title": "T"}], "description": "d"}), text),
        (
            json!({"const": {"title": 1}, "enum": [{"default": 2}]}),
            json!({"const": {"title": 1}, "enum": [{"default": 2}]}),
        ),
        (json!({"properties": {"title": {"title": "x"}}}), json!({"properties": {"title": {}}})),
        (json!({"not": {"pattern": "a"}}), json!({"not": {"pattern": "a"}})),
    ] {
        assert_eq!(prepared(schema.clone()), plain, "{schema}");
    }
}

#[test]
fn patterns_of_few_names_become_properties() {
    let schema = |pattern: &str| json!({"properties": {"score": {"minimum": 0}}, "patternProperties": {pattern: {"type": "integer"}}});
    let merged = json!({"properties":
        {"score": {"allOf": [{"minimum": 0}, {"type": "integer"}]}}});
    for pattern in ["^score$", "^(score)$", "^s[c]ore$", "\\Asc(?:ore)\\z"] {
        assert_eq!(prepared(schema(pattern)), merged, "{pattern}");
    }
    let both = prepared(schema("^(score|rank)$"));
    assert_eq!(both["properties"]["rank"], json!({"type": "integer"}));
    assert!(both.get("patternProperties").is_none());
    for pattern in ["score", "^score", "^s", "^[a-z]+$", "^(", "^sco\\bre$"] {
        assert_eq!(prepared(schema(pattern)), schema(pattern), "{pattern}");
    }
    assert_eq!(
        prepared(
            json!({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}})
        ),
        json!({"additionalProperties": false, "properties": {"a": {"const": 1}, "b": {"const": 1}}})
    );
}

#[test]
fn growth_and_nesting_are_bounded() {
    let value = json!({"enum": vec!["x"; 100]});
    let schema = json!({"patternProperties": {"^[a-z]$": value}});
    assert_eq!(prepared(schema.clone()), schema);
    let mut deep = json!({});
    for _ in 0..NESTING + 1 {
        deep = json!({"items": deep});
    }
    assert!(prepare(deep, 0, Unenforced::Refuse).unwrap_err().contains("nested"));
}

#[test]
fn circular_references_are_named() {
    let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    for (schema, is_circular) in [
        (json!({"$ref": "#"}), true),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": reference("b"), "b": reference("a")}}), true),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [reference("a")]}}}), true),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"const": 1}, reference("a")]}}}),
            false,
        ),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"items": reference("a")}}}), false),
        (json!({"$ref": "#/$defs/none"}), false),
    ] {
        let prepared = prepare(schema.clone(), 0, Unenforced::Refuse);
        assert_eq!(prepared.is_err_and(|error| error.contains("itself")), is_circular, "{schema}");
    }
}

#[test]
fn schemas_of_a_discriminated_union_exclude_each_other() {
    let branch = |tag: &str| json!({"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"]});
    let union = json!({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        "discriminator": {"propertyName": "kind"}, "$defs": {"A": branch("a"), "B": branch("b")}});
    assert!(prepared(union).get("anyOf").is_some());
    let same = json!({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]});
    assert!(prepared(same).get("oneOf").is_some());
    let recursive =
        json!({"type": "object", "properties": {"next": {"$ref": "#", "type": "object"}}});
    assert_eq!(prepared(recursive)["properties"]["next"], json!({"$ref": "#"}));
}

/// Compiler of a vocabulary of all bytes.
fn bytes() -> Compiler {
    let mut all = 256_u32.to_le_bytes().to_vec();
    for byte in 0..=255_u8 {
        all.extend([1, 0, 0, 0, byte]);
    }
    all.extend([5, 0, 0, 0]);
    all.extend(b"\xff<e>\xff");
    Compiler::of(&Tokens::read(&all).unwrap()).unwrap()
}

/// Returns true if the grammar of a schema accepts a value.
fn takes(compiler: &Compiler, grammar: &Grammar, value: &Value) -> Result<bool, String> {
    let mut state = compiler.compile(grammar)?;
    let text = value.to_string();
    for (at, byte) in text.bytes().enumerate() {
        let mask = state.mask()?;
        if mask[usize::from(byte) / 32] & (1 << (byte % 32)) == 0 {
            return Ok(false);
        }
        if state.accept(u32::from(byte))? {
            return Ok(at + 1 == text.len());
        }
    }
    Ok(state.mask()?[8] & 1 != 0)
}

/// Checks the values that schemas accept and reject.
fn check(cases: &[(Value, &[Value], &[Value])]) {
    let compiler = bytes();
    for (schema, accepted, rejected) in cases {
        let grammar = Grammar::JsonSchema(schema.clone());
        for (values, expected) in [(accepted, true), (rejected, false)] {
            for value in *values {
                assert_eq!(takes(&compiler, &grammar, value), Ok(expected), "{schema}: {value}");
            }
        }
    }
}

#[test]
fn different_items_of_few_values_are_enforced() {
    let set = |items: Value| json!({"type": "array", "items": items, "uniqueItems": true});
    let colours = json!({"enum": ["r", "g", "b"]});
    let draft = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
        "items": colours, "uniqueItems": true, "minItems": 2});
    let named = json!({"type": "object", "properties": {"c": set(json!({"$ref": "#/$defs/C"}))},
        "required": ["c"], "additionalProperties": false, "$defs": {"C": colours}});
    check(&[
        (
            set(colours.clone()),
            &[json!([]), json!(["g"]), json!(["b", "r"]), json!(["b", "r", "g"])],
            &[json!(["g", "g"]), json!(["b", "r", "b"]), json!(["x"]), json!(3)],
        ),
        (draft, &[json!(["b", "r"])], &[json!(["b"]), json!(["b", "b"])]),
        (named, &[json!({"c": ["r", "b"]})], &[json!({"c": ["r", "r"]})]),
        (set(json!({"type": "boolean"})), &[json!([true, false])], &[json!([true, true])]),
        (
            set(json!({"type": "integer", "minimum": 1, "maximum": 3})),
            &[json!([3, 1])],
            &[json!([1, 1]), json!([4])],
        ),
        (
            json!({"items": {"const": 1}, "uniqueItems": true}),
            &[json!("x"), json!([1])],
            &[json!([1, 1])],
        ),
    ]);
    let compiler = bytes();
    for (schema, reason) in [
        (json!({"type": "array", "items": {"enum": [7]}, "minItems": 2, "uniqueItems": true}), ""),
        (set(json!({"type": "string"})), "uniqueItems"),
        (set(json!({"enum": (0..9).collect::<Vec<_>>()})), "uniqueItems"),
    ] {
        let refused = compiler.compile(&Grammar::JsonSchema(schema.clone())).err().unwrap();
        assert!(refused.contains(reason), "{schema}: {refused}");
    }
}

#[test]
fn contained_items_are_enforced() {
    let list = |more: Value| {
        let mut list =
            json!({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}});
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        list
    };
    check(&[
        (
            list(json!({})),
            &[json!([1]), json!([2, 3, 1]), json!([1, 2])],
            &[json!([]), json!([2, 3]), json!([1, "x"])],
        ),
        (list(json!({"minContains": 2})), &[json!([2, 1, 1, 3])], &[json!([1]), json!([2, 1])]),
        (
            list(json!({"maxItems": 2})),
            &[json!([2, 1]), json!([1, 1])],
            &[json!([2, 2]), json!([2, 2, 1])],
        ),
        (
            json!({"type": "array", "contains": {}, "minContains": 2, "maxContains": 3}),
            &[json!([1, "x"]), json!([1, 2, 3])],
            &[json!([1]), json!([1, 2, 3, 4])],
        ),
        (json!({"contains": {"const": 1}}), &[json!("x"), json!([1])], &[json!([])]),
    ]);
    let most = Grammar::JsonSchema(list(json!({"maxContains": 1})));
    assert!(bytes().compile(&most).err().unwrap().contains("ontains"));
}

#[test]
fn conditions_are_enforced() {
    let address = |condition: Value| {
        json!({"type": "object", "additionalProperties": false,
            "properties": {"country": {"enum": ["us", "ca", "nl"]}, "zip": {"type": "integer"}, "code": {"type": "string"}},
            "required": ["country"], "if": condition,
            "then": {"required": ["zip"]}, "else": {"properties": {"zip": false}}})
    };
    let of = |value: &str| json!({"properties": {"country": {"const": value}}});
    let text = json!({"type": "object", "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["kind"], "additionalProperties": false,
        "if": {"properties": {"kind": {"enum": ["box", "bag"]}}, "required": ["kind"]},
        "then": {"required": ["size"]}});
    let number = json!({"type": "object", "properties": {"n": {"type": "integer"}, "big": {"type": "boolean"}},
        "required": ["n"], "additionalProperties": false,
        "if": {"properties": {"n": {"minimum": 100}}}, "then": {"required": ["big"]}});
    let us = &[json!({"country": "us", "zip": 1}), json!({"country": "nl", "code": "x"})];
    let not_us = &[json!({"country": "us"}), json!({"country": "ca", "zip": 1})];
    check(&[
        (address(of("us")), us, not_us),
        (
            text,
            &[
                json!({"kind": "box", "size": 1}),
                json!({"kind": "bo"}),
                json!({"kind": "boxes"}),
                json!({"kind": ""}),
            ],
            &[json!({"kind": "box"}), json!({"kind": "bag"})],
        ),
        (
            number,
            &[json!({"n": 99}), json!({"n": 100, "big": true}), json!({"n": -5, "big": false})],
            &[json!({"n": 100}), json!({"n": 5000})],
        ),
        (json!({"type": "integer", "if": true, "then": {"minimum": 5}}), &[json!(6)], &[json!(4)]),
        (json!({"type": "integer", "if": false, "then": {"minimum": 5}}), &[json!(4)], &[]),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "additionalProperties": false, "dependentRequired": {"a": ["b"]}}),
            &[json!({}), json!({"b": 1}), json!({"a": 1, "b": 2})],
            &[json!({"a": 1})],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "additionalProperties": false, "dependencies": {"a": {"properties": {"b": {"const": 3}}}}}),
            &[json!({"b": 1}), json!({"a": 1, "b": 3}), json!({"a": 1})],
            &[json!({"a": 1, "b": 2})],
        ),
    ]);
    let pattern = address(json!({"properties": {"country": {"pattern": "u"}}}));
    let refused = bytes().compile(&Grammar::JsonSchema(pattern)).err().unwrap();
    assert!(refused.contains("if"), "{refused}");
}

#[test]
fn exclusions_are_enforced() {
    let either = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "additionalProperties": false, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    check(&[
        (either, &[json!({"a": 1}), json!({"b": 1})], &[json!({}), json!({"a": 1, "b": 2})]),
        (
            json!({"type": "string", "not": {"enum": ["root", "ro"]}}),
            &[json!("r"), json!("roo"), json!("roots"), json!("")],
            &[json!("root"), json!("ro"), json!(1)],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "additionalProperties": false, "not": {"required": ["a", "b"]}}),
            &[json!({"a": 1}), json!({"b": 1}), json!({})],
            &[json!({"a": 1, "b": 1})],
        ),
        (
            json!({"type": "integer", "not": {"enum": [3, 5]}}),
            &[json!(2), json!(4), json!(9)],
            &[json!(3), json!(5)],
        ),
        (json!({"enum": [1, 2, 3], "not": {"const": 2}}), &[json!(1), json!(3)], &[json!(2)]),
        (
            json!({"oneOf": [{"type": "number", "minimum": 5}, {"type": "number", "maximum": 10}]}),
            &[json!(4), json!(11)],
            &[json!(7)],
        ),
    ]);
}

/// Every keyword of which a strict schema is refused.
#[test]
fn relaxed_schemas_keep_what_can_be_enforced() {
    let compiler = bytes();
    for (schema, keyword) in [
        (json!({"items": {"type": "string"}, "uniqueItems": true}), "uniqueItems"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"pattern": "^(?!x)a$"}), "pattern"),
        (json!({"pattern": "^(a"}), "pattern"),
        (json!({"$ref": "https://example.org/s.json"}), "$ref"),
        (json!({"$ref": "#/$defs/none"}), "$ref"),
        (json!({"if": {"pattern": "u"}, "then": {"minLength": 3}}), "if"),
        (json!({"contains": {"const": 1}, "maxContains": 1}), "contains"),
        (json!({"multipleOf": 12_345_678}), "multipleOf"),
        (json!({"propertyNames": {"minLength": 2}}), "propertyNames"),
        (
            json!({"allOf": [{"required": ["a"]}], "unevaluatedProperties": false}),
            "unevaluatedProperties",
        ),
        (json!({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}), "oneOf"),
        (
            json!({"type": "object", "properties": {"x": {}, "y": {}, "z": {}}, "minProperties": 2}),
            "minProperties",
        ),
        (json!({"dependentSchemas": {"a": {"$ref": "#/properties/whole"}}}), "dependentSchemas"),
    ] {
        let whole = json!({"type": "object", "properties": {"n": {"type": "integer"}, "x": schema},
            "required": ["n"], "additionalProperties": false});
        let strict = Grammar::JsonSchema(whole.clone());
        assert!(compiler.compile(&strict).is_err() || keyword == "dependentSchemas", "{schema}");
        assert!(unenforced(&whole).contains(&keyword), "{schema}");
        let relaxed = Grammar::RelaxedSchema(whole);
        assert_eq!(takes(&compiler, &relaxed, &json!({"n": 1})), Ok(true), "{schema}");
        assert_eq!(takes(&compiler, &relaxed, &json!({"n": "x"})), Ok(false), "{schema}");
    }
}
