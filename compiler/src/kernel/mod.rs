//! The kernel IR: a small structured language of loops over flat buffers, with two vectorisable leaves.
//!
//! A [`Program`] is a list of kernels that run one after another. A kernel is a list of statements: loops with symbolic
//! extents, straight-line scalar [`InstSeq`], and the two leaves, [`Stmt::Strip`] (one inner loop over a straight-line
//! body) and [`Stmt::Contraction`] (a sum of products with an epilogue). Elements are addressed by flat element indices:
//! expressions over the model's symbols, the variables of the loops around, and symbols bound to integers that were
//! loaded. Every loop variable has a name of its own within its kernel. Branches and loops over whole kernels are
//! regions of the list, see [`Control`]; runs of kernels that are one step of the artefact's table are a [`Partition`].
//!
//! [`verify`] says what must hold, [`text`] prints and reads, [`eval`] interprets: the oracle of everything below.

pub mod contract;
pub mod cost;
pub mod data_dependent;
pub mod dependences;
pub mod eval;
pub mod inner_divisions;
mod memory;
mod microkernels;
pub mod partition;
mod sliding_windows;
pub mod text;
pub mod tiles;
pub mod verify;
pub mod walk;

pub use data_dependent::{DataDependent, at_upper_bounds, upper_bound};
pub use memory::{Buffer, Device, MemorySpace};
pub use microkernels::MicrokernelSupport;
pub use partition::{Partition, Policies};
pub(crate) use sliding_windows::SlidingWindows;

use crate::{
    external::Callee,
    scalar::{BinaryOp, CompareOp, Precision, ReduceOp, Reg, Scalar, UnaryOp},
};
use cranelift_entity::{PrimaryMap, entity_impl};
use symshape::{Assumption, Dim, Facts, Symbol};
use symshape_runtime::DType;

/// A buffer of a [`Program`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u32);
entity_impl!(BufferId, "@");

/// A scalar variable of a [`Kernel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Local(u32);
entity_impl!(Local, "local");

/// An input or output of the program: dense, row-major.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// Its shape.
    pub shape: Vec<Dim>,
    /// Its memory, in space `Input` or `Output`.
    pub buffer: BufferId,
}

/// An element of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Which buffer.
    pub buffer: BufferId,
    /// Flat index of the element.
    pub index: Dim,
}

/// A run-time condition that ends the call with a typed error when it is broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The integer that is looked at.
    pub value: Reg,
    /// Lowest value allowed.
    pub lo: Dim,
    /// Lowest value that is too large.
    pub end: Dim,
    /// The node and axis concerned, for the message.
    pub context: String,
}

/// One instruction of [`InstSeq`]; operands are earlier instructions' results, `Reg(i)` being that of instruction `i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inst {
    /// A constant.
    Const(Scalar),
    /// The value of an index expression, as this integer type.
    Index(DType, Dim),
    /// An element.
    Load(Access),
    /// From here on, within the statement and those nested in or following it, the symbol stands for this `i64`.
    Bind(Symbol, Reg),
    /// The sum of a contraction; only in its epilogue.
    Sum,
    /// The value of a scalar variable.
    Get(Local),
    /// Sets a scalar variable; not in strips.
    Set(Local, Reg),
    /// See [`UnaryOp`].
    Unary(UnaryOp, Reg),
    /// See [`BinaryOp`].
    Binary(BinaryOp, Reg, Reg),
    /// See [`CompareOp`].
    Compare(CompareOp, Reg, Reg),
    /// The second where the first holds, else the third.
    Select(Reg, Reg, Reg),
    /// See [`crate::scalar::Step::Cast`].
    Cast(DType, Reg),
    /// See [`crate::scalar::Step::Bits`].
    Bits(DType, Reg),
    /// Puts a value into memory.
    Store(Access, Reg),
    /// Combines a value over all iterations of the strip, from the combination's neutral value; after the strip the
    /// variable holds the result. Only in strips.
    Reduce(ReduceOp, Reg, Local),
    /// See [`Check`].
    Check(Check),
}

impl Inst {
    /// Whether later instructions may use its register.
    pub fn has_result(&self) -> bool {
        !matches!(self, Inst::Bind(..) | Inst::Set(..) | Inst::Store(..) | Inst::Reduce(..) | Inst::Check(_))
    }

