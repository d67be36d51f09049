//! The division of the columns that some statements compute, such as the output channels of a Winograd convolution.
//!
//! ```text
//! for block parallel {
//!   strip c { inputs[c] = .. }                                      the preamble
//!   for point { contraction: products[point][n] = inputs · filters }
//!   strip n { outputs[n] = .. products[..][n] .. }                  the columns n
//! }
//! ```
//!
//! A thread that computes some columns of a block runs the preamble, and then the rest restricted to its columns. The
//! preamble writes scratch memory only, and each thread has its own copy.
//!
//! Columns are independent if each address of a buffer that they write has the form `divisor * t + constant + column`,
//! and the remainder of the constant leaves room for all columns below the divisor. Then the remainder of an address
//! determines its column. Divisors are those of the factors in the addresses, so this takes no proofs.

use crate::kernel::{Axis, BufferId, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, cost, walk};
use num_integer::Integer;
use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};
use symshape::{Dim, Node, Symbol};

/// Consecutive columns that are not divided: whole panels, and whole cache lines.
pub(crate) const COLUMN_STEP: i64 = 16;

/// The smallest ratio of the work on the columns to that of the preamble, which each thread repeats.
const MIN_RATIO: f64 = 4.0;

/// Statements whose columns are divided.
#[derive(Clone)]
pub(crate) struct ColumnSplit<'k> {
    /// The statements before those that are divided.
    pub(crate) preamble: &'k [Stmt],
    /// Strips over the columns, contractions with these columns, and loops around them.
    pub(crate) divided: &'k [Stmt],
    /// The number of columns.
    pub(crate) columns: i64,
}

impl<'k> ColumnSplit<'k> {
    /// `None` unless the body computes several units of columns, which are independent. `loops` are around it.
    pub(super) fn of(
        program: &Program,
        kernel: &Kernel,
        loops: &[&Axis],
        body: &'k [Stmt],
    ) -> Option<ColumnSplit<'k>> {
        let first = body.iter().position(|stmt| Stmt::has_contraction(slice::from_ref(stmt), &|_| true))?;
        let (preamble, divided) = body.split_at(first);
        let leaves = leaves(divided)?;
        let columns = leaves.first()?.columns.extent.as_i64()?;
        let have_all_columns = leaves.iter().all(|leaf| leaf.columns.extent.as_i64() == Some(columns));
        if !have_all_columns || columns <= COLUMN_STEP || !kernel.locals.is_empty() {
            return None;
        }

        let written = written(program, &leaves, columns)?;
        let mut facts = program.facts.clone();
        loops.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        let repeated = cost::at_most(&facts, preamble) * MIN_RATIO;
        let is_cheap = repeated <= cost::at_most(&facts, divided);
        (is_cheap && is_apart(program, preamble, &written)).then_some(ColumnSplit {
            preamble,
            divided,
            columns,
        })
    }

    /// The number of units of columns.
    pub(crate) fn units(&self) -> i64 {
        self.columns.unsigned_abs().div_ceil(COLUMN_STEP as u64) as i64
    }
}

/// A strip or a contraction whose columns can be divided.
struct Leaf<'k> {
    stmt: &'k Stmt,
    columns: &'k Axis,
}

/// The strips and contractions of some statements. `None` if there are other statements, or effects other than stores.
fn leaves(stmts: &[Stmt]) -> Option<Vec<Leaf<'_>>> {
    let mut found = Vec::new();
    for stmt in stmts {
        match stmt {
            Stmt::For { body, .. } => found.extend(leaves(body)?),
            Stmt::Strip { axis, code } if is_plain(code) => found.push(Leaf { stmt, columns: axis }),
            Stmt::Contraction(contraction)
                if is_plain(&contraction.epilogue) && !matches!(contraction.rhs, Rhs::FewBits(_)) =>
            {
                found.push(Leaf { stmt, columns: &contraction.n });
            }
            _ => return None,
        }
    }
    Some(found)
}

/// Whether stores are the only effect of the code, and nothing in it depends on other columns.
fn is_plain(code: &InstSeq) -> bool {
    let is_other = |inst: &Inst| matches!(inst, Inst::Bind(..) | Inst::Check(_));
    code.only_stores() && !code.insts.iter().any(is_other)
}

