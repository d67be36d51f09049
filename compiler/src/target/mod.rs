//! Compilation targets: a platform and an ISA level. CPU names occur only here.
//!
//! A [`Target`] becomes a Cranelift ISA. Its flags keep generated code free of library calls: rounding is done in
//! hardware from x86-64-v2 on, and large stack frames are probed inline.

mod triples;

pub(crate) use triples::{did_you_mean, nearest};

use crate::error::{Error, Result};
use cranelift_codegen::{
    isa::{self, OwnedTargetIsa},
    settings::{self, Configurable},
};
use std::str::FromStr;
use target_lexicon::{Architecture, OperatingSystem, Triple};

/// Bytes of a cache line.
pub const LINE_BYTES: i64 = 64;

/// Distance in bytes of addresses that compete for the same lines of a first-level cache.
pub(crate) const PAGE_BYTES: i64 = 4096;

/// An ISA level: a named set of instruction set extensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Level {
    /// SSE4.2: 128-bit vectors.
    X86V2,
    /// AVX2 and FMA: 256-bit vectors.
    X86V3,
    /// AVX2 and FMA with AVX-VNNI: multiplications of bytes.
    X86V3Vnni,
    /// AVX-512 F, BW, CD, DQ, VL: 512-bit vectors.
    X86V4,
    /// AVX-512 with VNNI: multiplications of bytes.
    X86V4Vnni,
    /// AVX-512 with VNNI and AMX: tile registers that multiply bf16 and bytes. The operating system must grant them.
    X86V4Amx,
    /// ARMv8 with NEON.
    Aarch64,
    /// NEON with dot products of bytes: the extension `dotprod`, which ARMv8.4 includes.
    Aarch64Dotprod,
    /// NEON with dot products and products of matrices of bytes: the extension `i8mm`, which ARMv8.6 includes.
    Aarch64I8mm,
    /// As [`Level::Aarch64I8mm`], with products of matrices of bf16 too: the extension `bf16`, which ARMv8.6 includes.
    Aarch64Bf16,
    /// RV64GC: no vectors.
    Riscv64,
    /// RV64GC with V.
    Riscv64V,
}

