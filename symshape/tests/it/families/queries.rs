//! The families, each a function from a seed to a query whose answer is known by construction.

use num_bigint::BigInt;

use super::expressions::{deobf, poly, prove, query, random_relation, rbounds, simplify};
use super::random::Random;
use super::truth::{Expected, Query, Truth};

type Make = fn(&mut Random) -> Query;

/// `(family, query from a seed, the minimum percentage to solve)`
pub(crate) const FAMILIES: &[(&str, Make, usize)] = &[
    ("flat", flat, 95),
    ("deobf", deobf, 95),
    ("reshape", reshape, 95),
    ("tile", tile, 95),
    ("nest", nest, 95),
    ("bcast", bcast, 95),
    ("conv", conv, 95),
    ("concat", concat, 95),
    ("pad", pad, 95),
    ("poly", poly, 95),
    ("mem", mem, 95),
    ("big", big, 95),
    ("flatsym", flatsym, 95),
    ("rbounds", rbounds, 90),
    ("random", random_relation, 90),
    ("trap", trap, 95),
];

/// A tensor's flat index, taken apart, with constant extents.
fn flat(random: &mut Random) -> Query {
    let (b, c) = (random.between(2, 128), random.between(2, 64));
    let i = random.pick(&[4, 9, 63, 100_000]);
    let symbols = format!("i:0..{i}; j:0..{}; k:0..{}", b - 1, c - 1);
    let row = format!("(* (+ (* i {b}) j) {c})");
    let spread = format!("(+ (* i {}) (* j {c}))", b * c);
    let front = random.pick(&[row, spread]);
    let index = if random.once_in(2) { format!("(+ {front} k)") } else { format!("(+ k {front})") };
    match random.between(0, 8) {
        0 => simplify(&symbols, format!("(floordiv {index} {c})"), format!("(+ (* i {b}) j)")),
        1 => simplify(&symbols, format!("(floordiv {index} {})", b * c), "i"),
        2 => simplify(&symbols, format!("(mod {index} {c})"), "k"),
        3 => simplify(&symbols, format!("(mod {index} {})", b * c), format!("(+ (* j {c}) k)")),
        4 => simplify(&symbols, format!("(mod (floordiv {index} {c}) {b})"), "j"),
        5 => simplify(&symbols, format!("(floordiv (mod {index} {}) {c})", b * c), "j"),
        6 => prove(
            &symbols,
            format!("(== (floordiv {index} {}) (floordiv (floordiv {index} {c}) {b}))", b * c),
        ),
        7 => {
            let x = format!("x:0..{}", random.between(50, 40_000));
            let high = format!("(* (mod (floordiv x {c}) {b}) {c})");
            let term = format!("(+ (* (floordiv x {m}) {m}) (+ {high} (mod x {c})))", m = b * c);
            simplify(&x, term, "x")
        }
        _ => {
            let x = format!("x:0..{}", random.between(50, 40_000));
            simplify(&x, format!("(+ (* (floordiv x {b}) {b}) (mod x {b}))"), "x")
        }
    }
}

fn reshape(random: &mut Random) -> Query {
    let (m, d) = (random.pick(&[8, 16, 32, 64]), random.pick(&[2, 4, 8]));
    let symbols =
        format!("B:1..{}; T:{m}..{}:mult {m}; L:1..512", random.between(4, 64), m * random.between(2, 60));
    let c = random.between(2, 90);
    match random.between(0, 7) {
        0 => simplify(&symbols, format!("(floordiv (* B T) {d})"), format!("(* B (floordiv T {d}))")),
        1 => simplify(&symbols, format!("(floordiv (* T {c}) {d})"), format!("(* (floordiv T {d}) {c})")),
        2 => prove(&symbols, format!("(== (* (* B {d}) (floordiv T {d})) (* B T))")),
        3 => prove(&symbols, format!("(== (mod (* (* B T) {c}) {m}) 0)")),
        4 => simplify(&symbols, format!("(floordiv (* (* B L) {c}) (* B L))"), c.to_string()),
        5 => simplify(&symbols, format!("(floordiv (* (* B L) {c}) L)"), format!("(* B {c})")),
        6 => simplify(
            &symbols,
            format!("(mod (* {c} (+ L 1)) (* {} (+ L 1)))", c + 5),
            format!("(* {c} (+ L 1))"),
        ),
        _ => prove(&symbols, format!("(== (* (floordiv T {d}) (* {d} L)) (* L T))")),
    }
}

