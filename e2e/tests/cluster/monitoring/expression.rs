//! Parts of the expressions of Prometheus, as far as the chart's alerts and dashboard need them.

/// The prefix of the operator's metrics.
const PREFIX: &str = "leadergroup_";

/// The selectors of the operator's metrics: those without conditions, and each condition of the others by itself.
pub(super) fn selectors(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices(PREFIX) {
        let rest = &expression[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (metric, rest) = rest.split_at(end);
        found.push(metric.to_owned());
        let conditions = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        let conditions = conditions.into_iter().flat_map(|all| all.split(','));
        found.extend(conditions.map(|condition| format!("{metric}{{{condition}}}")));
    }
    found
}

/// An expression without its comparisons with numbers, and with what `absent()` asks for: it has a value whenever it
/// could be compared.
pub(super) fn without_comparisons(expression: &str) -> String {
    let comparison = ['<', '>', '=', '!'];
    let expression = expression.replace("absent(", "(");
    let (mut bare, mut rest) = (String::new(), expression.as_str());
    while let Some(at) = rest.find(comparison) {
        let (before, from) = rest.split_at(at);
        let after = from.trim_start_matches(comparison);
        let operand = after.trim_start();
        let behind = operand.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        bare.push_str(before);
        if behind.len() < operand.len() {
            rest = behind;
        } else {
            bare.push_str(from.strip_suffix(after).unwrap_or_default());
            rest = after;
        }
    }
    bare + rest
}

#[test]
fn each_condition_is_a_selector() {
    let found = selectors(r#"sum(rate(leadergroup_a_total{b="c",d=~"e"}[5m])) / leadergroup_f"#);
    let expected = [
        "leadergroup_a_total",
        r#"leadergroup_a_total{b="c"}"#,
        r#"leadergroup_a_total{d=~"e"}"#,
        "leadergroup_f",
    ];
    assert_eq!(found, expected);
}

#[test]
fn comparisons_with_numbers_are_left_out_and_conditions_of_selectors_stay() {
    let bare = without_comparisons(r#"(max(a{b!="1"}) == 0) and on (c) (d{e=~"f"} >= 3.5)"#);
    assert_eq!(bare, r#"(max(a{b!="1"}) ) and on (c) (d{e=~"f"} )"#);
    assert_eq!(without_comparisons("absent(a) "), "(a) ");
}
