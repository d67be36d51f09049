//! Steps that only ISAs with conversions of f16 have.

use super::Builder;
use crate::codegen::vector::vcode::{Mem, VInst, Vector};

impl Builder {
    /// As many f16 as there are lanes, as floats.
    pub(crate) fn load_f16(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadF16(dst, mem.into()));
        dst
    }

    /// One f16, as a float, in all lanes.
    pub(crate) fn broadcast_f16(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::BroadcastF16(dst, mem.into()));
        dst
    }

    /// The nearest f16 of each float to memory.
    pub(crate) fn store_f16(&mut self, mem: impl Into<Mem>, src: Vector) {
        self.push(VInst::StoreF16(mem.into(), src));
    }

    /// The float that is equal to the nearest f16 of each float.
    pub(crate) fn round_f16(&mut self, a: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::RoundF16(dst, a));
        dst
    }
}
