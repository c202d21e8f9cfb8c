//! Arguments of calls.

use crate::ast::Name;
use crate::meter::{Result, fail};
use crate::value::Value;

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Name, Value)>,
}

impl Args {
    /// The arguments by name or position.
    pub(crate) fn bind<const N: usize>(
        self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let given = self.positional.len();
            return fail(format!("{function}() takes at most {N} arguments, {given} given"));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| *known == &*name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                _ => {
                    return fail(format!("{function}() got an unexpected argument `{name}`"));
                }
            }
        }
        Ok(bound)
    }

    /// Fails if there are arguments.
    pub(crate) fn none(self, function: &str) -> Result<()> {
        let [] = self.bind(function, [])?;
        Ok(())
    }
}

/// An argument that a function cannot do without.
pub(crate) fn needed(value: Option<Value>, function: &str, name: &str) -> Result<Value> {
    match value {
        Some(value) => Ok(value),
        None => fail(format!("{function}() needs the argument `{name}`")),
    }
}

/// An integer argument.
pub(crate) fn int(value: Option<Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => match value.as_int() {
            Some(number) => Ok(number),
            None => {
                fail(format!("'{}' object cannot be interpreted as an integer", value.type_name()))
            }
        },
    }
}

/// A size argument; negative ones are 0.
pub(crate) fn size(value: Option<Value>, default: usize) -> Result<usize> {
    let number = int(value, i128::try_from(default).unwrap_or(i128::MAX))?;
    Ok(usize::try_from(number.max(0)).unwrap_or(usize::MAX))
}

/// A text argument.
pub(crate) fn text<'v>(value: &'v Value, function: &str) -> Result<&'v str> {
    match value.as_str() {
        Some(text) => Ok(text),
        None => fail(format!("{function}() needs a str, not {}", value.type_name())),
    }
}

/// A truth value.
pub(crate) fn truth(value: Option<&Value>, default: bool) -> bool {
    value.map_or(default, Value::is_true)
}
