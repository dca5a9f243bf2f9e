//! Lists: filter, sort, page and columns, in this order (management reference 1.3).

use std::cmp::Ordering;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use regex::RegexBuilder;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::{Answer, ApiError};
use super::query::Query;

const PAGE_SIZE: usize = 100;
const PAGE_SIZE_MAX: usize = 500;
const PATTERN_LEN_MAX: usize = 1024;

/// 200 with JSON.
pub fn ok(value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", error.to_string()))?;
    Ok(json_response(body))
}

/// 200 with JSON that is written already.
pub fn json_response(body: impl Into<axum::body::Body>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (headers, body.into()).into_response()
}

/// 201 if it is new, else 204.
pub fn put(outcome: crate::server::admin::Outcome) -> Answer {
    Ok(match outcome {
        crate::server::admin::Outcome::Created => StatusCode::CREATED.into_response(),
        crate::server::admin::Outcome::Updated => StatusCode::NO_CONTENT.into_response(),
    })
}

/// 204.
pub fn done() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// One thing, with the columns that were asked for.
pub fn one(query: &Query, item: &impl Serialize) -> Answer {
    match Columns::of(query) {
        None => ok(item),
        Some(columns) => ok(&columns.pick(&value(item)?)),
    }
}

/// A list that is never paged.
pub fn plain<T: Serialize>(query: &Query, items: &[T]) -> Answer {
    let sort = Sort::of(query);
    let columns = Columns::of(query);
    if sort.is_none() && columns.is_none() {
        return ok(&items);
    }
    let mut values = items.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    if let Some(sort) = sort {
        sort.apply(&mut values);
    }
    ok(&pick_all(columns.as_ref(), values))
}

/// A list that may be paged, of things with names.
pub fn paged<T: Serialize>(query: &Query, items: &[T]) -> Answer {
    let Some(page) = Page::of(query)? else { return plain(query, items) };
    let mut values = items.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    let total = values.len();
    values.retain(|item| page.matches(item.get("name").and_then(Value::as_str).unwrap_or_default()));
    if let Some(sort) = Sort::of(query) {
        sort.apply(&mut values);
    }
    let range = page.range(values.len())?;
    let filtered = values.len();
    let items: Vec<Value> = values.drain(range).collect();
    ok(&page.wrap(total, filtered, items.len(), pick_all(Columns::of(query).as_ref(), items)))
}

pub fn value(item: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(item)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", error.to_string()))
}

pub fn pick_all(columns: Option<&Columns>, items: Vec<Value>) -> Vec<Value> {
    match columns {
        Some(columns) => items.iter().map(|item| columns.pick(item)).collect(),
        None => items,
    }
}

/// Which page is wanted, and of what.
#[derive(Debug)]
pub struct Page {
    number: usize,
    size: usize,
    name: Option<NameFilter>,
}

#[derive(Debug)]
enum NameFilter {
    /// Lower case.
    Substring(String),
    Regex(regex::Regex),
}

impl Page {
    /// `None`: all at once.
    ///
    /// # Errors
    /// 400: numbers or a pattern that cannot be used.
    pub fn of(query: &Query) -> Result<Option<Self>, ApiError> {
        let Some(number) = query.get("page") else { return Ok(None) };
        let size = query.get("page_size");
        let invalid = || {
            let reason = format!(
                "Invalid pagination parameters: page number {number}, page size {}",
                size.unwrap_or("undefined")
            );
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_pagination_parameters", reason)
        };
        let parse = |text: &str, max| text.parse().ok().filter(|n| (1..=max).contains(n)).ok_or_else(invalid);
        let number = parse(number, usize::MAX >> 16)?;
        let size = size.map_or(Ok(PAGE_SIZE), |size| parse(size, PAGE_SIZE_MAX))?;
        let bad = || ApiError::bad_request("Pagination parameters are invalid");
        let name = match query.get("name").filter(|name| !name.is_empty()) {
            Some(name) if name.len() > PATTERN_LEN_MAX => return Err(bad()),
            Some(name) if query.is_true("use_regex") => {
                let regex = RegexBuilder::new(name).case_insensitive(true).size_limit(1 << 20).build();
                Some(NameFilter::Regex(regex.map_err(|_| bad())?))
            }
            Some(name) => Some(NameFilter::Substring(name.to_lowercase())),
            None => None,
        };
        Ok(Some(Self { number, size, name }))
    }

    /// Does the filter let this name through?
    pub fn matches(&self, name: &str) -> bool {
        match &self.name {
            None => true,
            Some(NameFilter::Substring(part)) => name.to_lowercase().contains(part),
            Some(NameFilter::Regex(regex)) => regex.is_match(name),
        }
    }

    /// Which of so many items are on it.
    ///
    /// # Errors
    /// 400: it is beyond the end.
    pub fn range(&self, len: usize) -> Result<std::ops::Range<usize>, ApiError> {
        let start = (self.number - 1) * self.size;
        if start >= len && self.number > 1 {
            let reason = format!("Page out of range, page: {} page size: {}, len: {len}", self.number, self.size);
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "page_out_of_range", reason));
        }
        Ok(start..(start + self.size).min(len))
    }

    /// The page as it is answered.
    pub fn wrap(&self, total: usize, filtered: usize, count: usize, items: impl Serialize) -> impl Serialize {
        json!({
            "total_count": total,
            "item_count": count,
            "filtered_count": filtered,
            "page": self.number,
            "page_size": self.size,
            "page_count": filtered.div_ceil(self.size),
            "items": items,
        })
    }
}

