//! URLs with passwords that were not escaped, for tests of what is shown of a URL.

use proptest::{prelude::*, test_runner::RngSeed};

/// The same cases in each run, unless others are asked for.
pub(super) fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { config.rng_seed };
    ProptestConfig { cases: config.cases.max(4_000), rng_seed, ..config }
}

/// The words of the passwords.
pub(super) const WORDS: [&str; 3] = ["hunter2", "sesame", "xyzzy"];

/// A password of words that are separated by characters that mean something in a URL.
fn password() -> impl Strategy<Value = String> {
    let word = prop::sample::select(WORDS.to_vec());
    let mark = prop::sample::select(vec![
        "/", "?", "@", ":", "#", "&", "=", "%", "%2F", ",", " ", "[", "]", "\\", "é",
    ]);
    prop::collection::vec((word, mark), 1..5).prop_map(|parts| {
        parts.iter().map(|(word, mark)| format!("{word}{mark}")).collect::<String>() + "hunter2"
    })
}

/// A URL around a password that was not escaped.
pub(super) fn url() -> impl Strategy<Value = String> {
    let place =
        prop::sample::select(vec!["h/db", "h:5432/db", "h", "", "a,b/db", "a:1,,b:x/db", "[::1]/db", "/db"]);
    let query = prop::sample::select(vec![
        "",
        "?sslmode=disable",
        "?user=me@there",
        "?sslmod=x",
        "?host=a,&port=1,2,3",
        "#",
    ]);
    (password(), place, query, any::<bool>()).prop_map(|(password, place, query, in_query)| {
        if in_query {
            format!(
                "postgres://me@{place}{query}{}password={password}",
                if query.contains('?') { "&" } else { "?" }
            )
        } else {
            format!("postgres://me:{password}@{place}{query}")
        }
    })
}
