//! A walk through JSON that knows where it is, so that what is wrong can be found in the file.

use std::fmt;

use serde_json::{Map, Value};

use super::DefinitionError;
use super::json::table_from_json;
use leveret_protocol::FieldTable;

/// A value and its place.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) value: &'a Value,
    parent: Option<&'a Cursor<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

type Read<T> = Result<T, DefinitionError>;

impl<'a> Cursor<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self { value, parent: None, step: Step::Root }
    }

    /// Where this is, such as `$.queues[3].name`.
    pub(super) fn path(&self) -> String {
        self.to_string()
    }

    /// That something is wrong here.
    pub(super) fn wrong(&self, reason: impl Into<String>) -> DefinitionError {
        DefinitionError::new(self.path(), reason)
    }

    fn expected(&self, what: &str) -> DefinitionError {
        let found = match self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) => number.to_string(),
            Value::String(text) if text.len() <= 64 => format!("\"{text}\""),
            Value::String(_) => "a text".to_owned(),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        };
        self.wrong(format!("expected {what}, found {found}"))
    }

    pub(super) fn object(&self) -> Read<&'a Map<String, Value>> {
        self.value.as_object().ok_or_else(|| self.expected("an object"))
    }

    /// A field that may be missing or null.
    pub(super) fn field(&'a self, name: &'a str) -> Option<Cursor<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Cursor { value, parent: Some(self), step: Step::Key(name) })
    }

    pub(super) fn need(&'a self, name: &'a str) -> Read<Cursor<'a>> {
        self.field(name).ok_or_else(|| self.wrong(format!("{name} is missing")))
    }

    /// The entries of a list.
    pub(super) fn entries(&'a self) -> Read<impl Iterator<Item = Cursor<'a>>> {
        let list = self.value.as_array().ok_or_else(|| self.expected("a list"))?;
        let entry = |(index, value)| Cursor { value, parent: Some(self), step: Step::Index(index) };
        Ok(list.iter().enumerate().map(entry))
    }

    pub(super) fn text(&self) -> Read<&'a str> {
        self.value.as_str().ok_or_else(|| self.expected("a text"))
    }

    /// The name of a thing: 255 bytes at most.
    pub(super) fn name(&self) -> Read<&'a str> {
        let name = self.text()?;
        if name.len() > 255 { Err(self.expected("a name of at most 255 bytes")) } else { Ok(name) }
    }

    /// `true` and `false`, also as texts.
    pub(super) fn boolean(&self) -> Read<bool> {
        match self.value {
            Value::Bool(value) => Ok(*value),
            Value::String(text) if text == "true" => Ok(true),
            Value::String(text) if text == "false" => Ok(false),
            _ => Err(self.expected("true or false")),
        }
    }

    pub(super) fn integer(&self) -> Read<i64> {
        let text = || self.value.as_str().and_then(|text| text.parse().ok());
        self.value.as_i64().or_else(text).ok_or_else(|| self.expected("an integer"))
    }

    /// Tags: a list of texts, or one text with commas.
    pub(super) fn tags(&self) -> Read<Vec<String>> {
        match self.value {
            Value::String(text) => {
                Ok(text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect())
            }
            Value::Array(list) => {
                let tags = list.iter().map(|tag| tag.as_str().map(str::to_owned));
                tags.collect::<Option<_>>().ok_or_else(|| self.expected("texts in the list"))
            }
            _ => Err(self.expected("a list of texts, or one with commas")),
        }
    }

    /// True for `[]`, which old tools write for an object without fields.
    pub(super) fn is_empty_list(&self) -> bool {
        self.value.as_array().is_some_and(Vec::is_empty)
    }

    /// Arguments: an object.
    pub(super) fn table(&self) -> Read<FieldTable> {
        if self.is_empty_list() {
            return Ok(FieldTable::new());
        }
        table_from_json(self.object()?).map_err(|reason| self.wrong(reason))
    }

    /// Notes every field that is not among the known ones.
    pub(super) fn note_unknown(&self, known: &[&str], notes: &mut Vec<String>) -> Read<()> {
        for name in self.object()?.keys().filter(|name| !known.contains(&name.as_str())) {
            notes.push(format!("{self}.{name} is not known and has no effect"));
        }
        Ok(())
    }
}

impl fmt::Display for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.step {
            Step::Root => f.write_str("$"),
            Step::Key(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}
