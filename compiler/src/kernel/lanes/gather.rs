//! Loads at loaded addresses, as lanes.
//!
//! A check becomes an instruction that narrows the value to 32 bits and reports a failure. A load whose address depends
//! on checked values becomes a gather: an offset for each lane, from an element that does not move along the loop.

use super::{
    builder::{BodyBuilder, linear_parts},
    checked::CheckedValue,
    obstacle::Obstacle,
    op::{Body, Op, Ty},
};
use crate::{
    kernel::{Access, Check},
    scalar::BinaryOp,
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

impl BodyBuilder<'_> {
    /// The check that register `of` is in a range from 0.
    pub(super) fn check(
        &mut self,
        body: &mut Body,
        check: &Check,
        of: u32,
        column: Option<&Symbol>,
    ) -> Result<u32, Obstacle> {
        let ty = body.ty(of);
        let is_range = check.lo == Dim::zero() && self.fits_lane(DType::I64, &check.end);
        // A lane that fails reads element 0, which must exist.
        let has_elements = self.facts.prove_le(&Dim::one(), &check.end).is_yes();
        // Code after a scalar phase could not use the symbols that it binds.
        let is_loop = column.is_some();
        if !self.may_fail || !is_loop || !is_range || !has_elements || !matches!(ty, Ty::I32 | Ty::I64) {
            return Err(Obstacle::LoadedAddress);
        }

        let dtype = if ty == Ty::I64 { DType::I64 } else { DType::I32 };
        let end = self.index(body, dtype, &check.end, column, false)?;
        let reg = body.push(Op::Checked(of, end), Ty::I32).ok_or(Obstacle::LoadedAddress)?;
        self.gathers.checked.push(CheckedValue { of, reg, end: check.end.clone() });
        Ok(reg)
    }

    /// A load whose address depends on checked values.
    pub(super) fn gather(
        &mut self,
        body: &mut Body,
        access: &Access,
        column: Option<&Symbol>,
    ) -> Result<u32, Obstacle> {
        let mut moving = Vec::new();
        for (symbol, CheckedValue { reg, end, .. }) in &self.gathers.bound {
            moving.push((symbol.clone(), Some(*reg), end - 1));
        }
        // The loop itself moves the address too.
        moving.extend(column.map(|column| (column.clone(), None, Dim::from(column))));

        let mut rest = access.index.clone();
        let mut farthest = Dim::zero();
        let mut offset = None;
        for (symbol, reg, last) in moving {
            let not_linear = || Obstacle::Address(access.index.clone());
            let (step, origin) = linear_parts(self.facts, &rest, Some(&symbol)).ok_or_else(not_linear)?;
            rest = origin;
            if step == Dim::zero() {
                continue;
            }
            if !self.facts.prove_le(&Dim::zero(), &step).is_yes() {
                return Err(not_linear());
            }
            let reg = match reg {
                Some(reg) => reg,
                None => body.push(Op::Column, Ty::I32).ok_or(Obstacle::LoadedAddress)?,
            };
            let term = self.scaled(body, reg, &step, column)?;
            farthest = farthest + &step * &last;
            offset = Some(match offset {
                None => term,
                Some(sum) => push(body, BinaryOp::Add, sum, term)?,
            });
        }

        let (stream, ty) = self.stream(&Access { buffer: access.buffer, index: rest }, column)?;
        let offset = offset.filter(|_| self.fits_lane(DType::I64, &farthest));
        let offset = offset.ok_or(Obstacle::LoadedAddress)?;
        body.push(Op::Gather(stream, offset), ty).ok_or(Obstacle::LoadedAddress)
    }

    /// `reg * step`
    fn scaled(
        &mut self,
        body: &mut Body,
        reg: u32,
        step: &Dim,
        column: Option<&Symbol>,
    ) -> Result<u32, Obstacle> {
        if step.as_i64() == Some(1) {
            return Ok(reg);
        }
        let factor = match step.as_i64().map(i32::try_from) {
            Some(Ok(step)) => body.push(Op::Const(step as u32), Ty::I32).ok_or(Obstacle::LoadedAddress)?,
            _ if self.fits_lane(DType::I64, step) => self.index(body, DType::I32, step, column, false)?,
            _ => return Err(Obstacle::LoadedAddress),
        };
        push(body, BinaryOp::Mul, reg, factor)
    }
}

fn push(body: &mut Body, op: BinaryOp, x: u32, y: u32) -> Result<u32, Obstacle> {
    body.push(Op::Binary(op, x, y), Ty::I32).ok_or(Obstacle::LoadedAddress)
}
