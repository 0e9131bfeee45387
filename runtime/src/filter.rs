//! Subscription filters: a CEL expression over one variable, `event`, compiled once and evaluated per event.
//!
//! `event.id`, `.source`, `.type`, `.subject`, `.time` and every extension are strings; an absent attribute is
//! an absent field. `event.data` is the parsed payload when its content type is JSON, else absent. JSON integers
//! are CEL `int`, so that `event.data.total + 1 > 10` works. Reading an absent field is an evaluation error, not
//! false: a filter asks `has(event.subject)` first.
//!
//! The expression is written by a user, so what it can cost is bounded: its length, its nesting (parsing and
//! evaluation recurse), no comprehension inside another, and the size of the data it may look at.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::objects::{Key, Map};
use cel::{Context, Env, Program, Value};
use fanout_contract::envelope::Attributes;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Longest filter, bytes; the CRD says the same.
pub const MAX_BYTES: usize = 4096;
/// Deepest expression that is accepted: every level costs stack when it is evaluated.
const MAX_DEPTH: usize = 64;
/// Values (scalars, lists, objects) in `event.data` beyond which a filter that reads it is not evaluated.
const MAX_DATA_NODES: usize = 10_000;
/// Stack of the thread that parses. The parser recurses over what it has not checked yet.
const PARSER_STACK: usize = 64 << 20;

/// Functions of the standard library, operators aside. A call of any other is refused when compiling instead of
/// failing on every event.
const FUNCTIONS: &[&str] = &[
    "bool",
    "bytes",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "int",
    "matches",
    "size",
    "startsWith",
    "string",
    "timestamp",
    "type",
    "uint",
];
/// Identifiers that name a type, as in `type(event.data) == map`.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// Why an expression is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Longer than [`MAX_BYTES`].
    #[error("filter must be at most {MAX_BYTES} bytes")]
    TooLong,
    /// Nested too deeply.
    #[error("filter must be nested at most {MAX_DEPTH} levels deep")]
    TooDeep,
    /// Not CEL.
    #[error("filter must be a CEL expression: {0}")]
    Syntax(String),
    /// A variable other than `event`.
    #[error("filter must use no variable but event: {0}")]
    UnknownVariable(String),
    /// A function outside the standard library.
    #[error("filter must use functions of the CEL standard library only: {0}")]
    UnknownFunction(String),
    /// A comprehension inside another one.
    #[error("filter must not nest all, exists, exists_one, map or filter in one another")]
    NestedComprehension,
}

/// Why an event could not be judged. The caller counts it and treats the event as not matching.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A field that the event does not have, a type that does not fit, an overflow.
    #[error("the expression failed on this event")]
    Failed,
    /// The expression gave something other than true or false.
    #[error("the expression is not a boolean")]
    NotBoolean,
    /// The payload has more values than a filter may look at.
    #[error("the payload has more than {MAX_DATA_NODES} values")]
    DataTooLarge,
}

/// A compiled filter.
pub struct Filter {
    program: Program,
    env: Arc<Env>,
    reads_data: bool,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter").finish_non_exhaustive()
    }
}

impl Filter {
    /// Compiles `source`. Takes up to some milliseconds and starts a thread: not for a hot path.
    ///
    /// # Errors
    /// The expression is too long or too deep, no CEL, or uses what a filter may not use.
    pub fn compile(source: &str) -> Result<Self, FilterError> {
        if source.len() > MAX_BYTES {
            return Err(FilterError::TooLong);
        }
        // Everything that may recurse deeply happens on the large stack, dropping a refused tree included.
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("filter-compile".to_owned())
                .stack_size(PARSER_STACK)
                .spawn_scoped(scope, || compile(source))
                .map_err(|error| FilterError::Syntax(format!("no thread to parse it: {error}")))?
                .join()
                .unwrap_or_else(|_| Err(FilterError::Syntax("the parser gave up".to_owned())))
        })
    }

    /// Does the event pass? `data` is the payload as it is in the log.
    ///
    /// # Errors
    /// The expression could not be evaluated on this event, which is then no match.
    pub fn matches(&self, event: &Attributes, data: Option<&[u8]>) -> Result<bool, EvalError> {
        let data = match data {
            Some(bytes) if self.reads_data && is_json(event.content_type.as_deref()) => {
                parse(bytes)?
            }
            _ => None,
        };
        let mut context = Context::with_env(Arc::clone(&self.env));
        context.add_variable_from_value("event", variable(event, data));
        // The interpreter is young: a panic in it must cost one event, not the worker.
        let value = catch_unwind(AssertUnwindSafe(|| self.program.execute(&context)));
        match value {
            Ok(Ok(Value::Bool(matches))) => Ok(matches),
            Ok(Ok(_)) => Err(EvalError::NotBoolean),
            Ok(Err(_)) | Err(_) => Err(EvalError::Failed),
        }
    }
}

