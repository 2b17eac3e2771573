//! What comes from the cluster: the connections to the API server, and the watches.

pub(super) mod api_server;
pub(super) mod descriptors;
pub(super) mod watch;
