//! The program's loops, with a tiny decoder of random weights that the compiler's graph builder makes.

use prost::Message;
use symshape::{Declaration, Dim};
use symshape_compiler::{
    StateRequest,
    graph::{Graph, Value, axis},
    import::proto::{
        AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
        TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
    },
    pipeline::{self, Pipeline},
    scalar::CompareOp,
    tensor::Tensor,
};
use symshape_example_generate::{
    Answer, Conversation, Error, Limits, Sampler, Sequence, Sequences, Settings, Stop, Text, artefact, batch,
};
use symshape_runtime::{DType, Model};
use tokenizers::Tokenizer;

const WIDTH: usize = 16;
const WORDS: [&str; 24] = [
    "<s>", "</s>", "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "then", "it", "was", "red",
    "big", "old", "new", "sun", "sea", "sky", "is", "far", "near",
];
const MAX_NEW: i64 = 4;
const MAX_PAST: i64 = 63;

/// Pseudo-random weights in -1 to 1.
fn weights(graph: &mut Graph, rows: usize, columns: usize, seed: u32) -> Value {
    let elem = |idx: usize| ((idx as f32 + 1.0) * 12.9898 + seed as f32 * 78.233).sin() * 43_758.547;
    let elems: Vec<f32> = (0..rows * columns).map(|idx| elem(idx).fract() * 2.0).collect();
    graph.constant(Tensor::from_f32(vec![rows, columns], &elems).expect("sized")).expect("valid")
}

/// A decoder with one layer of attention with one head.
fn decoder_graph() -> symshape_compiler::Result<Graph> {
    let mut g = Graph { name: "decoder".into(), ..Graph::default() };
    let rows = g.symbol("rows", Declaration::range(1, 8))?;
    let new = g.symbol("new", Declaration::range(1, MAX_NEW))?;
    let past = g.symbol("past", Declaration::range(0, MAX_PAST))?;
    let width = Dim::from(WIDTH as i64);
    let all = past.clone() + new.clone();

    let ids = g.input("input_ids", DType::I64, vec![rows.clone(), new.clone()])?;
    let mask = g.input("attention_mask", DType::I64, vec![rows.clone(), all.clone()])?;
    let positions = g.input("position_ids", DType::I64, vec![rows.clone(), new.clone()])?;
    let cached = vec![rows, 1.into(), past.clone(), width];
    let past_keys = g.input("past_key_values.0.key", DType::F32, cached.clone())?;
    let past_values = g.input("past_key_values.0.value", DType::F32, cached)?;

    let words = weights(&mut g, WORDS.len(), WIDTH, 1);
    let places = weights(&mut g, (MAX_PAST + MAX_NEW) as usize, WIDTH, 2);
    let word = g.gather(words, ids, 0)?;
    let place = g.gather(places, positions, 0)?;
    let x = g.add(word, place)?;

    let [query, key, value] = [3, 4, 5].map(|seed| -> symshape_compiler::Result<Value> {
        let matrix = weights(&mut g, WIDTH, WIDTH, seed);
        let product = g.matmul(x, matrix)?;
        g.unsqueeze(product, &[1])
    });
    let keys = g.concat(&[past_keys, key?], 2)?;
    let values = g.concat(&[past_values, value?], 2)?;
    let transposed = g.transpose(keys, &[0, 1, 3, 2])?;
    let scores = g.matmul(query?, transposed)?;

    // A new token looks at the positions up to its own that the mask allows.
    let shape = vec![new, all];
    let own = g.index(DType::I64, shape.clone(), Dim::from(&axis(0)) + past)?;
    let other = g.index(DType::I64, shape, (&axis(1)).into())?;
    let is_future = g.compare(CompareOp::Lt, own, other)?;
    let mask = g.unsqueeze(mask, &[1, 2])?;
    let hidden = g.number(DType::F32, -1e9)?;
    let zero = g.number(DType::I64, 0.0)?;
    let is_hidden = g.compare(CompareOp::Eq, mask, zero)?;
    let scores = g.select(is_future, hidden, scores)?;
    let scores = g.select(is_hidden, hidden, scores)?;
    let shares = g.softmax(scores, 3)?;
    let seen = g.matmul(shares, values)?;
    let seen = g.squeeze(seen, &[1])?;
    let y = g.add(x, seen)?;

    let head = weights(&mut g, WIDTH, WORDS.len(), 6);
    let logits = g.matmul(y, head)?;
    g.output("logits", logits)?;
    g.output("present.0.key", keys)?;
    g.output("present.0.value", values)?;
    Ok(g)
}

