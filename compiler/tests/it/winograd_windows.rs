//! Convolutions by fewer products whose windows are not squares: along one axis, with dilation, of many taps, and in
//! volumes.

use crate::{
    bits::assert_same_bits,
    winograd::{assert_near, compiled, is_transformed, numbers, run},
};
use symshape::{Declaration, Dim};
use symshape_compiler::{Result, graph::Graph, pipeline::Pipeline, scalar::Scalar, tensor::Tensor};
use symshape_runtime::{Context, DType};

/// A convolution over one to three axes of an image, channels last.
#[derive(Clone, Copy)]
struct Case {
    channels: [usize; 2],
    /// The sizes of the axes of an image: a step and the least and most number of steps.
    sides: &'static [(i64, i64, i64)],
    taps: &'static [usize],
    dilations: &'static [usize],
    strides: &'static [usize],
}

/// A convolution that moves by one element, without dilation.
const fn case(channels: [usize; 2], sides: &'static [(i64, i64, i64)], taps: &'static [usize]) -> Case {
    Case { channels, sides, taps, dilations: &[1; 3], strides: &[1; 3] }
}

/// Axes whose last tiles have every size, known sizes and unknown ones. A range that begins small has plain sums too.
const CASES: [Case; 12] = [
    case([128, 112], &[(1, 12, 90)], &[3]),
    case([64, 66], &[(4, 5, 40)], &[3]),
    case([64, 64], &[(1, 48, 75)], &[5]),
    case([64, 64], &[(1, 4, 150)], &[7]),
    Case { dilations: &[3], ..case([64, 64], &[(1, 48, 75)], &[7]) },
    Case { dilations: &[5], ..case([64, 64], &[(2, 24, 40)], &[11]) },
    Case { dilations: &[2], ..case([128, 96], &[(1, 60, 60)], &[4]) },
    case([64, 64], &[(1, 9, 17), (1, 6, 11)], &[3, 1]),
    case([64, 64], &[(1, 6, 9), (2, 24, 26)], &[1, 7]),
    case([64, 64], &[(1, 6, 9), (4, 12, 13)], &[5, 3]),
    case([16, 20], &[(1, 1, 7), (1, 9, 9), (1, 12, 12)], &[3, 3, 3]),
    case([64, 64], &[(1, 8, 15), (1, 6, 6), (1, 5, 5)], &[3, 1, 1]),
];

/// Strides of two along axes with and without a window.
const STRIDED: [Case; 8] = [
    Case { strides: &[1, 2], ..case([64, 64], &[(1, 16, 19), (2, 8, 8)], &[3, 1]) },
    Case { strides: &[2, 1], ..case([64, 64], &[(2, 4, 5), (1, 48, 51)], &[1, 5]) },
    Case { strides: &[2], ..case([128, 112], &[(2, 74, 81)], &[3]) },
    Case { strides: &[2], ..case([64, 64], &[(2, 149, 155)], &[8]) },
    Case { strides: &[2, 2], ..case([96, 96], &[(1, 52, 52), (1, 35, 35)], &[3, 3]) },
    Case { strides: &[2, 2], ..case([64, 64], &[(8, 6, 8), (4, 12, 15)], &[3, 3]) },
    Case { strides: &[2, 2], ..case([64, 66], &[(2, 30, 32), (2, 28, 31)], &[3, 3]) },
    Case { strides: &[1, 2, 2], ..case([64, 64], &[(1, 2, 4), (1, 29, 29), (1, 32, 32)], &[3, 3, 3]) },
];

/// Windows of many slices, few channels, and a stride of three.
const PLAIN: [Case; 3] = [
    case([16, 16], &[(1, 90, 93)], &[77]),
    case([8, 64], &[(1, 90, 93)], &[3]),
    Case { strides: &[3], ..case([64, 64], &[(3, 40, 43)], &[3]) },
];

impl Case {
    /// Zeros before and after each axis.
    fn padding(&self) -> [Vec<usize>; 2] {
        let all = self.taps.iter().zip(self.dilations).map(|(taps, dilation)| (taps - 1) * dilation);
        all.map(|all| (all / 2, all - all / 2)).unzip::<_, _, Vec<_>, Vec<_>>().into()
    }

    fn weights(&self) -> Vec<f32> {
        numbers(self.channels.iter().chain(self.taps).product(), 5)
    }

    fn graph(&self) -> Result<Graph> {
        let mut g = Graph { name: "convolution".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 3))?;
        let mut sides = Vec::new();
        for (idx, (step, least, most)) in self.sides.iter().enumerate() {
            let side = if least == most {
                Dim::from(*most)
            } else {
                g.symbol(&format!("S{idx}"), Declaration::range(*least, *most))?
            };
            sides.push(side * *step);
        }

        let [cin, cout] = self.channels;
        let rank = sides.len();
        let shape = [n.clone()].into_iter().chain(sides.clone()).chain([cin.into()]).collect();
        let x = g.input("x", DType::F32, shape)?;
        let channels_first: Vec<usize> = [0, rank + 1].into_iter().chain(1..=rank).collect();
        let x = g.transpose(x, &channels_first)?;
        let [before, after] =
            self.padding().map(|zeros| [0, 0].into_iter().chain(zeros).map(Dim::from).collect::<Vec<_>>());
        let x = g.pad(x, &before, &after, Scalar::f32(0.0))?;
        let axes: Vec<usize> = (2..2 + rank).collect();
        let [taps, strides, dilations] = [self.taps, self.strides, self.dilations]
            .map(|numbers| numbers[..rank].iter().map(|k| *k as i64).collect::<Vec<_>>());
        let seen = g.window(x, &axes, &taps, &strides, &dilations)?;

