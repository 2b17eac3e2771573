//! The structure of the code: which room may use which, no circles between the files of a room, the length of files,
//! whether the documents show the rooms and files that are there, and that the rooms within `operator` form no circle.
//!
//! A room is a folder below `src`. [`ROOMS`] says what each may use; `docs/design.md` shows the same table to people,
//! and a test compares the two. The rules keep the data flowing one way: watch, probe or timer, then the election's
//! decision, then its effects. `election` and `health` stay testable without a cluster because nothing they use can
//! reach one.
//!
//! The checks read the `use` declarations and all paths of the sources, but no types: a method call on a value from
//! another file is not a dependency here. Code for tests (`#[cfg(test)]`) is left out.

#![allow(unreachable_pub, reason = "modules of one test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod graph;
mod source;
mod statements;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use source::Sources;

/// A room and what it may use.
struct Room {
    name: &'static str,
    /// Other rooms.
    rooms: &'static [&'static str],
    /// Those of [`RESTRICTED`] that it may use.
    outside: &'static [&'static str],
}

/// Crates and parts of the standard library that reach the world outside, the clock or the command line: only rooms
/// that name one may use it.
const RESTRICTED: &[&str] = &[
    "clap",
    "k8s_openapi",
    "kube",
    "leadergroup_lock",
    "std::env",
    "std::fs",
    "std::net::TcpStream",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
];

/// What each room may use, lowest first.
///
/// - `api` may be used by every other room, so it uses none. It needs kube for the CRD's derive macro and rules.
/// - `telemetry` has handles that others call. It must not depend on what it reports about.
/// - `config` reads the settings: durations as in `api`, the log format of `telemetry`, the lock's database settings.
/// - `election` is the pure core: types of `api`, and nothing that has a clock, a network or a file.
/// - `ownership` is the second pure core. It uses types of the lock's crate, and calls nothing in it.
/// - `health` turns facts into verdicts. Only its prober talks to the network, and never to the API server. Of the lock
///   it uses the clock.
/// - `hooks` sends requests to pods, over the network of `health`, and never to the API server.
/// - `routing` carries effects out through kube. It does not use `election`, so that it cannot decide.
/// - `cli` is on top.
/// - `plugin` is the other program. It is built without the operator, so it uses the types of `api` only.
const ROOMS: &[Room] = &[
    Room { name: "api", rooms: &[], outside: &["k8s_openapi", "kube"] },
    Room {
        name: "telemetry",
        rooms: &[],
        outside: &["std::fs", "std::process", "std::time::Instant", "std::time::SystemTime", "tokio"],
    },
    Room {
        name: "config",
        rooms: &["api", "telemetry"],
        outside: &["clap", "leadergroup_lock", "std::env", "std::fs"],
    },
    Room { name: "election", rooms: &["api"], outside: &[] },
    Room { name: "ownership", rooms: &[], outside: &["leadergroup_lock"] },
    Room {
        name: "health",
        rooms: &["api"],
        outside: &["k8s_openapi", "leadergroup_lock", "std::thread", "tokio"],
    },
    Room { name: "hooks", rooms: &["api", "health"], outside: &["k8s_openapi", "tokio"] },
    Room { name: "routing", rooms: &["api"], outside: &["k8s_openapi", "kube", "tokio"] },
    Room {
        name: "operator",
        rooms: &["api", "config", "election", "health", "hooks", "ownership", "routing", "telemetry"],
        outside: &["k8s_openapi", "kube", "leadergroup_lock", "std::time::Instant", "tokio"],
    },
    Room {
        name: "cli",
        rooms: &["api", "config", "election", "health", "operator", "routing", "telemetry"],
        outside: RESTRICTED,
    },
    Room {
        name: "plugin",
        rooms: &["api"],
        outside: &["clap", "k8s_openapi", "kube", "std::env", "std::process", "tokio"],
    },
];

/// The most lines of code in a file. Comments, blank lines and tests are not counted.
const LONGEST_FILE: usize = 400;

/// Crates of the operator that must not be in the plugin: the database, the metrics, the traces, the allocator and the
/// logs.
const NOT_IN_THE_PLUGIN: &[&str] = &[
    "leadergroup-lock",
    "opentelemetry",
    "prometheus-client",
    "sqlx",
    "sqlx-core",
    "tikv-jemallocator",
    "tracing-subscriber",
];

