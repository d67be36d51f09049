//! Profiles of ragged calls: kernels of a group are one entry, and their demand is that of all sequences.

use super::{
    cli::Files,
    graphs::{FORMS, MAX_LENGTH, MAX_SEQUENCES, encoder},
};
use crate::cli::{json, refusal};
use symshape_compiler::{
    RaggedRequest,
    pipeline::{Lowered, Pipeline},
    profile::{Profile, Profiler},
};

fn lowered() -> Lowered {
    let request = RaggedRequest::along("S").max_rows(100);
    Pipeline::new(&encoder(FORMS[0])).ragged(request).lower().expect("supported")
}

/// Attention of the longest sequences is enough work for two threads.
#[test]
fn threads_share_the_sequences_of_attention() {
    let request = RaggedRequest::along("S");
    let lowered = Pipeline::new(&encoder(FORMS[0])).ragged(request).lower().expect("supported");
    let profiler = Profiler::new(&lowered).expect("this machine");
    let ragged = lowered.program.ragged.as_ref().expect("a ragged batch");
    let lengths = [MAX_LENGTH as usize; MAX_SEQUENCES as usize];
    let scaling = profiler.scaling_at_lengths(&lengths, 2).expect("in range");
    let groups = scaling.kernels.iter().filter(|kernel| ragged.group_of(kernel.kernels.start).is_some());
    let shared = groups.filter(|kernel| kernel.divided.shares == 2).count();
    assert!(shared >= 2, "one for each layer, not {shared}: {scaling:?}");
}

fn multiplications(profile: &Profile) -> f64 {
    profile.kernels.iter().map(|kernel| kernel.demand.multiplications).sum()
}

#[test]
fn demands_are_those_of_all_sequences() {
    let lowered = lowered();
    let profiler = Profiler::new(&lowered).expect("this machine");
    let ragged = lowered.program.ragged.as_ref().expect("a ragged batch");
    let most = MAX_LENGTH as usize;
    let alone = |length: usize| profiler.at_lengths(&[length]).expect("in range");

    for lengths in [vec![1], vec![2], vec![most], vec![most, 1, 1, 7, 1], vec![13, 36], vec![5; 5]] {
        let profile = profiler.at_lengths(&lengths).expect("in range");
        assert!(profile.call_ns > 0.0);
        let kernels: Vec<usize> = profile.kernels.iter().flat_map(|kernel| kernel.kernels.clone()).collect();
        assert_eq!(kernels, (0..lowered.program.kernels.len()).collect::<Vec<_>>(), "each once, in order");
        for group in &ragged.groups {
            let entries = profile.kernels.iter().filter(|kernel| group.contains(&kernel.kernels.start));
            let entries: Vec<_> = entries.collect();
            assert_eq!(entries.len(), 1, "{group:?}");
            assert_eq!(entries[0].kernels, *group);
        }

        // The work of rows and the work of sequences add up.
        let sum: f64 = lengths.iter().map(|length| multiplications(&alone(*length))).sum();
        let found = multiplications(&profile);
        assert!((found - sum).abs() <= 1e-9 * sum, "{lengths:?}: {found} instead of {sum}");
        for (idx, kernel) in profile.kernels.iter().enumerate() {
            let share = kernel.share().expect("a bound");
            assert!(share.is_finite() && share > 0.0, "{kernel:?}");
            assert!(!kernel.demand.depends_on_data, "{kernel:?}");
            // Sequences share the weights and no other bytes.
            let bytes: f64 = lengths.iter().map(|length| alone(*length).kernels[idx].demand.bytes).sum();
            let least = alone(lengths[0]).kernels[idx].demand.bytes;
            assert!(
                (least..=bytes).contains(&kernel.demand.bytes),
                "{lengths:?}: {kernel:?}, alone {least}, sum {bytes}"
            );
        }
    }
}

#[test]
fn equal_lengths_are_measured_at_sizes() {
    let lowered = lowered();
    let profiler = Profiler::new(&lowered).expect("this machine");
    let symbols: Vec<&str> = profiler.model().symbols().iter().map(|symbol| symbol.name()).collect();
    assert_eq!(symbols, ["N", "T"]);
    let at_sizes = profiler.at(&[3, 60]).expect("in range");
    let at_lengths = profiler.at_lengths(&[20, 20, 20]).expect("in range");
    assert_eq!((at_sizes.at.as_str(), at_lengths.at.as_str()), ("N=3,T=60", "N=3,T=60,S=20..20"));
    let demands = |profile: &Profile| profile.kernels.iter().map(|kernel| kernel.demand).collect::<Vec<_>>();
    assert_eq!(demands(&at_sizes), demands(&at_lengths));
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    let lowered = lowered();
    let profiler = Profiler::new(&lowered).expect("this machine");
    let cases: [(&[usize], &str); 6] = [
        (&[], "N = 0; N is declared 1..=5"),
        (&[0, 4], "S = 0"),
        (&[38], "S = 38"),
        (&[30, 30, 30, 30], "T = 120; T is declared 1..=100"),
        (&[1; MAX_SEQUENCES as usize + 1], "N = 6; N is declared 1..=5"),
        (&[usize::MAX, 1], "the sum of the lengths is too large"),
    ];
    for (lengths, words) in cases {
        let error = profiler.at_lengths(lengths).expect_err("wrong lengths").to_string();
        assert!(error.contains(words), "{lengths:?}: {error}");
    }
    assert!(profiler.at(&[5, 4]).expect_err("a sequence without rows").to_string().contains("S = 0"));

    let dense = Pipeline::new(&encoder(FORMS[0])).lower().expect("supported");
    let error = Profiler::new(&dense).expect("this machine").at_lengths(&[3]).expect_err("a dense model");
    assert!(error.to_string().contains("takes no ragged batch"), "{error}");
}

#[test]
fn reports_measure_lists_of_lengths() {
    let files = Files::new();
    let (onnx, page) = (files.path("masked.onnx"), files.path("page.html"));
    let report = ["report", &onnx, "-o", &page, "--ragged", "S", "--dim", "N=1..4", "--dim", "S=1..9"];
    let line = &json(&[&report[..], &["--lengths", "2,4", "9,1,1,1", "--profile", "N=2,T=3"]].concat())[0];
    let at: Vec<&str> = line["profile"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|size| size["at"].as_str().expect("text"))
        .collect();
    assert_eq!(at, ["N=2,T=3", "N=2,T=6,S=2..4", "N=4,T=12,S=1..9"]);
    let line = &json(&[&report[..], &["--lengths", "2,4"]].concat())[0];
    assert_eq!(line["profile"].as_array().expect("a list").len(), 1);
    let line = &json(&[&report[..], &["--profile"]].concat())[0];
    assert_eq!(line["profile"].as_array().expect("a list").len(), 2);

    let refused = |arguments: &[&str], words: &str| {
        let error = refusal(&[&report[..], arguments].concat());
        assert!(error.contains(words), "{arguments:?}: {error}");
    };
    refused(&["--lengths", "2,0"], "--lengths 2,0: ");
    refused(&["--lengths", "10"], "S = 10");
    refused(&["--baseline", &page], "--baseline: give --profile, --lengths or --threads as well");
    let dense = ["report", &onnx, "-o", &page, "--dim", "N=1..4", "--dim", "S=1..9", "--lengths", "2"];
    assert!(refusal(&dense).contains("--ragged"));
}
