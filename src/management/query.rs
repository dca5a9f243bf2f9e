//! The query string.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Its pairs, decoded, in order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    /// The last value of this name, as RabbitMQ's tools expect.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Is it there and true?
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }
}

/// Percent-encoding, and `+` for a space.
pub fn decode(text: &str) -> String {
    let text = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_the_last_value_wins() {
        let query = Query::parse("a=1&b=x+y%2Bz&a=2&flag&&use_regex=true");
        assert_eq!((query.get("a"), query.get("b"), query.get("flag")), (Some("2"), Some("x y+z"), Some("")));
        assert_eq!(query.get("c"), None);
        assert!(query.is_true("use_regex") && !query.is_true("a"));
    }
}