fn tile(random: &mut Random) -> Query {
    let (t, n) = (random.pick(&[4, 6, 8, 12, 32, 48, 64]), random.pick(&[64, 512, 65536]));
    let s = random.between(2, 9);
    let symbols = format!("N:1..{n}; t:0..(- (ceildiv N {t}) 1); v:0..{}", t - 1);
    match random.between(0, 8) {
        0 => prove(&symbols, format!("(<= (+ (* t {t}) (min (- N (* t {t})) {t})) N)")),
        1 => prove(&symbols, format!("(<= 1 (min (- N (* t {t})) {t}))")),
        2 => {
            simplify(&symbols, format!("(floordiv (floordiv N {t}) {s})"), format!("(floordiv N {})", t * s))
        }
        3 => simplify(&symbols, format!("(+ (* (floordiv N {t}) {t}) (- N (* (floordiv N {t}) {t})))"), "N"),
        4 => simplify(&symbols, format!("(min (* (ceildiv N {t}) {t}) N)"), "N"),
        5 => simplify(&symbols, format!("(max (* (floordiv N {t}) {t}) N)"), "N"),
        6 => prove(&symbols, format!("(== (floordiv (+ N {}) {t}) (ceildiv N {t}))", t - 1)),
        7 => simplify(&symbols, format!("(mod (+ (* t {t}) v) {t})"), "v"),
        _ => {
            let symbols = format!("o:0..{s}; v:0..{}; w:0..7", t - 1);
            simplify(&symbols, format!("(floordiv (+ (* (+ (* o {t}) v) 8) w) {})", t * 8), "o")
        }
    }
}

fn nest(random: &mut Random) -> Query {
    let (a, b) = (random.pick(&[3, 4, 8, 24, 48, 96]), random.between(2, 9));
    let symbols =
        format!("x:{}..{}; y:0..{}", random.pick(&[-1000, 0]), random.pick(&[255, 1000, 100_000]), a - 1);
    let c = random.between(0, a - 1);
    match random.between(0, 9) {
        0 => {
            simplify(&symbols, format!("(floordiv (+ (* x {a}) {c}) {})", a * b), format!("(floordiv x {b})"))
        }
        1 => simplify(&symbols, format!("(- (floordiv (+ x {a}) {a}) (floordiv x {a}))"), "1"),
        2 => simplify(&symbols, format!("(mod (* x {a}) {})", a * b), format!("(* (mod x {b}) {a})")),
        3 => prove(&symbols, format!("(== (floordiv (mod x {}) {a}) (mod (floordiv x {a}) {b}))", a * b)),
        4 => simplify(
            &symbols,
            format!("(+ (* (mod (floordiv x {a}) {b}) {a}) (mod x {a}))"),
            format!("(mod x {})", a * b),
        ),
        5 => simplify(
            &symbols,
            format!("(floordiv (+ (* x {}) (* y {a})) {a})", a * b),
            format!("(+ (* x {b}) y)"),
        ),
        6 => simplify(&symbols, format!("(mod (mod x {}) {a})", a * b), format!("(mod x {a})")),
        7 => simplify(&symbols, format!("(mod (+ (* x {a}) y) {a})"), "y"),
        8 => {
            let q = random.between(1, 30);
            let symbols = format!("x:{}..{}", q * a, q * a + a - 1);
            simplify(&symbols, format!("(floordiv x {a})"), q.to_string())
        }
        _ => simplify(&symbols, format!("(mod (+ x (* y {a})) {a})"), format!("(mod x {a})")),
    }
}

