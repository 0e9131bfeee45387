//! Subscription filters: a CEL expression over one variable, `event`, compiled once and evaluated per event.
//!
//! `event.id`, `.source`, `.type`, `.subject`, `.time` and every extension are strings; an absent attribute is
//! an absent field. `event.data` is the parsed payload when its content type is JSON, else absent. JSON integers
//! are CEL `int`, so that `event.data.total + 1 > 10` works. Reading an absent field is an evaluation error, not
//! false: a filter asks `has(event.subject)` first.
//!
//! The expression is written by a user and shares its process with others, so what it can cost is bounded: its length,
//! its nesting (parsing and evaluation recurse), what it may build ([`check`]), the size of the data it may look at, and
//! the steps that it takes on data of that size.

mod check;

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
/// Steps beyond which a filter is not evaluated: a few tenths of a second.
const MAX_STEPS: u64 = 2_000_000;
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
    /// Something that could grow without a bound.
    #[error("filter must not {0}")]
    Unbounded(&'static str),
    /// A pattern that is computed, no regular expression, or too large.
    #[error("filter must give matches a short regular expression as a literal")]
    Pattern,
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
    /// The payload has more values than a filter may look at, or this one would take too many steps on it.
    #[error("the payload is too large for the expression")]
    DataTooLarge,
}

/// A compiled filter.
pub struct Filter {
    program: Program,
    env: Arc<Env>,
    cost: check::Cost,
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
        let mut size = Size::default();
        let data = match data {
            Some(bytes) if self.cost.reads_data && is_json(event.content_type.as_deref()) => {
                parse(bytes, &mut size)?
            }
            _ => None,
        };
        if self.cost.steps(&size) > MAX_STEPS {
            return Err(EvalError::DataTooLarge);
        }
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
    let cost = check::check(program.expression())?;
    Ok(Filter {
        cost,
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

/// How large a payload is.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    /// Scalars, lists and objects.
    values: usize,
    /// Most elements in one list or object.
    longest: usize,
}

/// The payload as a CEL value; `None` when it is not JSON after all.
fn parse(bytes: &[u8], size: &mut Size) -> Result<Option<Value>, EvalError> {
    let Ok(json) = serde_json::from_slice(bytes) else {
        return Ok(None);
    };
    size.bytes = bytes.len();
    convert(json, size).map(Some)
}

fn convert(json: serde_json::Value, size: &mut Size) -> Result<Value, EvalError> {
    size.values += 1;
    if size.values > MAX_DATA_NODES {
        return Err(EvalError::DataTooLarge);
    }
    size.longest = size.longest.max(match &json {
        serde_json::Value::Array(values) => values.len(),
        serde_json::Value::Object(fields) => fields.len(),
        _ => 0,
    });
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
                .map(|value| convert(value, size))
                .collect::<Result<_, _>>()?,
        )),
        serde_json::Value::Object(fields) => Value::Map(Map {
            map: Arc::new(
                fields
                    .into_iter()
                    .map(|(name, value)| Ok((key(&name), convert(value, size)?)))
                    .collect::<Result<_, _>>()?,
            ),
        }),
    })
}

#[cfg(test)]
mod tests;
