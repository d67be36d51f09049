//! The text form of [`VCode`]: one instruction a line, indented by loops and branches. Registers are `i3`, `v3` and
//! `m3`, addresses `[i1 + i2*4 + 8]`.

use super::vcode::{Int, Mask, Mem, VCode, VInst, Vector};
use std::fmt::{self, Debug, Display, Formatter};

impl Debug for Int {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "i{}", self.0)
    }
}

impl Debug for Vector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Debug for Mask {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

impl Debug for Mem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}", self.base)?;
        if let Some((index, scale)) = self.index {
            write!(f, " + {index:?}*{scale}")?;
        }
        if self.disp != 0 {
            write!(f, " + {}", self.disp)?;
        }
        f.write_str("]")
    }
}

impl Display for VCode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut depth = 1;
        for step in &self.steps {
            if matches!(step, VInst::EndLoop(_) | VInst::EndIf) {
                depth -= 1;
            }
            writeln!(f, "{:width$}{step:?}", "", width = 2 * depth)?;
            if matches!(step, VInst::Loop | VInst::If(_)) {
                depth += 1;
            }
        }
        Ok(())
    }
}
