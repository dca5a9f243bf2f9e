//! The syntax of the config file, rabbitmq.conf's: a line at a time, and what its keys mean.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::settings::{FILE_KEYS, OPTIONS, Setting};
use super::values::Expected;

/// `key = value`.
pub(super) struct Line {
    pub(super) key: String,
    pub(super) value: String,
}

/// Reads `key = value # comment`; `None` for a line that says nothing.
/// As in RabbitMQ a `#` ends a value unless that is in single quotes, and a dot inside a word is written `\.`.
pub(super) fn read_line(line: &str) -> Result<Option<Line>, Expected> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let form = || "key = value".to_owned();
    let (key, value) = line.split_once('=').ok_or_else(form)?;
    let (key, value) = (key.trim(), value.trim());
    // The slash is for the vhost of that name.
    let key_char = |c: char| c.is_ascii_alphanumeric() || "_-.\\/".contains(c);
    if key.is_empty() || !key.chars().all(key_char) {
        return Err(form());
    }
    let value = match value.strip_prefix('\'') {
        Some(quoted) => {
            let (value, rest) = quoted.split_once('\'').ok_or("a closing ' after the value")?;
            let rest = rest.trim_start();
            if !rest.is_empty() && !rest.starts_with('#') {
                return Err("nothing after the closing '".to_owned());
            }
            value
        }
        None => {
            let value = value.split('#').next().unwrap_or_default().trim_end();
            if value.is_empty() {
                return Err(format!("a value after {key} = (nothing is written '', and # begins a comment)"));
            }
            value
        }
    };
    Ok(Some(Line { key: key.to_owned(), value: value.to_owned() }))
}

/// Replaces `$(NAME)` by the environment variable NAME.
pub(super) fn interpolate(value: &str, env: &BTreeMap<OsString, OsString>) -> Result<String, Expected> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("$(") {
        let Some((name, after)) = after.split_once(')') else { break };
        let found = env.get(OsStr::new(name)).and_then(|value| value.to_str());
        out.push_str(before);
        out.push_str(found.ok_or_else(|| format!("environment variable {name} to be set"))?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The setting that a key of the file names, and the word of the key that is the user's own.
pub(super) fn find_setting(key: &str) -> Option<(Setting, &str)> {
    let option = key.strip_prefix("leveret.");
    if let Some((_, setting)) = OPTIONS.into_iter().find(|(name, _)| Some(*name) == option) {
        return (setting != Setting::ConfigFile).then_some((setting, ""));
    }
    FILE_KEYS.iter().copied().find_map(|(known, setting)| match around_word(known) {
        None => (known == key).then_some((setting, "")),
        Some((before, after)) => {
            let word = key.strip_prefix(before)?.strip_suffix(after)?;
            (!word.is_empty()).then_some((setting, word))
        }
    })
}

/// What stands in a known key before and after the word that is the user's own; `None` if it has no such word.
fn around_word(known: &str) -> Option<(&str, &str)> {
    let (before, word) = known.split_once('$')?;
    Some((before, word.find('.').map_or("", |end| &word[end..])))
}

/// The known key that an unknown one was probably meant to be.
pub(super) fn nearest_key(key: &str) -> Option<String> {
    let words: Vec<&str> = key.split('.').collect();
    let ours = OPTIONS.iter().filter(|(_, setting)| *setting != Setting::ConfigFile);
    let ours = ours.map(|(name, _)| format!("leveret.{name}"));
    let known = FILE_KEYS.iter().map(|(known, _)| match around_word(known) {
        Some((before, after)) => {
            let word = words.get(before.matches('.').count()).or(words.last()).copied().unwrap_or_default();
            format!("{before}{word}{after}")
        }
        None => (*known).to_owned(),
    });
    nearest(key, known.chain(ours))
}

/// The candidate with the fewest changed letters, if few enough to be a slip.
pub(super) fn nearest(word: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    let slips_max = (word.len() / 3).max(2);
    let measured = candidates.map(|candidate| (edit_distance(word, &candidate), candidate));
    measured.filter(|(distance, _)| *distance <= slips_max).min().map(|(_, candidate)| candidate)
}

/// Letters to insert, remove or replace to get from one word to the other (Levenshtein).
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("Heartbeat", "heartbeat"), 0);
    }
}
