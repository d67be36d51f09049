//! A case as a program for the machine of `--target`: the object of the model, linked with `call.c` by the C compiler
//! of that machine. The command of `--runner` runs it: an emulator, or a script that copies the program to a board.

use super::process;
use crate::{
    cli::{errors::usage, feed},
    error::{Error, ErrorKind, Result},
    kernel::Port,
    pipeline::{Artifact, Lowered},
    target::{Platform, Target},
    tensor::{Bytes, Tensor},
};
use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};
use symshape_runtime::DType;
use target_lexicon::Triple;
use tempfile::TempDir;

/// The C program that calls a model.
const CALL: &str = include_str!("call.c");

/// The name of a program. Windows needs its end.
const PROGRAM: &str = "program.exe";

/// Lines of a C compiler's messages that an error shows.
const MAX_MESSAGE_LINES: usize = 12;

/// The machine that runs the cases.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MachineArgs {
    /// Compile each case into a program for this machine, such as aarch64-unknown-linux-gnu. The environment variable
    /// CC names its C compiler
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// ISA levels of these programs, separated by commas
    #[arg(long, value_name = "LEVELS")]
    cpu: Option<String>,
    /// Command that runs these programs, such as "qemu-aarch64 -cpu max"
    #[arg(long, value_name = "COMMAND")]
    runner: Option<String>,
}

impl MachineArgs {
    /// Whether cases run as programs, and not in a process of `symc`.
    pub(super) fn is_given(&self) -> bool {
        self.target.is_some() || self.cpu.is_some() || self.runner.is_some()
    }

    /// The command line of these arguments.
    pub(super) fn command_line(&self) -> Vec<OsString> {
        let texts = [("--target", &self.target), ("--cpu", &self.cpu), ("--runner", &self.runner)];
        let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        texts.flat_map(|(name, value)| [OsString::from(name), value.into()]).collect()
    }

    /// The machine, or `None` without arguments.
    ///
    /// # Errors
    /// An unknown target or level, a target without programs, and another machine without a runner.
    pub(super) fn machine(&self) -> Result<Option<Machine>> {
        if !self.is_given() {
            return Ok(None);
        }

        let target = Target::parse(self.target.as_deref(), self.cpu.as_deref())?;
        let is_here = target.triple == Triple::host();
        let text = self.runner.as_deref().unwrap_or_default();
        let runner: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        if runner.is_empty() && !is_here {
            let hint = runner_hint(&target);
            return Err(usage(format!(
                "--target {}: programs for it need a command that runs them: {hint}",
                target.triple
            )));
        }

        let named = std::env::var("CC").ok().filter(|command| !command.trim().is_empty());
        let command = named.unwrap_or_else(|| if is_here { "cc".into() } else { c_compiler(&target) });
        let compiler = command.split_whitespace().map(str::to_string).collect();
        Ok(Some(Machine { target, compiler, runner, is_here }))
    }
}

/// An emulator for programs of the target, and the package that contains it.
fn runner_hint(target: &Target) -> String {
    let text = target.triple.to_string();
    let architecture = text.split('-').next().unwrap_or_default();
    match target.platform() {
        Platform::Windows => "--runner wine (of Debian's wine)".into(),
        Platform::Apple => "--runner with a script that copies them to a Mac".into(),
        Platform::Elf => {
            let name = if architecture.starts_with("riscv64") { "riscv64" } else { architecture };
            format!("--runner qemu-{name} (of Debian's qemu-user)")
        }
    }
}

/// The command of the C compiler for the target.
fn c_compiler(target: &Target) -> String {
    target.c_compiler().split_whitespace().next().unwrap_or("cc").to_string()
}

/// A machine with its C compiler.
pub(super) struct Machine {
    pub(super) target: Target,
    /// The command of the C compiler.
    compiler: Vec<String>,
    /// The command that runs programs; empty on this machine.
    runner: Vec<String>,
    is_here: bool,
}

