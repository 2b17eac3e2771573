//! The lists of the lock that no compiler compares: its statements with those of the database in memory, and the files
//! of its migrations with the list of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of the statements that a source defines.
fn defined(source: &str) -> impl Iterator<Item = &str> {
    let bodies = source.split("Statement {").skip(1);
    bodies.filter_map(|body| body.trim_start().strip_prefix("name: \"")?.split('"').next())
}

/// The names that the arms of a `match` compare with.
fn arms(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('"')?.split_once("\" =>"))
        .map(|(name, _)| name)
}

#[test]
fn the_database_in_memory_has_each_statement_of_the_lock() {
    let sources = crate::read("lock/src");
    let texts: Vec<String> = sources.files().map(|file| text(&file.path)).collect();
    let names: Vec<&str> = texts.iter().flat_map(|text| defined(text)).collect();
    let defined: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), defined.len(), "two statements have the same name: {names:?}");
    let memory = text("lock/src/memory/transaction.rs");
    let known: BTreeSet<&str> = arms(&memory).collect();
    assert!(defined.len() > 20, "the sources are not understood: {defined:?}");
    let missing: Vec<_> = defined.difference(&known).collect();
    assert!(missing.is_empty(), "`dispatch` in lock/src/memory/transaction.rs has no arm for {missing:?}");
    let unused: Vec<_> = known.difference(&defined).collect();
    assert!(unused.is_empty(), "`dispatch` in lock/src/memory/transaction.rs has unused arms: {unused:?}");
    let reading = memory.split("const READING").nth(1).and_then(|list| list.split("];").next());
    let reading: Vec<&str> = reading.expect("it is there").split('"').skip(1).step_by(2).collect();
    assert!(reading.len() > 5 && reading.iter().all(|name| defined.contains(name)), "`READING`: {reading:?}");
}

#[test]
fn each_migration_is_listed_in_its_order() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lock/src/migrations");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files.collect();
    let list = text("lock/src/db/migrations.rs");
    let listed = list.split("include_str!(\"../migrations/").skip(1);
    let listed: Vec<&str> = listed.filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(listed, files.iter().collect::<Vec<_>>(), "`MIGRATIONS` in lock/src/db/migrations.rs");
}

#[test]
fn statements_and_arms_are_found_however_they_are_laid_out() {
    let source = "const A: Statement = Statement { name: \"a\" };\nconst B: Statement = Statement {\n    name: \"b c\",";
    assert_eq!(defined(source).collect::<Vec<_>>(), ["a", "b c"]);
    assert_eq!(
        arms("match x {\n    \"a\" => 1,\n    \"b c\" => 2,\n    other => 3,\n}\n[\"d\",\n\"e\",]")
            .collect::<Vec<_>>(),
        ["a", "b c"]
    );
}