fn bcast(random: &mut Random) -> Query {
    let (c, d) = (random.between(2, 40), random.between(41, 90));
    let symbols = format!("N:2..{}; K:1..512; x:0..512", random.pick(&[64, 512, 4096]));
    match random.between(0, 9) {
        0 => prove(&symbols, format!("(== (* (max N K) {c}) (max (* K {c}) (* N {c})))")),
        1 => prove(&symbols, "(== (max (+ N x) (+ K x)) (+ (max N K) x))".to_string()),
        2 => {
            prove(&symbols, format!("(== (floordiv (max N K) {c}) (max (floordiv N {c}) (floordiv K {c})))"))
        }
        3 => simplify(
            &symbols,
            format!("(min (max (min (max x {c}) {d}) {c}) {d})"),
            format!("(min (max x {c}) {d})"),
        ),
        4 => simplify(&symbols, format!("(max N {})", random.between(-3, 2)), "N"),
        5 => simplify(&symbols, "(min (max N K) N)".to_string(), "N"),
        6 => prove(&symbols, "(== (+ (min N K) (max N K)) (+ N K))".to_string()),
        7 => prove(&symbols, "(== (max N (max K x)) (max (max x N) K))".to_string()),
        8 => simplify(&symbols, format!("(max (min x {c}) (min x {d}))"), format!("(min x {d})")),
        _ => {
            let symbols = format!("N:1..{c}; K:1..{d}; x:0..{c}");
            match c * d * c < 2500 {
                true => {
                    query(&symbols, "(- (max N (+ K 8)) (min x N))".to_string(), "bounds", Expected::Tight)
                }
                false => prove(&symbols, "(<= (min x N) (max N K))".to_string()),
            }
        }
    }
}

/// `(H + 2p - k)//s + 1`, also written with a dilated kernel.
fn conv(random: &mut Random) -> Query {
    let symbols = format!("H:{}..{}", random.pick(&[16, 32]), random.pick(&[64, 224, 1024]));
    let half = random.between(1, 3);
    let kernel = 2 * half + 1;
    let once =
        |inner: &str, stride: i64| format!("(+ (floordiv (- (+ {inner} {}) {kernel}) {stride}) 1)", 2 * half);
    match random.between(0, 5) {
        0 => simplify(&symbols, once("H", 1), "H"),
        1 => prove(&symbols, format!("(== {} (ceildiv H 2))", once("H", 2))),
        2 => prove(&symbols, format!("(== {} (ceildiv H 4))", once(&once("H", 2), 2))),
        3 => prove(&symbols, format!("(== {} (ceildiv H 8))", once(&once(&once("H", 2), 2), 2))),
        4 => {
            let levels = random.between(2, 4);
            let term = (0..levels).fold("H".to_string(), |inner, _| format!("(floordiv {inner} 2)"));
            simplify(&symbols, term, format!("(floordiv H {})", 1 << levels))
        }
        _ => prove(&symbols, format!("(<= 1 (+ (floordiv (- H {kernel}) {}) 1))", random.between(1, 4))),
    }
}

fn concat(random: &mut Random) -> Query {
    let count = random.between(2, 5) as usize;
    let names: Vec<String> = (1..=count).map(|idx| format!("N{idx}")).collect();
    let entry = |random: &mut Random, name: &String| {
        format!("{name}:{}..{}", random.between(0, 1), random.pick(&[16, 128, 1024]))
    };
    let mut symbols = names.iter().map(|name| entry(random, name)).collect::<Vec<_>>().join("; ");
    let sum =
        |names: &[String]| names[1..].iter().fold(names[0].clone(), |acc, name| format!("(+ {acc} {name})"));
    let mut other = names.clone();
    random.shuffle(&mut other);
    let (a, b) = (sum(&names), sum(&other));
    match random.between(0, 6) {
        0 => prove(&symbols, format!("(== {a} {b})")),
        1 => simplify(&symbols, format!("(min {a} (+ {b} {}))", random.between(1, 3)), a.clone()),
        2 => prove(&symbols, format!("(<= {} {b})", sum(&names[..count - 1]))),
        3 => {
            symbols.push_str(&format!("; i:0..(- {} 1)", names[count - 1]));
            prove(&symbols, format!("(< (+ {} i) {b})", sum(&names[..count - 1])))
        }
        4 => simplify(&symbols, format!("(- {a} {})", sum(&names[..count - 1])), names[count - 1].clone()),
        5 => {
            let (c, d) = (random.between(5, 13), random.between(1, 5));
            let symbols = format!("N:{c}..512");
            simplify(&symbols, format!("(- (min {c} N) (min {d} N))"), (c - d).to_string())
        }
        _ => prove(&symbols, format!("(== (max {a} {b}) {a})")),
    }
}

