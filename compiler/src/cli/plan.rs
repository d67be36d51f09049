//! `symc plan`: places buffers of fixed sizes and lifetimes.

use super::{
    errors::{at_path, usage},
    output::{Verdict, print_line},
};
use crate::{
    error::{At, Result},
    plan::problem::{self, Budget},
};
use serde_json::json;
use std::{fs, path::PathBuf, time::Instant};

/// Arguments of `symc plan`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A table with the columns id, start, end and size; a buffer lives in the half-open [start, end)
    file: PathBuf,
    /// Search for a lower placement for so long
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Plans.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let text = at_path(fs::read_to_string(&args.file), &args.file)?;
    let items = problem::read_csv(&text).at(|| args.file.display().to_string())?;
    let budget = match args.seconds {
        Some(seconds) if seconds >= 0.0 && seconds.is_finite() => {
            Budget { seconds: Some(seconds), ..Budget::default() }
        }
        Some(_) => return Err(usage("--seconds: expected a time")),
        None => Budget::default(),
    };
    let start = Instant::now();
    let solution = problem::solve(&items, &budget);
    let seconds = start.elapsed().as_secs_f64();
    let (height, lower_bound, gap) = (solution.height, solution.lower_bound, solution.gap());
    if args.json {
        print_line(
            &json!({
                "height": height, "lower_bound": lower_bound, "gap": gap, "optimal": solution.is_optimal(),
                "seconds": seconds, "offsets": solution.offsets,
            })
            .to_string(),
        );
        return Ok(Verdict::Yes);
    }
    for (item, offset) in items.iter().zip(&solution.offsets) {
        print_line(&format!("{} {offset}", item.id));
    }
    print_line(&format!(
        "height {height}, lower bound {lower_bound}, gap {:.2} %, {seconds:.3} s",
        100.0 * gap
    ));
    Ok(Verdict::Yes)
}
