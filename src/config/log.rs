//! What the log shows, as the settings say it: one filter, or RabbitMQ's levels by category.

use std::collections::BTreeMap;

use super::values::Expected;

/// RabbitMQ's categories that have a counterpart, with the module that logs it.
const CATEGORIES: [(&str, &str); 4] = [
    ("connection", "leveret::server::connection"),
    ("channel", "leveret::model::broker"),
    ("queue", "leveret::model"),
    ("exchange", "leveret::model"),
];

/// Categories of things that are not here.
const WITHOUT_COUNTERPART: [&str; 12] = [
    "federation",
    "feature_flags",
    "ldap",
    "mirroring",
    "osiris",
    "prelaunch",
    "ra",
    "ranch",
    "shovel",
    "syslog",
    "upgrade",
    "user",
];

/// The log's filter in the making.
#[derive(Debug, Default)]
pub(super) struct LogDraft {
    /// A level, or a filter of `EnvFilter`.
    pub(super) filter: Option<String>,
    /// The level of what has no category of its own.
    pub(super) default_level: Option<&'static str>,
    pub(super) is_off: bool,
    /// By module.
    levels: BTreeMap<&'static str, &'static str>,
}

impl LogDraft {
    /// A filter that undoes whatever was said before.
    pub(super) fn of(filter: String) -> Self {
        Self { filter: Some(filter), ..Self::default() }
    }

    /// # Errors
    /// A category that RabbitMQ does not have either.
    pub(super) fn set_level(&mut self, category: &str, level: &'static str) -> Result<(), Expected> {
        match CATEGORIES.into_iter().find(|(name, _)| *name == category) {
            Some((_, module)) => {
                self.levels.insert(module, level);
            }
            None if WITHOUT_COUNTERPART.contains(&category) => {}
            None => {
                return Err(format!("one of the categories {}, default", CATEGORIES.map(|(name, _)| name).join(", ")));
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        if self.is_off {
            return "off".to_owned();
        }
        let base = self.filter.or(self.default_level.map(str::to_owned)).unwrap_or_else(|| "info".to_owned());
        let levels = self.levels.iter().map(|(module, level)| format!(",{module}={level}"));
        base + &levels.collect::<String>()
    }
}
