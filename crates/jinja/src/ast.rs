//! Syntax tree of a template.

use std::sync::Arc;

use crate::value::Value;

pub(crate) type Name = Arc<str>;
pub(crate) type Body = Vec<Statement>;

/// A statement and its line.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: usize,
    pub(crate) kind: StatementKind,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Data(String),
    Print(Expression),
    /// Conditions with their bodies; the body without a condition is the last.
    If(Vec<(Option<Expression>, Body)>),
    For(Arc<ForLoop>),
    Set(Target, Expression),
    /// The rendered body, after the filters.
    SetBlock(Target, Vec<Postfix>, Body),
    Macro(Arc<Macro>),
    /// A call with a body, which is the macro `caller`.
    CallBlock(Expression, Arc<Macro>),
    /// A filter of the rendered body.
    FilterBlock(Vec<Postfix>, Body),
    With(Vec<(Target, Expression)>, Body),
    /// A body with a scope of its own.
    Scope(Body),
    Break,
    Continue,
    /// A statement that needs a loader of templates.
    Unsupported(String),
}

#[derive(Debug)]
pub(crate) struct ForLoop {
    pub(crate) target: Target,
    pub(crate) items: Expression,
    pub(crate) condition: Option<Expression>,
    pub(crate) recursive: bool,
    pub(crate) body: Body,
    pub(crate) otherwise: Body,
}

/// Left-hand side of an assignment.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    /// Attribute of a namespace.
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<(Name, Option<Expression>)>,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

impl Operator {
    pub(crate) const fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::FloorDivide => "//",
            Self::Remainder => "%",
            Self::Power => "** or pow()",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Expression>,
    pub(crate) named: Vec<(Name, Expression)>,
    pub(crate) spread: Option<Expression>,
    pub(crate) spread_named: Option<Expression>,
}

/// An expression. Chains of operators are flat, so the depth of a tree is that of its brackets.
#[derive(Debug)]
pub(crate) enum Expression {
    Constant(Value),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Conditional(Box<(Expression, Expression, Option<Expression>)>),
    /// Operators of one precedence, from left to right.
    Chain(Box<Expression>, Vec<(Operator, Expression)>),
    /// Texts joined by `~`.
    Concat(Vec<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    Postfix(Box<Expression>, Vec<Postfix>),
}

/// Operation on the value before it.
#[derive(Debug)]
pub(crate) enum Postfix {
    Attribute(Name),
    Item(Expression),
    Slice([Option<Expression>; 3]),
    Call(Arguments),
    Filter(Name, Arguments),
    Test { name: Name, arguments: Arguments, negated: bool },
}
