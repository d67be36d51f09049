//! Loads and stores of elements narrower than a lane.

use super::Builder;
use crate::codegen::vector::vcode::{Mask, Mem, NarrowInt, Narrowing, VInst, Vector};

impl Builder {
    /// Lane `i` from byte `i` of each address, that of the first one the lowest. Only if the shape has
    /// `byte_quads`, for at most four addresses.
    pub(crate) fn load_interleaved(&mut self, mems: Vec<Mem>) -> Vector {
        let quads = self.load_quads(mems);
        let dst = self.vector();
        self.push(VInst::InterleaveBytes(dst, quads));
        dst
    }

    /// As many narrow integers as there are lanes, each extended to a lane.
    pub(crate) fn load_narrow(&mut self, mem: impl Into<Mem>, narrow: NarrowInt) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadNarrow(dst, mem.into(), narrow));
        dst
    }

    /// The first lanes from narrow integers, those of the mask. Only if the shape has `narrow_masks`.
    pub(crate) fn load_narrow_first(&mut self, mem: impl Into<Mem>, mask: Mask, narrow: NarrowInt) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadNarrowFirst(dst, mem.into(), mask, narrow));
        dst
    }

    /// Twice as many bytes as there are lanes, each extended to half a lane.
    pub(crate) fn load_halves(&mut self, mem: impl Into<Mem>, narrow: NarrowInt) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadHalves(dst, mem.into(), narrow));
        dst
    }

    /// One narrow integer, extended, in all lanes.
    pub(crate) fn broadcast_narrow(&mut self, mem: impl Into<Mem>, narrow: NarrowInt) -> Vector {
        let dst = self.vector();
        self.push(VInst::BroadcastNarrow(dst, mem.into(), narrow));
        dst
    }

    /// Each lane to memory, as a narrow integer.
    pub(crate) fn store_narrow(
        &mut self,
        mem: impl Into<Mem>,
        src: Vector,
        narrow: NarrowInt,
        narrowing: Narrowing,
    ) {
        let temp = self.vector();
        self.push(VInst::StoreNarrow(mem.into(), src, temp, narrow, narrowing));
    }

    /// The first lanes to memory, those of the mask. Only if the shape has `narrow_masks`.
    pub(crate) fn store_narrow_first(
        &mut self,
        mem: impl Into<Mem>,
        src: Vector,
        mask: Mask,
        narrow: NarrowInt,
        narrowing: Narrowing,
    ) {
        self.push(VInst::StoreNarrowFirst(mem.into(), src, mask, narrow, narrowing));
    }

    /// The nearest byte of each lane of two or of four vectors to memory. Only if the shape has `clamping_stores`.
    pub(crate) fn store_packed(&mut self, mem: impl Into<Mem>, srcs: Vec<Vector>, narrow: NarrowInt) {
        let temps = [self.vector(), self.vector()];
        self.push(VInst::StorePacked(mem.into(), srcs, narrow, temps));
    }

    /// Lanes of the vectors in turn to memory. Only if the shape has `interleaving_stores`.
    pub(crate) fn store_interleaved(&mut self, mem: impl Into<Mem>, srcs: Vec<Vector>) {
        let temps = [self.vector(), self.vector()];
        self.push(VInst::StoreInterleaved(mem.into(), srcs, temps));
    }

    /// The low three bytes of each lane to memory. Only if the shape has `byte_triples`.
    pub(crate) fn store_triples(&mut self, mem: impl Into<Mem>, src: Vector) {
        let temp = self.vector();
        self.push(VInst::StoreTriples(mem.into(), src, temp));
    }
}