/// By which field, and in which direction.
#[derive(Debug)]
pub struct Sort {
    path: Vec<String>,
    reverse: bool,
}

impl Sort {
    /// `None`: the order in which things come.
    pub fn of(query: &Query) -> Option<Self> {
        let field = query.get("sort").filter(|field| !field.is_empty())?;
        Some(Self { path: field.split('.').map(str::to_owned).collect(), reverse: query.is_true("sort_reverse") })
    }

    /// What an item is sorted by; null if it lacks that.
    pub fn key(&self, item: &Value) -> Value {
        self.path.iter().try_fold(item, |value, name| value.get(name)).cloned().unwrap_or(Value::Null)
    }

    pub fn compare(&self, one: &Value, other: &Value) -> Ordering {
        let order = compare(one, other);
        if self.reverse { order.reverse() } else { order }
    }

    pub fn apply(&self, items: &mut Vec<Value>) {
        let mut keyed: Vec<(Value, Value)> = items.drain(..).map(|item| (self.key(&item), item)).collect();
        keyed.sort_by(|(one, _), (other, _)| self.compare(one, other));
        items.extend(keyed.into_iter().map(|(_, item)| item));
    }
}

/// Missing first, then false, true, numbers, texts, everything else.
fn compare(one: &Value, other: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    };
    match (one, other) {
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
        },
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
            one.to_string().cmp(&other.to_string())
        }
        _ => rank(one).cmp(&rank(other)),
    }
}

/// Which fields are wanted.
#[derive(Debug)]
pub struct Columns(Vec<Vec<String>>);

impl Columns {
    /// `None`: all.
    pub fn of(query: &Query) -> Option<Self> {
        let text = query.get("columns").filter(|text| !text.is_empty())?;
        Some(Self(text.split(',').map(|path| path.split('.').map(str::to_owned).collect()).collect()))
    }

    pub fn pick(&self, item: &Value) -> Value {
        let mut picked = Map::new();
        for path in &self.0 {
            if let Some(value) = path.iter().try_fold(item, |value, name| value.get(name)) {
                insert(&mut picked, path, value.clone());
            }
        }
        Value::Object(picked)
    }
}

fn insert(into: &mut Map<String, Value>, path: &[String], value: Value) {
    let [name, rest @ ..] = path else { return };
    if rest.is_empty() {
        into.insert(name.clone(), value);
    } else if let Value::Object(nested) = into.entry(name.clone()).or_insert_with(|| Value::Object(Map::new())) {
        insert(nested, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(query: &str, items: Value) -> Vec<Value> {
        let Value::Array(mut items) = items else { panic!("an array") };
        Sort::of(&Query::parse(query)).unwrap().apply(&mut items);
        items
    }

    #[test]
    fn s1_3_sort_puts_missing_fields_first_and_descends_by_dots() {
        let items = json!([{"a": {"b": 2}}, {"a": {"b": 10}}, {}, {"a": {"b": 1.5}}]);
        let order = |items: Vec<Value>| items.iter().map(|item| item["a"]["b"].to_string()).collect::<Vec<_>>();
        assert_eq!(order(sorted("sort=a.b", items.clone())), ["null", "1.5", "2", "10"]);
        assert_eq!(order(sorted("sort=a.b&sort_reverse=true", items)), ["10", "2", "1.5", "null"]);
        assert!(Sort::of(&Query::parse("sort=")).is_none());
    }

    #[test]
    fn s1_3_columns_keep_only_what_is_named() {
        let columns = Columns::of(&Query::parse("columns=name,s.x.rate,s.y,none")).unwrap();
        let item = json!({"name": "q", "other": 1, "s": {"x": {"rate": 2, "z": 3}, "y": 4}});
        assert_eq!(columns.pick(&item), json!({"name": "q", "s": {"x": {"rate": 2}, "y": 4}}));
    }

    #[test]
    fn s1_3_pages_filter_by_substring_or_regex_whatever_the_case() {
        let page = |query: &str| Page::of(&Query::parse(query)).map(Option::unwrap);
        assert!(page("page=1&name=OrD").unwrap().matches("an order"));
        assert!(page("page=1&name=^O.d&use_regex=true").unwrap().matches("order"));
        assert!(!page("page=1&name=^r&use_regex=true").unwrap().matches("order"));
        assert_eq!(page("page=2&page_size=10").unwrap().range(15).unwrap(), 10..15);
        assert_eq!(page("page=1").unwrap().range(0).unwrap(), 0..0);
        assert!(page("page=2").unwrap().range(100).is_err());
        for wrong in ["page=0", "page=x", "page=1&page_size=501", "page=1&page_size=0", "page=1&name=(&use_regex=true"]
        {
            assert!(page(wrong).is_err(), "{wrong}");
        }
        assert!(Page::of(&Query::parse("page_size=10&name=x")).unwrap().is_none());
    }
}
