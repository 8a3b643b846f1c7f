// coredns answers DNS queries of the node's pods. It has only the plugins that the node's Corefile uses.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// A query passes the plugins in this order, which is that of upstream's plugin.cfg.
	dnsserver.Directives = []string{
		"bind",
		"ready",
		"prometheus",
		"errors",
		"cache",
		"kubernetes",
		"forward",
	}
	coremain.Run()
}
