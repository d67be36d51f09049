//! External functions: functions that a model calls but does not define.
//!
//! A function gets a [`Call`]: tensors to read, tensors to write, constants of the model, and scratch memory. For
//! models in this process, it is registered with the compiler ([`Function::new`]). For artefacts, it is exported under
//! the C name that the artefact calls; [`serve`] converts the pointer from C to a [`Call`]:
//!
//! ```
//! use symshape_runtime::{abi, external};
//!
//! /// `int32_t acme_double(const symshape_call *call)`
//! ///
//! /// # Safety
//! /// `call` is the argument that a model passes to its external functions.
//! #[unsafe(no_mangle)]
//! pub unsafe extern "C" fn acme_double(call: *const abi::Call) -> i32 {
//!     let double = |call: external::Call<'_>| {
//!         let x = call.inputs[0].elems::<f32>().map_err(|_| 1)?;
//!         let y = call.outputs[0].elems_mut::<f32>().map_err(|_| 2)?;
//!         y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
//!         Ok(())
//!     };
//!     // SAFETY: as the model promises.
//!     unsafe { external::serve(call, double) }
//! }
//! ```
//!
//! The results of a function must depend only on its operands and attributes. The compiler may drop a call whose
//! results are not used, and may replace two equal calls by one.

use crate::{DType, Element, TensorError, abi, element, tensor};
use alloc::{boxed::Box, ffi::CString, string::String, sync::Arc, vec::Vec};
use core::{
    ffi::{CStr, c_char, c_void},
    fmt,
    marker::PhantomData,
};

/// An operand of a call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Input<'a> {
    raw: abi::CallTensor,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Input<'a> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        dtype(&self.raw)
    }

    /// The shape.
    pub fn shape(&self) -> &'a [i64] {
        shape(&self.raw)
    }

    /// The memory, dense and row-major.
    pub fn bytes(&self) -> &'a [u8] {
        let len = size_bytes(&self.raw);
        // SAFETY: the creator of this value lends `len` bytes for `'a`, see `Call::from_abi`.
        if len == 0 { &[] } else { unsafe { core::slice::from_raw_parts(self.raw.data.cast(), len) } }
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// When they are of another type.
    pub fn elems<T: Element>(&self) -> Result<&'a [T], TensorError> {
        let wrong = TensorError::WrongDType { expected: self.dtype(), got: T::DTYPE };
        if self.dtype() != T::DTYPE {
            return Err(wrong);
        }
        if size_bytes(&self.raw) == 0 {
            return Ok(&[]);
        }
        element::elems(self.bytes()).ok_or(wrong)
    }
}

/// A result of a call. The function must write every element; the previous content is undefined.
#[repr(transparent)]
pub struct Output<'a> {
    raw: abi::CallTensor,
    memory: PhantomData<&'a mut [u8]>,
}

impl Output<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        dtype(&self.raw)
    }

    /// The shape.
    pub fn shape(&self) -> &[i64] {
        shape(&self.raw)
    }

    /// The memory, dense and row-major.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = size_bytes(&self.raw);
        // SAFETY: the creator of this value lends `len` bytes to this call exclusively, and `&mut self` to one user at
        // a time.
        if len == 0 { &mut [] } else { unsafe { core::slice::from_raw_parts_mut(self.raw.data.cast(), len) } }
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// When they are of another type.
    pub fn elems_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        let wrong = TensorError::WrongDType { expected: self.dtype(), got: T::DTYPE };
        if self.dtype() != T::DTYPE {
            return Err(wrong);
        }

        let bytes = self.bytes_mut();
        if T::DTYPE == DType::Bool {
            bytes.fill(0);
        }

        if bytes.is_empty() {
            return Ok(&mut []);
        }

        let count = bytes.len() / size_of::<T>();
        let at = bytes.as_mut_ptr().cast::<T>();

        // SAFETY: the ABI aligns tensors to their elements, and the memory has `count` of them. Of the sealed types,
        // only `bool` has invalid bit patterns, and its bytes were zeroed above.
        at.is_aligned().then(|| unsafe { core::slice::from_raw_parts_mut(at, count) }).ok_or(wrong)
    }
}

