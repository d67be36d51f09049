//! Several devices: costs of their calls, and limits of calls at once.
//!
//! The simulated devices count the calls inside them. A call may wait for another one, so a test that expects both at
//! once fails by a timeout, and never passes or fails by the speed of the machine.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions, Result,
    external::Callee,
    graph::{Graph, Node, Op, Value, eval::eval},
    kernel::{CallLimit, ExternalCall, Policies, Program, verify},
    offload::{CallCost, Concurrency, Subgraph, Target},
    partition::Count,
    pipeline::{Lowered, Pipeline},
    scalar::{Step, UnaryOp},
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, Model, Policy, TensorMut, TensorRef, external::Function};

/// The longest time that a call waits for another one.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts the calls inside some devices.
#[derive(Default)]
struct Visits {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    inside: usize,
    most: usize,
    all: usize,
}

impl Visits {
    /// Enters, and stays until `wanted` calls have been inside at once.
    fn enter(&self, wanted: usize) {
        let mut counts = self.counts.lock().expect("no panic inside");
        counts.inside += 1;
        counts.all += 1;
        counts.most = counts.most.max(counts.inside);
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(counts, PATIENCE, |counts| counts.most < wanted);
        drop(waited.expect("no panic inside"));
        // Time for other threads to enter, if they may.
        std::thread::sleep(Duration::from_millis(2));
        self.counts.lock().expect("no panic inside").inside -= 1;
    }

    fn take(&self) -> Counts {
        std::mem::take(&mut self.counts.lock().expect("no panic inside"))
    }
}

/// A device that computes the exponentials of the nodes that have its name as origin.
struct Device {
    name: &'static str,
    concurrency: Concurrency,
    cost: Option<CallCost>,
    visits: Arc<Visits>,
    /// The number of calls inside at once that each call waits for.
    wanted: usize,
}

impl Device {
    fn new(name: &'static str, visits: &Arc<Visits>) -> Device {
        Device { name, concurrency: Concurrency::One, cost: None, visits: visits.clone(), wanted: 1 }
    }
}

impl Target for Device {
    fn name(&self) -> &str {
        self.name
    }

    fn claim(&self, _: &Graph, node: &Node) -> bool {
        let is_exp =
            |op: &Op| matches!(op, Op::Map(body) if matches!(body.steps[..], [Step::Unary(UnaryOp::Exp, _)]));
        is_exp(&node.op) && node.origin == self.name
    }

    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>> {
        let visits = self.visits.clone();
        let wanted = self.wanted;
        let function = Function::new(move |call| {
            visits.enter(wanted);
            let x = call.inputs[0].elems::<f32>().map_err(|_| 1)?;
            let y = call.outputs[0].elems_mut::<f32>().map_err(|_| 1)?;
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x.exp());
            Ok(())
        });
        let mut values: HashMap<Value, Value> = HashMap::new();
        for node in part.graph.nodes.values() {
            let operands: Vec<Value> = node.operands.iter().map(|value| values[value]).collect();
            let result = match &node.op {
                Op::Input(number) => part.operands[*number as usize],
                Op::Map(_) => {
                    let callee = Callee { function: Some(function.clone()), ..Callee::new("device_exp") };
                    let results = vec![part.graph.ty(node.results[0]).clone()];
                    graph.push(Op::Call { callee, results, scratch: Dim::zero() }, &operands)?
                }
                op => graph.push(op.clone(), &operands)?,
            };
            values.insert(node.results[0], result);
        }
        Ok(part.graph.outputs.iter().map(|(_, value)| values[value]).collect())
    }

    fn concurrency(&self) -> Concurrency {
        self.concurrency
    }

    fn cost(&self, _: &ExternalCall, _: &Program) -> Option<CallCost> {
        self.cost.clone()
    }
}

