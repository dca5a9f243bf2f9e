//! Regular expressions over names, as RabbitMQ's permissions use them.

use std::borrow::Cow;
use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// Memory that one compiled pattern may take, in bytes, and again as much while it matches.
const PATTERN_SIZE_MAX: usize = 4 << 20;

/// A regular expression as RabbitMQ's permissions use them: it may match anywhere in the name, and the empty one
/// matches the empty name only. Matching takes time linear in the name, whatever the pattern; the price is that
/// look-around and back-references, which RabbitMQ's PCRE has, are refused.
#[derive(Clone)]
pub struct Pattern {
    source: Box<str>,
    form: Form,
}

#[derive(Clone)]
enum Form {
    /// `.*`, what nearly every user has.
    Everything,
    /// The empty pattern: nothing that has a name.
    EmptyOnly,
    Regex(Regex),
}

impl Pattern {
    /// # Errors
    /// Not a regular expression, one too large, or one that uses what we do not have.
    pub fn new(source: &str) -> Result<Self, PatternError> {
        Self::compile(source, source)
    }

    /// The pattern that means `expanded` and is shown as `source`.
    pub(super) fn compile(source: &str, expanded: &str) -> Result<Self, PatternError> {
        let form = match expanded {
            ".*" => Form::Everything,
            "" | "^$" => Form::EmptyOnly,
            _ => Form::Regex(regex(expanded).map_err(|error| PatternError::new(source, &error))?),
        };
        Ok(Self { source: source.into(), form })
    }

    /// The pattern as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.form {
            Form::Everything => true,
            Form::EmptyOnly => name.is_empty(),
            Form::Regex(regex) => regex.is_match(name.as_bytes()),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.source)
    }
}

fn regex(source: &str) -> Result<Regex, regex::Error> {
    let source = escape_stray_braces(source);
    let build = |unicode| {
        let mut builder = RegexBuilder::new(&source);
        builder.unicode(unicode).size_limit(PATTERN_SIZE_MAX).dfa_size_limit(PATTERN_SIZE_MAX).build()
    };
    // RabbitMQ matches bytes, so `\w` is ASCII there (and `\w{1,255}` stays small). A class such as `[äöü]` can only
    // be built the other way.
    build(false).or_else(|_| build(true))
}

/// Puts a `\` before each `{` that does not begin a count: PCRE takes those literally, our regex crate does not.
fn escape_stray_braces(source: &str) -> Cow<'_, str> {
    if !source.contains('{') {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let whole = match c {
            '\\' => escape_len(rest),
            '{' if !begins_count(rest) => {
                out.push('\\');
                1
            }
            _ => c.len_utf8(),
        };
        let (head, tail) = rest.split_at(whole);
        out.push_str(head);
        rest = tail;
    }
    Cow::Owned(out)
}

/// Length in bytes of the escape that `text` begins with: `\d`, or all of `\p{Greek}`, `\x{7F}`.
fn escape_len(text: &str) -> usize {
    let Some(escaped) = text[1..].chars().next() else { return 1 };
    let plain = 1 + escaped.len_utf8();
    match text[plain..].strip_prefix('{').and_then(|braced| braced.find('}')) {
        Some(end) if "pPxuU".contains(escaped) => plain + end + 2,
        _ => plain,
    }
}

/// Whether `text` begins with `{3}`, `{3,}` or `{3,5}`.
fn begins_count(text: &str) -> bool {
    let Some((inside, _)) = text[1..].split_once('}') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && digits(least) && digits(most)
}

/// Why a text is no pattern, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pattern '{pattern}': {reason}")]
pub struct PatternError {
    pub pattern: String,
    pub reason: String,
}

impl PatternError {
    fn new(pattern: &str, error: &regex::Error) -> Self {
        let reason = match error {
            regex::Error::CompiledTooBig(_) => "too large".to_owned(),
            // A drawing of several lines; the last one has the reason.
            other => {
                let text = other.to_string();
                let line = text.lines().last().unwrap_or_default();
                line.strip_prefix("error: ").unwrap_or(line).to_owned()
            }
        };
        Self { pattern: pattern.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(pattern: &str, names: &[&str]) -> Vec<bool> {
        let pattern = Pattern::new(pattern).unwrap();
        names.iter().map(|name| pattern.matches(name)).collect()
    }

    #[test]
    fn patterns_match_anywhere_in_the_name() {
        assert_eq!(matching("b", &["abc", "b", "", "B"]), [true, true, false, false]);
        assert_eq!(matching("^a", &["abc", "ba"]), [true, false]);
        assert_eq!(matching("a$", &["abc", "ba"]), [false, true]);
        assert_eq!(matching("^(a|b)$", &["a", "b", "ab"]), [true, true, false]);
        assert_eq!(matching("^amq\\.gen.*", &["amq.gen-1", "amqxgen"]), [true, false]);
        assert_eq!(matching("(?i)AB", &["xab"]), [true]);
    }

    #[test]
    fn empty_matches_empty_and_everything_matches_all() {
        assert_eq!(matching("", &["", "a"]), [true, false]);
        assert_eq!(matching("^$", &["", "a"]), [true, false]);
        assert_eq!(matching(".*", &["", "a", "a\nb", "ü"]), [true; 4]);
        assert_eq!(matching("^.*$", &["", "a", "ü"]), [true; 3]);
    }

    #[test]
    fn patterns_know_bytes_and_unicode() {
        assert_eq!(matching("^\\w+$", &["abc_1", "zoë"]), [true, false], "ASCII, as in RabbitMQ");
        assert_eq!(matching("^zoë-[äöü]+$", &["zoë-äü", "zoë-a"]), [true, false]);
        assert_eq!(matching("^\\w{1,255}$", &["abc"]), [true]);
    }

    #[test]
    fn stray_braces_are_literal() {
        assert_eq!(matching("^{a}$", &["{a}", "a"]), [true, false]);
        assert_eq!(matching("^{client_id}-.*", &["{client_id}-x"]), [true]);
        assert_eq!(matching("^a{2}$", &["aa", "a{2}"]), [true, false]);
        assert_eq!(matching("^a{2,}b{1,3}$", &["aaabb", "ab"]), [true, false]);
        assert_eq!(matching("^\\{a\\{[{}]$", &["{a{{"]), [true]);
        assert_eq!(matching("^\\x{41}\\p{Lu}$", &["AB"]), [true]);
        assert_eq!(matching("a{", &["a{"]), [true]);
    }

    #[test]
    fn bad_patterns_say_why_in_one_line() {
        let error = |source: &str| Pattern::new(source).unwrap_err().to_string();
        assert_eq!(error("("), "pattern '(': unclosed group");
        assert_eq!(error("a\\"), "pattern 'a\\': incomplete escape sequence, reached end of pattern prematurely");
        let look = error("^(?!amq\\.).*");
        assert!(look.contains("look-around") && !look.contains('\n'), "{look}");
        assert_eq!(error("(a{1000}){1000}"), "pattern '(a{1000}){1000}': too large");
    }
}
