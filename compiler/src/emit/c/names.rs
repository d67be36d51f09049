//! Identifiers: the C names of symbols, buffers and types.

pub(super) use super::super::template::string;

use crate::kernel::{BufferId, Local, MemorySpace, Program};
use std::collections::{HashMap, HashSet};
use symshape::Symbol;
use symshape_runtime::DType;

/// The beginning of the names of loop variables.
pub(super) const LOOP_PREFIX: &str = "at_";

/// The identifiers of a program's symbols, loop variables included.
pub(super) struct SymbolNames {
    symbols: HashMap<Symbol, String>,
}

impl SymbolNames {
    /// A unique name for each symbol of the program.
    pub(super) fn new(program: &Program) -> SymbolNames {
        let mut names = SymbolNames { symbols: HashMap::new() };
        let mut taken = HashSet::new();
        let mut add = |symbol: &Symbol, prefix: &str| {
            if names.symbols.contains_key(symbol) {
                return;
            }
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let wanted: String = prefix.chars().chain(symbol.name().chars().map(plain)).collect();
            let unique = |count: usize| if count == 0 { wanted.clone() } else { format!("{wanted}_{count}") };
            let name = (0..).map(unique).find(|name| taken.insert(name.clone())).unwrap_or_default();
            names.symbols.insert(symbol.clone(), name);
        };

        // The prefixes avoid conflicts with the words of C and of this compiler.
        program.all_symbols().for_each(|symbol| add(symbol, "dim_"));
        for kernel in &program.kernels {
            crate::kernel::walk::symbols(&kernel.body, &mut |symbol| add(symbol, LOOP_PREFIX));
        }
        names
    }

    /// Whether `name` is that of a loop variable.
    pub(super) fn is_loop(&self, name: &str) -> bool {
        name.starts_with(LOOP_PREFIX) && self.symbols.values().any(|known| known == name)
    }

    /// The name of a symbol of the program.
    pub(super) fn symbol(&self, symbol: &Symbol) -> Option<&str> {
        self.symbols.get(symbol).map(String::as_str)
    }
}

/// The variable that points to the start of a device's memory.
pub(super) fn device(number: usize) -> String {
    format!("device_{number}")
}

/// The pointer to a buffer, or the array of a constant.
pub(super) fn buffer(program: &Program, id: BufferId) -> String {
    let letter = match program.buffers[id].space {
        MemorySpace::Const(_) => 'c',
        _ => 'b',
    };
    format!("{letter}{}", id.as_u32())
}

/// A scalar variable.
pub(super) fn local(local: Local) -> String {
    format!("v{}", local.as_u32())
}

/// The type of elements in memory.
pub(super) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "uint16_t",
        _ => value_type(dtype),
    }
}

/// The type of values; half-precision floats are computed in single precision.
pub(super) fn value_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "float",
        DType::F64 => "double",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U8 | DType::Bool => "uint8_t",
        DType::U16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
    }
}

/// Text that can neither end a comment nor start another line.
pub(super) fn comment(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.replace("*/", "* /").replace("/*", "/ *").chars().map(plain).collect()
}
