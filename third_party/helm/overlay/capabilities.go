// Takes the place of Helm's file of the same name, by `go build -overlay`.
//
// Upstream's file imports all API types of Kubernetes, to list the versions of a cluster that is not there.

package chartutil

// Capabilities are `.Capabilities` of a template. They have no fields, so that a template that reads the version or the
// APIs of a cluster is an error.
type Capabilities struct{}

// DefaultCapabilities are those of a render without a cluster.
var DefaultCapabilities = &Capabilities{}
