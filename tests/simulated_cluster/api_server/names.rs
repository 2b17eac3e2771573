//! The syntax of names, and names and UIDs that the server makes.

/// What is wrong with a qualified name, such as the key of a label.
pub fn qualified_name_problem(text: &str) -> Option<&'static str> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Some("prefix part must be a lowercase RFC 1123 subdomain");
    }
    if name.is_empty() {
        return Some("name part must be non-empty");
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes");
    }
    (!is_label_value(name)).then_some(
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
    )
}

pub fn is_label_value(text: &str) -> bool {
    let is_inner = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    text.len() <= 63 && text.bytes().all(is_inner) && is_closed(text)
}

/// Whether it is a lowercase RFC 1123 subdomain, such as the name of a pod.
pub fn is_subdomain(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_inner = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
        !part.is_empty() && part.bytes().all(is_inner) && is_closed(part)
    };
    !text.is_empty() && text.len() <= 253 && text.split('.').all(is_part)
}

fn is_closed(text: &str) -> bool {
    [text.bytes().next(), text.bytes().last()]
        .into_iter()
        .flatten()
        .all(|letter| letter.is_ascii_alphanumeric())
}

/// A sequence of UIDs and suffixes that follows from its seed alone. The UIDs are in no order, as real ones are.
#[derive(Clone, Debug)]
pub struct Sequence(u64);

impl Sequence {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn uid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
            .into_uuid()
            .to_string()
    }

    /// What is appended to `metadata.generateName`.
    pub fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut rest = self.next();
        let mut letter = || {
            let length = LETTERS.len() as u64;
            let index = usize::try_from(rest % length).expect("less than the number of letters");
            rest /= length;
            char::from(LETTERS[index])
        };
        (0..5).map(|_| letter()).collect()
    }

    /// A number below this one.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a length");
        usize::try_from(self.next() % limit).expect("less than a length")
    }

    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
