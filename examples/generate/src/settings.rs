//! The settings of a model: the text around turns, the end tokens, and the sizes to compile for.

use crate::Error;
use serde_json::Value;
use std::path::Path;

/// The contents of `settings.json`.
///
/// A conversation is `start`, and then for each turn `before`, the message, `after` and the answer. `next` is between
/// an answer and the next turn.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Begins a conversation.
    pub start: String,
    /// Precedes a message.
    pub before: String,
    /// Follows a message; the answer comes next.
    pub after: String,
    /// Follows an answer, before the next message.
    pub next: String,
    /// The texts before and after a system message, which replace `start`; empty if the model knows none.
    pub system: [String; 2],
    /// Tokens that end an answer.
    pub end: Vec<String>,
    /// The ranges of the model's symbols, such as `batch_size=1..8`.
    pub dims: Vec<String>,
}

impl Settings {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it can't be read, or is not a JSON object with all these fields. Only `system` may be missing.
    pub fn read(path: &Path) -> Result<Settings, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
        Settings::parse(&text).map_err(|reason| Error::file(path, reason))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// As [`Settings::read`], with the reason.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let string = |name: &str| {
            value[name].as_str().map(str::to_string).ok_or_else(|| format!("`{name}` must be a string"))
        };
        let strings = |name: &str| {
            let elems: Option<Vec<String>> = value[name]
                .as_array()
                .and_then(|all| all.iter().map(|one| Some(one.as_str()?.into())).collect());
            elems.ok_or_else(|| format!("`{name}` must be a list of strings"))
        };
        let system = match &value["system"] {
            Value::Null => Ok([String::new(), String::new()]),
            _ => strings("system")?.try_into().map_err(|_| "`system` must be two strings".to_string()),
        };
        Ok(Settings {
            system: system?,
            start: string("start")?,
            before: string("before")?,
            after: string("after")?,
            next: string("next")?,
            end: strings("end")?,
            dims: strings("dims")?,
        })
    }

    /// The first turn of a conversation, up to its answer.
    pub fn first_turn(&self, message: &str) -> String {
        format!("{}{}{message}{}", self.start, self.before, self.after)
    }

    /// A later turn: the text after the answer before it, up to the answer of this turn.
    pub fn later_turn(&self, message: &str) -> String {
        format!("{}{}{message}{}", self.next, self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    const TEXT: &str = r#"{"start": "<s>", "before": "[", "after": "]", "next": "\n", "end": ["</s>"],
        "dims": ["N=1..8"]}"#;

    #[test]
    fn turns_are_framed() {
        let settings = Settings::parse(TEXT).expect("valid");
        assert_eq!(settings.first_turn("hi"), "<s>[hi]");
        assert_eq!(settings.later_turn("go on"), "\n[go on]");
        assert_eq!(settings.end, ["</s>"]);
    }

    #[test]
    fn missing_and_wrong_fields_are_named() {
        let without = TEXT.replace("after", "behind");
        assert_eq!(Settings::parse(&without), Err("`after` must be a string".to_string()));
        let wrong = TEXT.replace(r#"["</s>"]"#, "[3]");
        assert_eq!(Settings::parse(&wrong), Err("`end` must be a list of strings".to_string()));
        assert!(Settings::parse("[").is_err());
        let wrong = TEXT.replace("{\"start\"", "{\"system\": [\"a\"], \"start\"");
        assert_eq!(Settings::parse(&wrong), Err("`system` must be two strings".to_string()));
    }
}
