//! The text format of Prometheus, version 0.0.4. Written here and not by a library: RabbitMQ has untyped metrics and
//! names that the libraries do not let one have.

use std::fmt::{Display, Write as _};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Untyped,
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Untyped => "untyped",
            Self::Histogram => "histogram",
        }
    }
}

/// A page in the making. All samples of a metric come together.
#[derive(Debug)]
pub struct Page {
    text: String,
    prefix: &'static str,
    name: String,
}

/// Names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// `prefix` begins the name of each metric, but for those of other makers.
    pub fn new(prefix: &'static str) -> Self {
        Self { text: String::new(), prefix, name: String::new() }
    }

    /// Begins a metric: its samples follow.
    pub fn metric(&mut self, kind: Kind, name: &str, help: &str) -> &mut Self {
        self.begin(kind, format!("{}{name}", self.prefix), help)
    }

    /// As [`Self::metric`], with its whole name.
    pub fn plain_metric(&mut self, kind: Kind, name: &str, help: &str) -> &mut Self {
        self.begin(kind, name.to_owned(), help)
    }

    fn begin(&mut self, kind: Kind, name: String, help: &str) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# TYPE {name} {}\n# HELP {name} {help}", kind.as_str());
        self.name = name;
        self
    }

    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.sample_of("", labels, value)
    }

    /// `ending` is that of a part of a histogram: `_bucket`, `_sum`, `_count`.
    pub fn sample_of(&mut self, ending: &str, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.text += &self.name;
        self.text += ending;
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text += name;
            self.text += "=\"";
            for c in value.chars() {
                match c {
                    '\\' => self.text += "\\\\",
                    '"' => self.text += "\\\"",
                    '\n' => self.text += "\\n",
                    _ => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut page = Page::new("a_");
        page.metric(Kind::Gauge, "b", "What it is.").sample(&[("q", "x\"\\\ny"), ("v", "ü")], 1.5).sample(&[], 2);
        page.plain_metric(Kind::Untyped, "c", "Another.").sample(&[], 1);
        let expected = "# TYPE a_b gauge\n# HELP a_b What it is.\na_b{q=\"x\\\"\\\\\\ny\",v=\"ü\"} 1.5\na_b 2\n\
                        # TYPE c untyped\n# HELP c Another.\nc 1\n";
        assert_eq!(page.finish(), expected);
    }
}
