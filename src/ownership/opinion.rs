//! What replicas ask each other about holders that one of them does not hear, as text for [`Store::tell`].
//!
//! [`Store::tell`]: leadergroup_lock::Store::tell

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use leadergroup_lock::SessionId;

/// The most pods in one message, whose UIDs have 36 characters each.
const MOST_PODS: usize = 150;
/// The least time between two statements, so that the failure of many pods at once takes a few statements a second.
const PAUSE: Duration = Duration::from_millis(250);

/// A question about pods, or the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opinion {
    /// Whether it is a question or an answer.
    pub what: What,
    /// The UIDs of the pods.
    pub pods: Vec<Arc<str>>,
}

/// What a replica says of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It does not hear them: who does? If it is `blind`, the cause is its own, such as a network that reaches no other
    /// node, and another replica may also answer that they do not work.
    Ask {
        /// Whether the cause is its own.
        blind: bool,
    },
    /// It hears them, and would own their groups.
    Vouch,
}

impl Opinion {
    /// The messages with which this replica says this; none if there are no pods.
    pub fn messages(&self, from: SessionId) -> impl Iterator<Item = String> + use<'_> {
        let head = format!("{} {from}", self.what.word());
        self.pods.chunks(MOST_PODS).map(move |pods| format!("{head} {}", pods.join(" ")))
    }

    /// Reads a message, and which replica has sent it. None if that one is of a newer version.
    pub fn read(message: &str) -> Option<(SessionId, Self)> {
        let mut words = message.split(' ');
        let what = What::of(words.next()?)?;
        let from = words.next()?.parse::<uuid::Uuid>().ok()?.into();
        Some((from, Self { what, pods: words.map(Arc::from).collect() }))
    }
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Ask { blind: false } => "ask",
            Self::Ask { blind: true } => "ask-blind",
            Self::Vouch => "vouch",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::Ask { blind: false }, Self::Ask { blind: true }, Self::Vouch]
            .into_iter()
            .find(|what| what.word() == word)
    }
}

/// What is still to be told to the other replicas.
#[derive(Debug, Default)]
pub struct Untold {
    /// Pods that they are asked about, and whether this replica is blind.
    questions: BTreeMap<Arc<str>, bool>,
    /// Pods that this replica vouches for.
    vouched: BTreeSet<Arc<str>>,
    /// When something was told last.
    told_at: Duration,
}

impl Untold {
    /// The others are to be asked about this pod.
    pub fn ask(&mut self, pod: Arc<str>, blind: bool) {
        self.questions.insert(pod, blind);
    }

    /// The others are to be told that this replica hears this pod.
    pub fn vouch(&mut self, pod: Arc<str>) {
        self.vouched.insert(pod);
    }

    /// When the next statement is due.
    pub fn due(&self) -> Option<Duration> {
        let waits = !self.questions.is_empty() || !self.vouched.is_empty();
        waits.then(|| self.told_at + PAUSE)
    }

    /// Takes everything that waits to be sent.
    pub fn take(&mut self, now: Duration) -> [Opinion; 3] {
        let Self { questions, vouched, .. } =
            std::mem::replace(self, Self { told_at: now, ..Self::default() });
        let asked = |wanted: bool| Opinion {
            what: What::Ask { blind: wanted },
            pods: questions
                .iter()
                .filter(|(_, blind)| **blind == wanted)
                .map(|(pod, _)| pod.clone())
                .collect(),
        };
        let vouched = Opinion { what: What::Vouch, pods: vouched.into_iter().collect() };
        [asked(false), asked(true), vouched]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leadergroup_lock::controller::LONGEST_MESSAGE;

    /// What others send. `make fuzz` takes other seeds and more cases.
    mod fuzz {
        use proptest::{prelude::*, test_runner::RngSeed};

        use super::*;

        fn config() -> ProptestConfig {
            let config = ProptestConfig::default();
            let rng_seed =
                if config.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { config.rng_seed };
            ProptestConfig { rng_seed, ..config }
        }

        /// A message that begins like one of a replica, more or less.
        fn message() -> impl Strategy<Value = String> {
            let word = prop_oneof![
                Just(String::new()),
                prop::sample::select(vec!["ask", "ask-blind", "vouch", "sing"]).prop_map(str::to_owned),
                Just(SessionId::from(uuid::Uuid::from_u128(7)).to_string()),
                any::<String>(),
            ];
            prop::collection::vec(word, 0..8).prop_map(|words| words.join(" "))
        }

        proptest! {
            #![proptest_config(config())]

            /// Every user of the database can send messages.
            #[test]
            fn whatever_is_sent_is_ignored_or_means_what_it_says(message in message()) {
                if let Some((from, opinion)) = Opinion::read(&message) {
                    let again: Vec<_> = opinion.messages(from).collect();
                    prop_assert!(opinion.pods.is_empty() || again == [message]);
                }
            }
        }
    }

    #[test]
    fn many_pods_take_several_messages_which_are_read_as_they_were_written() {
        let pods: Vec<Arc<str>> = (0..400).map(|n| format!("{n:036}").into()).collect();
        let from = SessionId::new();
        for what in [What::Ask { blind: false }, What::Ask { blind: true }, What::Vouch] {
            let opinion = Opinion { what, pods: pods.clone() };
            let messages: Vec<String> = opinion.messages(from).collect();
            assert!(messages.iter().all(|message| message.len() <= LONGEST_MESSAGE));
            let read: Vec<_> = messages.iter().filter_map(|message| Opinion::read(message)).collect();
            assert_eq!(read.len(), 3);
            assert!(read.iter().all(|(sender, part)| (*sender, part.what) == (from, what)));
            assert_eq!(read.into_iter().flat_map(|(_, part)| part.pods).collect::<Vec<_>>(), pods);
        }
    }

    #[test]
    fn what_is_to_be_told_waits_a_moment_for_more() {
        let ms = Duration::from_millis;
        let mut untold = Untold::default();
        assert_eq!(untold.due(), None);
        untold.ask("a".into(), false);
        assert_eq!(untold.due(), Some(PAUSE), "the first one does not wait, long after the start");
        untold.ask("b".into(), true);
        untold.vouch("c".into());
        let told = |what, pod: &str| Opinion { what, pods: vec![pod.into()] };
        let all = [
            told(What::Ask { blind: false }, "a"),
            told(What::Ask { blind: true }, "b"),
            told(What::Vouch, "c"),
        ];
        assert_eq!(untold.take(ms(5_000)), all);
        assert_eq!(untold.due(), None);
        untold.vouch("d".into());
        assert_eq!(untold.due(), Some(ms(5_000) + PAUSE));
        let messages = untold.take(ms(6_000));
        assert_eq!(messages.iter().flat_map(|opinion| opinion.messages(SessionId::new())).count(), 1);
    }

    #[test]
    fn a_message_that_is_not_understood_is_ignored() {
        for message in ["", "ask", "ask me", "sing 6a9b3f9e-0d2c-4a55-9f6e-2b8f0b6f7f10 a"] {
            assert_eq!(Opinion::read(message), None, "{message}");
        }
    }
}
