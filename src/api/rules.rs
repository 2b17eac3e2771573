//! CEL rules that the API server checks in addition to the types, each with a message that says what to write
//! instead.
//!
//! A rule on one field reports at that field. A rule on several fields is skipped while one of them is invalid by
//! itself, so that one mistake gives one message.

use std::fmt::Write as _;

use kube::core::{Reason, Rule, validate};
use schemars::Schema;
use serde_json::Value;

use super::{
    NO_ROLE, duration, schema,
    syntax::{CONTROLLERS_LABELS, LABEL_KEY, LABEL_VALUE},
};

pub(super) fn spec(schema: &mut Schema) {
    schema::conform(schema);
    on(schema, "selector", immutable("selector", "create another LeaderGroup for other pods"));
    add(
        schema,
        Rule::new(
            "!((has(self.selector.matchLabels) && self.routing.roleLabel in self.selector.matchLabels) || \
             (has(self.selector.matchExpressions) && \
             self.selector.matchExpressions.exists(e, e.key == self.routing.roleLabel)))",
        )
        .message(
            "selector must not contain routing.roleLabel: the operator changes that label, and a pod whose label changed \
             would leave the group; select by the labels that all pods of the group share",
        )
        .field_path(".selector"),
    );
    probe_beside_agent(schema);
    hooks_beside_agent(schema);
}

fn probe_beside_agent(schema: &mut Schema) {
    let message = "health.probe cannot be set together with agent, because the operator probes the agents: leave it out, and use a \
         livenessProbe for the program";
    let rule = Rule::new("!has(self.agent) || !has(self.health.probe)");
    add(schema, rule.message(message).field_path(".health.probe"));
}

fn hooks_beside_agent(schema: &mut Schema) {
    let message = "hooks cannot be set together with agent, which starts and stops the program itself: leave one of them out";
    let rule = Rule::new("!has(self.agent) || !has(self.hooks)");
    add(schema, rule.message(message).field_path(".hooks"));
}

pub(super) fn selector(schema: &mut Schema) {
    add(
        schema,
        Rule::new(
            "(has(self.matchLabels) && size(self.matchLabels) > 0) || \
             (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
        )
        .message(
            "selector must not be empty, or every pod of the namespace would belong to the group: write labels that the \
             group's pods carry, such as matchLabels: {app: my-app}",
        ),
    );
    on(
        schema,
        "matchLabels",
        Rule::new(format!(
            "self.all(k, k.matches('{LABEL_KEY}') && (self[k] == '' || self[k].matches('{LABEL_VALUE}')))"
        ))
        .message("matchLabels must be valid labels: write [prefix/]name: value, such as app: my-app"),
    );
}

pub(super) fn requirement(schema: &mut Schema) {
    on(
        schema,
        "key",
        Rule::new(format!("self.matches('{LABEL_KEY}')"))
            .message("key must be a valid label key: write [prefix/]name, such as app or example.com/tier"),
    );
    on(
        schema,
        "values",
        Rule::new(format!("self.all(v, v == '' || v.matches('{LABEL_VALUE}'))")).message(
            "values must be label values: at most 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit at both ends",
        ),
    );
    add(
        schema,
        Rule::new("!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)")
            .message(
                "values must not be empty for In and NotIn: write at least one value, or use the operator Exists",
            )
            .field_path(".values"),
    );
    add(
        schema,
        Rule::new("self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0")
            .message("values must be empty for Exists and DoesNotExist: remove them, or use the operator In")
            .field_path(".values"),
    );
}

/// The least and the greatest value of a duration, as text.
type Range = (&'static str, &'static str);
const SILENCE_TIMEOUT: Range = ("1s", "1h");
const INTERVAL: Range = ("100ms", "1h");
const DELAY: Range = ("0s", "1h");
const TIMEOUT: Range = ("1ms", "1h");
const LEASE_DURATION: Range = ("2s", "1m");
const STOP_TIMEOUT: Range = ("1s", "1h");
const HOOK_TIMEOUT: Range = ("100ms", "30s");

pub(super) fn lock(schema: &mut Schema) {
    on(
        schema,
        "key",
        Rule::new("self.matches('^[!-~]([ -~]{0,253}[!-~])?$')").message(
            "key must be 1 to 255 printable ASCII characters, without a space at either end: write a shorter or plainer \
             name, or leave it out",
        ),
    );
    on(
        schema,
        "key",
        // The operator knows the cluster's UID and the group's namespace, and checks the rest.
        Rule::new("!self.matches('^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}/')").message(
            "key must not begin with a UID and a slash, as the default keys of groups do: leave it out, or write another \
             name",
        ),
    );
    add(
        schema,
        Rule::new("has(self.key) == has(oldSelf.key) && (!has(self.key) || self.key == oldSelf.key)")
            .message(
                "lock.key is immutable, or two operator replicas could use two rows for one group: create another \
                 LeaderGroup for another key",
            )
            .field_path(".key"),
    );
}