    /// The registers that it reads.
    pub fn operands(&self) -> Vec<Reg> {
        match self {
            Inst::Const(_) | Inst::Index(..) | Inst::Load(_) | Inst::Sum | Inst::Get(_) => Vec::new(),
            Inst::Bind(_, x) | Inst::Set(_, x) | Inst::Unary(_, x) => vec![*x],
            Inst::Cast(_, x) | Inst::Bits(_, x) => vec![*x],
            Inst::Store(_, x) | Inst::Reduce(_, x, _) => vec![*x],
            Inst::Binary(_, x, y) | Inst::Compare(_, x, y) => vec![*x, *y],
            Inst::Select(c, x, y) => vec![*c, *x, *y],
            Inst::Check(check) => vec![check.value],
        }
    }

    /// The instruction with other registers for those that it reads.
    #[must_use]
    pub fn with_operands(&self, of: &dyn Fn(Reg) -> Reg) -> Inst {
        match self {
            Inst::Const(_) | Inst::Index(..) | Inst::Load(_) | Inst::Sum | Inst::Get(_) => self.clone(),
            Inst::Bind(symbol, x) => Inst::Bind(symbol.clone(), of(*x)),
            Inst::Set(local, x) => Inst::Set(*local, of(*x)),
            Inst::Unary(op, x) => Inst::Unary(*op, of(*x)),
            Inst::Cast(dtype, x) => Inst::Cast(*dtype, of(*x)),
            Inst::Bits(dtype, x) => Inst::Bits(*dtype, of(*x)),
            Inst::Store(access, x) => Inst::Store(access.clone(), of(*x)),
            Inst::Reduce(op, x, local) => Inst::Reduce(*op, of(*x), *local),
            Inst::Binary(op, x, y) => Inst::Binary(*op, of(*x), of(*y)),
            Inst::Compare(op, x, y) => Inst::Compare(*op, of(*x), of(*y)),
            Inst::Select(c, x, y) => Inst::Select(of(*c), of(*x), of(*y)),
            Inst::Check(check) => Inst::Check(Check { value: of(check.value), ..check.clone() }),
        }
    }
}

/// A sequence of instructions without control flow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InstSeq {
    /// In order.
    pub insts: Vec<Inst>,
}

impl InstSeq {
    /// Appends an instruction and returns its result.
    pub fn push(&mut self, inst: Inst) -> Reg {
        self.insts.push(inst);
        Reg(self.insts.len() as u32 - 1)
    }
}

/// A loop variable and how far it runs: `0..extent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// The variable.
    pub var: Symbol,
    /// Number of iterations; zero and less mean none.
    pub extent: Dim,
}

/// The right-hand side of a contraction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rhs {
    /// Addressed by the column and reduction variables.
    Indexed(Access),
    /// A constant, or scratch memory, packed into panels of `width` columns: element `(k, n)`, `k` being the row-major index over the
    /// reduction axes, lies at `base + ((n / width) * K + k) * width + n % width`; the last panel is filled up with anything.
    Panels {
        /// The packed constant.
        buffer: BufferId,
        /// Element where the first panel begins, an expression over the variables of the loops around.
        base: Dim,
        /// Columns of a panel.
        width: u32,
    },
}

/// `for m, n { sum = Σ over k of lhs * rhs; epilogue }`: the sum runs over the axes `k` in row-major order, rows and
/// columns in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contraction {
    /// Rows, outermost axis first; never empty. Tiles are cut along the last one.
    pub m: Vec<Axis>,
    /// Columns.
    pub n: Axis,
    /// Reduction axes, outermost first.
    pub k: Vec<Axis>,
    /// Addressed by the row and reduction variables.
    pub lhs: Access,
    /// The other factor.
    pub rhs: Rhs,
    /// Type of the sum, which the factors are converted to.
    pub dtype: DType,
    /// How `f32` are multiplied, at least so precisely, where the sum is one.
    pub precision: Precision,
    /// Scratch memory in which leaves may lay out parts of the factors as suits them.
    pub pack_buffer: Option<BufferId>,
    /// What is done with [`Inst::Sum`] for each row and column; addressed by their variables.
    pub epilogue: InstSeq,
}

