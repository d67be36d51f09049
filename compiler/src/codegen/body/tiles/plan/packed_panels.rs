//! The bytes of packed constants, which are computed from the panels of the constants when they are read.

use super::packed_constant::PackedConstant;
use crate::{
    codegen::{
        microkernel::contraction::{DotOp, PANEL},
        vector::vcode::TILE_ROWS,
    },
    parallel,
    scalar::precision,
    tensor::{Bytes, Computation, Tensor},
};
use symshape_runtime::DType;

/// The size of panels that several threads compute.
const MIN_SHARED_BYTES: usize = 1 << 19;

impl PackedConstant {
    /// The packed bytes of the constant's value, which are computed when they are read. The value has panels of `depth`
    /// rows.
    pub(crate) fn bytes(&self, constant: &Tensor) -> Bytes {
        let source = constant.written_bytes();
        Bytes::computed(PackedPanels { form: self.clone(), dtype: constant.dtype(), source })
    }
}

struct PackedPanels {
    form: PackedConstant,
    /// The type of the elements of the source.
    dtype: DType,
    source: Bytes,
}

impl PackedPanels {
    fn panels(&self) -> usize {
        self.source.len() / self.source_panel_bytes()
    }

    /// Bytes of a panel of the source.
    fn source_panel_bytes(&self) -> usize {
        (self.form.depth * PANEL * self.dtype.size_bytes()).max(1)
    }

    /// Bytes of a packed panel.
    fn panel_bytes(&self) -> usize {
        let PackedConstant { dot, depth, run, rows, .. } = self.form;
        let runs = depth.div_ceil(run.max(1));
        match dot {
            DotOp::AmxBf16(parts) => {
                let registers = runs * run.div_ceil(2 * TILE_ROWS);
                registers * if parts.rhs > 1 { 2 } else { 1 } * TILE_ROWS * PANEL * 4
            }
            DotOp::MatrixBf16 => (2 * rows).div_ceil(4) * PANEL * 8,
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => {
                PANEL * 4 + runs * self.groups() * PANEL * self.group_bytes()
            }
            DotOp::I16Pairs | DotOp::F32 => depth.div_ceil(2) * PANEL * 4,
        }
    }

    /// Bytes that one multiplication takes of a column.
    fn group_bytes(&self) -> usize {
        self.form.dot.depth_step() as usize
    }

    /// Groups of a run.
    fn groups(&self) -> usize {
        let PackedConstant { depth, run, rows, .. } = self.form;
        4 * rows / self.group_bytes() * run / depth.max(1)
    }

    /// Panels that are computed at once: as many as the source computes at once.
    fn unit_panels(&self) -> usize {
        let source_unit = self.source.unit_bytes();
        let panel = self.source_panel_bytes();
        if source_unit.is_multiple_of(panel) {
            source_unit / panel
        } else if panel.is_multiple_of(source_unit) {
            1
        } else {
            self.panels()
        }
    }

    /// Packs one panel.
    fn pack(&self, panel: &[u8], out: &mut [u8]) {
        match self.form.dot {
            DotOp::AmxBf16(parts) => self.bf16(panel, parts.rhs > 1, out),
            DotOp::MatrixBf16 => fours_of_bf16(panel, out),
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => {
                match self.dtype {
                    DType::I8 => self.groups_of_bytes(panel, |[byte]: [u8; 1]| (byte as i8).into(), out),
                    DType::U8 => self.groups_of_bytes(panel, |[byte]: [u8; 1]| byte.into(), out),
                    _ => self.groups_of_bytes(panel, i16::from_le_bytes, out),
                }
            }
            DotOp::I16Pairs | DotOp::F32 => match self.dtype {
                DType::I8 => pairs(panel, |[byte]: [u8; 1]| (byte as i8).into(), out),
                DType::U8 => pairs(panel, |[byte]: [u8; 1]| byte.into(), out),
                _ => pairs(panel, i16::from_le_bytes, out),
            },
        }
    }