pub(super) fn agent(schema: &mut Schema) {
    on(schema, "leaseDuration", within("leaseDuration", LEASE_DURATION, "from 2s to 1m"));
    on(schema, "stopTimeout", within("stopTimeout", STOP_TIMEOUT, "from 1s to 1h"));
}

pub(super) fn hooks(schema: &mut Schema) {
    add(
        schema,
        Rule::new("has(self.promote) || has(self.demote)")
            .message("hooks must have at least one hook: write promote, demote or both, or leave hooks out"),
    );
}

pub(super) fn hook(schema: &mut Schema) {
    on(
        schema,
        "path",
        Rule::new("self.matches('^/[A-Za-z0-9/?:@._~!$&()*+,;=%-]*$')")
            .message("path must be the path of a URL and start with a /: write it like /promote"),
    );
    port(schema);
    on(schema, "timeout", within("timeout", HOOK_TIMEOUT, "from 100ms to 30s"));
}

pub(super) fn election(schema: &mut Schema) {
    schema::conform(schema);
    on(schema, "delay", within("delay", DELAY, "from 0s to 1h"));
    on(schema, "failbackDelay", within("failbackDelay", DELAY, "from 0s to 1h"));
    add(
        schema,
        Rule::new("self.failback != 'WhenReady' || (has(self.priorities) && size(self.priorities) > 0)")
            .message(
                "failback WhenReady needs priorities, without which no pod is preferred to another: write priorities, or \
                 leave failback out",
            )
            .field_path(".failback"),
    );
}

pub(super) fn priority(schema: &mut Schema) {
    add(
        schema,
        Rule::new(
            "(has(self.nodeLabels) && size(self.nodeLabels) > 0) || (has(self.podLabels) && size(self.podLabels) > 0)",
        )
        .message(
            "a priority without labels would match every pod: write nodeLabels, such as topology.kubernetes.io/zone: a, \
             or podLabels",
        ),
    );
}

pub(super) fn health(schema: &mut Schema) {
    on(schema, "interval", within("interval", INTERVAL, "from 100ms to a third of silenceTimeout"));
    on(schema, "silenceTimeout", within("silenceTimeout", SILENCE_TIMEOUT, "from 1s to 1h"));
    on(schema, "timeout", within("timeout", TIMEOUT, "from 1ms to silenceTimeout"));
    on(
        schema,
        "container",
        Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message(
            "container must be the name of a container: at most 63 of a-z, 0-9 and -, as in the pod's spec.containers",
        ),
    );
    timings(schema);
}

/// How the times of `health` limit one another.
fn timings(schema: &mut Schema) {
    let most = duration::LONGEST_TIMEOUT;
    let usable = valid(&[("self.silenceTimeout", SILENCE_TIMEOUT), ("self.interval", INTERVAL)]);
    let of_probe = valid(&[("self.timeout", TIMEOUT)]);
    add(
        schema,
        Rule::new(format!(
            "!({usable}) || duration(self.interval) + duration(self.interval) + duration(self.interval) <= \
             duration(self.silenceTimeout)"
        ))
        .message(
            "interval must be at most a third of silenceTimeout, so that one lost probe does not look like a dead pod: \
             write a shorter interval or a longer silenceTimeout",
        )
        .field_path(".interval"),
    );
    add(
        schema,
        Rule::new(format!(
            "!({usable}) || !has(self.timeout) || !({of_probe}) || duration(self.timeout) <= \
             duration(self.silenceTimeout)"
        ))
        .message("timeout must be at most silenceTimeout: write a shorter timeout or a longer silenceTimeout")
        .field_path(".timeout"),
    );
    add(
        schema,
        Rule::new(format!(
            "!({usable}) || !has(self.timeout) || !({of_probe}) || duration(self.timeout).getMilliseconds() <= \
             {most} * duration(self.interval).getMilliseconds()"
        ))
        .message(
            format!(
                "timeout must be at most {most} times interval: a pod that hangs would otherwise have too many \
                 outstanding probes"
            )
            .as_str(),
        )
        .field_path(".timeout"),
    );
    add(
        schema,
        Rule::new(format!(
            "!({usable}) || self.failureThreshold > 10 || \
             self.failureThreshold * duration(self.interval).getMilliseconds() <= \
             duration(self.silenceTimeout).getMilliseconds()"
        ))
        .message(
            "failureThreshold times interval must be at most silenceTimeout: write a smaller failureThreshold, a shorter \
             interval or a longer silenceTimeout",
        )
        .field_path(".failureThreshold"),
    );
}

