//! Structs of the artefact, and arrays of them, as read-only data objects.

use super::module::ModuleBuilder;
use crate::error::Result;
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};

/// A struct or an array of structs that is being filled in.
pub(crate) struct Table {
    bytes: Vec<u8>,
    /// The addresses of data objects, by offset.
    pub(crate) data: Vec<(usize, DataId)>,
    /// The addresses of functions, by offset.
    pub(crate) functions: Vec<(usize, FuncId)>,
}

impl Table {
    pub(crate) fn new(bytes: usize) -> Table {
        Table { bytes: vec![0; bytes], data: Vec::new(), functions: Vec::new() }
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_i64(&mut self, at: usize, value: i64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn put_text(&mut self, unit: &mut ModuleBuilder, at: usize, text: &str) -> Result<()> {
        self.data.push((at, unit.string(text)?));
        Ok(())
    }

    pub(crate) fn define(self, unit: &mut ModuleBuilder, name: &str, linkage: Linkage) -> Result<DataId> {
        let mut data = DataDescription::new();
        for (at, id) in self.data {
            let value = unit.module.declare_data_in_data(id, &mut data);
            data.write_data_addr(at as u32, value, 0);
        }

        for (at, id) in self.functions {
            let func = unit.module.declare_func_in_data(id, &mut data);
            data.write_function_addr(at as u32, func);
        }

        // An empty table, such as the dims of a scalar, still needs an address in read-only memory.
        let bytes = if self.bytes.is_empty() { vec![0] } else { self.bytes };
        data.define(bytes.into());
        data.set_align(8);

        unit.define_data(name, linkage, &data)
    }
}