/// Branches from `x`, one for each name, which end in a sum. Each has an exponential with the branch's name as origin.
fn branches(names: &[&str]) -> Graph {
    let build = || -> Result<Graph> {
        let mut g = Graph { name: "branches".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 9))?;
        let x = g.input("x", DType::F32, vec![n, 5.into()])?;
        let mut sum = x;
        for (idx, name) in names.iter().enumerate() {
            let factor =
                g.constant(Tensor::from_f32(vec![5], &[0.1 * (idx + 1) as f32; 5]).expect("sized"))?;
            g.origin = "before".into();
            let y = g.mul(x, factor)?;
            g.origin = name.to_string();
            let y = g.exp(y)?;
            g.origin = "after".into();
            sum = g.add(sum, y)?;
        }
        g.output("y", sum)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

fn lowered(graph: &Graph, devices: Vec<Device>) -> Lowered {
    let targets: Vec<Arc<dyn Target>> =
        devices.into_iter().map(|device| Arc::new(device) as Arc<dyn Target>).collect();
    let options = CompileOptions::default().partitions(Count::Auto).policies(Policies::Any);
    Pipeline::new(graph).targets(&targets).options(options).lower().expect("supported")
}

fn input(rows: usize) -> Vec<f32> {
    (0..rows * 5).map(|idx| (idx % 7) as f32 / 8.0 - 0.4).collect()
}

fn check(graph: &Graph, rows: usize, actual: &[f32]) {
    let x = Tensor::from_f32(vec![rows, 5], &input(rows)).expect("sized");
    let expected = eval(graph, &[x]).expect("a result");
    assert_eq!(actual.len(), expected[0].elems());
    for (idx, actual) in actual.iter().enumerate() {
        let expected = expected[0].get(idx).as_f64();
        assert!((f64::from(*actual) - expected).abs() < 1e-4, "[{idx}]: {actual}, not {expected}");
    }
}

/// Calls the model by this policy, at the edges of the range.
fn run(graph: &Graph, model: &Model, threads: u32, policy: Policy) {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    context.set_policy(policy);
    for rows in [1, 2, 5, 8, 9] {
        let x = input(rows);
        let outputs = context.run_views(&[TensorRef::new(&[rows, 5], &x).expect("sized")]);
        check(graph, rows, outputs.expect("success").get(0).elems::<f32>().expect("floats"));
    }
}

/// Calls the model once: each of three threads takes any entry that is ready.
fn run_own_driver(graph: &Graph, model: &Model) {
    let mut context = Context::new(model).expect("memory");
    let (x, mut y) = (input(9), vec![0_f32; 45]);
    let inputs = [TensorRef::new(&[9, 5], &x).expect("sized")];
    context
        .run_steps(&inputs, &mut [TensorMut::new(&mut y)], |steps| {
            let left = AtomicUsize::new(steps.len());
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while left.load(Ordering::Acquire) > 0 {
                            let mut ready = (0..steps.len()).filter(|number| steps.is_ready(*number));
                            if ready.any(|number| steps.run(number).is_ok()) {
                                left.fetch_sub(1, Ordering::AcqRel);
                            }
                        }
                    });
                }
            });
        })
        .expect("success");
    check(graph, 9, &y);
}

/// The number of calls that were inside at once under the default policy, with two devices of this cost.
fn most_at_once(cost: &CallCost, wanted: usize) -> usize {
    let graph = branches(&["left", "right"]);
    let visits = Arc::new(Visits::default());
    let device = |name| Device { cost: Some(cost.clone()), wanted, ..Device::new(name, &visits) };
    let lowered = lowered(&graph, vec![device("left"), device("right")]);
    run(&graph, &lowered.jit().expect("supported"), 2, Policy::Auto);
    visits.take().most
}

#[test]
fn slow_calls_of_two_devices_run_at_once_by_default() {
    assert_eq!(most_at_once(&CallCost::nanoseconds(10_000_000), 2), 2);
    let symbol = Dim::from(&symshape::Symbol::new("N"));
    assert_eq!(most_at_once(&CallCost::at_rate(symbol * 1_000_000, 100_000_000), 2), 2);
}

#[test]
fn fast_calls_of_two_devices_run_in_order_by_default() {
    assert_eq!(most_at_once(&CallCost::nanoseconds(100), 1), 1);
}

#[test]
fn the_cost_decides_at_the_size_of_the_call() {
    // 10 ns at N = 1, 1 ms at N = 9.
    let n = Dim::from(&symshape::Symbol::new("N"));
    let cost = CallCost::nanoseconds((n.clone() - Dim::from(8)).max(Dim::zero()) * 1_000_000 + n * 10);
    let graph = branches(&["left", "right"]);
    let visits = Arc::new(Visits::default());
    let device = |name| Device { cost: Some(cost.clone()), ..Device::new(name, &visits) };
    let model = lowered(&graph, vec![device("left"), device("right")]).jit().expect("supported");
    let costs = |rows: i64| -> Vec<i64> {
        let of = |number| model.partition_cost(number, &[rows], 1).expect("an entry");
        let partitions = model.partitions().iter().enumerate();
        partitions.filter(|(_, entry)| entry.target() != "cpu").map(|(number, _)| of(number)).collect()
    };
    assert!(costs(1).iter().all(|work| *work < 1_000), "{:?}", costs(1));
    assert!(costs(9).iter().all(|work| *work > 10_000_000), "{:?}", costs(9));
}

