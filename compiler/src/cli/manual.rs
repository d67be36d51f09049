//! `symc completions` and `symc man`: completions of shells and manual pages, made from the declared arguments.

use super::{
    errors::at_path,
    output::{Verdict, print_line},
};
use crate::error::Result;
use clap::Command;
use clap_complete::Shell;
use std::{fs, path::PathBuf};

/// Arguments of `symc completions`.
#[derive(clap::Args)]
pub(super) struct CompletionArgs {
    /// The shell that will read them
    shell: Shell,
}

/// Arguments of `symc man`.
#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// Folder for the pages, which is made if it does not exist
    folder: PathBuf,
}

/// Prints the completions of a shell for `symc`, the whole command line.
pub(super) fn completions(args: &CompletionArgs, mut symc: Command) -> Result<Verdict> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut symc, "symc", &mut text);
    print_line(String::from_utf8_lossy(&text).trim_end());
    Ok(Verdict::Yes)
}

/// Writes `symc.1`, and `symc-COMMAND.1` for each command.
pub(super) fn man(args: &ManArgs, symc: Command) -> Result<Verdict> {
    at_path(fs::create_dir_all(&args.folder), &args.folder)?;
    at_path(clap_mangen::generate_to(symc, &args.folder), &args.folder)?;
    print_line(&format!("pages in {}", args.folder.display()));
    Ok(Verdict::Yes)
}
