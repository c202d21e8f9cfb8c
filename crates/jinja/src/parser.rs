//! Parser of expressions.

use crate::ast::{Arguments, Comparison, Expression, Name, Operator, Postfix, Target};
use crate::lexer::{SyntaxError, Token};
use crate::value::Value;

/// Deepest nesting of brackets and blocks.
const DEPTH: usize = 150;

type Parsed<T> = Result<T, SyntaxError>;

pub(crate) struct Parser {
    pub(crate) tokens: Vec<(usize, Token)>,
    pub(crate) at: usize,
    depth: usize,
    /// Number of loops around the current statement within its macro.
    pub(crate) loops: usize,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    ("<=", Comparison::LessEqual),
    (">", Comparison::Greater),
    (">=", Comparison::GreaterEqual),
];
const SUMS: [(&str, Operator); 2] = [("+", Operator::Add), ("-", Operator::Subtract)];
const PRODUCTS: [(&str, Operator); 4] = [
    ("*", Operator::Multiply),
    ("/", Operator::Divide),
    ("//", Operator::FloorDivide),
    ("%", Operator::Remainder),
];
const POWERS: [(&str, Operator); 1] = [("**", Operator::Power)];
/// Names that cannot begin the argument of a test.
const NO_ARGUMENT: [&str; 7] = ["else", "or", "and", "if", "in", "not", "is"];

impl Parser {
    pub(crate) const fn new(tokens: Vec<(usize, Token)>) -> Self {
        Self { tokens, at: 0, depth: 0, loops: 0 }
    }

    pub(crate) fn line(&self) -> usize {
        self.tokens[self.at].0
    }

    pub(crate) fn token(&self) -> &Token {
        &self.tokens[self.at].1
    }

    pub(crate) fn advance(&mut self) -> Token {
        let last = self.tokens.len() - 1;
        let token = std::mem::replace(&mut self.tokens[self.at].1, Token::End);
        if self.at < last {
            self.at += 1;
        }
        token
    }

