//! The manifests of this directory. The first line of each says whether it is accepted or refused, and with which
//! message. If a file has several documents, each is a change of the one before, and the last one is tested.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test's support fails by panicking")]

use std::{fs, path::Path};

use serde_json::Value;

pub struct Manifest {
    /// The file's name without its extension.
    pub name: String,
    /// The text of the first line after `# refused: ` or `# accepted: `.
    pub says: String,
    /// The objects in it.
    pub documents: Vec<Value>,
}

/// The manifests in `tests/manifests/<folder>`, ordered by name.
pub fn all(folder: &str) -> Vec<Manifest> {
    let says = match folder {
        "invalid" => "# refused: ",
        "valid" => "# accepted: ",
        other => panic!("no manifests are kept in {other}"),
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests").join(folder);
    let mut manifests: Vec<Manifest> = fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let first = text.lines().next().unwrap_or_default();
            let says = first.strip_prefix(says).unwrap_or_else(|| panic!("{}: no `{says}`", path.display()));
            Manifest {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                says: says.to_owned(),
                documents: serde_saphyr::from_multiple(&text).unwrap(),
            }
        })
        .collect();
    manifests.sort_by(|a, b| a.name.cmp(&b.name));
    manifests
}

/// The objects in `examples`, each with the name of its file.
pub fn examples() -> Vec<(String, Value)> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let folders = [examples.clone(), examples.join("more"), examples.join("integrations")];
    let files = folders.map(|folder| fs::read_dir(folder).unwrap());
    let files = files.into_iter().flatten().map(|file| file.unwrap().path());
    let manifests = files.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let objects = manifests.flat_map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&path).unwrap()).unwrap();
        objects.into_iter().map(move |object| (name.clone(), object))
    });
    objects.collect()
}
