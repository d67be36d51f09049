//! Bytes of file formats under construction.

/// Little-endian bytes.
#[derive(Default)]
pub(super) struct ByteWriter(pub(super) Vec<u8>);

impl ByteWriter {
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut ByteWriter {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut ByteWriter {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Zeros up to a multiple of `bytes`.
    pub(super) fn align(&mut self, bytes: usize) -> &mut ByteWriter {
        self.0.resize(self.0.len().next_multiple_of(bytes), 0);
        self
    }

    /// A name in a field of `bytes` bytes; the rest is zero.
    pub(super) fn name(&mut self, name: &[u8], bytes: usize) -> &mut ByteWriter {
        let end = self.0.len() + bytes;
        self.raw(&name[..name.len().min(bytes)]);
        self.0.resize(end, 0);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut ByteWriter {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut ByteWriter {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut ByteWriter {
        self.raw(&value.to_le_bytes())
    }

    /// An unsigned number in groups of seven bits, the lowest group first (ULEB128).
    pub(super) fn groups(&mut self, mut value: u64) -> &mut ByteWriter {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
}
