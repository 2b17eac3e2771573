//! The rules that can be broken on purpose, one at a time: those of the operator's side, and those that the agent's
//! runtime keeps. Those of its machine are broken by the planted faults of `tests/mutants/agent.toml`.

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The agent's reads are quorum reads.
    QuorumRead,
    /// A lease counts from the time before the read was sent.
    CountsFromSending,
    /// Each start of an agent has a new boot.
    FreshBoot,
    /// The program has ended only when all of its processes were reaped.
    Reaped,
    /// The floor of an answer must be above the token of the former program.
    FloorAboveToken,
    /// A terminated container counts only if its message names the boot.
    TerminatedBoot,
    /// A pod that is gone proves nothing.
    VanishedPod,
    /// A wait counts from the time at which the replica received what shows the new term.
    CountsFromReceipt,
    /// A wait is longer than the lease, because clocks differ.
    Margin,
    /// A wait leaves time to kill the program.
    KillMargin,
    /// A hold counts only if it is the one that was set when the successor was declared.
    SameHold,
    /// What may still run is carried on unchanged from a term that was never cleared.
    FormerCarried,
    /// Clearing is a compare-and-set.
    ClearComparesAndSets,
    /// Declaring is a compare-and-set.
    DeclareComparesAndSets,
    /// A new group waits for a program of a former one.
    NewGroupWaits,
    /// A planned change waits for the end of the old program.
    PlannedWaits,
    /// The former program is carried on while the group is not supervised.
    OffCarries,
}

impl Rule {
    pub const ALL: [Self; 17] = [
        Self::QuorumRead,
        Self::CountsFromSending,
        Self::FreshBoot,
        Self::Reaped,
        Self::FloorAboveToken,
        Self::TerminatedBoot,
        Self::VanishedPod,
        Self::CountsFromReceipt,
        Self::Margin,
        Self::KillMargin,
        Self::SameHold,
        Self::FormerCarried,
        Self::ClearComparesAndSets,
        Self::DeclareComparesAndSets,
        Self::NewGroupWaits,
        Self::PlannedWaits,
        Self::OffCarries,
    ];
}
