//! The report page of a model with its profiles, and the profiles of an earlier page.

use super::{
    kernels::{KernelProfile, Profile},
    machine::Machine,
    scaling::{Divided, KernelScaling, Scaling},
};
use crate::{
    emit,
    error::{At, Error, ErrorKind, Result},
    kernel::Program,
    pipeline::Lowered,
};
use serde_json::{Value as Json, json};
use std::{fs, path::Path};

/// Largest page that profiles are read from, in bytes.
const MAX_PAGE_BYTES: u64 = 1 << 28;

/// The begin of the data of a page.
const DATA: &str = r#"<script type="application/json" id="data">"#;

/// Profiles to show on a page.
#[derive(Clone, Copy, Debug)]
pub struct Profiles<'p> {
    /// The machine that they were measured on.
    pub machine: &'p Machine,
    /// A profile for each measured size.
    pub sizes: &'p [Profile],
    /// The profiles that they are compared with.
    pub baseline: Option<&'p Baseline>,
}

impl Profiles<'_> {
    /// The page of [`Lowered::report`] for the profiled model, with the time of each kernel.
    pub fn report(&self, lowered: &Lowered) -> String {
        let Lowered { program, plan, .. } = lowered;
        emit::report::report(program, plan, &self.json(program))
    }

    fn json(&self, program: &Program) -> Json {
        let Machine { multiplications, byte_multiplications, bandwidths } = self.machine;
        let sizes: Vec<Json> = self.sizes.iter().map(|profile| size_json(program, profile)).collect();
        json!({
            "machine": {
                "multiplications": multiplications, "byte_multiplications": byte_multiplications,
                "bandwidths": bandwidths,
            },
            "sizes": sizes,
            "baseline": self.baseline.map(|baseline| json!({"name": baseline.name, "sizes": baseline.sizes})),
        })
    }
}

/// One profile as data: the sizes, the time of a call, and a row for each kernel.
pub(crate) fn size_json(program: &Program, profile: &Profile) -> Json {
    let kernels: Vec<Json> = profile.kernels.iter().map(|kernel| row(program, kernel)).collect();
    json!({"at": profile.at, "call_ns": profile.call_ns, "kernels": kernels})
}

/// One prediction as data: the sizes, the times of a call, and a row for each kernel.
pub(crate) fn scaling_json(program: &Program, scaling: &Scaling) -> Json {
    let divided = |divided: &Divided| {
        json!({
            "ns": divided.ns, "predicted_ns": divided.predicted_ns(), "serial_ns": divided.serial_ns(),
            "barriers": divided.barriers, "shares": divided.shares, "imbalance": divided.imbalance(scaling.threads),
        })
    };
    let row = |kernel: &KernelScaling| {
        let name = &program.kernels[kernel.kernels.start].name;
        json!({"kernel": kernel.kernels.start, "name": name, "divided": divided(&kernel.divided)})
    };
    json!({
        "at": scaling.at, "threads": scaling.threads, "alone_ns": scaling.alone_ns, "speedup": scaling.speedup(),
        "call": divided(&scaling.call), "kernels": scaling.kernels.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(program: &Program, profile: &KernelProfile) -> Json {
    let KernelProfile { kernels, ns, demand, bound } = profile;
    json!({
        "kernel": kernels.start, "name": program.kernels[kernels.start].name, "ns": ns,
        "bound_ns": bound.map(|bound| bound.ns), "bound_by": bound.map(|bound| bound.by.name()),
        "multiplications": demand.multiplications + demand.byte_multiplications, "bytes": demand.bytes,
    })
}

/// The profiles of an earlier page.
#[derive(Clone, Debug)]
pub struct Baseline {
    name: String,
    sizes: Json,
}

impl Baseline {
    /// Reads the profiles of a page that `symc report --profile` wrote, by this version or an earlier one.
    ///
    /// # Errors
    /// When the file can't be read, is no such page, or has no profiles.
    pub fn read(path: &Path) -> Result<Baseline> {
        let place = || path.display().to_string();
        let io = |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string());
        let bytes = fs::metadata(path).map_err(io).at(place)?.len();
        if bytes > MAX_PAGE_BYTES {
            let message = format!("{bytes} bytes; a page has at most {MAX_PAGE_BYTES}");
            return Err(Error::new(ErrorKind::Limit, message)).at(place);
        }
        let page = fs::read(path).map_err(io).at(place)?;
        let sizes = sizes(&String::from_utf8_lossy(&page)).at(place)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Baseline { name, sizes })
    }
}

/// The profiles in the text of a page.
fn sizes(page: &str) -> Result<Json> {
    let wrong = |message: &str| {
        let message = format!("{message}; expected a page of `symc report M.onnx --profile SIZES -o R.html`");
        Error::new(ErrorKind::Usage, message)
    };
    let data = page.split_once(DATA).and_then(|(_, rest)| rest.split_once("</script>"));
    let (data, _) = data.ok_or_else(|| wrong("the file is not a report page"))?;
    let data: Json = serde_json::from_str(data).map_err(|_| wrong("the data of the page is damaged"))?;
    let sizes = &data["profile"]["sizes"];
    let rows = sizes.as_array().ok_or_else(|| wrong("the page has no profiles"))?;

    let has_types = |size: &Json| {
        let kernels = size["kernels"].as_array();
        size["at"].is_string()
            && size["call_ns"].is_number()
            && kernels
                .is_some_and(|rows| rows.iter().all(|row| row["name"].is_string() && row["ns"].is_number()))
    };
    if !rows.iter().all(has_types) {
        return Err(wrong("the profiles of the page are damaged"));
    }
    Ok(sizes.clone())
}
