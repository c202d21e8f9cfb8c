//! Generates the tables of `src/class` from NVIDIA's class headers, whose definitions are checked
//! in as `../tests/data/classes.csv`.
//!
//! The tables are generated before compilation because addresses are patterns of `match`, and so
//! that a name missing from the headers does not compile.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const TABLE: &str = "../tests/data/classes.csv";

/// A method, an array of methods, or the whole QMD, which has no name and no address.
#[derive(Default)]
struct Method<'a> {
    name: &'a str,
    address: &'a str,
    step: &'a str,
    count: &'a str,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    name: &'a str,
    high: u32,
    low: u32,
    /// Stride in bits and length, for an array.
    array: Option<(u32, u32)>,
    values: Vec<(&'a str, &'a str)>,
}

/// Writes one file for each class and one for the QMD.
pub(crate) fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={TABLE}");
    let table = fs::read_to_string(TABLE)?;
    for class in ["c76f", "c7b5", "c7c0"] {
        fs::write(out.join(format!("{class}.rs")), methods(&read(&table, class)?)?)?;
    }
    let qmd = &read(&table, "qmd-v03_00")?[0];
    fs::write(out.join("qmd.rs"), format!("{}{}", constants(qmd)?, list(qmd)))?;
    Ok(())
}

/// Parses the methods of a class; the first entry contains fields outside any method, which is all of
/// a QMD.
fn read<'a>(table: &'a str, class: &str) -> Result<Vec<Method<'a>>, Box<dyn Error>> {
    let mut methods = vec![Method::default()];
    // Prefix of the values of the last field.
    let mut field = "";
    for line in table.lines() {
        let columns: Vec<_> = line.split(',').collect();
        let &[of, kind, name, first, low, step, count] = &*columns else {
            return Err(format!("{TABLE}: not seven columns: {line}").into());
        };
        if of != class {
            continue;
        }
        let method = methods.last_mut().ok_or("there is always one")?;
        match kind {
            "method" => {
                methods.push(Method { name, address: first, step, count, fields: Vec::new() });
            }
            // Fields of no method, after the last: ring entries and push-buffer headers.
            "field" => match rest(name, method.name) {
                Some(own) => {
                    let array =
                        if count.is_empty() { None } else { Some((step.parse()?, count.parse()?)) };
                    let (high, low) = (first.parse()?, low.parse()?);
                    method.fields.push(Field { name: own, high, low, array, values: Vec::new() });
                    field = name;
                }
                None => field = "no field",
            },
            "value" => {
                if let (Some(own), Some(field)) = (rest(name, field), method.fields.last_mut()) {
                    field.values.push((first, own));
                }
            }
            _ => {}
        }
    }
    Ok(methods)
}

/// Returns the rest of a name after a prefix.
fn rest<'a>(name: &'a str, of: &str) -> Option<&'a str> {
    if of.is_empty() { Some(name) } else { name.strip_prefix(of)?.strip_prefix('_') }
}

/// Generates the constants of a class: addresses, a module of fields for each method, and the
/// table.
fn methods(methods: &[Method<'_>]) -> Result<String, Box<dyn Error>> {
    let (mut text, mut table) = (String::new(), String::new());
    for method in &methods[1..] {
        let Method { name, address, step, count, .. } = method;
        let (step, count) = if count.is_empty() { ("4", "1") } else { (*step, *count) };
        let (constants, fields) = (constants(method)?, list(method));
        writeln!(text, "pub const {name}: u32 = {address};")?;
        writeln!(text, "pub mod {name} {{ use crate::class::Field;\n{constants}{fields}}}")?;
        writeln!(
            table,
            "Method {{ address: {name}, count: {count}, step: {step}, name: {name:?}, \
             fields: {name}::FIELDS }},"
        )?;
    }
    writeln!(text, "pub const METHODS: &[Method] = &[\n{table}];")?;
    Ok(text)
}

/// Generates constants of fields and their values.
fn constants(method: &Method<'_>) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for Field { name, high, low, array, values } in &method.fields {
        let list: String =
            values.iter().map(|(number, name)| format!("({number}, {name:?}),")).collect();
        let one = |at: u32| {
            let (high, low) = (high + at, low + at);
            format!("Field {{ name: {name:?}, high: {high}, low: {low}, values: &[{list}] }}")
        };
        match array {
            Some((step, count)) => {
                let all: Vec<_> = (0..*count).map(|i| one(i * step)).collect();
                writeln!(text, "pub const {name}: [Field; {count}] = [{}];", all.join(", "))?;
            }
            None => writeln!(text, "pub const {name}: Field = {};", one(0))?,
        }
        for (number, value) in values {
            writeln!(text, "pub const {name}_{value}: u32 = {number};")?;
        }
    }
    Ok(text)
}

/// Generates the list of a method's fields in header order, with arrays expanded.
fn list(method: &Method<'_>) -> String {
    let names = method.fields.iter().flat_map(|field| {
        let each = |i| format!("{}[{i}],", field.name);
        match field.array {
            Some((_, count)) => (0..count).map(each).collect(),
            None => vec![format!("{},", field.name)],
        }
    });
    format!("pub const FIELDS: &[Field] = &[{}];\n", names.collect::<String>())
}