impl Level {
    /// All levels, the lowest of each architecture first.
    pub const ALL: [Level; 12] = [
        Level::X86V2,
        Level::X86V3,
        Level::X86V3Vnni,
        Level::X86V4,
        Level::X86V4Vnni,
        Level::X86V4Amx,
        Level::Aarch64,
        Level::Aarch64Dotprod,
        Level::Aarch64I8mm,
        Level::Aarch64Bf16,
        Level::Riscv64,
        Level::Riscv64V,
    ];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Level::X86V2 => "x86-64-v2",
            Level::X86V3 => "x86-64-v3",
            Level::X86V3Vnni => "x86-64-v3-vnni",
            Level::X86V4 => "x86-64-v4",
            Level::X86V4Vnni => "x86-64-v4-vnni",
            Level::X86V4Amx => "x86-64-v4-amx",
            Level::Aarch64 => "aarch64",
            Level::Aarch64Dotprod => "aarch64-dotprod",
            Level::Aarch64I8mm => "aarch64-i8mm",
            Level::Aarch64Bf16 => "aarch64-bf16",
            Level::Riscv64 => "riscv64",
            Level::Riscv64V => "riscv64v",
        }
    }

    /// The name as part of a symbol's name.
    pub(crate) fn suffix(self) -> String {
        self.name().replace(['-', '.'], "_")
    }

    /// Bytes of the widest vector register.
    pub const fn vector_bytes(self) -> usize {
        match self {
            Level::X86V2
            | Level::Aarch64
            | Level::Aarch64Dotprod
            | Level::Aarch64I8mm
            | Level::Aarch64Bf16
            | Level::Riscv64
            | Level::Riscv64V => 16,
            Level::X86V3 | Level::X86V3Vnni => 32,
            Level::X86V4 | Level::X86V4Vnni | Level::X86V4Amx => 64,
        }
    }

    /// Whether a multiplication and an addition can be one instruction with one rounding.
    pub const fn has_fma(self) -> bool {
        !matches!(self, Level::X86V2)
    }

    /// Whether one instruction multiplies and sums four pairs of bytes per lane.
    pub const fn multiplies_bytes(self) -> bool {
        matches!(
            self,
            Level::X86V3Vnni
                | Level::X86V4Vnni
                | Level::X86V4Amx
                | Level::Aarch64Dotprod
                | Level::Aarch64I8mm
                | Level::Aarch64Bf16
        )
    }

    /// Whether one instruction multiplies two pairs of 16 bits per lane and adds both products to the lane.
    pub const fn sums_pairs(self) -> bool {
        matches!(self, Level::X86V3Vnni | Level::X86V4Vnni | Level::X86V4Amx)
    }

    /// Whether microkernels of the level convert halves to floats by instructions.
    pub const fn reads_halves(self) -> bool {
        !matches!(self, Level::X86V2 | Level::Riscv64 | Level::Riscv64V)
    }

    /// Whether one instruction multiplies matrices of bf16 on vector registers.
    pub const fn has_bf16_matrices(self) -> bool {
        matches!(self, Level::Aarch64Bf16)
    }

    /// Whether the level has tile registers.
    pub const fn has_tiles(self) -> bool {
        matches!(self, Level::X86V4Amx)
    }

    /// Whether the machine that the compiler runs on has this level. Levels with tile registers don't count, since the
    /// operating system may refuse these.
    pub fn is_on_host(self) -> bool {
        let has_vnni = self != Level::X86V3Vnni || has_avx_vnni();
        self.is_of(Triple::host().architecture) && has_vnni && host_level().is_some_and(|host| self <= host)
    }

    /// Whether this level belongs to the architecture.
    fn is_of(self, architecture: Architecture) -> bool {
        match self {
            Level::X86V2
            | Level::X86V3
            | Level::X86V3Vnni
            | Level::X86V4
            | Level::X86V4Vnni
            | Level::X86V4Amx => architecture == Architecture::X86_64,
            Level::Aarch64 | Level::Aarch64Dotprod | Level::Aarch64I8mm | Level::Aarch64Bf16 => {
                matches!(architecture, Architecture::Aarch64(_))
            }
            Level::Riscv64 | Level::Riscv64V => matches!(architecture, Architecture::Riscv64(_)),
        }
    }

    /// The Cranelift flags that this level implies.
    fn flags(self) -> Vec<&'static str> {
        const V2: &[&str] =
            &["has_cmpxchg16b", "has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
        const V3: &[&str] = &["has_avx", "has_avx2", "has_fma", "has_bmi1", "has_bmi2", "has_lzcnt"];
        const V4: &[&str] = &["has_avx512f", "has_avx512dq", "has_avx512vl"];

        match self {
            Level::X86V2 => V2.to_vec(),
            Level::X86V3 | Level::X86V3Vnni => [V2, V3].concat(),
            Level::X86V4 | Level::X86V4Vnni | Level::X86V4Amx => [V2, V3, V4].concat(),
            Level::Aarch64 | Level::Aarch64Dotprod | Level::Aarch64I8mm | Level::Aarch64Bf16 => Vec::new(),
            Level::Riscv64 => vec!["has_zca", "has_zcd"],
            Level::Riscv64V => vec!["has_v", "has_zca", "has_zcd"],
        }
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(name: &str) -> Result<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
            let known = Level::ALL.map(Level::name);
            let near = did_you_mean(&nearest(name, known));
            let message = format!("no CPU level is called {name}{near}; there are {}", known.join(", "));
            Error::new(crate::ErrorKind::Usage, message)
        })
    }
}

/// How the code is loaded into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// By the JIT, at any address.
    Jit,
    /// By a linker.
    Object,
}

/// The kind of a platform: its file formats and their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// Linux, other systems with ELF files, and machines without an operating system.
    Elf,
    /// Windows.
    Windows,
    /// macOS and the other systems of Apple.
    Apple,
}

impl Platform {
    fn of(triple: &Triple) -> Platform {
        match triple.operating_system {
            OperatingSystem::Windows => Platform::Windows,
            _ if triple.operating_system.is_like_darwin() => Platform::Apple,
            _ => Platform::Elf,
        }
    }

    /// The end of the name of a shared library.
    pub const fn library_extension(self) -> &'static str {
        match self {
            Platform::Elf => "so",
            Platform::Windows => "dll",
            Platform::Apple => "dylib",
        }
    }
}

/// Whether an artefact of this platform may use tile registers: Linux grants them when it loads the artefact, and a
/// machine without an operating system has nothing to ask.
pub(crate) fn grants_tiles(triple: &Triple) -> bool {
    triple.operating_system == OperatingSystem::Linux || triples::is_bare(triple)
}

/// Whether an artefact can find out the machine's level. Any x86-64 program can; on aarch64, Linux tells.
fn chooses_levels(triple: &Triple) -> bool {
    match triple.architecture {
        Architecture::X86_64 => true,
        Architecture::Aarch64(_) => triple.operating_system == OperatingSystem::Linux,
        _ => false,
    }
}

