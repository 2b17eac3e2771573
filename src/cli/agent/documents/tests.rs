use super::*;

const DEPLOYMENT: &str = "
# The nightly jobs.
apiVersion: apps/v1
kind: Deployment
metadata: {name: nightly, namespace: jobs}
spec:
  template:
    metadata:
      labels: {app: nightly}
    spec:
      serviceAccountName: worker
      containers:
        - name: main
          command: [sh, -c, \"echo yes\\nsleep 1\\n\"]
          env: [{name: A, value: \"yes\"}, {name: B, value: '0644'}]
";

const SERVICE: &str = "\napiVersion: v1   # kept\nkind:   Service\nmetadata: {name: 'nightly'}\n";

fn by_group(name: &str) -> Wish {
    Wish { group: Some(name.to_owned()), image: "agent:1".to_owned(), ..Wish::default() }
}

fn of(text: &str, wish: &Wish) -> Result<String, String> {
    injected(&[text.to_owned()], wish, "leadergroup-agent").map_err(|error| error.to_string())
}

#[test]
fn other_documents_stay_to_the_byte_and_the_right_to_read_comes_last() {
    let text = format!("---{SERVICE}---{DEPLOYMENT}--- # the end{SERVICE}");
    let output = of(&text, &by_group("nightly")).expect("it is injected");
    let parts: Vec<&str> = output.split("---").collect();
    assert_eq!((parts[0], parts[1]), ("", SERVICE), "{output}");
    assert_eq!(parts[parts.len() - 2], &format!(" # the end{SERVICE}"), "{output}");
    let documents = read(std::slice::from_ref(&output)).expect("YAML");
    let container = &documents[2].value["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"][6], "echo yes\nsleep 1\n");
    assert_eq!(
        (&container["env"][0]["value"], &container["env"][1]["value"]),
        (&"yes".into(), &"0644".into())
    );
    let binding = &documents.last().expect("a document").value;
    assert_eq!(binding["metadata"], json!({ "name": "leadergroup-agent-worker", "namespace": "jobs" }));
    assert_eq!(
        binding["subjects"],
        json!([{ "kind": "ServiceAccount", "name": "worker", "namespace": "jobs" }])
    );
    assert_eq!(of(&output, &by_group("nightly")).as_ref(), Ok(&output), "twice is as once");
}

#[test]
fn a_workload_s_group_is_named_by_the_flag_its_label_or_a_group_that_selects_it() {
    let group = |name: &str, agent: &str| {
        format!(
            "\napiVersion: leadergroup.dev/v1alpha1\nkind: LeaderGroup\nmetadata: {{name: {name}, namespace: jobs}}\n\
             spec: {{selector: {{matchLabels: {{app: nightly}}}}{agent}}}\n"
        )
    };
    let name = |text: &str, wish: &Wish| {
        let output = of(text, wish)?;
        let words =
            output.split_whitespace().find_map(|word| word.strip_prefix("--group=").map(str::to_owned));
        Ok::<_, String>(words.unwrap_or_default())
    };
    let open = Wish { group: None, ..by_group("") };
    let selected = format!("{}---{DEPLOYMENT}", group("chosen", ", agent: {}"));
    assert_eq!(name(&selected, &open), Ok("chosen".to_owned()));
    let labelled =
        selected.replace("labels: {app: nightly}", "labels: {app: nightly, leadergroup.dev/agent: label}");
    assert_eq!(name(&labelled, &open), Ok("label".to_owned()));
    assert_eq!(name(&labelled, &by_group("flag")), Ok("flag".to_owned()));
    let without_agents = format!("{}---{DEPLOYMENT}", group("plain", ""));
    assert!(name(&without_agents, &open).is_err_and(|error| error.contains("--group")));
    assert!(
        name(&without_agents, &by_group("plain")).is_err_and(|error| error.contains("has no spec.agent"))
    );
    assert_eq!(
        name(&without_agents, &by_group("other")),
        Ok("other".to_owned()),
        "it is about another group"
    );
    let elsewhere = selected.replacen("namespace: jobs", "namespace: other", 1);
    assert!(name(&elsewhere, &open).is_err());
    let error = of(SERVICE, &by_group("nightly")).expect_err("no workload");
    assert!(error.contains("CronJob"), "{error}");
}

#[test]
fn lists_and_several_files_are_read() {
    let items = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: \
                 {containers: [{name: c, command: [a]}]}}\n- {apiVersion: v1, kind: Secret, data: {a: b}}";
    let texts = [items.to_owned(), DEPLOYMENT.to_owned()];
    let output = injected(&texts, &by_group("g"), "leadergroup-agent").expect("it is injected");
    let documents = read(&[output]).expect("YAML");
    let kinds: Vec<&Value> = documents.iter().map(|document| &document.value["kind"]).collect();
    assert_eq!(kinds, ["List", "Deployment", "RoleBinding", "RoleBinding"]);
    let list = &documents[0].value["items"];
    assert_eq!(list[0]["spec"]["containers"][0]["command"][2], "--group=g");
    assert_eq!(list[1]["data"], json!({ "a": "b" }));
}

#[test]
fn what_cannot_be_read_or_changed_is_refused_and_named() {
    let broken = format!("{SERVICE}---\nkind: [\n---{DEPLOYMENT}");
    let error = of(&broken, &by_group("nightly")).expect_err("no YAML");
    assert!(error.starts_with("document 2 "), "{error}");
    let twice = DEPLOYMENT.replace("kind: Deployment", "kind: Deployment\nkind: Pod");
    assert!(of(&twice, &by_group("nightly")).is_err(), "a key twice");
    let without = DEPLOYMENT.replace("command:", "args:");
    let error = of(&without, &by_group("nightly")).expect_err("no command");
    assert!(error.starts_with("Deployment nightly: container main has no command"), "{error}");
    let taken = format!(
        "{DEPLOYMENT}---\nkind: RoleBinding\nmetadata: {{name: leadergroup-agent-worker, namespace: jobs}}\n",
    );
    let error = of(&taken, &by_group("nightly")).expect_err("another RoleBinding");
    assert!(error.starts_with("RoleBinding leadergroup-agent-worker: "), "{error}");
}

#[test]
fn scalars_that_other_parsers_read_as_something_else_keep_their_meaning() {
    let words = [
        "yes", "no", "on", "y", "n", "True", "null", "~", "", "0644", "0o7", "0x1f", "1e3", "1_000", "12:30",
        ".5",
    ];
    let more = [
        " a", "a ", "#x", "a: b", "- a", "a\nb", "a\n\n", "\n", "\t", "---", "...", "<<", "=", "!a", "&a",
        "*a", "{", "%",
    ];
    let texts = [words.to_vec(), more.to_vec()].concat();
    let value = json!({ "texts": texts, "numbers": [0, -1, 0.5, 1_000_000_000_000_u64] });
    let text = written(&value, 1).expect("it can be written");
    let lines: Vec<&str> = text.lines().collect();
    for word in words {
        assert!(!lines.contains(&format!("- {word}").as_str()), "{word} has quotes: {text}");
    }
    // What kubectl reads as octal and as a truth value is written as such.
    let read = read(&["a: 0644\nb: yes\n".to_owned()]).expect("YAML");
    assert_eq!(read[0].value, json!({ "a": 420, "b": true }));
}

/// The text of an example.
fn example(name: &str) -> String {
    let path = format!("{}/examples/more/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_examples_need_no_injection() {
    let open = Wish { group: None, ..by_group("") };
    for name in ["agent-consumer", "agent-nats", "agent-redis", "agent-scheduler", "client-go-after"] {
        let text = example(name);
        assert_eq!(of(&text, &open), Ok(text), "{name}");
    }
}

#[test]
fn the_example_of_a_moved_program_is_what_inject_makes_of_it() {
    let before = example("client-go-before")
        .replace("--leader-elect=true, --lease-name=leader]", "--leader-elect=false]")
        .replace("      labels: {app: leader}", "      labels: {app: leader, leadergroup.dev/agent: leader}");
    let image = concat!("ghcr.io/leadergroup/leadergroup-agent:", env!("CARGO_PKG_VERSION")).to_owned();
    let made = of(&before, &Wish { image, ..Wish::default() }).expect("it is injected");
    let [made, after] = [made, example("client-go-after")].map(|text| read(&[text]).expect("YAML"));
    let workload = |documents: &[Document]| {
        let mut all = documents.iter().filter(|document| document.value["kind"] == "Deployment");
        all.next().expect("a Deployment").value.clone()
    };
    assert_eq!(workload(&made), workload(&after));
    let binding = &made.last().expect("documents").value;
    assert_eq!(binding["kind"], "RoleBinding");
    assert!(after.iter().any(|document| document.value == *binding), "{binding}");
}
