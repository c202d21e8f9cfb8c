//! Escapes in string literals, as Python's codec `unicode-escape` decodes them.

/// Decodes the inside of a literal.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return Err("a `\\` ends the string".into()) };
        let simple = match c {
            '\n' => Some(""),
            '\\' => Some("\\"),
            '\'' => Some("'"),
            '"' => Some("\""),
            'a' => Some("\x07"),
            'b' => Some("\x08"),
            'f' => Some("\x0c"),
            'n' => Some("\n"),
            'r' => Some("\r"),
            't' => Some("\t"),
            'v' => Some("\x0b"),
            _ => None,
        };
        if let Some(simple) = simple {
            out.push_str(simple);
            rest = &rest[1..];
            continue;
        }
        let digits = match c {
            'x' => Some((1, 2, 16)),
            'u' => Some((1, 4, 16)),
            'U' => Some((1, 8, 16)),
            '0'..='7' => {
                let octal = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
                Some((0, octal, 8))
            }
            _ => None,
        };
        let Some((skip, count, radix)) = digits else {
            // Python leaves unknown escapes unchanged.
            out.push('\\');
            continue;
        };
        let code = rest.get(skip..skip + count).filter(|d| d.chars().all(|c| c.is_digit(radix)));
        let code = code.and_then(|digits| u32::from_str_radix(digits, radix).ok());
        let Some(code) = code else { return Err(format!("truncated escape `\\{c}`")) };
        out.push(char::from_u32(code).ok_or("an escape names no character")?);
        rest = &rest[skip + count..];
    }
    out.push_str(rest);
    Ok(out)
}
