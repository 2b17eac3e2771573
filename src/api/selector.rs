//! Which pods belong to a group: a label selector with Kubernetes' own meaning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// A label selector, as in a Deployment. It must not be empty.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::selector, extend("x-kubernetes-map-type" = "atomic"))]
pub struct PodSelector {
    /// Labels that a pod must carry with just these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = { "type": "string", "maxLength": 63 }))]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on the pods' labels; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[schemars(transform = rules::requirement)]
pub struct LabelSelectorRequirement {
    /// The label's key.
    #[schemars(extend("maxLength" = 317))]
    pub key: String,
    /// How the label's value relates to `values`.
    pub operator: LabelSelectorOperator,
    /// The values to compare with: at least one for `In` and `NotIn`, none for `Exists` and `DoesNotExist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "items" = { "type": "string", "maxLength": 63 }, "x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// How a label's value relates to the values of a requirement.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum LabelSelectorOperator {
    /// The label is there, with one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

impl LabelSelectorOperator {
    /// Whether a requirement with this operator compares with values.
    pub(crate) fn takes_values(self) -> bool {
        matches!(self, Self::In | Self::NotIn)
    }
}

impl PodSelector {
    /// Whether a pod with these labels belongs to the group. An empty selector matches every pod, as everywhere in
    /// Kubernetes, which is why a group must not have one.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels.get(&requirement.key)))
    }

    /// Whether the selector asks for the label of this key in any way.
    pub fn mentions(&self, key: &str) -> bool {
        self.match_labels.contains_key(key) || self.match_expressions.iter().any(|e| e.key == key)
    }

    /// Whether the selector asks for nothing, so that it would match every pod.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

impl LabelSelectorRequirement {
    fn matches(&self, value: Option<&String>) -> bool {
        match self.operator {
            LabelSelectorOperator::In => value.is_some_and(|value| self.values.contains(value)),
            LabelSelectorOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            LabelSelectorOperator::Exists => value.is_some(),
            LabelSelectorOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn requirement(operator: LabelSelectorOperator, values: &[&str]) -> LabelSelectorRequirement {
        LabelSelectorRequirement {
            key: "tier".into(),
            operator,
            values: values.iter().map(|&v| v.to_owned()).collect(),
        }
    }

    #[test]
    fn each_operator_means_what_it_means_to_kubernetes() {
        use LabelSelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let cases = [
            (In, ["a", "b"].as_slice(), [true, false, false]),
            (NotIn, &["a", "b"], [false, true, true]),
            (Exists, &[], [true, true, false]),
            (DoesNotExist, &[], [false, false, true]),
        ];
        for (operator, values, expected) in cases {
            let requirement = requirement(operator, values);
            for (value, expected) in [Some("a"), Some("c"), None].into_iter().zip(expected) {
                assert_eq!(
                    requirement.matches(value.map(str::to_owned).as_ref()),
                    expected,
                    "{requirement:?} {value:?}"
                );
            }
        }
    }

    #[test]
    fn it_mentions_the_keys_that_it_asks_for() {
        let selector = PodSelector {
            match_labels: [("app".into(), "orders".into())].into(),
            match_expressions: vec![requirement(LabelSelectorOperator::Exists, &[])],
        };
        assert!(selector.mentions("tier") && selector.mentions("app") && !selector.mentions("orders"));
    }

    /// The same selector for kube.
    fn of_kube(selector: &PodSelector) -> kube::core::Selector {
        use kube::core::Expression;
        let equal =
            selector.match_labels.iter().map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
        let others = selector.match_expressions.iter().map(|requirement| {
            let (key, values) = (requirement.key.clone(), requirement.values.iter().cloned().collect());
            match requirement.operator {
                LabelSelectorOperator::In => Expression::In(key, values),
                LabelSelectorOperator::NotIn => Expression::NotIn(key, values),
                LabelSelectorOperator::Exists => Expression::Exists(key),
                LabelSelectorOperator::DoesNotExist => Expression::DoesNotExist(key),
            }
        });
        equal.chain(others).collect()
    }

    /// Few keys and values, so that what is drawn meets what is asked for.
    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        collection::btree_map("[k-m]", "[ab]?", 0..4)
    }

    fn selectors() -> impl Strategy<Value = PodSelector> {
        use LabelSelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let requirement = (
            "[k-m]",
            prop::sample::select(vec![In, NotIn, Exists, DoesNotExist]),
            collection::vec("[ab]?", 1..3),
        )
            .prop_map(|(key, operator, values)| LabelSelectorRequirement {
                key,
                operator,
                values: if operator.takes_values() { values } else { Vec::new() },
            });
        (collection::btree_map("[k-m]", "[ab]?", 0..3), collection::vec(requirement, 0..3))
            .prop_map(|(match_labels, match_expressions)| PodSelector { match_labels, match_expressions })
    }

    proptest! {
        #[test]
        fn an_independent_implementation_agrees(selector in selectors(), labels in labels()) {
            let theirs = of_kube(&selector);
            prop_assert_eq!(selector.matches(&labels), kube::core::SelectorExt::matches(&theirs, &labels));
        }

        #[test]
        fn each_further_requirement_only_narrows(selector in selectors(), labels in labels(), extra in selectors()) {
            let mut narrower = selector.clone();
            narrower.match_expressions.extend(extra.match_expressions);
            prop_assert!(!narrower.matches(&labels) || selector.matches(&labels));
        }

        #[test]
        fn a_match_label_is_short_for_in_with_one_value(labels in labels(), key in "[k-m]", value in "[ab]?") {
            let short = PodSelector { match_labels: [(key.clone(), value.clone())].into(), ..Default::default() };
            let long = PodSelector {
                match_expressions: vec![LabelSelectorRequirement {
                    key, operator: LabelSelectorOperator::In, values: vec![value],
                }],
                ..Default::default()
            };
            prop_assert_eq!(short.matches(&labels), long.matches(&labels));
        }
    }
}
