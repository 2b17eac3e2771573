// Command coredns is the cluster DNS server of the test cluster: CoreDNS with only the plugins that a cluster needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	// The order in which the plugins of a server handle a query.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "cache", "kubernetes"}
}

func main() { coremain.Run() }
