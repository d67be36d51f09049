//! NonMaxSuppression against a direct implementation of the standard, on machine code.

use crate::protos;

use protos::{float, int64_tensor, node};
use symshape_compiler::{
    import::{
        self, ImportOptions, Model,
        proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto, ValueInfoProto},
    },
    pipeline,
};
use symshape_runtime::{Context, TensorRef};

const CLASSES: usize = 2;
const IOU_THRESHOLD: f32 = 0.3917;
const SCORE_THRESHOLD: f32 = 0.1;

/// Boxes `[B, N, 4]` and scores `[B, 2, N]`, with at most `limit` boxes of a class.
fn model(limit: i64) -> Model {
    let threshold = |name: &str, value: f32| TensorProto {
        name: name.into(),
        dims: vec![1],
        data_type: 1,
        raw_data: Some(value.to_le_bytes().to_vec().into()),
        ..Default::default()
    };
    let graph = GraphProto {
        node: vec![node("NonMaxSuppression", &["boxes", "scores", "limit", "iou", "score"], &["y"])],
        input: vec![float("boxes", &["B", "N", "4"]), float("scores", &["B", "2", "N"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        initializer: vec![
            int64_tensor("limit", &[limit]),
            threshold("iou", IOU_THRESHOLD),
            threshold("score", SCORE_THRESHOLD),
        ],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    Model::from(ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() })
}

/// The share of the union of two boxes `[y1, x1, y2, x2]` that both contain.
fn overlap(a: &[f32], b: &[f32]) -> f32 {
    let area = |b: &[f32]| (b[2] - b[0]) * (b[3] - b[1]);
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    height * width / (area(a) + area(b) - height * width)
}

/// Rows of batch, class and box, as the standard defines them.
fn expected(boxes: &[f32], scores: &[f32], batch: usize, count: usize, limit: usize) -> Vec<i64> {
    let mut rows = Vec::new();
    for image in 0..batch {
        let corners = |k: usize| &boxes[(image * count + k) * 4..][..4];
        for class in 0..CLASSES {
            let scores = &scores[(image * CLASSES + class) * count..][..count];
            let mut order: Vec<usize> = (0..count).filter(|k| scores[*k] > SCORE_THRESHOLD).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let mut kept: Vec<usize> = Vec::new();
            for k in order {
                let is_free = kept.iter().all(|other| overlap(corners(*other), corners(k)) <= IOU_THRESHOLD);
                if is_free && kept.len() < limit {
                    kept.push(k);
                }
            }
            rows.extend(kept.iter().flat_map(|k| [image as i64, class as i64, *k as i64]));
        }
    }
    rows
}

/// Numbers of `0..steps`, by a linear congruential generator.
fn random(state: &mut u64, steps: u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % steps) as f32
}

#[test]
fn suppression_selects_the_boxes_of_the_standard() {
    for limit in [0, 1, 5, 1000] {
        let options = ImportOptions {
            dims: import::parse_dims(&["B=1..3", "N=1..300"]).unwrap().dims,
            ..Default::default()
        };
        let compiled = pipeline::jit(&import::import(&model(limit), &options).unwrap()).unwrap();
        let mut context = Context::new(&compiled).unwrap();
        let mut state = 1;
        for (batch, count) in [(1, 1), (1, 2), (2, 33), (3, 69), (2, 70), (1, 128), (2, 299), (3, 300)] {
            // Coordinates are small integers, so areas and overlaps are exact.
            let mut boxes = Vec::new();
            for _ in 0..batch * count {
                let [y, x] = [0; 2].map(|_| random(&mut state, 20));
                let [height, width] = [0; 2].map(|_| 1.0 + random(&mut state, 9));
                boxes.extend([y, x, y + height, x + width]);
            }
            // A score that is NaN is not above the threshold.
            let mut score = |k: usize| match random(&mut state, 1 << 20) / 1e6 {
                _ if k % 11 == 5 => f32::NAN,
                score => score,
            };
            let scores: Vec<f32> = (0..batch * CLASSES * count).map(&mut score).collect();

            let views = [
                TensorRef::new(&[batch, count, 4], &boxes).unwrap(),
                TensorRef::new(&[batch, CLASSES, count], &scores).unwrap(),
            ];
            let outputs = context.run_views(&views).unwrap();
            let rows = outputs.get(0).elems::<i64>().unwrap().to_vec();
            let expected = expected(&boxes, &scores, batch, count, limit as usize);
            assert_eq!(rows, expected, "{batch} images of {count} boxes, at most {limit}");
        }
    }
}
