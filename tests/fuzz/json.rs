//! Objects as an API server may serve them: those of a corpus, with parts changed, removed and added.

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, sample::Index, test_runner::RngSeed};
use serde_json::{Map, Value};

/// The same cases at every run, unless `PROPTEST_RNG_SEED` and `PROPTEST_CASES` ask for others.
pub(crate) fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}

/// The objects in a directory of the corpus.
pub(crate) fn corpus(directory: &str) -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(directory);
    let mut files: Vec<_> =
        fs::read_dir(directory).expect("it is there").flatten().map(|it| it.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus is empty");
    let read = |file| serde_json::from_slice(&fs::read(file).expect("it can be read")).expect("it is JSON");
    files.iter().map(read).collect()
}

/// Any JSON value, with the texts and numbers among others at which decoders differ.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), Just(1 << 53), -2..70_000_i64];
    let text = prop_oneof![
        any::<String>(),
        "[a-z/.:-]{0,8}",
        prop::sample::select(vec![
            "True",
            "False",
            "Retain",
            "RemoveLabels",
            "5s",
            "1h",
            "0",
            "-1",
            "1e400",
            "u0/9223372036854775807",
            "a/b/0",
            "2026-01-02T03:04:05Z",
            "9999-99-99T99:99:99Z",
            "::1",
            "127.0.0.1",
            "%",
            "\0",
            "\u{202e}",
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let fields = vec((text.clone(), inner.clone()), 0..4);
        prop_oneof![
            vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|fields| Value::from(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// An object of the corpus, in which a few of the parts below one of `sections` are another value, or are missing.
pub(crate) fn altered(corpus: Vec<Value>, sections: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let change = (any::<Index>(), prop::option::weighted(0.8, any_value()));
    (prop::sample::select(corpus), vec(change, 0..5)).prop_map(move |(mut object, changes)| {
        for (at, new) in changes {
            let mut places = Vec::new();
            for section in sections {
                if let Some(found) = object.get(*section) {
                    list(found, format!("/{section}"), &mut places);
                }
            }
            if !places.is_empty() {
                let place: &String = at.get(&places);
                alter(&mut object, place, new);
            }
        }
        object
    })
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The pointers to this value and to all that it contains.
fn list(value: &Value, pointer: String, places: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                list(field, format!("{pointer}/{}", escaped(key)), places);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                list(item, format!("{pointer}/{index}"), places);
            }
        }
        _ => {}
    }
    places.push(pointer);
}

fn alter(object: &mut Value, pointer: &str, new: Option<Value>) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    match (object.pointer_mut(parent), new) {
        (Some(Value::Object(fields)), None) => {
            fields.retain(|field, _| escaped(field) != key);
        }
        (Some(Value::Array(items)), None) => {
            items.pop();
        }
        (_, new) => {
            if let Some(place) = object.pointer_mut(pointer) {
                *place = new.unwrap_or_default();
            }
        }
    }
}