fn model() -> Model {
    let graph = decoder_graph().expect("a valid graph");
    Pipeline::new(&graph).state(StateRequest::find()).jit().expect("it compiles")
}

/// A tokenizer of whole words.
fn text(end: &[&str]) -> Text {
    let ids: Vec<String> = WORDS.iter().enumerate().map(|(id, word)| format!("\"{word}\": {id}")).collect();
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": null, "decoder": null,
        "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "<s>"}}}}"#,
        ids.join(", ")
    );
    let tokenizer = Tokenizer::from_bytes(json).expect("a valid tokenizer");
    let end: Vec<String> = end.iter().map(ToString::to_string).collect();
    Text::new(tokenizer, &end).expect("known tokens")
}

fn settings() -> Settings {
    Settings { start: "<s> ".into(), next: " </s> ".into(), ..Settings::default() }
}

const LIMITS: Limits = Limits { tokens: 12, ignore_end: false };

/// The answer of a new conversation.
fn answer(message: &str, text: &Text, sampler: &mut Sampler, limits: Limits) -> Answer {
    let mut sequences = Sequences::new(&model(), 1).expect("a decoder");
    let settings = settings();
    let mut shown = String::new();
    let answer = Conversation::new(&mut sequences, text, &settings)
        .expect("memory")
        .say(message, sampler, limits, |piece| shown += piece)
        .expect("an answer");
    assert_eq!(answer.text, shown);
    answer
}

#[test]
fn an_answer_ends_at_its_limit_or_before_an_end_token() {
    let free = answer("the cat sat on the mat", &text(&[]), &mut Sampler::greedy(), LIMITS);
    assert_eq!((free.tokens.len(), free.stop, free.tokens_read), (12, Stop::Limit, 7));
    let words: Vec<&str> = free.tokens.iter().map(|token| WORDS[*token as usize]).collect();
    assert_eq!(free.text, words.join(" "));

    let third = words.iter().position(|word| *word == words[2]).expect("it is there");
    let end = text(&[words[2]]);
    let ended = answer("the cat sat on the mat", &end, &mut Sampler::greedy(), LIMITS);
    assert_eq!((&ended.tokens[..], ended.stop), (&free.tokens[..third], Stop::End));

    let ignoring = Limits { ignore_end: true, ..LIMITS };
    assert_eq!(answer("the cat sat on the mat", &end, &mut Sampler::greedy(), ignoring).tokens, free.tokens);
}

#[test]
fn chunks_of_a_prompt_and_single_tokens_give_the_same_logits() {
    let mut sequences = Sequences::new(&model(), 1).expect("a decoder");
    for count in [1, 2, 3, 4, 5, 8, 11] {
        let tokens: Vec<i64> = (0..count).map(|idx| (idx * 7 + 2) % WORDS.len() as i64).collect();
        let mut chunked = sequences.empty().expect("memory");
        let together = sequences.read_all(&mut chunked, &tokens).expect("it fits").to_vec();
        assert_eq!(together, sequences.logits(0));
        assert_eq!(chunked.tokens(), tokens);
        let mut single = sequences.empty().expect("memory");
        for token in tokens {
            sequences.read_all(&mut single, &[token]).expect("it fits");
        }
        for (a, b) in together.iter().zip(sequences.logits(0)) {
            assert!((a - b).abs() <= 1e-4, "{count} tokens: {a} {b}");
        }
    }
}

#[test]
fn a_conversation_goes_on_without_reading_it_again() {
    let model = model();
    let text = text(&[]);
    let settings = settings();
    let mut sequences = Sequences::new(&model, 1).expect("a decoder");
    let mut conversation = Conversation::new(&mut sequences, &text, &settings).expect("memory");
    let mut said = text.encode("<s> the dog ran").expect("words");
    let mut sampler = Sampler::greedy();
    let first = conversation.say("the dog ran", &mut sampler, LIMITS, |_| {}).expect("an answer");
    said.extend(&first.tokens);
    let second = conversation.say("far", &mut sampler, LIMITS, |_| {}).expect("an answer");
    // The last token of the first answer, and the new message.
    assert_eq!(second.tokens_read, 3);
    said.extend(text.encode("</s> far").expect("words"));

    let mut sequence = sequences.empty().expect("memory");
    sequences.read_all(&mut sequence, &said).expect("it fits");
    let mut again = Vec::new();
    for _ in 0..LIMITS.tokens {
        again.push(sampler.pick(sequences.logits(0)) as i64);
        sequences.read_all(&mut sequence, &again[again.len() - 1..]).expect("it fits");
    }
    assert_eq!(second.tokens, again);
}

