//! Compiled models: their contract, and queries about sizes.

use crate::{
    OpenError, QueryError, RaggedInfo, StateInfo, SymbolInfo, TensorInfo,
    abi::{ModelDesc, Precision, UNKNOWN_DIM},
    descriptor::{Desc, Keep},
};
use alloc::{sync::Arc, vec::Vec};
use core::fmt;

/// The largest number of states of a call, whatever the contract allows: a context has a table of pointers for it.
const MAX_STATES: usize = 1 << 16;

/// A compiled model, shared by all threads that call it; cloning it copies a pointer.
#[derive(Clone)]
pub struct Model {
    pub(crate) desc: Arc<Desc>,
    #[cfg(feature = "std")]
    weights: Option<crate::Weights>,
}

impl Model {
    /// A model of a loaded descriptor.
    #[cfg(feature = "std")]
    pub(crate) fn loaded(desc: Desc) -> Model {
        Model { desc: Arc::new(desc), weights: None }
    }

    /// The same model with other weights, which share its code.
    ///
    /// # Errors
    /// When the weights belong to another artefact, or the artefact contains its weights.
    #[cfg(feature = "std")]
    pub fn with_weights(&self, weights: crate::Weights) -> Result<Model, OpenError> {
        weights.require_artefact(self.desc.weights_desc(), &self.desc.name)?;
        Ok(Model { desc: self.desc.clone(), weights: Some(weights) })
    }

    /// The weights file; `None` if the artefact contains its weights.
    #[cfg(feature = "std")]
    pub fn weights(&self) -> Option<&crate::Weights> {
        self.weights.as_ref()
    }

    /// The name of the weights file that was written with the artefact, which is looked for in the artefact's folder;
    /// `None` if the artefact contains its weights.
    #[cfg(feature = "std")]
    pub fn weights_name(&self) -> Option<&str> {
        self.desc.weights_name().ok().flatten()
    }

    /// The address of the weights file, or null if there is none.
    pub(crate) fn weights_address(&self) -> *const u8 {
        #[cfg(feature = "std")]
        if let Some(weights) = &self.weights {
            return weights.bytes().as_ptr();
        }
        core::ptr::null()
    }

    /// A model whose code and data are already in this process: linked in, or just compiled. If it has a weights file,
    /// calls need [`Model::with_weights`].
    ///
    /// # Errors
    /// When the descriptor is malformed or of another version.
    ///
    /// # Safety
    /// `desc` is null or points to a descriptor from symshape's compiler, or one that meets all requirements of
    /// [`crate::abi`]. It and everything it refers to stay valid and constant while `keep` is alive.
    pub unsafe fn from_desc(
        desc: *const ModelDesc,
        keep: Arc<dyn core::any::Any + Send + Sync>,
    ) -> Result<Model, OpenError> {
        let keep: Keep = keep;
        // SAFETY: as the caller promises.
        let desc = unsafe { Desc::read(desc, keep) }?;
        Ok(Model {
            desc: Arc::new(desc),
            #[cfg(feature = "std")]
            weights: None,
        })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.desc.name
    }

    /// The symbols of the contract, in the order of all `dims`.
    pub fn symbols(&self) -> &[SymbolInfo] {
        &self.desc.symbols
    }

