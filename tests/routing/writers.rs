//! Two writers carry out a change of holder, each as if it were alone. One of them is paused before each of its writes
//! in turn, and that write takes effect late: before each of the other's.

use leadergroup::{
    api::{Declaration, PodRef},
    routing::{Declared, Promoted, Stripped},
};

use crate::stage::{Stage, term};

/// The writes of a change: declaration, strip, promotion.
const WRITES: usize = 3;

/// One writer, which was granted a token for a pod.
struct Writer<'a> {
    stage: &'a Stage,
    holder: PodRef,
    former: Vec<PodRef>,
    token: i64,
    previous: Declaration,
    next: Declaration,
    witness: String,
    done: usize,
    /// It found itself overtaken.
    stopped: bool,
}

impl<'a> Writer<'a> {
    /// Reads what its writes will be bound to.
    async fn new(stage: &'a Stage, token: i64, holder: &PodRef, former: &[PodRef]) -> Self {
        let (previous, witness) = (stage.declared().await, stage.version(holder).await);
        let next = term(token, holder, former);
        let (holder, former) = (holder.clone(), former.to_vec());
        Self { stage, holder, former, token, previous, next, witness, done: 0, stopped: false }
    }

    async fn write(&mut self) {
        if self.stopped || self.done == WRITES {
            return;
        }
        let Stage { router, group, .. } = self.stage;
        self.done += 1;
        match self.done {
            1 => match router.declare(group, &self.previous, &self.next).await.unwrap() {
                Declared::Done => {}
                Declared::Outdated | Declared::GroupGone => self.stopped = true,
            },
            2 => {
                let stripped = router.strip(group, self.token, &self.former).await.unwrap();
                self.stopped = matches!(stripped, Stripped::Outdated);
            }
            _ => match router.promote(group, self.token, &self.holder, &self.witness).await.unwrap() {
                Promoted::Done(_) => {}
                // It would check the declaration before trying again.
                Promoted::Conflict => self.stopped = true,
            },
        }
    }

    async fn finish(&mut self) {
        while !self.stopped && self.done < WRITES {
            self.write().await;
        }
    }
}

/// The first writer is paused before `paused`, its write takes effect before `late` of the second one, and it goes on
/// when all is over.
async fn duel(stage: &Stage, paused: usize, late: usize) {
    let begin = stage.begin().await;
    let (a, b, c) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    Writer::new(stage, 1, &a, &[]).await.finish().await;
    let mut first = Writer::new(stage, 2, &b, std::slice::from_ref(&a)).await;
    for _ in 0..paused {
        first.write().await;
    }
    // The other one has taken over: the row says that b may be active, too.
    let former = [a, b.clone()];
    let mut second = Writer::new(stage, 3, &c, &former).await;
    for _ in 0..late {
        second.write().await;
    }
    first.write().await;
    second.finish().await;
    first.finish().await;
    if second.stopped {
        // The late declaration came first: it reads, and decides anew.
        second = Writer::new(stage, 4, &c, &former).await;
        second.finish().await;
        first.finish().await;
    }
    assert!(!second.stopped, "paused before {paused}, late before {late}: nobody took over");
    let terms = stage.judge(&begin).await;
    assert_eq!(terms.last(), Some(&second.token), "paused before {paused}, late before {late}: {terms:?}");
}

#[tokio::test]
async fn a_writer_that_is_late_never_makes_a_second_active() {
    for paused in 0..WRITES {
        for late in 0..=WRITES {
            // A promotion that arrives between the other's declaration and its strip is taken back by that strip; it is
            // tested by itself below.
            if (paused, late) == (2, 1) {
                continue;
            }
            let stage = Stage::new("writers").await;
            duel(&stage, paused, late).await;
        }
    }
}

#[tokio::test]
async fn a_promotion_between_the_next_declaration_and_its_strip_is_taken_back() {
    let stage = Stage::new("writers").await;
    let (a, b, c) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    Writer::new(&stage, 1, &a, &[]).await.finish().await;
    let mut first = Writer::new(&stage, 2, &b, std::slice::from_ref(&a)).await;
    first.write().await;
    first.write().await;
    let mut second = Writer::new(&stage, 3, &c, &[a, b.clone()]).await;
    second.write().await;
    first.write().await;
    assert_eq!(stage.mark(&b).await, (leadergroup::election::Role::Active, Some(2)));
    second.write().await;
    assert_eq!(stage.mark(&b).await, (leadergroup::election::Role::Standby, Some(3)));
    second.write().await;
    assert!(!second.stopped);
}