/// The addresses `divisor * t + constant + column` of some accesses, with the largest known divisor. It is 0 if there
/// is a single address for each column.
#[derive(Clone, Copy)]
struct Addresses {
    divisor: i64,
    constant: i64,
}

impl Addresses {
    /// `None` unless the index is a sum of the column and of terms without it.
    fn of(index: &Dim, column: &Symbol) -> Option<Addresses> {
        let terms = match index.node() {
            Node::Add(terms) => terms,
            _ => slice::from_ref(index),
        };
        let mut addresses = Addresses { divisor: 0, constant: 0 };
        let mut n_columns = 0;
        for term in terms {
            match (term.node(), term.as_i64()) {
                (Node::Symbol(symbol), _) if symbol == column => n_columns += 1,
                _ if term.contains(column) => return None,
                (_, Some(constant)) => addresses.constant = addresses.constant.checked_add(constant)?,
                (Node::Mul(factors), _) => {
                    let factor = factors.iter().find_map(Dim::as_i64).unwrap_or(1);
                    addresses.divisor = addresses.divisor.gcd(&factor);
                }
                _ => addresses.divisor = 1,
            }
        }
        (n_columns == 1).then_some(addresses)
    }

    /// The addresses of both.
    fn and(self, other: Addresses) -> Option<Addresses> {
        let distance = other.constant.checked_sub(self.constant)?;
        Some(Addresses { divisor: self.divisor.gcd(&other.divisor).gcd(&distance), ..self })
    }

    /// Whether no two of the columns have an address in common.
    fn are_apart(self, columns: i64) -> bool {
        self.divisor == 0 || self.constant.mod_floor(&self.divisor) + columns <= self.divisor
    }
}

/// The buffers that the columns write. `None` unless all accesses of these buffers show that columns are independent.
fn written(program: &Program, leaves: &[Leaf], columns: i64) -> Option<BTreeSet<BufferId>> {
    let mut stored = BTreeMap::new();
    for leaf in leaves {
        let private = private(leaf.stmt);
        let mut is_repeatable = true;
        walk::accesses(slice::from_ref(leaf.stmt), &mut |site| {
            let buffer = site.access.buffer;
            if site.is_store && !private.contains(&buffer) {
                // Where no microkernel computes a contraction, each thread computes all of its columns.
                is_repeatable &= matches!(leaf.stmt, Stmt::Strip { .. }) || is_scratch(program, buffer);
                stored.insert(buffer, None);
            }
        });
        if !is_repeatable {
            return None;
        }
    }

    for leaf in leaves {
        let mut have_columns = true;
        walk::accesses(slice::from_ref(leaf.stmt), &mut |site| {
            let Some(all) = stored.get_mut(&site.access.buffer) else { return };
            let own = Addresses::of(&site.access.index, &leaf.columns.var);
            let joined = own.and_then(|own| all.map_or(Some(own), |all: Addresses| all.and(own)));
            have_columns &= joined.is_some();
            *all = joined;
        });
        if !have_columns {
            return None;
        }
    }
    let are_apart = stored.values().flatten().all(|all| all.are_apart(columns));
    are_apart.then(|| stored.into_keys().collect())
}

/// The memory that only the microkernels of a statement access.
fn private(stmt: &Stmt) -> Vec<BufferId> {
    match stmt {
        Stmt::Contraction(contraction) => contraction.scratch().collect(),
        _ => Vec::new(),
    }
}

fn is_scratch(program: &Program, buffer: BufferId) -> bool {
    matches!(program.buffers[buffer].space, MemorySpace::Scratch)
}

/// Whether the preamble writes scratch only, and accesses nothing that the columns write.
fn is_apart(program: &Program, preamble: &[Stmt], written: &BTreeSet<BufferId>) -> bool {
    let mut is_apart = true;
    walk::accesses(preamble, &mut |site| {
        let buffer = site.access.buffer;
        is_apart &= (is_scratch(program, buffer) || !site.is_store) && !written.contains(&buffer);
    });
    is_apart
}

#[cfg(test)]
mod tests {
    use crate::{
        codegen::body::split::{self, PartSplit},
        kernel::text,
    };