impl Contraction {
    /// Numbers that are multiplied for each row and column.
    pub fn depth(&self) -> Dim {
        self.k.iter().fold(Dim::one(), |depth, axis| depth * &axis.extent)
    }

    /// Rows, of all its axes.
    pub fn rows(&self) -> Dim {
        self.m.iter().fold(Dim::one(), |rows, axis| rows * &axis.extent)
    }
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stmt {
    /// A loop.
    For {
        /// Its variable and extent.
        axis: Axis,
        /// Iterations are independent and may run at once.
        parallel: bool,
        /// What is done in each.
        body: Vec<Stmt>,
    },
    /// Scalar code, run once.
    Block(InstSeq),
    /// A loop of straight-line code whose iterations are independent but for reductions.
    Strip {
        /// Its variable and extent.
        axis: Axis,
        /// What is done in each.
        code: InstSeq,
    },
    /// A contraction.
    Contraction(Box<Contraction>),
    /// Two ways.
    If {
        /// A bool variable.
        cond: Local,
        /// Where it holds.
        then: Vec<Stmt>,
        /// Where it doesn't.
        otherwise: Vec<Stmt>,
    },
    /// Repeats `body` as long as the bool variable holds, which is looked at before each round.
    While {
        /// The variable.
        cond: Local,
        /// What is repeated.
        body: Vec<Stmt>,
    },
}

/// A tensor that a function outside of the compiler is handed: dense and row-major from `first` on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument {
    /// Its first element.
    pub first: Access,
    /// Its shape.
    pub shape: Vec<Dim>,
}

impl Argument {
    /// Number of its elements.
    pub fn elems(&self) -> Dim {
        Dim::product(self.shape.iter().cloned())
    }
}

/// A call of a function outside of the compiler.
#[derive(Clone, Debug)]
pub struct ExternalCall {
    /// The function.
    pub callee: Callee,
    /// What it reads.
    pub operands: Vec<Argument>,
    /// What it writes, all of it: tensors that touch neither one another nor an operand.
    pub results: Vec<Argument>,
    /// Memory that nobody else uses meanwhile.
    pub scratch: Option<BufferId>,
    /// The node concerned, for the message of a failure.
    pub context: String,
}

/// What steers the kernels around it, or leaves the program; regions nest.
#[derive(Clone, Debug)]
pub enum Control {
    /// The kernels up to the matching `Else` or `End` run if element 0 of this bool buffer holds.
    If(BufferId),
    /// What follows, up to the matching `End`, runs if the condition does not hold.
    Else,
    /// The kernels up to the matching `End` run as long as element 0 of this bool buffer holds, which is looked at
    /// before each round.
    While(BufferId),
    /// Ends a region.
    End,
    /// From here on, until it is bound again, a symbol of [`Program::data_dependent`] has the value of element 0 of an `i64` buffer.
    Bind {
        /// Which symbol.
        symbol: Symbol,
        /// Where its value is.
        from: BufferId,
        /// Lowest value allowed; any other ends the call with a typed error.
        lo: Dim,
        /// Lowest value that is too large.
        end: Dim,
        /// The node concerned, for the message.
        context: String,
    },
    /// A relation that must hold where control gets here.
    Require(Assumption),
    /// A function outside of the compiler runs; a failure of it ends the call with a typed error.
    Call(Box<ExternalCall>),
    /// Control never gets here but for the reason given: the call ends with a typed error.
    Fail(String),
}

impl Control {
    /// The buffers that it reads, and those that it writes.
    pub fn touched(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        match self {
            Control::If(cell) | Control::While(cell) | Control::Bind { from: cell, .. } => {
                (vec![*cell], Vec::new())
            }
            Control::Call(call) => {
                let of = |arguments: &[Argument]| arguments.iter().map(|one| one.first.buffer).collect();
                let mut written: Vec<BufferId> = of(&call.results);
                written.extend(call.scratch);
                (of(&call.operands), written)
            }
            Control::Else | Control::End | Control::Require(_) | Control::Fail(_) => (Vec::new(), Vec::new()),
        }
    }
}

