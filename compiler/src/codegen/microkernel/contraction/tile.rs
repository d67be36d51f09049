//! A tile of a contraction: its registers, and the reduction on vector registers.

use super::{
    key::{DotOp, Rhs, TileKey},
    prefetch::{PanelPrefetch, n_panels, panel_mem},
};
use crate::{
    codegen::{
        microkernel::{memory, op::Ty},
        vector::{
            Builder,
            vcode::{Int, IntOp, Mask, Mem, VBinary, Vector},
        },
    },
    scalar::CompareOp,
};

/// The unroll factor of the innermost loop.
pub(super) const UNROLL: usize = 4;

/// A pair of ones. The product with it adds two 16-bit integers.
const ONES: u32 = 0x0001_0001;

/// The highest bits of four bytes. Flipping them adds 128 to each byte, modulo 256.
const SIGNS: u32 = 0x8080_8080;

/// The sums of two rows in pairs of columns: two registers for each vector of columns.
pub(super) type Pair = Vec<[Vector; 2]>;

/// The registers of a tile.
pub(super) struct Tile<'a> {
    pub(super) key: &'a TileKey,
    /// Address of the first row of lhs.
    pub(super) lhs: Int,
    /// `multiples[i]` is `i` times the row stride of lhs, for 1 and every odd `i` that some row needs.
    pub(super) multiples: Vec<Int>,
    /// Address of the first column of rhs.
    pub(super) rhs: Int,
    /// The accumulators: a row of vectors for each row. Empty on tile registers.
    pub(super) accumulators: Vec<Vec<Vector>>,
    /// The current row of each epilogue stream.
    pub(super) streams: Vec<Int>,
    pub(super) prefetch: Option<PanelPrefetch>,
    /// The sums of pairs of rows, if [`DotOp::pairs_rows`]. Empty otherwise.
    pub(super) pairs: Vec<Pair>,
    /// The existing columns of each vector, in tail tiles.
    pub(super) tail: Vec<TailColumns>,
    /// The streams that are the same for all rows and are held in registers.
    pub(super) held: Vec<RowInvariant>,
}

/// The existing columns of a vector in a tail tile.
#[derive(Clone, Copy)]
pub(super) struct TailColumns {
    /// The number of columns from the first lane of the vector on.
    pub(super) count: Int,
    /// Their mask, if a register holds it.
    held: Option<Mask>,
}

impl TailColumns {
    /// For each vector of a tail tile. Where masks take vector registers, these hold none during the reduction that
    /// does not need it.
    fn of(b: &mut Builder, key: &TileKey) -> Vec<TailColumns> {
        let columns = b.arg(TileKey::COLUMNS);
        let is_held = b.shape().masked_stores || matches!(key.rhs, Rhs::Rows);
        (0..key.vectors as usize)
            .map(|vector| {
                let count = b.int_op(IntOp::Sub, columns, (vector * b.lanes()) as i32);
                TailColumns { count, held: is_held.then(|| b.mask_first(count)) }
            })
            .collect()
    }

    /// The mask of the columns.
    pub(super) fn mask(&self, b: &mut Builder) -> Mask {
        self.held.unwrap_or_else(|| b.mask_first(self.count))
    }

    /// The mask of the columns, if stores need it.
    pub(super) fn store_mask(&self, b: &mut Builder) -> Option<Mask> {
        b.shape().masked_stores.then(|| self.mask(b))
    }
}

/// A stream of the epilogue that registers hold.
pub(super) struct RowInvariant {
    pub(super) stream: u32,
    pub(super) ty: Ty,
    /// One for each vector of the tile.
    pub(super) registers: Vec<Vector>,
}

