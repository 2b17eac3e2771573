//! `docs/reference.md` lists the fields of the custom resource, the settings and the metrics as the code has them.
//! `make reference` writes it; without `UPDATE=1` this test compares it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args as _, Command};
use kube::CustomResourceExt as _;
use leadergroup::{
    api::{Cause, ConditionType, LeaderGroup, Reason},
    config::{Settings, SettingsArgs, SettingsError, Sources},
    telemetry::{ApiOutcome, ChangeKind, GroupReading, GroupState, LockOperation, LockOutcome, Metrics},
};
use leadergroup_lock::{LockError, LockMetrics, Store};
use serde_json::Value;

const INTRODUCTION: &str = "\
# Reference

All fields, settings and metrics, with the descriptions that the programs themselves give. This page is generated from
the code (`make reference`). What belongs together, and why, is explained in [the LeaderGroup](api.md),
[Settings](settings.md) and [Operations](operations.md#monitoring).
";

#[test]
fn the_reference_is_what_the_code_says() {
    let page = [
        INTRODUCTION.to_owned(),
        fields("spec", "## Fields of spec"),
        fields("status", "## Fields of status"),
        columns(),
        reasons(),
        settings(),
        metrics(),
    ]
    .join("\n");
    let path = root().join("docs/reference.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("the page can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/reference.md is out of date; run `make reference`");
}

#[test]
fn each_condition_and_each_reason_is_explained() {
    let explained = fs::read_to_string(root().join("docs/api.md")).expect("docs/api.md is there");
    let names = ConditionType::ALL.iter().map(ToString::to_string);
    for name in names.chain(Reason::ALL.iter().map(ToString::to_string)) {
        assert!(explained.contains(&format!("\n| `{name}` |")), "docs/api.md has no row for {name}");
    }
}

#[test]
fn each_field_of_the_spec_is_explained() {
    let explained = fs::read_to_string(root().join("docs/api.md")).expect("docs/api.md is there");
    // Every other part is code: what stands between backquotes, also of blocks.
    let words: BTreeSet<&str> = explained
        .split('`')
        .skip(1)
        .step_by(2)
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric()))
        .collect();
    let mut rows = Vec::new();
    below("spec", &schema("spec"), &mut rows);
    assert!(rows.len() > 20, "the schema is not understood: {rows:?}");
    for path in rows.iter().map(|row| row[0].trim_matches('`')) {
        let name = path.rsplit('.').next().unwrap_or_default();
        assert!(words.contains(name), "docs/api.md does not mention {path}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn table(heading: &str, about: &str, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = row(head.iter().map(|&cell| cell.to_owned()).collect()) + &"|---".repeat(head.len()) + "|\n";
    let rows: String = rows.into_iter().map(row).collect();
    let about = if about.is_empty() { String::new() } else { format!("{about}\n\n") };
    format!("{heading}\n\n{about}{head}{rows}")
}

/// Prose in a cell of a table.
fn prose(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// The schema of `spec` or `status`.
fn schema(top: &str) -> Value {
    let definition = serde_json::to_value(LeaderGroup::crd()).expect("it serialises");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][top].clone()
}

/// The fields below `spec` or `status`, with the types, defaults and limits of the schema.
fn fields(top: &str, heading: &str) -> String {
    let schema = schema(top);
    let description = prose(schema["description"].as_str().unwrap_or_default());
    let mut rows = vec![vec![code(top), kind(&schema), String::new(), limits(&schema), description]];
    below(top, &schema, &mut rows);
    table(heading, "", &["field", "type", "default", "limits", "description"], rows)
}

fn below(path: &str, schema: &Value, rows: &mut Vec<Vec<String>>) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let default = match &field["default"] {
            Value::Null if required.contains(&name.as_str()) => "required".to_owned(),
            Value::String(text) => code(text),
            scalar @ (Value::Bool(_) | Value::Number(_)) => code(&scalar.to_string()),
            _ => String::new(),
        };
        let description = prose(field["description"].as_str().unwrap_or_default());
        rows.push(vec![code(&path), kind(field), default, limits(field), description]);
        // What the declaration consists of is for the operator alone.
        if path != "status.declaration" {
            below(&path, field, rows);
            below(&format!("{path}[]"), &field["items"], rows);
        }
    }
}

