//! A library offload: matrix products go to an `extern "C"` kernel of the user's.
//!
//! The target claims contractions of two factors without a batch. It brings their operands into the form that the
//! library wants, `C[m, n] = A[m, k] · B[k, n]`, row-major, and calls the symbol `blas_sgemm`; everything else stays
//! with the machine. In this process the symbol is a closure around the kernel, in objects the function in `c/blas.c`.

use std::collections::HashMap;
use symshape::Dim;
use symshape_compiler::{
    Error, Result,
    external::Callee,
    graph::{Graph, Label, Node, Op, Type, Value},
    offload::{Concurrency, Subgraph, Target},
};
use symshape_runtime::{DType, external::Function};

/// The library's kernel: `c = a · b`, row-major and dense, of `m × k` and `k × n` elements.
pub type Kernel = unsafe extern "C" fn(m: i32, n: i32, k: i32, a: *const f32, b: *const f32, c: *mut f32);

/// A simple kernel in place of a library.
///
/// # Safety
/// The pointers lead to as many elements as the sizes say, those of `c` writable and apart from the others.
pub unsafe extern "C" fn plain_sgemm(m: i32, n: i32, k: i32, a: *const f32, b: *const f32, c: *mut f32) {
    let (m, n, k) = (m as usize, n as usize, k as usize);
    for row in 0..m {
        for column in 0..n {
            let mut sum = 0.0;
            for idx in 0..k {
                // SAFETY: within the sizes that the caller promises.
                sum += unsafe { *a.add(row * k + idx) * *b.add(idx * n + column) };
            }
            // SAFETY: as above.
            unsafe { *c.add(row * n + column) = sum };
        }
    }
}

/// The target `blas`.
pub struct Blas {
    function: Function,
}

impl Default for Blas {
    fn default() -> Blas {
        // SAFETY: the function meets the requirements of `Kernel`.
        unsafe { Blas::new(plain_sgemm) }
    }
}

impl Blas {
    /// The target that calls this kernel for models in this process.
    ///
    /// # Safety
    /// The kernel meets the requirements of [`Kernel`], on any thread.
    pub unsafe fn new(kernel: Kernel) -> Blas {
        let function = Function::new(move |call| {
            let (a, b) = (call.inputs[0], call.inputs[1]);
            let size = |dim: i64| i32::try_from(dim).map_err(|_| 1);
            let (m, k, n) = (size(a.shape()[0])?, size(a.shape()[1])?, size(b.shape()[1])?);
            let (a, b) = (a.elems::<f32>().map_err(|_| 2)?, b.elems::<f32>().map_err(|_| 2)?);
            let c = call.outputs[0].elems_mut::<f32>().map_err(|_| 2)?;
            // SAFETY: the shapes of the call are those of its memory, and results overlap with nothing.
            unsafe { kernel(m, n, k, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()) };
            Ok(())
        });
        Blas { function }
    }
}

impl Target for Blas {
    fn name(&self) -> &str {
        "blas"
    }

    fn claim(&self, graph: &Graph, node: &Node) -> bool {
        let Op::Contraction { lhs, rhs, out, dtype: DType::F32, .. } = &node.op else { return false };
        let is_float = node.operands.iter().all(|value| graph.dtype(*value) == DType::F32);
        // A label of both factors that stays is a batch, which the kernel lacks.
        is_float && !out.iter().any(|label| lhs.contains(label) && rhs.contains(label))
    }

    fn concurrency(&self) -> Concurrency {
        Concurrency::Any
    }

    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>> {
        let mut values: HashMap<Value, Value> = HashMap::new();
        for node in part.graph.nodes.values() {
            let operands: Vec<Value> = node.operands.iter().map(|value| values[value]).collect();
            let result = match &node.op {
                Op::Input(number) => part.operands[*number as usize],
                Op::Contraction { lhs, rhs, out, .. } => {
                    self.product(graph, (operands[0], lhs), (operands[1], rhs), out)?
                }
                // Constants and views of them.
                op => graph.push(op.clone(), &operands)?,
            };
            values.insert(node.results[0], result);
        }
        Ok(part.graph.outputs.iter().map(|(_, value)| values[value]).collect())
    }
}

impl Blas {
    fn product(
        &self,
        graph: &mut Graph,
        (a, lhs): (Value, &[Label]),
        (b, rhs): (Value, &[Label]),
        out: &[Label],
    ) -> Result<Value> {
        let (mut sums, mut rows) = (Vec::new(), Vec::new());
        lhs.iter().for_each(|label| if rhs.contains(label) { sums.push(*label) } else { rows.push(*label) });
        let columns: Vec<Label> = rhs.iter().copied().filter(|label| !lhs.contains(label)).collect();
        let size = |labels: &[Label], value: Value, of: &[Label]| -> Vec<Dim> {
            let place = |label: &Label| of.iter().position(|other| other == label).unwrap_or_default();
            labels.iter().map(|label| graph.shape(value)[place(label)].clone()).collect()
        };
        let (m, k, n) = (size(&rows, a, lhs), size(&sums, a, lhs), size(&columns, b, rhs));
        let flat = |dims: &[Dim]| Dim::product(dims.iter().cloned());
        let (rank_m, rank_k, rank_n) = (flat(&m), flat(&k), flat(&n));
        for dim in [&rank_m, &rank_k, &rank_n] {
            if graph.facts.bounds(dim).hi.is_none_or(|most| i32::try_from(most).is_err()) {
                return Err(Error::unsupported(format!("the kernel counts in 32 bits; {dim} can be larger")));
            }
        }
        let a = ordered(graph, a, lhs, &[&rows[..], &sums].concat())?;
        let a = graph.reshape(a, vec![rank_m.clone(), rank_k.clone()])?;
        let b = ordered(graph, b, rhs, &[&sums[..], &columns].concat())?;
        let b = graph.reshape(b, vec![rank_k, rank_n.clone()])?;
        let callee = Callee { function: Some(self.function.clone()), ..Callee::new("blas_sgemm") };
        let results = vec![Type { dtype: DType::F32, shape: vec![rank_m, rank_n] }];
        let c = graph.push(Op::Call { callee, results, scratch: Dim::zero() }, &[a, b])?;
        let c = graph.reshape(c, [m, n].concat())?;
        ordered(graph, c, &[&rows[..], &columns].concat(), out)
    }
}

/// The value with its axes, whose labels are `have`, in the order `want`.
fn ordered(graph: &mut Graph, value: Value, have: &[Label], want: &[Label]) -> Result<Value> {
    let place = |label: &Label| have.iter().position(|other| other == label);
    let order: Option<Vec<usize>> = want.iter().map(place).collect();
    graph.transpose(value, &order.ok_or_else(|| Error::internal("a label of no factor"))?)
}
