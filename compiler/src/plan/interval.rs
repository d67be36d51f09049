//! The items of a placement problem.

/// A fixed amount of memory that is needed for an interval of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferInterval {
    /// Name in messages and files.
    pub id: String,
    /// Time from which the memory is needed.
    pub start: i64,
    /// Time from which it is no longer needed; later than `start`.
    pub end: i64,
    /// Amount of memory; never negative.
    pub size: i64,
}

impl BufferInterval {
    /// Whether both are needed at some time.
    pub fn overlaps(&self, other: &BufferInterval) -> bool {
        self.start < other.end && other.start < self.end
    }
}