fn kind(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    let rules = field["x-kubernetes-validations"].to_string();
    match (field["type"].as_str().unwrap_or("any"), field["format"].as_str()) {
        ("array", _) => format!("list of {}", kind(&field["items"])),
        ("object", _) if field["additionalProperties"].is_object() => "map of strings".to_owned(),
        ("string", Some("date-time")) => "time".to_owned(),
        ("string", _) if rules.contains("duration(self)") => "duration".to_owned(),
        (kind, _) => kind.to_owned(),
    }
}

/// What the API server checks: the schema's limits, and the messages of the CEL rules.
fn limits(field: &Value) -> String {
    let mut all = Vec::new();
    let words = field["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<String> = words.map(code).collect();
    if !words.is_empty() {
        all.push(words.join(", "));
    }
    let rules = field["x-kubernetes-validations"].as_array().into_iter().flatten();
    let rules: Vec<&str> = rules.filter_map(|rule| rule["message"].as_str()).collect();
    let range = |text: &str| text.strip_prefix("from ").map(|_| text.to_owned());
    // Of durations the length of the text is limited, too, which says nothing.
    let is_duration = kind(field) == "duration";
    for (least, most, what) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " entries"),
    ] {
        let text = match (field[least].as_f64(), field[most].as_f64()) {
            _ if is_duration => continue,
            (None, None) => continue,
            (None, Some(most)) => format!("at most {most}{what}"),
            (Some(least), None) => format!("at least {least}{what}"),
            (Some(least), Some(most)) => format!("{least} to {most}{what}"),
        };
        all.push(text);
    }
    for message in rules {
        let of_duration =
            message.split_once(" must be ").and_then(|(_, rest)| rest.split_once(", written in"));
        let short = of_duration.filter(|_| is_duration).and_then(|(text, _)| range(text));
        all.push(short.unwrap_or_else(|| prose(message)));
    }
    all.join("; ")
}

/// What `kubectl get` prints.
fn columns() -> String {
    let definition = serde_json::to_value(LeaderGroup::crd()).expect("it serialises");
    let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array().cloned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = columns.into_iter().flatten().map(|column| {
        let wide = if column["priority"].as_i64().unwrap_or_default() > 0 { "`-o wide`" } else { "" };
        vec![
            text(&column["name"]).to_uppercase(),
            code(&text(&column["jsonPath"])),
            wide.to_owned(),
            prose(&text(&column["description"])),
        ]
    });
    table("## Columns of kubectl get", "", &["column", "from", "only with", "description"], rows)
}

/// The reasons of changes of holder, by what they mean for the former holder.
fn reasons() -> String {
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for reason in Reason::ALL {
        let kind = match reason.cause() {
            Some(Cause::Planned) => "planned",
            Some(Cause::Failure) => "failure",
            Some(Cause::End) => "end",
            Some(Cause::Other) => "other",
            None => continue,
        };
        kinds.entry(kind).or_default().push(code(&reason.to_string()));
    }
    let about = "[The LeaderGroup](api.md#reasons) explains each reason. The kind is a label of\n\
                 `leadergroup_holder_changes_total`, and an attribute of [traces](operations.md#traces).";
    let rows = kinds.into_iter().map(|(kind, reasons)| vec![code(kind), reasons.join(", ")]);
    table("## Kinds of changes", about, &["kind", "reasons"], rows)
}

/// The settings of the operator, from the help of its command.
fn settings() -> String {
    let command = SettingsArgs::augment_args(Command::new("leadergroup"));
    let rows = command.get_arguments().filter_map(|argument| {
        let help = argument.get_help()?.to_string();
        let part = |name: &str| {
            let (_, rest) = help.split_once(&format!("[{name}: "))?;
            Some(rest.rsplit_once(" [").map_or(rest, |(first, _)| first).trim_end_matches(']').to_owned())
        };
        // `--config` is no setting.
        let key = help.split_once("[file: ")?.1.split_once(']')?.0;
        let variable = help.split_once("[env: ")?.1.split_once(']')?.0;
        let default = part("default").map(|text| code(&text)).unwrap_or_default();
        let about = prose(help.split_once(" [file: ")?.0);
        let (values, limits) =
            (argument.get_value_names()?.first()?.as_str(), limits_of_setting(key, variable));
        let values = match limits {
            _ if values.contains('|') => values.split('|').map(code).collect::<Vec<_>>().join(", "),
            Some(limits) => prose(&limits),
            None => values.to_lowercase(),
        };
        Some(vec![code(key), code(variable), values, default, about])
    });
    let about = "In a settings file the name is the key; as a flag it is that of the variable, in lower case and with\n\
                 dashes, such as `--retry-interval`.";
    table("## Settings of the operator", about, &["key", "variable", "values", "default", "meaning"], rows)
}

