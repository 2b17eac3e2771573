//! Reading the settings from their sources, in order, with an error for each value that cannot be used.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    check,
    error::{Origin, SettingsError, SettingsErrors, did_you_mean},
    file,
    settings::{Settings, URL},
    table::{self, ENVIRONMENT_PREFIX, Setting},
};

/// The variable that names the settings file.
const CONFIG_VARIABLE: &str = "LEADERGROUP_CONFIG";
/// The variable that names the replica by default. The pod's manifest sets it.
pub(super) const POD_NAME_VARIABLE: &str = "POD_NAME";

/// The sources of the settings, weakest first.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The settings file that a flag names.
    pub config: Option<PathBuf>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// The values of the flags, by key.
    pub flags: BTreeMap<&'static str, String>,
    /// The host's name: the replica's name if nothing else names it.
    pub host_name: String,
}

impl Settings {
    /// Reads the settings and checks them.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, each with its place and its remedy.
    pub fn load(sources: &Sources) -> Result<Self, SettingsErrors> {
        let mut settings = Self::unset();
        let mut errors = Vec::new();
        settings.replica.clone_from(&sources.host_name);
        if let Some(name) = sources.environment.get(POD_NAME_VARIABLE).filter(|name| !name.is_empty())
            && let Some(replica) = table::by_key("replica")
        {
            settings.take(replica, name, Origin::Environment(POD_NAME_VARIABLE.to_owned()), &mut errors);
        }
        let from_environment = sources.environment.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        if let Some(path) = sources.config.clone().or_else(|| from_environment.map(PathBuf::from)) {
            for found in file::read(&path) {
                match found {
                    Ok(value) => settings.take(value.setting, &value.text, value.origin, &mut errors),
                    Err(error) => errors.push(error),
                }
            }
        }
        settings.take_environment(&sources.environment, &mut errors);
        for setting in &table::ALL {
            if let Some(text) = sources.flags.get(setting.key) {
                settings.take(setting, text, Origin::Flag(setting.flag.to_owned()), &mut errors);
            }
        }
        if errors.is_empty() {
            check::together(&mut settings, &sources.environment, &mut errors);
        }
        if errors.is_empty() { Ok(settings) } else { Err(SettingsErrors(errors)) }
    }

    fn take(&mut self, setting: &Setting, text: &str, origin: Origin, errors: &mut Vec<SettingsError>) {
        match (setting.read)(self, text) {
            Ok(()) => {
                if setting.key == URL {
                    self.database_problem = None;
                }
                self.origins.insert(setting.key, origin);
            }
            Err(problem) => {
                let found = if setting.secret { String::new() } else { format!(" (found `{text}`)") };
                let error = SettingsError { origin, problem: format!("{} {problem}{found}", setting.key) };
                if setting.key == URL && matches!(error.origin, Origin::Environment(_)) {
                    self.database_problem = Some(error);
                } else {
                    errors.push(error);
                }
            }
        }
    }

    fn take_environment(&mut self, environment: &BTreeMap<String, String>, errors: &mut Vec<SettingsError>) {
        for setting in &table::ALL {
            let variable = setting.variable();
            // Manifests often set a variable to the empty text to mean "not set".
            if let Some(text) = environment.get(&variable).filter(|text| !text.is_empty()) {
                self.take(setting, text, Origin::Environment(variable), errors);
            }
        }
        let known: Vec<String> = table::ALL.iter().map(Setting::variable).collect();
        for name in environment.keys().filter(|name| name.starts_with(ENVIRONMENT_PREFIX)) {
            let other = name == CONFIG_VARIABLE || GIVEN.contains(&name.as_str()) || is_service_link(name);
            if !other && !known.contains(name) {
                errors.push(SettingsError {
                    origin: Origin::Environment(name.clone()),
                    problem: format!(
                        "is no setting: take it out, or write a name that `leadergroup run --help` lists{}",
                        did_you_mean(name, known.iter().map(String::as_str))
                    ),
                });
            }
        }
    }
}

/// What `leadergroup exec` and the agent give to programs, which may run this one.
const GIVEN: [&str; 4] = ["LEADERGROUP_GROUP", "LEADERGROUP_KEY", "LEADERGROUP_POD", "LEADERGROUP_TOKEN"];

/// Whether this is a variable that Kubernetes sets in every pod for a Service whose name starts with `leadergroup`.
fn is_service_link(name: &str) -> bool {
    let ends_in_port = |name: &str| {
        let protocols = ["_TCP", "_UDP", "_SCTP"];
        let number = protocols.iter().find_map(|protocol| name.strip_suffix(protocol));
        number
            .and_then(|rest| rest.rsplit_once("_PORT_"))
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && !name.ends_with("_TCP_PORT"))
        || ends_in_port(name)
        || ["_PROTO", "_PORT", "_ADDR"].iter().any(|end| name.strip_suffix(end).is_some_and(ends_in_port))
}
