//! Time per query of the symbolic engine, by family: one query, a fresh context, text in and text out.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use symshape::query::answer_line;

/// `(family, query)`: a few queries of each kind that kernels and shape inference make.
const QUERIES: &[(&str, &str)] = &[
    ("flat", "0\ti:0..9; j:0..5; k:0..6\t(floordiv (+ (* (+ (* i 6) j) 7) k) 42)\tsimplify"),
    ("flat", "0\tx:0..1023\t(+ (* (floordiv x 32) 32) (mod x 32))\tsimplify"),
    ("flatsym", "0\tN:1..4096; i:0..7; j:0..(- N 1)\t(floordiv (+ (* i N) j) N)\tsimplify"),
    ("flatsym", "0\tN:1..512; j:0..(- N 1); v:0..31\t(<= (+ (* j 32) v) (- (* N 32) 1))\tprove_true"),
    ("reshape", "0\tB:1..8; T:16..512:mult 16\t(floordiv (* B T) 4)\tsimplify"),
    ("tile", "0\tN:1..4096; t:0..(- (ceildiv N 32) 1)\t(<= 1 (min (- N (* t 32)) 32))\tprove_true"),
    ("nest", "0\tx:0..1000\t(+ (* (mod (floordiv x 16) 5) 16) (mod x 16))\tsimplify"),
    ("bcast", "0\tN:1..4096; K:1..4096\t(== (* (max N K) 12) (max (* K 12) (* N 12)))\tequal"),
    ("conv", "0\tH:8..1024\t(== (+ (floordiv (- (+ H 2) 3) 2) 1) (ceildiv H 2))\tequal"),
    ("concat", "0\tA:1..64; B:1..64; i:0..(- B 1)\t(< (+ A i) (+ A B))\tprove_true"),
    ("pad", "0\tN:1..100\t(- (* (ceildiv N 48) 48) N)\tbounds"),
    ("poly", "0\ta:0..50; b:0..50\t(== (* (+ a 3) (+ b 1)) (+ (+ (* a b) a) (+ (* b 3) 3)))\tequal"),
    ("mem", "0\tB:1..32; N:1..512\t(<= (max (* (* B N) 512) (* B 128)) (* (* B N) 512))\tprove_true"),
    ("big", "0\tX:1..68719476736; Y:1..8589934592\t(* (* X Y) 4611686018427387904)\tbounds"),
    ("rbounds", "0\tx:-16..102:mult 2\t(mod (* (- 1 x) 3) 16)\tbounds"),
    ("trap", "0\to:0..15; v:0..6\t(== (mod (+ (* o 6) v) 6) v)\tprove_false"),
];

fn queries(c: &mut Criterion) {
    let mut families: Vec<&str> = QUERIES.iter().map(|(family, _)| *family).collect();
    families.dedup();
    for family in families {
        let lines: Vec<&str> =
            QUERIES.iter().filter(|(name, _)| *name == family).map(|(_, line)| *line).collect();
        let mut next = lines.iter().cycle();
        c.bench_function(&format!("dim/{family}"), |b| {
            b.iter(|| answer_line(black_box(next.next().expect("a cycle does not end"))));
        });
    }
}

criterion_group!(benches, queries);
criterion_main!(benches);
