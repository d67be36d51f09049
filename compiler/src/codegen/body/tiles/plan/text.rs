//! Plans as text, for people and for snapshots.

use super::{
    isa::Isa,
    keys::MicrokernelVariant,
    packed_lhs::PackedLhs,
    reduction::ReductionLoop,
    rhs::PanelSource,
    tile_plan::{RowCount, TilePlan, plan},
    tiling::{AmxChoice, HeightTiling},
    zero_taps::ZeroTaps,
};
use crate::{
    codegen::{
        body::body_builder::Stream,
        microkernel::contraction::{ReductionPart, Rhs},
    },
    kernel::{Kernel, Program, Stmt},
};
use std::fmt::{self, Display, Formatter};
use symshape::Facts;

/// The plans of all contractions of a program on an ISA. A contraction that microkernels can't compute is `scalar`.
pub(crate) fn plans_text(program: &Program, isa: &Isa) -> String {
    let mut out = String::new();
    for kernel in &program.kernels {
        write_plans(program, kernel, &program.facts, &kernel.body, isa, &mut out);
    }
    out
}

fn write_plans(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    body: &[Stmt],
    isa: &Isa,
    out: &mut String,
) {
    for stmt in body {
        match stmt {
            Stmt::For { axis, body, .. } => {
                let mut facts = facts.clone();
                facts.declare_index(&axis.var, &axis.extent);
                write_plans(program, kernel, &facts, body, isa, out);
            }
            Stmt::While { body, .. } => write_plans(program, kernel, facts, body, isa, out),
            Stmt::If { then, otherwise, .. } => {
                write_plans(program, kernel, facts, then, isa, out);
                write_plans(program, kernel, facts, otherwise, isa, out);
            }
            Stmt::Contraction(contraction) => {
                let plan = plan(program, kernel, facts, contraction, isa);
                out.push_str(&plan.map_or_else(|| "scalar\n".to_string(), |plan| plan.to_string()));
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

impl Display for TilePlan<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rows: Vec<String> = self.contraction.m.iter().map(|axis| axis.extent.to_string()).collect();
        let columns = &self.contraction.n.extent;
        let row_count = match self.row_count {
            RowCount::Any => String::new(),
            RowCount::OneTile => ", for one tile".to_string(),
            RowCount::MoreThan(rows) => format!(", for more than {rows} rows"),
        };
        let depth = self.contraction.depth();
        writeln!(f, "m {}, n {columns}, k {depth}: {:?}{row_count}", rows.join(" x "), self.dot())?;
        self.write_operands(f)?;

        for reduction in &self.loops {
            let ReductionLoop { extent, lhs_step, rhs_step } = reduction;
            writeln!(f, "  loop     {extent}: lhs {lhs_step}, rhs {rhs_step}")?;
        }

        if let Some(ZeroTaps { dilation, first, begin, end, .. }) = &self.zero_taps {
            writeln!(f, "  taps     {first} + {dilation}*tap in {begin}..{end}")?;
        }

        if let Some(k_blocking) = &self.k_blocking {
            let parts = k_blocking.parts();
            writeln!(f, "  k parts  {parts} of {}, sums in stream {}", k_blocking.step, k_blocking.stream)?;
        }

        if let Some(line_batch) = &self.line_batch {
            writeln!(f, "  lines    in one call, {} bytes apart", line_batch.lhs_bytes)?;
        }

        let block = if self.small_blocks { "few rows".into() } else { format!("{} bytes", self.block_bytes) };
        writeln!(f, "  block    {block} of lhs")?;
        let prefetched = [(self.prefetches_panels, "panels"), (self.prefetches_rows, "rows")];

        let prefetched: Vec<&str> =
            prefetched.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        if !prefetched.is_empty() {
            writeln!(f, "  prefetch {}", prefetched.join(", "))?;
        }

        let streams = self.streams.len();
        let scalars = self.scalars.len();
        writeln!(f, "  epilogue {} steps, {streams} streams, {scalars} scalars", self.epilogue.insts.len())?;

        self.write_tiles(f)?;
        self.for_more_rows.iter().try_for_each(|plan| plan.fmt(f))
    }
}

impl TilePlan<'_> {
    fn write_operands(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let stream = |stream: &Stream| format!("{}[{}]", stream.origin.buffer, stream.origin.index);
        let lhs = stream(&self.lhs.stream);
        let row = &self.lhs.stream.row;
        match &self.lhs.packed {
            None => writeln!(f, "  lhs      {lhs} in place, row {row}")?,
            Some(PackedLhs::Rows(packed)) => {
                let from = stream(&packed.stream);
                let bytes = packed.step_bytes();
                writeln!(f, "  lhs      {lhs} packed from {from}, {:?}, {bytes} bytes a row", packed.form)?;
            }
            Some(PackedLhs::Pixels(packed)) => {
                let from = &packed.windows.base;
                let bytes = &packed.step_bytes;
                writeln!(
                    f,
                    "  lhs      {lhs} packed from {from}, {:?}, {bytes} bytes a pixel, row {row}",
                    packed.form
                )?;
            }
        }

        let rhs = stream(&self.rhs.stream);
        let column = &self.rhs.stream.column;
        let form = match self.rhs.form {
            Rhs::Panels(width) => format!("panels of {width}, {column} elements each"),
            Rhs::FewBits(code) => {
                let block = &self.rhs.stream.row;
                format!("panels of {} bits in blocks of {block}, {column} bytes each", code.bits)
            }
            Rhs::Rows => "rows".to_string(),
            Rhs::Scattered => format!("scattered, column {column}"),
        };
        let packed = match &self.rhs.source {
            Some(PanelSource::Computed(rhs)) => format!(" packed from {}", rhs.origin),
            Some(PanelSource::FewBits(rhs)) => {
                format!(" unpacked from {} bits at {}", rhs.form.bits, rhs.origin)
            }
            None => String::new(),
        };
        writeln!(f, "  rhs      {rhs}{packed} in {form}")
    }

    fn write_tiles(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.dot().is_amx() {
            return self.write_amx_tiles(f);
        }
        for tiling in self.height_tilings(ReductionPart::Whole) {
            writeln!(f, "  {tiling}")?;
        }
        Ok(())
    }

    fn write_amx_tiles(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tiling = self.amx_tiling();
        for (name, choice) in ["wide", "panel", "rest"].into_iter().zip(&tiling.choices) {
            writeln!(f, "  {name:<8} {choice}")?;
        }
        Ok(())
    }
}

impl Display for HeightTiling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "rows {:<3} ", self.height)?;
        let variants = self.variants.iter().flatten().map(MicrokernelVariant::to_string);
        f.write_str(&variants.collect::<Vec<_>>().join(", "))
    }
}

impl Display for AmxChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            AmxChoice::None => f.write_str("none"),
            AmxChoice::Same(variant) => write!(f, "{variant}"),
            AmxChoice::Pair { alone, pair } => write!(f, "{alone} alone, {pair}"),
            AmxChoice::ByHeight { small, large, low } => {
                write!(f, "{small} for small tiles, {large} for large ones, {low} for low ones")
            }
        }
    }
}

/// `ROWSxVECTORS`, and whether vectors are narrow, columns are masked or rows are in pairs.
impl Display for MicrokernelVariant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let masked = if self.tail { " masked" } else { "" };
        let pair = if self.pair { " paired" } else { "" };
        let narrow = if self.narrow { " narrow" } else { "" };
        write!(f, "{}x{}{narrow}{masked}{pair}", self.rows, self.vectors)
    }
}