/// Files that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// What a room uses against the rules, one text for each path.
fn forbidden(sources: &Sources) -> Vec<String> {
    let names: BTreeSet<&str> = ROOMS.iter().map(|room| room.name).collect();
    let mut found = Vec::new();
    for file in sources.files() {
        // `lib.rs` declares the rooms, and `main.rs` is above them all.
        let Some(own) = file.module.first().filter(|own| *own != "main") else { continue };
        let Some(room) = ROOMS.iter().find(|room| room.name == own) else {
            found.push(format!("{}: the room `{own}` has no rule in ROOMS", file.path));
            continue;
        };
        for path in &file.inside {
            let other = path[0].as_str();
            if other != own && names.contains(other) && !room.rooms.contains(&other) {
                found.push(format!(
                    "{}: `{own}` must not use `{other}` (crate::{})",
                    file.path,
                    path.join("::")
                ));
            }
        }
        for path in &file.outside {
            let path = path.join("::");
            let under = |prefix: &str| {
                path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            let restricted = RESTRICTED.iter().find(|prefix| under(prefix));
            if let Some(restricted) = restricted.filter(|restricted| !room.outside.contains(restricted)) {
                found.push(format!("{}: `{own}` must not use `{restricted}` ({path})", file.path));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The circles between files.
fn circles(edges: &graph::Edges) -> Vec<String> {
    graph::circles(edges).iter().map(|circle| format!("a circle: {circle}")).collect()
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn read(folder: &str) -> Sources {
    Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}

#[test]
fn rooms_use_only_what_they_may() {
    let sources = read("src");
    assert!(sources.files().count() > 50, "the sources are found");
    assert_none(&forbidden(&sources));
}

#[test]
fn the_plugin_is_built_without_the_crates_of_the_operator() {
    let names = |features: &[&str]| -> BTreeSet<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["tree", "--offline", "--locked", "--package", "leadergroup", "--edges", "normal"]);
        let output = cargo.args(["--prefix", "none", "--format", "{p}"]).args(features).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let operator = names(&[]);
    let plugin = names(&["--no-default-features", "--features", "plugin"]);
    assert!(plugin.contains("clap_complete") && plugin.contains("kube"), "{plugin:?}");
    for name in NOT_IN_THE_PLUGIN {
        assert!(operator.contains(*name), "the operator has no {name}: correct the list");
        assert!(!plugin.contains(*name), "the plugin has {name}");
    }
}

/// The sources of each crate.
fn checked() -> impl Iterator<Item = Sources> {
    ["src", "agent/src", "lock/src", "lock/conformance/src", "e2e/src"].into_iter().map(read)
}

#[test]
fn the_files_of_a_room_form_no_circle() {
    let problems: Vec<String> = checked().flat_map(|sources| circles(&sources.edges())).collect();
    assert_none(&problems);
}

#[test]
fn files_are_not_too_long() {
    let mut problems = Vec::new();
    for sources in checked() {
        for file in sources.files() {
            let allowed = LONG_FILES.iter().any(|(path, _)| *path == file.path);
            match (file.code_lines > LONGEST_FILE, allowed) {
                (true, false) => problems.push(format!(
                    "{}: {} lines of code, at most {LONGEST_FILE}: split it by subject",
                    file.path, file.code_lines
                )),
                (false, true) => {
                    problems.push(format!("{} is short enough: remove it from the list", file.path));
                }
                _ => {}
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn the_design_document_shows_the_same_rules() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/design.md")).unwrap();
    let mut documented = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(name) = cells.get(1).and_then(|cell| cell.strip_prefix("`src/")?.strip_suffix('`')) else {
            continue;
        };
        let rooms: BTreeSet<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        documented.insert(name, rooms);
    }
    let rules: BTreeMap<&str, BTreeSet<&str>> =
        ROOMS.iter().map(|room| (room.name, room.rooms.iter().copied().collect())).collect();
    assert_eq!(documented, rules, "docs/design.md, \"The rooms of the code\"");
}

/// The room whose folders and files are rooms, too.
const OPERATOR: &str = "src/operator/";

/// For each file below a folder the child of the folder that it is or belongs to. That of a folder ends with a slash.
fn children_of(sources: &Sources, folder: &str) -> BTreeMap<String, String> {
    let child = |path: &str| match path.strip_prefix(folder)?.split_once('/') {
        Some((child, _)) => Some(format!("{folder}{child}/")),
        None => Some(path.to_owned()),
    };
    sources.files().filter_map(|file| Some((file.path.clone(), child(&file.path)?))).collect()
}

/// What uses what among the folders and files in a folder.
fn edges_between(sources: &Sources, folder: &str) -> graph::Edges {
    let children = children_of(sources, folder);
    let mut edges = graph::Edges::new();
    for (file, used) in sources.edges() {
        let Some(own) = children.get(&file) else { continue };
        let others = used.iter().filter_map(|other| children.get(other)).filter(|other| *other != own);
        edges.entry(own.clone()).or_default().extend(others.cloned());
    }
    edges
}

#[test]
fn the_rooms_of_the_operator_form_no_circle() {
    assert_none(&circles(&edges_between(&read("src"), OPERATOR)));
}

/// The rooms of the lock, each with those that it may use. The files beside them are shared by all.
const LOCK_ROOMS: &[(&str, &[&str])] = &[
    ("db", &["memory"]),
    ("session", &["db", "memory"]),
    ("program", &["db", "session"]),
    ("controller", &["db", "session"]),
    ("memory", &["db"]),
];

/// What the rooms of the lock use against [`LOCK_ROOMS`].
fn forbidden_in_lock(edges: &graph::Edges) -> Vec<String> {
    let room = |path: &str| path.strip_prefix("lock/src/")?.strip_suffix('/').map(str::to_owned);
    let mut found = Vec::new();
    for (own, used) in edges {
        let Some(own) = room(own) else { continue };
        let Some((_, allowed)) = LOCK_ROOMS.iter().find(|(name, _)| *name == own) else {
            found.push(format!("lock/src/{own}: the room has no rule in LOCK_ROOMS"));
            continue;
        };
        let others = used.iter().filter_map(|other| room(other));
        let others = others.filter(|other| !allowed.contains(&other.as_str()));
        found.extend(others.map(|other| format!("lock/src/{own} must not use lock/src/{other}")));
    }
    found
}

#[test]
fn the_rooms_of_the_lock_use_only_what_they_may() {
    let sources = read("lock/src");
    let edges = edges_between(&sources, "lock/src/");
    assert!(
        edges.keys().filter(|child| child.ends_with('/')).count() == LOCK_ROOMS.len(),
        "{:?}",
        edges.keys()
    );
    assert_none(&forbidden_in_lock(&edges));
}

#[test]
fn a_room_of_the_lock_that_uses_another_one_is_found() {
    let files = [
        ("lib.rs", "mod db; mod program; pub use program::client::Client;"),
        ("db/mod.rs", "mod pool;"),
        ("db/pool.rs", "use crate::Client;"),
        ("program/mod.rs", "pub mod client;"),
        ("program/client.rs", "pub struct Client;"),
    ];
    let files = files.map(|(path, text)| (format!("lock/src/{path}"), text.to_owned()));
    let sources = Sources::parse(files.into_iter(), "lock/src");
    let found = forbidden_in_lock(&edges_between(&sources, "lock/src/"));
    assert_eq!(found, ["lock/src/db must not use lock/src/program"]);
}

/// The files that tables of a document name in their first column. The line before a table begins with its folder, such
/// as "`src/election` — the decision:".
fn named_files(document: &str) -> BTreeSet<String> {
    let mut folder = None;
    let mut named = BTreeSet::new();
    for line in document.lines() {
        if line.starts_with('#') {
            folder = None;
        } else if line.starts_with("`src/") || line.starts_with("`lock/src") {
            folder = line.split('`').nth(1);
        } else if let Some(folder) = folder
            && let Some(row) = line.strip_prefix("| `")
        {
            let cell = row.split('|').next().unwrap_or_default();
            named.extend(cell.split('`').step_by(2).map(|name| format!("{folder}/{name}")));
        }
    }
    named
}

#[test]
fn the_architecture_document_names_each_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = named_files(&fs::read_to_string(root.join("docs/architecture.md")).unwrap());
    let sources = read("src");
    let files = sources.files().map(|file| file.path.clone());
    // Those of no room: `lib.rs` and `main.rs`.
    let files = files.filter(|path| path.matches('/').count() > 1);
    let lock = read("lock/src");
    let of_lock = lock.files().map(|file| file.path.clone());
    let of_lock = of_lock.filter(|path| !path.ends_with("/mod.rs") && !path.ends_with("/lib.rs"));
    let files = files.chain(of_lock);
    let folders = children_of(&sources, OPERATOR).into_values().filter(|child| child.ends_with('/'));
    let missing: BTreeSet<String> = files.chain(folders).filter(|path| !named.contains(path)).collect();
    let missing = missing.iter().map(|path| format!("docs/architecture.md does not name {path}"));
    let is_there = |path: &&String| match path.strip_suffix('/') {
        Some(folder) => root.join(folder).is_dir(),
        None => root.join(path).is_file(),
    };
    let gone = named.iter().filter(|path| !is_there(path));
    let gone = gone.map(|path| format!("docs/architecture.md names {path}, which is not there"));
    assert_none(&missing.chain(gone).collect::<Vec<_>>());
}

#[test]
fn only_the_first_column_below_a_folder_names_files() {
    let document = [
        "| `z.rs` | before any folder |",
        "`src/api` — types:",
        "| file | what for |",
        "|---|---|",
        "| `a.rs`, `b.rs` | like `c.rs` |",
        "# Terms",
        "| `d.rs` | none |",
    ];
    let named = named_files(&document.join("\n"));
    assert_eq!(named.iter().collect::<Vec<_>>(), ["src/api/a.rs", "src/api/b.rs"]);
}

/// Sources planted for a test: a path below `src` and a text.
fn planted(files: &[(&str, &str)]) -> Sources {
    Sources::parse(files.iter().map(|(path, text)| (format!("src/{path}"), (*text).to_owned())), "src")
}

#[test]
fn a_forbidden_room_is_found_however_it_is_written() {
    for text in [
        "use crate::election::Role;",
        "use crate::{api::Role, election::{self as e}};",
        "pub fn f(group: &crate::election::Group) {}",
        "fn f() { let x = super::election::Group::new(); }",
        "fn f() { assert!(crate::election::is_well(1)); }",
        "fn f() { use crate::election as e; }",
    ] {
        let sources = planted(&[("routing/mod.rs", text), ("election/mod.rs", "pub mod group;")]);
        let found = forbidden(&sources);
        assert!(
            found.len() == 1 && found[0].contains("`routing` must not use `election`"),
            "{text}: {found:?}"
        );
    }
    let allowed = "use crate::api::Role; #[cfg(test)] mod tests { use crate::election::Group; }";
    assert_none(&forbidden(&planted(&[("routing/mod.rs", allowed), ("api/mod.rs", "")])));
}

#[test]
fn a_forbidden_crate_is_found() {
    for (text, crate_) in [
        ("use kube::Client;", "kube"),
        ("use std::time::{Duration, Instant};", "std::time::Instant"),
        ("fn f() { std::fs::read(\"x\"); }", "std::fs"),
        ("async fn f() { tokio::time::sleep(d).await }", "tokio"),
    ] {
        let found = forbidden(&planted(&[("election/step.rs", text)]));
        assert!(
            found.len() == 1 && found[0].contains(&format!("must not use `{crate_}`")),
            "{text}: {found:?}"
        );
    }
    assert_none(&forbidden(&planted(&[("election/step.rs", "use std::time::Duration; use uuid::Uuid;")])));
}

#[test]
fn a_new_folder_needs_a_rule() {
    let found = forbidden(&planted(&[("utils/mod.rs", "")]));
    assert!(found.len() == 1 && found[0].contains("`utils` has no rule"), "{found:?}");
}

#[test]
fn a_circle_is_found() {
    let sources = planted(&[
        ("api/mod.rs", "mod a; mod b; mod c; pub use a::A; pub use b::B;"),
        ("api/a.rs", "use super::B; pub struct A;"),
        ("api/b.rs", "use crate::api::c::C; pub struct B;"),
        ("api/c.rs", "pub struct C(super::a::A);"),
    ]);
    let found = circles(&sources.edges());
    assert_eq!(found, ["a circle: src/api/a.rs -> src/api/b.rs -> src/api/c.rs -> src/api/a.rs"]);
    assert_none(&circles(&planted(&[("api/a.rs", "")]).edges()));
}

#[test]
fn a_module_may_publish_what_its_files_define() {
    let child = "use super::Handle; pub struct Part(Handle);";
    let publishes = "mod part; pub use part::Part; pub struct Handle;";
    assert_none(&circles(&planted(&[("api/mod.rs", publishes), ("api/part.rs", child)]).edges()));
    let uses = "mod part; pub use part::Part; pub struct Handle; fn f() -> Part { todo!() }";
    let found = circles(&planted(&[("api/mod.rs", uses), ("api/part.rs", child)]).edges());
    assert_eq!(found, ["a circle: src/api/mod.rs -> src/api/part.rs -> src/api/mod.rs"]);
}

#[test]
fn only_code_is_counted() {
    let text = "//! About.\n\nuse a::b;\n// why\nfn f() {\n    g(); // so\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
    let sources = planted(&[("api/mod.rs", text)]);
    assert_eq!(sources.files().next().unwrap().code_lines, 4);
}
