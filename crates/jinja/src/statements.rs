//! Parser of statements.

use std::sync::Arc;

use crate::ast::{
    Body, Expression, ForLoop, Macro, Name, Postfix, Statement, StatementKind, Target,
};
use crate::lexer::{self, SyntaxError, Token};
use crate::parser::Parser;

type Parsed<T> = Result<T, SyntaxError>;

/// Parses a whole template.
pub(crate) fn parse(source: &str) -> Parsed<Body> {
    let mut parser = Parser::new(lexer::tokens(source)?);
    let body = parser.body(&[])?;
    match parser.token() {
        Token::End => Ok(body),
        token => parser.error(format!("unexpected {}", token.describe())),
    }
}

impl Parser {
    /// Statements up to a tag with one of the names, which is the current token, or to the end of the template.
    fn body(&mut self, ends: &[&str]) -> Parsed<Body> {
        let mut body = Body::new();
        loop {
            let line = self.line();
            let kind = match self.token() {
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => {
                    return self.error(format!(
                        "unexpected end of template, expected `{}`",
                        ends.join("` or `")
                    ));
                }
                Token::Data(_) => match self.advance() {
                    Token::Data(text) => StatementKind::Data(text),
                    _ => continue,
                },
                Token::VariableBegin => {
                    self.advance();
                    let value = self.tuple(true, false, &[])?;
                    self.end_of(&Token::VariableEnd)?;
                    StatementKind::Print(value)
                }
                _ => {
                    self.advance();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.deeper(Self::statement)?
                }
            };
            body.push(Statement { line, kind });
        }
    }

    fn end_of(&mut self, token: &Token) -> Parsed<()> {
        if self.token() == token {
            self.advance();
            return Ok(());
        }
        self.error(format!("expected {}, got {}", token.describe(), self.token().describe()))
    }

    fn block_end(&mut self) -> Parsed<()> {
        self.end_of(&Token::BlockEnd)
    }

    /// A body up to `end`, with the end's tag.
    fn until(&mut self, end: &str) -> Parsed<Body> {
        self.block_end()?;
        let body = self.body(&[end])?;
        self.advance();
        Ok(body)
    }

    /// The statement whose name is the current token.
    fn statement(&mut self) -> Parsed<StatementKind> {
        let name = self.name()?;
        let kind = match &*name {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => return self.set_statement(),
            "macro" => {
                let name = self.name()?;
                StatementKind::Macro(Arc::new(self.macro_statement(name, "endmacro")?))
            }
            "call" => self.call_statement()?,
            "filter" => {
                let mut filters = Vec::new();
                self.inline_filters(&mut filters)?;
                StatementKind::FilterBlock(filters, self.until("endfilter")?)
            }
            "with" => self.with_statement()?,
            // Marks the assistant's text for training.
            "generation" => StatementKind::Scope(self.until("endgeneration")?),
            "autoescape" => {
                self.expression()?;
                StatementKind::Scope(self.until("endautoescape")?)
            }
            "block" => {
                self.name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                let body = self.until("endblock")?;
                if matches!(self.token(), Token::Name(_)) {
                    self.advance();
                }
                StatementKind::Scope(body)
            }
            "break" | "continue" if self.loops == 0 => {
                return self.error(format!("`{name}` outside of a loop"));
            }
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            "include" | "import" | "from" | "extends" => {
                while !matches!(self.token(), Token::BlockEnd | Token::End) {
                    self.advance();
                }
                StatementKind::Unsupported(name.to_string())
            }
            _ => return self.error(format!("encountered unknown tag `{name}`")),
        };
        self.block_end()?;
        Ok(kind)
    }

    fn if_statement(&mut self) -> Parsed<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(false, false, &[])?;
            self.block_end()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((Some(condition), body));
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                self.block_end()?;
                branches.push((None, self.body(&["endif"])?));
            }
            self.advance();
            return Ok(StatementKind::If(branches));
        }
    }

    fn for_statement(&mut self) -> Parsed<StatementKind> {
        let target = self.target(false)?;
        self.expect_name("in")?;
        let items = self.tuple(false, false, &["recursive", "if"])?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let body = self.body(&["else", "endfor"]);
        self.loops -= 1;
        let body = body?;
        let mut otherwise = Body::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.body(&["endfor"])?;
        }
        self.advance();
        let all = ForLoop { target, items, condition, recursive, body, otherwise };
        Ok(StatementKind::For(Arc::new(all)))
    }

    /// An assignment; it may have a body, then the end of the last tag remains for the caller.
    fn set_statement(&mut self) -> Parsed<StatementKind> {
        let target = self.target(true)?;
        if self.skip_operator("=") {
            let value = self.tuple(true, false, &[])?;
            self.block_end()?;
            return Ok(StatementKind::Set(target, value));
        }
        let mut filters = Vec::new();
        if self.skip_operator("|") {
            self.inline_filters(&mut filters)?;
        }
        let body = self.until("endset")?;
        self.block_end()?;
        Ok(StatementKind::SetBlock(target, filters, body))
    }

    /// Parameters and body of a macro. Its name is read before.
    fn macro_statement(&mut self, name: Name, end: &str) -> Parsed<Macro> {
        self.expect_operator("(")?;
        let mut parameters = Vec::new();
        while !self.skip_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
            if default.is_none()
                && parameters.iter().any(|(_, known): &(_, Option<_>)| known.is_some())
            {
                return self.error("a parameter without a default follows one that has one");
            }
            parameters.push((name, default));
        }
        self.macro_body(name, parameters, end)
    }

    fn macro_body(
        &mut self,
        name: Name,
        parameters: Vec<(Name, Option<Expression>)>,
        end: &str,
    ) -> Parsed<Macro> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.until(end);
        self.loops = loops;
        Ok(Macro { name, parameters, body: body? })
    }

    fn call_statement(&mut self) -> Parsed<StatementKind> {
        let caller = Name::from("caller");
        let mut parameters = Vec::new();
        if self.skip_operator("(") {
            while !self.skip_operator(")") {
                if !parameters.is_empty() {
                    self.expect_operator(",")?;
                }
                let name = self.name()?;
                let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
                parameters.push((name, default));
            }
        }
        let call = self.expression()?;
        let is_call = matches!(&call, Expression::Postfix(_, more) if matches!(more.last(), Some(Postfix::Call(_))));
        if !is_call {
            return self.error("expected a call");
        }
        let body = self.macro_body(caller, parameters, "endcall")?;
        Ok(StatementKind::CallBlock(call, Arc::new(body)))
    }

    fn with_statement(&mut self) -> Parsed<StatementKind> {
        let mut pairs: Vec<(Target, Expression)> = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !pairs.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target_name()?;
            self.expect_operator("=")?;
            pairs.push((target, self.expression()?));
        }
        Ok(StatementKind::With(pairs, self.until("endwith")?))
    }

    fn target_name(&mut self) -> Parsed<Target> {
        self.name().map(Target::Name)
    }
}
