//! stub
use super::function::FuncCtx;
use crate::{
    error::{Error, Result},
    scalar::UnaryOp,
};
use cranelift_codegen::ir::Value;
use symshape_runtime::DType;
/// x
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Math {
    Pow,
    Fmod,
    Mod,
    Atan2,
}
impl Math {
    /// x
    pub fn unary(_op: UnaryOp) -> Option<Math> {
        None
    }
}
impl FuncCtx<'_, '_> {
    /// x
    pub fn math(&mut self, math: Math, _dtype: DType, _args: &[Value]) -> Result<Value> {
        Err(Error::internal(format!("{math:?}")))
    }
}
