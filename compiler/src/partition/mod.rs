//! Cuts a program into partitions: the entries of the artefact's table, which a driver runs one after another or several
//! at once.
//!
//! First the dependencies ([`depend`]): kernels are taken together where regions of control flow demand it, and wait for
//! others where [`crate::kernel::uses`] says so. Then the cut ([`cut`]): chains without branches are one piece, and pieces
//! are merged or divided until their number is the one asked for, of about equal work and with few bytes between them.
//! Kernels are put in the order of their partitions.
//!
//! Where partitions run one after another only, every kernel waits for the one before it: the order stays the program's,
//! and so does the memory that it takes.
//!
//! What runs on different targets is never one piece, so there can be more of them than were asked for.
//!
//! Nothing that is computed depends on the cut.

mod cut;
mod depend;

use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{Partition, Policies, Program},
};
use std::{collections::BTreeMap, num::NonZeroU32, str::FromStr};

/// Into how many partitions a program is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// As many as its branches can use.
    Auto,
    /// So many, or as many as it has kernels that can be told apart.
    Of(NonZeroU32),
}

/// More partitions than this are refused: a table is for people, and for decisions within microseconds.
pub const MAX_PARTITIONS: u32 = 256;

impl FromStr for Count {
    type Err = Error;

    fn from_str(text: &str) -> Result<Count> {
        let usage = |message: String| Err(Error::new(ErrorKind::Usage, message));
        match (text, text.parse::<NonZeroU32>()) {
            ("auto", _) => Ok(Count::Auto),
            (_, Ok(count)) if count.get() <= MAX_PARTITIONS => Ok(Count::Of(count)),
            (_, Ok(count)) => usage(format!("{count} partitions; at most {MAX_PARTITIONS} are possible")),
            (_, Err(_)) => usage(format!("`{text}` partitions: a number from 1 on, or `auto`")),
        }
    }
}

/// Cuts the program; the kernels may come into another order.
///
/// # Errors
/// None but bugs.
pub fn partition(program: &mut Program, count: Count, policies: Policies, target: &str) -> Result<()> {
    let mut graph = depend::Graph::of(program)?;
    if policies == Policies::Serial {
        graph.keep_order();
    }
    let pieces = cut::pieces(&graph, count);
    arrange(program, &graph, &pieces, target);
    program.policies = policies;
    Ok(())
}

/// Puts the kernels in the order of the pieces, which are in an order that respects the dependencies.
fn arrange(program: &mut Program, graph: &depend::Graph, pieces: &[Vec<usize>], target: &str) {
    let mut old: Vec<_> = std::mem::take(&mut program.kernels).into_iter().map(Some).collect();
    let mut piece_of = vec![0; graph.atoms.len()];
    for (number, piece) in pieces.iter().enumerate() {
        piece.iter().for_each(|atom| piece_of[*atom] = number);
    }
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for (number, piece) in pieces.iter().enumerate() {
        let begin = program.kernels.len();
        for atom in piece {
            program
                .kernels
                .extend(old[graph.atoms[*atom].kernels.clone()].iter_mut().filter_map(Option::take));
        }
        let waits = piece.iter().flat_map(|atom| &graph.atoms[*atom].after);
        let waits: Vec<usize> =
            waits.map(|edge| piece_of[edge.from]).filter(|other| *other != number).collect();
        let name = unique(&mut taken, graph.name(piece));
        let kernels = begin..program.kernels.len();
        let own = piece.first().map_or("", |atom| &graph.atoms[*atom].target);
        let target = if own.is_empty() { target } else { own };
        program.partitions.push(Partition { name, kernels, after: waits, target: target.into() });
    }
    depend::reduce(&mut program.partitions);
}

/// The name, with a number behind it where others have it already.
fn unique(taken: &mut BTreeMap<String, usize>, name: String) -> String {
    let times = taken.entry(name.clone()).or_insert(0);
    *times += 1;
    if *times == 1 { name } else { format!("{name} ({times})") }
}
