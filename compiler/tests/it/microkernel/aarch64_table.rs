//! The words of aarch64 instructions, against an assembler.
//!
//! Needs Debian's `binutils-aarch64-linux-gnu`, which `gcc-aarch64-linux-gnu` installs.

use std::{fs, process::Command};
use symshape_compiler::{
    Result,
    codegen::vector::aarch64::{
        instructions::{CONDITIONS, Field, Op},
        transfers::{AddressForm, Transfer},
    },
};

/// Operands of a field: all of a short range, the ends and some of a long one.
fn operands(field: Field) -> Vec<i64> {
    // Up to 40 numbers of a range, both ends among them.
    let some = |first: i64, last: i64| -> Vec<i64> {
        let count = (last - first).min(39);
        (0..=count).map(|idx| first + (last - first) * idx / count.max(1)).collect()
    };
    let scaled = |numbers: Vec<i64>, scale: i64| numbers.into_iter().map(|number| number * scale).collect();
    match field {
        Field::V(_) | Field::Twice | Field::X(_) | Field::W(_) | Field::S(_) => some(0, 31),
        Field::Unsigned(_, bits, scale) => scaled(some(0, (1 << bits) - 1), scale),
        Field::Signed(_, bits, scale) => scaled(some(-(1 << (bits - 1)), (1 << (bits - 1)) - 1), scale),
        Field::Left(_, width) => some(0, width - 1),
        Field::Right(_, twice) => some(1, twice / 2),
        Field::Lane | Field::MemoryLane => some(0, 3),
        Field::MemoryHalfLane => some(0, 7),
        Field::SplitByte => some(0, 255),
        Field::Condition => CONDITIONS.map(|(number, _)| number).into(),
    }
}

/// An operand in the syntax of the assembler.
fn name(field: Field, operand: i64) -> String {
    match (field, operand) {
        (Field::X(_), 31) => "xzr".to_string(),
        (Field::W(_), 31) => "wzr".to_string(),
        (Field::S(_), 31) => "sp".to_string(),
        (Field::X(_) | Field::S(_), reg) => format!("x{reg}"),
        (Field::W(_), reg) => format!("w{reg}"),
        (Field::Condition, number) => CONDITIONS
            .iter()
            .find(|(known, _)| *known == number)
            .map_or(String::new(), |(_, name)| name.to_string()),
        (_, number) => number.to_string(),
    }
}

/// The word of an instruction with these operands.
type Encode = Box<dyn Fn(&[i64]) -> Result<u32>>;

/// A row of a table.
struct Row {
    text: String,
    fields: Vec<Field>,
    encode: Encode,
}

/// The rows of both tables.
fn rows() -> Vec<Row> {
    let ops = Op::ALL.iter().map(|op| Row {
        text: op.row().text.to_string(),
        fields: op.row().fields.to_vec(),
        encode: Box::new(move |operands| op.encode(operands)),
    });
    let transfers = Transfer::ALL.iter().flat_map(|transfer| {
        AddressForm::ALL.map(|form| Row {
            text: transfer.text(form),
            fields: transfer.fields(form).to_vec(),
            encode: Box::new(move |operands| {
                transfer.encode(form, operands.try_into().expect("three operands"))
            }),
        })
    });
    ops.chain(transfers).collect()
}

/// Operands of an instruction: every operand of every field at least once.
fn samples(fields: &[Field]) -> Vec<Vec<i64>> {
    let choices: Vec<Vec<i64>> = fields.iter().map(|field| operands(*field)).collect();
    let rounds = choices.iter().map(Vec::len).max().unwrap_or(1);
    // Fields start at different operands, so that no two always agree.
    let sample = |round: usize| {
        choices.iter().enumerate().map(|(idx, choice)| choice[(round + 7 * idx) % choice.len()]).collect()
    };
    (0..rounds).map(sample).collect()
}

#[test]
#[ignore = "needs an assembler for aarch64"]
fn the_table_has_the_words_of_an_assembler() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut source = ".arch armv8.2-a+dotprod+fp16+i8mm+bf16\n".to_string();
    let mut expected: Vec<(String, u32)> = Vec::new();
    for row in rows() {
        for sample in samples(&row.fields) {
            let word =
                (row.encode)(&sample).unwrap_or_else(|error| panic!("{} {sample:?}: {error}", row.text));
            let mut pieces = row.text.split("{}");
            let mut text = pieces.next().unwrap_or_default().to_string();
            for ((field, operand), piece) in row.fields.iter().zip(&sample).zip(pieces) {
                text += &name(*field, *operand);
                text += piece;
            }
            source += &text;
            source.push('\n');
            expected.push((text, word));
        }
    }
    assert!(expected.len() > 3000, "only {} instructions", expected.len());

    fs::write(folder.path().join("table.s"), source).expect("a file");
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program)
            .current_dir(&folder)
            .args(args)
            .output()
            .unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"));
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("aarch64-linux-gnu-as", &["table.s", "-o", "table.o"]);
    run("aarch64-linux-gnu-objcopy", &["-O", "binary", "-j", ".text", "table.o", "table.bin"]);
    let words = fs::read(folder.path().join("table.bin")).expect("the words");
    assert_eq!(words.len(), 4 * expected.len(), "an instruction is one word");
    for (bytes, (text, word)) in words.chunks_exact(4).zip(&expected) {
        let assembled = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert_eq!(*word, assembled, "{text}: {word:#010x}, not {assembled:#010x}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    for (op, operands) in [
        (Op::Fadd, &[0, 0, 32][..]),
        (Op::Fadd, &[0, -1, 0]),
        (Op::Fadd, &[0, 0]),
        (Op::Shl, &[0, 0, 32]),
        (Op::Ushr, &[0, 0, 0]),
        (Op::Ushr, &[0, 0, 33]),
        (Op::FmlaLane, &[0, 0, 0, 4]),
        (Op::Branch, &[0, 2]),
        (Op::Branch, &[0, 1 << 20]),
    ] {
        assert!(op.encode(operands).is_err(), "{op:?} {operands:?}");
    }
    for (form, operands) in [
        (AddressForm::Offset, [0, 0, 8]),
        (AddressForm::Offset, [0, 0, 16 << 12]),
        (AddressForm::Unscaled, [0, 0, 256]),
        (AddressForm::Unscaled, [0, 0, -257]),
        (AddressForm::Indexed, [0, 0, 32]),
    ] {
        assert!(Transfer::LDR_Q.encode(form, operands).is_err(), "{form:?} {operands:?}");
    }
}