impl Machine {
    /// Compiles and runs a program that does nothing.
    ///
    /// # Errors
    /// The compiler or the runner can't be started, or fails.
    pub(super) fn try_out(&self, timeout: Duration) -> Result<()> {
        let folder = scratch()?;
        put(&folder, "main.c", b"#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n")?;
        self.compile(folder.path(), &["main.c".into()])?;
        let program = Program {
            folder,
            runner: self.runner.clone(),
            n_inputs: 0,
            has_seed: false,
            outputs: Vec::new(),
        };
        match program.answer(&[], timeout)? {
            Answer::Ended(output) if output.status.success() => Ok(()),
            Answer::Ended(output) => {
                let message = format!("`{}` can't run programs: {}", program.command(), end_of(&output));
                Err(Error::new(ErrorKind::Io, message))
            }
            Answer::Late => Err(Error::new(ErrorKind::Io, format!("`{}` does not end", program.command()))),
        }
    }

    /// Links the model with the program that calls it.
    pub(super) fn program(&self, lowered: &Lowered) -> Result<Program> {
        let compiled = lowered.compile(&self.target, Artifact::Object)?;
        let folder = scratch()?;
        put(&folder, "model.h", compiled.header.as_bytes())?;
        put(&folder, "call.c", CALL.as_bytes())?;
        put(&folder, "model.o", &compiled.object.into_bytes()?)?;

        let program = &lowered.program;
        let prefix = &program.name;
        let mut words: Vec<String> = ["-O1", "-I.", "-include", "model.h"].map(str::to_string).into();
        words.push(format!("-DMODEL={prefix}"));
        let upper = prefix.to_uppercase();
        words.push(format!("-DN_DIMS=({upper}_N_SYMBOLS + {upper}_N_DATA_DEPENDENT)"));
        words.push(format!("-DN_INPUTS={}", program.inputs.len()));
        words.push(format!("-DN_OUTPUTS={}", program.outputs.len()));
        words.extend(["call.c", "model.o"].map(str::to_string));
        self.compile(folder.path(), &words)?;

        let output = |port: &Port| (program.buffers[port.buffer].dtype, port.shape.len());
        let outputs = program.outputs.iter().map(output).collect();
        let is_seed =
            |port: &Port| feed::is_seed(&port.name, program.buffers[port.buffer].dtype, port.shape.len());
        let has_seed = program.inputs.last().is_some_and(is_seed);
        Ok(Program { folder, runner: self.runner.clone(), n_inputs: program.inputs.len(), has_seed, outputs })
    }

    /// Compiles and links a program in `folder`.
    fn compile(&self, folder: &Path, words: &[String]) -> Result<()> {
        let (compiler, arguments) = self.compiler.split_first().expect("a command has a word");
        let mut command = Command::new(compiler);
        command.args(arguments).current_dir(folder).arg("-std=c11").args(words).args(["-o", PROGRAM]);
        // An emulator then needs no libraries of the machine.
        if !self.is_here && self.target.platform() == Platform::Elf {
            command.arg("-static");
        }

        let shown = self.compiler.join(" ");
        let hint =
            || format!("install {}, or name one in the environment variable CC", self.target.c_compiler());
        let result = command.output().map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("the C compiler `{shown}` can't be started ({error}): {}", hint()),
            )
        })?;
        if result.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&result.stderr);
        let lines: Vec<&str> = text.trim().lines().take(MAX_MESSAGE_LINES).collect();
        let message = format!(
            "`{shown}` can't compile a program for {}: {}\n{}",
            self.target.triple,
            hint(),
            lines.join("\n")
        );
        Err(Error::new(ErrorKind::Io, message))
    }
}

/// A folder for temporary files.
fn scratch() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("symshape-").tempdir();
    made.map_err(|error| Error::new(ErrorKind::Io, format!("the folder for temporary files: {error}")))
}

fn put(folder: &TempDir, name: &str, bytes: &[u8]) -> Result<()> {
    let written = fs::write(folder.path().join(name), bytes);
    written.map_err(|error| Error::new(ErrorKind::Io, format!("the folder for temporary files: {error}")))
}

/// A linked program.
pub(super) struct Program {
    folder: TempDir,
    runner: Vec<String>,
    /// Number of inputs.
    n_inputs: usize,
    /// Whether the last input is the seed of random numbers, which data sets lack.
    has_seed: bool,
    /// Types and ranks of the outputs.
    outputs: Vec<(DType, usize)>,
}

