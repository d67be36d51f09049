//! A map from the virtual registers of one microkernel. They are numbered from zero in each class.

use super::operands::VReg;

/// Values by virtual register. The stack pointer, whose number is the largest, can't have one.
#[derive(Debug)]
pub(super) struct RegMap<T> {
    ints: Vec<Option<T>>,
    vectors: Vec<Option<T>>,
    masks: Vec<Option<T>>,
}

impl<T> Default for RegMap<T> {
    fn default() -> RegMap<T> {
        RegMap { ints: Vec::new(), vectors: Vec::new(), masks: Vec::new() }
    }
}

impl<T> RegMap<T> {
    /// The value of a register, if it has one.
    pub(super) fn get(&self, reg: impl Into<VReg>) -> Option<&T> {
        let (class, idx) = match reg.into() {
            VReg::Int(idx) => (&self.ints, idx),
            VReg::Vector(idx) => (&self.vectors, idx),
            VReg::Mask(idx) => (&self.masks, idx),
        };
        class.get(idx as usize)?.as_ref()
    }

    /// Whether a register has a value.
    pub(super) fn contains(&self, reg: impl Into<VReg>) -> bool {
        self.get(reg).is_some()
    }

    /// The entry of a register, which may be empty.
    pub(super) fn entry(&mut self, reg: impl Into<VReg>) -> &mut Option<T> {
        let (class, idx) = match reg.into() {
            VReg::Int(idx) => (&mut self.ints, idx as usize),
            VReg::Vector(idx) => (&mut self.vectors, idx as usize),
            VReg::Mask(idx) => (&mut self.masks, idx as usize),
        };
        if class.len() <= idx {
            class.resize_with(idx + 1, || None);
        }
        &mut class[idx]
    }

    /// Sets the value of a register.
    pub(super) fn insert(&mut self, reg: impl Into<VReg>, value: T) {
        *self.entry(reg) = Some(value);
    }

    /// The values of the integer registers.
    pub(super) fn ints(&self) -> impl Iterator<Item = &T> {
        self.ints.iter().flatten()
    }

    /// The values of the vector and mask registers.
    pub(super) fn vectors_and_masks(&self) -> impl Iterator<Item = &T> {
        self.vectors.iter().chain(&self.masks).flatten()
    }

    /// All values, which may be changed.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.ints.iter_mut().chain(&mut self.vectors).chain(&mut self.masks).flatten()
    }

    /// All values, by class and number.
    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.ints.into_iter().chain(self.vectors).chain(self.masks).flatten()
    }
}