/// What the error about a value that no setting accepts says of the values that it does accept.
fn limits_of_setting(key: &str, variable: &str) -> Option<String> {
    let environment = [(variable.to_owned(), "?".to_owned())].into();
    let errors = Settings::load(&Sources { environment, ..Sources::default() }).err()?;
    let limits = |error: &SettingsError| {
        let rest = error.problem.strip_prefix(key)?.strip_prefix(" must be ")?.to_owned();
        Some(rest.split_once(": ").map_or(rest.clone(), |(limits, _)| limits.to_owned()))
    };
    errors.0.iter().find_map(limits)
}

/// The metrics, from what `/metrics` answers when everything has happened once.
fn metrics() -> String {
    let text = exposition();
    let mut rows = Vec::new();
    for line in text.lines() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let type_of = format!("# TYPE {name} ");
        let kind = text.lines().find_map(|line| line.strip_prefix(&type_of)).expect("each metric has a type");
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let shown = format!("{name}{suffix}");
        let labels = labels(&text, name).into_iter().map(|label| code(&label)).collect::<Vec<_>>().join(", ");
        rows.push(vec![code(&shown), kind.to_owned(), labels, prose(help.trim_end_matches('.'))]);
    }
    let registered = registered();
    assert!(registered.len() > 20, "the sources are not understood: {registered:?}");
    for name in registered {
        let is_shown = rows.iter().any(|row| row[0].contains(&format!("leadergroup_{name}")));
        assert!(is_shown, "{name} is registered, but `exposition` does not make it happen");
    }
    let about = "Those of a group are reported by the replica that owns it; the conditions of a group without an owner \
                 by each replica.";
    table("## Metrics", about, &["metric", "type", "labels", "help"], rows)
}

/// The labels of the series of a metric, without those of the parts of histograms.
fn labels(text: &str, name: &str) -> BTreeSet<String> {
    let series = text.lines().filter_map(|line| line.strip_prefix(name)?.split_once('{'));
    let of_this = series.filter(|(suffix, _)| matches!(*suffix, "" | "_total" | "_info" | "_bucket"));
    let labels = of_this.flat_map(|(_, rest)| rest.split("\",")).filter_map(|label| label.split_once("=\""));
    labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le").collect()
}

/// The names that are registered in the sources of the room.
fn registered() -> BTreeSet<String> {
    let files = fs::read_dir(root().join("src/telemetry")).expect("the folder is there");
    let texts = files.map(|file| fs::read_to_string(file.expect("a file").path()).expect("it can be read"));
    let calls = texts.flat_map(|text| {
        let parts = text.split("registry.register").skip(1).map(str::to_owned);
        parts.collect::<Vec<_>>()
    });
    let literal = |call: String| {
        let arguments = call.trim_start_matches("_with_unit").strip_prefix('(')?.trim_start().to_owned();
        Some(arguments.strip_prefix('"')?.split_once('"')?.0.to_owned())
    };
    calls.filter_map(literal).collect()
}

fn exposition() -> String {
    let store = Store::refusing(LockError::Invalid { what: "URL", problem: "is missing".to_owned() });
    let metrics = Metrics::new().with(|registry| LockMetrics::new(&store).only_database().register(registry));
    let reading = GroupReading {
        active: Some("web-0".to_owned()),
        works: true,
        labelled: 1,
        eligible: 2,
        members: 3,
        token: 1,
        changed_at: Some(0),
        conditions: vec![("Ready", true)],
    };
    metrics.set_groups(GroupState::Active, 1);
    metrics.set_group("shop", "web", reading, Duration::ZERO);
    metrics.holder_changed("shop", "web", ChangeKind::Planned);
    metrics.failover("Silent", Duration::ZERO);
    metrics.probe("success", Some(Duration::ZERO));
    metrics.set_watch_failing("pods", Duration::ZERO);
    metrics.lock_operation(LockOperation::Grant, LockOutcome::Done);
    metrics.api_write("status", ApiOutcome::Done);
    metrics.hook_request("promote", true);
    metrics.encode().expect("it can be encoded")
}
