//! Strings that end an answer, which may come in several pieces.

/// Text as it comes, up to the first of some strings.
pub struct StopText {
    stops: Vec<String>,
    /// The end of the text, as long as it may be the beginning of a stop string.
    held: String,
}

impl StopText {
    pub fn new(stops: Vec<String>) -> StopText {
        StopText { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Takes a piece of text. Returns the text that is certain now, and whether a stop string has come.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held += piece;
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, true);
        }

        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let at = starts.find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text that was kept back, when no more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::StopText;

    /// All that comes out for these pieces, and whether a stop string has come.
    fn joined(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut text = StopText::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut all = String::new();
        for piece in pieces {
            let (some, is_end) = text.push(piece);
            all += &some;
            if is_end {
                return (all, true);
            }
        }
        (all + &text.finish(), false)
    }

    #[test]
    fn text_ends_before_the_first_stop_string() {
        assert_eq!(joined(&["END"], &["one E", "N", "D two"]), ("one ".into(), true));
        assert_eq!(joined(&["b", "ab"], &["xxab"]), ("xx".into(), true));
        assert_eq!(joined(&["ää"], &["ö", "ä", "ä"]), ("ö".into(), true));
    }

    #[test]
    fn text_without_stop_strings_comes_whole() {
        assert_eq!(joined(&["END", ""], &["EE", "N", "EN"]), ("EENEN".into(), false));
        assert_eq!(joined(&[], &["a", "", "b"]), ("ab".into(), false));
    }

    #[test]
    fn certain_text_is_not_kept_back() {
        let mut text = StopText::new(vec!["END".into()]);
        assert_eq!(text.push("one EN"), ("one ".into(), false));
        assert_eq!(text.push("X"), ("ENX".into(), false));
    }
}