/// The end of a process.
enum Answer {
    Ended(Output),
    /// It was killed at its time limit.
    Late,
}

/// The result of a call in a program.
pub(super) enum CallResult {
    Outputs(Vec<Tensor>),
    /// The model or the program failed.
    Failed(String),
    /// The program crashed.
    Crashed(String),
    /// The program was killed at its time limit.
    Late,
}

impl Program {
    /// Calls the model once.
    ///
    /// # Errors
    /// The runner can't be started.
    pub(super) fn call(&self, inputs: &[Tensor], timeout: Duration) -> Result<CallResult> {
        let output = match self.answer(&self.request(inputs), timeout)? {
            Answer::Ended(output) => output,
            Answer::Late => return Ok(CallResult::Late),
        };
        if !output.status.success() {
            return Ok(CallResult::Crashed(end_of(&output)));
        }

        let parsed = Reader { rest: &output.stdout }.result(&self.outputs);
        Ok(parsed.unwrap_or_else(|| CallResult::Crashed("the output of the program ends early".into())))
    }

    /// The inputs, and the seed 0 if the program takes one that is not among them.
    pub(super) fn with_seed(&self, mut inputs: Vec<Tensor>) -> Vec<Tensor> {
        if self.has_seed && inputs.len() + 1 == self.n_inputs {
            inputs.extend(feed::seed());
        }
        inputs
    }

    /// The bytes that `call.c` reads.
    fn request(&self, inputs: &[Tensor]) -> Vec<u8> {
        let mut request = Vec::new();
        let number = |request: &mut Vec<u8>, value: usize| request.extend((value as i64).to_le_bytes());
        for input in inputs {
            number(&mut request, input.shape().len());
            input.shape().iter().for_each(|size| number(&mut request, *size));
            number(&mut request, input.bytes().len());
            request.extend_from_slice(input.bytes());
        }
        for (dtype, rank) in &self.outputs {
            number(&mut request, *rank);
            number(&mut request, dtype.size_bytes());
        }
        request
    }

    /// The words of the command that runs the program.
    fn words(&self) -> Vec<OsString> {
        let runner = self.runner.iter().map(OsString::from);
        runner.chain([self.folder.path().join(PROGRAM).into()]).collect()
    }

    /// The command as text.
    fn command(&self) -> String {
        self.runner.join(" ")
    }

    /// Runs the program with this standard input.
    fn answer(&self, request: &[u8], timeout: Duration) -> Result<Answer> {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let message = format!("`{}` can't be started: {error}", self.command());
            Error::new(ErrorKind::Io, message)
        })?;

        let stdin = child.stdin.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // If the program ends early, its exit code says more.
                let _ = stdin.map(|mut stdin| stdin.write_all(request));
            });
            let (status, stdout, stderr) = process::watch(child, timeout);
            Ok(status.map_or(Answer::Late, |status| Answer::Ended(Output { status, stdout, stderr })))
        })
    }
}

/// The exit code of a process, and the last line of its messages.
fn end_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
    format!("{}: {last}", output.status).trim_end_matches([':', ' ']).to_string()
}

/// Reads the output of `call.c`.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    /// The result of a call; `None` if bytes are missing or left.
    fn result(mut self, outputs: &[(DType, usize)]) -> Option<CallResult> {
        let length = self.size()?;
        if length > 0 {
            return Some(CallResult::Failed(String::from_utf8_lossy(self.rest).into_owned()));
        }

        let mut tensors = Vec::new();
        for (dtype, rank) in outputs {
            let shape: Vec<usize> = (0..*rank).map(|_| self.size()).collect::<Option<_>>()?;
            let elems = shape.iter().try_fold(1_usize, |elems, size| elems.checked_mul(*size))?;
            let bytes = self.take(elems.checked_mul(dtype.size_bytes())?)?;
            tensors.push(Tensor::new(*dtype, shape, Bytes::Owned(bytes.into()))?);
        }
        self.rest.is_empty().then_some(CallResult::Outputs(tensors))
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    fn size(&mut self) -> Option<usize> {
        let bytes = self.take(8)?.try_into().ok()?;
        usize::try_from(i64::from_le_bytes(bytes)).ok()
    }
}