#[test]
fn eight_conversations_at_once_answer_as_alone() {
    let messages: Vec<String> = (0..8).map(|idx| WORDS[2..4 + 2 * idx].join(" ")).collect();
    let text = text(&["sun"]);
    let model = model();
    let mut sequences = Sequences::new(&model, 1).expect("a decoder");
    let sampler = |idx| Sampler::new(0.7, 0.9, idx as u64);
    let samplers: Vec<Sampler> = (0..8).map(sampler).collect();
    let mut done = Vec::new();
    let together =
        batch::answer(&mut sequences, &text, &settings(), &messages, &samplers, LIMITS, |idx, _| {
            done.push(idx)
        })
        .expect("answers");
    for (idx, (message, together)) in messages.iter().zip(&together).enumerate() {
        let alone = answer(message, &text, &mut sampler(idx), LIMITS);
        assert_eq!((&alone.tokens, alone.stop), (&together.tokens, together.stop), "{message}");
    }
    done.sort_unstable();
    assert_eq!(done, (0..8).collect::<Vec<_>>());
}

#[test]
fn answers_that_end_at_once_are_reported() {
    let first = answer("the cat", &text(&[]), &mut Sampler::greedy(), LIMITS).tokens[0];
    let end = text(&[WORDS[first as usize]]);
    let mut sequences = Sequences::new(&model(), 1).expect("a decoder");
    let messages = ["the cat".to_string()];
    for (limits, stop) in [(LIMITS, Stop::End), (Limits { tokens: 0, ..LIMITS }, Stop::Limit)] {
        let mut done = Vec::new();
        let samplers = [Sampler::greedy()];
        let report = |idx, answer: &Answer| done.push((idx, answer.tokens.len()));
        let answers = batch::answer(&mut sequences, &end, &settings(), &messages, &samplers, limits, report)
            .expect("answers");
        assert_eq!((answers[0].stop, done), (stop, vec![(0, 0)]));
    }
}

#[test]
fn sequences_of_all_lengths_step_together_as_alone() {
    let model = model();
    let mut sequences = Sequences::new(&model, 1).expect("a decoder");
    let mut all: Vec<Sequence> = (0..4).map(|_| sequences.empty().expect("memory")).collect();
    let mut expected = Vec::new();
    for (idx, sequence) in all.iter_mut().enumerate() {
        let prompt: Vec<i64> = (0..4).map(|at| (5 * at + 3 * idx as i64) % WORDS.len() as i64).collect();
        sequences.read_all(sequence, &prompt[..idx + 1]).expect("it fits");
        let mut alone = sequences.empty().expect("memory");
        sequences.read_all(&mut alone, &prompt[..idx + 1]).expect("it fits");
        expected.push(sequences.read_all(&mut alone, &[idx as i64]).expect("it fits").to_vec());
    }

    let mut step: Vec<(&mut Sequence, i64)> = all.iter_mut().zip(0..).collect();
    sequences.step(&mut step).expect("they fit");
    for (idx, expected) in expected.iter().enumerate() {
        assert_eq!(sequences.logits(idx), expected, "sequence {idx}");
        assert_eq!(all[idx].tokens().len(), idx + 2);
    }
}

