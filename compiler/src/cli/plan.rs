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
    /// CSV file with the columns id, start, end and size (bytes); a buffer is live in the half-open [start, end)
    file: PathBuf,
    /// Seconds to search for a smaller arena; default: a fixed number of steps
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// Places the buffers and prints their offsets.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let text = at_path(fs::read_to_string(&args.file), &args.file)?;
    let items = problem::read_csv(&text).at(|| args.file.display().to_string())?;
    let budget = match args.seconds {
        Some(seconds) if seconds >= 0.0 && seconds.is_finite() => {
            Budget { seconds: Some(seconds), ..Budget::default() }
        }
        Some(_) => return Err(usage("--seconds: expected a number of seconds, such as 0.5")),
        None => Budget::default(),
    };

    let start = Instant::now();
    let solution = problem::solve(&items, &budget);
    let seconds = start.elapsed().as_secs_f64();
    let height = solution.height;
    let lower_bound = solution.lower_bound;
    let gap = solution.gap();

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
        "height {height} B, lower bound {lower_bound} B, gap {:.2} %, {seconds:.3} s",
        100.0 * gap
    ));
    Ok(Verdict::Yes)
}
