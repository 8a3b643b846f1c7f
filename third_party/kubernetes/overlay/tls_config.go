// Package web is what CoreDNS calls for metrics with TLS, which the node does not use. Upstream's package contains templates, for
// which the linker keeps every exported method of a program.
package web

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
)

// FlagConfig has the fields that CoreDNS sets.
type FlagConfig struct {
	WebListenAddresses *[]string
	WebSystemdSocket   *bool
	WebConfigFile      *string
}

// Serve always fails.
func Serve(net.Listener, *http.Server, *FlagConfig, *slog.Logger) error {
	return errors.New("this build of CoreDNS serves metrics without TLS only")
}
