//! Calling conventions: the target's own, and that of machine code.

use cranelift_codegen::{
    ir::{AbiParam, Signature, Type},
    isa::{CallConv, TargetIsa},
};

/// A signature in the target's C calling convention.
pub(crate) fn c_signature(target: &dyn TargetIsa, params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = Signature::new(target.default_call_conv());
    signature.params.extend(params.iter().copied().map(AbiParam::new));
    signature.returns.extend(returns.iter().copied().map(AbiParam::new));
    signature
}

/// The signature of a function whose instructions this compiler encodes itself, or of one in its place. On x86-64 it
/// has the System V convention on every system, so it may change all vector registers. Its callers have the target's
/// convention, and save the registers that their own callers rely on.
pub(crate) fn machine_code_signature(target: &dyn TargetIsa, params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = c_signature(target, params, returns);
    if signature.call_conv == CallConv::WindowsFastcall {
        signature.call_conv = CallConv::SystemV;
    }
    signature
}