pub(super) fn probe(schema: &mut Schema) {
    add(
        schema,
        Rule::new("[has(self.httpGet), has(self.tcpSocket), has(self.grpc)].filter(is, is).size() == 1")
            .message("probe must be of exactly one kind: write one of httpGet, tcpSocket and grpc"),
    );
}

pub(super) fn http_get(schema: &mut Schema) {
    on(
        schema,
        "path",
        Rule::new("self.matches('^/[!-~]*$')")
            .message("path must start with a / and contain no spaces: write it like /readyz"),
    );
    port(schema);
}

pub(super) fn port(schema: &mut Schema) {
    on(
        schema,
        "port",
        Rule::new(
            "type(self) == int ? self >= 1 && self <= 65535 : self.matches('^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$') && \
             self.matches('[a-z]') && !self.contains('--')",
        )
        .message(
            "port must be a number from 1 to 65535, or the name of a port of the container: at most 15 of a-z, 0-9 and -, \
             such as 8080 or http",
        ),
    );
}

pub(super) fn routing(schema: &mut Schema) {
    on(
        schema,
        "roleLabel",
        Rule::new(format!("self.matches('{LABEL_KEY}')"))
            .message("roleLabel must be a valid label key: write [prefix/]name, such as example.com/role"),
    );
    on(
        schema,
        "roleLabel",
        Rule::new(format!(
            "!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') && !(self in ['{}'])",
            CONTROLLERS_LABELS.join("', '")
        ))
        .message(
            "roleLabel must not be a label that Kubernetes uses itself: write one of your own domain, such as \
             example.com/role",
        ),
    );
    on(schema, "roleLabel", immutable("roleLabel", "create another LeaderGroup for another label"));
    for value in ["activeValue", "standbyValue"] {
        on(
            schema,
            value,
            Rule::new(format!("self.matches('{LABEL_VALUE}')")).message(format!(
                "{value} must be a label value: 1 to 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit at both ends"
            ).as_str()),
        );
        on(
            schema,
            value,
            Rule::new(format!("self != '{NO_ROLE}'")).message(
                format!(
                    "{value} must not be {NO_ROLE}, by which Services select no pod: write another value"
                )
                .as_str(),
            ),
        );
        // If the two values could be exchanged, the Service would route to every standby until it is labelled again.
        on(schema, value, immutable(value, "create another LeaderGroup for another value"));
    }
    add(
        schema,
        Rule::new("self.activeValue != self.standbyValue")
            .message("standbyValue must differ from activeValue, or every pod would be routed to: write two values")
            .field_path(".standbyValue"),
    );
}

fn immutable(field: &str, instead: &str) -> Rule {
    Rule::new("self == oldSelf").message(format!("{field} is immutable: {instead}").as_str())
}

/// The field must be a duration in the range.
fn within(field: &str, range: Range, words: &str) -> Rule {
    Rule::new(valid(&[("self", range)])).message(
        format!("{field} must be {words}, written in h, m, s and ms, such as 500ms, 5s or 1m30s").as_str(),
    )
}

/// A condition that all these expressions are durations in their ranges. After it, `duration(...)` cannot fail on
/// them.
fn valid(durations: &[(&str, Range)]) -> String {
    durations.iter().fold(String::new(), |mut rule, (it, (least, greatest))| {
        let and = if rule.is_empty() { "" } else { " && " };
        let _infallible = write!(
            rule,
            "{and}{it}.matches('{}') && duration({it}) >= duration('{least}') && duration({it}) <= duration('{greatest}')",
            duration::PATTERN
        );
        rule
    })
}

fn on(schema: &mut Schema, property: &str, rule: Rule) {
    let property =
        schema.get_mut("properties").and_then(|properties| properties.get_mut(property)).unwrap_or_else(
            || panic!("no property {property} to put a rule on: the rules follow the types of this room"),
        );
    let mut inner = Schema::try_from(property.take()).expect("a property's schema is an object or a boolean");
    add(&mut inner, rule);
    *property = Value::from(inner);
}

fn add(schema: &mut Schema, rule: Rule) {
    validate(schema, rule.reason(Reason::FieldValueInvalid)).expect("a rule is plain text and serialises");
}
