package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	controller "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

// Upstream's defaults, but those of clients: the API server's priority and fairness limits the controller.
const (
	snapshotResync     = 15 * time.Minute
	snapshotRetryFirst = time.Second
	snapshotRetryMost  = 5 * time.Minute
	snapshotWorkers    = 10
	definitionsLimit   = 30 * time.Second
)

// newSnapshotControllerCommand is upstream's snapshot-controller, which is a `package main` and cannot be imported, as the
// node runs it: each node takes the snapshots of its own volumes, without a leader election and a port.
func newSnapshotControllerCommand() *cobra.Command {
	var kubeconfig string
	command := &cobra.Command{
		Use:  "snapshot-controller",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return runSnapshotController(server.SetupSignalContext(), kubeconfig)
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "Path to the kubeconfig file.")
	return command
}

func runSnapshotController(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	// A panic ends the pass over an object, not the controller.
	utilruntime.ReallyCrash = false
	snapshots, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	// Custom resources have no protobuf.
	coreConfig := rest.CopyConfig(config)
	coreConfig.ContentType = runtime.ContentTypeProtobuf
	core, err := kubernetes.NewForConfig(coreConfig)
	if err != nil {
		return err
	}
	if err := waitForDefinitions(ctx, snapshots); err != nil {
		return err
	}
	// The scheme of events.
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return err
	}

	factory := snapshotinformers.NewSharedInformerFactory(snapshots, snapshotResync)
	coreFactory := informers.NewSharedInformerFactory(core, snapshotResync)
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](snapshotRetryFirst, snapshotRetryMost)
	}
	const distributed, preventModeConversion, groups = true, true, true
	common := controller.NewCSISnapshotCommonController(
		snapshots,
		core,
		factory.Snapshot().V1().VolumeSnapshots(),
		factory.Snapshot().V1().VolumeSnapshotContents(),
		factory.Snapshot().V1().VolumeSnapshotClasses(),
		factory.Groupsnapshot().V1().VolumeGroupSnapshots(),
		factory.Groupsnapshot().V1().VolumeGroupSnapshotContents(),
		factory.Groupsnapshot().V1().VolumeGroupSnapshotClasses(),
		coreFactory.Core().V1().PersistentVolumeClaims(),
		coreFactory.Core().V1().PersistentVolumes(),
		coreFactory.Core().V1().Nodes(),
		metrics.NewMetricsManager(),
		snapshotResync,
		limiter(),
		limiter(),
		limiter(),
		limiter(),
		distributed,
		preventModeConversion,
		groups,
	)
	factory.Start(ctx.Done())
	coreFactory.Start(ctx.Done())
	common.Run(snapshotWorkers, ctx.Done(), nil)
	return nil
}

// waitForDefinitions returns when the API server serves the kinds. Otherwise the informers would only log their retries.
func waitForDefinitions(ctx context.Context, client clientset.Interface) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, definitionsLimit, true, func(ctx context.Context) (bool, error) {
		api, groupAPI, one := client.SnapshotV1(), client.GroupsnapshotV1(), metav1.ListOptions{Limit: 1}
		_, snapshots := api.VolumeSnapshots(metav1.NamespaceAll).List(ctx, one)
		_, contents := api.VolumeSnapshotContents().List(ctx, one)
		_, classes := api.VolumeSnapshotClasses().List(ctx, one)
		_, groups := groupAPI.VolumeGroupSnapshots(metav1.NamespaceAll).List(ctx, one)
		_, groupContents := groupAPI.VolumeGroupSnapshotContents().List(ctx, one)
		_, groupClasses := groupAPI.VolumeGroupSnapshotClasses().List(ctx, one)
		last = errors.Join(snapshots, contents, classes, groups, groupContents, groupClasses)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the API server does not serve the kinds of snapshots: %w", errors.Join(last, err))
	}
	return nil
}