/// One step of a program.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// For people: the kind of work and the node it comes from.
    pub name: String,
    /// Steers other kernels; such a kernel has no body.
    pub control: Option<Control>,
    /// Types of its scalar variables.
    pub locals: PrimaryMap<Local, DType>,
    /// What it does.
    pub body: Vec<Stmt>,
}

impl Kernel {
    /// A kernel that steers others.
    pub fn control(name: impl Into<String>, control: Control) -> Kernel {
        Kernel { name: name.into(), control: Some(control), ..Kernel::default() }
    }
}

impl Program {
    /// The functions outside of the compiler that it calls, by name; each once.
    pub fn callees(&self) -> Vec<&Callee> {
        let mut callees: Vec<&Callee> = self
            .kernels
            .iter()
            .filter_map(|kernel| match &kernel.control {
                Some(Control::Call(call)) => Some(&call.callee),
                _ => None,
            })
            .collect();
        callees.sort_by(|a, b| a.symbol.cmp(&b.symbol));
        callees.dedup_by(|a, b| a.symbol == b.symbol);
        callees
    }

    /// All symbols that kernels may use: the model's, then those found while running, in the order of the frame.
    pub fn all_symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().chain(self.data_dependent.iter().map(|found| &found.symbol))
    }

    /// For each `While` its place and that of its `End`, inner loops first.
    pub fn rounds(&self) -> Vec<(usize, usize)> {
        let (mut open, mut rounds) = (Vec::new(), Vec::new());
        for (idx, kernel) in self.kernels.iter().enumerate() {
            match &kernel.control {
                Some(control @ (Control::If(_) | Control::While(_))) => {
                    open.push((idx, matches!(control, Control::While(_))));
                }
                Some(Control::End) => {
                    if let Some((begin, true)) = open.pop() {
                        rounds.push((begin, idx));
                    }
                }
                _ => {}
            }
        }
        rounds
    }
}

/// A whole model, lowered.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// A C identifier.
    pub name: String,
    /// The model's symbols in the order of the ABI's `dims`.
    pub symbols: Vec<Symbol>,
    /// Symbols whose values are found while running; sizes of buffers don't depend on them.
    pub data_dependent: Vec<DataDependent>,
    /// What is known about all symbols.
    pub facts: Facts,
    /// Memories besides the machine's.
    pub devices: Vec<Device>,
    /// All memory.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// What its leaves will become.
    pub microkernels: MicrokernelSupport,
    /// How contractions of `f32` multiply on machines that do better by it; others multiply `f32`.
    pub precision: Precision,
    /// Copies of each scratch buffer: how many shares of a kernel that uses any may run at once. Zero means one.
    pub workers: u32,
    /// The inputs in order.
    pub inputs: Vec<Port>,
    /// The outputs in order.
    pub outputs: Vec<Port>,
    /// The kernels in the order in which they run.
    pub kernels: Vec<Kernel>,
    /// The steps of the artefact's table, together all kernels in their order; empty where there is no table.
    pub partitions: Vec<Partition>,
    /// What memory is planned for.
    pub policies: Policies,
}

/// The copies of a scratch buffer lie at multiples of this many bytes: workers share no cache line.
pub const COPY_ALIGN_BYTES: i64 = 64;

impl Program {
    /// Bytes of a buffer, all copies of it.
    pub fn bytes(&self, buffer: BufferId) -> Dim {
        match (&self.buffers[buffer].space, self.workers) {
            (MemorySpace::Scratch, 2..) => self.copy_bytes(buffer) * i64::from(self.workers),
            _ => self.buffers[buffer].bytes(),
        }
    }

    /// Bytes of all constants.
    pub fn const_bytes(&self) -> i64 {
        let bytes = self.buffers.values().map(|buffer| match &buffer.space {
            MemorySpace::Const(tensor) => tensor.bytes().len() as i64,
            _ => 0,
        });
        bytes.sum()
    }

    /// Bytes from one copy of a scratch buffer to the next.
    pub fn copy_bytes(&self, buffer: BufferId) -> Dim {
        let bytes = self.buffers[buffer].bytes().max(Dim::zero());
        self.facts.simplify(&(bytes.ceil_div(COPY_ALIGN_BYTES) * COPY_ALIGN_BYTES))
    }
}
