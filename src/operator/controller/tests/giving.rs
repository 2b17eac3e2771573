//! Giving groups to other replicas.

use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use leadergroup_lock::{LockError, Token, controller::LockRow};
use serde_json::json;
use uuid::Uuid;

use super::{
    objects::{TOKEN, holder, pod_ref},
    *,
};
use crate::{
    api::{HumanDuration, Verdict},
    election::{Event, Outcome},
    health::{ProbeFailure, ProbeOutcome, VoidCause},
    operator::{
        executor::effect::row_of,
        index::{self, lock_view::LockNews},
        trouble::Trouble,
    },
    ownership::{Opinion, What},
};

/// Heartbeats, each after a second.
fn beats(stage: &mut Stage, others: &[Peer], count: u64) {
    for _ in 0..count {
        stage.now += s(1);
        stage.beat(others, Yielded::None);
        stage.turn();
    }
}

/// No other replica claims the group, so this one does, and becomes the owner.
fn take(stage: &mut Stage, others: &[Peer]) {
    beats(stage, others, 3);
    stage.claim(stage.own);
    stage.turn();
    assert!(owns(stage, 0));
}

/// The election of a group that the replica owns restarts, and finds a term that another replica granted and did not
/// declare. There is no evidence on its holder, so nothing is under way.
fn resume(stage: &mut Stage) {
    let term = LockRow {
        token: Token::new(TOKEN + 1),
        grant: Some(Uuid::from_u128(9).into()),
        holder: Some(holder(pod_ref(0, 1))),
        confirmed: false,
        ..row(0, stage.own)
    };
    let declared = group(0).status.map(|status| status.declaration);
    let outcome = Outcome::Read { row: Some(row_of(term)), declared };
    stage.within(|controller, now| {
        let world = controller.prepare(&name(0), now).expect("the group");
        controller.step(&name(0), Event::Owned { seed: Uuid::nil(), row: None, world }, now);
        // With this seed the tickets begin with one.
        controller.answer(&name(0), 1, outcome, now);
    });
    assert!(matches!(election(stage, 0).phase(), Phase::Resuming { .. }));
}

#[test]
fn a_group_at_rest_goes_to_the_replica_that_it_falls_to_and_one_in_the_middle_of_a_change_stays() {
    let other = elsewhere();
    for changing in [false, true] {
        let mut stage = listed(1);
        take(&mut stage, std::slice::from_ref(&other));
        if changing {
            resume(&mut stage);
        }
        stage.turn();
        stage.report(&name(0));
        assert!(!election(&stage, 0).busy());
        beats(&mut stage, std::slice::from_ref(&other), 4);
        assert_eq!(owns(&stage, 0), changing, "in the middle of a change: {changing}");
    }
}

/// While notifications do not arrive, the other one does not learn that the group is free.
#[test]
fn a_group_stays_for_one_ttl_after_an_outage_of_the_database() {
    let others = [elsewhere()];
    let mut stage = listed(1);
    take(&mut stage, &others);
    stage.report(&name(0));
    beats(&mut stage, &others, 3);
    let detail = "the server restarts".to_owned();
    stage.see(index::Event::Lock(LockNews::Down(LockError::NoConnection { detail })));
    beats(&mut stage, &others, 4);
    assert!(owns(&stage, 0));
    beats(&mut stage, &others, 1);
    assert!(!owns(&stage, 0));
}

/// A replica that took the group from another one because it heard the holder, and does not hear it any more. The other
/// one vouches for the holder.
struct DeafOwner {
    stage: Stage,
    /// Whether it hears the other pods.
    reaches: bool,
    /// How its probes of the holder end.
    probes: ProbeOutcome,
    written: Written,
    other: Peer,
}

/// What becomes of its writes of the status.
enum Written {
    Done,
    Failed,
    Pending,
}

impl DeafOwner {
    fn new(reaches: bool) -> Self {
        Self::on("node-8", reaches)
    }