    pub(crate) fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err((self.line(), message.into()))
    }

    pub(crate) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH {
            return self.error(format!("more than {DEPTH} levels of brackets and blocks"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found == name)
    }

    pub(crate) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.token(), Token::Operator(found) if *found == operator)
    }

    pub(crate) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    pub(crate) fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.advance();
        }
        found
    }

    pub(crate) fn expect_operator(&mut self, operator: &str) -> Parsed<()> {
        if self.skip_operator(operator) {
            return Ok(());
        }
        self.error(format!("expected `{operator}`, got {}", self.token().describe()))
    }

    pub(crate) fn expect_name(&mut self, name: &str) -> Parsed<()> {
        if self.skip_name(name) {
            return Ok(());
        }
        self.error(format!("expected `{name}`, got {}", self.token().describe()))
    }

    pub(crate) fn name(&mut self) -> Parsed<Name> {
        if let Token::Name(_) = self.token()
            && let Token::Name(name) = self.advance()
        {
            return Ok(name.into());
        }
        self.error(format!("expected a name, got {}", self.token().describe()))
    }

    pub(crate) fn expression(&mut self) -> Parsed<Expression> {
        self.deeper(|parser| {
            let mut value = parser.or()?;
            while parser.skip_name("if") {
                let condition = parser.or()?;
                let otherwise =
                    if parser.skip_name("else") { Some(parser.expression()?) } else { None };
                value = Expression::Conditional(Box::new((condition, value, otherwise)));
            }
            Ok(value)
        })
    }

    /// An expression without `if`.
    pub(crate) fn unconditional(&mut self) -> Parsed<Expression> {
        self.deeper(Self::or)
    }

    fn or(&mut self) -> Parsed<Expression> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_name("or") {
            all.push(self.and()?);
        }
        Ok(Expression::Or(all))
    }

    fn and(&mut self) -> Parsed<Expression> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_name("and") {
            all.push(self.not()?);
        }
        Ok(Expression::And(all))
    }

    fn not(&mut self) -> Parsed<Expression> {
        if self.skip_name("not") {
            let operand = self.deeper(Self::not)?;
            return Ok(Expression::Not(Box::new(operand)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Parsed<Expression> {
        let first = self.chain(&SUMS)?;
        let mut more = Vec::new();
        loop {
            let symbol = COMPARISONS.iter().find(|(symbol, _)| self.is_operator(symbol));
            let comparison = if let Some((_, comparison)) = symbol {
                self.advance();
                *comparison
            } else if self.skip_name("in") {
                Comparison::In
            } else if self.is_name("not")
                && matches!(self.tokens.get(self.at + 1), Some((_, Token::Name(n))) if n == "in")
            {
                self.advance();
                self.advance();
                Comparison::NotIn
            } else {
                break;
            };
            more.push((comparison, self.chain(&SUMS)?));
        }
        Ok(if more.is_empty() { first } else { Expression::Compare(Box::new(first), more) })
    }

    /// Operators of one precedence.
    fn chain(&mut self, operators: &'static [(&str, Operator)]) -> Parsed<Expression> {
        let operand = |parser: &mut Self| match operators[0].0 {
            "+" => parser.concat(),
            "*" => parser.chain(&POWERS),
            _ => parser.unary(true),
        };
        let first = operand(self)?;
        let mut more = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(s, _)| self.is_operator(s)) {
            self.advance();
            more.push((*operator, operand(self)?));
        }
        Ok(if more.is_empty() { first } else { Expression::Chain(Box::new(first), more) })
    }

    fn concat(&mut self) -> Parsed<Expression> {
        let first = self.chain(&PRODUCTS)?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_operator("~") {
            all.push(self.chain(&PRODUCTS)?);
        }
        Ok(Expression::Concat(all))
    }

    fn unary(&mut self, filters: bool) -> Parsed<Expression> {
        let value = if self.skip_operator("-") {
            Expression::Negative(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else if self.skip_operator("+") {
            Expression::Positive(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut more = Vec::new();
        self.postfix(&mut more)?;
        if filters {
            self.filters(&mut more)?;
        }
        Ok(if more.is_empty() { value } else { Expression::Postfix(Box::new(value), more) })
    }

    fn primary(&mut self) -> Parsed<Expression> {
        match self.token() {
            Token::Name(_) => Ok(match &*self.name()? {
                "true" | "True" => Expression::Constant(Value::Bool(true)),
                "false" | "False" => Expression::Constant(Value::Bool(false)),
                "none" | "None" => Expression::Constant(Value::None),
                name => Expression::Name(name.into()),
            }),
            Token::Text(_) => {
                let mut all = String::new();
                while let Token::Text(text) = self.token() {
                    all.push_str(text);
                    self.advance();
                }
                Ok(Expression::Constant(Value::constant(all)))
            }
            Token::Int(number) => {
                let number = *number;
                self.advance();
                Ok(Expression::Constant(Value::Int(number)))
            }
            Token::Float(number) => {
                let number = *number;
                self.advance();
                Ok(Expression::Constant(Value::Float(number)))
            }
            Token::Operator("(") => {
                self.advance();
                let value = self.tuple(true, true, &[")"])?;
                self.expect_operator(")")?;
                Ok(value)
            }
            Token::Operator("[") => {
                self.advance();
                let items = self.separated("]", Self::expression)?;
                Ok(Expression::List(items))
            }
            Token::Operator("{") => {
                self.advance();
                let pairs = self.separated("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_operator(":")?;
                    Ok((key, parser.expression()?))
                })?;
                Ok(Expression::Dict(pairs))
            }
            token => self.error(format!("unexpected {}", token.describe())),
        }
    }

    /// Items separated by commas up to a closing bracket.
    fn separated<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_operator(close) {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// One expression, or a tuple without brackets. `empty` if there may be none.
    pub(crate) fn tuple(
        &mut self,
        conditional: bool,
        empty: bool,
        ends: &[&str],
    ) -> Parsed<Expression> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() && !self.skip_operator(",") {
                break;
            }
            is_tuple |= !items.is_empty();
            let ended = ends.iter().any(|end| self.is_operator(end) || self.is_name(end));
            if ended || matches!(self.token(), Token::BlockEnd | Token::VariableEnd | Token::End) {
                break;
            }
            items.push(if conditional { self.expression()? } else { self.unconditional()? });
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                items.push(last);
                Ok(Expression::Tuple(items))
            }
            None if empty => Ok(Expression::Tuple(items)),
            None => self.error(format!("expected an expression, got {}", self.token().describe())),
        }
    }

    fn postfix(&mut self, more: &mut Vec<Postfix>) -> Parsed<()> {
        loop {
            if self.skip_operator(".") {
                more.push(match self.token() {
                    Token::Int(index) => {
                        let index = Value::Int(*index);
                        self.advance();
                        Postfix::Item(Expression::Constant(index))
                    }
                    _ => Postfix::Attribute(self.name()?),
                });
            } else if self.skip_operator("[") {
                more.push(self.subscript()?);
            } else if self.is_operator("(") {
                more.push(Postfix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    /// An index or a slice, after its opening bracket.
    fn subscript(&mut self) -> Parsed<Postfix> {
        let mut parts: [Option<Expression>; 3] = [const { None }; 3];
        let mut at = 0;
        while !self.is_operator("]") {
            if self.skip_operator(":") {
                at += 1;
                if at > 2 {
                    return self.error("unexpected `:`");
                }
            } else if parts[at].is_none() {
                parts[at] = Some(self.expression()?);
            } else {
                return self.error(format!("expected `]`, got {}", self.token().describe()));
            }
        }
        self.expect_operator("]")?;
        match (at, parts) {
            (0, [Some(index), ..]) => Ok(Postfix::Item(index)),
            (0, _) => self.error("expected subscript expression"),
            (_, parts) => Ok(Postfix::Slice(parts)),
        }
    }

    /// Filters, tests, and calls of their results.
    fn filters(&mut self, more: &mut Vec<Postfix>) -> Parsed<()> {
        loop {
            if self.is_operator("|") {
                self.filter(more)?;
            } else if self.skip_name("is") {
                let negated = self.skip_name("not");
                let name = self.dotted()?;
                let arguments = self.test_arguments()?;
                more.push(Postfix::Test { name, arguments, negated });
            } else if self.is_operator("(") {
                more.push(Postfix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn filter(&mut self, more: &mut Vec<Postfix>) -> Parsed<()> {
        self.expect_operator("|")?;
        self.filter_name(more)
    }

    /// Filters whose first one has no `|` before it.
    pub(crate) fn inline_filters(&mut self, more: &mut Vec<Postfix>) -> Parsed<()> {
        self.filter_name(more)?;
        while self.is_operator("|") {
            self.filter(more)?;
        }
        Ok(())
    }

    fn filter_name(&mut self, more: &mut Vec<Postfix>) -> Parsed<()> {
        let name = self.dotted()?;
        let has_arguments = self.is_operator("(");
        let arguments = if has_arguments { self.arguments()? } else { Arguments::default() };
        more.push(Postfix::Filter(name, arguments));
        Ok(())
    }

    fn dotted(&mut self) -> Parsed<Name> {
        let mut name = self.name()?.to_string();
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name.into())
    }

    fn test_arguments(&mut self) -> Parsed<Arguments> {
        if self.is_operator("(") {
            return self.arguments();
        }
        let begins = match self.token() {
            Token::Name(name) => !NO_ARGUMENT.contains(&name.as_str()),
            Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Operator(operator) => ["[", "{"].contains(operator),
            _ => false,
        };
        let mut arguments = Arguments::default();
        if begins {
            let value = self.deeper(Self::primary)?;
            let mut more = Vec::new();
            self.postfix(&mut more)?;
            arguments.positional.push(match more.is_empty() {
                true => value,
                false => Expression::Postfix(Box::new(value), more),
            });
        }
        Ok(arguments)
    }

    pub(crate) fn arguments(&mut self) -> Parsed<Arguments> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.skip_operator(")") {
            if !std::mem::take(&mut first) {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            let is_named = matches!(self.token(), Token::Name(_))
                && matches!(self.tokens.get(self.at + 1), Some((_, Token::Operator("="))));
            if self.skip_operator("**") {
                arguments.spread_named = Some(self.expression()?);
            } else if self.skip_operator("*") {
                arguments.spread = Some(self.expression()?);
            } else if is_named {
                let name = self.name()?;
                self.expect_operator("=")?;
                arguments.named.push((name, self.expression()?));
            } else if arguments.named.is_empty() {
                arguments.positional.push(self.expression()?);
            } else {
                return self.error("a positional argument after a named one");
            }
        }
        Ok(arguments)
    }

    /// Names on the left of an assignment or a loop.
    pub(crate) fn target(&mut self, attributes: bool) -> Parsed<Target> {
        let mut all = Vec::new();
        let mut is_tuple = false;
        loop {
            all.push(self.deeper(|parser| parser.one_target(attributes))?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
            if self.is_name("in") || self.is_operator("=") || self.is_operator(")") {
                break;
            }
        }
        match all.pop() {
            Some(only) if !is_tuple => Ok(only),
            last => {
                all.extend(last);
                Ok(Target::Tuple(all))
            }
        }
    }

    fn one_target(&mut self, attributes: bool) -> Parsed<Target> {
        if self.skip_operator("(") {
            let target = self.target(attributes)?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&&*name) {
            return self.error(format!("cannot assign to `{name}`"));
        }
        if attributes && self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
