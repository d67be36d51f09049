//! Compiles a program into this process and calls it: no loader, no context, so that code generation is tested alone.

use crate::guarded::{Guard, Guarded};

use cranelift_jit::{JITBuilder, JITModule};
use std::{ffi::CStr, ffi::c_char, ptr};
use symshape::Symbol;
use symshape_compiler::{
    CompileOptions, Error, Microkernels,
    codegen::{self, ModuleForm, ModuleKind, Summary},
    kernel::{Program, text, verify},
    plan::{Placement, Plan},
    target::{self, Target},
};
use symshape_runtime::abi::{self, ModelDesc};

/// The alignment that the ABI promises for arenas.
const ARENA_ALIGN: usize = 64;

/// A program in memory.
pub(crate) struct Machine {
    pub(crate) program: Program,
    pub(crate) summary: Summary,
    module: Option<JITModule>,
    desc: ModelDesc,
}

/// An error as a caller sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) place: (u32, u32),
    pub(crate) numbers: [i64; 3],
    pub(crate) symbol: String,
    pub(crate) tensor: String,
    pub(crate) why: String,
}

impl Machine {
    /// Reads, verifies and compiles.
    pub(crate) fn new(source: &str) -> Machine {
        let program = text::parse(source).unwrap_or_else(|error| panic!("{error}"));
        verify::verify(&program).unwrap_or_else(|error| panic!("{error}"));
        Machine::compile(program, false)
    }

    /// The same without microkernels.
    pub(crate) fn scalar(source: &str) -> Machine {
        Machine::compile(text::parse(source).unwrap_or_else(|error| panic!("{error}")), true)
    }