fn pad(random: &mut Random) -> Query {
    let m = random.pick(&[2, 6, 8, 12, 16, 48, 64, 256]);
    let k = random.between(2, 4);
    let n = random.pick(&[100, 512, 65536]);
    let symbols = format!("N:{}..{n}; K:0..512", random.between(0, 1));
    let up = |term: &str, m: i64| format!("(* (ceildiv {term} {m}) {m})");
    let down = |term: &str| format!("(- {term} (mod {term} {m}))");
    match random.between(0, 11) {
        0 => prove(&symbols, format!("(<= {} {})", up("N", m), up("N", m * k))),
        1 => prove(&symbols, format!("(<= {} (+ N {}))", up("N", m), m - 1)),
        2 => {
            query(&format!("N:1..{}", m.max(100)), format!("(- {} N)", up("N", m)), "bounds", Expected::Tight)
        }
        3 => prove(&symbols, format!("(== (mod (+ N (mod (- 0 N) {m})) {m}) 0)")),
        4 => prove(&symbols, format!("(<= {} (+ {} {}))", up("(+ N K)", m), up("N", m), up("K", m))),
        5 => prove(&symbols, format!("(== (mod {} {k}) 0)", up(&format!("(* N {k})"), m * k))),
        6 => simplify(&symbols, format!("(mod {} {m})", down("N")), "0"),
        7 => {
            let c = random.between(1, m - 1).max(1);
            let symbols = format!("K:0..{}:mult {m}", m * 20);
            simplify(&symbols, up(&format!("(+ K {c})"), m), format!("(+ K {m})"))
        }
        8 => prove(&symbols, format!("(== {} {})", up(&up("N", m), m), up("N", m))),
        9 => prove(&symbols, format!("(<= {} N)", down("N"))),
        10 => prove(&symbols, format!("(< (- N {m}) {})", down("N"))),
        _ => prove(&symbols, format!("(<= {} {})", up("N", m), up("(+ N K)", m))),
    }
}

fn mem(random: &mut Random) -> Query {
    let (b, n) = (random.pick(&[8, 32, 64]), random.pick(&[64, 512, 4096]));
    let bytes = random.pick(&[4, 16, 64, 128, 512, 768, 3072]);
    let align = random.pick(&[16, 32, 64, 128]);
    let symbols = format!("B:1..{b}; N:1..{n}; T:8..512:mult 8; P:0..2048");
    let up = |term: String| format!("(* (ceildiv {term} {align}) {align})");
    match random.between(0, 8) {
        0 => query(
            &symbols,
            format!("(* (* B N) {bytes})"),
            "bounds",
            Expected::Range(bytes.into(), (bytes * b * n).into()),
        ),
        1 => prove(
            &symbols,
            format!("(== (* (* B (+ N P)) {bytes}) (+ (* (* B N) {bytes}) (* (* B P) {bytes})))"),
        ),
        2 => simplify(&symbols, up(format!("(* (* B T) {align})")), format!("(* (* B T) {align})")),
        3 => prove(&symbols, format!("(== (mod (* (* B T) {align}) {}) 0)", 8 * align)),
        4 => {
            prove(&symbols, format!("(<= (max (* (* B N) {bytes}) (* B {})) (* (* B N) {bytes}))", bytes / 4))
        }
        5 => {
            prove(&symbols, format!("(<= {} (+ (* N {bytes}) {}))", up(format!("(* N {bytes})")), align - 1))
        }
        6 => {
            let (one, two) = (up(format!("(* (* B N) {bytes})")), up(format!("(* (* (* B N) {bytes}) 2)")));
            prove(&symbols, format!("(<= {one} {two})"))
        }
        7 => {
            let (first, both) = (up(format!("(* N {bytes})")), up(format!("(* (+ N P) {bytes})")));
            prove(&symbols, format!("(<= {first} {both})"))
        }
        _ => prove(&symbols, format!("(<= (* (* B N) {bytes}) {})", bytes * b * n)),
    }
}