#[test]
fn a_sequence_keeps_a_prefix_and_refuses_what_does_not_fit() {
    let model = model();
    let mut sequences = Sequences::new(&model, 1).expect("a decoder");
    let mut sequence = sequences.empty().expect("memory");
    sequences.read_all(&mut sequence, &[2, 3, 4]).expect("it fits");
    let logits = sequences.read_all(&mut sequence, &[5]).expect("it fits").to_vec();
    assert_eq!(sequence.keep(3), 3);
    assert_eq!(sequences.read_all(&mut sequence, &[5]).expect("it fits"), logits);

    for wrong in [vec![], vec![2; MAX_PAST as usize - 2]] {
        assert!(matches!(sequences.read_all(&mut sequence, &wrong), Err(Error::Tokens(_))));
    }
    // The second of three calls is refused; the sequence forgets the tokens of the first.
    let unknown = [2, 3, 4, 5, 6, 7, 99, 8, 9];
    assert!(matches!(sequences.read_all(&mut sequence, &unknown), Err(Error::Call(_))));
    assert_eq!(sequence.tokens(), [2, 3, 4, 5]);
    sequence.keep(3);
    assert_eq!(sequences.read_all(&mut sequence, &[5]).expect("it fits"), logits);
    let rest = vec![7; sequences.max_tokens() - 4];
    sequences.read_all(&mut sequence, &rest).expect("it fits");
    assert!(matches!(sequences.read_all(&mut sequence, &[7]), Err(Error::Tokens(_))));
    assert!(matches!(sequences.step(&mut [(&mut sequence, 7)]), Err(Error::Tokens(_))));
}

#[test]
fn a_full_model_ends_the_answer_and_refuses_more() {
    let model = model();
    let text = text(&[]);
    let settings = settings();
    let mut sequences = Sequences::new(&model, 1).expect("a decoder");
    let mut conversation = Conversation::new(&mut sequences, &text, &settings).expect("memory");
    let limits = Limits { tokens: 1000, ..LIMITS };
    let answer = conversation.say("it was", &mut Sampler::greedy(), limits, |_| {}).expect("an answer");
    // Three tokens were read, and the last one of the answer was not.
    assert_eq!((answer.stop, 3 + answer.tokens.len() as i64 - 1), (Stop::Full, MAX_PAST + 1));
    let refused = conversation.say("and", &mut Sampler::greedy(), limits, |_| {}).expect_err("it is full");
    assert_eq!(refused.to_string(), "3 more tokens: the sequence has place for 0 after its 64");
}

#[test]
fn models_that_are_not_decoders_are_refused() {
    let mut other = Graph { name: "relu".into(), ..Graph::default() };
    let x = other.input("x", DType::F32, vec![3.into()]).expect("an input");
    let y = other.relu(x).expect("a value");
    other.output("y", y).expect("an output");
    let refused = Sequences::new(&pipeline::jit(&other).expect("it compiles"), 1).err().expect("no decoder");
    assert_eq!(
        refused.to_string(),
        "the model is not a decoder that this program knows: it has no `input_ids`"
    );
    let without_state = pipeline::jit(&decoder_graph().expect("a valid graph")).expect("it compiles");
    let refused = Sequences::new(&without_state, 1).err().expect("no state").to_string();
    assert!(
        refused.ends_with("it keeps no keys and values as state: compile it with --stateful"),
        "{refused}"
    );
}

/// An ONNX model that appends its input to a state.
fn cache_model() -> ModelProto {
    let tensor = |name: &str, length: &str| {
        let dim = |name: &str| DimensionProto { dim_value: None, dim_param: Some(name.into()) };
        let shape = Some(TensorShapeProto { dim: vec![dim("N"), dim(length)] });
        let tensor_type = Some(TensorTypeProto { elem_type: 1, shape });
        ValueInfoProto { name: name.into(), ty: Some(TypeProto { tensor_type, ..TypeProto::default() }) }
    };
    let node = NodeProto {
        op_type: "Concat".into(),
        input: vec!["past".into(), "new".into()],
        output: vec!["present".into()],
        attribute: vec![AttributeProto { name: "axis".into(), kind: 2, i: 1, ..AttributeProto::default() }],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        input: vec![tensor("past", "P"), tensor("new", "S")],
        output: vec![ValueInfoProto { name: "present".into(), ty: None }],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..ModelProto::default() }
}

#[test]
fn a_model_is_compiled_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = artefact::open(folder.path(), &settings()).expect_err("no model");
    assert!(missing.to_string().ends_with("there is no such file; export.py writes it"), "{missing}");

    std::fs::write(folder.path().join("model.onnx"), cache_model().encode_to_vec()).expect("a model");
    let settings = Settings { dims: vec!["N=1..4".into(), "S=1..8".into(), "P=0..8".into()], ..settings() };
    artefact::open(folder.path(), &settings).expect("it compiles");
    let written =
        || folder.path().join("model.so").metadata().and_then(|data| data.modified()).expect("a file");
    let first = written();
    artefact::open(folder.path(), &settings).expect("it opens");
    assert_eq!(written(), first);
}
