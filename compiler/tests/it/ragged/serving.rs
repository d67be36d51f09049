//! The batcher of ragged batches: requests of mixed lengths share calls within a budget, in the order of arrival.

use super::{
    graphs::{CHANNELS, FORMS, MAX_LENGTH, MAX_SEQUENCES, encoder},
    session::{offsets, ragged},
};
use crate::{bits::assert_same_bits, random_cases::Random};
use std::time::Duration;
use symshape_compiler::{RaggedRequest, pipeline};
use symshape_runtime::{BatchOptions, Batcher, Context, Model, TensorMut, TensorRef, Ticket};

/// One or more sequences, and the results of a separate call.
struct Request {
    lengths: Vec<usize>,
    offsets: Vec<i64>,
    ids: Vec<i64>,
    outputs: Vec<Vec<f32>>,
}

impl Request {
    fn new(random: &mut Random, context: &mut Context) -> Request {
        let count = 1 + random.below(2);
        let lengths = (0..count).map(|_| {
            let longest = if random.below(3) == 0 { MAX_LENGTH as usize } else { 5 };
            1 + random.below(longest)
        });
        Request::of(lengths.collect(), random, context)
    }

    fn of(lengths: Vec<usize>, random: &mut Random, context: &mut Context) -> Request {
        let ids: Vec<i64> = (0..lengths.iter().sum()).map(|_| random.below(50) as i64).collect();
        let offsets = offsets(&lengths);
        let mut request = Request { lengths, offsets, ids, outputs: Vec::new() };
        let outputs = request.with_inputs(|inputs| {
            let outputs = context.run_views(inputs).expect("in contract");
            (0..outputs.len()).map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec()).collect()
        });
        request.outputs = outputs;
        request
    }

    fn with_inputs<R>(&self, use_inputs: impl FnOnce(&[TensorRef<'_>]) -> R) -> R {
        let ids = TensorRef::new(&[self.ids.len()], &self.ids).expect("sized");
        let offsets = TensorRef::new(&[self.offsets.len()], &self.offsets).expect("sized");
        use_inputs(&[ids, offsets])
    }

    fn submit(&self, batcher: &Batcher) -> Ticket {
        self.with_inputs(|inputs| batcher.submit(inputs)).expect("in contract")
    }

    fn check(&self, ticket: Ticket) {
        let mut outputs: Vec<Vec<f32>> =
            self.outputs.iter().map(|output| vec![f32::NAN; output.len()]).collect();
        let mut refs: Vec<TensorMut<'_>> = outputs.iter_mut().map(|output| TensorMut::new(output)).collect();
        ticket.wait(&mut refs).expect("in contract");
        for (idx, (got, expected)) in outputs.iter().zip(&self.outputs).enumerate() {
            assert_same_bits(got, expected, format!("{:?}: output {idx}", self.lengths));
        }
    }
}

fn model() -> Model {
    ragged(&encoder(FORMS[0]), &RaggedRequest::along("S"))
}

fn batcher(model: &Model, max_rows: usize, deadline: Duration) -> Batcher {
    let options = BatchOptions { max_rows, deadline, calls: Some(1), ..BatchOptions::default() };
    Batcher::ragged(model, options).expect("a ragged batch")
}

#[test]
fn requests_of_many_threads_have_the_bits_that_they_have_alone() {
    let model = model();
    for threads in [1, 2] {
        let options = BatchOptions { max_rows: 100, threads, calls: Some(2), ..BatchOptions::default() };
        let batcher = Batcher::ragged(&model, options).expect("a ragged batch");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (model, batcher) = (&model, &batcher);
                scope.spawn(move || {
                    let mut context = Context::new(model).expect("memory");
                    let mut random = Random(thread);
                    for _ in 0..40 {
                        let request = Request::new(&mut random, &mut context);
                        request.check(request.submit(batcher));
                    }
                });
            }
        });
    }
}

#[test]
fn requests_share_calls_in_their_order_until_one_exceeds_the_budget() {
    let model = model();
    let mut context = Context::new(&model).expect("memory");
    let mut random = Random(5);
    // No request waits for the deadline: a batch closes when the next request does not fit, or when the batcher stops.
    let batcher = batcher(&model, 40, Duration::from_secs(3600));
    let lengths: [&[usize]; 8] = [&[10], &[3, 20], &[7], &[1], &[37], &[3], &[2, 2, 2, 2], &[1]];
    let requests: Vec<Request> =
        lengths.iter().map(|lengths| Request::of(lengths.to_vec(), &mut random, &mut context)).collect();
    let mut tickets: Vec<Ticket> = requests.iter().map(|request| request.submit(&batcher)).collect();

    // 10 + 23 + 7 rows fill a batch. 1 + 37 leave no space for 3. 3 and 8 rows are 5 sequences, as many as a call
    // takes. The last request waits for others.
    let last = tickets.pop().expect("a ticket");
    requests.iter().zip(tickets).for_each(|(request, ticket)| request.check(ticket));
    assert_eq!(batcher.n_batches(), 3);
    drop(batcher);
    requests[7].check(last);
}

