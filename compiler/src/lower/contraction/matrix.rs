//! Batches of matrix multiplications.

use super::{
    few_bits,
    nest::{AxisClass, ContractionNest},
    packing::PackedPanels,
};
use crate::{
    Error, Result,
    kernel::{Access, Axis, Contraction, Kernel, Rhs, Stmt},
    lower::{
        buffers,
        lowering::{KernelScope, Lowering},
        nest::{AxisRole, loops, with_exprs},
    },
    scalar::Precision,
};
use symshape::Dim;

/// Emits a batch of matrix multiplications.
pub(super) fn lower(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    mut contraction: ContractionNest,
) -> Result<()> {
    // Batch axes go outside, and rows outside columns, whatever their order in memory, because merging needs
    // neighbours.
    let class = contraction.classify();
    contraction.nest.sort_kept_by(|axis| class(axis) as i32);

    let packing = PackedPanels::of(&contraction, scope);
    if let Some(packing) = &packing {
        contraction.nest.exprs[1] = packing.flat.clone();
    }
    let padding = contraction.merge(scope);

    let class = contraction.classify();
    let mut outer = Vec::new();
    let mut m = Vec::new();
    let mut columns = Vec::new();
    for axis in contraction.nest.axes(AxisRole::Kept) {
        match class(&axis) {
            AxisClass::Batch => outer.push(axis),
            AxisClass::Row => m.push(axis),
            AxisClass::Column => columns.push(axis),
        }
    }

    let n = columns.pop().unwrap_or_else(|| single(scope));
    outer.extend(columns);
    if m.is_empty() {
        m.push(single(scope));
    }
    let mut k = contraction.nest.axes(AxisRole::Reduced);
    if k.is_empty() {
        k.push(single(scope));
    }

    let lhs = contraction.nest.exprs[0].clone();
    let rhs = contraction.nest.exprs[1].clone();
    let rhs = match &packing {
        Some(packing) => {
            let few_bits = match k[..] {
                [_] => few_bits::pack(lowering, scope, &contraction, packing, &n, &rhs),
                // Rounded rows are copied anyway.
                _ if contraction.precision == Precision::Int8 => {
                    few_bits::pack(lowering, scope, &contraction, packing, &n, &rhs)
                }
                _ => None,
            };
            match few_bits {
                Some(rhs) => rhs,
                None => packing.pack(lowering, scope, &contraction, &n, &rhs)?,
            }
        }
        None => Rhs::Indexed(Access {
            buffer: buffers::stored(lowering, contraction.operands[1].value)?.buffer,
            index: rhs,
        }),
    };

    let has_few_bits = matches!(rhs, Rhs::FewBits(_));
    let precision = match contraction.precision {
        Precision::Int8 if has_few_bits => Precision::F32,
        Precision::Int8 => return Err(Error::internal("weights of rounded activations have no packed form")),
        precision => precision,
    };
    let statement = Contraction {
        m,
        n,
        k,
        lhs: Access { buffer: buffers::stored(lowering, contraction.operands[0].value)?.buffer, index: lhs },
        rhs,
        dtype: contraction.dtype,
        precision,
        padding,
        pack_buffer: None,
        epilogue: with_exprs(&contraction.epilogue, &contraction.nest.exprs[2..]),
    };
    let body = loops(&outer, true, vec![Stmt::Contraction(Box::new(statement))]);
    lowering.push(contraction.root, "contraction", Kernel::default(), body);
    Ok(())
}

/// An axis of one iteration.
fn single(scope: &mut KernelScope) -> Axis {
    let var = scope.fresh("i");
    scope.facts.declare_index(&var, &Dim::one());
    Axis { var, extent: Dim::one() }
}
