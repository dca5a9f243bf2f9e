//! How results look: tables as RabbitMQ's tools print them, JSON, CSV.

use serde_json::{Map, Value};

use super::{Failure, Request};

/// What `--formatter` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Table,
    Json,
    Csv,
}

impl Format {
    pub fn parse(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "table" | "pretty_table" | "string" | "plain" | "report" => Self::Table,
            "json" | "json_stream" => Self::Json,
            "csv" => Self::Csv,
            _ => return Err(Failure::usage(format!("--formatter {name}: expected table, json or csv"))),
        })
    }
}

/// Prints to stdout; whoever reads it may have gone.
pub struct Printer {
    pub format: Format,
    banners: bool,
    headers: bool,
}

impl Printer {
    pub fn new(request: &Request) -> Self {
        let banners = !request.quiet && !request.silent && request.format == Format::Table;
        Self { format: request.format, banners, headers: !request.silent && !request.no_headers }
    }

    /// What is being done.
    pub fn banner(&self, text: &str) {
        if self.banners {
            line(text);
        }
    }

    /// A result that is one text.
    pub fn text(&self, text: &str) {
        match self.format {
            Format::Json => line(&Value::from(text).to_string()),
            _ => line(text),
        }
    }

    /// One row for each object.
    pub fn rows(&self, columns: &[&str], rows: &[Map<String, Value>]) {
        let separator = match self.format {
            Format::Json => {
                let items: Vec<String> = rows.iter().map(|row| pick(columns, row).to_string()).collect();
                return line(&if items.is_empty() { "[]".to_owned() } else { format!("[\n{}\n]", items.join("\n,")) });
            }
            Format::Csv => ",",
            Format::Table => "\t",
        };
        if self.headers && !(self.format == Format::Table && rows.is_empty()) {
            line(&columns.join(separator));
        }
        for row in rows {
            let cells = columns.iter().map(|column| self.cell(row.get(*column).unwrap_or(&Value::Null)));
            line(&cells.collect::<Vec<_>>().join(separator));
        }
    }

    fn cell(&self, value: &Value) -> String {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(all) if all.iter().all(Value::is_string) => {
                format!("[{}]", all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
            }
            other => erlang(other),
        };
        if self.format == Format::Csv {
            let special = text.contains(['"', ',', '\n', '\r']);
            return if special { format!("\"{}\"", text.replace('"', "\"\"")) } else { text };
        }
        escape(&text)
    }
}

fn pick(columns: &[&str], row: &Map<String, Value>) -> Value {
    let cells = columns.iter().map(|column| ((*column).to_owned(), row.get(*column).cloned().unwrap_or("".into())));
    Value::Object(cells.collect())
}

/// Tables of arguments in Erlang's form.
fn erlang(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{{\"{name}\",{}}}", erlang(value)));
            format!("[{}]", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(all) => format!("[{}]", all.iter().map(erlang).collect::<Vec<_>>().join(",")),
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    }
}

/// What would break a table is written as an escape.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other if other.is_control() => out.push_str(&format!("\\{:03o}", u32::from(other))),
            other => out.push(other),
        }
    }
    out
}

fn line(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s3_1_values_in_tables() {
        let printer = Printer::new(&Request::default());
        for (value, text) in [
            (json!("a\tb\n"), "a\\tb\\n"),
            (json!(true), "true"),
            (json!(null), ""),
            (json!(["administrator"]), "[administrator]"),
            (json!({"x-max-length": 10, "s": "t"}), "[{\"x-max-length\",10},{\"s\",\"t\"}]"),
            (json!({}), "[]"),
        ] {
            assert_eq!(printer.cell(&value), text);
        }
        let csv = Printer::new(&Request { format: Format::Csv, ..Request::default() });
        assert_eq!(csv.cell(&json!("a\"b,c")), "\"a\"\"b,c\"");
    }
}
