//! Every order in which the user's namespace, the CRD and the chart can be deleted, with all of the operator and PostgreSQL
//! or without one of them: nothing is left stuck. Takes longer than all other scenarios together, so only on request.

use std::rc::Rc;

use anyhow::Result;
use leadergroup_e2e::{command::progress, scenario::Stage};

use crate::removal::{Part, With, remove};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    use Part::{Chart, Crd, Namespace};
    let orders = [
        [Namespace, Crd, Chart],
        [Namespace, Chart, Crd],
        [Crd, Namespace, Chart],
        [Crd, Chart, Namespace],
        [Chart, Namespace, Crd],
        [Chart, Crd, Namespace],
    ];
    let mut number = 0;
    for with in [With::Everything, With::NoDatabase, With::NoOperator] {
        for order in orders {
            number += 1;
            progress(&format!("all_deletions: {number} of 18, {order:?} with {with:?}"));
            remove(stage, &format!("deletion-{number}"), with, order).await?;
        }
    }
    Ok(())
}
