// Command provisioner serves claims with the library that external-provisioner is built on. Only a benchmark uses it.
//
//	provisioner -kubeconfig FILE -name PROVISIONER -directories DIR -create PROGRAM [-limited]
//
// A volume is a directory, which PROGRAM creates. Prints a line "METHOD PATH?QUERY STATUS" for each answer of the API
// server, and runs until it is killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

type directories struct {
	name, path, create string
}

func (d directories) Provision(ctx context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	size := options.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	create := exec.CommandContext(ctx, d.create, filepath.Join(d.path, options.PVName), fmt.Sprint(size.Value()))
	create.Stderr = os.Stderr
	if err := create.Run(); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("cannot create the directory of %s: %w", options.PVName, err)
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: options.PVName},
			},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{
					Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{options.SelectedNodeName},
				}},
			}}}},
		},
	}, controller.ProvisioningFinished, nil
}

func (d directories) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(d.path, volume.Name))
}

// printed is a transport that prints each answer.
type printed struct {
	inner http.RoundTripper
}

func (p printed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.inner.RoundTrip(request)
	status := 0
	if err == nil {
		status = response.StatusCode
	}
	// One write, and of less than a pipe's PIPE_BUF: lines are not mixed.
	fmt.Printf("%s %s %d\n", request.Method, request.URL.RequestURI(), status)
	return response, err
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the client's identity")
	name := flag.String("name", "", "name of the provisioner, as storage classes have it")
	path := flag.String("directories", "", "directory of the volumes")
	create := flag.String("create", "", "program that creates a directory: PROGRAM DIRECTORY BYTES")
	limited := flag.Bool("limited", false, "limit the client as client-go does by default: 5 requests a second, 10 at once")
	flag.Parse()
	// Events are logged, too; errors go to standard error all the same.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := serve(*kubeconfig, directories{*name, *path, *create}, *limited); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func serve(kubeconfig string, volumes directories, limited bool) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if !limited {
		// 0 is client-go's default.
		config.QPS = -1
	}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return printed{inner} })
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "benchmark"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	controller.NewProvisionController(ctx, client, volumes.name, volumes, controller.LeaderElection(false)).Run(ctx)
	return nil
}