/// The memory as elements, as many as fit. `None` if it is not aligned to the elements, or if they are `bool`.
pub fn scratch_elems<T: Element>(memory: &mut [u8]) -> Option<&mut [T]> {
    let at = memory.as_mut_ptr().cast::<T>();
    let count = memory.len() / size_of::<T>();
    if count == 0 || T::DTYPE == DType::Bool {
        return (T::DTYPE != DType::Bool).then_some(&mut []);
    }
    // SAFETY: aligned, inside the memory, and every bit pattern of the sealed types is valid except for `bool`.
    at.is_aligned().then(|| unsafe { core::slice::from_raw_parts_mut(at, count) })
}

fn dtype(raw: &abi::CallTensor) -> DType {
    DType::from_code(raw.dtype).expect("an element type of the ABI")
}

fn shape<'a>(raw: &abi::CallTensor) -> &'a [i64] {
    // SAFETY: the creator of the tensor lends its shape as long as its elements, see `Call::from_abi`.
    if raw.rank == 0 { &[] } else { unsafe { core::slice::from_raw_parts(raw.shape, raw.rank as usize) } }
}

fn size_bytes(raw: &abi::CallTensor) -> usize {
    let elems: i64 = shape(raw).iter().product();
    usize::try_from(elems).unwrap_or(0) * dtype(raw).size_bytes()
}

/// A constant of a call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct AttributeRef<'a> {
    raw: abi::CallAttribute,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> AttributeRef<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        // SAFETY: by the ABI a string that lives as long as the model.
        unsafe { CStr::from_ptr(self.raw.name) }.to_str().unwrap_or("?")
    }

    /// Its integers, if it has any.
    pub fn ints(&self) -> Option<&'a [i64]> {
        self.values(abi::INTS)
    }

    /// Its floats, if it has any.
    pub fn floats(&self) -> Option<&'a [f32]> {
        self.values(abi::FLOATS)
    }

    /// Its bytes, if it is a string.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        self.values(abi::BYTES)
    }

    fn values<T: Element>(&self, kind: u32) -> Option<&'a [T]> {
        if self.raw.kind != kind {
            return None;
        }
        if self.raw.count == 0 {
            return Some(&[]);
        }
        // SAFETY: by the ABI `count` values of this kind, aligned, which live as long as the model.
        Some(unsafe { core::slice::from_raw_parts(self.raw.data.cast(), self.raw.count as usize) })
    }
}

/// The argument of an external function, which may use it until it returns.
#[non_exhaustive]
pub struct Call<'a> {
    /// The operands.
    pub inputs: &'a [Input<'a>],
    /// The results, which don't overlap.
    pub outputs: &'a mut [Output<'a>],
    /// The constants, in the order in which they were declared.
    pub attributes: &'a [AttributeRef<'a>],
    /// Scratch memory of this call, 64-byte aligned, of the requested size. Its content is undefined.
    pub scratch: &'a mut [u8],
    /// Start of the device memory of the target, which may hold operands, results and scratch. Device addresses are
    /// offsets from it. Null for targets without device memory, and in the reference evaluator.
    pub memory: *const u8,
}