    /// The inputs in order.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.desc.inputs
    }

    /// The outputs in order.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.desc.outputs
    }

    /// The tensors of the state, which are neither inputs nor outputs; empty if the model has none. See
    /// [`crate::State`].
    pub fn state(&self) -> &[StateInfo] {
        self.desc.state.as_ref().map_or(&[], |state| &state.tensors)
    }

    /// How calls take sequences of different lengths; `None` for a model without a ragged batch.
    pub fn ragged(&self) -> Option<&RaggedInfo> {
        self.desc.ragged.as_ref()
    }

    /// Index of the symbol that is the number of rows that a state has memory for; `None` if the state has no rows.
    pub fn capacity_symbol(&self) -> Option<usize> {
        let state = self.desc.state.as_ref().filter(|state| state.has_rows)?;
        Some(state.words[0])
    }

    /// Index of the symbol that is the number of rows of a state before a call; `None` if the state has no rows.
    pub fn length_symbol(&self) -> Option<usize> {
        let state = self.desc.state.as_ref().filter(|state| state.has_rows)?;
        Some(state.words[1])
    }

    /// The largest number of states of one call; 0 if the model has no state. See [`Context::run_states`].
    ///
    /// [`Context::run_states`]: crate::Context::run_states
    pub fn max_states(&self) -> usize {
        let Some(state) = &self.desc.state else { return 0 };
        let count = state.count.map_or(1, |idx| self.desc.symbols[idx].hi());
        usize::try_from(count).unwrap_or(1).clamp(1, MAX_STATES)
    }

    /// Why a call takes one state only, if it does.
    pub fn one_state(&self) -> Option<&str> {
        self.desc.state.as_ref()?.one_state.as_deref()
    }

    /// Upper bound of the bytes of a state over the whole contract; 0 if the model has none.
    pub fn state_max(&self) -> usize {
        self.desc.state.as_ref().map_or(0, |state| state.max_bytes)
    }

    /// Upper bound of the arena's bytes over the whole contract.
    pub fn arena_max(&self) -> usize {
        self.desc.arena_max() as usize
    }

    /// Whether a symbol has no declared upper bound. Contexts then take memory when calls need it, see
    /// [`crate::Context::growths`], and the upper bounds of sizes are too large to be useful.
    pub fn grows(&self) -> bool {
        self.desc.grows()
    }

    /// Operand precision of `f32` contractions on machines with tile registers. Other machines multiply `f32`.
    pub fn precision(&self) -> Precision {
        self.desc.precision()
    }

    /// Bound of the relative error of one multiplication on tile registers. Sums round as on other machines.
    pub fn product_error(&self) -> f64 {
        self.desc.product_error()
    }

    /// Whether calls use tile registers: the artefact has code for them, the machine has them, and the system granted
    /// them when the artefact was loaded.
    pub fn uses_tiles(&self) -> bool {
        self.desc.uses_tiles()
    }

    /// The closed form of [`Model::arena_bytes`], as a readable formula.
    pub fn arena_formula(&self) -> &str {
        &self.desc.formula
    }

    /// Bytes of arena that a call with these dims (one for each symbol) needs.
    ///
    /// # Errors
    /// When there are too few or too many dims, or one is outside the contract.
    pub fn arena_bytes(&self, dims: &[i64]) -> Result<usize, QueryError> {
        self.allowed(dims)?;
        Ok(self.desc.arena_bytes(dims))
    }

    /// The shape of output `idx` at these dims. Data-dependent sizes take their upper bounds.
    ///
    /// # Errors
    /// As [`Model::arena_bytes`]; and when there is no such output.
    pub fn output_shape(&self, idx: usize, dims: &[i64]) -> Result<Vec<i64>, QueryError> {
        self.allowed(dims)?;
        let output = self.desc.outputs.get(idx).ok_or(QueryError::NoOutput { idx })?;
        let mut shape = alloc::vec![0; output.rank()];
        let mut dims = dims.to_vec();
        dims.resize(self.desc.n_dims(), UNKNOWN_DIM);
        self.desc.output_shape(idx, &dims, &mut shape);
        Ok(shape)
    }

    /// The largest allowed value of `symbol` whose calls need at most `bytes` of arena. `dims` has the other symbols;
    /// its entry for `symbol` is ignored. `None` if every value needs more. Relations between symbols are not checked.
    ///
    /// Most models take a few evaluations of [`Model::arena_bytes`]: the compiler proved that memory grows with the
    /// dims. For other models, values are tried from the largest down. If there are more than 2^20, they are bisected,
    /// and a larger value than the result may fit as well.
    ///
    /// ```no_run
    /// # let model = symshape_runtime::Model::open("gpt2.so")?;
    /// // Symbols N and S: how many rows of 128 tokens fit 64 MB?
    /// let rows = model.max_dim("N", 64 << 20, &[0, 128])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such symbol, or another dim is outside the contract.
    pub fn max_dim(&self, symbol: &str, bytes: usize, dims: &[i64]) -> Result<Option<i64>, QueryError> {
        let position = self.desc.symbols.iter().position(|info| info.name == symbol);
        let position = position.ok_or_else(|| QueryError::NoSymbol { name: symbol.into() })?;
        let info = &self.desc.symbols[position];

        let mut dims = dims.to_vec();
        if let Some(dim) = dims.get_mut(position) {
            *dim = info.nth(0).unwrap_or(info.lo);
        }
        self.allowed(&dims)?;
        let fits = |value: i64| {
            dims[position] = value;
            self.desc.arena_bytes(&dims) <= bytes
        };
        Ok(info.range().largest(self.desc.is_monotone(), fits))
    }

    /// Refuses dims that are not one allowed value for each symbol.
    pub(crate) fn allowed(&self, dims: &[i64]) -> Result<(), QueryError> {
        let symbols = &self.desc.symbols;
        if dims.len() != symbols.len() {
            return Err(QueryError::WrongDimCount { expected: symbols.len(), got: dims.len() });
        }
        match symbols.iter().zip(dims).find(|(symbol, dim)| !symbol.allows(**dim)) {
            Some((symbol, &value)) => Err(QueryError::NotAllowed { symbol: symbol.clone(), value }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name())
            .field("symbols", &self.symbols())
            .field("inputs", &self.inputs())
            .field("outputs", &self.outputs())
            .field("arena_max", &self.arena_max())
            .finish()
    }
}