fn big(random: &mut Random) -> Query {
    let power = |random: &mut Random, lo: i64, hi: i64| BigInt::from(1) << random.between(lo, hi);
    let (x, y, z) = (power(random, 31, 44), power(random, 21, 40), power(random, 13, 38));
    let symbols = format!("X:1..{x}; Y:1..{y}; Z:1..{z}");
    let unit = power(random, 60, 70);
    let all = &x * &y * &z;
    match random.between(0, 7) {
        0 => simplify(&symbols, format!("(- (* (+ X 1) {unit}) (* X {unit}))"), unit.to_string()),
        1 => prove(&symbols, format!("(<= 0 (* (* X Y) (* Z {unit})))")),
        2 => prove(&symbols, format!("(<= (* (* X Y) Z) {all})")),
        3 => query(&symbols, format!("(<= (* (* X Y) Z) {})", &all - 1), "prove_false", Expected::Disproven),
        4 => {
            let top = format!("(+ (* (* X Y) {unit}) {})", &unit - 1);
            prove(&symbols, format!("(== (floordiv {top} {unit}) (* X Y))"))
        }
        5 => {
            let rest = &unit - random.between(1, 1000);
            prove(&symbols, format!("(== (mod (+ (* (* X Y) {unit}) {rest}) {unit}) {rest})"))
        }
        6 => query(&symbols, "(* (* X Y) Z)".to_string(), "bounds", Expected::Range(1.into(), all)),
        _ => simplify(&symbols, format!("(floordiv (+ (* X {unit}) Y) {unit})"), "X"),
    }
}

/// Flat indices whose extents are symbols.
fn flatsym(random: &mut Random) -> Query {
    let (n, v) = (random.pick(&[16, 64, 512, 4096]), random.pick(&[3, 4, 12, 32, 48, 96]));
    let symbols = format!(
        "N:1..{n}; W:{}..128; i:0..{}; j:0..(- N 1); w:0..(- W 1); v:0..{}",
        random.between(1, 2),
        random.pick(&[7, 63, 1023]),
        v - 1
    );
    let narrow = format!("(+ (* (+ (* i N) j) {v}) v)");
    let wide =
        if random.once_in(2) { "(+ (* (+ (* i N) j) W) w)" } else { "(+ w (+ (* i (* N W)) (* W j)))" };
    match random.between(0, 12) {
        0 => simplify(&symbols, "(floordiv (+ (* i N) j) N)".to_string(), "i"),
        1 => simplify(&symbols, "(mod (+ (* i N) j) N)".to_string(), "j"),
        2 => simplify(&symbols, format!("(floordiv {narrow} {v})"), "(+ (* i N) j)"),
        3 => simplify(&symbols, format!("(mod {narrow} {v})"), "v"),
        4 => simplify(&symbols, format!("(floordiv {narrow} (* N {v}))"), "i"),
        5 => simplify(&symbols, format!("(mod (floordiv {narrow} {v}) N)"), "j"),
        6 => simplify(&symbols, format!("(floordiv {wide} (* N W))"), "i"),
        7 => simplify(&symbols, format!("(mod (floordiv {wide} W) N)"), "j"),
        8 => simplify(&symbols, format!("(mod {wide} (* N W))"), "(+ (* j W) w)"),
        9 => simplify(&symbols, format!("(mod {wide} W)"), "w"),
        10 => prove(&symbols, "(< (+ (* i N) j) (* (+ i 1) N))".to_string()),
        11 => prove(&symbols, format!("(<= (+ (* j {v}) v) (- (* N {v}) 1))")),
        _ => prove(&symbols, "(< (+ (* j W) w) (* N W))".to_string()),
    }
}

/// A true equation of another family with one number changed, where that makes it false.
fn trap(random: &mut Random) -> Query {
    loop {
        let make = random.pick(&[flat as Make, reshape, tile, nest, conv, pad, poly, mem, big, flatsym]);
        let true_one = make(random);
        let expression = match &true_one.expected {
            Expected::Proven => true_one.expression.clone(),
            Expected::Form(form) => format!("(== {} {form})", true_one.expression),
            _ => continue,
        };
        let Some(changed) = change_a_number(&expression, random) else { continue };
        let kind = random.pick(&["prove_false", "equal", "prove_true"]);
        let query = query(&true_one.symbols, changed, kind, Expected::Disproven);
        if Truth::of(&query).is_ok() {
            return query;
        }
    }
}

fn change_a_number(text: &str, random: &mut Random) -> Option<String> {
    let starts: Vec<usize> = text
        .match_indices(' ')
        .map(|(at, _)| at + 1)
        .filter(|&at| text.as_bytes()[at].is_ascii_digit())
        .collect();
    let at = *starts.get(random.next() as usize % starts.len().max(1))?;
    let end = at + text[at..].find([' ', ')']).unwrap_or(text.len() - at);
    let value: BigInt = text[at..end].parse().ok()?;
    let changed = value + random.pick(&[-1, 1, 2]);
    // A divisor must stay above 0.
    (changed > BigInt::ZERO).then(|| format!("{}{changed}{}", &text[..at], &text[end..]))
}
