//! Finds hot loops that have no vector form, with the reason.
//!
//! A loop is hot if it is more than a small part of the estimated work of a program at the upper bounds of its symbols.
//! The code generator decides which loops have a vector form; this module repeats its decisions without emitting code.

use super::{
    strip_call::StripCall,
    tiles::{self, Isa},
};
use crate::{
    codegen::vector::{VectorIsa, X86},
    kernel::{
        Axis, Contraction, InstSeq, Kernel, Program, Stmt, cost,
        lanes::{accumulator_type, epilogue_form, strip_obstacle},
    },
};
use std::fmt::{self, Display, Formatter};
use symshape::Facts;

/// Loops below this share of the work are not listed.
const MIN_SHARE: f64 = 0.02;

/// A loop without a vector form.
#[derive(Clone, PartialEq, Debug)]
pub struct ScalarLoop {
    /// Name of its kernel.
    pub kernel: String,
    /// `contraction`, `strip` or `loop`.
    pub form: &'static str,
    /// Its share of the estimated work of the program.
    pub share: f64,
    /// Why it has no vector form.
    pub reason: String,
}

impl Display for ScalarLoop {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ScalarLoop { kernel, form, share, reason } = self;
        let percent = 100.0 * share;
        write!(f, "scalar {form}, about {percent:.0} % of the work, in {kernel}: {reason}")
    }
}

/// The hot loops of a program that have no vector form, the one with the most work first.
pub fn scalar_loops(program: &Program) -> Vec<ScalarLoop> {
    let vectors: &dyn VectorIsa = &X86::AVX2;
    let isa = Isa::from(vectors);
    let mut total = 0.0;
    let mut found = Vec::new();
    for kernel in &program.kernels {
        let mut search = Search { program, kernel, isa: &isa, total: 0.0, found: Vec::new() };
        search.statements(&program.facts, 1.0, &kernel.body);
        total += search.total;
        found.extend(search.found);
    }

    found.iter_mut().for_each(|found: &mut ScalarLoop| found.share /= total);
    found.retain(|found| found.share >= MIN_SHARE);
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

/// The search in one kernel.
struct Search<'a> {
    program: &'a Program,
    kernel: &'a Kernel,
    isa: &'a Isa,
    /// The work so far.
    total: f64,
    /// The loops so far, with their work in place of their share.
    found: Vec<ScalarLoop>,
}

impl Search<'_> {
    /// Searches statements that run `times` times.
    fn statements(&mut self, facts: &Facts, times: f64, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::For { axis, body, .. } => self.iterations(facts, times, axis, body),
                Stmt::Strip { axis, code } => self.strip(facts, times, axis, code),
                Stmt::Contraction(contraction) => self.contraction(facts, times, contraction),
                Stmt::Block(code) => self.total += times * scalar_work(code),
                Stmt::If { then, otherwise, .. } => {
                    self.statements(facts, times, then);
                    self.statements(facts, times, otherwise);
                }
                Stmt::While { body, .. } => self.statements(facts, times, body),
            }
        }
    }

    fn iterations(&mut self, facts: &Facts, times: f64, axis: &Axis, body: &[Stmt]) {
        let times = times * cost::most_iterations(facts, &axis.extent);
        let mut facts = facts.clone();
        facts.declare_index(&axis.var, &axis.extent);
        // One call of a microkernel runs such rows.
        let rows = StripCall::recognise(self.program, self.kernel, &facts, Some(axis), body);
        if rows.is_some() {
            self.total += times * cost::at_most(&facts, body);
            return;
        }

        let blocks: Option<Vec<&InstSeq>> = body
            .iter()
            .map(|stmt| match stmt {
                Stmt::Block(code) => Some(code),
                _ => None,
            })
            .collect();
        match blocks {
            Some(blocks) => {
                let work = blocks.into_iter().map(scalar_work).sum::<f64>();
                let reason = "its iterations may depend on each other";
                self.add("loop", times * work, reason.to_string());
            }
            None => self.statements(&facts, times, body),
        }
    }

    fn strip(&mut self, facts: &Facts, times: f64, axis: &Axis, code: &InstSeq) {
        let times = times * cost::most_iterations(facts, &axis.extent);
        let mut facts = facts.clone();
        facts.declare_index(&axis.var, &axis.extent);
        match strip_obstacle(self.program, self.kernel, &facts, axis, code) {
            None => self.total += times * cost::steps(code) as f64,
            Some(obstacle) => self.add("strip", times * scalar_work(code), obstacle.to_string()),
        }
    }

    fn contraction(&mut self, facts: &Facts, times: f64, contraction: &Contraction) {
        let mut inner = facts.clone();
        let mut elems = times;
        for axis in contraction.m.iter().chain([&contraction.n]) {
            elems *= cost::most_iterations(&inner, &axis.extent);
            inner.declare_index(&axis.var, &axis.extent);
        }
        let mut depth = 1.0;
        for axis in &contraction.k {
            depth *= cost::most_iterations(&inner, &axis.extent);
            inner.declare_index(&axis.var, &axis.extent);
        }

        let work = elems * (depth + cost::steps(&contraction.epilogue) as f64);
        if tiles::has_plan(self.program, self.kernel, facts, contraction, self.isa) {
            self.total += work;
            return;
        }
        let operand = self.program.buffers[contraction.lhs.buffer].dtype;
        let has_accumulators = accumulator_type(self.program, contraction).is_some();
        let reason = match epilogue_form(self.program, self.kernel, &inner, contraction) {
            _ if !has_accumulators => format!("it multiplies {operand}"),
            Err(obstacle) => format!("its epilogue: {obstacle}"),
            Ok(_) => "it reads an operand at addresses that are not linear".to_string(),
        };
        self.add("contraction", work * cost::IN_BLOCK as f64, reason);
    }

    /// Adds a loop with this work.
    fn add(&mut self, form: &'static str, work: f64, reason: String) {
        self.total += work;
        self.found.push(ScalarLoop { kernel: self.kernel.name.clone(), form, share: work, reason });
    }
}

fn scalar_work(code: &InstSeq) -> f64 {
    (cost::steps(code) * cost::IN_BLOCK) as f64
}