impl<'a> Tile<'a> {
    pub(super) fn new(b: &mut Builder, key: &'a TileKey) -> Tile<'a> {
        let lhs = b.arg(TileKey::LHS);
        let row = b.arg(TileKey::LHS_ROW);
        let rhs = b.arg(TileKey::RHS);
        let mut multiples = vec![row; 2];
        for odd in (3..key.rows as usize).step_by(2) {
            let previous = multiples[odd - 2];
            let twice = Mem { base: previous, index: Some((row, 2)), disp: 0 };
            let multiple = b.address(twice);
            multiples.push(row);
            multiples.push(multiple);
        }

        let accumulators = (0..key.rows).map(|_| (0..key.vectors).map(|_| b.vector()).collect()).collect();
        let streams = (0..key.streams.len()).map(|stream| b.arg(key.stream(stream as u32))).collect();
        let tail = if key.tail { TailColumns::of(b, key) } else { Vec::new() };
        let prefetch = PanelPrefetch::new(b, key, rhs);
        let mut tile = Tile {
            key,
            lhs,
            multiples,
            rhs,
            accumulators,
            streams,
            prefetch,
            pairs: Vec::new(),
            tail,
            held: Vec::new(),
        };
        if key.dot.pairs_rows() {
            tile.pairs = tile.pairs_of_rows(b);
        }
        tile
    }

    /// A tile whose accumulators are tile registers; its epilogue reads them from memory.
    pub(super) fn for_amx(b: &mut Builder, key: &'a TileKey) -> Tile<'a> {
        let lhs = b.arg(TileKey::LHS);
        let rhs = b.arg(TileKey::RHS);
        let streams = (0..key.streams.len()).map(|stream| b.arg(key.stream(stream as u32))).collect();
        let tail = if key.tail { TailColumns::of(b, key) } else { Vec::new() };

        let mut tile = Tile {
            key,
            lhs,
            multiples: Vec::new(),
            rhs,
            accumulators: Vec::new(),
            streams,
            prefetch: None,
            pairs: Vec::new(),
            tail,
            held: Vec::new(),
        };

        tile.hold_row_invariant(b);
        tile
    }

    /// Bytes of scratch memory in which the epilogue keeps accumulators.
    fn accumulator_bytes(&self, lanes: usize) -> usize {
        if self.key.dot.is_amx() {
            amx_accumulator_bytes(self.key, lanes)
        } else {
            self.key.rows as usize * self.key.vectors as usize * 4 * lanes
        }
    }

    /// Sets the accumulators to zero, or to the partial sums that an earlier part of the reduction stored.
    pub(super) fn start(&self, b: &mut Builder) {
        let Some(stream) = self.key.part.resumed() else {
            if self.key.dot.starts_from_panels() {
                return self.start_from_panels(b);
            }
            let zero = b.float(0.0);
            self.accumulators.iter().flatten().for_each(|accumulator| b.set(*accumulator, zero));
            return;
        };

        let row = b.copy(self.streams[stream as usize]);
        let stride = b.arg(self.key.stream(stream) + 1);
        for accumulators in &self.accumulators {
            for (vector, &accumulator) in accumulators.iter().enumerate() {
                let mem = Mem::from(row).plus(4 * vector * b.lanes());
                let partial_sum = match self.tail.get(vector) {
                    None => b.load(mem),
                    Some(tail) => {
                        let mask = tail.mask(b);
                        b.load_first(mem, tail.count, mask)
                    }
                };
                b.set(accumulator, partial_sum);
            }
            b.advance(row, stride);
        }
    }

    /// Sets the accumulators to the row that each panel begins with.
    fn start_from_panels(&self, b: &mut Builder) {
        let panels = self.panels(b);
        let panels = self.panel_places(b, self.rhs, &panels);
        for vector in 0..self.key.vectors as usize {
            let first = self.load_rhs(b, vector, self.rhs, 0, &panels, None);
            self.accumulators.iter().for_each(|row| b.set(row[vector], first));
        }
    }

    /// Loop `level` of the reduction from these addresses on. The pointer to packed panels runs through all levels.
    pub(super) fn level(&self, b: &mut Builder, level: u8, lhs: Int, rhs: Int) {
        let count = b.arg(TileKey::level(level));
        if level == 0 && self.key.dot.pairs_rows() {
            return self.multiply_pairs(b, count, lhs, rhs);
        }
        if level == 0 {
            return self.innermost(b, count, lhs, rhs);
        }

        let packed = matches!(self.key.rhs, Rhs::Panels(_));
        b.repeat(count, 1, |b| {
            let inner_lhs = b.copy(lhs);
            let inner_rhs = if packed { rhs } else { b.copy(rhs) };
            self.level(b, level - 1, inner_lhs, inner_rhs);
            let step = b.arg(TileKey::level(level) + 1);
            b.advance(lhs, step);
            if !packed {
                let step = b.arg(TileKey::level(level) + 2);
                b.advance(rhs, step);
            }
        });
    }

    fn innermost(&self, b: &mut Builder, count: Int, lhs: Int, rhs: Int) {
        let lhs_step = (!self.key.dense).then(|| b.arg(TileKey::LHS_K));
        let rhs_step = (!matches!(self.key.rhs, Rhs::Panels(_))).then(|| b.arg(TileKey::RHS_K));
        let column = matches!(self.key.rhs, Rhs::Scattered).then(|| b.arg(TileKey::RHS_COLUMN));
        let panels = self.panels(b);

        let panel_step = |block: usize| match self.key.rhs {
            Rhs::Panels(width) => (self.element_bytes() * width as usize * block) as i32,
            _ => 0,
        };
        for block in [UNROLL, 1] {
            b.repeat(count, block as i32, |b| {
                let places = self.panel_places(b, rhs, &panels);
                let lanes = (block == b.lanes() && self.multiplies_lanes(b)).then(|| self.load_lhs(b, lhs));
                for k in 0..block {
                    match &lanes {
                        Some(rows) => self.step_by_lane(b, rows, rhs, k, &places, column),
                        None => {
                            let lhs_offset = if self.key.dense { 4 * k as i32 } else { 0 };
                            self.step(b, lhs, lhs_offset, rhs, k, &places, column);
                        }
                    }
                    if let Some(step) = lhs_step {
                        b.advance(lhs, step);
                    }
                    if let Some(step) = rhs_step {
                        b.advance(rhs, step);
                    }
                }

                if self.key.dense {
                    b.advance(lhs, 4 * block as i32);
                }

                if matches!(self.key.rhs, Rhs::Panels(_)) {
                    let bytes = panel_step(block);
                    b.advance(rhs, bytes);
                    if let Some(prefetch) = self.prefetch.filter(|_| block == UNROLL) {
                        prefetch.advance(b, bytes, &panels);
                    }
                }
            });
        }
        if self.key.shared_bytes > 0 {
            let places = self.panel_places(b, rhs, &panels);
            self.step(b, lhs, -i32::from(self.key.shared_bytes), rhs, 0, &places, column);
            b.advance(rhs, panel_step(1));
        }
    }

    /// Offsets of the panels that the tile reads from the first one, which is not listed: multiples of the panel
    /// stride.
    pub(super) fn panels(&self, b: &mut Builder) -> Vec<Int> {
        let Some(width) = self.key.rhs.panel_columns() else { return Vec::new() };
        let count = n_panels(self.key, width as u32, b.lanes());

        let mut offsets = Vec::new();
        if count > 1 {
            let stride = b.arg(TileKey::RHS_COLUMN);
            offsets.push(stride);
            // Addressing scales offsets by powers of two, so only odd multiples need a register.
            for odd in (3..count).step_by(2) {
                let previous = *offsets.last().expect("the stride itself is there");
                debug_assert!(odd < 2 * offsets.len() + 2);
                offsets.push(b.address(Mem { base: previous, index: Some((stride, 2)), disp: 0 }));
            }
        }

        offsets
    }

    /// The places of the panels from `rhs` on, given their offsets. Where an index takes another instruction, they are
    /// addresses, so that many loads share it.
    pub(super) fn panel_places(&self, b: &mut Builder, rhs: Int, offsets: &[Int]) -> Vec<Mem> {
        let Some(width) = self.key.rhs.panel_columns() else { return Vec::new() };
        let count = n_panels(self.key, width as u32, b.lanes());
        let place = |panel: usize| {
            let mem = panel_mem(rhs, offsets, panel);
            if mem.index.is_some() && b.shape().fma_lanes { b.address(mem).into() } else { mem }
        };
        (0..count).map(place).collect()
    }

    fn step(
        &self,
        b: &mut Builder,
        lhs: Int,
        lhs_offset: i32,
        rhs: Int,
        k: usize,
        panels: &[Mem],
        column: Option<Int>,
    ) {
        let rows = self.key.rows as usize;
        let vectors = self.key.vectors as usize;
        let free = b.shape().registers - rows * vectors;

        // Registers hold either a row of rhs or a column of lhs, whichever is smaller or fits.
        if vectors < free || vectors <= rows {
            let rhs_row: Vec<Vector> =
                (0..vectors).map(|vector| self.load_rhs(b, vector, rhs, k, panels, column)).collect();
            for row in 0..rows {
                let lhs_element = self.broadcast_lhs(b, lhs, row, lhs_offset);
                for (accumulator, &rhs_vector) in self.accumulators[row].iter().zip(&rhs_row) {
                    self.accumulate(b, *accumulator, lhs_element, rhs_vector);
                }
            }
            return;
        }

        let lhs_elements: Vec<Vector> =
            (0..rows).map(|row| self.broadcast_lhs(b, lhs, row, lhs_offset)).collect();
        for vector in 0..vectors {
            let rhs_vector = self.load_rhs(b, vector, rhs, k, panels, column);
            for (row, &lhs_element) in lhs_elements.iter().enumerate() {
                self.accumulate(b, self.accumulators[row][vector], lhs_element, rhs_vector);
            }
        }
    }

    /// An element of lhs, `offset` bytes from the current one, in all lanes.
    fn broadcast_lhs(&self, b: &mut Builder, lhs: Int, row: usize, offset: i32) -> Vector {
        let mut mem = self.lhs_mem(lhs, row);
        mem.disp += offset;
        let element = b.broadcast(mem);
        if !self.key.flips_signs {
            return element;
        }
        let signs = b.bits(SIGNS);
        b.binary(VBinary::Xor, element, signs)
    }

    /// Whether lanes of vectors of lhs are multiplied, in place of elements that are broadcast.
    fn multiplies_lanes(&self, b: &Builder) -> bool {
        b.shape().fma_lanes && self.key.dense && matches!(self.key.dot, DotOp::F32 | DotOp::Signed)
    }

    /// The next elements of each row of lhs, one in each lane.
    fn load_lhs(&self, b: &mut Builder, lhs: Int) -> Vec<Vector> {
        (0..usize::from(self.key.rows)).map(|row| b.load(self.lhs_mem(lhs, row))).collect()
    }

    /// Vectors of rhs that are loaded before they are multiplied: two, which one instruction may load, if registers
    /// hold them besides the accumulators and `held` vectors of lhs. Backends keep one register.
    pub(super) fn loads_at_once(&self, b: &Builder, held: usize) -> usize {
        let in_use = self.accumulators.len() * usize::from(self.key.vectors) + held;
        if in_use + 3 <= b.shape().registers { 2 } else { 1 }
    }

    /// Multiplies lane `k` of each row of lhs.
    fn step_by_lane(
        &self,
        b: &mut Builder,
        rows: &[Vector],
        rhs: Int,
        k: usize,
        panels: &[Mem],
        column: Option<Int>,
    ) {
        let vectors: Vec<usize> = (0..usize::from(self.key.vectors)).collect();
        for group in vectors.chunks(self.loads_at_once(b, rows.len())) {
            let loaded: Vec<Vector> =
                group.iter().map(|vector| self.load_rhs(b, *vector, rhs, k, panels, column)).collect();
            for (vector, rhs_vector) in group.iter().zip(loaded) {
                for (accumulators, elements) in self.accumulators.iter().zip(rows) {
                    let accumulator = accumulators[*vector];
                    match self.key.dot {
                        DotOp::Signed => b.set_dot_signed_lane(accumulator, rhs_vector, *elements, k as u8),
                        _ => b.set_fma_lane(accumulator, rhs_vector, *elements, k as u8),
                    }
                }
            }
        }
    }

    /// `accumulator += x * y`.
    fn accumulate(&self, b: &mut Builder, accumulator: Vector, x: Vector, y: Vector) {
        match self.key.dot {
            DotOp::F32 => b.set_fma(accumulator, x, y),
            DotOp::I16Pairs => b.add_dot_pairs(accumulator, x, y),
            DotOp::Vnni => b.set_dot_bytes(accumulator, x, y),
            DotOp::BytePairs => {
                let halves = b.binary(VBinary::DotBytePairs, x, y);
                let ones = b.bits(ONES);
                b.add_dot_pairs(accumulator, halves, ones);
            }
            DotOp::Signed => b.set_dot_signed(accumulator, x, y),
            DotOp::Matrix | DotOp::MatrixBf16 => unreachable!("pairs of rows are multiplied"),
            DotOp::AmxBf16(_) | DotOp::AmxBytes => unreachable!("these run on tile registers"),
        }
    }

    pub(super) fn lhs_mem(&self, lhs: Int, row: usize) -> Mem {
        scaled(lhs, &self.multiples, row)
    }

    /// Bytes of an element of packed panels or of consecutive columns.
    fn element_bytes(&self) -> usize {
        memory::elem_bytes(self.key.rhs_element)
    }

    fn load_rhs(
        &self,
        b: &mut Builder,
        vector: usize,
        rhs: Int,
        k: usize,
        panels: &[Mem],
        column: Option<Int>,
    ) -> Vector {
        let first = vector * b.lanes();
        match self.key.rhs {
            Rhs::Panels(width) => {
                let width = width as usize;
                let offset = self.element_bytes() * (first % width + width * k);
                let mem = panels[first / width].plus(offset);
                memory::load(b, mem, self.key.rhs_element)
            }
            Rhs::FewBits(_) => unreachable!("few bits are read in groups"),
            Rhs::Rows => {
                let mem = Mem::from(rhs).plus(self.element_bytes() * first);
                match self.tail.get(vector) {
                    None => memory::load(b, mem, self.key.rhs_element),
                    Some(tail) => {
                        let mask = tail.mask(b);
                        memory::load_first(b, mem, self.key.rhs_element, tail.count, mask)
                    }
                }
            }
            Rhs::Scattered => self.gather(b, vector, rhs, column.expect("read with the strides")),
        }
    }

    /// Loads a vector of scattered columns lane by lane; columns beyond the last are zero.
    fn gather(&self, b: &mut Builder, vector: usize, rhs: Int, column: Int) -> Vector {
        let skip = b.int_op(IntOp::Mul, column, (vector * b.lanes()) as i32);
        let first = b.int_op(IntOp::Add, rhs, skip);
        self.load_strided(b, vector, first, column, Ty::F32)
    }

    /// Loads a vector of columns that are `stride` bytes apart; columns beyond the last are zero.
    pub(super) fn load_strided(
        &self,
        b: &mut Builder,
        vector: usize,
        first: Int,
        stride: Int,
        ty: Ty,
    ) -> Vector {
        let Some(&TailColumns { count: n, .. }) = self.tail.get(vector) else {
            let addresses = b.lane_addresses(first, stride);
            return memory::load_lanes(b, addresses, ty);
        };

        // The existing lanes are gathered in scratch memory, after the accumulators of the epilogue.
        let bytes = 4 * b.lanes();
        let accumulator_bytes = self.accumulator_bytes(b.lanes());
        let lanes = Mem::from(b.scratch(accumulator_bytes + bytes)).plus(accumulator_bytes);
        let zero = b.bits(0);
        b.store(lanes, zero);

        for lane in 0..b.lanes() {
            b.when(CompareOp::Gt, n, lane as i32, |b| {
                let one = memory::load_one(b, first.into(), ty);
                b.store_one(lanes.plus(4 * lane), one);
                b.advance(first, stride);
            });
        }

        b.load(lanes)
    }
}

/// Alignment of the accumulators of tile registers in memory.
pub(super) const AMX_ALIGN: usize = 64;

/// Bytes of scratch memory for the accumulators of tile registers, with space to align them.
pub(super) fn amx_accumulator_bytes(key: &TileKey, lanes: usize) -> usize {
    usize::from(key.rows) * usize::from(key.vectors) * 4 * lanes + AMX_ALIGN
}

/// `base + row * stride`, given the odd multiples of the stride.
fn scaled(base: Int, multiples: &[Int], row: usize) -> Mem {
    if row == 0 {
        return base.into();
    }
    let shift = row.trailing_zeros().min(3);
    let scale = 1u8 << shift;
    Mem { base, index: Some((multiples[row >> shift], scale)), disp: 0 }
}