#[test]
fn a_budget_of_bytes_bounds_the_rows_of_a_batch() {
    let model = model();
    let rows = 60;
    let budget = model.arena_bytes(&[MAX_SEQUENCES, rows]).expect("allowed");
    let options = BatchOptions {
        max_rows: 10_000,
        arena_bytes: Some(budget),
        deadline: Duration::from_secs(3600),
        ..BatchOptions::default()
    };
    let batcher = Batcher::ragged(&model, options).expect("a ragged batch");
    let mut context = Context::new(&model).expect("memory");
    let mut random = Random(6);
    let lengths = [37, 23, 37, 24];
    let requests = lengths.map(|length| Request::of(vec![length], &mut random, &mut context));
    let mut tickets: Vec<Ticket> = requests.iter().map(|request| request.submit(&batcher)).collect();
    // 37 + 23 rows are the largest batch within the budget; 37 + 24 are too many.
    tickets.drain(..3).zip(&requests).for_each(|(ticket, request)| request.check(ticket));
    assert_eq!(batcher.n_batches(), 2);
    drop(batcher);
    requests[3].check(tickets.pop().expect("a ticket"));

    let options = BatchOptions { arena_bytes: Some(1), ..options };
    let error = Batcher::ragged(&model, options).expect_err("no memory").to_string();
    assert!(error.contains("1 rows of this shape need"), "{error}");
}

#[test]
fn malformed_requests_are_refused_before_they_wait() {
    let model = model();
    let batcher = batcher(&model, 50, Duration::from_micros(200));
    let ids = [1_i64; 80];
    let refused = |rows: usize, offsets: &[i64]| {
        let ids = TensorRef::new(&[rows], &ids[..rows]).expect("sized");
        let offsets = TensorRef::new(&[offsets.len()], offsets).expect("sized");
        batcher.submit(&[ids, offsets]).expect_err("malformed").to_string()
    };
    let cases: [(usize, &[i64], &str); 9] = [
        (3, &[1, 3], "offset 0 of the request is 1: the first sequence begins at row 0"),
        (
            3,
            &[0, 4],
            "offset 1 of the request is 4: the last sequence ends at the last row, but an input has 3 rows",
        ),
        (3, &[0, 2, 2, 3], "offset 2 of the request is 2: S is 0"),
        (3, &[0, 3, 1, 3], "offset 2 of the request is 1: S is -2"),
        (3, &[0, i64::MIN, 3], "S is -9223372036854775808"),
        (3, &[0], "got no sequence"),
        (3, &[], "got no sequence"),
        (38, &[0, 38], "S is 38"),
        (60, &[0, 30, 60], "got 60 rows; a batch has 1 to 50"),
    ];
    for (rows, offsets, words) in cases {
        let error = refused(rows, offsets);
        assert!(error.contains(words), "{offsets:?}: {error}");
    }
    let error = refused(6, &[0, 1, 2, 3, 4, 5, 6]);
    assert!(error.contains("got 6 sequences; a batch has 1 to 5"), "{error}");

    let ids_of_three = TensorRef::new(&[3], &ids[..3]).expect("sized");
    let narrow = TensorRef::new(&[2], &[0_i32, 3]).expect("sized");
    let error = batcher.submit(&[ids_of_three, narrow]).expect_err("32 bits").to_string();
    assert!(error.contains("offsets") && error.contains("i64") && error.contains("i32"), "{error}");

    // A token outside of the table fails alone.
    let mut context = Context::new(&model).expect("memory");
    let request = Request::of(vec![4, 9], &mut Random(7), &mut context);
    let wrong = [1_i64, 99, 1];
    let ids = TensorRef::new(&[3], &wrong).expect("sized");
    let offsets = TensorRef::new(&[2], &[0_i64, 3]).expect("sized");
    let batcher = self::batcher(&model, 50, Duration::from_millis(20));
    let tickets = [
        request.submit(&batcher),
        batcher.submit(&[ids, offsets]).expect("in contract"),
        request.submit(&batcher),
    ];
    let [first, wrong, last] = tickets;
    let mut hidden = [0_f32; 3 * CHANNELS];
    let (mut mean, mut class) = ([0_f32; CHANNELS], [0_f32; 3]);
    let mut outputs = [TensorMut::new(&mut hidden), TensorMut::new(&mut mean), TensorMut::new(&mut class)];
    let error = wrong.wait(&mut outputs).expect_err("an unknown token").to_string();
    assert!(error.contains("99"), "{error}");
    request.check(first);
    request.check(last);

    let dense = pipeline::jit(&encoder(FORMS[0])).expect("supported");
    let error = Batcher::ragged(&dense, BatchOptions::default()).expect_err("a dense model").to_string();
    assert!(error.contains("takes no ragged batch"), "{error}");
}
