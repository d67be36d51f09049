//! Definition of read-only data objects. Equal constants, strings and tables are one object.

use super::{
    module::{ModuleBuilder, ModuleKind, internal},
    weights::ConstantPlace,
};
use crate::{
    error::{Error, Result},
    kernel::{BufferId, MemorySpace},
    plan::ALIGN_BYTES,
    tensor::Bytes,
};
use cranelift_module::{DataDescription, DataId, Linkage};
use symshape_runtime::abi::WeightsDesc;

/// The smallest size of a constant that is left to the writer of an object file, see [`crate::codegen::Summary::lent`].
const MIN_LENT_BYTES: usize = 4096;

impl ModuleBuilder<'_> {
    /// The memory that holds a buffer of space `Const`.
    pub(crate) fn constant(&mut self, buffer: BufferId) -> Result<ConstantPlace> {
        if let Some(place) = self.data_pool.constants.get(&buffer) {
            return Ok(*place);
        }

        let MemorySpace::Const(tensor) = &self.program.buffers[buffer].space else {
            return Err(Error::internal(format!("{buffer} is not a constant")));
        };
        let n_bytes = tensor.size_bytes();
        let name = format!("const_{}", buffer.as_u32());
        self.data_pool.add_form(buffer, None, n_bytes);

        let place = if self.has_weights_file() {
            self.file_constant(self.program.weight_name(buffer), tensor.written_bytes())
        } else {
            ConstantPlace::Object(self.weight(&name, tensor.written_bytes())?)
        };

        self.data_pool.constants.insert(buffer, place);
        Ok(place)
    }

    /// The data object of a constant in the artefact. The writer of an object file adds the bytes of a large one.
    fn weight(&mut self, name: &str, bytes: Bytes) -> Result<DataId> {
        if self.form.kind == ModuleKind::InProcess || bytes.len() < MIN_LENT_BYTES {
            return self.data(name, bytes.read().into(), ALIGN_BYTES as u64);
        }
        // One byte, which is replaced.
        let id = self.data(name, [0].into(), 1)?;
        self.data_pool.lent.push((id, bytes));
        Ok(id)
    }

    /// The constant in `buffer` in the packed form `form`, which has one place for each name.
    pub(crate) fn constant_as(
        &mut self,
        buffer: BufferId,
        name: &str,
        form: &str,
        bytes: impl FnOnce() -> Bytes,
    ) -> Result<ConstantPlace> {
        if let Some(place) = self.data_pool.packed.get(name) {
            return Ok(*place);
        }
        let bytes = bytes();
        self.data_pool.add_form(buffer, Some(form.to_string()), bytes.len());
        let place = if self.has_weights_file() {
            let name = format!("{} ({form})", self.program.weight_name(buffer));
            self.file_constant(name, bytes)
        } else {
            ConstantPlace::Object(self.weight(name, bytes)?)
        };
        self.data_pool.packed.insert(name.into(), place);
        Ok(place)
    }

    /// A string that ends with a zero byte.
    pub(crate) fn string(&mut self, text: &str) -> Result<DataId> {
        if let Some(id) = self.data_pool.strings.get(text) {
            return Ok(*id);
        }
        // A C string ends at its first zero byte.
        let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).chain([0]).collect();
        let id = self.data(&format!("string_{}", self.data_pool.strings.len()), bytes.into(), 1)?;
        self.data_pool.strings.insert(text.into(), id);
        Ok(id)
    }

    /// A local read-only array, which is defined once for each name.
    pub(crate) fn table(&mut self, name: &str, words: &[i64]) -> Result<DataId> {
        if let Some(id) = self.data_pool.tables.get(name) {
            return Ok(*id);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let id = self.data(name, bytes.into(), 8)?;
        self.data_pool.tables.insert(name.into(), id);
        Ok(id)
    }

    /// A local read-only object with these bytes.
    pub(crate) fn data(&mut self, name: &str, bytes: Box<[u8]>, align: u64) -> Result<DataId> {
        let mut data = DataDescription::new();
        // Not every object format has symbols of size 0.
        data.define(if bytes.is_empty() { [0].into() } else { bytes });
        data.set_align(align);
        let symbol = self.symbol(name);
        self.define_data(&symbol, Linkage::Local, &data)
    }

    /// Declares and defines a read-only data object.
    pub(crate) fn define_data(
        &mut self,
        name: &str,
        linkage: Linkage,
        data: &DataDescription,
    ) -> Result<DataId> {
        self.refuse_callee(name, linkage)?;
        let id = self.module.declare_data(name, linkage, false, false).map_err(|e| internal(name, e))?;
        self.module.define_data(id, data).map_err(|e| internal(name, e))?;
        Ok(id)
    }

    /// Whether constants are in a weights file.
    pub(crate) fn has_weights_file(&self) -> bool {
        self.options.weights_file
    }

    /// Adds a constant to the weights file.
    pub(super) fn file_constant(&mut self, name: String, bytes: Bytes) -> ConstantPlace {
        ConstantPlace::File(self.data_pool.file.add(name, bytes))
    }

    /// The [`WeightsDesc`], which is zero: the writer of the object fills it in.
    pub(crate) fn weights_desc(&mut self) -> Result<DataId> {
        if let Some(id) = self.data_pool.weights_desc {
            return Ok(id);
        }
        let mut data = DataDescription::new();
        data.define(vec![0; size_of::<WeightsDesc>()].into());
        data.set_align(8);
        let name = self.symbol("weights");
        let id = self.define_data(&name, Linkage::Local, &data)?;
        self.data_pool.weights_desc = Some(id);
        Ok(id)
    }

    /// Index of the state's block among the addresses of inputs.
    pub(crate) fn state_input(&self) -> usize {
        self.program.inputs.len() + usize::from(self.has_weights_file())
    }
}
