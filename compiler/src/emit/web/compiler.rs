//! C compilers for wasm32: which are looked for, and how they are called.

use super::level::WasmLevel;
use crate::{
    emit::c::Source,
    error::{Error, ErrorKind, Result},
};
use std::{fs, path::Path, process::Command};

/// Name of the header in the folder of the C compiler.
pub(super) const HEADER: &str = "model.h";

/// The environment variable that names a C compiler for wasm32, with its first arguments.
const VARIABLE: &str = "WASM_CC";

/// The commands that are tried in this order if the variable is not set.
const COMMANDS: [&str; 4] = ["clang", "zig cc", "python3 -m ziglang cc", "python -m ziglang cc"];

/// Bytes of the stack. Generated code has no recursion, and its largest frames are rounded rows.
const STACK_BYTES: u32 = 1 << 18;

/// Lines of a C compiler's messages that an error shows.
const MAX_MESSAGE_LINES: usize = 12;

/// A command that compiles C to WebAssembly.
pub struct WasmCompiler {
    words: Vec<String>,
}

impl WasmCompiler {
    /// The compiler that the environment variable names, or the first command that compiles a small program.
    ///
    /// # Errors
    /// When no command does. The error lists the commands and their messages.
    pub fn find(level: WasmLevel) -> Result<WasmCompiler> {
        let named = std::env::var(VARIABLE).ok().filter(|command| !command.trim().is_empty());
        let commands: Vec<&str> = match &named {
            Some(command) => vec![command],
            None => COMMANDS.to_vec(),
        };

        let mut reasons = String::new();
        for command in commands {
            let compiler = WasmCompiler::named(command);
            match compiler.try_out(level) {
                Ok(()) => return Ok(compiler),
                Err(reason) => reasons += &format!("\n  {command}: {reason}"),
            }
        }
        let message = format!(
            "a .wasm file needs a C compiler for wasm32, and none was found: install Zig (`pip install ziglang`), or \
             clang and lld, or name a compiler in the environment variable {VARIABLE}{reasons}"
        );
        Err(Error::new(ErrorKind::Io, message))
    }

    /// The command `command`, which may have arguments.
    pub fn named(command: &str) -> WasmCompiler {
        WasmCompiler { words: command.split_whitespace().map(str::to_string).collect() }
    }

    /// Compiles a small program; the error is one line.
    fn try_out(&self, level: WasmLevel) -> std::result::Result<(), String> {
        let source = Source {
            code: "int answer(void);\nint answer(void) { return 42; }\n".into(),
            header: String::new(),
            weights: None,
        };
        let compiled = self.compile(&source, level, &["answer".into()]);
        compiled.map(drop).map_err(|error| error.message().lines().next().unwrap_or_default().to_string())
    }

    /// Compiles and links a source to a module that exports these functions.
    ///
    /// # Errors
    /// When the compiler can't be started or fails.
    pub(super) fn compile(&self, source: &Source, level: WasmLevel, exports: &[String]) -> Result<Vec<u8>> {
        let io = |error: &std::io::Error| {
            Error::new(ErrorKind::Io, format!("the folder for temporary files: {error}"))
        };
        let scratch = tempfile::Builder::new().prefix("symshape-").tempdir().map_err(|error| io(&error))?;
        let put = |name: &str, text: &str| fs::write(scratch.path().join(name), text);
        put("model.c", &source.code)
            .and_then(|()| put(HEADER, &source.header))
            .map_err(|error| io(&error))?;

        let mut command = self.command(level, exports, scratch.path())?;
        let shown = self.words.join(" ");
        let result = command
            .output()
            .map_err(|error| Error::new(ErrorKind::Io, format!("`{shown}` can't be started: {error}")))?;
        if !result.status.success() {
            let text = String::from_utf8_lossy(&result.stderr);
            let lines: Vec<&str> = text.trim().lines().take(MAX_MESSAGE_LINES).collect();
            let message = format!("`{shown}` can't compile to WebAssembly: {}", lines.join("\n"));
            return Err(Error::new(ErrorKind::Io, message));
        }
        fs::read(scratch.path().join("model.wasm")).map_err(|error| io(&error))
    }

    /// Whether a word of the command is Zig or its Python module. The folder of a program does not count.
    fn is_zig(&self) -> bool {
        let name = |word: &str| Path::new(word).file_name().map(|name| name.to_string_lossy().to_lowercase());
        self.words.iter().filter_map(|word| name(word)).any(|name| name.starts_with("zig"))
    }

    fn command(&self, level: WasmLevel, exports: &[String], folder: &Path) -> Result<Command> {
        let (program, arguments) =
            self.words.split_first().ok_or_else(|| Error::internal("an empty command"))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder);
        // Zig names the platform differently and has another linker.
        if self.is_zig() {
            command.args(["-target", "wasm32-freestanding"]).env("ZIG_LOCAL_CACHE_DIR", folder);
        } else {
            // An overflow of the stack then traps.
            command.args(["--target=wasm32", "-Wl,--stack-first"]);
        }
        command.args(["-std=c11", "-O3", "-ffreestanding", "-nostdlib", "-w"]);
        // Engines with vectors have the other two features. Copies and conversions are single instructions with them.
        command.args(["-msimd128", "-mbulk-memory", "-mnontrapping-fptoint"]);
        if level == WasmLevel::RelaxedSimd {
            command.arg("-mrelaxed-simd");
        }
        command.args(["-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z"]);
        command.arg(format!("-Wl,stack-size={STACK_BYTES}"));
        command.args(exports.iter().map(|name| format!("-Wl,--export={name}")));
        command.args(["model.c", "-o", "model.wasm"]);
        Ok(command)
    }
}
