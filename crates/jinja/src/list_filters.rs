//! Filters of lists.

use std::cmp::Ordering;

use crate::args::{Args, needed, size, truth};
use crate::ast::Operator;
use crate::meter::{Result, fail};
use crate::ops;
use crate::print;
use crate::run::Run;
use crate::value::Value;

impl Run<'_> {
    pub(crate) fn list_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let meter = self.meter;
        match name {
            "first" | "last" => {
                args.none(name)?;
                let mut items = ops::items(meter, value)?;
                let item = if name == "last" { items.pop() } else { items.into_iter().next() };
                Ok(item.unwrap_or_else(|| {
                    Value::missing("#", &format!("No {name} item, sequence was empty."))
                }))
            }
            "reverse" => {
                args.none(name)?;
                if let Value::Text(text) = value {
                    return meter.text(text.text.chars().rev().collect::<String>());
                }
                let mut items = ops::items(meter, value)?;
                items.reverse();
                meter.list(items)
            }
            "join" => self.join(value, args),
            "sum" => {
                let [attribute, start] = args.bind(name, ["attribute", "start"])?;
                let mut sum = start.unwrap_or(Value::Int(0));
                for item in self.keys(&ops::items(meter, value)?, attribute.as_ref())? {
                    sum = ops::binary(meter, Operator::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            "min" | "max" => self.extreme(name, value, args),
            "sort" => {
                let [reverse, sensitive, attribute] =
                    args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
                let items = ops::items(meter, value)?;
                let keys =
                    self.sort_keys(&items, attribute.as_ref(), truth(sensitive.as_ref(), false))?;
                self.sorted(items, keys, truth(reverse.as_ref(), false))
            }
            "unique" => {
                let [sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
                let items = ops::items(meter, value)?;
                let keys =
                    self.folded(&items, attribute.as_ref(), truth(sensitive.as_ref(), false))?;
                let mut seen: Vec<Value> = Vec::new();
                let mut unique = Vec::new();
                for (item, key) in items.into_iter().zip(keys) {
                    let mut new = true;
                    for known in &seen {
                        new = new && !ops::equal(meter, known, &key)?;
                    }
                    if new {
                        seen.push(key);
                        unique.push(item);
                    }
                }
                meter.list(unique)
            }
            "batch" | "slice" => self.groups(name, value, args),
            "dictsort" => self.dictsort(value, args),
            "groupby" => self.groupby(value, args),
            "map" => self.map(value, args),
            _ => self.select(name, value, args),
        }
    }

    /// Each item, or its attribute.
    fn keys(&self, items: &[Value], attribute: Option<&Value>) -> Result<Vec<Value>> {
        let key = |item: &Value| match attribute {
            None | Some(Value::None) => Ok(item.clone()),
            Some(path) => self.path(item, path),
        };
        items.iter().map(key).collect()
    }

    /// Keys in lower case, unless `sensitive`.
    fn folded(
        &self,
        items: &[Value],
        attribute: Option<&Value>,
        sensitive: bool,
    ) -> Result<Vec<Value>> {
        let fold = |key: Value| match &key {
            Value::Text(text) if !sensitive => self.meter.text(text.text.to_lowercase()),
            _ => Ok(key),
        };
        self.keys(items, attribute)?.into_iter().map(fold).collect()
    }

    /// Keys of several attributes, separated by commas.
    fn sort_keys(
        &self,
        items: &[Value],
        attribute: Option<&Value>,
        sensitive: bool,
    ) -> Result<Vec<Value>> {
        let Some(paths) = attribute.and_then(Value::as_str).filter(|paths| paths.contains(','))
        else {
            return self.folded(items, attribute, sensitive);
        };
        let mut columns = Vec::new();
        for path in paths.split(',') {
            let path = Value::constant(path.to_owned());
            columns.push(self.folded(items, Some(&path), sensitive)?);
        }
        let row =
            |at: usize| self.meter.list(columns.iter().map(|column| column[at].clone()).collect());
        (0..items.len()).map(row).collect()
    }

    fn sorted(&self, items: Vec<Value>, keys: Vec<Value>, reverse: bool) -> Result<Value> {
        let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
        ops::sort(self.meter, &mut pairs, |a, b| {
            let order = ops::order(self.meter, &a.0, &b.0)?;
            Ok(if reverse { order.reverse() } else { order })
        })?;
        self.meter.list(pairs.into_iter().map(|(_, item)| item).collect())
    }

    fn join(&self, value: &Value, args: Args) -> Result<Value> {
        let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
        let separator = match &separator {
            Some(value) => print::text(self.meter, value)?,
            None => "".into(),
        };
        let mut out = self.meter.builder();
        for (at, item) in
            self.keys(&ops::items(self.meter, value)?, attribute.as_ref())?.iter().enumerate()
        {
            if at > 0 {
                out.push(&separator)?;
            }
            out.push(&print::text(self.meter, item)?)?;
        }
        out.finish()
    }

    fn extreme(&self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let [sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
        let items = ops::items(self.meter, value)?;
        let keys = self.folded(&items, attribute.as_ref(), truth(sensitive.as_ref(), false))?;
        let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
        let mut best = 0;
        for at in 1..keys.len() {
            if ops::order(self.meter, &keys[at], &keys[best])? == wanted {
                best = at;
            }
        }
        let empty = || Value::missing("#", "No aggregated item, sequence was empty.");
        Ok(items.get(best).cloned().unwrap_or_else(empty))
    }

    fn groups(&self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let [count, fill] = args.bind(name, ["count", "fill_with"])?;
        let count = size(Some(needed(count, name, "count")?), 1)?.clamp(1, 100_000);
        let items = ops::items(self.meter, value)?;
        let fill = fill.filter(|fill| !matches!(fill, Value::None));
        let mut groups = Vec::new();
        if name == "batch" {
            for chunk in items.chunks(count) {
                let mut chunk = chunk.to_vec();
                if let Some(fill) = &fill {
                    self.meter.room(count.saturating_mul(size_of::<Value>()))?;
                    chunk.resize(count, fill.clone());
                }
                groups.push(self.meter.list(chunk)?);
            }
            return self.meter.list(groups);
        }
        let (each, longer) = (items.len() / count, items.len() % count);
        let mut from = 0;
        for at in 0..count {
            let to = from + each + usize::from(at < longer);
            let mut group = items[from..to].to_vec();
            if at >= longer {
                group.extend(fill.clone());
            }
            groups.push(self.meter.list(group)?);
            from = to;
        }
        self.meter.list(groups)
    }

    fn dictsort(&self, value: &Value, args: Args) -> Result<Value> {
        let [sensitive, by, reverse] =
            args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
        let at = match by.as_ref().and_then(Value::as_str) {
            None | Some("key") => 0,
            Some("value") => 1,
            Some(_) => return fail("You can only sort by either \"key\" or \"value\""),
        };
        let Value::Dict(dict) = value else { return fail("dictsort needs a mapping") };
        let pair =
            |(key, value): &(Value, Value)| self.meter.tuple(vec![key.clone(), value.clone()]);
        let items: Vec<Value> = dict.pairs.iter().map(pair).collect::<Result<_>>()?;
        let keys = self.folded(&items, Some(&Value::Int(at)), truth(sensitive.as_ref(), false))?;
        self.sorted(items, keys, truth(reverse.as_ref(), false))
    }

    fn groupby(&self, value: &Value, args: Args) -> Result<Value> {
        let names = ["attribute", "default", "case_sensitive"];
        let [attribute, default, sensitive] = args.bind("groupby", names)?;
        let attribute = needed(attribute, "groupby", "attribute")?;
        let items = ops::items(self.meter, value)?;
        let or_default = |key: Value| match &default {
            Some(default) if key.is_undefined() => default.clone(),
            _ => key,
        };
        let keys: Vec<Value> =
            self.keys(&items, Some(&attribute))?.into_iter().map(or_default).collect();
        let folded = self.folded(&keys, None, truth(sensitive.as_ref(), false))?;
        let mut rows: Vec<(Value, Value, Value)> =
            folded.into_iter().zip(keys).zip(items).map(|((f, k), i)| (f, k, i)).collect();
        ops::sort(self.meter, &mut rows, |a, b| ops::order(self.meter, &a.0, &b.0))?;
        let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
        for (folded, key, item) in rows {
            match groups.last_mut() {
                Some((last, _, items)) if ops::equal(self.meter, last, &folded)? => {
                    items.push(item);
                }
                _ => groups.push((folded, key, vec![item])),
            }
        }
        let group = |(_, key, items)| self.meter.tuple(vec![key, self.meter.list(items)?]);
        self.meter.list(groups.into_iter().map(group).collect::<Result<_>>()?)
    }

    fn map(&mut self, value: &Value, args: Args) -> Result<Value> {
        // As in Jinja2, nothing that is false is iterated.
        let items = if value.is_true() { ops::items(self.meter, value)? } else { Vec::new() };
        if args.positional.is_empty() {
            let [attribute, default] = args.bind("map", ["attribute", "default"])?;
            let attribute = needed(attribute, "map", "attribute")?;
            let keys = self.keys(&items, Some(&attribute))?;
            let or_default = |key: Value| match &default {
                Some(default) if key.is_undefined() => default.clone(),
                _ => key,
            };
            return self.meter.list(keys.into_iter().map(or_default).collect());
        }
        let Args { positional, named } = args;
        let Some((name, rest)) = positional.split_first() else {
            return fail("map needs a filter");
        };
        let Some(name) = name.as_str() else { return fail("map needs the name of a filter") };
        let mut mapped = Vec::with_capacity(items.len());
        for item in items {
            let args = Args { positional: rest.to_vec(), named: named.clone() };
            self.meter.enter()?;
            let value = self.filter(name, item, args);
            self.meter.leave();
            mapped.push(value?);
        }
        self.meter.list(mapped)
    }

    /// `select`, `reject`, and the same of an attribute.
    fn select(&mut self, filter: &str, value: &Value, args: Args) -> Result<Value> {
        let Args { positional, named } = args;
        let mut positional = positional.as_slice();
        let mut attribute = None;
        if filter.ends_with("attr") {
            let Some((path, rest)) = positional.split_first() else {
                return fail(format!("Missing parameter for attribute name of {filter}"));
            };
            attribute = Some(path);
            positional = rest;
        }
        let wanted = filter.starts_with("select");
        let mut selected = Vec::new();
        let items = if value.is_true() { ops::items(self.meter, value)? } else { Vec::new() };
        for item in items {
            let subject = match attribute {
                Some(path) => self.path(&item, path)?,
                None => item.clone(),
            };
            let passes = match positional.split_first() {
                None => subject.is_true(),
                Some((test, rest)) => {
                    let Some(test) = test.as_str() else {
                        return fail("the name of a test is a str");
                    };
                    let args = Args { positional: rest.to_vec(), named: named.clone() };
                    self.test(test, &subject, args)?
                }
            };
            if passes == wanted {
                selected.push(item);
            }
        }
        self.meter.list(selected)
    }
}

/// Arguments of `format`: one tuple or several values.
pub(crate) fn format_arguments(run: &Run<'_>, args: Args) -> Result<Value> {
    if !args.named.is_empty() {
        let pair =
            |(name, value): (crate::ast::Name, Value)| (Value::constant(name.to_string()), value);
        return run.meter.dict(args.named.into_iter().map(pair).collect());
    }
    run.meter.tuple(args.positional)
}
