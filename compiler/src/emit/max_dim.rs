//! The inverse query of a C header: the largest dim for a budget of bytes, as inline functions.

use super::template::filled;
use crate::{kernel::Program, plan::Plan};
use num_bigint::BigInt;
use std::fmt::Write;
use symshape::Declaration;

/// The allowed values of a symbol, as C expressions.
struct Values {
    /// Their number.
    count: String,
    /// Statements that return the value at `index`.
    value: String,
}

/// The functions that search the largest dim.
pub(super) fn functions(program: &Program, plan: &Plan) -> String {
    let mut count_cases = String::new();
    let mut value_cases = String::new();
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let Some(Values { count, value }) = program.facts.declaration(symbol).and_then(values) else {
            continue;
        };
        let _ = writeln!(count_cases, "    case {idx}:\n        return {count};");
        let _ = writeln!(value_cases, "    case {idx}: {{\n{value}    }}");
    }

    let gaps = [
        ("PREFIX", program.name.as_str()),
        ("UPPER", &program.name.to_uppercase()),
        ("MONOTONE_VALUE", if plan.is_monotone { "1" } else { "0" }),
        ("COUNT_CASES", &count_cases),
        ("VALUE_CASES", &value_cases),
    ];
    filled(include_str!("max_dim.h"), &gaps)
}

/// The allowed values of a declaration; `None` if it has no upper bound.
fn values(declared: &Declaration) -> Option<Values> {
    if let Some(values) = &declared.values {
        let list: Vec<String> = values.iter().map(integer).collect();
        let value = format!(
            "        static const int64_t values[] = {{{}}};\n        return values[index];\n",
            list.join(", ")
        );
        return Some(Values { count: list.len().to_string(), value });
    }

    let step = &declared.step;
    let gap = ((&declared.offset - &declared.lo) % step + step) % step;
    let first = &declared.lo + gap;
    let hi = declared.hi.as_ref()?;
    let count = if &first > hi { BigInt::ZERO } else { (hi - &first) / step + 1 };

    let term = if *step == BigInt::from(1) { String::new() } else { format!(" * {}", integer(step)) };
    let value = format!("        return {} + (int64_t)index{term};\n", integer(&first));
    Some(Values { count: format!("UINT64_C({count})"), value })
}

/// A 64-bit constant.
fn integer(value: &BigInt) -> String {
    format!("INT64_C({value})")
}
