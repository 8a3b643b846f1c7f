// Command helm-render prints the objects of a chart as Helm makes them, without a cluster: what `helm template` prints,
// but sorted by the names of the templates alone.
//
//	helm-render CHART NAMESPACE [VALUES]
//
// VALUES is a YAML file. Values are checked against the chart's values.schema.json, as Helm does.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// The release's name, which the charts use in labels.
const release = "granary"

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, "error: wrong usage; give CHART NAMESPACE [VALUES]")
		os.Exit(2)
	}
	if err := render(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func render(path, namespace string, files []string) error {
	chart, err := loader.Load(path)
	if err != nil {
		return err
	}
	values := chartutil.Values{}
	for _, file := range files {
		if values, err = chartutil.ReadValuesFile(file); err != nil {
			return err
		}
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, nil)
	if err != nil {
		return err
	}
	// Strict: a value that is not there is an error, not an empty text.
	rendered, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(rendered))
	for name, text := range rendered {
		if filepath.Ext(name) == ".yaml" && strings.TrimSpace(text) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		text := strings.TrimPrefix(strings.TrimSpace(rendered[name]), "---\n")
		fmt.Printf("---\n# %s\n%s\n", name, text)
	}
	return nil
}