    /// A panel of `f32` as a panel for tile registers. For each row of a register along the reduction it holds 16 rows
    /// of pairs of high bf16, one pair for each column, and then, with `low`, as many pairs of low ones. Each run of a
    /// column is padded with zeros to whole registers.
    fn bf16(&self, panel: &[u8], low: bool, out: &mut [u8]) {
        let run = self.form.run;
        let rows = panel.as_chunks::<{ 4 * PANEL }>().0;
        let mut registers = out.chunks_exact_mut(TILE_ROWS * PANEL * 4);
        for run_rows in rows.chunks(run.max(1)) {
            for rows in run_rows.chunks(2 * TILE_ROWS) {
                let mut high = registers.next();
                let mut low = if low { registers.next() } else { None };
                for pair in 0..TILE_ROWS {
                    let [first, second] =
                        [2 * pair, 2 * pair + 1].map(|k| rows.get(k).map_or([0.0; PANEL], floats));
                    let part = |register: &mut Option<&mut [u8]>, part: fn(f32) -> f32| {
                        let Some(register) = register else { return };
                        let row = register.as_chunks_mut::<4>().0[pair * PANEL..].iter_mut();
                        for (out, (x, y)) in row.zip(first.iter().zip(&second)) {
                            *out = pair_of_halves(part(*x), part(*y));
                        }
                    };
                    part(&mut high, precision::high);
                    part(&mut low, precision::low);
                }
            }
        }
    }

    /// A panel of integers as a panel of groups of bytes: those that one multiplication takes of a column. It begins
    /// with a row of sums, which cancels the amount that the shift of the lhs adds to the result. As many groups follow
    /// as the rows need, the last ones zero.
    fn groups_of_bytes<const SIZE: usize>(
        &self,
        panel: &[u8],
        integer: impl Fn([u8; SIZE]) -> i16,
        out: &mut [u8],
    ) {
        let PackedConstant { run, shared, lhs_shift, .. } = self.form;
        let group = self.group_bytes();
        let groups = self.groups();
        let rows: Vec<&[[u8; SIZE]]> = panel.as_chunks::<SIZE>().0.chunks_exact(PANEL).collect();

        let mut sums = [0i32; PANEL];
        for row in &rows {
            sums.iter_mut().zip(*row).for_each(|(sum, element)| *sum += i32::from(integer(*element)));
        }
        let (first_row, out) = out.split_at_mut(PANEL * 4);
        let slots = first_row.as_chunks_mut::<4>().0.iter_mut();
        slots.zip(sums).for_each(|(slot, sum)| *slot = sum.wrapping_mul(-lhs_shift).to_le_bytes());

        let out_runs = out.chunks_exact_mut((groups * PANEL * group).max(1));
        for (rows, out) in rows.chunks(run.max(1)).zip(out_runs) {
            for (number, out) in out.chunks_exact_mut(PANEL * group).enumerate() {
                // The last group ends where the run does; bytes of the group before are zero.
                let skipped = if shared > 0 && number + 1 == groups { shared } else { 0 };
                out.fill(0);
                for k in skipped..group {
                    let Some(row) = rows.get(number * group + k - skipped) else { break };
                    let slots = out.iter_mut().skip(k).step_by(group);
                    slots.zip(*row).for_each(|(slot, element)| *slot = integer(*element) as u8);
                }
            }
        }
    }
}