/// A platform and a level of its instruction set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The platform.
    pub triple: Triple,
    /// The lowest level that the machine must have.
    pub level: Level,
    /// Higher levels that code is generated for too, in ascending order.
    pub wider: Vec<Level>,
}

impl Target {
    /// The machine that the compiler runs on.
    ///
    /// # Errors
    /// The machine is not supported.
    pub fn host() -> Result<Target> {
        let triple = Triple::host();
        let level = host_level().ok_or_else(|| {
            Error::unsupported(format!("this CPU ({triple}); at least x86-64-v2 is required"))
        })?;
        // Whether the operating system grants tile registers is checked when the code is loaded.
        let has_tiles = level == Level::X86V4Vnni && has_amx();
        let wider = if has_tiles { vec![Level::X86V4Amx] } else { Vec::new() };
        Ok(Target { triple, level, wider })
    }

    /// Parses a triple and a level, or several levels separated by commas. The default triple is the host's. The
    /// default level is the host's own, or the lowest one of another architecture.
    ///
    /// # Errors
    /// A name is unknown, a level belongs to another architecture, or the platform has no code generator. The error of
    /// a misspelt name lists the nearest ones.
    pub fn parse(triple: Option<&str>, level: Option<&str>) -> Result<Target> {
        let usage = |message: String| Error::new(crate::ErrorKind::Usage, message);
        let triple = match triple {
            None => Triple::host(),
            Some(text) => triples::parse(text).map_err(usage)?,
        };

        let lowest = Level::ALL.into_iter().find(|level| level.is_of(triple.architecture));
        let lowest =
            lowest.filter(|lowest| Platform::of(&triple) != Platform::Windows || *lowest == Level::X86V2);
        let lowest = lowest.ok_or_else(|| Error::unsupported(triples::source_hint(&triple)))?;
        let mut levels: Vec<Level> = match level {
            Some("native") | None if triple == Triple::host() => return Target::host(),
            Some(names) => names.split(',').map(str::parse).collect::<Result<_>>()?,
            None => vec![lowest],
        };

        levels.sort_unstable();
        levels.dedup();
        if let Some(level) = levels.iter().find(|level| !level.is_of(triple.architecture)) {
            return Err(usage(format!("{} is not a level of {triple}", level.name())));
        }
        if levels.len() > 1 && !chooses_levels(&triple) {
            let names: Vec<&str> = levels.iter().map(|level| level.name()).collect();
            let message =
                format!("code for {triple} can't choose among levels: name one of {}", names.join(", "));
            return Err(usage(message));
        }

        // The operating system may refuse tile registers, so there is always code without them.
        let level = match levels[..] {
            [Level::X86V4Amx] => Level::X86V4Vnni,
            _ => levels.remove(0),
        };

        Ok(Target { triple, level, wider: levels })
    }

    /// Whether programs of a machine run without an operating system. Any machine with a C compiler can be named.
    ///
    /// # Errors
    /// The triple is not valid.
    pub fn is_bare(triple: &str) -> Result<bool> {
        let parsed = triples::parse(triple).map_err(|text| Error::new(crate::ErrorKind::Usage, text))?;
        Ok(triples::is_bare(&parsed))
    }

    /// Whether any level multiplies bytes, see [`Level::multiplies_bytes`].
    pub fn multiplies_bytes(&self) -> bool {
        self.wider.iter().chain([&self.level]).any(|level| level.multiplies_bytes())
    }

    /// Whether all levels that multiply bytes also sum pairs, see [`Level::sums_pairs`].
    pub fn sums_pairs(&self) -> bool {
        let mut levels = self.wider.iter().chain([&self.level]);
        levels.all(|level| level.sums_pairs() || !level.multiplies_bytes())
    }

    /// Whether any level multiplies matrices of bf16, see [`Level::has_bf16_matrices`].
    pub fn has_bf16_matrices(&self) -> bool {
        self.wider.iter().chain([&self.level]).any(|level| level.has_bf16_matrices())
    }

    /// Whether all levels read halves, see [`Level::reads_halves`].
    pub fn reads_halves(&self) -> bool {
        self.wider.iter().chain([&self.level]).all(|level| level.reads_halves())
    }

    /// The largest number of 32-bit lanes of a vector among the levels.
    pub fn lanes(&self) -> usize {
        let wider = self.wider.iter().map(|level| level.vector_bytes());
        wider.fold(self.level.vector_bytes(), usize::max) / 4
    }

    /// Whether artefacts may use tile registers, if a level has them. A function requests them when an artefact is
    /// loaded. Only Linux grants them; machines without an operating system need no request.
    pub fn grants_tiles(&self) -> bool {
        grants_tiles(&self.triple)
    }

