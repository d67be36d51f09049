//! Plans: instances of fixed sizes, and programs with symbolic ones.

use proptest::prelude::*;
use std::collections::BTreeMap;
use symshape::{Declaration, Dim, Symbol};
use symshape_compiler::{
    ErrorKind,
    kernel::{
        Access, Axis, Buffer, BufferId, Device, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, text,
    },
    plan::{
        self, Plan, arena_formula,
        problem::{Budget, BufferInterval, Solution, read_csv, solve},
        verify::verify,
    },
    scalar::Scalar,
};
use symshape_runtime::DType;

fn assert_valid(items: &[BufferInterval], solution: &Solution) {
    let end = |idx: usize| solution.offsets[idx] + items[idx].size;
    for a in 0..items.len() {
        assert!(solution.offsets[a] >= 0 && end(a) <= solution.height);
        for b in 0..a {
            let apart = end(a) <= solution.offsets[b] || end(b) <= solution.offsets[a];
            assert!(apart || !items[a].overlaps(&items[b]), "{:?} and {:?}", items[a], items[b]);
        }
    }
    let live = |time: i64| -> i64 {
        items.iter().filter(|item| item.start <= time && time < item.end).map(|item| item.size).sum()
    };
    let max_live = items.iter().map(|item| live(item.start)).max().unwrap_or(0);
    assert!(max_live <= solution.lower_bound && solution.lower_bound <= solution.height);
}

/// Items that fill `height` over `span` without a gap: a rectangle cut in two again and again, along time or size.
fn cut(span: (i64, i64), height: i64, pieces: usize, seed: &mut u64, items: &mut Vec<BufferInterval>) {
    let mut random = |below: i64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*seed >> 33) as i64) % below
    };
    let (length, along_time) = (span.1 - span.0, random(2) == 0);
    if pieces < 2 || length < 2 || height < 2 {
        let id = items.len().to_string();
        items.push(BufferInterval { id, start: span.0, end: span.1, size: height });
        return;
    }
    let first = pieces / 2;
    if along_time {
        let at = span.0 + 1 + random(length - 1);
        cut((span.0, at), height, first, seed, items);
        cut((at, span.1), height, pieces - first, seed, items);
    } else {
        let low = 1 + random(height - 1);
        cut(span, low, first, seed, items);
        cut(span, height - low, pieces - first, seed, items);
    }
}

#[test]
fn packings_without_a_gap_are_found() {
    for seed in 1..=8 {
        let (mut items, mut random) = (Vec::new(), seed);
        cut((0, 200), 1 << 20, 40, &mut random, &mut items);
        let solution = solve(&items, &Budget { steps: 500_000, seconds: None });
        assert_valid(&items, &solution);
        assert_eq!(solution.lower_bound, 1 << 20);
        // The search is bounded, but must not end far above a height that is known to be possible.
        assert!(solution.height <= (1 << 20) * 11 / 10, "seed {seed}: {}", solution.height);
    }
}

#[test]
fn sections_that_fail_are_filled_first() {
    // Without the weights of failures, the third needs more steps.
    for seed in 1..=8 {
        let (mut items, mut random) = (Vec::new(), seed);
        cut((0, 200), 1 << 20, 200, &mut random, &mut items);
        let solution = solve(&items, &Budget { steps: 30_000, seconds: None });
        assert_valid(&items, &solution);
        assert!(solution.is_optimal(), "seed {seed}: {}", solution.height);
    }
}

#[test]
fn csv_errors_are_located() {
    let cases = [
        ("", "the file is empty"),
        ("id,start,size\n", "line 1: there is no column `end`"),
        ("id,start,end,size\na,0,3,4\nb,5,5,1\n", "line 3: the item ends at 5, not after its start at 5"),
        ("id,start,end,size\na,0,3,-4\n", "line 2: the size -4 is negative"),
        ("id,start,end,size\na,0,3\n", "line 2: there is no column 4"),
        ("id,start,end,size\na,0,x,3\n", "line 2: `x` is not an integer in 64 bits"),
        (
            "size,id,upper,lower\n9223372036854775807,a,1,0\n1,b,1,0\n",
            "line 3: the sizes together exceed 64 bits",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(read_csv(text).expect_err(text).to_string(), expected);
    }
    assert_eq!(read_csv("ID, Size ,Start,End,more\n\n a ,4,-1,9,x\n").expect("items")[0].size, 4);
}

#[test]
fn extreme_instances_are_placed() {
    for text in [
        "id,start,end,size\n",
        "id,start,end,size\na,0,1,0\n",
        "id,start,end,size\na,-9223372036854775808,9223372036854775807,9223372036854775807\n",
        "id,start,end,size\na,0,2,4611686018427387900\nb,1,3,1\nc,2,4,4611686018427387900\nd,0,4,1\n",
    ] {
        let items = read_csv(text).expect("items");
        assert_valid(&items, &solve(&items, &Budget::default()));
    }
}

#[test]
fn no_time_is_enough_for_a_placement() {
    let items = vec![
        BufferInterval { id: "a".into(), start: 0, end: 2, size: 3 },
        BufferInterval { id: "b".into(), start: 1, end: 3, size: 5 },
    ];
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(solve(&items, &Budget { steps: 0, seconds: Some(seconds) }).height, 8);
    }
}

