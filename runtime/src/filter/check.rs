//! What an expression may contain, and what evaluating it costs. Pure: looks at the parsed expression alone.
//!
//! The interpreter has no budget. Data is never larger than the payload, and values are shared, not copied; so memory
//! grows only where an expression joins or makes values. Once, that is bounded by the expression's length; in a loop it
//! is not (`[s].map(a, a + a).map(b, b + b)` doubles with each map), so there it is refused. What is left costs time,
//! which is estimated as steps.

use super::{FUNCTIONS, FilterError, MAX_DEPTH, Size, TYPES};
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use regex::RegexBuilder;

/// Joins of two values outside loops.
const MAX_JOINS: u64 = 16;
/// Bytes of a compiled pattern.
const MAX_PATTERN: usize = 64 << 10;
/// A pattern is compiled each time: as long as so many other steps.
const PATTERN_STEPS: u64 = 1_000;
/// Bytes, and values, of the payload that a function may go through in the time of one step.
const BYTES_A_STEP: usize = 256;
const VALUES_A_STEP: usize = 4;

/// The variable of a macro that collects its result; no expression can name it.
const RESULT: &str = "@result";

/// What evaluating costs, as far as the expression says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// True when the payload has to be parsed.
    pub(super) reads_data: bool,
    once: Part,
    each_turn: Part,
    /// Elements of the longest list or object that the expression itself writes.
    longest: usize,
    joins: u64,
}

/// Outside loops, or in the body of one.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    steps: u64,
    /// Places that may hand the whole payload to a function.
    reads: u64,
}

impl Cost {
    /// Estimate for a payload of `size`.
    pub(super) fn steps(&self, size: &Size) -> u64 {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let read = count(size.bytes / BYTES_A_STEP + size.values / VALUES_A_STEP);
        let part = |part: &Part| part.steps.saturating_add(part.reads.saturating_mul(read));
        // A join can make a list as long as all others together.
        let turns = count(size.longest.max(self.longest)).saturating_mul(1 + self.joins);
        part(&self.once).saturating_add(turns.saturating_mul(part(&self.each_turn)))
    }
}

/// Checks `expression`.
pub(super) fn check(expression: &IdedExpr) -> Result<Cost, FilterError> {
    let mut check = Check::default();
    check.expression(expression, 0)?;
    if check.cost.joins > MAX_JOINS {
        return Err(FilterError::Unbounded("join more than 16 values by +"));
    }
    Ok(check.cost)
}

#[derive(Default)]
struct Check<'e> {
    cost: Cost,
    /// Variables that the comprehensions around the current expression declare.
    declared: Vec<&'e str>,
    in_loop: bool,
    /// Inside what a loop adds to a list.
    is_kept: bool,
}