        let filters: Vec<usize> = [cout, cin].into_iter().chain(self.taps.iter().copied()).collect();
        let w = g.constant(Tensor::from_f32(filters, &self.weights()).expect("sized"))?;
        let (outputs, within) = (&b"xyz"[..rank], &b"klj"[..rank]);
        let y = g.contract(
            seen,
            &[b"nc", outputs, within].concat(),
            w,
            &[b"mc", within].concat(),
            &[b"nm", outputs].concat(),
        )?;
        let y = g.relu(y)?;
        let channels_last: Vec<usize> = [0].into_iter().chain(2..2 + rank).chain([1]).collect();
        let y = g.transpose(y, &channels_last)?;
        g.output("y", y)?;
        Ok(g)
    }

    /// The sums written out, for images of these sizes.
    fn expected(&self, sizes: &[usize], x: &[f32], n: usize) -> Vec<f64> {
        let (weights, [cin, cout]) = (self.weights(), self.channels);
        let window: usize = self.taps.iter().product();
        let [before, _] = self.padding();
        let outputs: Vec<usize> =
            sizes.iter().zip(self.strides).map(|(size, stride)| size.div_ceil(*stride)).collect();
        let area: usize = outputs.iter().product();
        let mut all = Vec::new();
        for place in 0..n * area {
            let output = positions(place % area, &outputs);
            let mut sums = vec![0.0; cout];
            for tap in 0..window {
                let taps = positions(tap, self.taps).into_iter().zip(self.dilations);
                let firsts = output.iter().zip(self.strides).zip(&before);
                let seen: Vec<usize> = taps
                    .zip(firsts)
                    .map(|((tap, dilation), ((at, stride), before))| {
                        (at * stride + tap * dilation).wrapping_sub(*before)
                    })
                    .collect();
                if seen.iter().zip(sizes).any(|(at, size)| at >= size) {
                    continue;
                }
                let from =
                    seen.iter().zip(sizes).fold(place / area, |index, (at, size)| index * size + at) * cin;
                for (m, sum) in sums.iter_mut().enumerate() {
                    let terms = (0..cin)
                        .map(|c| f64::from(x[from + c]) * f64::from(weights[(m * cin + c) * window + tap]));
                    *sum += terms.sum::<f64>();
                }
            }
            all.extend(sums.into_iter().map(|sum: f64| sum.max(0.0)));
        }
        all
    }

    /// The smallest sizes of all axes, the next ones, odd numbers of steps, and the two largest ones.
    fn sizes(&self) -> Vec<Vec<usize>> {
        let edges = |(step, least, most): &(i64, i64, i64)| {
            let counts = [
                *least,
                (least + 1).min(*most),
                (((least + most) / 2) | 1).min(*most),
                (most - 1).max(*least),
                *most,
            ];
            counts.map(|count| (count * step) as usize)
        };
        let edges: Vec<[usize; 5]> = self.sides.iter().map(edges).collect();
        (0..5).map(|at| edges.iter().map(|sizes| sizes[at]).collect()).collect()
    }
}

/// The indices of an element of an array of these sizes.
fn positions(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut found = vec![0; sizes.len()];
    for (position, size) in found.iter_mut().zip(sizes).rev() {
        *position = at % size;
        at /= size;
    }
    found
}

/// Near the sums written out, with the same bits in every batch and on every number of threads.
fn check(cases: &[Case]) {
    for case in cases {
        let g = case.graph().expect("valid");
        let model = compiled(&g);
        let mut context = Context::new(&model).expect("memory");
        for sizes in case.sizes() {
            let area: usize = sizes.iter().product();
            let x = numbers(3 * area * case.channels[0], 1);
            let mut run = |n: usize, threads: u32| {
                let shape: Vec<usize> =
                    [n].into_iter().chain(sizes.clone()).chain([case.channels[0]]).collect();
                run(&mut context, &shape, &x[..shape.iter().product()], threads)
            };
            let all = run(3, 1);
            let place = format!("{:?} taps at dilations {:?}, {sizes:?}", case.taps, case.dilations);
            assert_near(&all, &case.expected(&sizes, &x, 3), format_args!("{place}"));
            for (n, threads) in [(3, 3), (2, 1), (1, 2), (1, 1)] {
                let y = run(n, threads);
                assert_same_bits(&y, &all[..y.len()], format_args!("{place}, N = {n}, {threads} threads"));
            }
        }
    }
}

#[test]
fn windows_of_any_shape() {
    check(&CASES);
}

#[test]
fn windows_at_stride_2() {
    check(&STRIDED);
}

#[test]
fn convolutions_that_stay_plain() {
    for case in &PLAIN {
        let lowered = Pipeline::new(&case.graph().expect("valid")).lower().expect("supported");
        assert!(!is_transformed(&lowered.program), "{:?} taps", case.taps);
    }
}
