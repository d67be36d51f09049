//! The device's instructions: a listing for people, and the bytes that it is assembled into.
//!
//! Registers are tensors of `[tiles][rows][8]`. Those that are loaded come first, then one for each instruction. A
//! program is bytes in groups: how many are loaded, how many instructions, then for each its opcode, tiles, two
//! operands and a constant, and at the end which registers are the results.

use super::TILE;
use symshape_compiler::{Error, Result};

/// Opcodes, by their words.
pub(super) const OPS: [&str; 5] = ["gemm", "add", "mul", "max", "fill"];

/// Bytes of an instruction: opcode, tiles, operands, constant, 32 bits each.
pub(super) const INSTRUCTION: usize = 20;

/// The listing of a program for the device, line by line.
#[derive(Default)]
pub(super) struct Listing {
    loads: usize,
    lines: Vec<(i64, String)>,
}

impl Listing {
    /// The register of a tensor that is loaded.
    pub(super) fn load(&mut self) -> usize {
        self.loads += 1;
        // Registers of loads have even names, those of instructions odd ones, until all are known.
        2 * (self.loads - 1)
    }

    /// The register of an instruction whose result has this number of columns.
    pub(super) fn push(&mut self, columns: i64, text: &str) -> usize {
        self.lines.push(((columns + TILE - 1) / TILE, text.to_string()));
        2 * (self.lines.len() - 1) + 1
    }

    /// Tiles of all that is computed.
    pub(super) fn tiles(&self) -> i64 {
        self.lines.iter().map(|(tiles, _)| tiles).sum()
    }

    /// The whole text.
    pub(super) fn text(&self, results: &[usize]) -> String {
        let place = |name: usize| if name.is_multiple_of(2) { name / 2 } else { self.loads + name / 2 };
        let mut text = format!("loads {}\n", self.loads);
        for (tiles, line) in &self.lines {
            let mut words = line.split(' ');
            let op = words.next().unwrap_or_default();
            text.push_str(&format!("{op} {tiles}"));
            for word in words {
                match word.parse::<usize>() {
                    Ok(name) if op != "fill" => text.push_str(&format!(" {}", place(name))),
                    _ => text.push_str(&format!(" {word}")),
                }
            }
            text.push('\n');
        }
        for result in results {
            text.push_str(&format!("result {}\n", place(*result)));
        }
        text
    }
}

/// The bytes of a listing.
pub(super) fn assemble(text: &str) -> Result<Vec<u8>> {
    let wrong = |line: &str| Error::internal(format!("`{line}` is no line of a listing"));
    let (mut loads, mut body, mut results) = (0u32, Vec::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |idx: usize| words.get(idx).and_then(|word| word.parse::<u32>().ok());
        match words[0] {
            "loads" => loads = number(1).ok_or_else(|| wrong(line))?,
            "result" => results.push(number(1).ok_or_else(|| wrong(line))?),
            word => {
                let op = OPS.iter().position(|op| *op == word).ok_or_else(|| wrong(line))? as u32;
                let constant = words.get(2).and_then(|word| word.parse::<f32>().ok()).unwrap_or(0.0);
                let operands =
                    if word == "fill" { [0, 0] } else { [number(2), number(3)].map(|reg| reg.unwrap_or(0)) };
                let tiles = number(1).ok_or_else(|| wrong(line))?;
                body.extend([op, tiles, operands[0], operands[1]].iter().flat_map(|word| word.to_le_bytes()));
                body.extend(constant.to_le_bytes());
            }
        }
    }
    let mut bytes = Vec::new();
    bytes.extend(loads.to_le_bytes());
    bytes.extend(((body.len() / INSTRUCTION) as u32).to_le_bytes());
    bytes.extend(body);
    results.iter().for_each(|result| bytes.extend(result.to_le_bytes()));
    Ok(bytes)
}
