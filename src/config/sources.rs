//! The settings files: which ones are read, in what order, what is wrong with them, and `leveret config check`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::environment::{DEFAULTS, Environment, variable};
use super::file::{self, Line};
use super::ignored;
use super::settings::{Draft, Setting};

/// Where settings files are read from: the disk, or what a test says.
pub(super) trait Files {
    fn read(&self, path: &Path) -> io::Result<String>;
    /// The files in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
}

/// Something that the user should know of a settings file.
pub(super) struct Finding {
    /// Says where, what, and what to do.
    pub(super) text: String,
    /// The broker would not start.
    pub(super) is_error: bool,
}

impl Draft {
    /// Reads every file that the settings name, lowest first: each overwrites what the ones before it said.
    /// `chosen` is that of the command line.
    pub(super) fn apply_files(
        &mut self,
        chosen: Option<&Path>,
        env: &Environment,
        files: &impl Files,
    ) -> Result<(), ConfigError> {
        let path_in = |name| variable(env, name).map(Path::new);
        if let Some(path) = path_in(DEFAULTS) {
            self.read_file(path, &format!("check {DEFAULTS}"), env, files)?;
        }
        if let Some(path) = chosen.or(path_in("LEVERET_CONFIG")) {
            return self.read_file(path, "check --config", env, files);
        }
        if let Some(path) = path_in("RABBITMQ_CONFIG_FILE") {
            // RabbitMQ lets one leave out the end, and starts if there is no such file.
            let with_end = PathBuf::from([path.as_os_str(), OsStr::new(".conf")].join(OsStr::new("")));
            match [path, &with_end].into_iter().find(|path| files.read(path).is_ok()) {
                Some(path) => self.read_file(path, "check RABBITMQ_CONFIG_FILE", env, files)?,
                None => self.warn(format!("RABBITMQ_CONFIG_FILE={}: there is no such file", path.display())),
            }
        }
        if let Some(pattern) = path_in("RABBITMQ_CONFIG_FILES") {
            match matching(pattern, files) {
                Ok(paths) => {
                    for path in paths {
                        self.read_file(&path, "check RABBITMQ_CONFIG_FILES", env, files)?;
                    }
                }
                Err(error) => self.warn(format!("RABBITMQ_CONFIG_FILES={}: {error}", pattern.display())),
            }
        }
        Ok(())
    }

    fn warn(&mut self, text: String) {
        self.config.warnings.push(text);
    }

    fn read_file(
        &mut self,
        path: &Path,
        advice: &str,
        env: &Environment,
        files: &impl Files,
    ) -> Result<(), ConfigError> {
        let text = files.read(path).map_err(|error| {
            ConfigError::new(format!("cannot read config file {}: {error}; {advice}", path.display()))
        })?;
        for finding in self.apply_file(path, &text, env) {
            if finding.is_error {
                return Err(ConfigError::new(finding.text));
            }
            self.warn(finding.text);
        }
        self.config.config_files.push(path.to_owned());
        Ok(())
    }

    /// Takes every line that can be read; all that is to be said of the others, in their order.
    pub(super) fn apply_file(&mut self, path: &Path, text: &str, env: &Environment) -> Vec<Finding> {
        let mut findings = Vec::new();
        // The file's listeners replace those there were; without any, they stay.
        let listeners_before = std::mem::take(&mut self.listeners);
        let mut none = false;
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let place = format!("{}:{}", path.display(), index + 1);
            let mut say =
                |is_error, text: String| findings.push(Finding { text: format!("{place}: {text}"), is_error });
            let Line { key, value } = match file::read_line(line) {
                Ok(Some(line)) => line,
                Ok(None) => continue,
                Err(expected) => {
                    say(true, format!("expected {expected}"));
                    continue;
                }
            };
            let Some((setting, word)) = file::find_setting(&key) else {
                match ignored::why(&key) {
                    Some(why) => say(false, format!("{key} has no effect: {why}")),
                    None => {
                        let near = file::nearest_key(&key).map(|near| format!("; did you mean {near}?"));
                        say(false, format!("unknown key {key} is ignored{}", near.unwrap_or_default()));
                    }
                }
                continue;
            };
            if value.len() > 1 && value.starts_with('"') && value.ends_with('"') {
                let advice = "double quotes are part of a value, as in RabbitMQ; quote with '…' or not at all";
                say(false, format!("{key}: {advice}"));
            }
            none |= setting == Setting::NoListener;
            let shown = if setting.is_secret() { "…" } else { &value };
            let word = word.replace("\\.", ".");
            let set = file::interpolate(&value, env).and_then(|value| self.set(setting, &word, OsStr::new(&value)));
            if let Err(expected) = set {
                say(true, format!("{key} = {shown}: expected {expected}"));
            }
        }
        if self.listeners.is_empty() && !none {
            self.listeners = listeners_before;
        }
        findings
    }
}

/// The `.conf` files in a folder, or those that a pattern such as `/etc/conf.d/*.conf` means, in the order of their
/// names. A path that is neither is that of one file.
fn matching(pattern: &Path, files: &impl Files) -> io::Result<Vec<PathBuf>> {
    let name = pattern.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let (folder, begin, end) = match name.split_once('*') {
        Some((begin, end)) => (pattern.parent().unwrap_or(Path::new(".")), begin, end),
        None if name.ends_with(".conf") => return Ok(vec![pattern.to_owned()]),
        None => (pattern, "", ".conf"),
    };
    let mut found = files.list(folder)?;
    found.retain(|path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
    });
    found.sort();
    Ok(found)
}

/// What `leveret config check` says of a file: every finding on a line, then their number. Exit code 2 if the broker
/// would not start with it.
pub(super) fn check(path: &Path, env: &Environment, files: &impl Files) -> ConfigError {
    let text = match files.read(path) {
        Ok(text) => text,
        Err(error) => return ConfigError::new(format!("cannot read {}: {error}; check the path", path.display())),
    };
    let mut draft = Draft::new();
    let mut findings = draft.apply_file(path, &text, env);
    // Without its bad lines a file may lack something that it has.
    if !findings.iter().any(|finding| finding.is_error) {
        match draft.finish() {
            Ok(config) => {
                findings.extend(config.warnings.into_iter().map(|text| Finding { text, is_error: false }));
            }
            Err(error) => findings.push(Finding { text: error.message, is_error: true }),
        }
    }
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    let mut report = String::new();
    for Finding { text, is_error } in &findings {
        report += &format!("{}: {text}\n", if *is_error { "error" } else { "warning" });
    }
    report += &format!("{}: {}", path.display(), counted(errors, findings.len() - errors));
    ConfigError { message: report, exit_code: if errors == 0 { 0 } else { 2 }, to_stdout: true }
}

fn counted(errors: usize, warnings: usize) -> String {
    let of = |count, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    match (errors, warnings) {
        (0, 0) => "ok".to_owned(),
        (0, _) => format!("ok, {}", of(warnings, "warning")),
        _ => format!("{}, {}", of(errors, "error"), of(warnings, "warning")),
    }
}