prop_compose! {
    fn item()(start in 0..20i64, span in 1..8i64, size in 0..12i64) -> BufferInterval {
        BufferInterval { id: String::new(), start, end: start + span, size }
    }
}

/// The lowest height of all placements, by trying every order and dropping each item onto those before it.
fn brute_force(items: &[BufferInterval], order: &mut Vec<usize>) -> i64 {
    if order.len() == items.len() {
        let mut ends = vec![0; items.len()];
        for (position, &idx) in order.iter().enumerate() {
            let below = order[..position].iter().filter(|other| items[idx].overlaps(&items[**other]));
            ends[idx] = below.map(|other| ends[*other]).max().unwrap_or(0) + items[idx].size;
        }
        return ends.into_iter().max().unwrap_or(0);
    }
    let mut best = i64::MAX;
    for idx in 0..items.len() {
        if !order.contains(&idx) {
            order.push(idx);
            best = best.min(brute_force(items, order));
            order.pop();
        }
    }
    best
}

proptest! {
    #[test]
    fn small_instances_are_optimal(items in prop::collection::vec(item(), 1..7)) {
        let solution = solve(&items, &Budget::default());
        assert_valid(&items, &solution);
        prop_assert_eq!(solution.height, brute_force(&items, &mut Vec::new()));
        prop_assert!(solution.is_optimal());
    }

    #[test]
    fn instances_are_placed(items in prop::collection::vec(item(), 1..60)) {
        let budget = Budget { steps: 3000, seconds: None };
        let solution = solve(&items, &budget);
        assert_valid(&items, &solution);
        prop_assert_eq!(solution, solve(&items, &budget));
    }
}

/// A program whose kernels read and write whole buffers: `uses[k]` lists those of kernel `k`.
fn program(sizes: &[Dim], uses: &[Vec<usize>]) -> Program {
    let mut program = Program { name: "random".into(), ..Program::default() };
    for (name, declaration) in [
        ("N", Declaration::range(0, 64)),
        ("S", Declaration::range(8, 512).step(8, 0)),
        ("M", Declaration::values([1, 5, 9])),
    ] {
        let symbol = Symbol::new(name);
        program.facts.declare(&symbol, declaration).expect("a consistent range");
        program.symbols.push(symbol);
    }
    for (idx, elems) in sizes.iter().enumerate() {
        let space = if idx % 5 == 4 { MemorySpace::Scratch } else { MemorySpace::Arena };
        program.buffers.push(Buffer { name: String::new(), dtype: DType::F32, elems: elems.clone(), space });
    }
    for used in uses {
        let mut kernel = Kernel::default();
        for idx in used {
            let buffer = BufferId::from_u32((*idx % sizes.len()) as u32);
            let axis = Axis {
                var: Symbol::new(&format!("i{}", kernel.body.len())),
                extent: program.buffers[buffer].elems.clone(),
            };
            let mut code = InstSeq::default();
            let value = code.push(Inst::Const(Scalar::f32(1.0)));
            code.push(Inst::Store(Access { buffer, index: Dim::from(&axis.var) }, value));
            kernel.body.push(Stmt::Strip { axis, code });
        }
        program.kernels.push(kernel);
    }
    program
}

fn bytes(program: &Program, id: BufferId, values: &BTreeMap<&str, i64>) -> i64 {
    let buffer = &program.buffers[id];
    let elems = buffer.elems.eval_i64(&|symbol| values.get(symbol.name()).copied()).expect("a value").max(0);
    (elems * buffer.dtype.size_bytes() as i64 + 63) / 64 * 64
}

/// Offsets at this binding; buffers that a kernel uses before and after another one does must not interferes in it.
fn assert_disjoint(program: &Program, plan: &Plan, values: &BTreeMap<&str, i64>) {
    let mut spans: BTreeMap<BufferId, (i64, i64)> = BTreeMap::new();
    for placement in &plan.placements {
        let begin = placement.below.iter().map(|other| spans[other].1).max().unwrap_or(0);
        let end = begin + bytes(program, placement.buffer, values);
        assert!(end as u64 <= plan.arena_max);
        spans.insert(placement.buffer, (begin, end));
    }
    let used = |kernel: &Kernel, id: BufferId| {
        kernel.body.iter().any(|stmt| match stmt {
            Stmt::Strip { code, .. } => {
                code.insts.iter().any(|inst| matches!(inst, Inst::Store(at, _) if at.buffer == id))
            }
            _ => false,
        })
    };
    let times = |id: BufferId| -> Vec<usize> {
        (0..program.kernels.len()).filter(|idx| used(&program.kernels[*idx], id)).collect()
    };
    for (a, span_a) in &spans {
        for (b, span_b) in spans.range(..*a) {
            let (times_a, times_b) = (times(*a), times(*b));
            let together =
                times_a[0] <= times_b[times_b.len() - 1] && times_b[0] <= times_a[times_a.len() - 1];
            assert!(
                !together || span_a.1 <= span_b.0 || span_b.1 <= span_a.0,
                "{a:?} and {b:?} at {values:?}"
            );
        }
    }
}

fn size() -> impl Strategy<Value = Dim> {
    let texts = [
        "N",
        "S",
        "3*N",
        "N*S",
        "N*M + 7",
        "S//8",
        "N*(S + 1)",
        "1000",
        "16",
        "0",
        "max(N - 3, 0)",
        "min(N, M)*S",
    ];
    prop::sample::select(texts.to_vec()).prop_map(|text| text.parse().expect("a dim"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn plans_hold_at_every_binding(
        sizes in prop::collection::vec(size(), 1..24),
        uses in prop::collection::vec(prop::collection::vec(0..24usize, 1..4), 1..24),
        bindings in prop::collection::vec((0..=64i64, 1..=64i64, 0..3usize), 6),
    ) {
        let program = program(&sizes, &uses);
        let plan = plan::plan(&program, &Budget::COMPILE).expect("a plan");
        let certificate = verify(&program, &plan).expect("a right plan");
        prop_assert!(certificate.max_live <= plan.arena_max);
        for (n, s, m) in bindings {
            assert_disjoint(&program, &plan, &BTreeMap::from([("N", n), ("S", 8 * s), ("M", [1, 5, 9][m])]));
        }
    }
}

/// The same program with a part of its buffers in the memories of two devices.
fn on_devices(mut program: Program, bytes: u64) -> Program {
    for target in ["npu", "dsp"] {
        program.devices.push(Device { target: target.into(), bytes });
    }
    for (id, buffer) in program.buffers.iter_mut() {
        if id.as_u32() % 5 < 2 {
            buffer.space = MemorySpace::Device(id.as_u32() % 5);
        }
    }
    program
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn devices_have_memories_of_their_own(
        sizes in prop::collection::vec(size(), 1..24),
        uses in prop::collection::vec(prop::collection::vec(0..24usize, 1..4), 1..24),
        bindings in prop::collection::vec((0..=64i64, 1..=64i64, 0..3usize), 6),
    ) {
        let program = on_devices(program(&sizes, &uses), 1 << 40);
        let plan = plan::plan(&program, &Budget::COMPILE).expect("a plan");
        verify(&program, &plan).expect("a right plan");
        for (n, s, m) in bindings {
            assert_disjoint(&program, &plan, &BTreeMap::from([("N", n), ("S", 8 * s), ("M", [1, 5, 9][m])]));
        }
        let largest = plan.devices.iter().map(|room| room.max).max().unwrap_or(0);
        let exact = Program { devices: Vec::new(), ..program.clone() };
        prop_assert!(plan::plan(&on_devices(exact.clone(), largest), &Budget::COMPILE).is_ok());
        if largest > 0 {
            let error = plan::plan(&on_devices(exact, largest - 1), &Budget::COMPILE).expect_err("too little");
            prop_assert!(error.to_string().contains(&format!("the memory of the device has {}", largest - 1)), "{error}");
        }
    }
}

/// One kernel after the other, each using some of the buffers `sizes`.
fn chain(sizes: &[&str], uses: &[&[usize]]) -> Program {
    let sizes: Vec<Dim> = sizes.iter().map(|text| text.parse().expect("a dim")).collect();
    program(&sizes, &uses.iter().map(|list| list.to_vec()).collect::<Vec<_>>())
}

#[test]
fn the_verifier_finds_what_is_wrong() {
    let program = chain(&["16*N", "16*N", "16*N", "S"], &[&[0, 1], &[1, 2], &[2, 3]]);
    let plan = plan::plan(&program, &Budget::COMPILE).expect("a plan");
    assert_eq!((plan.arena_max, plan.lower_bound), (8192, 8192));
    let broken = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        let error = verify(&program, &plan).expect_err("the plan is wrong");
        error.message().to_string()
    };
    let cases = [
        broken(&|plan| plan.placements.reverse()),
        broken(&|plan| plan.placements.iter_mut().for_each(|placement| placement.below.clear())),
        broken(&|plan| drop(plan.placements.pop())),
        broken(&|plan| plan.arena_max -= 1),
        broken(&|plan| plan.lower_bound -= 1),
    ];
    let words = ["is placed later", "neither is below", "has no place", "ends at", "bytes are alive"];
    for (message, word) in cases.iter().zip(words) {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn the_verifier_keeps_devices_apart() {
    // The first and the last belong to one device, the second to the other.
    let program = on_devices(chain(&["16*N"; 6], &[&[0, 2, 5], &[1, 3], &[3, 4]]), 1 << 20);
    let plan = plan::plan(&program, &Budget::COMPILE).expect("a plan");
    let room = |bytes| plan::ArenaUsage { max: bytes, lower_bound: bytes };
    assert_eq!(plan.devices, [room(8192), room(4096)]);
    assert_eq!((plan.arena_max, plan.lower_bound), (20480, 20480));
    let broken = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        verify(&program, &plan).expect_err("the plan is wrong").message().to_string()
    };
    let one_above_the_other = |plan: &mut Plan| {
        let order = [0, 2, 5, 1, 3, 4].map(BufferId::from_u32);
        let below = |at: usize| order[..at].last().copied().into_iter().collect();
        let placed = |(at, buffer)| plan::Placement { buffer, below: below(at) };
        plan.placements = order.into_iter().enumerate().map(placed).collect();
        plan.arena_max = 6 * 4096;
    };
    let cases = [
        broken(&|plan| plan.devices[0].max -= 64),
        broken(&|plan| _ = plan.devices.pop()),
        broken(&|plan| one_above_the_other(plan)),
        broken(&|plan| {
            one_above_the_other(plan);
            plan.devices[0].max += 4096;
        }),
    ];
    let words = [
        "device 0 takes 8192 of 8128 bytes",
        "1 devices of 2",
        "device 0 takes 12288 of 8192",
        "@2 is in the memory",
    ];
    for (message, word) in cases.iter().zip(words) {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn formulas_are_short() {
    let cases = [
        (chain(&["16*N", "16*N", "32*N"], &[&[0, 1], &[1, 2]]), "192*N"),
        (chain(&["N", "N"], &[&[0], &[1]]), "64*((N + 15)//16)"),
        (chain(&["16*N", "S"], &[&[0], &[1]]), "64*max(N, (S + 15)//16)"),
        (chain(&[], &[]), "0"),
    ];
    for (program, expected) in cases {
        let plan = plan::plan(&program, &Budget::COMPILE).expect("a plan");
        assert_eq!(arena_formula(&program, &plan), expected);
    }
}

#[test]
fn sizes_beyond_memory_are_refused() {
    let source = |elems: &str, range: &str| {
        format!(
            "program p {{\n  symbol N = {range}\n  @0 big: f32[{elems}] arena\n  kernel k {{\n    block {{\n      \
             %0 = const f32 0.0\n      store @0[0], %0\n    }}\n  }}\n}}\n"
        )
    };
    let cases = [
        (
            "N*N*N",
            "1..1000000",
            ErrorKind::Limit,
            "buffer `big` of 4*N*N*N bytes can reach 4000000000000000000, more than 2^47",
        ),
        (
            "N*99999999999999999999",
            "0..9",
            ErrorKind::Limit,
            "buffer `big` of 399999999999999999996*N bytes can reach 3599999999999999999964, more than 2^47",
        ),
        (
            "N + 3",
            "1..",
            ErrorKind::Contract,
            "buffer `big` of 4*(N + 3) bytes has no upper bound: declare a range for N, as in --dim N=1..64",
        ),
    ];
    for (elems, range, kind, message) in cases {
        let program = text::parse(&source(elems, range)).expect("a program");
        let error = plan::plan(&program, &Budget::COMPILE).expect_err("it is too large");
        assert_eq!((error.kind(), error.message()), (kind, message));
    }
    let many: Vec<&str> = std::iter::repeat_n("N*10000000000", 99).collect();
    let program = chain(&many, &[&(0..99).collect::<Vec<_>>()]);
    let error = plan::plan(&program, &Budget::COMPILE).expect_err("it is too large");
    assert!(error.message().starts_with("the arena can exceed 2^47 bytes; the largest buffer, @"), "{error}");
}