impl<'e> Check<'e> {
    fn expression(&mut self, expression: &'e IdedExpr, depth: usize) -> Result<(), FilterError> {
        let next = depth + 1;
        if next > MAX_DEPTH {
            return Err(FilterError::TooDeep);
        }
        self.part().steps += 1;
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.identifier(name),
            Expr::Select(select) => match &select.operand.expr {
                // Attributes are cheap; only the payload has to be parsed.
                Expr::Ident(name) if self.is_event(name) && select.field != "data" => Ok(()),
                _ => self.expression(&select.operand, next),
            },
            Expr::Call(call) => {
                known(&call.func_name)?;
                if let (operators::ADD, [result, list]) = (call.func_name.as_str(), &*call.args)
                    && let (Expr::Ident(name), Expr::List(list)) = (&result.expr, &list.expr)
                    && name == RESULT
                {
                    self.is_kept = true;
                    let kept = self.all(&list.elements, next + 1);
                    self.is_kept = false;
                    return kept;
                }
                match call.func_name.as_str() {
                    operators::ADD if !call.args.iter().any(is_number) => self.join()?,
                    "string" | "bytes" if self.is_kept => return Err(KEPT),
                    "string" | "bytes" if !self.in_loop => self.cost.joins += 1,
                    "matches" => self.pattern(&call.args)?,
                    _ => {}
                }
                self.all(call.target.as_deref().into_iter().chain(&call.args), next)
            }
            Expr::List(list) => {
                self.written(list.elements.len())?;
                self.all(&list.elements, next)
            }
            Expr::Map(map) => {
                self.written(map.entries.len())?;
                self.entries(map.entries.iter().map(|entry| &entry.expr), next)
            }
            Expr::Struct(made) => Err(FilterError::UnknownFunction(made.type_name.clone())),
            Expr::Comprehension(comprehension) => {
                if self.in_loop {
                    return Err(FilterError::NestedComprehension);
                }
                self.expression(&comprehension.iter_range, next)?;
                self.expression(&comprehension.accu_init, next)?;
                let outside = self.declared.len();
                self.declared.push(&comprehension.iter_var);
                self.declared.extend(comprehension.iter_var2.as_deref());
                self.declared.push(&comprehension.accu_var);
                self.in_loop = true;
                self.expression(&comprehension.loop_cond, next)?;
                self.expression(&comprehension.loop_step, next)?;
                self.in_loop = false;
                self.expression(&comprehension.result, next)?;
                self.declared.truncate(outside);
                Ok(())
            }
        }
    }

    fn all(
        &mut self,
        expressions: impl IntoIterator<Item = &'e IdedExpr>,
        depth: usize,
    ) -> Result<(), FilterError> {
        expressions
            .into_iter()
            .try_for_each(|expression| self.expression(expression, depth))
    }

    fn entries(
        &mut self,
        entries: impl Iterator<Item = &'e EntryExpr>,
        depth: usize,
    ) -> Result<(), FilterError> {
        for entry in entries {
            match entry {
                EntryExpr::StructField(field) => self.expression(&field.value, depth)?,
                EntryExpr::MapEntry(entry) => {
                    self.expression(&entry.key, depth)?;
                    self.expression(&entry.value, depth)?;
                }
            }
        }
        Ok(())
    }

    const fn part(&mut self) -> &mut Part {
        if self.in_loop {
            &mut self.cost.each_turn
        } else {
            &mut self.cost.once
        }
    }

    /// Text or lists may become one.
    fn join(&mut self) -> Result<(), FilterError> {
        if self.in_loop {
            return Err(FilterError::Unbounded(
                "join values by + inside all, exists, exists_one, map or filter, except numbers written as int(), uint() or double()",
            ));
        }
        self.cost.joins += 1;
        Ok(())
    }

    /// A list or an object of `length` elements is made.
    fn written(&mut self, length: usize) -> Result<(), FilterError> {
        self.cost.longest = self.cost.longest.max(length);
        if self.is_kept { Err(KEPT) } else { Ok(()) }
    }

    fn pattern(&mut self, arguments: &[IdedExpr]) -> Result<(), FilterError> {
        self.part().steps += PATTERN_STEPS;
        let Some(Expr::Literal(LiteralValue::String(pattern))) =
            arguments.last().map(|argument| &argument.expr)
        else {
            return Err(FilterError::Pattern);
        };
        RegexBuilder::new(pattern.inner())
            .size_limit(MAX_PATTERN)
            .build()
            .map(drop)
            .map_err(|_| FilterError::Pattern)
    }

    fn is_event(&self, name: &str) -> bool {
        name == "event" && !self.declared.contains(&name)
    }

    fn identifier(&mut self, name: &str) -> Result<(), FilterError> {
        if self.declared.contains(&name) || TYPES.contains(&name) {
            return Ok(());
        }
        if name != "event" {
            return Err(FilterError::UnknownVariable(name.to_owned()));
        }
        self.cost.reads_data = true;
        self.part().reads += 1;
        Ok(())
    }
}

const KEPT: FilterError = FilterError::Unbounded("make text, lists or objects inside map");

/// A function of the standard library, or an operator?
fn known(name: &str) -> Result<(), FilterError> {
    let is_operator = !name.starts_with(char::is_alphabetic);
    if is_operator || FUNCTIONS.contains(&name) {
        return Ok(());
    }
    Err(FilterError::UnknownFunction(name.to_owned()))
}

/// Can this be nothing but a number? What is added to it is no text and no list then.
fn is_number(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)) => {
            true
        }
        Expr::Call(call) => matches!(
            call.func_name.as_str(),
            "int"
                | "uint"
                | "double"
                | "size"
                | operators::MULTIPLY
                | operators::DIVIDE
                | operators::MODULO
                | operators::NEGATE
        ),
        _ => false,
    }
}
