// Takes the place of the package go-metrics, by `go build -overlay`: metrics that count nothing, because nothing reads them.
// Upstream's package imports the Prometheus client and protobuf.

package metrics

import (
	"net/http"
	"time"
)

// Unit is the unit of a gauge.
type Unit string

// Total is the unit of a number of things.
const Total Unit = "total"

// Metric is a counter, a gauge or a timer, with or without labels.
type Metric struct{}

// LabeledTimer is the type of fields.
type LabeledTimer = Metric

// WithValues sets the labels.
func (Metric) WithValues(...string) Metric { return Metric{} }

// Inc adds to a counter or a gauge.
func (Metric) Inc(...float64) {}

// Dec subtracts from a gauge.
func (Metric) Dec(...float64) {}

// UpdateSince adds a duration to a timer.
func (Metric) UpdateSince(time.Time) {}

// Namespace creates metrics.
type Namespace struct{}

// NewNamespace returns a namespace.
func NewNamespace(name, subsystem string, labels map[string]string) *Namespace { return &Namespace{} }

// NewCounter returns a counter.
func (*Namespace) NewCounter(name, help string) Metric { return Metric{} }

// NewLabeledCounter returns a counter with labels.
func (*Namespace) NewLabeledCounter(name, help string, labels ...string) Metric { return Metric{} }

// NewLabeledGauge returns a gauge with labels.
func (*Namespace) NewLabeledGauge(name, help string, unit Unit, labels ...string) Metric {
	return Metric{}
}

// NewLabeledTimer returns a timer with labels.
func (*Namespace) NewLabeledTimer(name, help string, labels ...string) Metric { return Metric{} }

// NewDefaultHttpMetrics returns the metrics of a handler: none.
func (*Namespace) NewDefaultHttpMetrics(handler string) []Metric { return nil }

// Register would publish the metrics of a namespace.
func Register(*Namespace) {}

// InstrumentHandler returns the handler.
func InstrumentHandler(metrics []Metric, handler http.Handler) http.Handler { return handler }
