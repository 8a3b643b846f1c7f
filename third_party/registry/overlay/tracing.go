// Takes the place of the package tracing of the registry, by `go build -overlay`. Upstream's package imports all exporters of
// OpenTelemetry, and with them gRPC. The main program of upstream starts them; this one does not.

package tracing

// AttributePrefix begins the names of attributes of spans.
const AttributePrefix = "io.cncf.distribution."
