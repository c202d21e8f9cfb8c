//! Functions that a request offers, also within namespaces, whose names may repeat.

use std::collections::{BTreeMap, HashMap};

use crate::dialogue::{Skipped, Tool, tools};
use crate::error::Error;

/// Namespace and name of functions, by the name that the model knows them by.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions(HashMap<String, (String, String)>);

impl Functions {
    /// Returns namespace and name of the function that the model calls.
    pub(super) fn original(&self, name: String) -> (Option<String>, String) {
        match self.0.get(&name) {
            Some((namespace, original)) => (Some(namespace.clone()), original.clone()),
            None => (None, name),
        }
    }

    /// Returns the name that the model knows a function by.
    pub(super) fn known_as(&self, namespace: Option<&str>, name: String) -> String {
        let Some(namespace) = namespace else { return name };
        let mut all = self.0.iter();
        let is_it = |(of, original): &(String, String)| of == namespace && *original == name;
        all.find(|(_, function)| is_it(function)).map_or(name, |(known, _)| known.clone())
    }
}

/// Returns the functions of a request, and the tools of other types, which cannot run here.
pub(super) fn read(list: Vec<api::ResponseTool>) -> Result<(Vec<Tool>, Functions, Skipped), Error> {
    let mut skipped = Skipped::default();
    let mut found: Vec<(String, Option<String>, api::ResponseTool)> = Vec::new();
    for (at, mut tool) in list.into_iter().enumerate() {
        let place = format!("tools[{at}]");
        match &*tool.kind {
            "function" => found.push((place, None, tool)),
            "namespace" => {
                for (i, inner) in std::mem::take(&mut tool.tools).into_iter().enumerate() {
                    match &*inner.kind {
                        "function" => {
                            let place = format!("{place}.tools[{i}]");
                            found.push((place, Some(tool.name.clone()), inner));
                        }
                        _ => skipped.add(&inner.name),
                    }
                }
            }
            kind => skipped.add(if tool.name.is_empty() { kind } else { &tool.name }),
        }
    }
    let mut uses = BTreeMap::new();
    for (.., tool) in &found {
        *uses.entry(tool.name.clone()).or_insert(0) += 1;
    }
    let (mut offered, mut functions) = (Vec::new(), Functions::default());
    for (place, namespace, tool) in found {
        let api::ResponseTool { name, description, parameters, strict, .. } = tool;
        let known = match &namespace {
            Some(namespace) if uses.get(&name) != Some(&1) => format!("{namespace}__{name}"),
            _ => name.clone(),
        };
        let tool = Tool::new(&place, known.clone(), description, parameters)?;
        offered.push(Tool { strict: strict == Some(true), ..tool });
        if let Some(namespace) = namespace {
            functions.0.insert(known, (namespace, name));
        }
    }
    tools::check(&offered)?;
    Ok((offered, functions, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn functions_of_namespaces_have_names_of_their_own() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let list: Value = json!([
            function("read"), {"type": "web_search"}, {"type": "custom", "name": "apply_patch"},
            {"type": "namespace", "name": "mcp", "description": "d",
                "tools": [function("read"), function("list"), {"type": "custom", "name": "x"}]},
        ]);
        let (offered, functions, _) = read(serde_json::from_value(list).unwrap()).unwrap();
        let names: Vec<&str> = offered.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["read", "mcp__read", "list"]);
        let of = |name: &str| functions.original(name.into());
        assert_eq!(of("mcp__read"), (Some("mcp".into()), "read".into()));
        assert_eq!(of("list"), (Some("mcp".into()), "list".into()));
        assert_eq!(of("read"), (None, "read".into()));
        assert_eq!(functions.known_as(Some("mcp"), "read".into()), "mcp__read");
        assert_eq!(functions.known_as(None, "read".into()), "read");
    }
}
