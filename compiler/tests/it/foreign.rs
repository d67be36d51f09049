//! Models in separate programs: C source and objects, linked with `c/call.c`, on this machine or an emulated one.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};
use symshape_compiler::{
    graph::Graph,
    pipeline::{Artifact, Lowered},
    target::Target,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;
use tempfile::TempDir;

/// Compiles a file in `folder` without linking it; a warning fails the test.
pub(crate) fn compile(folder: &Path, compiler: &str, file: &str, flags: &[&str]) {
    let output = Command::new(compiler)
        .current_dir(folder)
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I.", "-c", file, "-o", "out.o"])
        .args(flags)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is needed by this test: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{file}: {compiler}: {}\n{text}", output.status);
}

/// Writes the object and the header of a model to a new folder.
pub(crate) fn object(
    lowered: &Lowered,
    triple: Option<&str>,
    level: &str,
    artifact: Artifact,
) -> (TempDir, String) {
    let target = Target::parse(triple, Some(level)).expect("a target");
    let name = &lowered.program.name;
    let compiled = lowered.compile(&target, artifact).unwrap_or_else(|error| panic!("{name}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a header");
    let bytes = compiled.object.into_bytes().expect("an object");
    let (file, bytes) = if artifact == Artifact::Archive {
        (format!("{name}.a"), symshape_compiler::emit::archive(name, &bytes).expect("an archive"))
    } else {
        (format!("{name}.o"), bytes)
    };
    std::fs::write(folder.path().join(&file), bytes).expect("a file");
    (folder, file)
}

/// The types and shapes of the outputs at these values of the symbols.
pub(crate) fn output_types(graph: &Graph, dims: &[i64]) -> Vec<(DType, Vec<usize>)> {
    let value_of = |symbol: &symshape::Symbol| {
        graph.symbols.iter().position(|known| known == symbol).map(|idx| dims[idx])
    };
    let outputs = graph.outputs.iter().map(|(_, value)| {
        let shape = graph.shape(*value).iter();
        let shape = shape.map(|dim| dim.eval_i64(&value_of).expect("a size") as usize).collect();
        (graph.dtype(*value), shape)
    });
    outputs.collect()
}

/// The file name of a program. Windows needs its end.
const PROGRAM: &str = "program.exe";

/// A compiled program.
pub(crate) struct Program {
    folder: TempDir,
    /// The name of its file in the folder.
    file: String,
    /// The command that runs programs of that machine; empty where it is this one.
    emulator: Vec<String>,
}

impl Program {
    /// Compiles `c/call.c` with the model's file, a source or an object, in the folder where its header is too.
    pub(crate) fn compile(
        folder: TempDir,
        compiler: &str,
        emulator: &[&str],
        prefix: &str,
        model: &str,
    ) -> Program {
        Program::link(folder, compiler, emulator, prefix, &[model])
    }

    /// As [`Program::compile`], with several files.
    pub(crate) fn link(
        folder: TempDir,
        compiler: &str,
        emulator: &[&str],
        prefix: &str,
        files: &[&str],
    ) -> Program {
        let call = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/call.c");
        let upper = prefix.to_uppercase();
        let output = Command::new(compiler)
            .current_dir(&folder)
            .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-static", "-I."])
            .args([&format!("-DMODEL={prefix}"), "-include", &format!("{prefix}.h")])
            .args([&format!("-DN_INPUTS={upper}_N_INPUTS"), &format!("-DN_OUTPUTS={upper}_N_OUTPUTS")])
            .arg(call)
            .args(files)
            .args(["-o", PROGRAM, "-lm"])
            .output()
            .unwrap_or_else(|error| panic!("{compiler} is needed by this test: {error}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.is_empty(),
            "{prefix}: {compiler}: {}\n{text}",
            output.status
        );
        Program::emulated(folder, emulator, PROGRAM)
    }

    /// Compiles `c/stateful.c` with the model's file, for calls of a model with state.
    pub(crate) fn with_state(folder: TempDir, prefix: &str, file: &str, flags: &[&str]) -> Program {
        let steps = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/stateful.c");
        let output = Command::new("cc")
            .current_dir(&folder)
            .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."])
            .args([&format!("-DMODEL={prefix}"), &format!("-DUPPER={}", prefix.to_uppercase())])
            .args(["-include", &format!("{prefix}.h")])
            .args(flags)
            .args([steps, file, "-o", PROGRAM, "-lm"])
            .output()
            .expect("a C compiler is needed by this test");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.is_empty(), "{prefix}: cc: {}\n{text}", output.status);
        Program::emulated(folder, &[], PROGRAM)
    }

    /// The program that `file` becomes in the emulator.
    pub(crate) fn emulated(folder: TempDir, emulator: &[&str], file: &str) -> Program {
        let emulator = emulator.iter().map(|word| word.to_string()).collect();
        Program { folder, file: file.to_string(), emulator }
    }

    /// The code of the contract's check.
    pub(crate) fn check(&self, inputs: &[Tensor]) -> i64 {
        let sizes = vec![0; 16];
        number(&self.call(inputs, &sizes), 0)
    }

    /// The outputs of these types and shapes.
    pub(crate) fn outputs(&self, inputs: &[Tensor], outputs: &[(DType, Vec<usize>)]) -> Vec<Tensor> {
        let bytes =
            |(dtype, shape): &(DType, Vec<usize>)| shape.iter().product::<usize>() * dtype.size_bytes();
        let sizes: Vec<usize> = outputs.iter().map(bytes).collect();
        let answer = self.call(inputs, &sizes);
        assert_eq!([number(&answer, 0), number(&answer, 2)], [0, 0], "refused, or failed");

        let mut rest = &answer[24..];
        let mut take = |size: usize| {
            let (bytes, tail) = rest.split_at(size);
            rest = tail;
            Bytes::Owned(bytes.into())
        };
        let tensors = outputs.iter().zip(sizes).map(|((dtype, shape), size)| {
            Tensor::new(*dtype, shape.clone(), take(size)).expect("as many bytes as the shape")
        });
        tensors.collect()
    }

    /// Holds the outputs against `expected`.
    pub(crate) fn assert_gives(&self, call: &str, inputs: &[Tensor], expected: &[Tensor]) {
        let sizes: Vec<usize> = expected.iter().map(|tensor| tensor.bytes().len()).collect();
        let answer = self.call(inputs, &sizes);
        assert_eq!(number(&answer, 0), 0, "{call}: refused");
        assert_eq!(number(&answer, 2), 0, "{call}: failed");
        let mut rest = &answer[24..];
        for (idx, expected) in expected.iter().enumerate() {
            let (bytes, tail) = rest.split_at(expected.bytes().len());
            rest = tail;
            let got = Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(bytes.into()))
                .expect("as many bytes as expected");
            for elem in 0..expected.elems() {
                let (a, b) = (got.get(elem).as_f64(), expected.get(elem).as_f64());
                let step = match expected.dtype() {
                    DType::F16 => 2e-3,
                    DType::BF16 => 2e-2,
                    _ => 2e-5,
                };
                let close = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= step * (1.0 + b.abs());
                assert!(close, "{call}: output {idx} [{elem}]: {a}, not {b}");
            }
        }
    }

    /// Holds the bits of the outputs against `expected`.
    pub(crate) fn assert_gives_bits(&self, call: &str, inputs: &[Tensor], expected: &[Tensor]) {
        let forms: Vec<_> = expected.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
        for (idx, (got, expected)) in self.outputs(inputs, &forms).iter().zip(expected).enumerate() {
            assert!(got.bytes() == expected.bytes(), "{call}: output {idx} differs");
        }
    }

    /// The output of the program for a call.
    fn call(&self, inputs: &[Tensor], outputs: &[usize]) -> Vec<u8> {
        let mut request = Vec::new();
        for input in inputs {
            let data = input.bytes();
            for value in [input.shape().len()].iter().chain(input.shape()).chain([&data.len()]) {
                request.extend((*value as i64).to_le_bytes());
            }
            request.extend_from_slice(data);
        }
        outputs.iter().for_each(|size| request.extend((*size as i64).to_le_bytes()));
        self.answer(&request)
    }

    /// The output of the program for this input.
    pub(crate) fn answer(&self, request: &[u8]) -> Vec<u8> {
        let path = self.folder.path().join(&self.file);
        let mut command = match self.emulator.split_first() {
            Some((emulator, args)) => {
                let mut command = Command::new(emulator);
                command.args(args).arg(&path);
                command
            }
            None => Command::new(&path),
        };
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // The program reads everything before it writes.
        stdin.write_all(request).expect("the program reads its inputs");
        drop(stdin);
        let output = child.wait_with_output().expect("the program ends");
        assert!(output.status.success(), "the program ends with {}", output.status);
        output.stdout
    }
}

fn number(answer: &[u8], idx: usize) -> i64 {
    let bytes = answer.get(8 * idx..8 * idx + 8).expect("an answer of that length");
    i64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