    /// Whether artefacts use tile registers: a level has them, see [`Level::has_tiles`], and the platform grants them.
    pub fn has_tiles(&self) -> bool {
        self.grants_tiles() && self.wider.iter().any(|level| level.has_tiles())
    }

    /// The names of all levels, the lowest one first, separated by commas.
    pub fn level_names(&self) -> String {
        let names: Vec<&str> = [self.level].iter().chain(&self.wider).map(|level| level.name()).collect();
        names.join(",")
    }

    /// The platform's kind.
    pub fn platform(&self) -> Platform {
        Platform::of(&self.triple)
    }

    /// A C compiler for this target, and the package that contains it.
    pub fn c_compiler(&self) -> String {
        let debian = |prefix: &str, package: &str| format!("{prefix}-gcc (of Debian's {package})");
        match (self.platform(), self.triple.architecture) {
            (Platform::Windows, _) => debian("x86_64-w64-mingw32", "gcc-mingw-w64-x86-64"),
            (Platform::Apple, _) => "clang (of Xcode, on a Mac)".to_string(),
            (Platform::Elf, Architecture::Aarch64(_)) => debian("aarch64-linux-gnu", "gcc-aarch64-linux-gnu"),
            (Platform::Elf, Architecture::Riscv64(_)) => debian("riscv64-linux-gnu", "gcc-riscv64-linux-gnu"),
            (Platform::Elf, _) => debian("x86_64-linux-gnu", "gcc-x86-64-linux-gnu"),
        }
    }

    /// The code generator for this target.
    ///
    /// # Errors
    /// This build has no code generator for the target.
    pub fn isa(&self, placement: Placement) -> Result<OwnedTargetIsa> {
        let unsupported = |what: String| Error::unsupported(format!("target {}: {what}", self.triple));
        let mut flags = settings::builder();
        let verify = if cfg!(debug_assertions) { "true" } else { "false" };
        let pic = if placement == Placement::Object { "true" } else { "false" };

        for (name, value) in [
            ("opt_level", "speed"),
            ("enable_verifier", verify),
            ("is_pic", pic),
            ("use_colocated_libcalls", "false"),
            ("enable_probestack", "true"),
            ("probestack_strategy", "inline"),
            ("unwind_info", "false"),
        ] {
            flags.set(name, value).map_err(|e| Error::internal(format!("flag {name}: {e}")))?;
        }

        let mut builder = isa::lookup(self.triple.clone()).map_err(|e| unsupported(e.to_string()))?;
        for flag in self.level.flags() {
            builder.enable(flag).map_err(|e| Error::internal(format!("flag {flag}: {e}")))?;
        }

        builder.finish(settings::Flags::new(flags)).map_err(|e| unsupported(e.to_string()))
    }
}

#[cfg(target_arch = "x86_64")]
fn host_level() -> Option<Level> {
    macro_rules! all {
        ($($feature:tt)*) => { $(std::is_x86_feature_detected!($feature))&&* };
    }
    if !all!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "cmpxchg16b") {
        return None;
    }
    if !all!("avx" "avx2" "fma" "bmi1" "bmi2" "lzcnt") {
        return Some(Level::X86V2);
    }

    let wide = all!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl");
    Some(if wide && all!("avx512vnni") {
        Level::X86V4Vnni
    } else if wide {
        Level::X86V4
    } else if has_avx_vnni() {
        Level::X86V3Vnni
    } else {
        Level::X86V3
    })
}

/// Whether this machine has AVX-VNNI. Machines with AVX-512 may lack it.
fn has_avx_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// The bits of AMX-BF16, AMX-TILE and AMX-INT8 in EDX of leaf 7 of `cpuid`.
#[cfg(target_arch = "x86_64")]
const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// Whether the processor has tile registers for bytes and for bf16.
fn has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::x86_64::__cpuid_count(7, 0).edx & AMX == AMX;
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

#[cfg(target_arch = "aarch64")]
fn host_level() -> Option<Level> {
    let has_dots = std::arch::is_aarch64_feature_detected!("dotprod");
    let has_matrices = std::arch::is_aarch64_feature_detected!("i8mm");
    let has_bf16 = std::arch::is_aarch64_feature_detected!("bf16");
    Some(match (has_dots, has_matrices, has_bf16) {
        (true, true, true) => Level::Aarch64Bf16,
        (true, true, false) => Level::Aarch64I8mm,
        (true, false, _) => Level::Aarch64Dotprod,
        (false, ..) => Level::Aarch64,
    })
}

#[cfg(target_arch = "riscv64")]
fn host_level() -> Option<Level> {
    Some(Level::Riscv64)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
fn host_level() -> Option<Level> {
    None
}
