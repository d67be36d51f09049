//! Steps of tile registers as instructions: each is one.

use super::Selector;
use crate::codegen::vector::{
    code::{Step, Tile, TileProduct},
    x86::asm::Operand,
};
use iced_x86::{Code, Register};

impl Selector<'_> {
    /// A step of tile registers.
    pub(super) fn tile(&mut self, step: &Step) {
        let tile = |tile: &Tile| Operand::from(Register::TMM0 + u32::from(*tile));
        match step {
            Step::TileConfig(mem) => self.asm.op(Code::VEX_Ldtilecfg_m512, &[self.mem(*mem).into()]),
            Step::TileRelease => self.asm.op(Code::VEX_Tilerelease, &[]),
            Step::TileZero(dst) => self.asm.op(Code::VEX_Tilezero_tmm, &[tile(dst)]),
            Step::TileLoad(dst, mem) => {
                self.asm.op(Code::VEX_Tileloadd_tmm_sibmem, &[tile(dst), self.mem(*mem).into()]);
            }
            Step::TileStore(mem, src) => {
                self.asm.op(Code::VEX_Tilestored_sibmem_tmm, &[self.mem(*mem).into(), tile(src)]);
            }
            Step::TileDot(product, sum, a, b) => {
                let code = match product {
                    TileProduct::Bf16 => Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
                    TileProduct::Bytes => Code::VEX_Tdpbusd_tmm_tmm_tmm,
                };
                self.asm.op(code, &[tile(sum), tile(a), tile(b)]);
            }
            _ => unreachable!("not a step of tiles: {step:?}"),
        }
    }
}
