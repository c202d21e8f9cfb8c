//! Grammars in llama.cpp's notation (GBNF), translated into llguidance's Lark.
//!
//! The rules of GBNF describe characters; llguidance has a lexer with regular terminals. A rule that reaches no
//! recursion becomes a terminal together with the rules that it refers to; the others stay rules. A grammar
//! without recursion is one terminal and keeps its exact meaning. In a recursive grammar a terminal matches the
//! longest text, as in a grammar with a lexer.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Deepest nesting of parentheses.
const DEPTH: usize = 64;
/// Largest count in `{m,n}`, which is llama.cpp's limit.
const REPETITIONS: u32 = 2000;

/// True if the first rule of a text is written in GBNF.
pub(crate) fn is_gbnf(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start);
    let first = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).take(2);
    let first = first.collect::<Vec<_>>().join(" ");
    let name = first.trim_start_matches(is_name);
    name.len() < first.len() && name.trim_start().starts_with("::=")
}

/// Translates GBNF into Lark.
///
/// # Errors
/// Syntax error, with its line.
pub(crate) fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser { rest: text, line: 1, names: HashMap::new(), rules: Vec::new() };
    parser.grammar()?;
    let Some(&root) = parser.names.get("root") else {
        return Err("missing rule `root`".into());
    };
    let mut rules = Vec::new();
    for (name, rule) in parser.rules {
        let undefined = || format!("missing rule `{name:.64}`");
        rules.push(rule.ok_or_else(undefined)?);
    }
    let writer = Writer { recursive: recursive(&rules), rules };
    let mut lark = String::new();
    let _ = writeln!(lark, "start: {}", writer.name(root));
    for index in 0..writer.rules.len() {
        let _ = write!(lark, "{}: ", writer.name(index));
        writer.node(&writer.rules[index], &mut lark);
        lark.push('\n');
    }
    Ok(lark)
}

enum Node {
    Text(String),
    Class { negated: bool, ranges: Vec<(char, char)> },
    Any,
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeated { of: Box<Node>, least: u32, most: Option<u32> },
}

impl Node {
    /// Calls a function with the index of every rule that the node refers to.
    fn references(&self, found: &mut impl FnMut(usize)) {
        match self {
            Self::Text(_) | Self::Class { .. } | Self::Any => {}
            Self::Rule(rule) => found(*rule),
            Self::Sequence(all) | Self::Choice(all) => {
                all.iter().for_each(|node| node.references(found));
            }
            Self::Repeated { of, .. } => of.references(found),
        }
    }
}

/// Marks the rules that reach a cycle of references.
fn recursive(rules: &[Node]) -> Vec<bool> {
    let uses: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut all = Vec::new();
            rule.references(&mut |rule| all.push(rule));
            all
        })
        .collect();
    // Topological sort: a rule is recursive unless all rules that it uses are sorted before it.
    let mut users = vec![Vec::new(); rules.len()];
    let mut left: Vec<usize> = uses.iter().map(Vec::len).collect();
    for (user, uses) in uses.iter().enumerate() {
        uses.iter().for_each(|used| users[*used].push(user));
    }
    let mut recursive = vec![true; rules.len()];
    let mut free: Vec<usize> = (0..rules.len()).filter(|rule| left[*rule] == 0).collect();
    while let Some(rule) = free.pop() {
        recursive[rule] = false;
        for user in &users[rule] {
            left[*user] -= 1;
            if left[*user] == 0 {
                free.push(*user);
            }
        }
    }
    recursive
}

struct Writer {
    rules: Vec<Node>,
    recursive: Vec<bool>,
}

impl Writer {
    /// Lark distinguishes terminals from rules by upper and lower case.
    fn name(&self, rule: usize) -> String {
        if self.recursive[rule] { format!("rule{rule}") } else { format!("TEXT{rule}") }
    }

