//! [`FuncCtx`]: one function while it is emitted, with its scopes, locals, buffers and calls.
//!
//! Scopes nest as the loops do. A value is computed once, in the scope that binds its innermost symbol, just before
//! control enters the inner loop: see [`FuncCtx::dim`] and [`FuncCtx::address`].

use super::{frame, module::ModuleBuilder, pending::Body, weights::ConstantPlace};
use crate::{
    error::{Error, Result},
    kernel::{Access, BufferId, Local, MemorySpace},
};
use cranelift_codegen::{
    cursor::{Cursor, FuncCursor},
    ir::{
        self, ExtFuncData, ExternalName, Function, GlobalValueData, Inst, InstBuilder, MemFlagsData,
        StackSlotData, StackSlotKind, Type, UserExternalName, UserFuncName, Value, types,
    },
};
use cranelift_frontend::{FuncInstBuilder, FunctionBuilder, FunctionBuilderContext, Variable};
use cranelift_module::{DataId, FuncId, Linkage};
use std::collections::HashMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The values that depend on the symbols bound in one loop body, or at the top of the function, and on outer symbols.
#[derive(Default)]
pub(crate) struct LoopScope {
    pub(crate) facts: Facts,
    bound: HashMap<Symbol, Value>,
    pub(crate) dims: HashMap<Dim, Value>,
    pub(crate) addresses: HashMap<(BufferId, Dim), Value>,
    /// The branch by which control left this scope for the one inside it.
    pub(crate) exit: Option<Inst>,
}

/// A function that is being emitted.
pub(crate) struct FuncCtx<'f, 'u> {
    /// Appends instructions to the function.
    pub builder: FunctionBuilder<'f>,
    /// The state that all functions share.
    pub unit: &'f mut ModuleBuilder<'u>,
    pub(crate) scopes: Vec<LoopScope>,
    /// The address of the values of the program's symbols: a pointer and an offset.
    dims: Option<(Value, i32)>,
    frame: Option<Value>,
    /// The index of this function's copy of the scratch buffers.
    copy: Option<Value>,
    locals: HashMap<Local, Variable>,
    args: Option<(ir::StackSlot, usize)>,
    functions: HashMap<FuncId, ir::FuncRef>,
    /// Whether the function may report an error.
    pub fails: bool,
    /// Whether the function uses scratch memory, of which each worker has a copy.
    pub(crate) uses_scratch: bool,
}

impl<'f, 'u> FuncCtx<'f, 'u> {
    /// A context at the beginning of an empty function, and the function's parameters.
    pub(crate) fn new(
        unit: &'f mut ModuleBuilder<'u>,
        mut builder: FunctionBuilder<'f>,
    ) -> (FuncCtx<'f, 'u>, Vec<Value>) {
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        builder.seal_block(entry);
        let params = builder.block_params(entry).to_vec();

        let ctx = FuncCtx {
            builder,
            unit,
            scopes: vec![LoopScope::default()],
            dims: None,
            frame: None,
            copy: None,
            locals: HashMap::new(),
            args: None,
            functions: HashMap::new(),
            fails: false,
            uses_scratch: false,
        };

        (ctx, params)
    }

    /// Sets the array that holds the program's symbols. They have passed the check of the call contract.
    pub(crate) fn set_dims(&mut self, dims: Value, offset: i32) {
        self.dims = Some((dims, offset));
        self.scopes[0].facts = self.unit.program.facts.clone();
    }

    /// Sets the address of the frame, see [`frame`].
    pub(crate) fn set_frame(&mut self, frame: Value) {
        self.frame = Some(frame);
        self.set_dims(frame, frame::symbol_slot(0));
    }

    /// Sets the index of the copy of the scratch buffers that this function uses. The value is computed at the
    /// function's top.
    pub(crate) fn set_copy(&mut self, copy: Value) {
        self.copy = Some(copy);
    }

    /// The frame's address.
    pub(crate) fn frame(&self) -> Result<Value> {
        self.frame.ok_or_else(|| Error::internal("this function has no frame"))
    }

    /// Offset of a buffer's pointer within the frame.
    pub(crate) fn buffer_slot(&self, buffer: BufferId) -> i32 {
        frame::buffer_slot(self.unit.program, buffer)
    }

