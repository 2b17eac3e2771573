//! Finds the Kubernetes programs.

use std::{env, fs, path::PathBuf, time::SystemTime};

/// The program with one of these names: in the directory named by the environment, otherwise the newest one in the
/// cache.
pub fn find(names: &[&str]) -> PathBuf {
    let chosen = ["LEADERGROUP_BIN_DIR", "KUBEBUILDER_ASSETS"].iter().find_map(|variable| {
        let folder = PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?);
        let program = names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        Some(program.unwrap_or_else(|| {
            panic!("{} has no {}; unset {variable}", folder.display(), names.join(" or "))
        }))
    });
    chosen.or_else(|| newest_in_cache(names)).unwrap_or_else(|| {
        panic!(
            "{} does not exist: run `make build-cluster`, or set KUBEBUILDER_ASSETS to a directory that contains it",
            names[0]
        )
    })
}

/// The cache has a directory for each version of the programs, and perhaps one that is being built.
fn newest_in_cache(names: &[&str]) -> Option<PathBuf> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("LEADERGROUP_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("leadergroup")))
        .or_else(|| Some(set("HOME")?.join(".cache/leadergroup")))?;
    let folders = fs::read_dir(cache.join("bin")).ok()?;
    let folders = folders.flatten().map(|folder| folder.path()).filter(|folder| folder.extension().is_none());
    let programs =
        folders.flat_map(|folder| names.iter().map(|name| folder.join(name)).collect::<Vec<PathBuf>>());
    let built = |path: &PathBuf| {
        path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    programs.filter(|path| path.is_file()).max_by_key(built)
}