impl<'a> Call<'a> {
    /// The attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<AttributeRef<'a>> {
        self.attributes.iter().find(|attribute| attribute.name() == name).copied()
    }

    /// The call that a pointer from a model refers to.
    ///
    /// # Safety
    /// `call` points to a valid [`abi::Call`], and everything that it refers to is lent to the caller for `'a`.
    pub unsafe fn from_abi(call: *const abi::Call) -> Call<'a> {
        // SAFETY: as the caller promises; `Input`, `Output` and `AttributeRef` have the layout of the ABI's structs.
        unsafe {
            let call = &*call;
            Call {
                inputs: list(call.inputs.cast(), call.n_inputs),
                outputs: match call.n_outputs {
                    0 => &mut [],
                    n => core::slice::from_raw_parts_mut(call.outputs.cast_mut().cast(), n as usize),
                },
                attributes: list(call.attributes.cast(), call.n_attributes),
                scratch: match call.scratch_bytes {
                    0 => &mut [],
                    n => core::slice::from_raw_parts_mut(call.scratch.cast(), n as usize),
                },
                memory: call.memory.cast_const().cast(),
            }
        }
    }
}

/// # Safety
/// `first` points to `count` values that are lent for `'a`, or `count` is zero.
unsafe fn list<'a, T>(first: *const T, count: u32) -> &'a [T] {
    // SAFETY: as the caller promises.
    if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(first, count as usize) } }
}

