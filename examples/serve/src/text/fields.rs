//! The fields of a request: each is read once, and those that nothing reads are refused.

use crate::error::Refusal;
use serde_json::{Map, Value};

/// The fields of a JSON object that are still to be read.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a body.
    pub fn parse(body: &[u8]) -> Result<Fields, Refusal> {
        let value = serde_json::from_slice(body)
            .map_err(|error| Refusal::Invalid(format!("the body is not JSON: {error}")))?;
        Fields::of(value, "the body")
    }

    /// The fields of an object.
    pub fn of(value: Value, name: &str) -> Result<Fields, Refusal> {
        match value {
            Value::Object(fields) => Ok(Fields(fields)),
            _ => Err(Refusal::Invalid(format!("{name} must be an object"))),
        }
    }

    /// A field that is there and not null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        self.of_kind(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub fn bool(&mut self, name: &str) -> Result<bool, Refusal> {
        Ok(self.of_kind(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    pub fn count(&mut self, name: &str) -> Result<Option<usize>, Refusal> {
        self.of_kind(name, "a number that is not negative", |value| usize::try_from(value.as_u64()?).ok())
    }

    pub fn integer(&mut self, name: &str) -> Result<Option<i64>, Refusal> {
        self.of_kind(name, "an integer", Value::as_i64)
    }

    /// A number in a range.
    pub fn number(&mut self, name: &str, lo: f64, hi: f64) -> Result<Option<f64>, Refusal> {
        let number = self.of_kind(name, "a number", Value::as_f64)?;
        match number.filter(|number| !(lo..=hi).contains(number)) {
            Some(number) => Err(Refusal::Invalid(format!("`{name}` is {number}; it must be {lo} to {hi}"))),
            None => Ok(number),
        }
    }

    /// A string, or up to `max` strings.
    pub fn strings(&mut self, name: &str, max: usize) -> Result<Vec<String>, Refusal> {
        let strings = self.of_kind(name, "a string or a list of strings", |value| match value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        let strings = strings.unwrap_or_default();
        if strings.len() > max {
            return Err(Refusal::Invalid(format!("`{name}` has {} strings; at most {max}", strings.len())));
        }
        Ok(strings)
    }

    /// Refuses a field unless it has the value without effect.
    pub fn expect_neutral(&mut self, name: &str, neutral: &[Value]) -> Result<(), Refusal> {
        match self.take(name) {
            Some(value) if !neutral.contains(&value) => {
                Err(Refusal::Invalid(format!("`{name}` = {value} is not supported")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses fields that were not read.
    pub fn finish(self, name: &str) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((field, _)) => Err(Refusal::Invalid(format!("{name} has an unknown field `{field}`"))),
            None => Ok(()),
        }
    }

    fn of_kind<T>(
        &mut self,
        name: &str,
        kind: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || Refusal::Invalid(format!("`{name}` must be {kind}"));
        read(&value).map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;
    use serde_json::json;

    fn fields(value: serde_json::Value) -> Fields {
        Fields::of(value, "the body").expect("an object")
    }

    #[test]
    fn fields_of_wrong_kinds_are_refused_by_name() {
        let mut wrong =
            fields(json!({ "a": 1, "b": "x", "c": -1, "d": 3.5, "e": ["x", 1], "f": ["x", "y"] }));
        let messages = [
            wrong.string("a").map(drop),
            wrong.bool("b").map(drop),
            wrong.count("c").map(drop),
            wrong.number("d", 0.0, 2.0).map(drop),
            wrong.strings("e", 4).map(drop),
            wrong.strings("f", 1).map(drop),
        ]
        .map(|result| result.expect_err("wrong").to_string());
        let expected = [
            "`a` must be a string",
            "`b` must be true or false",
            "`c` must be a number that is not negative",
            "`d` is 3.5; it must be 0 to 2",
            "`e` must be a string or a list of strings",
            "`f` has 2 strings; at most 1",
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn unread_fields_and_effects_that_are_missing_are_refused() {
        let mut some = fields(json!({ "n": 2, "logprobs": null, "echo": false, "top_k": 3 }));
        let error = some.expect_neutral("n", &[json!(1)]).expect_err("two");
        assert_eq!(error.to_string(), "`n` = 2 is not supported");
        some.expect_neutral("echo", &[json!(false)]).expect("no effect");
        let error = some.finish("the body").expect_err("one field is left");
        assert_eq!(error.to_string(), "the body has an unknown field `top_k`");
    }
}
