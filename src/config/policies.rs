//! Policies of the settings file: `leveret.policies.NAME.pattern`, `….definition.KEY`, and the rest (reference 15.1).

use std::collections::BTreeMap;

use leveret_protocol::{FieldTable, FieldValue};

use super::values::Expected;
use super::{ConfigError, PolicyOptions};
use crate::model::policy::{ApplyTo, Policy};

/// One policy as far as the file has told.
#[derive(Debug, Default)]
struct PolicyDraft {
    pattern: Option<String>,
    vhost: Option<String>,
    priority: i64,
    apply_to: ApplyTo,
    operator: bool,
    definition: FieldTable,
}

/// All policies of the file, by name.
#[derive(Debug, Default)]
pub(super) struct PolicyDrafts(BTreeMap<String, PolicyDraft>);

impl PolicyDrafts {
    /// `word` is `NAME.FIELD`, or `NAME.definition.KEY`. A dot in a name is written `\.` and has been read as a dot,
    /// so the field is looked for from the end.
    pub(super) fn set(&mut self, word: &str, text: &str) -> Result<(), Expected> {
        if let Some((name, key)) = word.rsplit_once(".definition.") {
            let value = text.parse().map_or_else(|_| FieldValue::from(text), FieldValue::I64);
            self.draft(name).definition.insert(key, value);
            return Ok(());
        }
        let fields = "pattern, vhost, priority, apply_to, operator or definition.KEY after the policy's name";
        let Some((name, field)) = word.rsplit_once('.') else { return Err(fields.to_owned()) };
        let draft = self.draft(name);
        match field {
            "pattern" => draft.pattern = Some(text.to_owned()),
            "vhost" => draft.vhost = Some(text.to_owned()),
            "priority" => draft.priority = text.parse().map_err(|_| "a number".to_owned())?,
            "operator" => draft.operator = super::values::boolean(text)?,
            "apply_to" => {
                let words = "all, queues, classic_queues, quorum_queues, streams or exchanges";
                draft.apply_to = ApplyTo::parse(text).ok_or_else(|| words.to_owned())?;
            }
            _ => return Err(fields.to_owned()),
        }
        Ok(())
    }

    fn draft(&mut self, name: &str) -> &mut PolicyDraft {
        self.0.entry(name.to_owned()).or_default()
    }

    /// The policies, checked. Without a vhost they are for `default_vhost`.
    pub(super) fn finish(self, default_vhost: &str) -> Result<Vec<PolicyOptions>, ConfigError> {
        let finish = |(name, draft): (String, PolicyDraft)| {
            let wrong = |what: String| ConfigError::new(format!("leveret.policies.{name}: {what}"));
            let pattern =
                draft.pattern.ok_or_else(|| wrong("expected a pattern: leveret.policies.NAME.pattern".into()))?;
            let (priority, apply_to, operator) = (draft.priority, draft.apply_to, draft.operator);
            let policy = Policy::new(&name, &pattern, draft.definition, priority, apply_to, operator)
                .map_err(|error| wrong(error.0))?;
            let vhost = draft.vhost.unwrap_or_else(|| default_vhost.to_owned());
            Ok(PolicyOptions { vhost, operator, policy })
        };
        self.0.into_iter().map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> Result<Vec<PolicyOptions>, ConfigError> {
        let mut drafts = PolicyDrafts::default();
        for (word, text) in lines {
            drafts.set(word, text).map_err(ConfigError::new)?;
        }
        drafts.finish("/")
    }

    #[test]
    fn a_policy_has_a_pattern_and_a_definition() {
        let policies = read(&[
            ("p.pattern", "^jobs"),
            ("p.definition.max-length", "5"),
            ("p.definition.overflow", "reject-publish"),
            ("p.apply_to", "queues"),
            ("p.priority", "3"),
            ("o.pattern", ""),
            ("o.operator", "true"),
            ("o.vhost", "other"),
            ("o.definition.expires", "1000"),
        ])
        .unwrap();
        let [other, first] = &policies[..] else { panic!("{policies:?}") };
        assert_eq!((first.vhost.as_str(), first.operator, first.policy.priority), ("/", false, 3));
        assert_eq!(first.policy.definition.get("max-length"), Some(&FieldValue::I64(5)));
        assert_eq!(first.policy.definition.get("overflow"), Some(&FieldValue::from("reject-publish")));
        assert_eq!((other.vhost.as_str(), other.operator), ("other", true));
    }

    #[test]
    fn what_is_wrong_with_a_policy_is_named() {
        let message = |lines: &[(&str, &str)]| read(lines).unwrap_err().message;
        assert!(message(&[("p.definition.expires", "5")]).contains("leveret.policies.p: expected a pattern"));
        assert!(message(&[("p.pattern", ".*"), ("p.definition.expirse", "5")]).contains("not recognised"));
        assert!(message(&[("p.pattern", "(")]).contains("pattern is not valid"));
        assert!(message(&[("p.colour", "red")]).contains("pattern, vhost, priority"));
    }
}
