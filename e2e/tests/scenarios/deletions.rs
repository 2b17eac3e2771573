//! The user's namespace, the CRD and the chart are deleted in every order, with operator and PostgreSQL or without
//! one of them: nothing gets stuck. These scenarios take as long as all others together, so they run only on request.

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

/// Defines a scenario for each order.
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