impl Computation for PackedPanels {
    fn len(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    fn unit_bytes(&self) -> usize {
        self.unit_panels() * self.panel_bytes()
    }

    fn compute(&self, unit: usize, out: &mut [u8]) {
        let panel_bytes = self.panel_bytes();
        let source_bytes = self.source_panel_bytes();
        let first = unit * self.unit_panels();
        let n_panels = out.len() / panel_bytes;
        let source = self.source.read_part(first * source_bytes..(first + n_panels) * source_bytes);

        let threads = if out.len() < MIN_SHARED_BYTES { 1 } else { parallel::cores() };
        let share = n_panels.div_ceil(threads).max(1);
        let shares = out.chunks_mut(share * panel_bytes).zip(source.chunks(share * source_bytes)).collect();
        parallel::map(shares, threads, |(out, source)| {
            let panels = source.chunks_exact(source_bytes).zip(out.chunks_exact_mut(panel_bytes));
            panels.for_each(|(panel, out)| self.pack(panel, out));
        });
    }

    fn head(&self) -> Vec<u8> {
        let mut first = vec![0; self.unit_bytes().min(self.len())];
        if !first.is_empty() {
            self.compute(0, &mut first);
        }
        first
    }

    fn release(&self) {
        self.source.release();
    }
}

/// A row of a panel of `f32`.
fn floats(row: &[u8; 4 * PANEL]) -> [f32; PANEL] {
    let elements = row.as_chunks::<4>().0;
    std::array::from_fn(|column| f32::from_le_bytes(elements[column]))
}

/// The two bf16 that equal these floats.
fn pair_of_halves(x: f32, y: f32) -> [u8; 4] {
    (x.to_bits() >> 16 | y.to_bits() & 0xffff_0000).to_le_bytes()
}

/// A panel of `f32` as a panel of bf16: four of a column after another. Columns are padded with zeros.
fn fours_of_bf16(panel: &[u8], out: &mut [u8]) {
    let rows = panel.as_chunks::<{ 4 * PANEL }>().0;
    for (four, out) in out.as_chunks_mut::<{ 8 * PANEL }>().0.iter_mut().enumerate() {
        let rows: [[f32; PANEL]; 4] =
            std::array::from_fn(|k| rows.get(4 * four + k).map_or([0.0; PANEL], floats));
        let rows = rows.map(|row| row.map(precision::high));
        for (column, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let [a, b, c, d] = rows.map(|row| row[column]);
            out[..4].copy_from_slice(&pair_of_halves(a, b));
            out[4..].copy_from_slice(&pair_of_halves(c, d));
        }
    }
}

/// A panel of integers as a panel of pairs of 16-bit integers. An odd last element is paired with zero.
fn pairs<const SIZE: usize>(panel: &[u8], integer: impl Fn([u8; SIZE]) -> i16, out: &mut [u8]) {
    let elements = panel.as_chunks::<SIZE>().0;
    let out = out.as_chunks_mut::<4>().0;
    for (two_rows, out) in elements.chunks(2 * PANEL).zip(out.chunks_exact_mut(PANEL)) {
        let (first, second) = two_rows.split_at(PANEL);
        for (column, out) in out.iter_mut().enumerate() {
            let x = integer(first[column]).to_le_bytes();
            let y = second.get(column).map_or(0, |element| integer(*element)).to_le_bytes();
            *out = [x[0], x[1], y[0], y[1]];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel::BufferId, scalar::Precision};

    fn form(dot: DotOp, depth: usize, run: usize, shared: usize, lhs_shift: i32) -> PackedConstant {
        let group = dot.depth_step() as usize;
        let elements_of_32_bits = dot.group() as usize;
        let rows = depth / run * (run.next_multiple_of(group) / elements_of_32_bits);
        // Tile registers multiply whole rows.
        let rows = if dot == DotOp::AmxBytes && run == depth { rows.next_multiple_of(16) } else { rows };
        PackedConstant { buffer: BufferId::from_u32(0), dot, depth, run, rows, shared, lhs_shift }
    }

    /// The packed bytes of these elements, one after another.
    fn expected(form: &PackedConstant, elements: &[f32]) -> Vec<u8> {
        let panels = elements.chunks_exact(form.depth * PANEL);
        panels.flat_map(|panel| expected_panel(form, panel)).collect()
    }

    fn expected_panel(form: &PackedConstant, panel: &[f32]) -> Vec<u8> {
        let PackedConstant { dot, depth, run, rows, shared, lhs_shift, .. } = *form;
        let at = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0.0);
        let in_run =
            |begin: usize, k: usize, column: usize| if k < run { at(begin + k, column) } else { 0.0 };
        let half = |x: f32| ((x.to_bits() >> 16) as u16).to_le_bytes();
        let group = dot.depth_step() as usize;
        let mut bytes = Vec::new();
        match dot {
            DotOp::AmxBf16(parts) => {
                let parts = &[precision::high, precision::low][..parts.rhs as usize];
                for begin in (0..depth).step_by(run) {
                    for first in (0..run).step_by(2 * TILE_ROWS) {
                        for part in parts {
                            for pair in 0..TILE_ROWS {
                                for column in 0..PANEL {
                                    let k = first + 2 * pair;
                                    bytes.extend(half(part(in_run(begin, k, column))));
                                    bytes.extend(half(part(in_run(begin, k + 1, column))));
                                }
                            }
                        }
                    }
                }
            }
            DotOp::MatrixBf16 => {
                for first in (0..depth).step_by(4) {
                    for column in 0..PANEL {
                        let four = (first..first + 4).map(|k| half(precision::high(at(k, column))));
                        bytes.extend(four.flatten());
                    }
                }
            }
            DotOp::I16Pairs | DotOp::F32 => {
                for first in (0..depth).step_by(2) {
                    for column in 0..PANEL {
                        let two = [at(first, column), at(first + 1, column)];
                        bytes.extend(two.into_iter().flat_map(|x| (x as i16).to_le_bytes()));
                    }
                }
            }
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => {
                for column in 0..PANEL {
                    let sum: i32 = (0..depth).map(|k| at(k, column) as i32).sum();
                    bytes.extend((sum * -lhs_shift).to_le_bytes());
                }
                for begin in (0..depth).step_by(run) {
                    for first in (0..4 * rows * run / depth).step_by(group) {
                        // The last group is moved to the end of the run.
                        let skipped = if first + group > run { shared } else { 0 };
                        for column in 0..PANEL {
                            let element = |k: usize| {
                                k.checked_sub(skipped).map_or(0.0, |k| in_run(begin, first + k, column))
                            };
                            bytes.extend((0..group).map(|k| element(k) as i16 as u8));
                        }
                    }
                }
            }
        }
        bytes
    }

    /// Elements of a constant of three panels, and its bytes.
    fn constant(dtype: DType, depth: usize) -> (Vec<f32>, Tensor) {
        let integers = (0..3 * depth * PANEL).map(|at| (at * 7919 % 251) as i64);
        let elements: Vec<f32> = match dtype {
            DType::F32 => integers.map(|x| (x - 125) as f32 * 0.37).collect(),
            DType::U8 => integers.map(|x| x as f32).collect(),
            DType::I8 => integers.map(|x| (x - 125) as f32).collect(),
            _ => integers.map(|x| (2 * x - 250) as f32).collect(),
        };
        let bytes = elements.iter().flat_map(|x| match dtype {
            DType::F32 => x.to_le_bytes().to_vec(),
            DType::U8 | DType::I8 => vec![*x as i16 as u8],
            _ => (*x as i16).to_le_bytes().to_vec(),
        });
        let tensor = Tensor::new(dtype, vec![elements.len()], Bytes::Owned(bytes.collect()));
        (elements, tensor.expect("as many bytes as elements"))
    }

    /// The constant in units of `panels` panels.
    struct InUnits(Bytes, usize);

    impl Computation for InUnits {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn unit_bytes(&self) -> usize {
            self.1
        }

        fn compute(&self, unit: usize, out: &mut [u8]) {
            out.copy_from_slice(&self.0[unit * self.1..][..out.len()]);
        }

        fn head(&self) -> Vec<u8> {
            self.0[..1].to_vec()
        }

        fn release(&self) {}
    }

    fn assert_packed(form: &PackedConstant, dtype: DType) {
        let (elements, tensor) = constant(dtype, form.depth);
        let expected = expected(form, &elements);
        let case = format!("{:?} of {dtype}, {} in runs of {}", form.dot, form.depth, form.run);
        assert_eq!(*form.bytes(&tensor).read(), expected, "{case}");

        let panel_bytes = tensor.size_bytes() / 3;
        for unit_bytes in [panel_bytes, tensor.size_bytes(), panel_bytes / 2 + 1] {
            let source = InUnits(tensor.shared_bytes(), unit_bytes);
            let computed = Tensor::computed(dtype, source).expect("whole elements");
            let bytes = form.bytes(&computed);
            let mut chunks = Vec::new();
            let visited = bytes.visit(1, &mut |chunk| {
                chunks.push(chunk.to_vec());
                Ok::<(), ()>(())
            });
            assert_eq!((visited, chunks.concat()), (Ok(()), expected.clone()), "{case}");
            assert_eq!(chunks.len(), if unit_bytes == panel_bytes { 3 } else { 1 }, "{case}");
        }
    }

    #[test]
    fn packed_panels_have_the_elements_of_the_constant() {
        let halves = [Precision::Bf16, Precision::Bf16x3].map(|precision| precision.parts().expect("parts"));
        for (depth, run) in [(1, 1), (5, 5), (31, 31), (32, 32), (70, 70), (66, 33), (12, 4), (15, 5)] {
            for parts in halves {
                assert_packed(&form(DotOp::AmxBf16(parts), depth, run, 0, 0), DType::F32);
            }
            assert_packed(&form(DotOp::MatrixBf16, depth, depth, 0, 0), DType::F32);
            for dtype in [DType::I8, DType::U8, DType::I16] {
                assert_packed(&form(DotOp::I16Pairs, depth, depth, 0, 0), dtype);
            }
            for dot in [DotOp::Vnni, DotOp::BytePairs, DotOp::Signed, DotOp::Matrix, DotOp::AmxBytes] {
                for lhs_shift in [0, 128, -128] {
                    assert_packed(&form(dot, depth, run, 0, lhs_shift), DType::I8);
                    let shared = run.next_multiple_of(4) - run;
                    if run > 4 && dot == DotOp::Vnni {
                        assert_packed(&form(dot, depth, run, shared, lhs_shift), DType::I8);
                    }
                }
            }
        }
    }
}
