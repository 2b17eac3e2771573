//! `leadergroup crd`: the custom resource definition as a manifest.

use kube::CustomResourceExt as _;

use crate::api::LeaderGroup;

/// The custom resource definition of [`LeaderGroup`] as a YAML manifest. `crds/leadergroups.yaml` is this text.
///
/// # Panics
///
/// Never: a test generates the definition of these types.
pub fn crd_yaml() -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&LeaderGroup::crd(), options)
        .expect("a custom resource definition has string keys and finite numbers only")
}
