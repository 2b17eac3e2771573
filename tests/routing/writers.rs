//! Two writers carry out a change of holder independently. The first is paused before each of its writes in turn, and
//! that write takes effect late: before each write of the second in turn. The second finds an unconfirmed term, and
//! fences its holder first.

use leadergroup::{
    api::{Declaration, PodAt, PodRef, Role},
    routing::{Declared, Promoted, Stripped},
};

use crate::stage::{KEY, Stage, term, unseen};

/// The writes of a change of holder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Write {
    Fence,
    Declare,
    Strip,
    Promote,
}

/// The writes after a confirmed term, and after an unconfirmed one.
const SETTLED: [Write; 3] = [Write::Declare, Write::Strip, Write::Promote];
const UNSETTLED: [Write; 4] = [Write::Fence, Write::Declare, Write::Strip, Write::Promote];

/// A writer with a token that was granted for a pod.
struct Writer<'a> {
    stage: &'a Stage,
    holder: PodRef,
    /// The pods to strip.
    former: Vec<PodAt>,
    /// The holder of the previous declaration.
    fenced: Vec<PodAt>,
    token: i64,
    previous: Declaration,
    next: Declaration,
    witness: String,
    left: std::slice::Iter<'static, Write>,
    /// Whether it stopped because a later term was declared.
    stopped: bool,
}

impl<'a> Writer<'a> {
    /// Reads the state for the preconditions of its writes. `watched`: its strips are bound to versions of this moment.
    async fn new(
        stage: &'a Stage,
        writes: &'static [Write],
        token: i64,
        holder: &PodRef,
        former: &[PodRef],
        watched: bool,
    ) -> Self {
        let (previous, witness) = (stage.declared().await, stage.version(holder).await);
        let next = term(token, holder, former);
        let fenced = previous.holder.as_slice();
        let (former, fenced) = if watched {
            (stage.seen(former).await, stage.seen(fenced).await)
        } else {
            (unseen(former), unseen(fenced))
        };
        let (holder, left) = (holder.clone(), writes.iter());
        Self { stage, holder, former, fenced, token, previous, next, witness, left, stopped: false }
    }

    async fn write(&mut self) {
        let Some(write) = self.left.next().filter(|_| !self.stopped) else { return };
        let Stage { router, group, .. } = self.stage;
        match write {
            Write::Fence => {
                let stripped = router.strip(group, self.previous.token, &self.fenced).await.unwrap();
                self.stopped = matches!(stripped, Stripped::Outdated);
            }
            Write::Declare => match router.declare(group, &self.previous, &self.next).await.unwrap() {
                Declared::Done => {}
                Declared::Outdated | Declared::GroupGone => self.stopped = true,
            },
            Write::Strip => {
                let stripped = router.strip(group, self.token, &self.former).await.unwrap();
                self.stopped = matches!(stripped, Stripped::Outdated);
            }
            Write::Promote => {
                match router.promote(group, KEY, self.token, &self.holder, &self.witness).await.unwrap() {
                    Promoted::Done(_) => {}
                    // The election would check the declaration before the next attempt.
                    Promoted::Conflict => self.stopped = true,
                    Promoted::Refused(refused) => panic!("{refused}"),
                }
            }
        }
    }

    async fn finish(&mut self) {
        while !self.stopped && !self.left.as_slice().is_empty() {
            self.write().await;
        }
    }
}

/// The first writer is paused before its write `paused`; this write takes effect before write `late` of the second
/// writer. The first writer resumes at the end.
async fn duel(stage: &Stage, paused: usize, late: usize, watched: bool) {
    let begin = stage.begin().await;
    let (a, b, c) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    Writer::new(stage, &SETTLED, 1, &a, &[], watched).await.finish().await;
    let mut first = Writer::new(stage, &SETTLED, 2, &b, std::slice::from_ref(&a), watched).await;
    for _ in 0..paused {
        first.write().await;
    }
    // The second writer has taken over: according to the row, b may be active, too.
    let former = [a, b.clone()];
    let mut second = Writer::new(stage, &UNSETTLED, 3, &c, &former, watched).await;
    for _ in 0..late {
        second.write().await;
    }
    first.write().await;
    second.finish().await;
    first.finish().await;
    if second.stopped {
        // The late declaration came first: the second writer reads and decides again.
        second = Writer::new(stage, &UNSETTLED, 4, &c, &former, watched).await;
        second.finish().await;
        first.finish().await;
    }
    assert!(!second.stopped, "paused before {paused}, late before {late}: there was no takeover");
    let terms = stage.judge(&begin).await;
    assert_eq!(terms.last(), Some(&second.token), "paused before {paused}, late before {late}: {terms:?}");
}

#[tokio::test]
async fn a_writer_that_is_late_never_makes_a_second_active() {
    for paused in 0..SETTLED.len() {
        for late in 0..=UNSETTLED.len() {
            for watched in [false, true] {
                let stage = Stage::new("writers").await;
                duel(&stage, paused, late, watched).await;
            }
        }
    }
}

#[tokio::test]
async fn a_promotion_between_the_next_declaration_and_its_strip_does_not_take_effect() {
    let stage = Stage::new("writers").await;
    let (a, b, c) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    Writer::new(&stage, &SETTLED, 1, &a, &[], true).await.finish().await;
    let mut first = Writer::new(&stage, &SETTLED, 2, &b, std::slice::from_ref(&a), true).await;
    first.write().await;
    first.write().await;
    let mut second = Writer::new(&stage, &UNSETTLED, 3, &c, &[a, b.clone()], true).await;
    second.write().await;
    assert_eq!(stage.mark(&b).await, (Role::Standby, Some(2)), "fenced under its own term");
    second.write().await;
    assert_eq!(stage.declared().await.token, 3);
    first.write().await;
    assert!(first.stopped);
    assert_eq!(stage.mark(&b).await, (Role::Standby, Some(2)));
    second.finish().await;
    assert!(!second.stopped);
    assert_eq!(stage.mark(&b).await, (Role::Standby, Some(3)));
    assert_eq!(stage.mark(&c).await, (Role::Active, Some(3)));
}
