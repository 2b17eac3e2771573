#!/usr/bin/env bash
# To be sourced: from here on no program finds a cluster of the user's, neither by KUBECONFIG, nor in ~/.kube/config, nor
# the one whose pod this may be. The tests start clusters of their own, and name them.
KUBECONFIG=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/no-cluster.yaml
export KUBECONFIG
export LEADERGROUP_PROVIDER=own
unset KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT
