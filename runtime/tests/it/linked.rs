//! Calls without an allocator: results, and refusals, which write nothing.

use crate::fake;

use symshape_runtime::{
    DType, Linked, LinkedError, TensorMut, TensorRef,
    abi::{GROWS, MONOTONE, ModelDesc},
};

/// A descriptor that lives as long as the program.
fn open(desc: ModelDesc) -> Result<Linked, LinkedError> {
    // SAFETY: the descriptor is leaked, and its functions meet the requirements of the ABI.
    unsafe { Linked::from_desc(Box::leak(Box::new(desc))) }
}

fn run(n: usize, s: usize, y_len: usize, room: [usize; 2]) -> Result<Vec<f32>, LinkedError> {
    let model = open(fake::desc()).expect("well-formed");
    let x: Vec<f32> = (0..n * s).map(|at| at as f32).collect();
    let y = vec![0.5_f32; y_len];
    let (mut z, mut rows, mut arena) = (vec![-1.0_f32; room[0]], [0_i64], vec![0_u8; room[1]]);
    let inputs = [TensorRef::new(&[n, s], &x).unwrap(), TensorRef::new(&[y_len], &y).unwrap()];
    let outputs = &mut [TensorMut::new(&mut z), TensorMut::new(&mut rows)];
    match model.run(&inputs, outputs, &mut arena) {
        Ok(dims) => {
            assert_eq!((dims.values(), rows[0]), (&[n as i64, s as i64][..], n as i64));
            Ok(z)
        }
        Err(error) => {
            assert!(z.iter().all(|value| *value == -1.0) && arena.iter().all(|byte| *byte == 0), "{error}");
            Err(error)
        }
    }
}

#[test]
fn each_size_has_its_values() {
    for (n, s) in [(1, 2), (2, 2), (33, 4), (63, 8), (64, 8)] {
        let z = run(n, s, n, [n * s, n * s * 4 + 63]).expect("in range");
        assert!(z.iter().enumerate().all(|(at, z)| *z == 2.0 * at as f32 + 0.5));
    }
}

#[test]
fn violations_of_the_contract_are_refused() {
    let all = [64 * 8, 64 * 8 * 4 + 63];
    let refused = |n, s, y| match run(n, s, y, all).expect_err("out of contract") {
        LinkedError::Refused(refusal) => refusal.to_string(),
        other => panic!("{other}"),
    };
    assert_eq!(refused(65, 2, 65), "`the call`: a dim = 65, allowed 1..=64 (code 1)");
    assert_eq!(refused(3, 3, 3), "`the call`: a dim = 3, allowed 2..=8 (code 2)");
    assert!(refused(3, 2, 4).ends_with("(code 3): `x` axis 0 gave it first"));
    assert_eq!(run(4, 2, 4, [7, 4096]), Err(LinkedError::TooSmall { needed: 32, got: 28 }));
    assert!(matches!(run(64, 8, 64, [512, 2047]), Err(LinkedError::TooSmall { needed: 2048, .. })));
}

#[test]
fn tensors_of_other_types_and_ranks_are_refused() {
    let model = open(fake::desc()).expect("well-formed");
    let (x, y, bytes) = ([0_f32; 4], [0_f32; 2], [0_u8; 2]);
    let x = TensorRef::new(&[2, 2], &x).unwrap();
    let y = TensorRef::new(&[2], &y).unwrap();
    assert_eq!(model.bind(&[x]), Err(LinkedError::WrongCount { expected: 2, got: 1 }));
    assert_eq!(model.bind(&[y, y]), Err(LinkedError::WrongTensor { number: 0 }));
    let bytes = TensorRef::from_bytes(DType::U8, &[2], &bytes).unwrap();
    assert_eq!(model.bind(&[x, bytes]), Err(LinkedError::WrongTensor { number: 1 }));
    assert_eq!(model.bind(&[x, y]).map(|dims| model.arena_bytes(&dims)), Ok(16));
}

#[test]
fn damaged_descriptors_are_refused() {
    // SAFETY: null is allowed.
    let null = unsafe { Linked::from_desc(std::ptr::null()) };
    assert!(matches!(null, Err(LinkedError::Malformed(_))));
    let spoiled = |spoil: fn(&mut ModelDesc)| {
        let mut desc = fake::desc();
        spoil(&mut desc);
        open(desc).expect_err("spoiled")
    };
    assert!(matches!(spoiled(|desc| desc.magic = 0), LinkedError::Malformed(_)));
    assert!(matches!(spoiled(|desc| desc.abi_version += 1), LinkedError::Version { .. }));
    assert!(matches!(spoiled(|desc| desc.flags = GROWS), LinkedError::TooLarge(_)));
    assert!(matches!(spoiled(|desc| desc.n_inputs = 17), LinkedError::TooLarge(_)));
    assert!(matches!(spoiled(|desc| desc.n_data_dependent = 31), LinkedError::TooLarge(_)));
    assert!(matches!(
        spoiled(|desc| (desc.n_outputs, desc.outputs) = (1, &fake::wide()[1])),
        LinkedError::TooLarge(_)
    ));
}

#[test]
fn the_largest_dim_fits_the_budget() {
    let model = open(fake::desc()).expect("well-formed");
    let monotone = open(ModelDesc { flags: MONOTONE, ..fake::desc() }).expect("well-formed");
    for model in [model, monotone] {
        for n in [1, 2, 33, 63, 64] {
            assert_eq!(model.max_dim("N", n as usize * 32, &[0, 8]), Ok(Some(n)));
            assert_eq!(model.max_dim("N", n as usize * 32 - 1, &[0, 8]), Ok(Some(n - 1).filter(|n| *n > 0)));
        }
        assert_eq!(model.max_dim("S", 200, &[10, 0]), Ok(Some(4)));
        assert_eq!(model.max_dim("T", 1, &[1, 2]), Err(LinkedError::NoSymbol));
        assert_eq!(model.max_dim("N", 1, &[1, 3]), Err(LinkedError::NotAllowed { idx: 1, value: 3 }));
        assert_eq!(model.max_dim("N", 1, &[]), Err(LinkedError::WrongDimCount { expected: 2, got: 0 }));
    }
}