    /// Appends an instruction to the current block.
    pub(crate) fn ins(&mut self) -> FuncInstBuilder<'_, 'f> {
        self.builder.ins()
    }

    /// A constant.
    pub(crate) fn int(&mut self, value: i64) -> Value {
        self.ins().iconst(types::I64, value)
    }

    /// Binds a symbol to an `i64` until the surrounding loop body ends.
    pub(crate) fn bind(&mut self, symbol: Symbol, value: Value) {
        for scope in &mut self.scopes {
            scope.bound.remove(&symbol);
            scope.dims.retain(|dim, _| !dim.contains(&symbol));
            scope.addresses.retain(|(_, at), _| !at.contains(&symbol));
        }
        self.innermost().bound.insert(symbol, value);
    }

    /// The facts about the symbols bound here, loop variables among them.
    pub(crate) fn facts(&self) -> &Facts {
        &self.scopes[self.scopes.len() - 1].facts
    }

    /// The facts of the innermost scope, for additions that hold until it ends.
    pub(crate) fn facts_mut(&mut self) -> &mut Facts {
        &mut self.innermost().facts
    }

    pub(crate) fn innermost(&mut self) -> &mut LoopScope {
        self.scopes.last_mut().expect("the outermost scope is never left")
    }

    /// The value of a symbol, and the scope in which it is bound.
    pub(crate) fn symbol(&mut self, symbol: &Symbol) -> Result<(Value, usize)> {
        for (depth, scope) in self.scopes.iter().enumerate().rev() {
            if let Some(value) = scope.bound.get(symbol) {
                return Ok((*value, depth));
            }
        }

        let position = self.unit.program.all_symbols().position(|known| known == symbol);
        let (Some((base, offset)), Some(idx)) = (self.dims, position) else {
            return Err(Error::internal(format!("symbol {} is not bound here", symbol.name())));
        };
        let value = self.load_fixed(types::I64, base, offset + 8 * idx as i32);
        self.scopes[0].bound.insert(symbol.clone(), value);

        Ok((value, 0))
    }

    /// Loads from memory that does not change during the function. The load is emitted at the function's top.
    pub(crate) fn load_fixed(&mut self, ty: Type, base: Value, offset: i32) -> Value {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        match self.scopes[0].exit {
            Some(exit) => self.before(exit).ins().load(ty, flags, base, offset),
            None => self.ins().load(ty, flags, base, offset),
        }
    }

