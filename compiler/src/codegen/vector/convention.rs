//! Calling conventions: the target's own, and that of machine code.

use cranelift_codegen::{
    ir::{AbiParam, Signature, Type},
    isa::CallConv,
};
use cranelift_module::Module;

/// A signature in the target's C calling convention.
pub(crate) fn c_signature(module: &dyn Module, params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = module.make_signature();
    signature.params.extend(params.iter().copied().map(AbiParam::new));
    signature.returns.extend(returns.iter().copied().map(AbiParam::new));
    signature
}

/// The signature of a function whose instructions this compiler encodes itself, or of one in its place. On x86-64 it
/// has the System V convention on every system, so it may change all vector registers. Its callers have the target's
/// convention, and save the registers that their own callers rely on.
pub(crate) fn machine_code_signature(module: &dyn Module, params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = c_signature(module, params, returns);
    if signature.call_conv == CallConv::WindowsFastcall {
        signature.call_conv = CallConv::SystemV;
    }
    signature
}
