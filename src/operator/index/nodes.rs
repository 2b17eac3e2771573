//! Nodes that are cordoned or labelled, and nodes that go away.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::watcher};

use super::{Index, Requests, watch_health::Watched};

impl Index {
    pub(super) fn node_event(&mut self, event: watcher::Event<Node>, requests: &mut Requests) {
        let listing = (Watched::Nodes, None);
        match event {
            watcher::Event::Apply(node) => self.node_seen(&node),
            watcher::Event::Delete(node) => self.node_gone(&node.name_any()),
            watcher::Event::Init => {
                self.listing.insert(listing, BTreeSet::new());
            }
            watcher::Event::InitApply(node) => {
                if let Some(seen) = self.listing.get_mut(&listing) {
                    seen.insert(node.name_any());
                }
                self.nodes.seen(&node);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(&listing).unwrap_or_default();
                for node in self.nodes.not_in(&seen) {
                    self.nodes.gone(&node);
                }
                // Once, and not for each of thousands of nodes.
                self.touch_all();
                self.synced(Watched::Nodes, None, requests);
            }
        }
    }

    fn node_seen(&mut self, node: &Node) {
        if self.nodes.seen(node) {
            self.touch_groups_on(&node.name_any());
        }
    }

    fn node_gone(&mut self, node: &str) {
        if self.nodes.gone(node) {
            self.touch_groups_on(node);
        }
    }

    fn touch_groups_on(&mut self, node: &str) {
        self.dirty.extend(self.placement.groups_on(node));
    }
}
