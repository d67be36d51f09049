//! scratch: cases against the oracle
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use symshape_compiler::{graph::eval, import::*, tensor::Tensor};

fn cases(dir: &Path, out: &mut Vec<PathBuf>) {
    if dir.join("model.onnx").exists() {
        out.push(dir.to_path_buf());
        return;
    }
    let Ok(rd) = std::fs::read_dir(dir) else { return };
    let mut v: Vec<_> = rd.filter_map(|e| e.ok()).map(|e| e.path()).filter(|p| p.is_dir()).collect();
    v.sort();
    for p in v {
        cases(&p, out);
    }
}
fn load(dir: &Path, kind: &str) -> Result<Vec<Tensor>, String> {
    let mut v = vec![];
    for i in 0.. {
        let p = dir.join(format!("{kind}_{i}.pb"));
        if !p.exists() {
            break;
        }
        v.push(read_tensor(&p).map_err(|e| format!("pb {e}"))?.1);
    }
    Ok(v)
}
fn run(dir: &Path, shapes_only: bool, bind: bool) -> Result<String, (&'static str, String)> {
    let t = Instant::now();
    let model = Model::open(&dir.join("model.onnx")).map_err(|e| ("unsupported", e.to_string()))?;
    let mut o = ImportOptions::default();
    if let Ok(b) = std::fs::read_to_string(dir.join("bounds.json")) {
        o.bounds = parse_bounds(&b).unwrap();
    }
    let mut sets: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|e| e.ok())
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect();
    sets.sort();
    let names: Vec<String> = model.input_names().iter().map(|s| s.to_string()).collect();
    let mut kept: Vec<usize> = (0..names.len()).collect();
    if bind {
        if let Ok(ins) = load(&sets[0], "input") {
            for (k, x) in ins.iter().enumerate() {
                if k < names.len() && (!x.dtype().is_float() || matches!(names[k].as_str(), "scales" | "roi"))
                {
                    o.binds.push((names[k].clone(), Bound::Tensor(x.clone())));
                    kept.retain(|j| *j != k);
                }
            }
        }
    }
    let g = import(&model, &o).map_err(|e| ("unsupported", format!("{:?} {e}", e.kind())))?;
    let ti = t.elapsed();
    let (rtol, atol) = std::fs::read_to_string(dir.join("data.json"))
        .ok()
        .and_then(|s| {
            let j: serde_json::Value = serde_json::from_str(&s).ok()?;
            Some((j["rtol"].as_f64().unwrap_or(1e-3), j["atol"].as_f64().unwrap_or(1e-7)))
        })
        .unwrap_or((1e-3, 1e-7));
    for set in &sets {
        let ins = load(set, "input").map_err(|e| ("pb", e))?;
        let ins: Vec<Tensor> = kept
            .iter()
            .map(|k| ins.get(*k).cloned().ok_or(("pb", "missing input".to_string())))
            .collect::<Result<_, _>>()?;
        let want = load(set, "output").map_err(|e| ("pb", e))?;
        let at = |m: String| ("fail", format!("{}: {m}", set.file_name().unwrap().to_string_lossy()));
        if shapes_only {
            let sh: Vec<&[usize]> = ins.iter().map(|t| t.shape()).collect();
            let b = eval::bind(&g, &sh).map_err(|e| at(e.to_string()))?;
            for ((name, v), w) in g.outputs.iter().zip(&want) {
                let s = eval::sizes(g.shape(*v), &b).map_err(|e| at(e.to_string()))?;
                if s != w.shape() || g.dtype(*v) != w.dtype() {
                    return Err(at(format!("{name} {s:?} want {:?}", w.shape())));
                }
            }
            continue;
        }
        let got = eval::eval(&g, &ins).map_err(|e| ("error", e.to_string()))?;
        if got.len() != want.len() {
            return Err(at(format!("{} outputs want {}", got.len(), want.len())));
        }
        for (k, (a, b)) in got.iter().zip(&want).enumerate() {
            if a.dtype() != b.dtype() || a.shape() != b.shape() {
                return Err(at(format!(
                    "out {k}: {}{:?} want {}{:?}",
                    a.dtype(),
                    a.shape(),
                    b.dtype(),
                    b.shape()
                )));
            }
            for i in 0..a.elems() {
                let (x, y) = (a.get(i).as_f64(), b.get(i).as_f64());
                let ok = if a.dtype().is_float() {
                    (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= atol + rtol * y.abs()
                } else {
                    a.get(i) == b.get(i)
                };
                if !ok {
                    return Err(at(format!("out {k} [{i}]: {x} want {y} (shape {:?})", a.shape())));
                }
            }
        }
    }
    Ok(format!(
        "{:.0}ms import, {:.0}ms, {} nodes; {}",
        ti.as_secs_f64() * 1e3,
        t.elapsed().as_secs_f64() * 1e3,
        g.nodes.len(),
        g.outputs
            .iter()
            .take(3)
            .map(|(n, v)| format!("{n}: {:?}", g.shape(*v)))
            .collect::<Vec<_>>()
            .join(" ")
    ))
}
fn main() {
    let mut shapes = false;
    let mut bind = false;
    let mut verbose = false;
    let mut dirs = vec![];
    for a in std::env::args().skip(1) {
        match a.as_str() {
            "--shapes" => shapes = true,
            "--bind" => bind = true,
            "-v" => verbose = true,
            _ => cases(Path::new(&a), &mut dirs),
        }
    }
    std::panic::set_hook(Box::new(|_| {}));
    let mut count = std::collections::BTreeMap::<&str, usize>::new();
    for d in dirs {
        let d2 = d.clone();
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .stack_size(64 << 20)
            .spawn(move || {
                let r = std::panic::catch_unwind(|| run(&d2, shapes, bind)).unwrap_or_else(|e| {
                    Err((
                        "crash",
                        e.downcast_ref::<String>()
                            .cloned()
                            .or(e.downcast_ref::<&str>().map(|s| s.to_string()))
                            .unwrap_or_default(),
                    ))
                });
                let _ = tx.send(r);
            })
            .unwrap();
        let r = rx
            .recv_timeout(std::time::Duration::from_secs(if shapes { 300 } else { 20 }))
            .unwrap_or(Err(("timeout", String::new())));
        let name = d.file_name().unwrap().to_string_lossy().to_string();
        match r {
            Ok(m) => {
                *count.entry("pass").or_default() += 1;
                if verbose {
                    println!("pass {name} {m}");
                }
            }
            Err((s, m)) => {
                *count.entry(s).or_default() += 1;
                println!("{s} {name} {}", m.replace('\n', " "));
            }
        }
    }
    println!("{count:?}");
}