    /// A cursor that inserts before an existing instruction.
    pub(crate) fn before(&mut self, inst: Inst) -> FuncCursor<'_> {
        FuncCursor::new(self.builder.func).at_inst(inst)
    }

    /// The address of the first element of a buffer, computed at the function's top.
    pub(crate) fn base(&mut self, buffer: BufferId) -> Result<Value> {
        let key = (buffer, Dim::zero());
        if let Some(value) = self.scopes[0].addresses.get(&key) {
            return Ok(*value);
        }

        self.uses_scratch |= matches!(self.unit.program.buffers[buffer].space, MemorySpace::Scratch);
        let value = match self.unit.program.buffers[buffer].space {
            MemorySpace::Const(_) => {
                let place = self.unit.constant(buffer)?;
                self.constant_address(place)?
            }
            _ => {
                let frame = self.frame()?;
                let offset = self.buffer_slot(buffer);
                let first = self.load_fixed(types::I64, frame, offset);
                self.copy_of(buffer, first)?
            }
        };

        self.scopes[0].addresses.insert(key, value);
        Ok(value)
    }

    /// The address of the function's copy of a scratch buffer, given that of the first copy. It is computed at the
    /// function's top.
    fn copy_of(&mut self, buffer: BufferId, first: Value) -> Result<Value> {
        let program = self.unit.program;
        let is_scratch = matches!(program.buffers[buffer].space, MemorySpace::Scratch);
        let (Some(copy), true) = (self.copy, is_scratch && program.workers > 1) else { return Ok(first) };
        let bytes = self.dim(&program.copy_bytes(buffer))?;

        Ok(match self.scopes[0].exit {
            Some(exit) => {
                let distance = self.before(exit).ins().imul(copy, bytes);
                self.before(exit).ins().iadd(first, distance)
            }
            None => {
                let distance = self.ins().imul(copy, bytes);
                self.ins().iadd(first, distance)
            }
        })
    }

    /// The address of a data object, computed at the function's top.
    pub(crate) fn data_address(&mut self, data: DataId) -> Value {
        let global = self.global(data);
        match self.scopes[0].exit {
            Some(exit) => self.before(exit).ins().symbol_value(types::I64, global),
            None => self.ins().symbol_value(types::I64, global),
        }
    }

    /// The address of a constant, computed at the function's top.
    pub(crate) fn constant_address(&mut self, place: ConstantPlace) -> Result<Value> {
        let offset = match place {
            ConstantPlace::Object(data) => return Ok(self.data_address(data)),
            ConstantPlace::File(offset) => offset,
        };
        let offset = i64::try_from(offset).map_err(|_| Error::internal("a weights file of 8 EB"))?;
        let frame = self.frame()?;
        let file = self.load_fixed(types::I64, frame, frame::WEIGHTS);
        Ok(match self.scopes[0].exit {
            Some(exit) => self.before(exit).ins().iadd_imm_s(file, offset),
            None => self.ins().iadd_imm_s(file, offset),
        })
    }

    /// The reference to a data object within this function.
    pub(crate) fn global(&mut self, data: DataId) -> ir::GlobalValue {
        let name = self
            .builder
            .func
            .declare_imported_user_function(UserExternalName { namespace: 1, index: data.as_u32() });
        let symbol = GlobalValueData::Symbol {
            name: ExternalName::user(name),
            offset: 0.into(),
            colocated: self.is_near(),
            tls: false,
        };
        self.builder.create_global_value(symbol)
    }

    /// Whether relative addresses reach all of the module. A linker ensures this, but a JIT allocates pieces of memory
    /// at any distance.
    fn is_near(&self) -> bool {
        self.unit.module.isa().flags().is_pic()
    }

    /// The reference to a function of the module within this function.
    pub(crate) fn func_ref(&mut self, func: FuncId) -> ir::FuncRef {
        if let Some(known) = self.functions.get(&func) {
            return *known;
        }

        let declared = self.unit.module.declarations().get_function_decl(func);
        let imported = declared.linkage == Linkage::Import;
        let signature = self.builder.import_signature(declared.signature.clone());

        let name = self
            .builder
            .func
            .declare_imported_user_function(UserExternalName { namespace: 0, index: func.as_u32() });

        // An external function may be at any distance. Windows has no table of addresses that the linker fills; its
        // linkers add a jump to a distant function.
        let is_coff = self.unit.module.isa().triple().binary_format == target_lexicon::BinaryFormat::Coff;
        let colocated = self.is_near() && (!imported || is_coff);
        let name = ExternalName::user(name);
        let data = ExtFuncData { name, signature, colocated, patchable: false };
        let reference = self.builder.import_function(data);
        self.functions.insert(func, reference);

        reference
    }

    /// Calls a function of the module and returns its first result, if it has any.
    pub(crate) fn call(&mut self, func: FuncId, args: &[Value]) -> Option<Value> {
        let func = self.func_ref(func);
        let call = self.ins().call(func, args);
        self.builder.inst_results(call).first().copied()
    }

    /// A new stack slot. `align_bytes` is a power of two.
    pub(crate) fn slot(&mut self, bytes: usize, align_bytes: u32) -> ir::StackSlot {
        let align = align_bytes.trailing_zeros() as u8;
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes as u32, align);
        self.builder.create_sized_stack_slot(data)
    }

    /// The address of `count` 64-bit words on the stack, at least one.
    pub(crate) fn words(&mut self, count: usize) -> Value {
        let slot = self.slot(8 * count.max(1), 8);
        self.ins().stack_addr(types::I64, slot, 0)
    }

    /// The address of a block of 64-bit words on the stack that holds `args`. The next call overwrites it.
    pub(crate) fn args(&mut self, args: &[Value]) -> Value {
        let slot = match self.args {
            Some((slot, words)) if words >= args.len() => slot,
            _ => {
                let words = args.len().max(16);
                let slot = self.slot(8 * words, 16);
                self.args = Some((slot, words));
                slot
            }
        };

        for (idx, arg) in args.iter().enumerate() {
            self.ins().stack_store(types::I64, *arg, slot, 8 * idx as i32);
        }

        self.ins().stack_addr(types::I64, slot, 0)
    }

    /// The type of registers that hold elements of this type. Halves are computed in single precision.
    pub(crate) fn reg_type(dtype: DType) -> Type {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => types::F32,
            DType::F64 => types::F64,
            DType::Bool | DType::U8 | DType::I8 => types::I8,
            DType::U16 | DType::I16 => types::I16,
            DType::U32 | DType::I32 => types::I32,
            DType::U64 | DType::I64 => types::I64,
        }
    }

    /// The value of a scalar variable of the kernel.
    pub(crate) fn local(&mut self, local: Local) -> Result<Value> {
        let variable = self.variable(local)?;
        Ok(self.builder.use_var(variable))
    }

    /// Sets a scalar variable of the kernel.
    pub(crate) fn set_local(&mut self, local: Local, value: Value) -> Result<()> {
        let variable = self.variable(local)?;
        self.builder.def_var(variable, value);
        Ok(())
    }

    fn variable(&self, local: Local) -> Result<Variable> {
        self.locals.get(&local).copied().ok_or_else(|| Error::internal(format!("{local} is not declared")))
    }

    /// Declares a kernel's scalar variables, which are zero at first.
    pub(crate) fn declare_locals(&mut self, locals: impl Iterator<Item = (Local, DType)>) {
        for (local, dtype) in locals {
            let ty = Self::reg_type(dtype);
            let variable = self.builder.declare_var(ty);
            let zero = self.zero(ty);
            self.builder.def_var(variable, zero);
            self.locals.insert(local, variable);
        }
    }

    /// Zero of a scalar type.
    pub(crate) fn zero(&mut self, ty: Type) -> Value {
        match ty {
            types::F32 => self.ins().f32const(0.0),
            types::F64 => self.ins().f64const(0.0),
            _ => self.ins().iconst(ty, 0),
        }
    }

    /// Enters a scope inside the current one. `exit` is the branch just emitted, which must be the only way into the
    /// new scope.
    pub(crate) fn push_scope(&mut self, exit: Inst) {
        self.innermost().exit = Some(exit);
        let facts = self.facts().clone();
        self.scopes.push(LoopScope { facts, ..LoopScope::default() });
    }

    /// Leaves the innermost scope.
    pub(crate) fn pop_scope(&mut self) {
        debug_assert!(self.scopes.len() > 1, "the outermost scope is never left");
        self.scopes.pop();
        self.innermost().exit = None;
    }

    /// The byte address of an element, see [`FuncCtx::dim`].
    pub(crate) fn address(&mut self, access: &Access) -> Result<Value> {
        let base = self.base(access.buffer)?;
        let size = self.unit.program.buffers[access.buffer].dtype.size_bytes() as i64;
        self.element(access.buffer, base, &access.index, size)
    }
}