const NAMES: [&str; 5] = ["one"; 5];

/// The largest numbers of calls inside at once: by the parallel policy, and by the caller's own driver.
fn most_inside(concurrency: Concurrency, wanted: usize) -> [usize; 2] {
    let graph = branches(&NAMES);
    let visits = Arc::new(Visits::default());
    let cost = Some(CallCost::nanoseconds(5_000_000));
    let device = Device { concurrency, cost, wanted, ..Device::new("one", &visits) };
    let lowered = lowered(&graph, vec![device]);
    let model = lowered.jit().expect("supported");

    run(&graph, &model, 3, Policy::Parallel);
    let parallel = visits.take();
    assert_eq!(parallel.all, 5 * NAMES.len(), "each branch calls the device once in each of five calls");
    run_own_driver(&graph, &model);
    let own = visits.take();
    assert_eq!(own.all, NAMES.len());
    [parallel.most, own.most]
}

#[test]
fn no_driver_enters_an_exclusive_device_twice() {
    assert_eq!(most_inside(Concurrency::One, 1), [1, 1]);
}

#[test]
fn two_calls_at_once_are_used_and_never_exceeded() {
    assert_eq!(most_inside(Concurrency::AtMost(NonZeroU32::new(2).expect("not zero")), 2), [2, 2]);
}

#[test]
fn any_number_of_calls_may_run_at_once() {
    assert_eq!(most_inside(Concurrency::Any, 3), [3, 3]);
}

#[test]
fn the_table_tells_own_drivers_how_many_calls_may_run_at_once() {
    let graph = branches(&["one", "two", "one", "many", "many"]);
    let visits = Arc::new(Visits::default());
    let two = Concurrency::AtMost(NonZeroU32::new(2).expect("not zero"));
    let cost = || Some(CallCost::nanoseconds(5_000_000));
    let device = |name, concurrency| Device { concurrency, cost: cost(), ..Device::new(name, &visits) };
    let devices = vec![device("one", Concurrency::One), device("two", two), device("many", Concurrency::Any)];
    let lowered = lowered(&graph, devices);
    let model = lowered.jit().expect("supported");
    for entry in model.partitions() {
        let expected = match entry.target() {
            "one" => Some(1),
            "two" => Some(2),
            _ => None,
        };
        assert_eq!(entry.at_once().map(NonZeroU32::get), expected, "{}", entry.name());
    }
    let text = lowered.program.to_string();
    let parsed = symshape_compiler::kernel::text::parse(&text).expect("the printed text");
    assert_eq!(parsed.to_string(), text);
}

#[test]
fn a_table_that_breaks_a_limit_is_refused() {
    let graph = branches(&["one", "one"]);
    let visits = Arc::new(Visits::default());
    let cost = Some(CallCost::nanoseconds(5_000_000));
    let concurrency = Concurrency::Any;
    let device = Device { cost, concurrency, ..Device::new("one", &visits) };
    let mut program = lowered(&graph, vec![device]).program;
    verify::verify(&program).expect("a valid program");
    program.call_limits = vec![CallLimit { target: "one".into(), at_once: NonZeroU32::MIN }];
    let error = verify::verify(&program).expect_err("both may run at once").to_string();
    assert!(error.contains("2 partitions can call one at once, which allows 1"), "{error}");
}

#[test]
fn a_cost_with_an_unknown_symbol_names_it() {
    let graph = branches(&["left"]);
    let visits = Arc::new(Visits::default());
    let cost = Some(CallCost::nanoseconds(Dim::from(&symshape::Symbol::new("K"))));
    let targets: Vec<Arc<dyn Target>> = vec![Arc::new(Device { cost, ..Device::new("left", &visits) })];
    let error = Pipeline::new(&graph).targets(&targets).lower().expect_err("no such symbol").to_string();
    let expected = "target left: left: the cost of device_exp contains K, which is not a symbol of the model; use the dims \
                    of the call's arguments";
    assert_eq!(error, expected);
}
