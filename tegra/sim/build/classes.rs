//! Makes the tables of `src/class` from NVIDIA's class headers, whose definitions are checked in as
//! `../tests/data/classes.csv`.
//!
//! Made before compilation, and not a table that is read at the start: addresses are patterns of a `match`,
//! and a name that the headers do not have fails to compile.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const TABLE: &str = "../tests/data/classes.csv";

/// A method, an array of them, or the whole QMD, which has no name and no address.
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
    /// Bits from one to the next, and how many there are, for an array.
    array: Option<(u32, u32)>,
    values: Vec<(&'a str, &'a str)>,
}

/// Writes a file for each class, and one for the QMD.
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

/// The methods of a class; first what belongs to none, which is all of a QMD.
fn read<'a>(table: &'a str, class: &str) -> Result<Vec<Method<'a>>, Box<dyn Error>> {
    let mut methods = vec![Method::default()];
    // The name that the values of the last field begin with.
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

/// What follows in a name that begins with another.
fn rest<'a>(name: &'a str, of: &str) -> Option<&'a str> {
    if of.is_empty() { Some(name) } else { name.strip_prefix(of)?.strip_prefix('_') }
}

/// The constants of a class: each method's address, a module of its fields, the table of all.
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

/// Fields and their values, by name.
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

/// All fields of a method in the header's order, those of an array one by one.
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
