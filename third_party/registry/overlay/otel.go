// Takes the place of the package otel, by `go build -overlay`. The storage driver creates a span for each call.

package otel

import "go.opentelemetry.io/otel/trace"

// Tracer returns a tracer.
func Tracer(string) trace.Tracer { return trace.Tracer{} }