impl<'u> ModuleBuilder<'u> {
    /// Emits the body of a declared function, which is compiled later. `emit` receives the parameters and ends with a
    /// return.
    pub(crate) fn define(
        &mut self,
        id: FuncId,
        emit: impl FnOnce(&mut FuncCtx<'_, 'u>, &[Value]) -> Result<()>,
    ) -> Result<()> {
        let declaration = self.module.declarations().get_function_decl(id);
        let name = declaration.linkage_name(id).into_owned();
        let signature = declaration.signature.clone();
        let mut function = Function::with_name_signature(UserFuncName::default(), signature);
        let config = self.module.target_config();
        let mut builder_context = FunctionBuilderContext::new();

        {
            let builder = FunctionBuilder::new(&mut function, &mut builder_context);
            let (mut f, params) = FuncCtx::new(self, builder);
            emit(&mut f, &params)?;
            f.builder.seal_all_blocks();
            f.builder.finalize(config);
        }

        if self.options.listing {
            self.clif.push_str(&format!("; {name}\n{}\n", function.display()));
        }
        self.define_later(id, name, Body::Clif(Box::new(function)))
    }

    /// Declares and defines a function that is local to the module.
    pub(crate) fn define_local(
        &mut self,
        name: &str,
        params: &[Type],
        returns: &[Type],
        emit: impl FnOnce(&mut FuncCtx<'_, 'u>, &[Value]) -> Result<()>,
    ) -> Result<FuncId> {
        let symbol = self.symbol(name);
        let id = self.declare(&symbol, Linkage::Local, params, returns)?;
        self.define(id, emit)?;
        Ok(id)
    }
}
