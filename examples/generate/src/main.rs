//! `generate`: text from a language model of `export.py`.

use clap::Parser;
use std::{
    io::{BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};
use symshape_example_generate::{
    Answer, Conversation, Error, Limits, Sampler, Sequences, Settings, Text, artefact, batch,
};

/// Generates text. Without a prompt and without --batch, it reads messages from standard input, one a line, and
/// answers each.
#[derive(Parser)]
struct Args {
    /// Folder with model.onnx or model.so, tokenizer.json and settings.json
    folder: PathBuf,
    /// A message to answer
    #[arg(conflicts_with = "batch")]
    prompt: Option<String>,
    /// Answer all messages of this file, one a line, several at once
    #[arg(long, value_name = "FILE")]
    batch: Option<PathBuf>,
    /// Largest number of tokens of an answer
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// Temperature; 0 always takes the most probable token
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    temperature: f32,
    /// Choose from the most probable tokens with this sum of probabilities
    #[arg(long, default_value_t = 1.0, value_parser = probability)]
    top_p: f32,
    /// Seed of the choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Do not end an answer at an end token
    #[arg(long)]
    ignore_end: bool,
    /// Print the tokens of each answer, for comparisons
    #[arg(long)]
    print_tokens: bool,
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "expected a number of at least 0".into())
}

fn probability(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "expected a number from 0 to 1".into())
}

fn main() -> ExitCode {
    match generate(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error}");
            ExitCode::from(2)
        }
    }
}

fn generate(args: &Args) -> Result<(), Error> {
    let settings = Settings::read(&args.folder.join("settings.json"))?;
    let text = Text::open(&args.folder.join("tokenizer.json"), &settings.end)?;
    let model = artefact::open(&args.folder, &settings)?;
    let mut sequences = Sequences::new(&model, args.threads)?;
    if let Some(path) = &args.batch {
        return answer_batch(args, path, &mut sequences, &text, &settings);
    }

    let mut sampler = Sampler::new(args.temperature, args.top_p, args.seed);
    let mut conversation = Conversation::new(&mut sequences, &text, &settings)?;
    let mut say = |message: &str| {
        let answer = conversation.say(message, &mut sampler, limits(args), show)?;
        show("\n");
        report(args, &answer);
        Ok(())
    };
    if let Some(prompt) = &args.prompt {
        return say(prompt);
    }

    let prompt = || {
        if std::io::stdin().is_terminal() {
            eprint!("> ");
        }
    };
    prompt();
    for line in std::io::stdin().lock().lines() {
        say(&line.map_err(|error| Error::Tokens(format!("standard input: {error}")))?)?;
        prompt();
    }
    Ok(())
}

/// Answers the messages of a file, as many at once as the model takes.
fn answer_batch(
    args: &Args,
    path: &Path,
    sequences: &mut Sequences,
    text: &Text,
    settings: &Settings,
) -> Result<(), Error> {
    let file = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let messages: Vec<String> = file.lines().filter(|line| !line.is_empty()).map(str::to_string).collect();
    let at_once = sequences.at_once();
    for (block, messages) in messages.chunks(at_once).enumerate() {
        let first = block * at_once;
        let sampler = |idx| Sampler::new(args.temperature, args.top_p, args.seed.wrapping_add(idx as u64));
        let samplers: Vec<Sampler> = (first..first + messages.len()).map(sampler).collect();
        let done = |idx: usize, answer: &Answer| {
            show(&format!("[{}] {}\n{}\n\n", first + idx + 1, messages[idx], answer.text));
            if args.print_tokens {
                show(&format!("tokens: {:?}\n", answer.tokens));
            }
        };
        let answers = batch::answer(sequences, text, settings, messages, &samplers, limits(args), done)?;
        let count: usize = answers.iter().map(|answer| answer.tokens.len().saturating_sub(1)).sum();
        let seconds = answers.iter().map(|answer| answer.decode_time.as_secs_f64()).fold(1e-9, f64::max);
        eprintln!("[{} conversations at once: {:.1} tokens/s]", answers.len(), count as f64 / seconds);
    }
    Ok(())
}

fn limits(args: &Args) -> Limits {
    Limits { tokens: args.tokens, ignore_end: args.ignore_end }
}

/// Prints a text at once. Ends the program if the reader has left.
fn show(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Prints how fast an answer was, and its tokens if they are wanted.
fn report(args: &Args, answer: &Answer) {
    if args.print_tokens {
        show(&format!("tokens: {:?}\n", answer.tokens));
    }
    eprintln!(
        "[read {} tokens in {:.0} ms; {} tokens at {:.1} tokens/s]",
        answer.tokens_read,
        answer.read_time.as_secs_f64() * 1e3,
        answer.tokens.len(),
        answer.tokens_per_second()
    );
}