    fn on(node: &str, reaches: bool) -> Self {
        let stage = Stage::before_lists(1, Some(node), SESSION_TTL);
        let (written, probes) = (Written::Done, ProbeOutcome::Unanswered);
        let mut this = Self { stage, reaches, probes, written, other: elsewhere() };
        let mut object = group(0);
        (object.spec.health.silence_timeout, object.spec.health.interval) =
            (HumanDuration(s(5)), HumanDuration(s(1)));
        this.stage.list_groups(vec![object]);
        this.lease(0);
        let others = [this.other.clone()];
        beats(&mut this.stage, &others, 3);
        let of_other = answered(0, Claimed::By { session: this.other.session });
        this.stage.take(Message::Claimed { session: this.stage.own, answers: vec![of_other] });
        // The other one asks about the holder. This one hears it, offers to take the group, and gets it.
        this.tell(What::Ask { blind: false });
        (0..3).for_each(|pod| this.stage.probe(0, pod, ProbeOutcome::Success));
        this.stage.beat(&others, Yielded::Any);
        this.stage.turn();
        this.stage.claim(this.stage.own);
        this.stage.turn();
        assert!(owns(&this.stage, 0) && election(&this.stage, 0).has_healthy_active());
        this
    }

    fn tell(&mut self, what: What) {
        let opinion = Opinion { what, pods: vec![pod_ref(0, 0).uid.into()] };
        for message in opinion.messages(self.other.session) {
            self.stage.take(Message::Told(message));
        }
    }

    /// The holder's node renews its lease.
    fn lease(&mut self, second: u64) {
        let renewed = format!("2026-01-01T00:00:{second:02}.000000Z");
        let lease = json!({ "metadata": { "name": "node-0" }, "spec": { "renewTime": renewed } });
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.stage.see(index::Event::NodeLease(watcher::Event::Apply(lease)));
    }

    /// Some seconds pass. Returns whether it owns the group after the heartbeat that follows.
    fn owns_after(&mut self, seconds: u64) -> bool {
        for second in 1..=seconds {
            self.stage.now += s(1);
            for pod in 0..3 {
                let outcome = match pod {
                    0 => self.probes,
                    _ if self.reaches => ProbeOutcome::Success,
                    _ => ProbeOutcome::Unanswered,
                };
                self.stage.probe(0, pod, outcome);
            }
            if second % 2 == 0 {
                self.lease(second);
                self.tell(What::Vouch);
            }
            self.stage.turn();
        }
        match self.written {
            Written::Done => self.stage.report(&name(0)),
            Written::Failed => {
                let (group, uid) = (name(0), group(0).metadata.uid.expect("a UID").into());
                let reported = Err(Trouble::Unreachable("no descriptors".into()));
                self.stage.take(Message::Reported { group, uid, reported });
                self.stage.turn();
            }
            Written::Pending => {}
        }
        let election = election(&self.stage, 0);
        let holder = election.holder().and_then(|pod| election.member(&pod.uid)).expect("the holder");
        assert_eq!(holder.verdict, Verdict::HeardElsewhere);
        self.stage.beat(std::slice::from_ref(&self.other), Yielded::None);
        owns(&self.stage, 0)
    }
}

#[test]
fn a_group_that_was_handed_over_moves_again_after_a_minute() {
    let mut owner = DeafOwner::new(true);
    assert!(owner.owns_after(6) && owner.owns_after(52));
    assert!(!owner.owns_after(4));
}

/// It cannot judge the holder, which may have ended, so that nobody else would replace it for a minute.
#[test]
fn an_owner_that_cannot_judge_the_holder_hands_a_group_over_without_a_pause() {
    assert!(!DeafOwner::new(false).owns_after(6), "it reaches no other node");
    let mut owner = DeafOwner::new(true);
    owner.probes = ProbeOutcome::Void(VoidCause::Descriptors);
    assert!(!owner.owns_after(6), "it cannot send probes");
}

/// Another replica cannot report what this one has seen. But if this one cannot either, it does not keep the group.
#[test]
fn a_group_is_handed_over_once_its_status_is_written_or_cannot_be_written() {
    for (written, owns) in [(Written::Done, false), (Written::Failed, false), (Written::Pending, true)] {
        let mut owner = DeafOwner::new(false);
        owner.written = written;
        assert_eq!(owner.owns_after(6), owns);
    }
}

#[test]
fn a_group_that_could_not_be_given_up_has_not_moved() {
    for failed in [false, true] {
        let mut owner = DeafOwner::new(true);
        assert!(owner.owns_after(58) && !owner.owns_after(4));
        let groups = if failed { vec![name(0)] } else { Vec::new() };
        owner.stage.take(Message::NotGiven(groups));
        // It is not claimed back at once.
        let others = [owner.other.clone()];
        beats(&mut owner.stage, &others, 5);
        take(&mut owner.stage, &others);
        assert_eq!(owner.owns_after(8), !failed);
    }
}