    /// A body that computes 96 columns, with replacements.
    fn columns(replaced: &[(&str, &str)]) -> Option<i64> {
        let mut source = r#"program columns {
  symbol N = 1..64
  workers 2
  @0 x: f32[N*9*64] input 0
  @1 b: f32[64*96] input 1
  @2 u: f32[9*64] scratch
  @3 q: f32[4*9*96] scratch
  @4 y: f32[N*9*160] output 0
  input x[N, 9, 64] = @0
  input b[64, 96] = @1
  output y[N, 9, 160] = @4
  kernel columns {
    for n in 0..N parallel {
      for h in 0..9 {
        strip i in 0..64 {
          %0 = load @0[576*n + 64*h + i]
          store @2[64*h + i], %0
        }
      }
      for p in 0..4 {
        contraction f32 {
          m r in 0..9
          n j in 0..96
          k k in 0..64
          lhs @2[64*r + k]
          rhs @1[96*k + j]
          %0 = sum
          store @3[864*p + 96*r + j], %0
        }
      }
      for g in 0..8 {
        strip l in 0..96 {
          %0 = load @3[96*g + l]
          %1 = load @3[96*g + l + 2688]
          %2 = mul %0, %1
          store @4[1440*n + 160*g + l + 64], %2
        }
      }
    }
  }
}
"#
        .to_string();
        for (from, to) in replaced {
            assert!(source.contains(from), "{from}");
            source = source.replace(from, to);
        }
        let program = text::parse(&source).expect("a program");
        let parts = split::parts(&program, &program.kernels[0]);
        let [part] = &parts[..] else { panic!("{} parts", parts.len()) };
        match &part.split {
            PartSplit::Loops(nest) => nest.columns.as_ref().map(|columns| columns.columns),
            _ => None,
        }
    }

    #[test]
    fn independent_columns_are_divided() {
        assert_eq!(columns(&[]), Some(96));
        // Stores to two rows, at the same columns of the output.
        let both = "160*g + l + 64], %2\n store @4[1440*n + 160*g + l + 224], %1";
        assert_eq!(columns(&[("160*g + l + 64], %2", both)]), Some(96));
    }

    #[test]
    fn columns_that_depend_on_others_are_not_divided() {
        let differ = |from, to| assert_eq!(columns(&[(from, to)]), None, "{to}");
        // Another column of the products, or all of them.
        differ("load @3[96*g + l]", "load @3[96*g + l + 1]");
        differ("load @3[96*g + l]", "load @3[96*g + 95 - l]");
        differ("load @3[96*g + l]", "load @3[96*g]");
        // Outputs that different columns write.
        differ("store @4[1440*n + 160*g + l + 64], %2", "store @4[1440*n + 80*g + l + 64], %2");
        differ("store @4[1440*n + 160*g + l + 64], %2", "store @4[1440*n + 2*l + 64], %2");
        // The remainders of 96 columns from 65 on don't fit 160.
        differ("160*g + l + 64], %2", "160*g + l + 65], %2");
        // The preamble reads an element that the columns write, or writes an output.
        differ("load @0[576*n + 64*h + i]", "load @4[1440*n + 160*h + i]");
        differ("store @2[64*h + i], %0", "store @2[64*h + i], %0\n store @4[1440*n + 160*h + i], %0");
        // Sums of products are stored where other threads see them.
        differ("store @3[864*p + 96*r + j], %0", "store @4[1440*n + 160*r + j + 64], %0");
        // A strip of another length.
        differ("strip l in 0..96", "strip l in 0..64");
    }

    #[test]
    fn columns_outside_of_loops_are_divided() {
        let one = [
            ("for n in 0..N parallel {", ""),
            ("576*n + ", ""),
            ("1440*n + ", ""),
            ("      }\n    }\n  }\n}\n", "      }\n  }\n}\n"),
        ];
        assert_eq!(columns(&one), Some(96));
    }

    /// Repeating the preamble would cost more than dividing the columns gains.
    #[test]
    fn columns_after_an_expensive_preamble_are_not_divided() {
        let slow = "%1 = pow %0, %0\n %2 = pow %1, %1\n %3 = pow %2, %2\n store @2[64*h + i], %3";
        let few = [("store @2[64*h + i], %0", slow), ("for p in 0..4", "for p in 0..1")];
        assert_eq!(columns(&few[1..]), Some(96));
        assert_eq!(columns(&[few[0], ("k k in 0..64", "k k in 0..1"), few[1]]), None);
    }
}
