//! Replies: as one object, or as a stream of chunks.

use super::{engine::Reason, now, request::Form};
use serde_json::{Value, json};

/// Numbers of tokens of a request.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub prompt: usize,
    pub answer: usize,
}

/// What all chunks of a reply have in common.
#[derive(Clone, Debug)]
pub struct Reply {
    form: Form,
    id: String,
    model: String,
    created: u64,
}

impl Reply {
    pub fn new(form: Form, id: &str, model: &str) -> Reply {
        let prefix = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        Reply { form, id: format!("{prefix}-{id}"), model: model.to_owned(), created: now() }
    }

    /// The whole reply.
    pub fn whole(&self, text: &str, reason: Reason, usage: Usage) -> Value {
        let finish_reason = reason_text(reason);
        let choice = match self.form {
            Form::Completion => {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason })
            }
            Form::Chat => json!({
                "index": 0,
                "message": { "role": "assistant", "content": text, "refusal": null },
                "logprobs": null,
                "finish_reason": finish_reason,
            }),
        };
        let object = if self.form == Form::Chat { "chat.completion" } else { "text_completion" };
        let mut reply = self.object(object, vec![choice]);
        reply["usage"] = usage_json(usage);
        reply
    }

    /// The chunk before the text: a chat names the role.
    pub fn first(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.form == Form::Chat).then(|| self.chunk(delta, "", Value::Null))
    }

    /// A piece of text.
    pub fn piece(&self, text: &str) -> Value {
        self.chunk(json!({ "content": text }), text, Value::Null)
    }

    /// The end of the text.
    pub fn end(&self, reason: Reason) -> Value {
        self.chunk(json!({}), "", reason_text(reason).into())
    }

    /// The numbers of tokens, after the end.
    pub fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object(self.chunk_object(), Vec::new());
        chunk["usage"] = usage_json(usage);
        chunk
    }

    fn chunk(&self, delta: Value, text: &str, finish_reason: Value) -> Value {
        let choice = match self.form {
            Form::Completion => {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason })
            }
            Form::Chat => {
                json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason })
            }
        };
        self.object(self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }
}

fn reason_text(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::Length => "length",
    }
}

fn usage_json(usage: Usage) -> Value {
    let Usage { prompt, answer } = usage;
    json!({ "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer })
}