/// Runs `function` on the call from a model, and returns the code for the model. A panic is a failure with the code
/// [`PANICKED`].
///
/// # Safety
/// As [`Call::from_abi`], until this returns.
pub unsafe fn serve(call: *const abi::Call, function: impl FnOnce(Call<'_>) -> Result<(), i32>) -> i32 {
    // SAFETY: as the caller promises.
    let call = unsafe { Call::from_abi(call) };
    match caught(|| function(call)) {
        Ok(()) => 0,
        // Zero would be success.
        Err(0) => 1,
        Err(code) => code,
    }
}

/// The code of a function that panicked.
pub const PANICKED: i32 = i32::MIN;

#[cfg(feature = "std")]
fn caught(function: impl FnOnce() -> Result<(), i32>) -> Result<(), i32> {
    // A call that fails discards its results, so no broken invariant is visible afterwards.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(function)).unwrap_or(Err(PANICKED))
}

#[cfg(not(feature = "std"))]
fn caught(function: impl FnOnce() -> Result<(), i32>) -> Result<(), i32> {
    function()
}

/// A constant that the model passes in a call.
#[derive(Clone, PartialEq, Debug)]
pub struct Attribute {
    /// The name, without zero bytes.
    pub name: String,
    /// The values.
    pub value: AttributeValue,
}

/// The values of an [`Attribute`].
#[derive(Clone, PartialEq, Debug)]
pub enum AttributeValue {
    /// Integers; a single one is a list of one.
    Ints(Vec<i64>),
    /// Floats; a single one is a list of one.
    Floats(Vec<f32>),
    /// A string or other bytes.
    Bytes(Vec<u8>),
}

impl AttributeValue {
    /// The kind in the ABI, and the number of values.
    pub fn kind(&self) -> (u32, usize) {
        match self {
            AttributeValue::Ints(values) => (abi::INTS, values.len()),
            AttributeValue::Floats(values) => (abi::FLOATS, values.len()),
            AttributeValue::Bytes(values) => (abi::BYTES, values.len()),
        }
    }
}

type Closure = dyn Fn(Call<'_>) -> Result<(), i32> + Send + Sync;

enum Kind {
    Closure(Box<Closure>),
    Address(abi::Callee),
    #[cfg(feature = "std")]
    Loaded(abi::Callee, #[expect(dead_code, reason = "keeps the code mapped")] libloading::Library),
}

/// A function that models in this process can call.
#[derive(Clone)]
pub struct Function(Arc<Kind>);

impl Function {
    /// A Rust function. The error of the model's call reports its error code; the code 0 becomes 1.
    pub fn new(function: impl Fn(Call<'_>) -> Result<(), i32> + Send + Sync + 'static) -> Function {
        Function(Arc::new(Kind::Closure(Box::new(function))))
    }

    /// The function at this address.
    ///
    /// # Safety
    /// The function meets the requirements of [`abi::Callee`] for every call of its declared types, on any thread.
    pub unsafe fn from_address(callee: abi::Callee) -> Function {
        Function(Arc::new(Kind::Address(callee)))
    }

    /// The function that a shared library exports under this name. Loading runs the library's initialisers: load only
    /// libraries that you trust, and declare the function with its real types.
    ///
    /// # Errors
    /// When the file can't be loaded, or exports nothing of this name.
    #[cfg(feature = "std")]
    pub fn load(library: &std::path::Path, symbol: &str) -> Result<Function, crate::OpenError> {
        use alloc::{format, string::ToString};
        let failed = |reason: String| crate::OpenError::Load { path: library.display().to_string(), reason };
        let path = std::path::absolute(library).map_err(|error| failed(error.to_string()))?;
        // SAFETY: the caller allows the library's initialisers to run, as documented above.
        let loaded = unsafe { libloading::Library::new(&path) }.map_err(|error| failed(error.to_string()))?;
        // SAFETY: the caller promises that the symbol is such a function.
        let address = unsafe { loaded.get::<abi::Callee>(symbol) };
        let address = *address.map_err(|_| failed(format!("it exports no function {symbol}")))?;
        Ok(Function(Arc::new(Kind::Loaded(address, loaded))))
    }

    /// The address that compiled code calls, with [`Function::data`] in the call.
    pub fn address(&self) -> abi::Callee {
        match &*self.0 {
            Kind::Closure(_) => closure,
            Kind::Address(address) => *address,
            #[cfg(feature = "std")]
            Kind::Loaded(address, _) => *address,
        }
    }

    /// The data for [`Function::address`]; valid while a clone of this function is alive.
    pub fn data(&self) -> *const c_void {
        Arc::as_ptr(&self.0).cast()
    }

    /// Calls the function on copies of the inputs, and returns the bytes of the results. Interpreters use it.
    ///
    /// # Errors
    /// The code that it returned.
    ///
    /// # Panics
    /// When bytes and shapes disagree, or a name holds a zero byte.
    pub fn call(
        &self,
        inputs: &[(DType, &[i64], &[u8])],
        outputs: &[(DType, &[i64])],
        attributes: &[Attribute],
        scratch_bytes: usize,
    ) -> Result<Vec<Vec<u8>>, i32> {
        let mut memory: Vec<Aligned> = inputs.iter().map(|(_, _, bytes)| Aligned::copy(bytes)).collect();
        for (dtype, shape) in outputs {
            memory.push(Aligned::zeros(tensor_bytes(*dtype, shape)));
        }
        for ((dtype, shape, _), memory) in inputs.iter().zip(&memory) {
            assert!(tensor_bytes(*dtype, shape) == memory.len, "bytes and shapes agree");
        }

        let shapes = inputs.iter().map(|(dtype, shape, _)| (*dtype, *shape)).chain(outputs.iter().copied());
        let tensors: Vec<abi::CallTensor> =
            shapes.zip(&mut memory).map(|((dtype, shape), memory)| memory.tensor(dtype, shape)).collect();

        let names: Vec<CString> =
            attributes.iter().map(|one| CString::new(&*one.name).expect("a name without zero")).collect();
        let attributes: Vec<abi::CallAttribute> =
            attributes.iter().zip(&names).map(|(one, name)| attribute(one, name.as_ptr())).collect();

        let mut scratch = Aligned::zeros(scratch_bytes);
        let call = abi::Call {
            inputs: tensors.as_ptr(),
            outputs: tensors[inputs.len()..].as_ptr(),
            attributes: attributes.as_ptr(),
            scratch: if scratch_bytes == 0 { core::ptr::null_mut() } else { scratch.data() },
            scratch_bytes: scratch_bytes as u64,
            data: self.data().cast_mut(),
            exec: core::ptr::null(),
            n_inputs: inputs.len() as u32,
            n_outputs: outputs.len() as u32,
            n_attributes: attributes.len() as u32,
            reserved: 0,
            memory: core::ptr::null_mut(),
        };
        // SAFETY: the call refers only to memory of this function, with the sizes and alignments that it states.
        match unsafe { (self.address())(&call) } {
            0 => Ok(memory[inputs.len()..].iter().map(|memory| memory.bytes().into()).collect()),
            code => Err(code),
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({:p})", self.data())
    }
}

/// The function that compiled code calls for a closure.
unsafe extern "C" fn closure(call: *const abi::Call) -> i32 {
    // SAFETY: `Function::address` requires that `data` comes from a function of this kind that is alive; everything
    // else is as the model promises.
    unsafe {
        match &*(*call).data.cast::<Kind>() {
            Kind::Closure(function) => serve(call, function),
            _ => PANICKED,
        }
    }
}

fn attribute(one: &Attribute, name: *const c_char) -> abi::CallAttribute {
    let data: *const c_void = match &one.value {
        AttributeValue::Ints(values) => values.as_ptr().cast(),
        AttributeValue::Floats(values) => values.as_ptr().cast(),
        AttributeValue::Bytes(values) => values.as_ptr().cast(),
    };
    let (kind, count) = one.value.kind();
    abi::CallAttribute { name, data, count: count as u64, kind, reserved: 0 }
}

/// The size of a tensor in bytes.
fn tensor_bytes(dtype: DType, shape: &[i64]) -> usize {
    let dims: Vec<usize> = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
    tensor::size_bytes(dtype, &dims).expect("the size fits in memory")
}

/// Bytes that begin at a 64-byte boundary.
struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    fn zeros(len: usize) -> Aligned {
        Aligned { lines: alloc::vec![Line([0; 64]); len.div_ceil(64).max(1)], len }
    }

    fn copy(bytes: &[u8]) -> Aligned {
        let mut copy = Aligned::zeros(bytes.len());
        for (line, bytes) in copy.lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        copy
    }

    fn data(&mut self) -> *mut c_void {
        self.lines.as_mut_ptr().cast()
    }

    fn tensor(&mut self, dtype: DType, shape: &[i64]) -> abi::CallTensor {
        abi::CallTensor {
            data: self.data(),
            shape: shape.as_ptr(),
            dtype: dtype as u32,
            rank: shape.len() as u32,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: lines are bytes without padding, and they have at least `len` bytes.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closures_are_called_on_copies_of_the_inputs() {
        let add = Function::new(|call| {
            let by = call.attribute("by").and_then(|by| by.ints()).ok_or(3)?[0];
            assert_eq!(call.scratch.len(), 5);
            let x = call.inputs[0].elems::<i64>().map_err(|_| 4)?;
            let y = call.outputs[0].elems_mut::<i64>().map_err(|_| 5)?;
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x + by);
            Ok(())
        });

        let by = |value| [Attribute { name: "by".into(), value }];
        let x = element::bytes(&[1i64, 2]);

        let shape = &[2][..];
        let call = |attributes: &[Attribute]| {
            add.call(&[(DType::I64, shape, x)], &[(DType::I64, shape)], attributes, 5)
        };
        let results = call(&by(AttributeValue::Ints(alloc::vec![40]))).expect("it succeeds");
        assert_eq!(results, [element::bytes(&[41i64, 42]).to_vec()]);
        assert_eq!(call(&by(AttributeValue::Floats(alloc::vec![40.0]))), Err(3));
        assert_eq!(call(&[]), Err(3));
    }

    #[test]
    fn panics_and_errors_are_failures() {
        let fails = Function::new(|call| Err(call.inputs.len() as i32));
        assert_eq!(fails.call(&[], &[], &[], 0), Err(1));
        let panics = Function::new(|call| {
            assert!(call.inputs.len() == 7, "the test must panic here");
            Ok(())
        });
        assert_eq!(panics.call(&[], &[(DType::F32, &[0])], &[], 0), Err(PANICKED));
    }
}
