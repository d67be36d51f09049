//! The binary format of WebAssembly, as far as it is read and changed here: the list of sections, the limits of the
//! memory, and the list of data segments.

use super::memory::PAGE_BYTES;
use crate::error::{Error, Result};

const MAGIC: &[u8] = b"\0asm\x01\0\0\0";

/// The custom section with the contract.
const CONTRACT_SECTION: &str = "symshape";

/// Numbers of the sections.
const CUSTOM: u8 = 0;
const IMPORT: u8 = 2;
const MEMORY: u8 = 5;
const CODE: u8 = 10;
const DATA: u8 = 11;
const DATA_COUNT: u8 = 12;

/// Bytes at an address of the memory when the module starts.
pub(super) struct Segment<'a> {
    pub(super) address: u64,
    pub(super) bytes: &'a [u8],
}

/// A module as a list of sections.
pub(super) struct WasmModule<'a> {
    sections: Vec<Section<'a>>,
}

struct Section<'a> {
    id: u8,
    body: &'a [u8],
}

impl<'a> WasmModule<'a> {
    /// The sections of a module that a C compiler has linked. It must import nothing.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<WasmModule<'a>> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or_else(|| malformed("it is not WebAssembly"))?);
        let mut sections = Vec::new();
        while !reader.0.is_empty() {
            let id = reader.byte()?;
            let len = reader.number()?;
            sections.push(Section { id, body: reader.take(len)? });
        }

        let module = WasmModule { sections };
        if let Some(imports) = module.section(IMPORT) {
            let mut reader = Reader(imports);
            if reader.number()? > 0 {
                let from = reader.name()?;
                let name = reader.name()?;
                return Err(malformed(&format!("it imports {from}.{name}")));
            }
        }
        Ok(module)
    }

    fn section(&self, id: u8) -> Option<&'a [u8]> {
        self.sections.iter().find(|section| section.id == id).map(|section| section.body)
    }

    /// Bytes of the section with the functions.
    pub(super) fn code_bytes(&self) -> usize {
        self.section(CODE).map_or(0, <[u8]>::len)
    }

    /// Bytes of the memory that the module declares.
    pub(super) fn memory_bytes(&self) -> Result<u64> {
        let mut reader = Reader(self.section(MEMORY).ok_or_else(|| malformed("it has no memory"))?);
        if reader.number()? != 1 {
            return Err(malformed("it has several memories"));
        }
        // The flags say whether there is a maximum, which this crate sets.
        if reader.byte()? > 1 {
            return Err(malformed("its memory is shared or has 64-bit addresses"));
        }
        Ok(reader.number()? * PAGE_BYTES)
    }

    /// The module with a memory of exactly `memory_bytes` bytes, more data, and the contract. Names for debuggers and
    /// other custom sections are left out.
    pub(super) fn complete(
        &self,
        memory_bytes: u64,
        segments: &[Segment<'_>],
        contract: &str,
    ) -> Result<Vec<u8>> {
        let data = self.section(DATA).unwrap_or(&[0]);
        let mut reader = Reader(data);
        let n_segments = reader.number()? + segments.len() as u64;

        let mut out = MAGIC.to_vec();
        for section in self.sections.iter().filter(|section| ![CUSTOM, DATA].contains(&section.id)) {
            let body = match section.id {
                MEMORY => {
                    let pages = number(memory_bytes / PAGE_BYTES);
                    [&[1, 1], &pages[..], &pages[..]].concat()
                }
                DATA_COUNT => number(n_segments),
                _ => section.body.to_vec(),
            };
            push_section(&mut out, section.id, &[&body]);
        }
        if n_segments > 0 {
            let count = number(n_segments);
            let heads: Vec<Vec<u8>> = segments.iter().map(Segment::head).collect();
            let mut parts = vec![&count[..], reader.0];
            for (head, segment) in heads.iter().zip(segments) {
                parts.extend([&head[..], segment.bytes]);
            }
            push_section(&mut out, DATA, &parts);
        }
        let name = [&number(CONTRACT_SECTION.len() as u64), CONTRACT_SECTION.as_bytes()].concat();
        push_section(&mut out, CUSTOM, &[&name, contract.as_bytes()]);
        Ok(out)
    }
}

impl Segment<'_> {
    /// The bytes before those of the segment: memory 0, `i32.const ADDRESS`, `end`, and the length.
    fn head(&self) -> Vec<u8> {
        let mut head = vec![0, 0x41];
        // The constant is signed, and addresses are the same 32 bits without a sign.
        head.extend(signed_number(self.address as u32 as i32));
        head.push(0x0b);
        head.extend(number(self.bytes.len() as u64));
        head
    }
}

fn push_section(out: &mut Vec<u8>, id: u8, parts: &[&[u8]]) {
    out.push(id);
    out.extend(number(parts.iter().map(|part| part.len() as u64).sum()));
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// An unsigned number in groups of 7 bits (LEB128).
fn number(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A signed number in groups of 7 bits (LEB128).
fn signed_number(mut value: i32) -> Vec<u8> {
    let mut out = Vec::new();
    while !(-0x40..0x40).contains(&value) {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
    out
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).ok();
        let (taken, rest) =
            len.and_then(|len| self.0.split_at_checked(len)).ok_or_else(|| malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of 32 bits.
    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(malformed("a number has more than 32 bits"))
    }

    fn name(&mut self) -> Result<String> {
        let len = self.number()?;
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }
}

fn malformed(why: &str) -> Error {
    Error::internal(format!("the C compiler made a module that can't be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_bytes_of_the_specification() {
        assert_eq!(number(624_485), [0xe5, 0x8e, 0x26]);
        assert_eq!(signed_number(-123_456), [0xc0, 0xbb, 0x78]);
        assert_eq!(signed_number(64), [0xc0, 0]);
        assert_eq!(signed_number(-64), [0x40]);
        assert_eq!(Reader(&[0xe5, 0x8e, 0x26]).number(), Ok(624_485));
    }

    #[test]
    fn complete_modules_have_one_fixed_memory_and_more_data() {
        // A memory of one page without a maximum, and a data segment at address 8.
        let code = [MAGIC, &[MEMORY, 3, 1, 0, 1], &[DATA_COUNT, 1, 1], &[DATA, 7, 1, 0, 0x41, 8, 0x0b, 1, 5]]
            .concat();
        let module = WasmModule::parse(&code).expect("a module");
        assert_eq!(module.memory_bytes(), Ok(65536));

        let segment = Segment { address: 70_000, bytes: &[1, 2] };
        let complete = module.complete(2 * 65536, &[segment], "{}").expect("a module");
        let expected = [
            MAGIC,
            &[MEMORY, 4, 1, 1, 2, 2],
            &[DATA_COUNT, 1, 2],
            &[DATA, 16, 2, 0, 0x41, 8, 0x0b, 1, 5, 0, 0x41, 0xf0, 0xa2, 4, 0x0b, 2, 1, 2],
            &[CUSTOM, 11, 8],
            b"symshape{}",
        ];
        assert_eq!(complete, expected.concat());
    }

    #[test]
    fn modules_that_import_are_refused() {
        let code = [MAGIC, &[IMPORT, 12, 1, 3], b"env", &[4], b"expf", &[0, 0]].concat();
        let error = WasmModule::parse(&code).map(drop).expect_err("an import");
        assert!(error.message().contains("env.expf"), "{error}");
        for len in 0..code.len() {
            _ = WasmModule::parse(&code[..len]);
        }
    }
}
