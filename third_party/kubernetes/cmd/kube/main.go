// kube is every Kubernetes program of the node, and snapshot-controller, in one file: most of their code is
// shared, so that one program takes the place of five that have 340 MB together. kubectl
// is not one of them: nothing on the node starts it, and its packages read translations at
// the start of each program. kube is started under the name of the program that it shall be,
// or with that name as its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// As upstream: a CronJob names its time zone, and the node has no files of time zones.
	_ "time/tzdata"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"snapshot-controller":     newSnapshotControllerCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if programs[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = filepath.Base(os.Args[0])
	}
	program := programs[name]
	if program == nil {
		var names []string
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "kube: no program %q; there are %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(program()))
}
