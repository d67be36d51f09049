//! The text of a chat, with the texts around its turns.

use super::fields::Fields;
use crate::error::Refusal;
use serde_json::Value;
use symshape_example_generate::Settings;

/// The text that the next answer follows.
pub fn text(settings: &Settings, messages: Value) -> Result<String, Refusal> {
    let Value::Array(messages) = messages else {
        return Err(Refusal::invalid("`messages` must be a list"));
    };
    let mut text = settings.start.clone();
    let mut is_answer_next = false;
    for (at, message) in messages.into_iter().enumerate() {
        let (role, content) = message_of(message, at)?;
        match role.as_str() {
            "system" | "developer" if at == 0 => {
                let [before, after] = &settings.system;
                if before.is_empty() && after.is_empty() {
                    return Err(Refusal::invalid("the model knows no system messages"));
                }
                text = format!("{before}{content}{after}");
            }
            "user" if !is_answer_next => {
                text += &format!("{}{content}{}", settings.before, settings.after);
                is_answer_next = true;
            }
            "assistant" if is_answer_next => {
                text += &format!("{content}{}", settings.next);
                is_answer_next = false;
            }
            _ => {
                return Err(Refusal::Invalid(format!(
                    "message {at} can't be of role `{role}`: after a system message, messages of `user` and `assistant` \
                     take turns"
                )));
            }
        }
    }
    if is_answer_next { Ok(text) } else { Err(Refusal::invalid("the last message must be of role `user`")) }
}

/// The role and the text of a message.
fn message_of(message: Value, at: usize) -> Result<(String, String), Refusal> {
    let name = format!("message {at}");
    let mut fields = Fields::of(message, &name)?;
    let role = fields.string("role")?.ok_or_else(|| Refusal::Invalid(format!("{name} has no `role`")))?;
    let content =
        fields.take("content").ok_or_else(|| Refusal::Invalid(format!("{name} has no `content`")))?;
    // The name of the speaker has no place in the text.
    fields.take("name");
    fields.expect_neutral("tool_calls", &[Value::Array(Vec::new())])?;
    fields.take("refusal");
    fields.finish(&name)?;
    let content = match content {
        Value::String(text) => text,
        Value::Array(parts) => {
            parts.into_iter().map(|part| part_text(part, &name)).collect::<Result<_, _>>()?
        }
        _ => {
            return Err(Refusal::Invalid(format!("`content` of {name} must be a string or a list of parts")));
        }
    };
    Ok((role, content))
}

/// The text of a part of a message.
fn part_text(part: Value, name: &str) -> Result<String, Refusal> {
    let mut fields = Fields::of(part, &format!("a part of {name}"))?;
    fields.expect_neutral("type", &[Value::from("text")])?;
    fields.string("text")?.ok_or_else(|| Refusal::Invalid(format!("a part of {name} has no `text`")))
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;
    use symshape_example_generate::Settings;

    fn settings() -> Settings {
        Settings {
            start: "S".into(),
            before: "[".into(),
            after: "]".into(),
            next: "\n".into(),
            system: ["{".into(), "}".into()],
            ..Settings::default()
        }
    }

    #[test]
    fn turns_are_framed() {
        let messages = json!([
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "b" },
            { "role": "user", "content": [{ "type": "text", "text": "c" }, { "type": "text", "text": "d" }] },
        ]);
        assert_eq!(text(&settings(), messages).expect("valid"), "S[a]b\n[cd]");
        let messages = json!([{ "role": "system", "content": "x" }, { "role": "user", "content": "a" }]);
        assert_eq!(text(&settings(), messages).expect("valid"), "{x}[a]");
    }

    #[test]
    fn wrong_messages_are_refused() {
        let user = json!({ "role": "user", "content": "a" });
        let cases = [
            (json!("a"), "`messages` must be a list"),
            (json!([]), "the last message must be of role `user`"),
            (json!([{ "role": "user" }]), "message 0 has no `content`"),
            (json!([{ "content": "a" }]), "message 0 has no `role`"),
            (json!([user, user]), "message 1 can't be of role `user`"),
            (json!([user, { "role": "system", "content": "x" }]), "message 1 can't be of role `system`"),
            (
                json!([user, { "role": "assistant", "content": "x" }]),
                "the last message must be of role `user`",
            ),
            (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "is not supported"),
            (json!([{ "role": "user", "content": 3 }]), "`content` of message 0 must be"),
            (json!([{ "role": "user", "content": "a", "x": 1 }]), "message 0 has an unknown field `x`"),
        ];
        for (messages, expected) in cases {
            let error = text(&settings(), messages).expect_err("wrong").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let messages = json!([{ "role": "system", "content": "x" }, user]);
        let error = text(&Settings::default(), messages).expect_err("unknown").to_string();
        assert_eq!(error, "the model knows no system messages");
    }
}