    fn node(&self, node: &Node, out: &mut String) {
        let joined = |all: &[Node], between: &str, out: &mut String| {
            out.push('(');
            for (at, node) in all.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { between });
                self.node(node, out);
            }
            out.push(')');
        };
        // Writing to a string cannot fail.
        let _ = match node {
            Node::Text(text) => write!(out, "{}", Value::from(text.as_str())),
            Node::Any => write!(out, "/(.|\\n)/"),
            Node::Class { negated, ranges } => {
                out.push_str(if *negated { "/[^" } else { "/[" });
                for (from, to) in ranges {
                    let _ = write!(out, "\\x{{{:x}}}-\\x{{{:x}}}", *from as u32, *to as u32);
                }
                write!(out, "]/")
            }
            Node::Rule(rule) => write!(out, "{}", self.name(*rule)),
            Node::Sequence(all) if all.is_empty() => write!(out, "\"\""),
            Node::Sequence(all) => {
                joined(all, " ", out);
                Ok(())
            }
            Node::Choice(all) => {
                joined(all, " | ", out);
                Ok(())
            }
            Node::Repeated { of, least, most } => {
                out.push('(');
                self.node(of, out);
                out.push(')');
                match (least, most) {
                    (0, None) => write!(out, "*"),
                    (1, None) => write!(out, "+"),
                    (0, Some(1)) => write!(out, "?"),
                    (least, None) => write!(out, "{{{least},}}"),
                    (least, Some(most)) => write!(out, "{{{least},{most}}}"),
                }
            }
        };
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    names: HashMap<&'a str, usize>,
    /// Rules in the order of their first mention.
    rules: Vec<(&'a str, Option<Node>)>,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Parser<'a> {
    fn grammar(&mut self) -> Result<(), String> {
        loop {
            self.space(true);
            if self.rest.is_empty() {
                return Ok(());
            }
            let name = self.name()?;
            let rule = self.rule(name);
            self.space(false);
            if !self.eat("::=") {
                return self.wrong("`::=` must follow the name of a rule");
            }
            if self.rules[rule].1.is_some() {
                return self.wrong(&format!("duplicate rule `{name}`"));
            }
            self.space(true);
            let node = self.choice(0)?;
            self.rules[rule].1 = Some(node);
            if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
                return self.wrong("unexpected text after a rule");
            }
        }
    }

    /// Index of the rule with a name.
    fn rule(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        let rule = *self.names.entry(name).or_insert(next);
        if rule == next {
            self.rules.push((name, None));
        }
        rule
    }

    fn wrong<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("line {}: {what}", self.line))
    }

    /// Skips blanks and comments, and also line ends if `lines` is set.
    fn space(&mut self, lines: bool) {
        loop {
            let Some(c) = self.rest.chars().next() else { return };
            match c {
                ' ' | '\t' => {}
                '\n' | '\r' if lines => self.line += usize::from(c == '\n'),
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                    continue;
                }
                _ => return,
            }
            self.rest = &self.rest[c.len_utf8()..];
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let rest = self.rest.trim_start_matches(is_name);
        let (name, rest) = self.rest.split_at(self.rest.len() - rest.len());
        if name.is_empty() {
            let found: String = self.rest.chars().take(1).collect();
            return self.wrong(&format!("expected the name of a rule, found {found:?}"));
        }
        self.rest = rest;
        Ok(name)
    }

    fn choice(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEPTH {
            return self.wrong(&format!("parentheses are nested deeper than {DEPTH}"));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.eat("|") {
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Choice(all) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut all = Vec::new();
        loop {
            let node = match self.rest.chars().next() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => self.class()?,
                Some('.') => {
                    self.eat(".");
                    Node::Any
                }
                Some('(') => {
                    self.eat("(");
                    self.space(true);
                    let inner = self.choice(depth + 1)?;
                    if !self.eat(")") {
                        return self.wrong("`)` is missing");
                    }
                    inner
                }
                Some(c) if is_name(c) => {
                    let name = self.name()?;
                    Node::Rule(self.rule(name))
                }
                Some('<' | '!') => return self.wrong("tokens by number or name are not supported"),
                _ => return Ok(Node::Sequence(all)),
            };
            let repeated = self.repeated(node)?;
            all.push(repeated);
            // A line may end anywhere within parentheses.
            self.space(depth > 0);
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        loop {
            self.space(false);
            let (least, most) = if self.eat("*") {
                (0, None)
            } else if self.eat("+") {
                (1, None)
            } else if self.eat("?") {
                (0, Some(1))
            } else if self.eat("{") {
                self.braces()?
            } else {
                return Ok(node);
            };
            node = Node::Repeated { of: Box::new(node), least, most };
        }
    }

    /// `m}`, `m,}` or `m,n}`.
    fn braces(&mut self) -> Result<(u32, Option<u32>), String> {
        self.space(false);
        let least = self.number()?;
        self.space(false);
        let most = if self.eat(",") {
            self.space(false);
            if self.rest.starts_with('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.space(false);
        if !self.eat("}") {
            return self.wrong("`}` is missing");
        }
        match most {
            Some(most) if most < least => {
                self.wrong(&format!("{{{least},{most}}} has its limits in the wrong order"))
            }
            most => Ok((least, most)),
        }
    }

    fn number(&mut self) -> Result<u32, String> {
        let rest = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(self.rest.len() - rest.len());
        match digits.parse() {
            Ok(number @ 0..=REPETITIONS) => {
                self.rest = rest;
                Ok(number)
            }
            _ => self.wrong(&format!("expected a number from 0 to {REPETITIONS}")),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        self.eat("\"");
        let mut text = String::new();
        loop {
            match self.rest.chars().next() {
                None | Some('\n') => return self.wrong("`\"` is missing"),
                Some('"') => {
                    self.eat("\"");
                    return Ok(text);
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.eat("[");
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            if self.rest.is_empty() || self.rest.starts_with('\n') {
                return self.wrong("`]` is missing");
            }
            let from = self.character()?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let to = if is_range {
                self.eat("-");
                self.character()?
            } else {
                from
            };
            if to < from {
                return self.wrong(&format!("the range {from:?} to {to:?} is empty"));
            }
            ranges.push((from, to));
        }
        if ranges.is_empty() {
            return self.wrong("empty character class; use `.` for any character");
        }
        Ok(Node::Class { negated, ranges })
    }

    /// Reads a character or an escape sequence.
    fn character(&mut self) -> Result<char, String> {
        let mut all = self.rest.chars();
        let first = all.next();
        if first != Some('\\') {
            let Some(c) = first else {
                return self.wrong("the grammar ends inside a string or class");
            };
            self.rest = all.as_str();
            return Ok(c);
        }
        let escape = all.next();
        self.rest = all.as_str();
        let digits = match escape {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                return self
                    .wrong("unknown escape, expected one of \\n, \\r, \\t, \\\\, \\\", \\[, \\], \\x, \\u or \\U");
            }
        };
        let digits = self.rest.get(..digits).unwrap_or_default();
        let character = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        let Some(character) = character else {
            return self
                .wrong("\\x, \\u and \\U need 2, 4 and 8 hexadecimal digits of a character");
        };
        self.rest = &self.rest[digits.len()..];
        Ok(character)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_rule_identifies_the_notation() {
        for text in ["root ::= \"a\"", "# c\n\nroot   ::= x", "root\n  ::= x", "a-b::=c"] {
            assert!(is_gbnf(text), "{text}");
        }
        for text in ["start: \"::=\"", "", "start: a\na: \"x\"", "%llguidance {}", "::= x"] {
            assert!(!is_gbnf(text), "{text}");
        }
    }

    #[test]
    fn rules_without_recursion_are_terminals() {
        let lark = to_lark("root ::= \"a\" digit{2,3} # two\n  \ndigit ::= [0-9] | [^\\x41\\]-]\n");
        let expected = "start: TEXT0\nTEXT0: (\"a\" (TEXT1){2,3})\n\
             TEXT1: ((/[\\x{30}-\\x{39}]/) | (/[^\\x{41}-\\x{41}\\x{5d}-\\x{5d}\\x{2d}-\\x{2d}]/))\n";
        assert_eq!(lark.as_deref(), Ok(expected));
        let lark =
            to_lark("root ::= list\nlist ::= \"[\" (list |\n ws)* \"]\"\nws ::= \" \"?").unwrap();
        assert!(lark.contains("start: rule0\nrule0: (rule1)\nrule1: "), "{lark}");
        assert!(lark.contains("TEXT2: ((\" \")?)"), "{lark}");
    }

    #[test]
    fn errors_name_their_line() {
        for (text, said) in [
            ("root ::= \"a\n", "line 1: `\"` is missing"),
            ("root ::= a", "missing rule `a`"),
            ("x ::= \"a\"", "missing rule `root`"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: duplicate rule `root`"),
            ("root ::= (\"a\"\n\"b\"", "line 2: `)` is missing"),
            ("root ::= \"a\"{3,2}", "line 1: {3,2} has its limits"),
            ("root ::= \"a\"{9999}", "line 1: expected a number from 0 to 2000"),
            ("root ::= [z-a]", "line 1: the range 'z' to 'a' is empty"),
            ("root ::= <[7]>", "line 1: tokens by number or name are not supported"),
            ("root ::= \"\\q\"", "line 1: unknown escape"),
            ("root ::= \"a\" )", "line 1: unexpected text after a rule"),
        ] {
            let error = to_lark(text).unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
        let deep = format!("root ::= {}", "(".repeat(100_000));
        assert!(to_lark(&deep).unwrap_err().contains("nested deeper"));
    }

    proptest! {
        #[test]
        fn any_text_is_translated_or_rejected(text in "(root ::= )?[a-z\"\\[\\]()|*+?{}0-9,.\\\\ \n:=#^-]{0,60}") {
            if let Ok(lark) = to_lark(&text) {
                prop_assert!(lark.starts_with("start: "));
            }
        }
    }
}
