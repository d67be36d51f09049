//! A program with a model inside: no file to load, nothing to install, one arena, sizes that vary from call to call.

mod swish;

symshape_runtime::include_model!("block");

const CHANNELS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut block = Block::new()?;
    println!("N up to {}, S up to {}, arena up to {} bytes", Block::N_MAX, Block::S_MAX, Block::ARENA_MAX);
    println!("products on tile registers: {}", if Block::model()?.uses_tiles() { "yes" } else { "no" });
    let elems = Block::N_MAX * Block::S_MAX * CHANNELS;
    let x: Vec<f32> = (0..elems).map(|idx| (idx as f32 * 0.37).sin()).collect();
    let mut y = vec![0.0; elems];
    let mut alone = vec![0.0; Block::S_MAX * CHANNELS];
    for (n, s) in [(1, 1), (3, 7), (Block::N_MAX, Block::S_MAX)] {
        let row = s * CHANNELS;
        block.run(n, s, &x[..n * row], &mut y[..n * row])?;
        block.run(1, s, &x[(n - 1) * row..n * row], &mut alone[..row])?;
        let same = y[(n - 1) * row..n * row] == alone[..row];
        println!("N={n} S={s}: the last row is {}the same as alone", if same { "" } else { "NOT " });
        assert!(same && alone[..row].iter().any(|value| *value != 0.0));
    }
    let refusal = block.run(Block::N_MAX + 1, 1, &[0.0; 9 * CHANNELS], &mut [0.0; 9 * CHANNELS]).unwrap_err();
    println!("N={}: {refusal}", Block::N_MAX + 1);
    assert_eq!(refusal.to_string(), "`x` axis 0 gives N = 9; N is declared 1..=8");
    let refusal = block.run(2, 1, &[0.0; 3], &mut y).unwrap_err();
    println!("a short slice: {refusal}");
    assert_eq!(refusal.to_string(), "`x`: the shape needs 512 bytes; the memory has 12");
    swish::call()
}