/// The group falls to the other one, which does not hear the holder.
#[test]
fn a_group_that_was_taken_because_its_holder_is_heard_is_not_given_back_for_minutes() {
    let mut owner = DeafOwner::on("node-0", true);
    let mut owns_after = |seconds: u64| {
        owner.stage.now += s(seconds);
        for second in 1..=8 {
            owner.stage.now += s(1);
            (0..3).for_each(|pod| owner.stage.probe(0, pod, ProbeOutcome::Success));
            owner.lease(second);
            owner.stage.report(&name(0));
            owner.stage.beat(std::slice::from_ref(&owner.other), Yielded::None);
        }
        owns(&owner.stage, 0)
    };
    assert!(owns_after(0) && owns_after(240));
    assert!(!owns_after(60));
}

/// The active pod is gone, and the lock was freed. This replica can send no probes to the others.
#[test]
fn a_group_without_a_holder_goes_to_a_replica_that_can_judge_its_pods() {
    let (failed, other) = (ProbeOutcome::Void(VoidCause::Descriptors), elsewhere());
    for (second_pod, others, gives) in [
        (failed, std::slice::from_ref(&other), true),
        (ProbeOutcome::Unanswered, std::slice::from_ref(&other), true),
        (failed, &[], false),
    ] {
        let mut stage = Stage::before_lists(1, Some("node-0"), SESSION_TTL);
        let mut object = group(0);
        (object.spec.health.silence_timeout, object.spec.health.interval) =
            (HumanDuration(s(5)), HumanDuration(s(1)));
        stage.list_groups(vec![object]);
        let gone = stage.pod(0, 0, true);
        stage.see(index::Event::Pod(None, watcher::Event::Delete(gone)));
        beats(&mut stage, others, 3);
        let free = answered(0, Claimed::Ours(LockRow { holder: None, ..row(0, stage.own) }));
        stage.take(Message::Claimed { session: stage.own, answers: vec![free] });
        for _ in 0..8 {
            stage.now += s(1);
            stage.probe(0, 1, failed);
            stage.probe(0, 2, second_pod);
            stage.turn();
        }
        assert!(owns(&stage, 0) && election(&stage, 0).holder().is_none());
        stage.beat(others, Yielded::None);
        assert_eq!(owns(&stage, 0), !gives, "{second_pod:?}, {others:?}");
    }
}

/// The active pod fails. Of the others this replica hears nothing, or one.
#[test]
fn a_group_whose_holder_fails_goes_to_a_replica_that_may_hear_a_candidate() {
    let other = elsewhere();
    for heard in [false, true] {
        let mut stage = Stage::before_lists(1, Some("node-0"), SESSION_TTL);
        let mut object = group(0);
        (object.spec.health.silence_timeout, object.spec.health.interval) =
            (HumanDuration(s(5)), HumanDuration(s(1)));
        stage.list_groups(vec![object]);
        take(&mut stage, std::slice::from_ref(&other));
        for _ in 0..8 {
            stage.now += s(1);
            stage.probe(0, 0, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
            stage.probe(0, 1, ProbeOutcome::Unanswered);
            stage.probe(0, 2, if heard { ProbeOutcome::Success } else { ProbeOutcome::Unanswered });
            stage.turn();
        }
        assert!(owns(&stage, 0));
        assert_eq!(election(&stage, 0).busy(), heard, "it changes the holder");
        stage.beat(std::slice::from_ref(&other), Yielded::None);
        assert_eq!(owns(&stage, 0), heard);
    }
}

/// A change of holder was begun by another replica. This one hears neither the new holder nor any other pod.
#[test]
fn an_unfinished_change_goes_to_a_replica_that_may_hear_a_candidate() {
    let other = elsewhere();
    let mut stage = Stage::before_lists(1, Some("node-0"), SESSION_TTL);
    let mut object = group(0);
    (object.spec.health.silence_timeout, object.spec.health.interval) =
        (HumanDuration(s(5)), HumanDuration(s(1)));
    stage.list_groups(vec![object]);
    take(&mut stage, std::slice::from_ref(&other));
    resume(&mut stage);
    let mut unheard = |seconds: u64| {
        for _ in 0..seconds {
            stage.now += s(1);
            (0..3).for_each(|pod| stage.probe(0, pod, ProbeOutcome::Unanswered));
            stage.turn();
            stage.beat(std::slice::from_ref(&other), Yielded::None);
        }
        assert!(!owns(&stage, 0) || matches!(election(&stage, 0).phase(), Phase::Resuming { .. }));
        owns(&stage, 0)
    };
    assert!(unheard(4), "it waits for evidence first");
    assert!(!unheard(4));
}
