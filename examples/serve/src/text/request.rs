//! Requests for completions and for answers in chats.

use super::{Service, chat, fields::Fields};
use crate::error::Refusal;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use symshape_example_generate::Sampler;

/// Largest number of stop strings.
const MAX_STOPS: usize = 4;
/// Tokens of a completion, unless the request says otherwise.
const COMPLETION_TOKENS: usize = 16;
/// Fields without an effect on the answer.
const WITHOUT_EFFECT: [&str; 6] =
    ["user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"];

/// The form of a request and of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Completion,
    Chat,
}

/// A request that can run.
pub struct Generation {
    pub prompt: Vec<i64>,
    pub max_tokens: usize,
    pub sampler: Sampler,
    pub stops: Vec<String>,
    /// Whether the text is sent as it comes.
    pub is_streamed: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub has_usage: bool,
}

/// Reads a request.
pub fn parse(service: &Service, form: Form, body: &[u8]) -> Result<Generation, Refusal> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.ok_or_else(|| Refusal::invalid("`model` is missing"))?;
    service.frontend.find(&model)?;

    let prompt = match form {
        Form::Completion => completion_prompt(service, &mut fields)?,
        Form::Chat => {
            let messages =
                fields.take("messages").ok_or_else(|| Refusal::invalid("`messages` is missing"))?;
            encode(service, &chat::text(&service.settings, messages)?)?
        }
    };
    let place = service.max_tokens.saturating_sub(prompt.len());
    if prompt.is_empty() || place == 0 {
        let max = service.max_tokens - 1;
        return Err(Refusal::Invalid(format!(
            "the prompt has {} tokens; it must have 1 to {max}",
            prompt.len()
        )));
    }

    let default = if form == Form::Completion { COMPLETION_TOKENS } else { place };
    let max_tokens = fields.count("max_tokens")?;
    let max_tokens =
        if form == Form::Chat { fields.count("max_completion_tokens")?.or(max_tokens) } else { max_tokens };
    let temperature = fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0);
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0);
    let seed = fields.integer("seed")?.map_or_else(any_seed, |seed| seed as u64);
    let stops = fields.strings("stop", MAX_STOPS)?;
    let is_streamed = fields.bool("stream")?;
    let has_usage = match fields.take("stream_options") {
        Some(_) if !is_streamed => return Err(Refusal::invalid("`stream_options` needs `stream`")),
        Some(options) => stream_options(options)?,
        None => false,
    };
    expect_neutral(&mut fields)?;
    fields.finish("the request")?;

    Ok(Generation {
        prompt,
        max_tokens: max_tokens.unwrap_or(default),
        sampler: Sampler::new(temperature as f32, top_p as f32, seed),
        stops,
        is_streamed,
        has_usage,
    })
}

/// The tokens of `prompt`: a text or tokens, or a list with one of them.
fn completion_prompt(service: &Service, fields: &mut Fields) -> Result<Vec<i64>, Refusal> {
    let mut prompt = fields.take("prompt").ok_or_else(|| Refusal::invalid("`prompt` is missing"))?;
    if let Value::Array(prompts) = &mut prompt
        && prompts.iter().any(|one| !one.is_number())
    {
        let [one] = &mut prompts[..] else {
            return Err(Refusal::invalid("`prompt` must be one prompt; send a request for each"));
        };
        prompt = one.take();
    }
    match prompt {
        Value::String(text) => encode(service, &text),
        Value::Array(tokens) => {
            let token =
                |token: &Value| token.as_i64().filter(|token| (0..service.vocabulary).contains(token));
            let unknown = || Refusal::invalid("`prompt` must be a text or a list of tokens of the model");
            tokens.iter().map(|value| token(value).ok_or_else(unknown)).collect()
        }
        _ => Err(Refusal::invalid("`prompt` must be a text or a list of tokens of the model")),
    }
}

fn encode(service: &Service, text: &str) -> Result<Vec<i64>, Refusal> {
    service.text.encode(text).map_err(|error| Refusal::Invalid(error.to_string()))
}

fn stream_options(options: Value) -> Result<bool, Refusal> {
    let mut fields = Fields::of(options, "`stream_options`")?;
    let has_usage = fields.bool("include_usage")?;
    fields.expect_neutral("include_obfuscation", &[json!(false)])?;
    fields.finish("`stream_options`")?;
    Ok(has_usage)
}

/// Refuses fields that would change the answer and are not supported.
fn expect_neutral(fields: &mut Fields) -> Result<(), Refusal> {
    let neutral = [
        ("n", vec![json!(1)]),
        ("best_of", vec![json!(1)]),
        ("echo", vec![json!(false)]),
        ("logprobs", vec![json!(false)]),
        ("suffix", vec![json!("")]),
        ("presence_penalty", vec![json!(0), json!(0.0)]),
        ("frequency_penalty", vec![json!(0), json!(0.0)]),
        ("logit_bias", vec![json!({})]),
        ("tools", vec![json!([])]),
        ("tool_choice", vec![json!("none"), json!("auto")]),
        ("response_format", vec![json!({ "type": "text" })]),
        ("modalities", vec![json!(["text"])]),
    ];
    for (name, values) in neutral {
        fields.expect_neutral(name, &values)?;
    }
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    Ok(())
}

/// A seed that differs from request to request.
fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
