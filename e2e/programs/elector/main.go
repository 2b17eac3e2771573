// Command elector is a pod's program that elects a leader as client-go's example does, for comparison: the callback
// labels the leader's own pod, and a Service selects it.
//
// It answers HTTP requests with the pod's name, and with 503 while it is not the leader.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const roleLabel = "example.com/role"

func main() {
	// The defaults are those of Kubernetes' own components and of controller-runtime.
	lease := flag.Duration("lease-duration", 15*time.Second, "how long others wait for a leader that is silent")
	renew := flag.Duration("renew-deadline", 10*time.Second, "how long the leader tries to renew")
	retry := flag.Duration("retry-period", 2*time.Second, "the time between two attempts")
	flag.Parse()
	if err := run(*lease, *renew, *retry); err != nil {
		log.Fatal(err)
	}
}

func run(lease, renew, retry time.Duration) error {
	name, namespace, app := os.Getenv("POD_NAME"), os.Getenv("POD_NAMESPACE"), os.Getenv("APP")
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	var leads atomic.Bool
	served := make(chan error, 1)
	go func() { served <- http.ListenAndServe(":8080", answer(name, &leads)) }()

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Name: app, Namespace: namespace},
			Client:    client.CoordinationV1(),
			// Another one after each start, as in the example and in controller-runtime.
			LockConfig: resourcelock.ResourceLockConfig{Identity: name + "_" + string(uuid.NewUUID())},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   lease,
		RenewDeadline:   renew,
		RetryPeriod:     retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				leads.Store(true)
				if err := takeOver(ctx, client, namespace, app, name); err != nil && ctx.Err() == nil {
					log.Fatalf("cannot take over: %v", err)
				}
			},
			OnStoppedLeading: func() { leads.Store(false) },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	select {
	case err := <-served:
		return err
	default:
		// As the example does: a leader that lost its lease starts anew.
		return errors.New("the lease is lost")
	}
}

func answer(name string, leads *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if !leads.Load() {
			http.Error(w, "not the leader", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, name)
	})
	return mux
}

// takeOver labels every other active pod standby, and then this one active.
func takeOver(ctx context.Context, client kubernetes.Interface, namespace, app, name string) error {
	pods := client.CoreV1().Pods(namespace)
	label := func(pod, role string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, roleLabel, role)
		_, err := pods.Patch(ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	selector := fmt.Sprintf("app=%s,%s=active", app, roleLabel)
	active, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	for _, pod := range active.Items {
		if pod.Name != name {
			if err := label(pod.Name, "standby"); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return label(name, "active")
}
