//! The settings as arguments of a command: one flag for each entry of the table.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use super::{
    error::{Origin, SettingsError, SettingsErrors},
    load::{POD_NAME_VARIABLE, Sources},
    settings::Settings,
    table,
};

/// The values of the flags, before any check.
#[derive(Clone, Debug, Default)]
pub struct SettingsArgs {
    config: Option<PathBuf>,
    flags: BTreeMap<&'static str, String>,
}

impl SettingsArgs {
    /// Reads the settings from these flags, the process's environment and the settings file.
    pub fn load(self) -> Result<Settings, SettingsErrors> {
        let mut environment = BTreeMap::new();
        let mut errors = Vec::new();
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if !name.starts_with(table::ENVIRONMENT_PREFIX) && name != POD_NAME_VARIABLE {
                continue;
            }
            match value.into_string() {
                Ok(value) => {
                    environment.insert(name, value);
                }
                Err(_) => errors.push(SettingsError {
                    origin: Origin::Environment(name),
                    problem: "is not UTF-8: write plain text".to_owned(),
                }),
            }
        }
        if !errors.is_empty() {
            return Err(SettingsErrors(errors));
        }
        // Without a host name, a setting has to name the replica.
        let host_name =
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        Settings::load(&Sources { config: self.config, environment, flags: self.flags, host_name })
    }
}

impl Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Settings file in YAML [env: LEADERGROUP_CONFIG]");
        let defaults = Settings::unset();
        table::ALL.iter().fold(command.arg(config), |command, setting| {
            let default = match (setting.show)(&defaults).trim_matches('"') {
                "" | "null" | "[]" => String::new(),
                shown => format!(" [default: {shown}]"),
            };
            let spelling = format!("[file: {}] [env: {}]{default}", setting.key, setting.variable());
            command.arg(
                Arg::new(setting.key)
                    .long(setting.flag)
                    .value_name(setting.value_name)
                    .allow_hyphen_values(true)
                    .help(format!("{} {spelling}", setting.help)),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = table::ALL
            .iter()
            .filter_map(|setting| Some((setting.key, matches.get_one::<String>(setting.key)?.clone())))
            .collect();
        Ok(Self { config: matches.get_one::<PathBuf>("config").cloned(), flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
