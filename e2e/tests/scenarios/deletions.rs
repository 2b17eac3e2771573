//! Every order in which the user's namespace, the CRD and the chart can be deleted, with all of the operator and PostgreSQL
//! or without one of them: nothing is left stuck. Together they take as long as all other scenarios, so only on request.

use std::rc::Rc;

use anyhow::Result;
use leadergroup_e2e::{command::progress, scenario::Stage};

use crate::removal::{
    Part::{self, Chart, Crd, Namespace},
    With, remove,
};

const ORDERS: [[Part; 3]; 6] = [
    [Namespace, Crd, Chart],
    [Namespace, Chart, Crd],
    [Crd, Namespace, Chart],
    [Crd, Chart, Namespace],
    [Chart, Namespace, Crd],
    [Chart, Crd, Namespace],
];

async fn every_order(stage: &Rc<Stage>, name: &str, with: With) -> Result<()> {
    for (number, order) in ORDERS.into_iter().enumerate() {
        progress(&format!("{name}: {order:?}"));
        remove(stage, &format!("{name}-{number}"), with, order).await?;
    }
    Ok(())
}

/// A scenario for each of them.
macro_rules! scenarios {
    ($($name:ident: $with:ident;)+) => {
        $(pub(crate) mod $name {
            pub(crate) async fn play(stage: &std::rc::Rc<leadergroup_e2e::scenario::Stage>) -> anyhow::Result<()> {
                let name = stringify!($name).replace('_', "-");
                super::every_order(stage, &name, crate::removal::With::$with).await
            }
        })+
    };
}

scenarios! {
    deletions_with_everything: Everything;
    deletions_without_postgres: NoDatabase;
    deletions_without_operator: NoOperator;
}