fn compile(source: &str) -> Result<Filter, FilterError> {
    let env = Env::stdlib();
    let program = env.compile(source).map_err(|errors| syntax(&errors))?;
    let mut check = Check::default();
    check.expression(program.expression(), 0)?;
    Ok(Filter {
        reads_data: check.reads_data,
        program,
        env: Arc::new(env),
    })
}

/// First message of the parser with its place, short enough for a condition.
fn syntax(errors: &cel::ParseErrors) -> FilterError {
    const LONGEST: usize = 200;
    let message = errors.errors.first().map_or_else(
        || "it does not parse".to_owned(),
        |error| {
            format!(
                "{} (line {}, column {})",
                error.msg, error.pos.0, error.pos.1
            )
        },
    );
    FilterError::Syntax(message.chars().take(LONGEST).collect())
}

/// What the tree says before anything is evaluated.
#[derive(Default)]
struct Check<'e> {
    /// Variables that the comprehensions around the current expression declare.
    declared: Vec<&'e str>,
    in_loop: bool,
    reads_data: bool,
}

impl<'e> Check<'e> {
    fn expression(&mut self, expression: &'e IdedExpr, depth: usize) -> Result<(), FilterError> {
        let next = depth + 1;
        if next > MAX_DEPTH {
            return Err(FilterError::TooDeep);
        }
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.identifier(name),
            Expr::Select(select) => match &select.operand.expr {
                // Attributes are cheap; only the payload has to be parsed.
                Expr::Ident(name) if self.is_event(name) && select.field != "data" => Ok(()),
                _ => self.expression(&select.operand, next),
            },
            Expr::Call(call) => {
                let operator = !call.func_name.starts_with(char::is_alphabetic);
                if !operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
                    return Err(FilterError::UnknownFunction(call.func_name.clone()));
                }
                self.all(call.target.as_deref().into_iter().chain(&call.args), next)
            }
            Expr::List(list) => self.all(&list.elements, next),
            Expr::Map(map) => self.entries(map.entries.iter().map(|entry| &entry.expr), next),
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
        self.reads_data = true;
        Ok(())
    }
}

fn variable(event: &Attributes, data: Option<Value>) -> Value {
    let text = |value: &str| Some(Value::from(value));
    // After the extensions, and removing where absent: no extension can pose as one of these.
    let own = [
        ("id", text(&event.id)),
        ("source", text(&event.source)),
        ("type", text(&event.r#type)),
        ("subject", event.subject.as_deref().and_then(text)),
        ("time", event.time.as_deref().and_then(text)),
        (
            "datacontenttype",
            event.content_type.as_deref().and_then(text),
        ),
        ("data", data),
    ];
    let mut fields: HashMap<Key, Value> = event
        .extensions
        .iter()
        .map(|(name, value)| (key(name), Value::from(value.as_str())))
        .collect();
    for (name, value) in own {
        match value {
            Some(value) => fields.insert(key(name), value),
            None => fields.remove(&key(name)),
        };
    }
    Value::Map(Map {
        map: Arc::new(fields),
    })
}

fn key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

/// `application/json`, `text/json` and everything that ends in `+json`, whatever the parameters.
fn is_json(content_type: Option<&str>) -> bool {
    let essence = content_type
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase())
        .unwrap_or_default();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

/// The payload as a CEL value; `None` when it is not JSON after all.
fn parse(bytes: &[u8]) -> Result<Option<Value>, EvalError> {
    let Ok(json) = serde_json::from_slice(bytes) else {
        return Ok(None);
    };
    let mut nodes = 0;
    convert(json, &mut nodes).map(Some)
}

fn convert(json: serde_json::Value, nodes: &mut usize) -> Result<Value, EvalError> {
    *nodes += 1;
    if *nodes > MAX_DATA_NODES {
        return Err(EvalError::DataTooLarge);
    }
    Ok(match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::Number(number) => number
            .as_i64()
            .map(Value::Int)
            .or_else(|| number.as_u64().map(Value::UInt))
            .or_else(|| number.as_f64().map(Value::Float))
            .unwrap_or(Value::Null),
        serde_json::Value::String(value) => Value::from(value),
        serde_json::Value::Array(values) => Value::List(Arc::new(
            values
                .into_iter()
                .map(|value| convert(value, nodes))
                .collect::<Result<_, _>>()?,
        )),
        serde_json::Value::Object(fields) => Value::Map(Map {
            map: Arc::new(
                fields
                    .into_iter()
                    .map(|(name, value)| Ok((key(&name), convert(value, nodes)?)))
                    .collect::<Result<_, _>>()?,
            ),
        }),
    })
}

#[cfg(test)]
mod tests;