    pub(crate) fn compile(program: Program, scalar: bool) -> Machine {
        let plan = stacked(&program);
        Machine::assemble(program, &plan, scalar).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with tile registers in memory.
    pub(crate) fn on_tiles(program: Program) -> Machine {
        let plan = stacked(&program);
        let options = CompileOptions::default().listing(true).microkernels(Microkernels::EmulatedTiles);
        Machine::with(program, &plan, &options).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn assemble(program: Program, plan: &Plan, scalar: bool) -> Result<Machine, Error> {
        let microkernels = if scalar { Microkernels::ScalarLoops } else { Microkernels::Native };
        let options = CompileOptions::default().listing(true).microkernels(microkernels);
        Machine::with(program, plan, &options)
    }

    fn with(program: Program, plan: &Plan, options: &CompileOptions) -> Result<Machine, Error> {
        let isa = Target::host().and_then(|host| host.isa(target::Placement::Jit)).expect("this machine");
        let builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        let mut module = JITModule::new(builder);
        let summary =
            codegen::generate(&program, plan, &ModuleForm::new(ModuleKind::InProcess), options, &mut module)?;
        module.finalize_definitions().expect("memory");
        let (desc, bytes) = module.get_finalized_data(summary.desc);
        assert_eq!(bytes, size_of::<ModelDesc>());
        // SAFETY: `generate` defines the descriptor, of the size just checked.
        let desc = unsafe { desc.cast::<ModelDesc>().read() };
        Ok(Machine { program, summary, module: Some(module), desc })
    }

    /// Calls `check`.
    pub(crate) fn check(&self, shapes: &[Vec<i64>]) -> Result<Vec<i64>, Refusal> {
        let pointers: Vec<*const i64> = shapes.iter().map(|shape| shape.as_ptr()).collect();
        let (mut dims, mut error) = (vec![0; self.program.all_symbols().count()], abi::Error::NONE);
        // SAFETY: there is a shape for each input, a dim for each symbol, and an error to fill.
        let code = unsafe { (self.desc.check)(pointers.as_ptr(), dims.as_mut_ptr(), &mut error) };
        if code == 0 { Ok(dims) } else { Err(refusal(code, &error)) }
    }

    /// Calls `arena_bytes`.
    pub(crate) fn arena_bytes(&self, dims: &[i64]) -> usize {
        assert!(dims.len() >= self.program.symbols.len());
        // SAFETY: there is a dim for each symbol.
        unsafe { (self.desc.arena_bytes)(dims.as_ptr()) }
    }

    /// Calls `output_shape`.
    pub(crate) fn output_shape(&self, output: usize, dims: &[i64]) -> Vec<i64> {
        let mut shape = vec![0; self.program.outputs[output].shape.len()];
        // SAFETY: there is a dim for each symbol, and an entry for each axis of this output.
        let code = unsafe { (self.desc.output_shape)(output as u32, dims.as_ptr(), shape.as_mut_ptr()) };
        assert_eq!(code, 0);
        shape
    }

    /// Calls `run` with the inputs' bytes and gives the outputs' bytes.
    pub(crate) fn run(&self, dims: &[i64], inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut error = abi::Error::NONE;
        let exec =
            abi::Exec { host: ptr::null_mut(), threads: 1, policy: 0, parallel_for: None, error: &mut error };
        self.run_with(dims, inputs, &exec).map_err(|code| refusal(code, &error))
    }

    /// Calls `run` with an executor of the caller's. The last byte of each buffer is next to memory without access.
    pub(crate) fn run_with(
        &self,
        dims: &[i64],
        inputs: &[Vec<u8>],
        exec: *const abi::Exec,
    ) -> Result<Vec<Vec<u8>>, i32> {
        self.run_next_to(Guard::After, dims, inputs, exec)
    }

    /// Calls `run` with this side of each buffer next to memory without access.
    pub(crate) fn run_next_to(
        &self,
        guard: Guard,
        dims: &[i64],
        inputs: &[Vec<u8>],
        exec: *const abi::Exec,
    ) -> Result<Vec<Vec<u8>>, i32> {
        let mut dims = dims.to_vec();
        dims.resize(self.program.all_symbols().count(), abi::UNKNOWN_DIM);
        let value_of = |symbol: &Symbol| {
            self.program.symbols.iter().position(|known| known == symbol).map(|idx| dims[idx])
        };
        let mut outputs = Vec::new();
        for port in &self.program.outputs {
            let buffer = &self.program.buffers[port.buffer];
            let elems = buffer.elems.eval_i64(&value_of).expect("a size");
            let bytes = elems as usize * buffer.dtype.size_bytes();
            outputs.push(Guarded::new(guard, bytes, buffer.dtype.size_bytes()));
        }
        let mut arena = Guarded::new(guard, self.arena_bytes(&dims), ARENA_ALIGN);
        let ports =
            self.program.inputs.iter().map(|port| self.program.buffers[port.buffer].dtype.size_bytes());
        let inputs: Vec<Guarded> =
            inputs.iter().zip(ports).map(|(bytes, align)| Guarded::of(guard, bytes, align)).collect();
        let input_pointers: Vec<_> = inputs.iter().map(|input| input.bytes().as_ptr().cast()).collect();
        let output_pointers: Vec<_> = outputs.iter_mut().map(|output| output.as_mut_ptr().cast()).collect();
        // SAFETY: the tests give inputs of the sizes that the dims say; the outputs and the arena have them.
        let code = unsafe {
            (self.desc.run)(
                input_pointers.as_ptr(),
                output_pointers.as_ptr(),
                dims.as_mut_ptr(),
                arena.as_mut_ptr().cast(),
                exec,
            )
        };
        let guarded = outputs.iter().chain(&inputs).chain([&arena]);
        assert!(guarded.into_iter().all(Guarded::is_whole), "it wrote beside its memory: {}", self.program);
        if code != 0 {
            return Err(code);
        }
        let mut outputs: Vec<Vec<u8>> = outputs.iter().map(|output| output.bytes().to_vec()).collect();
        // The memory is as large as the upper bounds of data-dependent sizes, which are known now.
        for (idx, (output, port)) in outputs.iter_mut().zip(&self.program.outputs).enumerate() {
            let elems: i64 = self.output_shape(idx, &dims).iter().product();
            output.truncate(elems as usize * self.program.buffers[port.buffer].dtype.size_bytes());
        }
        Ok(outputs)
    }

    /// Runs on `f32` inputs and gives the first output's elements.
    pub(crate) fn run_f32(&self, dims: &[i64], inputs: &[Vec<f32>]) -> Vec<f32> {
        let inputs: Vec<Vec<u8>> = inputs.iter().map(|elems| bytes(elems, |x| x.to_le_bytes())).collect();
        let outputs = self.run(dims, &inputs).expect("a run");
        outputs[0].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: no code of the module runs any more.
            unsafe { module.free_memory() };
        }
    }
}

/// Elements as bytes.
pub(crate) fn bytes<T: Copy, const N: usize>(elems: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    elems.iter().flat_map(|elem| to_bytes(*elem)).collect()
}

/// A plan without sharing: each buffer is above the one before it.
pub(crate) fn stacked(program: &Program) -> Plan {
    let mut placements: Vec<Placement> = Vec::new();
    for (buffer, data) in &program.buffers {
        if data.space.is_planned() {
            let below = placements.last().map(|placement| placement.buffer).into_iter().collect();
            placements.push(Placement { buffer, below });
        }
    }
    Plan { placements, ..Plan::default() }
}

fn refusal(code: i32, error: &abi::Error) -> Refusal {
    assert_eq!(code, error.code);
    Refusal {
        code,
        place: (error.tensor, error.axis),
        numbers: [error.value, error.lo, error.hi],
        symbol: string(error.symbol_name),
        tensor: string(error.tensor_name),
        why: string(error.why),
    }
}

fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: strings of an artefact end with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
