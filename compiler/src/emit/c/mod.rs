//! C source: the whole model as one portable C11 file, for machines without a code generator here.
//!
//! The file exports only the functions of the header. It allocates no memory. It calls the functions of `math.h` that
//! the header lists, and the external functions of the model. Without `math.h` it contains these functions (`math/`).
//!
//! Each kernel becomes a function of the sizes and buffers that it uses. Its loops are printed as they are, and the C
//! compiler vectorises them. With `NAME_STATIC_ARENA` defined, the file also contains an arena and `NAME_run_static`,
//! which uses it.

mod call;
mod code;
mod constants;
mod context;
mod contract;
mod dims;
mod dots;
mod driver;
mod few_bits_tiles;
mod frame;
mod function;
mod kernel_printer;
mod kernels;
mod names;
mod partitions;
mod rounded;
mod rounded_tiles;
mod scalars;
mod state;
mod text;
mod tiles;
mod variables;
mod weights;

use super::{
    header::{self, SourceHeader},
    weights::WeightsFile,
};
use crate::{error::Result, kernel::Program, options::CompileOptions, plan::Plan};
use context::SourceContext;
use std::{collections::BTreeSet, fmt::Write};
use text::{bits_for, helpers_for, identifiers, is_math, own_math};
use weights::SourceWeights;

/// The C file, and the header that it includes.
#[derive(Clone, Debug)]
pub struct Source {
    /// `NAME.c`
    pub code: String,
    /// `NAME.h`
    pub header: String,
    /// The weights file, if the constants are not in the source.
    pub weights: Option<WeightsFile>,
}

/// Infinity and NaN without `math.h`.
const OWN_CONSTANTS: &str = "\
#if defined(__GNUC__)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf(\"\")
#else
#define INFINITY (1.0f / 0.0f)
#define NAN (0.0f / 0.0f)
#endif

";

/// Vectors of four floats.
const VECTORS: &str = include_str!("vectors.c");

/// The C source of `program`, which includes its header under the name `header`. The options say whether it calls
/// `math.h`, and whether its constants are in a weights file.
///
/// # Errors
/// A size that has no bound or does not fit in 64 bits, or symbols that don't follow from the shapes of the inputs.
pub(crate) fn source(
    program: &Program,
    plan: &Plan,
    header: &str,
    options: &CompileOptions,
) -> Result<Source> {
    let libm = options.libm;
    let weights = options.weights_file.then(|| SourceWeights::of(program));
    let cx = SourceContext::new(program, plan, weights, options.wasm_source)?;
    let body = functions(&cx)?;
    let helpers = helpers_for(&body);
    let used = identifiers(&body).chain(identifiers(&helpers)).collect::<BTreeSet<_>>();
    let math: Vec<&str> = used.iter().copied().filter(|name| is_math(name)).collect();

    let is_split = cx.weights.is_some();
    let declarations = if is_split { String::new() } else { constants::declarations(program) };
    let definitions = if is_split { String::new() } else { constants::definitions(program) };
    // Weights that are not finite are printed as NAN or INFINITY, both of which contain an `N`.
    let uses_macros = used.contains("NAN") || used.contains("INFINITY") || definitions.contains('N');
    let uses_math = !math.is_empty() || uses_macros;
    let include = if uses_math && libm { "#include <math.h>\n\n" } else { "" };
    let own = if uses_math && !libm {
        format!("{OWN_CONSTANTS}{}", own_math(&math, cx.vectors))
    } else {
        String::new()
    };
    let vectors = if cx.vectors { VECTORS } else { "" };
    let bits = bits_for(&format!("{own}{helpers}{body}"));
    let dots = dots::functions(&body);
    let prelude = format!("{include}{bits}{own}\n{vectors}{helpers}{dots}");
    call::check_names(program, &body, &prelude)?;
    let atomics = if program.partitions.is_empty() { "" } else { "#include <stdatomic.h>\n" };
    let mut code = format!("/* {}: compiled by symshape {}. */\n", program.name, env!("CARGO_PKG_VERSION"));
    let _ = write!(code, "#include \"{header}\"\n{atomics}{prelude}{declarations}{body}{definitions}");

    let math_calls = match math.as_slice() {
        list if list.is_empty() || !libm => {
            "The model's source calls no functions of the C library.".to_string()
        }
        list => format!("The model's source calls these functions of math.h: {}.", list.join(", ")),
    };
    let source = SourceHeader { math_calls: &math_calls, frame_bytes: frame::frame_bytes(program) };
    let weights = cx.weights.map(|weights| WeightsFile {
        artefact: *blake3::hash(code.as_bytes()).as_bytes(),
        levels: "any".into(),
        layout: weights.layout,
    });
    let header = header::header_for_source(program, plan, &source, weights.as_ref());
    Ok(Source { code, header, weights })
}

/// The functions of the model, without the helpers that they call.
fn functions(cx: &SourceContext) -> Result<String> {
    let program = cx.program;
    let mut out = String::new();
    let calls = kernels::kernels(&mut out, cx)?;
    contract::check(&mut out, cx)?;
    driver::sizes(&mut out, cx)?;

    if program.partitions.is_empty() {
        driver::run(&mut out, cx, &calls)?;
    } else {
        partitions::all(&mut out, cx, &calls)?;
    }

    state::functions(&mut out, cx)?;
    driver::static_arena(&mut out, program);
    Ok(out)
}
